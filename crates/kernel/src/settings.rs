//! Settings of the kernel scheduler and of single VMs, with their bounds.
//!
//! The numbers' meaning is told in `bpf/intf.h`; how they are written in a file is the agent's.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// When the siblings of a VM run together (design.md, kernel scheduler, 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cosched {
    /// By what the VM does: when its vCPUs do not block.
    #[default]
    Auto,
    /// Never.
    Never,
    /// Always, holes filled by others.
    Relaxed,
    /// Always, holes left empty: for comparison.
    Strict,
}

impl Cosched {
    /// As `enum instep_cosched` has it.
    #[must_use]
    pub fn raw(self) -> u32 {
        match self {
            Self::Auto => 0,
            Self::Never => 1,
            Self::Relaxed => 2,
            Self::Strict => 3,
        }
    }
}

/// Names of the mechanisms, bit 0 first (`INSTEP_M_*`).
pub const MECHANISMS: [&str; 16] = [
    "shares", "balance", "cores", "home", "boost", "gang", "yield", "wake", "pull", "probe",
    "gather", "host", "rescue", "turns", "skew", "stay",
];

/// Which mechanisms are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mechanisms(pub u32);

impl Mechanisms {
    /// Every one.
    pub const ALL: Self = Self((1 << MECHANISMS.len()) - 1);

    /// All but those named.
    ///
    /// # Errors
    /// A name that is none, with the known ones.
    pub fn without<S: AsRef<str>>(names: &[S]) -> Result<Self, String> {
        names.iter().try_fold(Self::ALL, |on, name| {
            let name = name.as_ref();
            let bit = MECHANISMS.iter().position(|known| *known == name).ok_or_else(|| {
                format!("unknown mechanism `{name}`; known are {}", MECHANISMS.join(", "))
            })?;
            Ok(Self(on.0 & !(1 << bit)))
        })
    }
}

impl Default for Mechanisms {
    fn default() -> Self {
        Self::ALL
    }
}

/// Settings of the whole scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a thread runs when others wait.
    pub slice: Duration,
    /// How long siblings run together.
    pub episode: Duration,
    /// How far a vCPU may run ahead of a waiting sibling.
    pub skew: Duration,
    /// Virtual time by which a waker may be ahead of what it preempts.
    pub wake_slack: Duration,
    /// Virtual time by which a bottleneck is preferred.
    pub boost: Duration,
    /// Virtual time behind which a waiter is taken over by another CPU.
    pub pull: Duration,
    /// The most that anything may be ahead of or behind its CPU in virtual time.
    pub debt: Duration,
    /// Weight of everything that belongs to no VM, together.
    pub host_weight: u32,
    /// Which mechanisms are on.
    pub mechanisms: Mechanisms,
}

impl Default for Settings {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            slice: ms(3),
            episode: ms(6),
            skew: ms(3),
            wake_slack: ms(1),
            boost: ms(6),
            pull: ms(12),
            debt: ms(96),
            host_weight: 100,
            mechanisms: Mechanisms::ALL,
        }
    }
}

/// An allocation period is between these.
pub const PERIODS: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(1)];
/// The default allocation period (systems.md, 5).
pub const DEFAULT_PERIOD: Duration = Duration::from_millis(24);

/// How promptly a VM is served at wake-ups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Latency {
    /// As all.
    #[default]
    Normal,
    /// Its wake-ups are preferred by two milliseconds of virtual time.
    Prompt,
}

impl Latency {
    /// Virtual microseconds by which its wake-ups are preferred.
    #[must_use]
    pub fn micros(self) -> u32 {
        match self {
            Self::Normal => 0,
            Self::Prompt => 2000,
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Normal => "normal",
            Self::Prompt => "prompt",
        })
    }
}

impl FromStr for Latency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "normal" => Ok(Self::Normal),
            "prompt" => Ok(Self::Prompt),
            _ => Err(format!("`{text}` is none of normal, prompt")),
        }
    }
}

impl FromStr for Cosched {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "never" => Ok(Self::Never),
            "relaxed" => Ok(Self::Relaxed),
            "strict" => Ok(Self::Strict),
            _ => Err(format!("`{text}` is none of auto, never, relaxed, strict")),
        }
    }
}

impl fmt::Display for Cosched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Never => "never",
            Self::Relaxed => "relaxed",
            Self::Strict => "strict",
        })
    }
}

/// Where a CPU is in the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPlace {
    /// Its NUMA node; -1 while it is offline.
    pub node: i32,
    /// The next CPU of its core, in a ring: itself if it is alone.
    pub next_thread: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_mechanism_is_refused_with_the_known_ones() {
        let error = Mechanisms::without(&["gangs"]).unwrap_err();
        assert!(error.contains("`gangs`") && error.contains("gang, yield"), "{error}");
    }

    #[test]
    fn a_named_mechanism_is_off_and_the_others_on() {
        let without = Mechanisms::without(&["shares", "boost"]).unwrap();
        assert_eq!(without.0, Mechanisms::ALL.0 & !0b1_0001);
    }

    #[test]
    fn words_of_settings_are_read_as_they_are_written() {
        for cosched in [Cosched::Auto, Cosched::Never, Cosched::Relaxed, Cosched::Strict] {
            assert_eq!(cosched.to_string().parse(), Ok(cosched));
        }
        assert!("gang".parse::<Cosched>().is_err());
        for latency in [Latency::Normal, Latency::Prompt] {
            assert_eq!(latency.to_string().parse(), Ok(latency));
        }
        assert!("5ms".parse::<Latency>().unwrap_err().contains("`5ms` is none of normal"));
    }
}
