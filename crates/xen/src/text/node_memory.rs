//! `xl dmesg` after `xl debug-keys u`: how much of each domain's memory lies on each node.
//!
//! Xen tells this in its log only. The log is a ring, and holds lines of all kinds; what does not belong to the
//! last such table is passed over. Lines of guests are among them (`(d3) ...`): only lines that begin with `(XEN)`
//! are Xen's own. Without a table nothing is known, which is no error.

use super::list::MOST_DOMAINS;
use instep_core::units::{Bytes, NodeId};
use std::collections::BTreeMap;

/// The size of a page.
const PAGE: u64 = 4096;
/// MAX_NUMNODES is at most this (xen/arch/x86/Kconfig, 4.17).
const MOST_NODES: u32 = 1024;

/// Memory by domain and node.
pub type ByDomain = BTreeMap<u32, BTreeMap<NodeId, Bytes>>;

/// The lines of the last table of the log, as they are: its title, and rows of domains and nodes.
pub fn table(text: &str) -> impl Iterator<Item = &str> {
    let is_title = |line: &str| line_of_xen(line) == Some("Memory location of each domain:");
    let lines: Vec<&str> = text.lines().collect();
    let start = lines.iter().rposition(|line| is_title(line)).unwrap_or(lines.len());
    let is_row = |line: &str| domain_of(line).is_some() || pages_on(line).is_some();
    lines
        .into_iter()
        .skip(start)
        .filter(move |line| is_title(line) || line_of_xen(line).is_some_and(is_row))
}

/// Reads the last table of the log.
pub fn parse(text: &str) -> ByDomain {
    let mut memory = ByDomain::new();
    let mut domain = None;
    for line in table(text).filter_map(line_of_xen) {
        if let Some(id) = domain_of(line) {
            domain = Some(id);
            memory.entry(id).or_default();
        } else if let (Some(id), Some((node, pages))) = (domain, pages_on(line)) {
            memory.entry(id).or_default().insert(node, Bytes(pages.saturating_mul(PAGE)));
        }
    }
    memory
}

/// A line of Xen's own, without `(XEN)` and the time.
fn line_of_xen(line: &str) -> Option<&str> {
    let line = line.strip_prefix("(XEN)")?.trim();
    let timed = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    Some(timed.map_or(line, |(_, rest)| rest.trim()))
}

/// `Domain 3 (total: 32768):`, or `d3 (total: 32768):` since Xen 4.18.
fn domain_of(line: &str) -> Option<u32> {
    let (domain, _) = line.split_once(" (total: ")?;
    let id = domain.strip_prefix("Domain ").or_else(|| domain.strip_prefix('d'))?;
    id.parse().ok().filter(|id| *id < MOST_DOMAINS)
}

/// `Node 1: 32768`.
fn pages_on(line: &str) -> Option<(NodeId, u64)> {
    let (node, pages) = line.strip_prefix("Node ")?.split_once(':')?;
    let node = node.trim().parse().ok().filter(|node| *node < MOST_NODES)?;
    Some((NodeId(node), pages.trim().parse().ok()?))
}
