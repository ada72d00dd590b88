//! A CPU limit of a case, as `cpu.max` and scenarios of the simulator have it: CPU time for each 100 ms.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::time::Duration;

/// The most CPU time in each 100 ms, in milliseconds.
const MOST_MS: u128 = 6400;

/// CPU time for each 100 ms, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota(u32);

impl Quota {
    /// The CPUs that it is.
    pub(crate) fn cpus(self) -> f64 {
        f64::from(self.0) / 100.0
    }

    /// CPU time for each 100 ms, in microseconds.
    pub(crate) fn micros(self) -> u32 {
        self.0 * 1000
    }
}

impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let time = Duration::from_millis(self.0.into());
        serializer.collect_str(&humantime::format_duration(time))
    }
}

impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time = humantime::parse_duration(&text).ok();
        let whole = time.filter(|time| time.subsec_nanos().is_multiple_of(1_000_000));
        let ms = whole.map(|time| time.as_millis()).filter(|ms| (1..=MOST_MS).contains(ms));
        let ms = ms.and_then(|ms| u32::try_from(ms).ok());
        ms.map(Self).ok_or_else(|| {
            de::Error::custom(format_args!(
                "quota `{text}`; it must be CPU time for each 100 ms, 1ms to 6400ms in whole \
                 milliseconds"
            ))
        })
    }
}
