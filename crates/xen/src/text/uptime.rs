//! `xl uptime`: how long each domain runs.

use super::{XlTable, last_words, lines};
use crate::error::Error;
use instep_core::units::Nanos;
use std::collections::BTreeMap;

const COMMAND: &str = "xl uptime";

/// Reads it, by domain.
///
/// # Errors
/// The heading is another, or no row fits it.
pub fn parse(text: &str) -> Result<XlTable<BTreeMap<u32, Nanos>>, Error> {
    let mut lines = lines(text);
    let is_known = |line: &str| line.split_whitespace().eq(["Name", "ID", "Uptime"]);
    if !lines.next().is_some_and(|(_, line)| is_known(line)) {
        return Err(Error::output(COMMAND, 1, text, "the heading Name, ID, Uptime"));
    }
    let expected = "a domain and a time such as 1 day, 2:03:04";
    Ok(XlTable::read(COMMAND, lines, expected, row)?.by_key())
}

fn row(line: &str) -> Option<(u32, Nanos)> {
    let (mut rest, [clock]) = last_words(line)?;
    let mut days = 0;
    if rest.ends_with("day,") || rest.ends_with("days,") {
        let (before, [number, _]) = last_words(rest)?;
        days = number.parse::<u64>().ok()?;
        rest = before;
    }
    let (_, [id]) = last_words(rest)?;
    let mut parts = clock.split(':').map(|part| part.parse::<u64>().ok());
    let mut next = || parts.next()?;
    let (hours, minutes, seconds) = (next()?, next()?, next()?);
    let all = days.checked_mul(24)?.checked_add(hours)?.checked_mul(60)?.checked_add(minutes)?;
    let all = all.checked_mul(60)?.checked_add(seconds)?;
    Some((id.parse().ok()?, Nanos::from_secs(all)))
}
