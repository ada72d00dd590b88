//! How fast each CPU works, given what its neighbours do: sharing of a core and of the last-level cache, and
//! memory ([`Paths`]).
//!
//! Speed is `ONE / (ONE + slowdowns)`; slowdowns add up. Two profiles that share a core slow each
//! other by the product of their shares of each resource. The cache counts only beyond its size. It captures
//! steady contention, not the history of caches (which `engine/warmth.rs` does).
//!
//! Of memory a thread suffers in three ways. What waits for misses takes longer in proportion to their latency.
//! What it streams goes on beside its computing, but only so many lines are on their way at a time, so that
//! latency bounds it, too. And a node or a link that is asked for more than it carries slows all who ask.

use crate::host::Host;
use crate::memory::Paths;
use crate::params::{ONE, Params, Profile};

/// Which other CPUs must be asked for their speed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disturbed {
    /// The other CPUs of the core.
    pub core: bool,
    /// Those under the same LLC.
    pub llc: bool,
    /// All: the utilisation of some node or link.
    pub nodes: bool,
}

/// How memory slows a profile on a machine.
#[derive(Clone, Copy, Debug)]
struct Stall {
    /// Part of its time alone in which it waits for misses, 1024ths.
    waits: u64,
    /// Part of its time in which as many lines as can be are on their way, for each nanosecond of latency; in
    streams: u64,
    /// Whether memory slows it at all.
    minds: bool,
}

impl Stall {
    /// Waiting for misses cannot be all that a program does: what is estimated to be more, is this. 1024ths.
    const MOST: u64 = 973;

    fn new(profile: &Profile, params: &Params) -> Self {
        let times = &params.memory;
        let misses = profile.misses_ms.saturating_mul(times.latency).saturating_mul(10 * ONE)
            / (u64::from(profile.mlp_tenths.max(10)) * 1_000_000);
        let lines_s = profile.mib_s * (1 << 20) / 64;
        let waits = (u64::from(profile.memory) * ONE / 1000 + misses).min(Self::MOST);
        let streams =
            lines_s * ONE * ONE * 10 / times.in_flight_tenths.max(1).saturating_mul(1_000_000_000);
        let minds = times.latency > 0 && (waits > 0 || profile.mib_s > 0);
        Self { waits, streams, minds }
    }
}

/// The state of contention. See the module.
#[derive(Clone, Debug)]
pub struct Speed {
    llc_kib: u64,
    llc_miss: u64,
    /// What slows everybody, in 1024ths.
    base: u64,
    profiles: Vec<Profile>,
    stalls: Vec<Stall>,
    /// Slowdown of the first profile by the second on the same core.
    pairs: Vec<u32>,
    /// Speed of the first profile beside the second, and, first of each row, alone; 0 of a profile that caches or
    /// memory slow, too.
    beside: Vec<u64>,
    /// What each CPU does, as an index of a profile, and whose memory it uses.
    doing: Vec<Option<(usize, usize)>>,
    /// What each CPU asks of memory, MiB/s: less than alone while it shares its core.
    asks: Vec<u64>,
    /// How many CPUs ask for anything.
    asking: usize,
    /// Part of each VM's memory on each node, 1024ths.
    memories: Vec<Vec<u32>>,
    /// KiB wanted of each LLC.
    wanted: Vec<u64>,
    paths: Paths,
}

impl Speed {
    /// Nothing runs yet. `base` slows everybody, in 1024ths; `memories` by VM: the part on each node, 1024ths.
    pub fn new(
        host: &Host,
        params: &Params,
        base: u64,
        profiles: Vec<Profile>,
        memories: Vec<Vec<u32>>,
    ) -> Self {
        let contention = &params.contention;
        let product =
            |a: u32, b: u32, factor: u64| u64::from(a) * u64::from(b) * factor / 1_000_000;
        let pair = |a: &Profile, b: &Profile| {
            let sum = contention.any
                + product(a.fetch, b.fetch, contention.fetch)
                + product(a.fpu, b.fpu, contention.fpu)
                + product(a.l2, b.l2, contention.l2);
            u32::try_from(sum).unwrap_or(u32::MAX)
        };
        let pairs = profiles.iter().flat_map(|a| profiles.iter().map(move |b| pair(a, b)));
        let pairs: Vec<u32> = pairs.collect();
        let stalls: Vec<Stall> =
            profiles.iter().map(|profile| Stall::new(profile, params)).collect();
        let beside = profiles.iter().zip(&stalls).enumerate().flat_map(|(at, (own, stall))| {
            let others = &pairs[at * profiles.len()..][..profiles.len()];
            let plain = own.llc == 0 && !stall.minds;
            let slow = std::iter::once(0).chain(others.iter().copied().map(u64::from));
            slow.map(move |slow| if plain { speed(base + slow) } else { 0 })
        });
        Self {
            beside: beside.collect(),
            pairs,
            stalls,
            doing: vec![None; host.cpus()],
            asks: vec![0; host.cpus()],
            asking: 0,
            wanted: vec![0; host.llcs.len()],
            paths: Paths::new(host, &params.memory, contention.node_mib_s),
            llc_kib: contention.llc_kib,
            llc_miss: contention.llc_miss,
            memories,
            base,
            profiles,
        }
    }

    /// KiB that those that run beside `cpu` want of its last-level cache.
    pub fn wanted_beside(&self, host: &Host, cpu: usize) -> u64 {
        let own = self.doing[cpu].map_or(0, |doing| self.profiles[doing.0].set_kib);
        self.wanted[host.llc[cpu]] - own
    }

    /// The ways to memory.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// `cpu` does something else from now on: a profile and the VM whose memory it uses.
    #[inline]
    pub fn set(&mut self, host: &Host, cpu: usize, what: Option<(usize, usize)>) -> Disturbed {
        let old = std::mem::replace(&mut self.doing[cpu], what);
        if old == what {
            return Disturbed::default();
        }
        let mut disturbed = Disturbed { core: true, ..Disturbed::default() };
        let llc = host.llc[cpu];
        let before = self.wanted[llc];
        if let Some((profile, vm)) = old {
            self.wanted[llc] -= self.profiles[profile].set_kib;
            disturbed.nodes |= self.ask(host, cpu, vm, 0);
        }
        if let Some((profile, _)) = what {
            self.wanted[llc] += self.profiles[profile].set_kib;
            disturbed.nodes |= self.ask_anew(host, cpu);
        }
        if self.asking > 0 {
            for at in 0..host.siblings[cpu].len() {
                disturbed.nodes |= self.ask_anew(host, host.siblings[cpu][at]);
            }
        }
        disturbed.llc = before != self.wanted[llc] && before.max(self.wanted[llc]) > self.llc_kib;
        disturbed
    }

    /// What `cpu` asks of memory, now that its core is shared with others: what it would have if nothing queued.
    /// Whether that changed a utilisation.
    #[inline]
    fn ask_anew(&mut self, host: &Host, cpu: usize) -> bool {
        let Some((profile, vm)) = self.doing[cpu] else { return false };
        let alone = self.profiles[profile].mib_s;
        if alone == 0 {
            return false;
        }
        let slow = self.base + self.shared(host, cpu, profile);
        let mib_s = alone * ONE / (ONE + self.unqueued(host.node[cpu], (profile, vm), slow));
        self.ask(host, cpu, vm, mib_s)
    }

    /// `cpu` asks for so much of the memory of a VM from now on. Whether that changed a utilisation.
    #[inline]
    fn ask(&mut self, host: &Host, cpu: usize, vm: usize, mib_s: u64) -> bool {
        let before = std::mem::replace(&mut self.asks[cpu], mib_s);
        if before == mib_s {
            return false;
        }
        self.asking = self.asking + usize::from(mib_s > 0) - usize::from(before > 0);
        let (node, part) = (host.node[cpu], &self.memories[vm]);
        let less = before > 0 && self.paths.ask(node, part, before, false);
        let more = mib_s > 0 && self.paths.ask(node, part, mib_s, true);
        less || more
    }

    /// A VM's memory lies so (1024ths by node) from now on. Every CPU must be asked for its speed again.
    pub fn set_memory(&mut self, host: &Host, vm: usize, part: Vec<u32>) {
        let of_it = |speed: &Self, cpu: usize| speed.doing[cpu].is_some_and(|doing| doing.1 == vm);
        for cpu in 0..self.doing.len() {
            if of_it(self, cpu) {
                self.ask(host, cpu, vm, 0);
            }
        }
        self.memories[vm] = part;
        for cpu in 0..self.doing.len() {
            if of_it(self, cpu) {
                self.ask_anew(host, cpu);
            }
        }
    }

    /// What the other CPUs of the core cost a profile on `cpu`, in 1024ths.
    #[inline]
    fn shared(&self, host: &Host, cpu: usize, profile: usize) -> u64 {
        let row = profile * self.profiles.len();
        let siblings = host.siblings[cpu].iter().filter_map(|other| self.doing[*other]);
        siblings.map(|other| u64::from(self.pairs[row + other.0])).sum()
    }

    /// The speed of `cpu` in 1024ths, 1 at least; [`ONE`] for one that does nothing.
    #[inline]
    pub fn of(&self, host: &Host, cpu: usize) -> u64 {
        let Some(doing) = self.doing[cpu] else { return ONE };
        if let [] | [_] = host.siblings[cpu][..] {
            let other = host.siblings[cpu].first().and_then(|other| self.doing[*other]);
            let place = other.map_or(0, |other| 1 + other.0);
            let quick = self.beside[doing.0 * (self.profiles.len() + 1) + place];
            if quick > 0 {
                return quick;
            }
        }
        let mut slow = self.base + self.shared(host, cpu, doing.0);
        let own = &self.profiles[doing.0];
        if own.llc > 0 {
            slow += self.misses(host.llc[cpu], own.set_kib) * u64::from(own.llc) / 1000;
        }
        if self.stalls[doing.0].minds {
            slow = self.memory(host.node[cpu], doing, self.asks[cpu], slow);
        }
        speed(slow)
    }

    /// Additional time with memory on which nothing queues, of one that takes `slow` longer without it; 1024ths.
    fn unqueued(&self, node: usize, (profile, vm): (usize, usize), slow: u64) -> u64 {
        let stall = self.stalls[profile];
        let latency = self.paths.mean(node, &self.memories[vm]);
        self.waiting(stall, slow, latency).max((stall.streams * latency / ONE).saturating_sub(ONE))
    }

    /// Additional time of one that waits for misses of so many nanoseconds; 1024ths.
    fn waiting(&self, stall: Stall, slow: u64, latency: u64) -> u64 {
        let local = self.paths.local();
        slow + stall.waits * latency.saturating_sub(local) / local.max(1)
    }

    /// Additional time with memory, of one that takes `slow` longer without it; 1024ths. Where more is asked for
    /// than is carried, the queue is what lets through no more than that: the greater of the two counts.
    fn memory(&self, node: usize, doing: (usize, usize), mib_s: u64, slow: u64) -> u64 {
        let part = &self.memories[doing.1];
        let latency = self.paths.loaded(node, part);
        let waiting = self.waiting(self.stalls[doing.0], slow, latency);
        let crowding = self.paths.crowding(node, part, mib_s);
        waiting.max(self.unqueued(node, doing, slow) + crowding)
    }

    /// Additional time of work bound by this LLC: misses beyond those it has alone.
    fn misses(&self, llc: usize, own_kib: u64) -> u64 {
        let size = self.llc_kib;
        let missed = |wanted: u64| match wanted > size {
            true => (wanted - size) * self.llc_miss / wanted,
            false => 0,
        };
        missed(self.wanted[llc]).saturating_sub(missed(own_kib))
    }
}

/// The speed of one that takes so much longer, 1024ths.
fn speed(slow: u64) -> u64 {
    if slow == 0 { ONE } else { (ONE * ONE / (ONE + slow)).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Params;
    use crate::testing;

    fn speed(host: &Host) -> Speed {
        Speed::new(host, &Params::generic(), 0, Profile::known(), vec![vec![1024, 0]])
    }

    #[test]
    fn two_alike_on_a_core_slow_each_other_and_two_unlike_less() {
        let host = testing::host(2, 2, 2);
        let mut speed = speed(&host);
        speed.set(&host, 0, Some((2, 0)));
        assert_eq!(speed.of(&host, 0), ONE);
        assert!(speed.set(&host, 1, Some((2, 0))).core);
        let alike = speed.of(&host, 0);
        speed.set(&host, 1, Some((3, 0)));
        let unlike = speed.of(&host, 0);
        assert!(alike < unlike && unlike < ONE, "{alike} {unlike}");
        speed.set(&host, 1, None);
        assert_eq!(speed.of(&host, 0), ONE);
    }

    #[test]
    fn far_memory_slows_what_is_bound_by_memory_only() {
        let host = testing::host(2, 2, 1);
        let mut speed = speed(&host);
        speed.set(&host, 0, Some((6, 0)));
        speed.set(&host, 2, Some((6, 0)));
        assert_eq!(speed.of(&host, 0), ONE);
        // Distance 20: memory-bound time doubles, 80 % of the work.
        assert_eq!(speed.of(&host, 2), ONE * ONE / (ONE + 819));
        speed.set(&host, 2, Some((Profile::PLAIN, 0)));
        assert_eq!(speed.of(&host, 2), ONE);
    }

    #[test]
    fn what_streams_minds_distance_less_than_what_waits() {
        let host = testing::host(2, 2, 1);
        let mut speed = speed(&host);
        speed.set(&host, 0, Some((5, 0)));
        assert_eq!(speed.of(&host, 0), ONE);
        speed.set(&host, 0, None);
        speed.set(&host, 2, Some((5, 0)));
        // 16 lines in 174 ns are 5612 of the 8000 MiB/s.
        let streams = speed.of(&host, 2);
        assert!((ONE * 69 / 100..=ONE * 71 / 100).contains(&streams), "{streams}");
        speed.set(&host, 2, Some((6, 0)));
        assert!(speed.of(&host, 2) < streams);
    }

    #[test]
    fn streams_slow_each_other_beyond_what_a_node_carries() {
        let host = testing::host(2, 8, 1);
        let mut speed = speed(&host);
        let mut alone = Vec::new();
        for cpu in 0..8 {
            speed.set(&host, cpu, Some((5, 0)));
            alone.push(speed.of(&host, 0));
        }
        assert_eq!(alone[..2], [ONE, ONE], "two are half of it: the queue is short");
        // 64000 MiB/s are asked of 30000, and nobody gets more than an eighth of these.
        let all: u64 = (0..8).map(|cpu| 8000 * speed.of(&host, cpu) / ONE).sum();
        assert!((27_000..=30_500).contains(&all), "{all}");
        (1..8).for_each(|cpu| assert!(speed.set(&host, cpu, None).core));
        assert_eq!(speed.of(&host, 0), ONE);
    }

    #[test]
    fn misses_wait_by_the_latency_of_the_machine() {
        let host = testing::host(2, 2, 1);
        let profile = |misses_ms| Profile {
            misses_ms,
            mlp_tenths: 20,
            ..Profile::bound("own", [0, 0, 0, 0, 0])
        };
        let profiles = vec![profile(0), profile(1000)];
        let mut params = Params::generic();
        (params.memory.latency, params.memory.remote) = (160, 240);
        let mut speed = Speed::new(&host, &params, 0, profiles, vec![vec![1024, 0]]);
        speed.set(&host, 2, Some((1, 0)));
        // 1000 misses of 160 ns, two at a time, are 80 us of a millisecond: half as much more is 4 %.
        assert_eq!(speed.of(&host, 2), ONE * ONE / (ONE + 40));
        speed.set(&host, 2, Some((0, 0)));
        assert_eq!(speed.of(&host, 2), ONE);
    }
}
