//! Two scans, or one, to the [`Snapshot`] that policies take; pure.
//!
//! A thread is the same in both scans when its id and its start agree. What the first scan did
//! not see counts from its start. With one scan, rates are means since each thread's start,
//! written over a window of one second.

use super::facts::{Scan, VcpuFacts, VmFacts};
use super::proc_text::ticks_to_nanos;
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::snapshot::{Emulator, OpaqueVm, Snapshot, Vcpu, Vm};
use instep_core::topology::Topology;
use instep_core::units::{Bytes, Nanos, Tid, VmId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Combines scans. `elapsed` overrides the time between them that their clocks show; without
/// `before` it has no meaning. `initial` equals `allowed` and `placed` is empty: the agent knows
/// better from its journal.
#[must_use]
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
    let mut opaque: Vec<OpaqueVm> = after.opaque.clone();
    for facts in &after.vms {
        match vm(facts, &rates, topology, &online) {
            Some(vm) => vms.push(vm),
            None => opaque.push(OpaqueVm {
                id: VmId(facts.pid),
                name: facts.name.clone(),
                vcpus: 1,
                why: "it has no vCPU thread yet".to_owned(),
            }),
        }
    }
    vms.sort_by_key(|vm| vm.id);
    vms.dedup_by_key(|vm| vm.id);
    opaque.sort_by_key(|vm| vm.id);
    let by_vms: u64 = vms.iter().fold(0, |all, vm| all.saturating_add(vm.busy().0));
    Snapshot {
        at: after.at,
        window: rates.window,
        topology: Arc::clone(topology),
        other_busy: Nanos(
            rates.host(before, after, topology.cpus().len()).0.saturating_sub(by_vms),
        ),
        vms,
        opaque,
    }
}

/// How counters become time in the window.
struct Rates<'a> {
    window: Nanos,
    kind: Kind<'a>,
}

enum Kind<'a> {
    /// Differences to the first scan, with the time of its reading where the scans' own clocks
    /// count.
    Between(BTreeMap<(Tid, u64), (&'a VcpuFacts, Option<Nanos>)>),
    /// Means since the start of each thread.
    SinceStart {
        /// When the scan began.
        at: Nanos,
        /// Uptime of the host then.
        boot: Nanos,
        /// Ticks in a second.
        per_second: u64,
    },
    /// Plain counters: nothing is known of time.
    Raw,
}

impl<'a> Rates<'a> {
    fn between(before: &'a Scan, after: &Scan, elapsed: Option<Nanos>) -> Self {
        let known: BTreeMap<_, _> = before
            .vms
            .iter()
            .flat_map(|vm| vm.vcpus.iter().map(move |vcpu| (vm, vcpu)))
            .map(|(vm, vcpu)| {
                let read_at = elapsed.is_none().then_some(vm.read_at);
                ((vcpu.tid, vcpu.start_ticks), (vcpu, read_at))
            })
            .collect();
        let shown = elapsed.unwrap_or_else(|| after.at.since(before.at));
        let mut rates = Rates { window: shown, kind: Kind::Between(known) };
        if rates.window == Nanos(0) {
            // No clock in either copy: the busiest vCPU is taken to have run all the time.
            rates.window = Nanos(u64::MAX);
            rates.window = longest(after, |vm, vcpu| rates.used(vm, vcpu).0);
        }
        rates
    }

    fn since_start(after: &Scan) -> Self {
        match after.boot.filter(|boot| *boot != Nanos(0)) {
            Some(boot) => Rates {
                window: Nanos::SECOND,
                kind: Kind::SinceStart { at: after.at, boot, per_second: after.ticks_per_second },
            },
            None => Rates { window: longest(after, |_, vcpu| vcpu.busy()), kind: Kind::Raw },
        }
    }

    /// CPU time and run-queue wait of a vCPU in the window, each at most the window.
    fn used(&self, vm: &VmFacts, vcpu: &VcpuFacts) -> (Nanos, Nanos) {
        let (busy, steal) = match &self.kind {
            Kind::Between(known) => match known.get(&(vcpu.tid, vcpu.start_ticks)) {
                Some((then, read_at)) => {
                    let (busy, steal) = difference(then, vcpu);
                    let own = read_at.map(|then| vm.read_at.since(then));
                    match own.filter(|own| *own != Nanos(0) && *own != self.window) {
                        Some(own) => {
                            (scaled(busy, own, self.window), scaled(steal, own, self.window))
                        }
                        None => (busy, steal),
                    }
                }
                None => (vcpu.busy(), vcpu.wait),
            },
            Kind::SinceStart { at, boot, per_second } => {
                let now = Nanos(boot.0.saturating_add(vm.read_at.since(*at).0));
                let age = now.since(ticks_to_nanos(vcpu.start_ticks, *per_second));
                (scaled(vcpu.busy(), age, self.window), scaled(vcpu.wait, age, self.window))
            }
            Kind::Raw => (vcpu.busy(), vcpu.wait),
        };
        (busy.min(self.window), steal.min(self.window))
    }

    /// CPU time of the whole host in the window, at most what its CPUs have.
    fn host(&self, before: Option<&Scan>, after: &Scan, cpus: usize) -> Nanos {
        let busy = match &self.kind {
            Kind::Between(_) => {
                after.host_busy.since(before.map_or(Nanos(0), |before| before.host_busy))
            }
            Kind::SinceStart { boot, .. } => scaled(after.host_busy, *boot, self.window),
            Kind::Raw => after.host_busy,
        };
        busy.min(Nanos(self.window.0.saturating_mul(cpus as u64)))
    }
}

/// CPU time and wait between two looks at one thread. Schedstat counts where both have it.
fn difference(then: &VcpuFacts, now: &VcpuFacts) -> (Nanos, Nanos) {
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
fn longest(scan: &Scan, time: impl Fn(&VmFacts, &VcpuFacts) -> Nanos) -> Nanos {
    let time = &time;
    let all = scan.vms.iter().flat_map(|vm| vm.vcpus.iter().map(move |vcpu| time(vm, vcpu)));
    all.max().filter(|longest| *longest != Nanos(0)).unwrap_or(Nanos::SECOND)
}

fn vm(facts: &VmFacts, rates: &Rates<'_>, topology: &Topology, online: &CpuSet) -> Option<Vm> {
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
            let (busy, steal) = rates.used(facts, vcpu);
            let allowed = usable(&vcpu.allowed);
            Vcpu {
                index: vcpu.index,
                tid: vcpu.tid,
                cpu: vcpu.cpu.filter(|cpu| online.contains(*cpu)),
                initial: allowed.clone(),
                allowed,
                busy,
                steal,
            }
        })
        .collect();
    vcpus.sort_by_key(|vcpu| vcpu.index);
    let (memory_bound, preferred) = memory_policy(facts, topology);
    Some(Vm {
        id: VmId(facts.pid),
        name: facts.name.clone(),
        vcpus,
        emulators: facts
            .emulators
            .iter()
            .map(|thread| {
                let allowed = usable(&thread.allowed);
                Emulator { tid: thread.tid, initial: allowed.clone(), allowed }
            })
            .collect(),
        memory: facts.memory.as_ref().map(|memory| memory.by_node.clone()).unwrap_or_default(),
        cpuset: usable(&facts.cpuset),
        memory_bound,
        preferred,
        guest_threads_per_core: facts.guest_threads_per_core.max(1),
        guest_nodes: facts.guest_nodes.clone(),
        weight: facts.weight,
        placed: NodeSet::new(),
    })
}

/// Nodes a VM's memory is bound to and those it prefers: by its cgroup's cpuset where that is
/// narrower than the host, by the policies of its mappings, by its command line.
fn memory_policy(facts: &VmFacts, topology: &Topology) -> (Option<NodeSet>, Option<NodeSet>) {
    let online: NodeSet = topology.nodes().iter().map(|node| node.id).collect();
    let filled: NodeSet = topology
        .nodes()
        .iter()
        .filter(|node| node.memory != Bytes(0))
        .map(|node| node.id)
        .collect();
    let narrow = |set: Option<&NodeSet>| {
        let set = set?.and(&online);
        (!set.is_empty() && !filled.is_subset(&set)).then_some(set)
    };
    let memory = facts.memory.as_ref();
    let by_policy = memory.and_then(|m| m.bound.as_ref()).or(facts.memory_bound.as_ref());
    let bound = match (narrow(facts.mems.as_ref()), by_policy.map(|set| set.and(&online))) {
        (Some(mems), Some(policy)) if mems.intersects(&policy) => Some(mems.and(&policy)),
        (Some(mems), _) => Some(mems),
        (None, policy) => policy.filter(|set| !set.is_empty()),
    };
    let preferred = memory
        .and_then(|m| m.preferred.as_ref())
        .or(facts.memory_preferred.as_ref())
        .map(|set| set.and(&online))
        .filter(|set| !set.is_empty());
    (bound, preferred)
}
