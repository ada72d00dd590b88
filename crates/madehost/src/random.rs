//! Random hosts: any topology, any VMs, the same for the same seed.

use crate::cgroup::Cgroups;
use crate::host::{HostSpec, Numbering};
use crate::made::MadeHost;
use crate::vm::{Cgroup, GuestNodeSpec, MemPolicy, Pages, VmSpec, Vmm};
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::units::{Bytes, CpuId, Milli, NodeId};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use std::collections::BTreeMap;

/// A small generator of pseudo-random numbers; not for secrets.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number from `low` to `high`, both included; `low` if they are the wrong way round.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        match high.checked_sub(low).and_then(|span| span.checked_add(1)) {
            Some(span) => low + self.next_u64() % span,
            None => low,
        }
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.within(0, 99) < percent
    }

    /// One of them; they must not be empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.within(0, from.len() as u64 - 1) as usize]
    }
}

/// How large a random host may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSize {
    /// Most NUMA nodes with CPUs, at least 1.
    pub nodes: u32,
    /// Most cores of a node, at least 1.
    pub cores_per_node: u32,
    /// Most VMs.
    pub vms: u32,
    /// Most vCPUs of a VM, at least 1.
    pub vcpus: u32,
    /// Whether there are VMs whose threads cannot be told, odd kinds of memory and cgroups.
    pub oddities: bool,
}

impl Default for HostSize {
    fn default() -> Self {
        Self { nodes: 8, cores_per_node: 16, vms: 24, vcpus: 16, oddities: true }
    }
}

/// A host with VMs within `limits`, the same for the same `seed`.
#[must_use]
pub fn random(seed: u64, limits: HostSize) -> MadeHost {
    let mut random = Random::new(seed);
    let mut made = MadeHost::new(random_host(&mut random, limits));
    made.boot = seed & 0xffff_ffff_ffff;
    if limits.oddities && random.chance(25) {
        made.cgroups = Cgroups::V1;
    }
    made.other_load = Milli(random.within(0, 500));
    for number in 0..random.within(0, u64::from(limits.vms)) {
        let vm = random_vm(&mut random, &made.host, limits, number);
        made.push(vm);
    }
    made
}

fn random_host(random: &mut Random, limits: HostSize) -> HostSpec {
    let nodes = random.within(1, u64::from(limits.nodes.max(1))) as u32;
    let cores = random.within(1, u64::from(limits.cores_per_node.max(1))) as u32;
    let mut host = HostSpec::new(nodes, cores).threads(*random.pick(&[1, 1, 2, 2, 2, 4]));
    if random.chance(40) {
        host.numbering = Numbering::SiblingsFar;
    }
    host.packages = if nodes.is_multiple_of(2) && random.chance(40) { nodes / 2 } else { nodes };
    let divisors: Vec<u32> = (1..=cores).filter(|n| cores.is_multiple_of(*n)).collect();
    host.llcs_per_node = *random.pick(&divisors);
    host.memory_per_node = Bytes::from_mib(random.within(4, 256) << 10);
    let per_llc = cores / host.llcs_per_node;
    match random.within(0, 9) {
        0 if host.threads_per_core == 2 => host.modules = true,
        1 if per_llc.is_multiple_of(2) => host.cores_per_l2 = 2,
        2 if host.llcs_per_node == 1 => {
            host.efficient_cores_per_node = random.within(0, u64::from(cores) - 1) as u32;
        }
        3 => host.llcs_per_node = 0,
        4 => host.memory_only_nodes = 1,
        5 => host.node_stride = 8,
        6 => host.offline = random_cpus(random, &host.present(), 20),
        _ => {}
    }
    if host.online().is_empty() {
        host.offline = CpuSet::new();
    }
    host
}

/// About `percent` of `cpus`.
fn random_cpus(random: &mut Random, cpus: &CpuSet, percent: u64) -> CpuSet {
    cpus.iter().filter(|_| random.chance(percent)).collect()
}

fn random_vm(random: &mut Random, host: &HostSpec, limits: HostSize, number: u64) -> VmSpec {
    let nodes = host.node_ids();
    let home = *random.pick(&nodes);
    let vcpus = random.within(1, u64::from(limits.vcpus.max(1))) as u32;
    let vmm = *random.pick(&Vmm::ALL);
    let memory = |random: &mut Random| Bytes(random.within(1, 1 << 20) * 4096);
    let mut vm = VmSpec::new(&format!("vm{number}"), vmm, vcpus, home, memory(random));
    if random.chance(50) {
        for node in &nodes {
            vm = vm.memory_on(*node, memory(random));
        }
    }
    let (load, steal) = (random.within(0, 1000), random.within(0, 300));
    for vcpu in &mut vm.vcpus {
        vcpu.load = Milli(if random.chance(20) { random.within(0, 1000) } else { load });
        vcpu.steal = Milli(steal.min(1000 - vcpu.load.0));
    }
    vm.emulator_load = Milli(random.within(0, 50));
    vm.weight = *random.pick(&[100, 100, 100, 50, 200, 1000]);
    vm.debugfs = random.chance(30);
    if vcpus.is_multiple_of(2) && random.chance(30) {
        vm.guest_threads_per_core = 2;
    }
    let online: Vec<CpuId> = host.online().iter().collect();
    match random.within(0, 9) {
        0 => vm = vm.pinned(&host.cpus_of(*random.pick(&with_cpus(host)))),
        1 => vm.vcpus.iter_mut().for_each(|vcpu| {
            vcpu.affinity = Some(CpuSet::one(*random.pick(&online)));
        }),
        2 => vm.cpuset = Some(host.cpus_of(*random.pick(&with_cpus(host)))),
        _ => {}
    }
    if limits.oddities {
        make_odd(random, &mut vm, &nodes);
    }
    vm
}

fn with_cpus(host: &HostSpec) -> Vec<NodeId> {
    host.nodes_with_cpus().iter().collect()
}

fn make_odd(random: &mut Random, vm: &mut VmSpec, nodes: &[NodeId]) {
    vm.thread_names = !random.chance(15);
    vm.fds = !random.chance(10);
    vm.numa_stat = !random.chance(30);
    if random.chance(20) {
        vm.pages = Pages::Huge;
    }
    let node = *random.pick(nodes);
    match random.within(0, 19) {
        0 => vm.policy = MemPolicy::Bind(NodeSet::one(node)),
        1 => vm.policy = MemPolicy::Prefer(node),
        2 => vm.policy = MemPolicy::Interleave(nodes.iter().copied().collect()),
        3 => vm.mems = Some(NodeSet::one(node)),
        4 => vm.cgroup = Cgroup::Root,
        5 => vm.cgroup = Cgroup::Shared("/user.slice/user-1000.slice/session-3.scope".to_owned()),
        _ => {}
    }
    let vcpus = vm.vcpus.len() as u32;
    if vcpus >= 4 && random.chance(20) {
        let memory = Bytes::from_mib((vm.memory_total().0 >> 21).max(1));
        let half = vcpus / 2;
        vm.guest_nodes = vec![
            GuestNodeSpec { vcpus: (0..half).collect(), memory, resident: BTreeMap::new() },
            GuestNodeSpec { vcpus: (half..vcpus).collect(), memory, resident: BTreeMap::new() },
        ];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_host_again_and_another_seed_another() {
        let limits = HostSize::default();
        assert_eq!(random(7, limits), random(7, limits));
        assert_ne!(random(7, limits), random(8, limits));
    }

    #[test]
    fn random_hosts_keep_the_limits_and_have_a_cpu_online() {
        let limits = HostSize { nodes: 3, cores_per_node: 4, vms: 5, vcpus: 2, oddities: true };
        for seed in 0..200 {
            let made = random(seed, limits);
            assert!(!made.host.online().is_empty(), "seed {seed}");
            assert!(made.host.nodes <= 3 && made.vms.len() <= 5, "seed {seed}");
            assert!(made.vms.iter().all(|vm| (1..=2).contains(&vm.vcpus.len())), "seed {seed}");
        }
    }
}
