//! Values of options: what text they take, and what is said of others.

use instep_agent::config::dispatch::ProcessVm;
use instep_agent::config::{MAX_INTERVAL, MIN_WINDOW};
pub(super) use instep_cli::values::{beside, duration};
use instep_core::units::{Bytes, Milli};
use std::time::{Duration, SystemTime};

/// A moment in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HistoryTime {
    /// So long before the newest record.
    Ago(Duration),
    /// At this time.
    At(SystemTime),
}

pub(super) fn when(text: &str) -> Result<HistoryTime, String> {
    if let Some(ago) = text.strip_prefix('-') {
        return duration(ago).map(HistoryTime::Ago);
    }
    let at = humantime::parse_rfc3339_weak(text);
    at.map(HistoryTime::At)
        .map_err(|_| "a time in UTC such as 2026-11-26T11:00:00Z, or -2h".to_owned())
}

/// A time over which loads are measured.
pub(super) fn window(text: &str) -> Result<Duration, String> {
    let parsed = duration(text)?;
    if (MIN_WINDOW..=MAX_INTERVAL).contains(&parsed) {
        return Ok(parsed);
    }
    let shown = humantime::format_duration;
    Err(format!("a window is {} to {}", shown(MIN_WINDOW), shown(MAX_INTERVAL)))
}

/// A percentage above 0 and up to 100, with its sign: 0.5 alone could be a half or half a percent.
pub(super) fn share(text: &str) -> Result<Milli, String> {
    let Some(digits) = text.strip_suffix('%') else {
        return Err("a percentage with its sign, such as 25% (a half is 50%)".to_owned());
    };
    let part = digits.parse::<f64>().ok().filter(|part| *part > 0.0 && *part <= 100.0);
    let milli = part.map(|part| Milli((part * 10.0).round() as u64)).filter(|milli| milli.0 > 0);
    milli.ok_or_else(|| "a percentage above 0 and up to 100, such as 25%".to_owned())
}

pub(super) fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').trim().parse::<f64>().ok();
    let number = number.filter(|number| (0.0..=100.0).contains(number));
    number.ok_or_else(|| "a part in percent, from 0 to 100".to_owned())
}

pub(super) fn size(text: &str) -> Result<Bytes, String> {
    let size = text.parse().ok().filter(|size: &Bytes| size.0 > 0);
    size.ok_or_else(|| "sizes look like 64MiB or 1GiB".to_owned())
}

pub(super) fn process_vm(text: &str) -> Result<ProcessVm, String> {
    let wrong = || "NAME=PID, such as job=4711".to_owned();
    let (name, pid) = text.split_once('=').ok_or_else(wrong)?;
    let pid = pid.parse().map_err(|_| wrong())?;
    if name.is_empty() { Err(wrong()) } else { Ok(ProcessVm { name: name.to_owned(), pid }) }
}
