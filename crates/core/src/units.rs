//! Newtypes for identities and quantities, so that a CPU number cannot pass for a node number.
//!
//! Knows nothing of where the numbers come from. Raw integers are unwrapped only by parsers,
//! by the kernel ABI and where a system call needs them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// An identity that is a small dense number in the kernel (CPU, node, core ...): what an
/// [`IdSet`](crate::idset::IdSet) can hold.
pub trait Id: Copy + Ord + fmt::Debug {
    /// The identity with this kernel number.
    fn from_raw(raw: u32) -> Self;
    /// The kernel's number.
    fn raw(self) -> u32;
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident,)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl Id for $name {
            fn from_raw(raw: u32) -> Self {
                Self(raw)
            }
            fn raw(self) -> u32 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

ids!(
    /// A logical CPU of the host (pCPU), by the kernel's number.
    CpuId,
    /// A NUMA node of the host, by the kernel's number.
    NodeId,
    /// A physical core or core module: dense, in order of its lowest CPU.
    CoreId,
    /// CPUs that share an L2 without being one core: dense, in order of the lowest CPU.
    ClusterId,
    /// A last-level cache: dense, in order of its lowest CPU.
    LlcId,
    /// A processor package (socket): dense, in order of its lowest CPU.
    PackageId,
    /// A virtual machine. On a Linux host the process id of its monitor.
    VmId,
    /// A thread, by the host kernel's thread id.
    Tid,
);

/// A span of time in nanoseconds. Which clock it was read from is said where it is stored.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    JsonSchema,
    Serialize,
    Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// One second.
    pub const SECOND: Nanos = Nanos(1_000_000_000);

    /// `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Nanos(secs.saturating_mul(Self::SECOND.0))
    }

    /// `self - earlier`, or zero when the clock seems to have gone backwards.
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self` as a fraction of `whole` in thousandths, rounded down; 0 when `whole` is 0.
    pub const fn milli_of(self, whole: Nanos) -> Milli {
        if whole.0 == 0 {
            return Milli(0);
        }
        let milli = self.0 as u128 * 1000 / whole.0 as u128;
        Milli(if milli > u64::MAX as u128 { u64::MAX } else { milli as u64 })
    }
}

/// Thousandths of something: of a CPU for load and demand, of one for a fraction.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    JsonSchema,
    Serialize,
    Deserialize,
)]
#[serde(transparent)]
pub struct Milli(pub u64);

impl fmt::Display for Milli {
    /// As a decimal with two places: `Milli(1500)` is `1.50`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = self.0 / 10 + u64::from(self.0 % 10 >= 5);
        write!(f, "{}.{:02}", hundredths / 100, hundredths % 100)
    }
}

/// An amount of memory in bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    JsonSchema,
    Serialize,
    Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// `n` MiB.
    pub const fn from_mib(n: u64) -> Self {
        Bytes(n.saturating_mul(1 << 20))
    }
}

impl fmt::Display for Bytes {
    /// In the largest binary unit that leaves at least one: `512B`, `1.5GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        for (unit, shift) in UNITS {
            if self.0 >> shift != 0 {
                let tenths = (u128::from(self.0) * 10) >> shift;
                return if tenths % 10 == 0 {
                    write!(f, "{}{unit}", tenths / 10)
                } else {
                    write!(f, "{}.{}{unit}", tenths / 10, tenths % 10)
                };
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// Units of sizes: those of 1,024 and those of 1,000 bytes.
const SIZES: [(&str, u64); 13] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("EiB", 1 << 60),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
    ("EB", 1_000_000_000_000_000_000),
];

impl FromStr for Bytes {
    type Err = SizeError;

    /// A number with its unit, such as `64MiB`, `1.5GiB` or `2 GB`, in small or large letters; of all but bytes the `B` may be
    /// left out. What is left of a byte is dropped, and a size that 64 bits cannot hold is the largest that they can.
    fn from_str(text: &str) -> Result<Self, SizeError> {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let (number, unit) = text.split_at(text.find(|c| !is_number(c)).unwrap_or(text.len()));
        let unit = unit.trim_start();
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let wrong = || SizeError::Number(number.to_owned());
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        if !is_digits(whole) || !is_digits(part) {
            return Err(wrong());
        }
        if unit.is_empty() {
            return Err(SizeError::NoUnit);
        }
        let known = SIZES.iter().find(|(name, _)| {
            [name, name.trim_end_matches('B')].iter().any(|name| name.eq_ignore_ascii_case(unit))
        });
        let (_, bytes) = known.ok_or_else(|| SizeError::Unit(unit.to_owned()))?;
        // Digits alone: a number of more of them than 64 bits hold is too large, and nothing else.
        let whole = whole.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(*bytes);
        let part = format!("0.{part}").parse::<f64>().map_err(|_| wrong())? * *bytes as f64;
        Ok(Self(whole.saturating_add(part as u64)))
    }
}

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// It does not begin with a number.
    #[error("`{0}` is no number")]
    Number(String),
    /// There is a number only, which could be of anything.
    #[error("it has no unit")]
    NoUnit,
    /// The unit is none of those known.
    #[error("`{0}` is no unit such as KiB, MiB, GiB or TiB")]
    Unit(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, bytes) in [
            ("64MiB", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("2 GB", 2_000_000_000),
            ("7b", 7),
            ("0.5kib", 512),
            ("1.0001KiB", 1024),
            ("9007199254740993B", 9_007_199_254_740_993),
            ("18446744073709551615B", u64::MAX),
            ("99999999999999999999TiB", u64::MAX),
            ("17PiB", 17 << 50),
            ("1EiB", 1 << 60),
            ("2G", 2_000_000_000),
            ("64Mi", 64 << 20),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        let shown = Bytes(3 << 29).to_string().parse();
        assert_eq!(shown, Ok(Bytes(3 << 29)));
    }

    #[test]
    fn text_that_is_no_size_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "`` is no number"),
            ("fish", "`` is no number"),
            ("-1MiB", "`` is no number"),
            ("1..5MiB", "`1..5` is no number"),
            (".5MiB", "`.5` is no number"),
            ("64", "it has no unit"),
            ("64MiBx", "`MiBx` is no unit such as KiB, MiB, GiB or TiB"),
            ("64\u{e4}", "`\u{e4}` is no unit such as KiB, MiB, GiB or TiB"),
            ("1e3MiB", "`e3MiB` is no unit such as KiB, MiB, GiB or TiB"),
        ] {
            let error = text.parse::<Bytes>().unwrap_err();
            assert_eq!(error.to_string(), why, "{text}");
        }
    }

    #[test]
    fn bytes_print_in_the_largest_fitting_unit() {
        let shown: Vec<String> =
            [0, 512, 1024, 1 << 20, 3 << 29].iter().map(|b| Bytes(*b).to_string()).collect();
        assert_eq!(shown, ["0B", "512B", "1KiB", "1MiB", "1.5GiB"]);
    }

    #[test]
    fn thousandths_print_rounded_however_many() {
        let shown: Vec<String> =
            [0, 4, 5, 1500, 1995].iter().map(|m| Milli(*m).to_string()).collect();
        assert_eq!(shown, ["0.00", "0.00", "0.01", "1.50", "2.00"]);
        assert_eq!(Milli(u64::MAX).to_string(), "18446744073709551.62");
    }

    #[test]
    fn a_fraction_of_nothing_is_zero() {
        assert_eq!(Nanos(5).milli_of(Nanos(0)), Milli(0));
        assert_eq!(Nanos(1).milli_of(Nanos(3)), Milli(333));
        assert_eq!(Nanos(u64::MAX).milli_of(Nanos(1)), Milli(u64::MAX));
    }
}
