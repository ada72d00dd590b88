//! Makes hosts and VMs for the tests and the benchmark: by hand with [`host`] and [`vm`], or at
//! random from a seed with [`random`].
#![allow(dead_code, reason = "shared by several tests and the benchmark, none of which uses all")]

use instep_core::idset::{CpuSet, NodeSet};
use instep_core::snapshot::{Emulator, GuestNode, Snapshot, Vcpu, Vm};
use instep_core::soft::SoftAffinity;
use instep_core::topology::{CoreKind, CpuFacts, NodeFacts, Topology};
use instep_core::units::{Bytes, CpuId, Nanos, NodeId, Tid, VmId};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
/// The window of every made snapshot.
pub(crate) const WINDOW: Nanos = Nanos::from_secs(60);

/// `nodes` nodes of `cores` cores of `threads` CPUs, each node one package with one LLC and
/// `memory` bytes. CPU numbers as on x86: first threads of all cores first.
pub(crate) fn topology(nodes: u32, cores: u32, threads: u32, memory: u64) -> Arc<Topology> {
    topology_of_caches(nodes, 1, cores, threads, memory)
}

/// The same with `caches` LLCs in each node, of `cores` cores each.
pub(crate) fn topology_of_caches(
    nodes: u32,
    caches: u32,
    cores: u32,
    threads: u32,
    memory: u64,
) -> Arc<Topology> {
    let total = nodes * caches * cores;
    let of_core = |core: u32| (0..threads).map(move |thread| CpuId(thread * total + core));
    let of_cache = |cache: u32| (cache * cores..(cache + 1) * cores).flat_map(of_core);
    let of_node = |node: u32| (node * caches..(node + 1) * caches).flat_map(of_cache);
    let cpus = (0..total * threads)
        .map(|id| CpuFacts {
            id,
            package: Some(id % total / cores / caches),
            thread_siblings: Some(of_core(id % total).collect()),
            llc: Some(of_cache(id % total / cores).collect()),
            ..CpuFacts::default()
        })
        .collect();
    let nodes = (0..nodes)
        .map(|node| NodeFacts {
            id: node,
            cpus: of_node(node).collect(),
            memory: Bytes(memory),
            distances: (0..nodes).map(|to| distance(node, to)).collect(),
        })
        .collect();
    Arc::new(Topology::build(cpus, nodes).expect("a topology"))
}

/// Two nodes of two CPUs, 0-1 and 2-3, and node 2 with memory only, nearer to node 1.
pub(crate) fn with_memory_node() -> Arc<Topology> {
    let nodes = [("0-1", [10, 20, 40]), ("2-3", [20, 10, 30]), ("", [40, 30, 10])];
    let nodes = nodes.into_iter().zip(0..).map(|((list, distances), id)| NodeFacts {
        id,
        cpus: cpus(list),
        memory: Bytes(8 * GIB),
        distances: distances.to_vec(),
    });
    let facts = |id| CpuFacts { id, ..CpuFacts::default() };
    Arc::new(Topology::build((0..4).map(facts).collect(), nodes.collect()).expect("a topology"))
}

/// One node with two efficient cores of one CPU (0, 1), then two fast ones of two CPUs each.
pub(crate) fn hybrid() -> Arc<Topology> {
    let facts = |id: u32| {
        let first = id & !1;
        let siblings = if id < 2 { vec![CpuId(id)] } else { vec![CpuId(first), CpuId(first + 1)] };
        let kind = if id < 2 { CoreKind::Efficient } else { CoreKind::Performance };
        CpuFacts {
            id,
            thread_siblings: Some(siblings.into_iter().collect()),
            kind: Some(kind),
            ..CpuFacts::default()
        }
    };
    let node = NodeFacts { id: 0, cpus: cpus("0-5"), memory: Bytes(8 * GIB), distances: vec![10] };
    Arc::new(Topology::build((0..6).map(facts).collect(), vec![node]).expect("a topology"))
}

/// Pairs of nodes are near (as in one package), the others far.
fn distance(from: u32, to: u32) -> u32 {
    match (from == to, from / 2 == to / 2) {
        (true, _) => 10,
        (_, true) => 16,
        _ => 22,
    }
}

/// A host without VMs.
pub(crate) fn host(topology: Arc<Topology>) -> Snapshot {
    Snapshot {
        at: Nanos::from_secs(1000),
        window: WINDOW,
        topology,
        isolated: CpuSet::new(),
        other_busy: Nanos(0),
        vms: Vec::new(),
        opaque: Vec::new(),
    }
}

/// A VM with `vcpus` vCPUs, each using `milli` thousandths of a CPU, `mib[k]` MiB on node k, one
/// emulator thread and no limits.
pub(crate) fn vm(host: &Snapshot, id: u32, vcpus: u32, milli: u64, mib: &[u64]) -> Vm {
    let all = host.topology.all_cpus();
    let memory = host.topology.nodes().iter().zip(mib);
    Vm {
        id: VmId(id),
        start_ticks: 0,
        uuid: None,
        name: format!("vm{id}"),
        vcpus: (0..vcpus)
            .map(|index| Vcpu {
                index,
                tid: Tid(id * 1000 + index + 1),
                start_ticks: 0,
                cpu: None,
                allowed: all.clone(),
                initial: all.clone(),
                busy: Nanos(WINDOW.0 / 1000 * milli),
                steal: Nanos(0),
            })
            .collect(),
        emulators: vec![Emulator {
            tid: Tid(id * 1000),
            start_ticks: 0,
            allowed: all.clone(),
            initial: all.clone(),
        }],
        memory: memory.map(|(node, mib)| (node.id, Bytes(mib * MIB))).collect(),
        cpuset: all,
        memory_bound: None,
        preferred: None,
        soft: None,
        guest_threads_per_core: 1,
        guest_nodes: Vec::new(),
        weight: 100,
        quota: None,
        devices: Vec::new(),
        throttled: Nanos(0),
        noise: None,
        placed: Default::default(),
    }
}

/// CPUs from the kernel's list format.
pub(crate) fn cpus(list: &str) -> CpuSet {
    CpuSet::parse_list(list).expect("a CPU list")
}

/// The same affinity for every thread of a VM, as the operator set it.
pub(crate) fn confine(vm: &mut Vm, cpus: &CpuSet) {
    for vcpu in &mut vm.vcpus {
        vcpu.allowed = cpus.clone();
        vcpu.initial = cpus.clone();
    }
    for emulator in &mut vm.emulators {
        emulator.allowed = cpus.clone();
        emulator.initial = cpus.clone();
    }
}

/// The same soft affinity for every vCPU, and this node affinity, as the toolstack set them.
pub(crate) fn draw_to(vm: &mut Vm, cpus: &CpuSet, nodes: &NodeSet) {
    let vcpus: BTreeMap<u32, CpuSet> =
        vm.vcpus.iter().map(|vcpu| (vcpu.index, cpus.clone())).collect();
    vm.soft = Some(SoftAffinity {
        vcpus: vcpus.clone(),
        nodes: nodes.clone(),
        initial_vcpus: vcpus,
        initial_nodes: nodes.clone(),
    });
}

/// A small generator of numbers (SplitMix64, Steele et al. 2014): the same seed, the same host.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// The next 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `low..=high`.
    pub(crate) fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.bits() % (high - low + 1)
    }

    /// True in `percent` of a hundred cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.within(1, 100) <= percent
    }

    /// One of these.
    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.within(0, all.len() as u64 - 1) as usize]
    }
}

/// A random host: 1-8 nodes, SMT or not, 1-40 VMs of 1-16 vCPUs, idle to busy, memory anywhere
/// from one node to all. No operator's limits; see [`restrict`].
pub(crate) fn random(seed: u64) -> Snapshot {
    random_of_caches(seed, 1)
}

/// The same with so many last-level caches in each node, each with as many cores as the node had.
pub(crate) fn random_of_caches(seed: u64, caches: u32) -> Snapshot {
    let mut random = Random(seed);
    let nodes = random.one_of(&[1, 2, 2, 4, 4, 8]);
    let cores = random.one_of(&[2, 4, 8, 8, 12, 16]);
    let threads = random.one_of(&[1, 2, 2]);
    let mut made = host(topology_of_caches(nodes, caches, cores, threads, 64 * GIB));
    let count = random.within(1, 40) as u32;
    let busyness = random.one_of(&[100, 400, 1000]);
    for k in 0..count {
        let vcpus = random.one_of(&[1, 1, 2, 2, 4, 4, 8, 16]);
        let mib = footprint(&mut random, nodes as usize);
        let mut new = vm(&made, 100 + k, vcpus, 0, &mib);
        let level = random.within(0, busyness);
        for vcpu in &mut new.vcpus {
            let milli = random.within(level / 2, level);
            let steal = if random.chance(20) { random.within(0, 100) } else { 0 };
            vcpu.busy = Nanos(WINDOW.0 / 1000 * milli);
            vcpu.steal = Nanos(WINDOW.0 / 1000 * steal);
        }
        new.guest_threads_per_core = random.one_of(&[1, 1, 2]);
        made.vms.push(new);
    }
    let other = random.within(0, 500);
    made.other_busy = Nanos(WINDOW.0 / 1000 * other);
    made
}

/// Memory on one node, spread at random, or even.
fn footprint(random: &mut Random, nodes: usize) -> Vec<u64> {
    let mib = random.within(64, 4096);
    match random.within(0, 3) {
        0 | 1 => {
            let home = random.within(0, nodes as u64 - 1) as usize;
            let home_share = random.within(60, 100);
            (0..nodes)
                .map(|node| {
                    let rest = (nodes - 1).max(1) as u64;
                    if node == home {
                        mib * home_share / 100
                    } else {
                        mib * (100 - home_share) / 100 / rest
                    }
                })
                .collect()
        }
        2 => (0..nodes).map(|_| random.within(0, mib)).collect(),
        _ => vec![mib; nodes],
    }
}

/// Adds what operators set to a random host: cpusets, pinned vCPUs, narrow affinities, bound
/// memory, and affinities that Instep is still holding from a cycle before.
pub(crate) fn restrict(made: &mut Snapshot, seed: u64) {
    let mut random = Random(seed ^ 0x5eed);
    let all: Vec<CpuId> = made.topology.all_cpus().iter().collect();
    let nodes: Vec<NodeId> = made.topology.nodes().iter().map(|node| node.id).collect();
    for vm in &mut made.vms {
        match random.within(0, 9) {
            0 => confine(vm, &some_of(&mut random, &all)),
            1 => {
                vm.cpuset = some_of(&mut random, &all);
                let cpuset = vm.cpuset.clone();
                confine(vm, &cpuset);
            }
            2 => {
                for vcpu in &mut vm.vcpus {
                    vcpu.initial = some_of(&mut random, &all);
                    vcpu.allowed = vcpu.initial.clone();
                }
            }
            3 => vm.memory_bound = Some([random.one_of(&nodes)].into_iter().collect()),
            4 => {
                let node = random.one_of(&nodes);
                let cpus = made.topology.cpus_of(&[node].into_iter().collect());
                vm.placed = [node].into_iter().collect();
                vm.vcpus.iter_mut().for_each(|vcpu| vcpu.allowed = cpus.clone());
            }
            5 => vm.preferred = Some([random.one_of(&nodes)].into_iter().collect()),
            6 | 7 => halve(vm, &mut random, &nodes),
            8 => {
                let (hard, soft) = (some_of(&mut random, &all), some_of(&mut random, &all));
                if random.chance(50) {
                    confine(vm, &hard);
                }
                draw_to(vm, &soft, &[random.one_of(&nodes)].into_iter().collect());
            }
            _ => {}
        }
    }
}

/// Gives a guest two nodes whose memory lies on one host node each, and at times so many vCPUs
/// that it fits none.
fn halve(vm: &mut Vm, random: &mut Random, nodes: &[NodeId]) {
    if random.chance(50) {
        let first = vm.vcpus[0].clone();
        vm.vcpus = (0..random.within(8, 40) as u32)
            .map(|index| Vcpu { index, tid: Tid(first.tid.0 + index), ..first.clone() })
            .collect();
    }
    let half = vm.vcpus.len() as u32 / 2;
    vm.memory.clear();
    vm.guest_nodes.clear();
    for vcpus in [0..half, half..vm.vcpus.len() as u32] {
        let (node, memory) = (random.one_of(nodes), Bytes(random.within(64, 4096) * MIB));
        let mut resident = BTreeMap::from([(node, memory)]);
        // Some of it strayed, or is bound. Drawn apart, so that the rest of a seed's host is what
        // it was.
        let mut random = Random(memory.0);
        if random.chance(30) {
            let part = Bytes(memory.0 / random.within(5, 30));
            resident.entry(random.one_of(nodes)).or_default().0 += part.0;
        }
        let bound = random.chance(20).then(|| nodes.iter().copied().take(2).collect());
        for (node, bytes) in &resident {
            vm.memory.entry(*node).or_default().0 += bytes.0;
        }
        let (id, vcpus) = (vm.guest_nodes.len() as u32, vcpus.collect());
        vm.guest_nodes.push(GuestNode { id, vcpus, memory, resident, bound });
    }
}

/// Makes the host one that Instep has not touched yet.
pub(crate) fn forget(made: &mut Snapshot) {
    for vm in &mut made.vms {
        vm.placed = Default::default();
        vm.vcpus.iter_mut().for_each(|vcpu| vcpu.allowed = vcpu.initial.clone());
        vm.emulators.iter_mut().for_each(|emulator| emulator.allowed = emulator.initial.clone());
    }
}

/// Puts numbers and sets into a host that no host has.
pub(crate) fn spoil(made: &mut Snapshot, seed: u64) {
    let mut random = Random(seed ^ 0xbad);
    made.window = Nanos(random.one_of(&[0, 1, WINDOW.0, u64::MAX]));
    made.other_busy = Nanos(random.one_of(&[0, u64::MAX]));
    for vm in &mut made.vms {
        match random.within(0, 11) {
            0 => vm.vcpus.clear(),
            1 => vm.cpuset = CpuSet::new(),
            2 => vm.vcpus[0].allowed = CpuSet::new(),
            3 => vm.vcpus[0].initial = cpus("5000-5010"),
            4 => vm.placed = [NodeId(77)].into_iter().collect(),
            5 => vm.memory = [(NodeId(0), Bytes(u64::MAX)), (NodeId(9), Bytes(9))].into(),
            6 => vm.vcpus.iter_mut().for_each(|vcpu| vcpu.busy = Nanos(u64::MAX)),
            7 => vm.guest_threads_per_core = random.one_of(&[0, u32::MAX]),
            8 => {
                let node = GuestNode {
                    id: 0,
                    vcpus: vec![0, 0, u32::MAX],
                    memory: Bytes(u64::MAX),
                    resident: [(NodeId(0), Bytes(u64::MAX)), (NodeId(9), Bytes(9))].into(),
                    bound: Some([NodeId(8)].into_iter().collect()),
                };
                vm.guest_nodes = vec![node; 3];
                vm.memory = [(NodeId(0), Bytes(u64::MAX))].into();
            }
            9 => vm.emulators[0].initial = CpuSet::new(),
            10 => vm.id = VmId(100),
            _ => {}
        }
    }
}

fn some_of(random: &mut Random, all: &[CpuId]) -> CpuSet {
    let percent = random.one_of(&[20, 50, 80]);
    let mut set: CpuSet = all.iter().copied().filter(|_| random.chance(percent)).collect();
    set.insert(random.one_of(all));
    set
}
