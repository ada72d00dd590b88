//! `xl list`, with any of `-v` (UUID), `-c` (CPU pool) and `-n` (node affinity): one row a domain.

use super::{MOST_NAMED, XlSet, XlTable, last_words, lines, seconds};
use crate::error::Error;
use instep_core::units::{Nanos, NodeId};
use std::collections::BTreeSet;

const COMMAND: &str = "xl list";
/// Domain identifiers are below DOMID_FIRST_RESERVED (xen/include/public/xen.h, 4.17).
pub(crate) const MOST_DOMAINS: u32 = 0x7ff0;

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The domain's number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its memory in MiB.
    pub memory_mib: u64,
    /// Online vCPUs.
    pub vcpus: u32,
    /// `r`unning, `b`locked, `p`aused, `s`hut down, the reason of that, `d`ying; `-` for what it is not.
    pub state: String,
    /// CPU time since it was made.
    pub time: Nanos,
    /// Its UUID, with `-v`.
    pub uuid: Option<String>,
    /// Its CPU pool, with `-c`.
    pub pool: Option<String>,
    /// Its node affinity, with `-n`.
    pub nodes: Option<XlSet<NodeId>>,
}

impl Domain {
    /// Whether it is gone in all but name: shut down, crashed or dying.
    pub fn is_ending(&self) -> bool {
        self.is(3) || self.is(5)
    }

    /// Whether it is suspended, and may come back with its number and UUID: after `xl save -c`, or a migration that
    /// failed.
    pub fn is_suspended(&self) -> bool {
        self.is(3) && self.state.as_bytes().get(4) == Some(&b's') && !self.is(5)
    }

    fn is(&self, at: usize) -> bool {
        self.state.as_bytes().get(at).is_some_and(|letter| *letter != b'-')
    }
}

/// Which columns there are beside those of every `xl list`.
struct Columns {
    verbose: bool,
    pool: bool,
    nodes: bool,
}

/// Reads it, ascending by number. A number that is there twice is left out: one of its rows is part of a name.
///
/// # Errors
/// The heading is another, or no row fits it.
pub fn parse(text: &str) -> Result<XlTable<Vec<Domain>>, Error> {
    let mut lines = lines(text);
    let heading = lines.next().filter(|(_, line)| line.starts_with("Name"));
    let Some((_, heading)) = heading.filter(|(_, line)| line.contains("Time(s)")) else {
        return Err(Error::output(
            COMMAND,
            1,
            text,
            "the heading Name, ID, Mem, VCPUs, State, Time(s)",
        ));
    };
    let columns = Columns {
        verbose: heading.contains("UUID"),
        pool: heading.contains("Cpupool"),
        nodes: heading.contains("NODE Affinity"),
    };
    let row = |line| row(line, &columns);
    let mut table = XlTable::read(COMMAND, lines, "a domain's row under the heading", row)?;
    table.rows.sort_by_key(|domain| domain.id);
    let ids: Vec<u32> = table.rows.iter().map(|domain| domain.id).collect();
    let mut twice: Vec<u32> =
        ids.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    twice.dedup();
    table.rows.retain(|domain| twice.binary_search(&domain.id).is_err());
    let told = |id| format!("domain {id} has several rows in `{COMMAND}`: left out");
    table.unread.extend(twice.iter().take(MOST_NAMED).map(told));
    Ok(table)
}

fn row(line: &str, columns: &Columns) -> Option<Domain> {
    let mut rest = line;
    let mut take = |wanted: bool| {
        if !wanted {
            return Some(None);
        }
        let (before, [word]) = last_words(rest)?;
        rest = before;
        Some(Some(word))
    };
    let nodes = take(columns.nodes)?;
    let pool = take(columns.pool)?;
    let _label = take(columns.verbose)?;
    let _reason = take(columns.verbose)?;
    let uuid = take(columns.verbose)?;
    let (name, [id, memory, vcpus, state, time]) = last_words(rest)?;
    let is_state = |state: &&str| state.len() == 6 && state.is_ascii();
    Some(Domain {
        id: id.parse().ok().filter(|id| *id < MOST_DOMAINS)?,
        name: name.to_owned(),
        memory_mib: memory.parse().ok()?,
        vcpus: vcpus.parse().ok()?,
        state: Some(state).filter(is_state)?.to_owned(),
        time: Nanos(seconds(time)?),
        uuid: uuid
            .map(|uuid| Some(uuid).filter(|uuid| is_uuid(uuid)).map(str::to_owned))
            .map_or(Some(None), |uuid| uuid.map(Some))?,
        pool: pool.map(str::to_owned),
        nodes: nodes.map(XlSet::parse).map_or(Some(None), |mask| mask.map(Some))?,
    })
}

/// All words of the form of a UUID, those in rows that do not fit the heading included, and the empty one of domains
/// whose UUID is not told.
pub(crate) fn uuids(text: &str) -> BTreeSet<String> {
    let words = text.split_whitespace().filter(|word| is_uuid(word));
    words.chain([""]).map(str::to_owned).collect()
}

/// Whether a word has the form of a UUID.
pub(crate) fn is_uuid(word: &str) -> bool {
    word.len() == 36 && word.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}
