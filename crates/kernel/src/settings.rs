//! Settings of the kernel scheduler and of single VMs, with their bounds.
//!
//! The numbers' meaning is told in `bpf/intf.h`; how they are written in a file is the agent's.

use instep_abi::defaults;
pub use instep_abi::{MECHANISMS, defaults::HOST_WEIGHT};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Which vCPUs of a VM form a gang, which runs at the same time (`bpf/gang.bpf.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cosched {
    /// Those that hardly ever block.
    #[default]
    Auto,
    /// None.
    Never,
    /// All, whatever they do.
    Relaxed,
}

impl Cosched {
    /// As `enum instep_cosched` has it.
    #[must_use]
    pub fn raw(self) -> u32 {
        match self {
            Self::Auto => instep_abi::COSCHED_AUTO,
            Self::Never => instep_abi::COSCHED_NEVER,
            Self::Relaxed => instep_abi::COSCHED_RELAXED,
        }
    }
}

/// Which mechanisms are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mechanisms(pub u32);

impl Mechanisms {
    /// Every one.
    pub const ALL: Self = Self(instep_abi::M_ALL);

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
pub struct SchedulerSettings {
    /// How long a thread runs when others wait.
    pub slice: Duration,
    /// Length of a gang slot.
    pub slot: Duration,
    /// Virtual time by which a thread that wakes up must be behind what it preempts.
    pub wake_slack: Duration,
    /// The most virtual time that an account may save.
    pub lag: Duration,
    /// Weight of the threads that belong to no VM, together, in each scheduling domain. `None`: all weigh what the tree of
    /// cgroups says.
    pub host_weight: Option<u32>,
    /// Which mechanisms are on.
    pub mechanisms: Mechanisms,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        Self {
            slice: Duration::from_nanos(defaults::SLICE_NS),
            slot: Duration::from_nanos(defaults::SLOT_NS),
            wake_slack: Duration::from_nanos(defaults::WAKE_SLACK_NS),
            lag: Duration::from_nanos(defaults::LAG_NS),
            host_weight: None,
            mechanisms: Mechanisms::ALL,
        }
    }
}

/// An allocation period is between these.
pub const PERIODS: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(1)];
/// The default allocation period.
pub const DEFAULT_PERIOD: Duration = Duration::from_nanos(defaults::PERIOD_NS);

/// How promptly a VM is served at wake-ups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
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

/// Versions before this one knew `strict`, which left CPUs of a gang empty.
const STRICT_IS_GONE: &str = "`strict` no longer exists, as other threads always fill CPUs that a gang leaves idle; \
     write \"relaxed\", which makes all vCPUs of the VM a gang, or \"auto\"";

impl FromStr for Cosched {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "never" => Ok(Self::Never),
            "relaxed" => Ok(Self::Relaxed),
            "strict" => Err(STRICT_IS_GONE.to_owned()),
            _ => Err(format!("`{text}` is none of auto, never, relaxed")),
        }
    }
}

impl fmt::Display for Cosched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Never => "never",
            Self::Relaxed => "relaxed",
        })
    }
}

/// Where a CPU is in the host, and in its scheduling domain (`instep_core::topology::lanes`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPlace {
    /// Its NUMA node; -1 while it is offline.
    pub node: i32,
    /// Its scheduling domain, from 0.
    pub domain: u32,
    /// Its number in the domain, from 0.
    pub lane: u32,
    /// The lanes of its core, its own included, as bits.
    pub core: u64,
    /// Whether it is the first lane of a last-level cache.
    pub first_of_cache: bool,
    /// Whether only threads run here that are bound to such CPUs.
    pub isolated: bool,
}

impl CpuPlace {
    /// Of a CPU that is offline: in no domain (`NO_DOMAIN` of `bpf/state.bpf.h`).
    pub const OFFLINE: Self = Self {
        node: -1,
        domain: u32::MAX,
        lane: 0,
        core: 0,
        first_of_cache: false,
        isolated: false,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_mechanism_is_refused_with_the_known_ones() {
        let error = Mechanisms::without(&["gangs"]).unwrap_err();
        assert!(error.contains("`gangs`") && error.contains("gang, shares"), "{error}");
    }

    #[test]
    fn a_named_mechanism_is_off_and_the_others_on() {
        let without = Mechanisms::without(&["shares", "wake"]).unwrap();
        assert_eq!(without.0, Mechanisms::ALL.0 & !0b1_0010);
    }

    #[test]
    fn words_of_settings_are_read_as_they_are_written() {
        for cosched in [Cosched::Auto, Cosched::Never, Cosched::Relaxed] {
            assert_eq!(cosched.to_string().parse(), Ok(cosched));
        }
        assert!("gang".parse::<Cosched>().is_err());
        let strict = "strict".parse::<Cosched>().unwrap_err();
        assert!(strict.contains("write \"relaxed\""), "{strict}");
        for latency in [Latency::Normal, Latency::Prompt] {
            assert_eq!(latency.to_string().parse(), Ok(latency));
        }
        assert!("5ms".parse::<Latency>().unwrap_err().contains("`5ms` is none of normal"));
    }
}
