//! Two scans, or one, to the [`Snapshot`] that policies take; pure.
//!
//! A thread is the same in both scans when its id and its start agree, whether or not it was known
//! for a vCPU then. What started after the first scan counts from its start; what is older and was
//! not seen had the mean load since its start, as nothing else is known of the window. With one
//! scan, all rates are such means, written over a window of one second. A thread whose start was
//! not read (zero) is that of its id, and as old as its process where that counts.

use super::facts::{Scan, ThreadTime, VmFacts, Waited};
use super::proc_text::ticks_to_nanos;
use super::quota::Quota;
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::snapshot::{
    Emulator, GuestNode, OpaqueVm, Snapshot, Vcpu, Vm, take_from_steal, wanted,
};
use instep_core::topology::Topology;
use instep_core::units::{Bytes, CpuId, Nanos, NodeId, Tid, VmId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Combines scans. `elapsed` overrides the time between them that their clocks show; without
/// `before` it has no meaning. `initial` equals `allowed` and `placed` is empty: the agent knows
/// better from its journal.
pub fn snapshot(
    topology: &Arc<Topology>,
    before: Option<&Scan>,
    after: &Scan,
    elapsed: Option<Nanos>,
) -> Snapshot {
    let rates = match before {
        Some(before) => Rates::between(before, after, elapsed),
        None => Rates::since_start(after),
    };
    let online = topology.all_cpus();
    let mut vms: Vec<Vm> = Vec::with_capacity(after.vms.len());
    let mut opaque: Vec<OpaqueVm> = Vec::with_capacity(after.opaque.len());
    // What all VMs used, and waited for.
    let (mut by_vms, mut steal) = (Nanos(0), Nanos(0));
    let mut count = |busy: Nanos, wait: Nanos| {
        by_vms = Nanos(by_vms.0.saturating_add(busy.0));
        steal = Nanos(steal.0.saturating_add(wait.0));
    };
    opaque.extend(after.opaque.iter().map(|facts| {
        let (busy, wait) = rates.of_threads(facts.read_at, &facts.threads);
        count(busy, wait);
        OpaqueVm {
            id: VmId(facts.pid),
            name: facts.name.clone(),
            vcpus: facts.vcpus,
            busy: wanted(busy, wait),
            why: facts.why.clone(),
        }
    }));
    let throttled = Throttled::new(before, &rates);
    for facts in &after.vms {
        match vm(facts, (&rates, &throttled), topology, &online) {
            Some(vm) => vms.push(vm),
            None => opaque.push(OpaqueVm {
                id: VmId(facts.pid),
                name: facts.name.clone(),
                vcpus: 1,
                busy: Nanos(0),
                why: "it has no vCPU thread yet".to_owned(),
            }),
        }
    }
    vms.sort_by_key(|vm| vm.id);
    vms.dedup_by_key(|vm| vm.id);
    opaque.sort_by_key(|vm| vm.id);
    vms.iter().for_each(|vm| {
        count(vm.busy(), vm.steal());
        // The kernel counted a quota's time as waits, too.
        count(Nanos(0), vm.throttled);
    });
    let got = rates.host(before, after, topology.cpus().len()).since(by_vms);
    let waited = rates.waited(before, after, steal);
    Snapshot {
        at: after.at,
        window: rates.window,
        topology: Arc::clone(topology),
        isolated: after.isolated.and(&online),
        other_busy: wanted(got, waited),
        vms,
        opaque,
    }
}

/// How counters become time in the window.
struct Rates {
    window: Nanos,
    kind: RateBasis,
}

enum RateBasis {
    /// Differences to the first scan.
    Between {
        /// Its threads, with the time of their reading where the scans' own clocks count.
        known: BTreeMap<(Tid, u64), (ThreadTime, Option<Nanos>)>,
        /// The host's uptime at the first scan.
        began: Option<Nanos>,
        /// What tells the age of threads that it lacks.
        ages: Option<Ages>,
    },
    /// Means since the start of each thread.
    SinceStart(Ages),
    /// Plain counters: nothing is known of time.
    Raw,
}

/// Tells how old a thread is.
#[derive(Clone, Copy)]
struct Ages {
    /// When the scan began.
    at: Nanos,
    /// Uptime of the host then.
    boot: Nanos,
    /// Ticks in a second.
    per_second: u64,
}

impl Ages {
    fn of(scan: &Scan) -> Option<Self> {
        let boot = scan.boot.filter(|boot| *boot != Nanos(0))?;
        Some(Self { at: scan.at, boot, per_second: scan.ticks_per_second })
    }

    /// The age at `read_at`.
    fn age(&self, start_ticks: u64, read_at: Nanos) -> Nanos {
        let now = Nanos(self.boot.0.saturating_add(read_at.since(self.at).0));
        now.since(self.start(start_ticks))
    }

    fn start(&self, start_ticks: u64) -> Nanos {
        ticks_to_nanos(start_ticks, self.per_second)
    }
}

impl Rates {
    fn between(before: &Scan, after: &Scan, elapsed: Option<Nanos>) -> Self {
        // The uptime of one copy alone is no window.
        let clocks = before.boot.is_some() && after.boot.is_some();
        let vcpus =
            before.vms.iter().flat_map(|vm| vm.vcpus.iter().map(|v| (vm.read_at, v.time())));
        let others =
            before.opaque.iter().flat_map(|vm| vm.threads.iter().map(|t| (vm.read_at, *t)));
        let known = vcpus
            .chain(others)
            .map(|(read_at, thread)| {
                let read_at = (clocks && elapsed.is_none()).then_some(read_at);
                ((thread.tid, thread.start_ticks), (thread, read_at))
            })
            .collect();
        let (began, ages) = (before.boot, Ages::of(after));
        let shown = if clocks { after.at.since(before.at) } else { Nanos(0) };
        let shown = elapsed.unwrap_or(shown);
        let mut rates = Rates { window: shown, kind: RateBasis::Between { known, began, ages } };
        if rates.window == Nanos(0) {
            // No clock in either copy: the busiest vCPU is taken to have run all the time.
            rates.window = Nanos(u64::MAX);
            rates.window =
                longest(after, |vm, vcpu| rates.used(vm.read_at, vcpu, vm.start_ticks).0);
        }
        rates
    }

    fn since_start(after: &Scan) -> Self {
        match Ages::of(after) {
            Some(ages) => Rates { window: Nanos::SECOND, kind: RateBasis::SinceStart(ages) },
            None => Rates { window: longest(after, |_, vcpu| vcpu.busy()), kind: RateBasis::Raw },
        }
    }

    /// CPU time and run-queue wait of threads in the window.
    fn of_threads(&self, read_at: Nanos, threads: &[ThreadTime]) -> (Nanos, Nanos) {
        let each = threads.iter().map(|thread| self.used(read_at, thread, 0));
        each.fold((Nanos(0), Nanos(0)), |(busy, wait), (more, waited)| {
            (Nanos(busy.0.saturating_add(more.0)), Nanos(wait.0.saturating_add(waited.0)))
        })
    }

    /// CPU time and run-queue wait of a thread in the window, each at most the window; its
    /// counters were read at `now`, and its process started at `process` (zero: not known).
    fn used(&self, now: Nanos, thread: &ThreadTime, process: u64) -> (Nanos, Nanos) {
        let start = if is_unread(thread) { process } else { thread.start_ticks };
        let mean = |ages: &Ages| {
            let age = ages.age(start, now);
            (scaled(thread.busy(), age, self.window), scaled(thread.wait, age, self.window))
        };
        let (busy, steal) = match &self.kind {
            RateBasis::Between { known, began, ages } => match seen(known, thread) {
                // Neither file of it was read then: the mean is all that is known.
                Some((then, _)) if is_unread(then) && then.busy() == Nanos(0) => {
                    ages.as_ref().map(mean).unwrap_or_default()
                }
                Some((then, read_at)) => {
                    let (busy, steal) = difference(then, thread);
                    let own = read_at.map(|then| now.since(then));
                    match own.filter(|own| *own != Nanos(0) && *own != self.window) {
                        Some(own) => {
                            (scaled(busy, own, self.window), scaled(steal, own, self.window))
                        }
                        None => (busy, steal),
                    }
                }
                None => match began.zip(*ages).filter(|(then, ages)| ages.start(start) < *then) {
                    Some((_, ages)) => mean(&ages),
                    None => (thread.busy(), thread.wait),
                },
            },
            RateBasis::SinceStart(ages) => mean(ages),
            RateBasis::Raw => (thread.busy(), thread.wait),
        };
        (busy.min(self.window), steal.min(self.window))
    }

    /// How long threads of no VM waited in the window; those of VMs waited for `steal`.
    fn waited(&self, before: Option<&Scan>, after: &Scan, steal: Nanos) -> Nanos {
        let before = before.and_then(|before| before.waited);
        match (before, after.waited) {
            (Some(Waited::All(before)), Some(Waited::All(now))) => now.since(before).since(steal),
            (Some(Waited::Others(before)), Some(Waited::Others(now))) => now.since(before),
            _ => Nanos(0),
        }
    }

    /// CPU time of the whole host in the window, at most what its CPUs have.
    fn host(&self, before: Option<&Scan>, after: &Scan, cpus: usize) -> Nanos {
        let busy = match &self.kind {
            RateBasis::Between { .. } => {
                after.host_busy.since(before.map_or(Nanos(0), |before| before.host_busy))
            }
            RateBasis::SinceStart(ages) => scaled(after.host_busy, ages.boot, self.window),
            RateBasis::Raw => after.host_busy,
        };
        busy.min(Nanos(self.window.0.saturating_mul(cpus as u64)))
    }
}

/// Whether the stat of a thread was not read: no thread of a monitor starts at boot.
fn is_unread(thread: &ThreadTime) -> bool {
    thread.start_ticks == 0
}

/// The thread among those of the first scan; by its id alone where a start was not read.
fn seen<'a, T>(known: &'a BTreeMap<(Tid, u64), T>, thread: &ThreadTime) -> Option<&'a T> {
    let ThreadTime { tid, start_ticks, .. } = *thread;
    if is_unread(thread) {
        return known.range((tid, 0)..=(tid, u64::MAX)).next_back().map(|(_, then)| then);
    }
    known.get(&(tid, start_ticks)).or_else(|| known.get(&(tid, 0)))
}

/// CPU time and wait between two looks at one thread. Schedstat counts where both have it.
fn difference(then: &ThreadTime, now: &ThreadTime) -> (Nanos, Nanos) {
    if is_unread(then) || is_unread(now) {
        return (now.busy().since(then.busy()), now.wait.since(then.wait));
    }
    let schedstat = now.run != Nanos(0) && (then.run != Nanos(0) || then.ticks == Nanos(0));
    let busy = if schedstat { now.run.since(then.run) } else { now.ticks.since(then.ticks) };
    (busy, now.wait.since(then.wait))
}

/// `time` used in `span`, as it would be in `window`.
fn scaled(time: Nanos, span: Nanos, window: Nanos) -> Nanos {
    if span == Nanos(0) {
        return time.min(window);
    }
    let scaled = u128::from(time.0) * u128::from(window.0) / u128::from(span.0);
    Nanos(u64::try_from(scaled).unwrap_or(u64::MAX))
}

/// The longest time of any vCPU, never zero.
fn longest(scan: &Scan, time: impl Fn(&VmFacts, &ThreadTime) -> Nanos) -> Nanos {
    let time = &time;
    let all =
        scan.vms.iter().flat_map(|vm| vm.vcpus.iter().map(move |vcpu| time(vm, &vcpu.time())));
    all.max().filter(|longest| *longest != Nanos(0)).unwrap_or(Nanos::SECOND)
}

/// Throttled time of the VMs of the first scan.
struct Throttled<'a> {
    rates: &'a Rates,
    known: BTreeMap<(u32, u64), (Nanos, &'a Quota)>,
}

impl<'a> Throttled<'a> {
    fn new(before: Option<&'a Scan>, rates: &'a Rates) -> Self {
        let vms = before.map_or(&[][..], |before| &before.vms).iter();
        let of = |vm: &'a VmFacts| ((vm.pid, vm.start_ticks), (vm.read_at, &vm.quota));
        Self { rates, known: vms.map(of).collect() }
    }

    /// Of a VM in the window: all of it, and how much of that cgroups of single vCPUs counted.
    fn of(&self, vm: &VmFacts) -> (Nanos, Nanos) {
        (self.counted(vm, |quota| quota.throttled), self.counted(vm, |quota| quota.of_vcpus))
    }

    fn counted(&self, vm: &VmFacts, count: fn(&Quota) -> Nanos) -> Nanos {
        let (now, window) = (count(&vm.quota), self.rates.window);
        match (&self.rates.kind, self.known.get(&(vm.pid, vm.start_ticks))) {
            (RateBasis::Between { .. }, Some((read_at, then))) => {
                let own = vm.read_at.since(*read_at);
                let own = if own == Nanos(0) { window } else { own };
                scaled(now.since(count(then)), own, window)
            }
            (RateBasis::SinceStart(ages), _) => {
                // Not bounded by the window: it is summed over CPUs.
                let age = ages.age(vm.start_ticks, vm.read_at);
                if age == Nanos(0) { Nanos(0) } else { scaled(now, age, window) }
            }
            _ => now,
        }
    }
}

/// Takes the time in which a quota stopped the VM out of the waits of its vCPUs, in proportion, and returns it as
/// their time: the kernel counts a thread that is throttled on its queue as one that waits. It counts the throttled
/// time of a CPU once, however many vCPUs wait there, so that counts for each of them, but not what cgroups of single vCPUs
/// counted.
fn without_throttled(vcpus: &mut [Vcpu], (all, of_vcpus): (Nanos, Nanos)) -> Nanos {
    let waiting = vcpus.iter().filter(|vcpu| vcpu.steal.0 > 0);
    let cpus: BTreeSet<Option<CpuId>> = waiting.clone().map(|vcpu| vcpu.cpu).collect();
    let each = waiting.count() as u128;
    let of_vm = u128::from(all.since(of_vcpus).0) * each.max(1) / cpus.len().max(1) as u128;
    let throttled = of_vm + u128::from(of_vcpus.0);
    // What other VMs below the same quota waited is none of this one's.
    take_from_steal(vcpus, Nanos(u64::try_from(throttled).unwrap_or(u64::MAX)))
}

fn vm(
    facts: &VmFacts,
    (rates, throttled): (&Rates, &Throttled),
    topology: &Topology,
    online: &CpuSet,
) -> Option<Vm> {
    if facts.vcpus.is_empty() {
        return None;
    }
    let usable = |set: &Option<CpuSet>| {
        let set = set.as_ref().map_or_else(|| online.clone(), |set| set.and(online));
        if set.is_empty() { online.clone() } else { set }
    };
    let mut vcpus: Vec<Vcpu> = facts
        .vcpus
        .iter()
        .map(|vcpu| {
            let (busy, steal) = rates.used(facts.read_at, &vcpu.time(), facts.start_ticks);
            let allowed = usable(&vcpu.allowed);
            Vcpu {
                index: vcpu.index,
                tid: vcpu.tid,
                start_ticks: vcpu.start_ticks,
                cpu: vcpu.cpu.filter(|cpu| online.contains(*cpu)),
                initial: allowed.clone(),
                allowed,
                busy,
                steal,
            }
        })
        .collect();
    vcpus.sort_by_key(|vcpu| vcpu.index);
    let throttled = without_throttled(&mut vcpus, throttled.of(facts));
    let (memory_bound, preferred) = memory_policy(facts, topology);
    Some(Vm {
        id: VmId(facts.pid),
        start_ticks: facts.start_ticks,
        uuid: facts.uuid.clone(),
        name: facts.name.clone(),
        vcpus,
        emulators: facts
            .emulators
            .iter()
            .map(|thread| {
                let allowed = usable(&thread.allowed);
                let (tid, start_ticks) = (thread.tid, thread.start_ticks);
                Emulator { tid, start_ticks, initial: allowed.clone(), allowed }
            })
            .collect(),
        memory: facts.memory.as_ref().map(|m| by_node(topology, &m.by_node)).unwrap_or_default(),
        cpuset: usable(&facts.cpuset),
        memory_bound,
        preferred,
        soft: None,
        guest_threads_per_core: facts.guest_threads_per_core.max(1),
        guest_nodes: facts.guest_nodes.iter().map(|node| guest_node(topology, node)).collect(),
        weight: facts.weight,
        quota: facts.quota.quota,
        devices: facts.devices.iter().filter_map(|id| topology.memory_node(*id)).collect(),
        throttled,
        noise: None,
        placed: NodeSet::new(),
    })
}

/// Bytes by node as the topology numbers nodes: what lies on a node that is another one again
/// counts there, what lies on a node that is not online stays under its number.
fn by_node(topology: &Topology, memory: &BTreeMap<NodeId, Bytes>) -> BTreeMap<NodeId, Bytes> {
    let mut folded: BTreeMap<NodeId, Bytes> = BTreeMap::new();
    for (node, bytes) in memory {
        let sum = &mut folded.entry(topology.memory_node(*node).unwrap_or(*node)).or_default().0;
        *sum = sum.saturating_add(bytes.0);
    }
    folded
}

/// A guest's node, with host nodes as the topology numbers them.
fn guest_node(topology: &Topology, node: &GuestNode) -> GuestNode {
    let bound = node.bound.as_ref().map(|set| online_nodes(topology, set));
    GuestNode {
        resident: by_node(topology, &node.resident),
        bound: bound.filter(|set| !set.is_empty()),
        ..node.clone()
    }
}

/// The online nodes among `nodes` as the topology numbers them.
fn online_nodes(topology: &Topology, nodes: &NodeSet) -> NodeSet {
    nodes.iter().filter_map(|node| topology.memory_node(node)).collect()
}

/// Nodes a VM's memory is bound to and those it prefers: by its cgroup's cpuset where that is
/// narrower than the host, by the policies of its mappings, by its command line.
fn memory_policy(facts: &VmFacts, topology: &Topology) -> (Option<NodeSet>, Option<NodeSet>) {
    let filled: NodeSet = topology
        .nodes()
        .iter()
        .filter(|node| node.memory != Bytes(0))
        .map(|node| node.id)
        .collect();
    let narrow = |set: Option<&NodeSet>| {
        let set = online_nodes(topology, set?);
        (!set.is_empty() && !filled.is_subset(&set)).then_some(set)
    };
    let memory = facts.memory.as_ref();
    let by_policy = memory.and_then(|m| m.bound.as_ref()).or(facts.memory_bound.as_ref());
    let bound =
        match (narrow(facts.mems.as_ref()), by_policy.map(|set| online_nodes(topology, set))) {
            (Some(mems), Some(policy)) if mems.intersects(&policy) => Some(mems.and(&policy)),
            (Some(mems), _) => Some(mems),
            (None, policy) => policy.filter(|set| !set.is_empty()),
        };
    let preferred = memory
        .and_then(|m| m.preferred.as_ref())
        .or(facts.memory_preferred.as_ref())
        .map(|set| online_nodes(topology, set))
        .filter(|set| !set.is_empty());
    (bound, preferred)
}
