//! Values of options that both programs take: what text they take, and what is said of others.

use clap::builder::{PathBufValueParser, TypedValueParser};
use std::path::PathBuf;
use std::time::Duration;

/// A file to write beside the report, which has standard output.
pub fn beside() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.as_os_str() == "-" {
        true => Err("standard output is the report's; name a file"),
        false => Ok(path),
    })
}

/// A time with its unit, longer than 0.
///
/// # Errors
/// What is wrong with the text.
pub fn duration(text: &str) -> Result<Duration, String> {
    let parsed = humantime::parse_duration(text)
        .map_err(|error| format!("durations look like 4ms, 60s or 5m ({error})"))?;
    if parsed.is_zero() {
        return Err("must be longer than 0".to_owned());
    }
    // Nanoseconds are counted in 64 bits everywhere.
    u64::try_from(parsed.as_nanos()).map_err(|_| "is longer than 584 years".to_owned())?;
    Ok(parsed)
}
