//! Scheduling domains: for each CPU the spans in which its load is balanced, from its core outwards,
//! each divided into groups. Spans of one group are left out. Knows no load.
//!
//! Numbers are those of the release (SD_SIBLING_INIT, SD_MC_INIT, SD_CPU_INIT and SD_NODE_INIT of 3.0,
//! the same and sd_numa_init of 3.13, sd_init of 3.19).

use crate::host::Host;
use crate::params::LinuxRelease::{self, V3_0, V3_13, V3_19};
use instep_check::mask::Mask;

const MS: u64 = 1_000_000;
/// Power of a CPU that shares its core with nobody (SCHED_POWER_SCALE).
pub(super) const ONE: u64 = 1024;
/// Power of a core of two threads (SD_SHARE_CPUPOWER, smt_gain 1178).
const SMT_POWER: u64 = 1178;
/// The greatest distance across which wake-ups bring tasks near (RECLAIM_DISTANCE); 3.0 does so at any.
const NEAR: u32 = 30;

/// One span and its groups.
#[derive(Clone, Debug)]
pub(super) struct Domain {
    /// Its groups.
    pub(super) groups: Vec<Group>,
    /// How unequal groups may be, per cent (imbalance_pct).
    pub(super) slack: u64,
    /// The least and the longest time between two tries of a CPU that is idle, nanoseconds (min_interval,
    /// max_interval).
    pub(super) interval: [u64; 2],
    /// How many times more seldom a busy CPU balances (busy_factor).
    pub(super) busy: u64,
    /// Tries that fail before tasks move that are hot in their cache (cache_nice_tries).
    pub(super) tries: u32,
    /// Which mean of a CPU's load counts while the CPU that pulls is busy, and while it idles (busy_idx, idle_idx).
    pub(super) means: [usize; 2],
    /// Whether groups with room take all but one task of another one (SD_PREFER_SIBLING of what is inside).
    pub(super) spreads: bool,
    /// Whether it lies within a last-level cache (SD_SHARE_PKG_RESOURCES).
    pub(super) cache: bool,
    /// Whether wake-ups bring tasks to their waker within it (SD_WAKE_AFFINE).
    pub(super) affine: bool,
}

/// A part of a span.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Its CPUs, ascending.
    pub(super) cpus: Vec<usize>,
    /// How many CPUs' worth it has, in 1024ths.
    pub(super) power: u64,
    /// How many tasks fit into it.
    pub(super) capacity: u32,
    /// Affinities kept its parts from being balanced (3.13 and later).
    pub(super) uneven: bool,
    /// The node that it is, where groups are nodes: their sums are at hand.
    pub(super) node: Option<usize>,
}

/// All spans, and those of each CPU, from the inside out.
#[derive(Clone, Debug, Default)]
pub(super) struct Domains {
    all: Vec<Domain>,
    /// For each CPU its spans.
    of: Vec<Vec<Turn>>,
}

/// When a CPU balances one of its spans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Index of the span.
    pub(super) domain: usize,
    /// Index of the CPU's group in it.
    pub(super) own: usize,
    /// When it did last, nanoseconds.
    pub(super) last: u64,
    /// Time between two tries of a CPU that is idle, nanoseconds (balance_interval).
    pub(super) interval: u64,
    /// Tries in a row in which nothing could be moved (nr_balance_failed).
    pub(super) failed: u32,
}

/// How many tasks fit into a group of so many CPUs: its power, rounded. From 3.13 on a core counts once
/// (sg_capacity). One thread of a core has room for one (fix_small_capacity).
fn capacity(linux: LinuxRelease, power: u64, cpus: u64, threads: bool) -> u32 {
    let rounded = (power + ONE / 2) / ONE;
    let fits = match linux {
        V3_0 => rounded,
        V3_13 | V3_19 => (cpus / (ONE * cpus).div_ceil(power.max(1))).min(rounded),
    };
    fits.max(u64::from(threads)) as u32
}

/// Numbers of the level of cores, caches, nodes or the host; `cpus` of the span.
fn level(linux: LinuxRelease, at: usize, cpus: u64) -> (Domain, u64) {
    let host = at == 3;
    // Milliseconds: the least, the longest and the first interval.
    let [least, longest, first] = match linux {
        V3_19 => [cpus, 2 * cpus, cpus],
        V3_13 if host => [cpus, 2 * cpus, cpus],
        V3_0 if host => [8, 32, 1],
        V3_0 | V3_13 => [1, if at == 0 { 2 } else { 4 }, 1],
    };
    let domain = Domain {
        groups: Vec::new(),
        slack: match at {
            0 => 110,
            1 if linux == V3_19 => 117,
            _ => 125,
        },
        interval: [least * MS, longest * MS],
        busy: if linux == V3_19 || host { 32 } else { 64 },
        tries: [0, 1, 1, 2][at],
        means: [[0, 0], [2, 0], [2, 1], [3, 2]][at],
        spreads: match at {
            2 => linux == V3_0,
            _ => host,
        },
        cache: at < 2,
        affine: true,
    };
    (domain, first * MS)
}

impl Domains {
    /// Those of this host: core, LLC, node, host.
    pub(super) fn new(host: &Host, linux: LinuxRelease) -> Self {
        let cpus = host.cpus();
        let power = |mask: &Mask| -> u64 {
            // Each core once: with its first CPU in the set.
            let of_core = |cpu: usize| {
                let core = &host.cores[host.core[cpu]];
                match mask.common(core) {
                    _ if mask.first_common(core, 0) != Some(cpu) => 0,
                    1 if core.count() > 1 => SMT_POWER / u64::from(core.count()),
                    1 => ONE,
                    _ => SMT_POWER,
                }
            };
            mask.iter().map(of_core).sum()
        };
        let farthest = host.distance.iter().flatten().copied().max().unwrap_or(0);
        let whole = [Mask::all(cpus)];
        let singles: Vec<Mask> = (0..cpus).map(|cpu| Mask::of(cpus, [cpu])).collect();
        let levels: [(&[Mask], &[Mask]); 4] = [
            (&host.cores, &singles),
            (&host.llcs, &host.cores),
            (&host.nodes, &host.llcs),
            (&whole, &host.nodes),
        ];
        let mut this = Self { all: Vec::new(), of: vec![Vec::new(); cpus] };
        for (at, (spans, parts)) in levels.into_iter().enumerate() {
            for span in spans {
                let nodes = std::ptr::eq(parts, host.nodes.as_slice());
                let inside = |part: &Mask| !part.is_empty() && span.covers(part);
                let group = |(node, part): (usize, &Mask)| Group {
                    cpus: part.iter().collect(),
                    power: power(part),
                    capacity: capacity(linux, power(part), u64::from(part.count()), at == 0),
                    uneven: false,
                    node: nodes.then_some(node),
                };
                let parts = parts.iter().enumerate().filter(|(_, part)| inside(part));
                let groups: Vec<Group> = parts.map(group).collect();
                if groups.len() < 2 {
                    continue;
                }
                let (mut domain, interval) = level(linux, at, u64::from(span.count()));
                // Of groups that are single CPUs nothing is inside.
                domain.spreads &= groups.iter().any(|group| group.cpus.len() > 1);
                domain.affine = at < 3 || linux == V3_0 || farthest <= NEAR;
                for (own, group) in groups.iter().enumerate() {
                    let domain = this.all.len();
                    let turn = Turn { domain, own, last: 0, interval, failed: 0 };
                    group.cpus.iter().for_each(|cpu| this.of[*cpu].push(turn));
                }
                this.all.push(Domain { groups, ..domain });
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

    /// The same, to look at.
    pub(super) fn turn_of(&self, cpu: usize, level: usize) -> Turn {
        self.of[cpu][level]
    }

    /// A span by its index.
    pub(super) fn domain(&self, at: usize) -> &Domain {
        &self.all[at]
    }

    /// The spans of a CPU and its group in each, from the inside out.
    pub(super) fn of(&self, cpu: usize) -> impl DoubleEndedIterator<Item = (&Domain, usize)> {
        self.of[cpu].iter().map(|turn| (&self.all[turn.domain], turn.own))
    }

    /// The innermost span of two CPUs.
    pub(super) fn common(&self, one: usize, other: usize) -> Option<&Domain> {
        let within = |turn: &&Turn| self.of[other].iter().any(|span| span.domain == turn.domain);
        self.of[one].iter().find(within).map(|turn| &self.all[turn.domain])
    }

    /// A CPU's group in the span of this level is, or is not, kept from being even by affinities.
    pub(super) fn set_uneven(&mut self, cpu: usize, level: usize, uneven: bool) {
        if let Some(turn) = self.of[cpu].get(level) {
            self.all[turn.domain].groups[turn.own].uneven = uneven;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn spans_go_from_the_core_to_the_host() {
        let host = testing::host(2, 4, 2);
        let domains = Domains::new(&host, V3_19);
        let sizes: Vec<u64> = domains.of[0].iter().map(|turn| turn.interval).collect();
        assert_eq!(sizes, [2 * MS, 8 * MS, 16 * MS]);
        let llc = domains.domain(domains.of[0][1].domain);
        assert_eq!((llc.groups.len(), llc.groups[0].power), (4, SMT_POWER));
        assert_eq!((&llc.groups[1].cpus[..], domains.of[3][1].own), (&[2, 3][..], 1));
        assert!(Domains::new(&testing::host(1, 1, 1), V3_19).of[0].is_empty());
    }
}
