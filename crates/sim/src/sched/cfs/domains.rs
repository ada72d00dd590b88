//! Scheduling domains: for each CPU the spans in which its load is balanced, from its core outwards,
//! each divided into groups. Spans of one group are left out. Knows no load.

use crate::host::Host;
use crate::mask::Mask;

/// One span and its groups.
#[derive(Clone, Debug)]
pub(super) struct Domain {
    /// Its groups.
    pub(super) groups: Vec<Group>,
    /// How unequal groups may be, per cent (imbalance_pct).
    pub(super) slack: u64,
    /// Nanoseconds between two tries of a CPU that is idle: the span's size in milliseconds.
    pub(super) interval: u64,
}

/// A part of a span.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Its CPUs, ascending.
    pub(super) cpus: Vec<usize>,
    /// How many CPUs' worth it has, in 1024ths.
    pub(super) power: u64,
    /// The node that it is, where groups are nodes: their sums are at hand.
    pub(super) node: Option<usize>,
}

/// All spans, and those of each CPU, from the inside out.
#[derive(Clone, Debug, Default)]
pub(super) struct Domains {
    all: Vec<Domain>,
    /// For each CPU its spans: the span, when it is balanced next, failures so far.
    of: Vec<Vec<Turn>>,
}

/// When a CPU balances one of its spans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Index of the span.
    pub(super) domain: usize,
    /// Index of the CPU's group in it.
    pub(super) own: usize,
    /// Nanoseconds.
    pub(super) next: u64,
    /// Tries in a row in which nothing could be moved (nr_balance_failed).
    pub(super) failed: u32,
}

/// Power of a core of two threads (SD_SHARE_CPUPOWER, 1178; kernel/sched/fair.c, 3.10).
const SMT_POWER: u64 = 1178;

impl Domains {
    /// Those of this host: core, LLC, node, host.
    pub(super) fn new(host: &Host) -> Self {
        let cpus = host.cpus();
        let power = |mask: &Mask| -> u64 {
            // Each core once: with its first CPU in the set.
            let of_core = |cpu: usize| {
                let core = &host.cores[host.core[cpu]];
                match mask.common(core) {
                    _ if mask.first_common(core, 0) != Some(cpu) => 0,
                    1 if core.count() > 1 => SMT_POWER / u64::from(core.count()),
                    1 => 1024,
                    _ => SMT_POWER,
                }
            };
            mask.iter().map(of_core).sum()
        };
        let whole = [Mask::all(cpus)];
        let singles: Vec<Mask> = (0..cpus).map(|cpu| Mask::of(cpus, [cpu])).collect();
        let levels: [(&[Mask], &[Mask], u64); 4] = [
            (&host.cores, &singles, 110),
            (&host.llcs, &host.cores, 117),
            (&host.nodes, &host.llcs, 125),
            (&whole, &host.nodes, 125),
        ];
        let mut this = Self { all: Vec::new(), of: vec![Vec::new(); cpus] };
        for (spans, parts, slack) in levels {
            for span in spans {
                let nodes = std::ptr::eq(parts, host.nodes.as_slice());
                let inside = |part: &Mask| !part.is_empty() && span.covers(part);
                let group = |(at, part): (usize, &Mask)| Group {
                    cpus: part.iter().collect(),
                    power: power(part),
                    node: nodes.then_some(at),
                };
                let parts = parts.iter().enumerate().filter(|(_, part)| inside(part));
                let groups: Vec<Group> = parts.map(group).collect();
                if groups.len() < 2 {
                    continue;
                }
                let interval = u64::from(span.count()) * 1_000_000;
                for (own, group) in groups.iter().enumerate() {
                    let turn = Turn { domain: this.all.len(), own, next: 0, failed: 0 };
                    group.cpus.iter().for_each(|cpu| this.of[*cpu].push(turn));
                }
                this.all.push(Domain { groups, slack, interval });
            }
        }
        this
    }

    /// How many spans a CPU has.
    pub(super) fn levels(&self, cpu: usize) -> usize {
        self.of[cpu].len()
    }

    /// A CPU's span, counted from the inside.
    pub(super) fn turn(&mut self, cpu: usize, level: usize) -> &mut Turn {
        &mut self.of[cpu][level]
    }

    /// A span by its index.
    pub(super) fn domain(&self, at: usize) -> &Domain {
        &self.all[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn spans_go_from_the_core_to_the_host() {
        let host = testing::host(2, 4, 2);
        let domains = Domains::new(&host);
        let sizes: Vec<u64> =
            domains.of[0].iter().map(|turn| domains.all[turn.domain].interval).collect();
        assert_eq!(sizes, [2_000_000, 8_000_000, 16_000_000]);
        let llc = domains.domain(domains.of[0][1].domain);
        assert_eq!((llc.groups.len(), llc.groups[0].power), (4, SMT_POWER));
        assert_eq!((&llc.groups[1].cpus[..], domains.of[3][1].own), (&[2, 3][..], 1));
        assert!(Domains::new(&testing::host(1, 1, 1)).of[0].is_empty());
    }
}
