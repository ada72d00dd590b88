//! `xl sched-credit` and `xl sched-credit2`: the weight and the cap of each domain.

use super::{XlTable, last_words, lines};
use crate::error::Error;
use std::collections::BTreeMap;

const COMMAND: &str = "xl sched-credit";

/// What a domain gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its weight; 256 is usual.
    pub weight: u32,
    /// The most it gets, in percent of one CPU; 0 is no limit.
    pub cap: u32,
}

/// Reads it, by domain.
///
/// # Errors
/// There is no heading, or no row fits it.
pub fn parse(text: &str) -> Result<XlTable<BTreeMap<u32, Share>>, Error> {
    // One heading for each CPU pool, after a line about it.
    let rows = lines(text).filter(|(_, line)| !line.starts_with("Cpupool "));
    let is_heading =
        |(_, line): &(usize, &str)| line.split_whitespace().eq(["Name", "ID", "Weight", "Cap"]);
    let mut rows = rows.peekable();
    if let Some((number, line)) = rows.peek().filter(|row| !is_heading(row)) {
        return Err(Error::output(COMMAND, *number, line, "the heading Name, ID, Weight, Cap"));
    }
    let rows = rows.filter(|row| !is_heading(row));
    Ok(XlTable::read(COMMAND, rows, "a domain's row under the heading", row)?.by_key())
}

fn row(line: &str) -> Option<(u32, Share)> {
    let (_, [id, weight, cap]) = last_words(line)?;
    let share = Share { weight: weight.parse().ok()?, cap: cap.parse().ok()? };
    Some((id.parse().ok()?, share))
}
