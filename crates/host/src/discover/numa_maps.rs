//! Parser of `/proc/PID/numa_maps`: pages and policy of every mapping (fs/proc/task_mmu.c, 6.18).
//!
//! All mappings count, as systems.md section 4 has it: on guests worth placing the monitor's own
//! pages are a small part. What is cut or garbled is left out and named, never guessed.

use instep_core::idset::NodeSet;
use instep_core::units::{Bytes, NodeId};
use instep_core::wording::printable;
use std::collections::BTreeMap;

/// The most warnings about one file.
const MAX_WARNINGS: usize = 3;
/// The largest page size that is believed, in kB (1 GiB pages; Arm has 16 GiB with 64 kB base).
const MAX_PAGE_KB: u64 = 16 << 20;

/// What a `numa_maps` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaMaps {
    /// Resident bytes by node.
    pub by_node: BTreeMap<NodeId, Bytes>,
    /// Nodes that more than half of the bytes are bound to.
    pub bound: Option<NodeSet>,
    /// Nodes that more than half of the bytes prefer.
    pub preferred: Option<NodeSet>,
    /// Whether a mapping uses hugetlb pages.
    pub hugetlb: bool,
    /// Whether the file ends in the middle of a line or was cut by the reader.
    pub truncated: bool,
    /// What was left out, each naming the file and line.
    pub warnings: Vec<String>,
}

/// A mapping's policy as far as placement cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Default,
    Bound(NodeSet),
    Preferred(NodeSet),
}

/// Parses `bytes`; `file` is named in warnings; `cut` says that the reader stopped before the end.
pub fn parse(bytes: &[u8], file: &str, cut: bool) -> NumaMaps {
    let mut out = NumaMaps::default();
    let mut policies: Vec<(Policy, u64)> = Vec::new();
    let MapsNotes { warnings, truncated } =
        each(bytes, file, |mapping| take(&mut out, &mut policies, mapping));
    (out.warnings, out.truncated) = (warnings, truncated || cut);
    decide(&mut out, &policies);
    out
}

/// What is to be said of a file besides its mappings.
pub(crate) struct MapsNotes {
    /// What was left out, each naming the file and line.
    pub(crate) warnings: Vec<String>,
    /// Whether it ends in the middle of a line.
    pub(crate) truncated: bool,
}

/// Calls back with every mapping of a file; `file` is named in warnings.
pub(crate) fn each<'a>(
    bytes: &'a [u8],
    file: &str,
    mut take: impl FnMut(Mapping<'a>),
) -> MapsNotes {
    let (mut warnings, mut bad) = (Vec::new(), 0usize);
    let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
    for (index, line) in bytes[..whole].split(|b| *b == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        match mapping(line) {
            Ok(read) => take(read),
            Err(why) => {
                bad += 1;
                if bad <= MAX_WARNINGS {
                    let (line, at) = (shown(line), index + 1);
                    warnings.push(format!("{file}:{at}: `{line}` {why}; the mapping is left out"));
                }
            }
        }
    }
    if bad > MAX_WARNINGS {
        warnings.push(format!("{file}: {} more lines are left out", bad - MAX_WARNINGS));
    }
    let truncated = whole < bytes.len();
    if truncated {
        let at = 1 + bytes[..whole].iter().filter(|b| **b == b'\n').count();
        let line = shown(&bytes[whole..]);
        warnings.push(format!("{file}:{at}: `{line}` is cut short; the mapping is left out"));
    }
    MapsNotes { warnings, truncated }
}

/// One line.
#[derive(Clone, Debug)]
pub(crate) struct Mapping<'a> {
    /// Its first byte.
    pub(crate) start: u64,
    pub(crate) policy: Policy,
    /// The path of its file, with blanks as `\040`.
    pub(crate) file: Option<&'a str>,
    /// Resident pages by node.
    pub(crate) pages: Vec<(NodeId, u64)>,
    /// Their size, a power of two; 0 only where there are none.
    pub(crate) page_kb: u64,
    hugetlb: bool,
}

impl Mapping<'_> {
    /// The size of its pages; that of the smallest there are where it has none.
    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_kb.max(4) << 10
    }

    /// Resident bytes by node.
    pub(crate) fn by_node(&self) -> BTreeMap<NodeId, Bytes> {
        let mut sums: BTreeMap<NodeId, Bytes> = BTreeMap::new();
        for (node, pages) in &self.pages {
            let bytes = pages.saturating_mul(self.page_kb).saturating_mul(1024);
            let sum = &mut sums.entry(*node).or_default().0;
            *sum = sum.saturating_add(bytes);
        }
        sums
    }
}

/// Parses one line; says what is wrong with it.
fn mapping(line: &[u8]) -> Result<Mapping<'_>, &'static str> {
    let line = std::str::from_utf8(line).unwrap_or_default();
    let (address, rest) = line.split_once(' ').ok_or("is no mapping")?;
    let start = u64::from_str_radix(address, 16).map_err(|_| "has no address")?;
    let (policy, rest) = policy(rest)?;
    let mut read =
        Mapping { start, policy, file: None, pages: Vec::new(), page_kb: 0, hugetlb: false };
    for field in rest.split(' ').filter(|field| !field.is_empty()) {
        if field == "huge" {
            read.hugetlb = true;
        } else if let Some(path) = field.strip_prefix("file=") {
            read.file = Some(path);
        } else if let Some(kb) = field.strip_prefix("kernelpagesize_kB=") {
            read.page_kb = kb
                .parse()
                .ok()
                .filter(|kb: &u64| kb.is_power_of_two() && *kb <= MAX_PAGE_KB)
                .ok_or("has a page size that is none")?;
        } else if let Some((node, pages)) = node_pages(field) {
            let node = node
                .parse()
                .ok()
                .filter(|n| *n <= instep_core::idset::MAX_ID)
                .ok_or("has a node that is no number")?;
            let pages = pages.parse().map_err(|_| "has a page count that is no number")?;
            read.pages.push((NodeId(node), pages));
        }
    }
    if !read.pages.is_empty() && read.page_kb == 0 {
        return Err("has pages without kernelpagesize_kB");
    }
    if !read.start.is_multiple_of(read.page_bytes()) {
        return Err("begins in the middle of a page");
    }
    Ok(read)
}

/// `N<node>=<pages>`; a file name cannot look like it, since it begins with `file=`.
fn node_pages(field: &str) -> Option<(&str, &str)> {
    field.strip_prefix('N').and_then(|rest| rest.split_once('='))
}

/// The policy at the head of `rest` and what follows it (mpol_to_str in mm/mempolicy.c, 6.18):
/// `default`, `local`, `bind:0-1`, `prefer:1`, `prefer (many):0-1`, `interleave:0-1`,
/// `weighted interleave:0-1`, each with flags as in `bind=static|balancing:0`.
fn policy(rest: &str) -> Result<(Policy, &str), &'static str> {
    let spaced = ["prefer (many)", "weighted interleave"];
    let from = spaced.iter().find(|head| rest.starts_with(**head)).map_or(0, |head| head.len());
    let end = rest[from..].find(' ').map_or(rest.len(), |at| from + at);
    let (word, rest) = rest.split_at(end);
    let (head, nodes) = word.split_once(':').unwrap_or((word, ""));
    let head = head.split('=').next().unwrap_or(head);
    let nodes = || NodeSet::parse_list(nodes).map_err(|_| "has a policy whose nodes are no list");
    let policy = match head {
        "bind" => Policy::Bound(nodes()?),
        "prefer" | "prefer (many)" => Policy::Preferred(nodes()?),
        // Interleaving spreads memory; it says nothing of where to run.
        "interleave" | "weighted interleave" => nodes().map(|_| Policy::Default)?,
        _ => Policy::Default,
    };
    Ok((policy, rest))
}

fn take(out: &mut NumaMaps, policies: &mut Vec<(Policy, u64)>, read: Mapping<'_>) {
    out.hugetlb |= read.hugetlb;
    let mut total = 0u64;
    for (node, bytes) in read.by_node() {
        let sum = &mut out.by_node.entry(node).or_default().0;
        *sum = sum.saturating_add(bytes.0);
        total = total.saturating_add(bytes.0);
    }
    if total == 0 {
        return;
    }
    let room = policies.len() < 256;
    match policies.iter_mut().find(|(policy, _)| *policy == read.policy) {
        Some((_, sum)) => *sum = sum.saturating_add(total),
        // A hostile process could give every page its own policy.
        None if room => policies.push((read.policy, total)),
        None => {}
    }
}

/// A policy holds for the guest when it covers more than half of the bytes.
fn decide(out: &mut NumaMaps, policies: &[(Policy, u64)]) {
    let all: u128 = out.by_node.values().map(|bytes| u128::from(bytes.0)).sum();
    let union = |of: fn(&Policy) -> Option<&NodeSet>| {
        let mut nodes = NodeSet::new();
        let mut covered = 0u128;
        for (policy, bytes) in policies {
            if let Some(set) = of(policy) {
                nodes = nodes.or(set);
                covered += u128::from(*bytes);
            }
        }
        (covered * 2 > all && !nodes.is_empty()).then_some(nodes)
    };
    out.bound = union(|policy| match policy {
        Policy::Bound(set) => Some(set),
        Policy::Preferred(_) | Policy::Default => None,
    });
    out.preferred = union(|policy| match policy {
        Policy::Preferred(set) => Some(set),
        Policy::Bound(_) | Policy::Default => None,
    });
}

fn shown(line: &[u8]) -> String {
    printable(&String::from_utf8_lossy(&line[..line.len().min(60)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(text: &str) -> Vec<(u32, u64)> {
        let read = parse(text.as_bytes(), "f", false);
        read.by_node.iter().map(|(node, bytes)| (node.0, bytes.0)).collect()
    }

    #[test]
    fn pages_count_in_their_mappings_page_size() {
        let text = "550000 default file=/usr/bin/q dirty=2 mapmax=2 active=0 N1=2 kernelpagesize_kB=4\n\
            7f000 default\n\
            7f10000 default anon=10 dirty=10 N0=7 N1=3 kernelpagesize_kB=4\n\
            7f20000000 default file=/dev/hugepages/x huge dirty=3 N1=3 kernelpagesize_kB=2048\n";
        assert_eq!(sums(text), [(0, 7 * 4096), (1, 5 * 4096 + 3 * (2 << 20))]);
        assert!(parse(text.as_bytes(), "f", false).hugetlb);
    }

    #[test]
    fn a_policy_holds_when_it_covers_most_bytes() {
        let line = |policy: &str, pages: u32| {
            format!("7f000 {policy} anon={pages} N0={pages} kernelpagesize_kB=4\n")
        };
        let of = |policy: &str| {
            let text = line(policy, 60) + &line("default", 40);
            let read = parse(text.as_bytes(), "f", false);
            assert!(read.warnings.is_empty(), "{:?}", read.warnings);
            (read.bound.map(|s| s.to_string()), read.preferred.map(|s| s.to_string()))
        };
        assert_eq!(of("bind:0-1"), (Some("0-1".into()), None));
        assert_eq!(of("bind=static:1"), (Some("1".into()), None));
        assert_eq!(of("prefer:1"), (None, Some("1".into())));
        assert_eq!(of("prefer (many):1-2"), (None, Some("1-2".into())));
        assert_eq!(of("interleave:0-3"), (None, None));
        assert_eq!(of("weighted interleave:0,2"), (None, None));
        assert_eq!(of("local"), (None, None));
        let few = line("bind:0", 40) + &line("default", 60);
        assert_eq!(parse(few.as_bytes(), "f", false).bound, None);
    }

    #[test]
    fn a_cut_last_line_is_named_and_not_counted() {
        let text = b"7f000 default anon=1 N0=1 kernelpagesize_kB=4\n7f10000 default anon=9 N0=12";
        let read = parse(text, "proc/5/numa_maps", false);
        assert!(read.truncated);
        assert_eq!(read.by_node[&NodeId(0)], Bytes(4096));
        assert!(
            read.warnings[0].starts_with("proc/5/numa_maps:2: `7f10000 default"),
            "{:?}",
            read.warnings
        );
    }

    #[test]
    fn garbled_lines_are_named_and_bounded() {
        let bad = "7f000 default N0=x kernelpagesize_kB=4\n".repeat(10);
        let read = parse(bad.as_bytes(), "f", false);
        assert_eq!(read.warnings.len(), MAX_WARNINGS + 1);
        assert!(read.by_node.is_empty());
        for line in [
            "fish",
            "zz default",
            "7f000 default N0=1",
            "7f000 bind:x N0=1 kernelpagesize_kB=4",
            "7f000 default N0=1 kernelpagesize_kB=0",
            "7f000 default N0=1 kernelpagesize_kB=3",
            "7f000 default N99999999999=1 kernelpagesize_kB=4",
        ] {
            let text = format!("{line}\n");
            assert_eq!(parse(text.as_bytes(), "f", false).warnings.len(), 1, "{line}");
        }
    }

    #[test]
    fn a_file_named_like_a_count_is_no_count() {
        assert_eq!(sums("7f000 default file=/N0=5 N1=1 kernelpagesize_kB=4\n"), [(1, 4096)]);
    }
}
