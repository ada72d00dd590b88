//! The values of options, with their units.

use serde::{Serialize, Serializer};
use std::time::Duration;

/// Reads `100us`, `1.5ms`, `10s`, `2m`; a plain `0` needs no unit. The least is `LEAST` nanoseconds.
///
/// # Errors
/// What was expected.
pub fn duration<const LEAST: u64>(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 6] =
        [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 6e10), ("h", 3.6e12)];
    let nanos = if text == "0" { Some(0.0) } else { split(text, &UNITS) };
    // Ten years: more is a mistake, and sums of times must fit.
    let nanos = nanos.filter(|nanos| *nanos < 3.2e17);
    let found = nanos.ok_or("expected a duration such as 100us, 1ms or 10s")?;
    let (found, least) = (Duration::from_nanos(found as u64), Duration::from_nanos(LEAST));
    if found < least { Err(format!("expected at least {least:?}")) } else { Ok(found) }
}

/// Reads `4096`, `64KiB`, `16MiB`, `1GiB`. The least is `LEAST` bytes.
///
/// # Errors
/// What was expected.
pub fn size<const LEAST: usize>(text: &str) -> Result<usize, String> {
    const UNITS: [(&str, f64); 4] =
        [("KiB", 1024.0), ("MiB", 1_048_576.0), ("GiB", 1_073_741_824.0), ("B", 1.0)];
    let bytes = text.parse::<u32>().map(f64::from).ok().or_else(|| split(text, &UNITS));
    let bytes = bytes.filter(|bytes| *bytes < 7e13);
    let bytes = bytes.ok_or("expected a size such as 64KiB, 16MiB or 1GiB")? as usize;
    if bytes < LEAST { Err(format!("expected at least {LEAST} bytes")) } else { Ok(bytes) }
}

/// Reads a percentage, 0 to 100; the sign may be left out.
///
/// # Errors
/// What was expected.
pub fn percent(text: &str) -> Result<u32, String> {
    let digits = text.strip_suffix('%').unwrap_or(text);
    let found = digits.parse().ok().filter(|percent| *percent <= 100);
    found.ok_or_else(|| "expected a percentage from 0% to 100%".to_owned())
}

/// A number that is not negative, times the factor of its unit, rounded.
fn split(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (digits, unit) = text.split_at(end);
    let factor = units.iter().find(|(name, _)| *name == unit)?.1;
    Some((digits.parse::<f64>().ok()? * factor).round())
}

/// Writes a duration in nanoseconds.
pub(crate) fn nanos<T, S>(duration: &T, to: S) -> Result<S::Ok, S::Error>
where
    T: Copy + Into<Option<Duration>>,
    S: Serializer,
{
    let duration: Option<Duration> = (*duration).into();
    duration.map(|duration| duration.as_nanos() as u64).serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_sizes_and_parts_carry_units() {
        let duration = duration::<0>;
        assert_eq!(duration("100us"), Ok(Duration::from_micros(100)));
        assert_eq!(duration("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for bad in ["", "10", "s", "-1s", "1 s", "1e3s", "1..5s", "1d", "99999999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(super::duration::<100>("99ns"), Err("expected at least 100ns".to_owned()));
        let size = size::<24>;
        assert_eq!(size("64KiB"), Ok(65536));
        assert_eq!(size("4096"), Ok(4096));
        for bad in ["", "MiB", "1MB", "-4096", "99999999GiB", "18446744073709551615", "23"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!((percent("20%"), percent("7")), (Ok(20), Ok(7)));
        assert!(percent("101%").is_err() && percent("-1").is_err());
    }

    proptest! {
        #[test]
        fn any_word_is_read_or_refused_without_panic(word: String) {
            let _ = (duration::<0>(&word), size::<0>(&word), percent(&word));
        }
    }
}
