//! `xl sched-credit` and `xl sched-credit2`: the weight and the cap of each domain.

use super::{last_words, lines};
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
/// There is no heading, or a row does not fit it.
pub fn parse(text: &str) -> Result<BTreeMap<u32, Share>, Error> {
    let mut shares = BTreeMap::new();
    let mut has_heading = false;
    for (number, line) in lines(text) {
        // One heading for each CPU pool, after a line about it.
        if line.starts_with("Cpupool ") {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if words == ["Name", "ID", "Weight", "Cap"] {
            has_heading = true;
            continue;
        }
        let wrong = || Error::output(COMMAND, number, line, "a domain's row under the heading");
        if !has_heading {
            return Err(Error::output(COMMAND, number, line, "the heading Name, ID, Weight, Cap"));
        }
        let (id, share) = row(line).ok_or_else(wrong)?;
        shares.insert(id, share);
    }
    Ok(shares)
}

fn row(line: &str) -> Option<(u32, Share)> {
    let (_, [id, weight, cap]) = last_words(line)?;
    let share = Share { weight: weight.parse().ok()?, cap: cap.parse().ok()? };
    Some((id.parse().ok()?, share))
}
