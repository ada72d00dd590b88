//! How fast each CPU works, given what its neighbours do: sharing of a core, of the last-level cache
//! and of a node's memory bandwidth, and the distance of memory.
//!
//! Speed is `ONE / (ONE + slowdowns)`; slowdowns add up. Two profiles that share a core slow each
//! other by the product of their shares of each resource. Cache and bandwidth count only beyond
//! their size. It captures steady contention, not the history of caches.
//!
//! Of distances: firmware scales them to 10 for local memory (ACPI 6.5, 5.2.17, SLIT). That work which
//! is bound by memory takes longer in that proportion, twice as long at 20, is assumed, because no
//! table of times is at hand for the machines; firmware tends to say more than latencies measure.

use crate::host::Host;
use crate::params::{Contention, ONE, Profile};

/// What is slowed by where a VM's memory lies.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Part of the memory on each node, in 1024ths.
    pub part: Vec<u32>,
    /// Mean distance from each node's CPUs beyond local, in 1024ths of the local one.
    pub far: Vec<u64>,
}

impl Memory {
    /// Memory spread so (1024ths by node) on this host.
    #[must_use]
    pub fn new(host: &Host, part: Vec<u32>) -> Self {
        let far = |from: usize| -> u64 {
            let beyond = |to: usize| {
                let distance = host.distance[from].get(to).copied().unwrap_or(10);
                u64::from(distance.saturating_sub(10)) * ONE / 10
            };
            part.iter().enumerate().map(|(to, part)| u64::from(*part) * beyond(to) / ONE).sum()
        };
        Self { far: (0..host.nodes.len()).map(far).collect(), part }
    }
}

/// Which other CPUs must be asked for their speed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disturbed {
    /// The other CPUs of the core.
    pub core: bool,
    /// Those under the same LLC.
    pub llc: bool,
    /// All: the bandwidth of some node.
    pub nodes: bool,
}

/// The state of contention. See the module.
#[derive(Clone, Debug)]
pub struct Speed {
    contention: Contention,
    /// What slows everybody, in 1024ths.
    base: u64,
    profiles: Vec<Profile>,
    /// Slowdown of the first profile by the second on the same core.
    pairs: Vec<u32>,
    /// What each CPU does, as an index of a profile, and whose memory it uses.
    doing: Vec<Option<(usize, usize)>>,
    memories: Vec<Memory>,
    /// KiB wanted of each LLC.
    wanted: Vec<u64>,
    /// MiB/s wanted of each node, times [`ONE`].
    traffic: Vec<u64>,
    /// How many nodes are asked for more than they have.
    crowded: usize,
}

impl Speed {
    /// Nothing runs yet. `base` slows everybody, in 1024ths; `memories` by VM.
    #[must_use]
    pub fn new(
        host: &Host,
        contention: Contention,
        base: u64,
        profiles: Vec<Profile>,
        memories: Vec<Memory>,
    ) -> Self {
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
        Self {
            pairs: pairs.collect(),
            doing: vec![None; host.cpus()],
            wanted: vec![0; host.llcs.len()],
            traffic: vec![0; host.nodes.len()],
            crowded: 0,
            memories,
            contention,
            base,
            profiles,
        }
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
        let before = (self.wanted[llc], self.crowded > 0);
        if let Some((profile, vm)) = old {
            self.wanted[llc] -= self.profiles[profile].set_kib;
            self.flow(profile, vm, false);
        }
        if let Some((profile, vm)) = what {
            self.wanted[llc] += self.profiles[profile].set_kib;
            self.flow(profile, vm, true);
        }
        let size = self.contention.llc_kib;
        disturbed.llc = before.0 != self.wanted[llc] && before.0.max(self.wanted[llc]) > size;
        disturbed.nodes = before.1 || self.crowded > 0;
        disturbed
    }

    fn flow(&mut self, profile: usize, vm: usize, on: bool) {
        let mib_s = self.profiles[profile].mib_s;
        if mib_s == 0 {
            return;
        }
        let most = self.contention.node_mib_s.saturating_mul(ONE);
        for (traffic, part) in self.traffic.iter_mut().zip(&self.memories[vm].part) {
            let (flow, was) = (mib_s * u64::from(*part), *traffic > most);
            *traffic = if on { *traffic + flow } else { *traffic - flow };
            self.crowded = self.crowded + usize::from(*traffic > most) - usize::from(was);
        }
    }

    /// A VM's memory lies otherwise from now on. Every CPU must be asked for its speed again.
    pub fn set_memory(&mut self, vm: usize, memory: Memory) {
        let uses = |speed: &Self, cpu: usize| speed.doing[cpu].filter(|doing| doing.1 == vm);
        for cpu in 0..self.doing.len() {
            if let Some((profile, vm)) = uses(self, cpu) {
                self.flow(profile, vm, false);
            }
        }
        self.memories[vm] = memory;
        for cpu in 0..self.doing.len() {
            if let Some((profile, vm)) = uses(self, cpu) {
                self.flow(profile, vm, true);
            }
        }
    }

    /// The speed of `cpu` in 1024ths, 1 at least; [`ONE`] for one that does nothing.
    #[inline]
    #[must_use]
    pub fn of(&self, host: &Host, cpu: usize) -> u64 {
        let Some((profile, vm)) = self.doing[cpu] else { return ONE };
        let row = profile * self.profiles.len();
        let siblings = host.siblings[cpu].iter().filter_map(|other| self.doing[*other]);
        let shared: u64 = siblings.map(|other| u64::from(self.pairs[row + other.0])).sum();
        let mut slow = self.base + shared;
        let own = &self.profiles[profile];
        if own.llc > 0 {
            slow += self.misses(host.llc[cpu], own.set_kib) * u64::from(own.llc) / 1000;
        }
        if own.memory > 0 {
            let memory = self.memories[vm].far[host.node[cpu]] + self.queueing(vm);
            slow += memory * u64::from(own.memory) / 1000;
        }
        if slow == 0 { ONE } else { (ONE * ONE / (ONE + slow)).max(1) }
    }

    /// Additional time of work bound by this LLC: misses beyond those it has alone.
    fn misses(&self, llc: usize, own_kib: u64) -> u64 {
        let size = self.contention.llc_kib;
        let missed = |wanted: u64| match wanted > size {
            true => (wanted - size) * self.contention.llc_miss / wanted,
            false => 0,
        };
        missed(self.wanted[llc]).saturating_sub(missed(own_kib))
    }

    /// Additional time of work bound by the memory of `vm`: demand beyond bandwidth.
    fn queueing(&self, vm: usize) -> u64 {
        let most = self.contention.node_mib_s;
        let beyond = |traffic: u64| (traffic / most).saturating_sub(ONE);
        let parts = self.traffic.iter().zip(&self.memories[vm].part);
        parts.map(|(traffic, part)| beyond(*traffic) * u64::from(*part) / ONE).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Params;
    use crate::testing;

    fn speed(host: &Host) -> Speed {
        let memory = Memory::new(host, vec![1024, 0]);
        Speed::new(host, Params::generic().contention, 0, Profile::known(), vec![memory])
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
    fn bandwidth_counts_beyond_what_a_node_has() {
        let host = testing::host(2, 4, 1);
        let mut speed = speed(&host);
        let crowd: Vec<_> = (0..4).map(|cpu| speed.set(&host, cpu, Some((5, 0))).nodes).collect();
        assert_eq!(crowd, [false, false, false, true]);
        assert!(speed.of(&host, 0) < ONE);
        speed.set(&host, 3, None);
        assert_eq!(speed.of(&host, 0), ONE);
    }
}
