//! `xl dmesg` after `xl debug-keys u`: how much of each domain's memory lies on each node.
//!
//! Xen tells this in its log only. The log is a ring, and holds lines of all kinds; what does not belong to the
//! last such table is passed over. Without one nothing is known, which is no error.

use super::list::MOST_DOMAINS;
use instep_core::units::{Bytes, NodeId};
use std::collections::BTreeMap;

/// The size of a page.
const PAGE: u64 = 4096;
/// MAX_NUMNODES is at most this (xen/arch/x86/Kconfig, 4.17).
const MOST_NODES: u32 = 1024;

/// Memory by domain and node.
pub type ByDomain = BTreeMap<u32, BTreeMap<NodeId, Bytes>>;

/// Reads the last table of the log.
#[must_use]
pub fn parse(text: &str) -> ByDomain {
    let title = "Memory location of each domain:";
    let Some(start) = text.rfind(title) else { return ByDomain::new() };
    let mut memory = ByDomain::new();
    let mut domain = None;
    for line in text[start + title.len()..].lines() {
        let line = without_prefix(line);
        if let Some(id) = domain_of(line) {
            domain = Some(id);
            memory.entry(id).or_default();
        } else if let (Some(id), Some((node, pages))) = (domain, pages_on(line)) {
            memory.entry(id).or_default().insert(node, Bytes(pages.saturating_mul(PAGE)));
        }
    }
    memory
}

/// A line of the log without `(XEN)` and the time.
fn without_prefix(line: &str) -> &str {
    let line = line.trim_start().strip_prefix("(XEN)").unwrap_or(line).trim_start();
    match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((_, rest)) => rest.trim(),
        None => line.trim(),
    }
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
