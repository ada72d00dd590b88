//! `xl cpupool-list -c`: the CPUs of each pool.

use super::{last_words, lines};
use crate::error::Error;
use instep_core::idset::CpuSet;
use std::collections::BTreeMap;

const COMMAND: &str = "xl cpupool-list -c";

/// Reads it, by name. A pool without CPUs is left out.
///
/// # Errors
/// The heading is another, or a row does not fit it.
pub fn parse(text: &str) -> Result<BTreeMap<String, CpuSet>, Error> {
    let mut lines = lines(text);
    let is_known = |line: &str| line.starts_with("Name") && line.trim_end().ends_with("CPU list");
    if !lines.next().is_some_and(|(_, line)| is_known(line)) {
        return Err(Error::output(COMMAND, 1, text, "the heading Name, CPU list"));
    }
    let mut pools = BTreeMap::new();
    for (number, line) in lines {
        let wrong = || Error::output(COMMAND, number, line, "a pool and its CPUs");
        let Some((name, [list])) = last_words(line) else { continue };
        let cpus = CpuSet::parse_list(list).map_err(|_| wrong())?;
        pools.insert(name.to_owned(), cpus);
    }
    Ok(pools)
}
