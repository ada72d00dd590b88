//! Sizes in TOML: text with a unit, such as `128MiB`.

use instep_core::expected;
use instep_core::units::Bytes;
use serde::{Deserializer, de};

/// Reads a size as whole MiB.
///
/// # Errors
/// When it is no size with a unit, or not a whole number of MiB.
pub fn mib<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = expected::text(from, "a size such as \"128MiB\" or \"2GiB\"")?;
    parse_mib(&text).map_err(de::Error::custom)
}

fn parse_mib(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size such as 128MiB or 2GiB");
    let Bytes(bytes) = text.parse().map_err(|_| wrong())?;
    if bytes % (1 << 20) == 0 {
        Ok(bytes >> 20)
    } else {
        Err(format!("`{text}` is no whole number of MiB, as 128MiB and 2GiB are"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_are_whole() {
        assert_eq!(parse_mib("2GiB"), Ok(2048));
        assert_eq!(parse_mib("64MiB"), Ok(64));
        for bad in ["64", "1KiB", "x", "", "-1MiB"] {
            assert!(parse_mib(bad).is_err_and(|said| said.contains(bad)), "{bad}");
        }
        let decimal = parse_mib("1GB").unwrap_err();
        assert_eq!(decimal, "`1GB` is no whole number of MiB, as 128MiB and 2GiB are");
    }
}
