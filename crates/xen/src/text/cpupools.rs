//! `xl cpupool-list -c`: the CPUs of each pool.

use super::{XlTable, last_words, lines};
use crate::error::Error;
use instep_core::idset::CpuSet;
use std::collections::BTreeMap;

const COMMAND: &str = "xl cpupool-list -c";

/// Reads it, by name. A pool without CPUs is left out.
///
/// # Errors
/// The heading is another, or no row fits it.
pub fn parse(text: &str) -> Result<XlTable<BTreeMap<String, CpuSet>>, Error> {
    let mut lines = lines(text);
    let is_known = |line: &str| line.starts_with("Name") && line.trim_end().ends_with("CPU list");
    if !lines.next().is_some_and(|(_, line)| is_known(line)) {
        return Err(Error::output(COMMAND, 1, text, "the heading Name, CPU list"));
    }
    let rows = lines.filter(|(_, line)| line.split_whitespace().nth(1).is_some());
    let row = |line| {
        let (name, [list]) = last_words(line)?;
        Some((name.to_owned(), CpuSet::parse_list(list).ok()?))
    };
    Ok(XlTable::read(COMMAND, rows, "a pool and its CPUs", row)?.by_key())
}
