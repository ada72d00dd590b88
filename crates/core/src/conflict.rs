//! Affinity conflicts: settings of a VM that work against each other or against the host
//! (systems.md 1). Found here, reported by `status`, mended by a policy when asked to.
//!
//! What is found is certain; not all that could be wrong is found. It knows what threads and
//! memory may use and where vCPUs last ran, not who set it or why.

use crate::idset::{CpuSet, IdSet, NodeSet};
use crate::snapshot::{Snapshot, Vcpu, Vm};
use crate::topology::Topology;
use crate::units::{CoreId, VmId};
use crate::wording::{Count, Named};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// A core whose vCPUs use less than this of a CPU counts as free, in thousandths.
const FREE_CORE: u64 = 250;

/// One conflict of one VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conflict {
    /// The VM.
    pub vm: VmId,
    /// What is wrong, with the facts.
    pub kind: ConflictKind,
}

/// What is at odds. `Display` says it in one sentence with the facts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ConflictKind {
    /// Preferred nodes cover only part of the allowed CPUs: the scheduler crowds that part.
    PreferredMissesAllowed {
        /// The preferred nodes.
        preferred: NodeSet,
        /// The allowed CPUs outside them.
        missed: CpuSet,
    },
    /// vCPUs have fewer CPUs than they are, while the cpuset has free cores.
    VcpusShareCpus {
        /// Indices of the vCPUs.
        vcpus: Vec<u32>,
        /// All that they may use.
        cpus: CpuSet,
        /// Cores of the cpuset that are free, and not among theirs.
        free_cores: usize,
    },
    /// vCPUs have a CPU each but fewer cores than they are, while the cpuset has free cores.
    VcpusShareCores {
        /// Indices of the vCPUs.
        vcpus: Vec<u32>,
        /// All that they may use.
        cpus: CpuSet,
        /// How many cores that is.
        cores: usize,
        /// Cores of the cpuset that are free, and not among theirs.
        free_cores: usize,
    },
    /// vCPUs that the guest takes for threads of one core are pinned to different cores.
    GuestThreadsApart {
        /// Virtual cores that this is so for.
        virtual_cores: Vec<u32>,
        /// Threads per core that the guest believes in.
        threads: u32,
        /// CPUs that the vCPUs of the first of them are pinned to.
        cpus: CpuSet,
    },
    /// Memory is bound to nodes that have none of the allowed CPUs.
    MemoryBoundElsewhere {
        /// The nodes that memory is bound to.
        bound: NodeSet,
        /// The nodes of the allowed CPUs.
        allowed: NodeSet,
    },
}

impl fmt::Display for ConflictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConflictKind::PreferredMissesAllowed { preferred, missed } => {
                let (preferred, missed) = (Named("node", preferred), Named("CPU", missed));
                write!(f, "the preferred {preferred} leave out {missed} that it may use")
            }
            ConflictKind::VcpusShareCpus { vcpus, cpus, free_cores } => write!(
                f,
                "{} ({}) may use only {} while {} free",
                Count::of(vcpus.len(), "vCPU"),
                List(vcpus),
                Named("CPU", cpus),
                Free(*free_cores)
            ),
            ConflictKind::VcpusShareCores { vcpus, cpus, cores, free_cores } => write!(
                f,
                "{} ({}) may use only {} ({}) while {} free",
                Count::of(vcpus.len(), "vCPU"),
                List(vcpus),
                Count::of(*cores, "core"),
                Named("CPU", cpus),
                Free(*free_cores)
            ),
            ConflictKind::GuestThreadsApart { virtual_cores, threads, cpus } => write!(
                f,
                "the {threads} threads of {} ({}) are pinned to different cores, those of the \
                 first to {}",
                Count::of(virtual_cores.len(), "virtual core"),
                List(virtual_cores),
                Named("CPU", cpus)
            ),
            ConflictKind::MemoryBoundElsewhere { bound, allowed } => write!(
                f,
                "memory is bound to {}, the CPUs it may use are on {}",
                Named("node", bound),
                Named("node", allowed)
            ),
        }
    }
}

/// `1 core is`, `3 cores are`.
struct Free(usize);

impl fmt::Display for Free {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.0 == 1 { "is" } else { "are" };
        write!(f, "{} {verb}", Count::of(self.0, "core"))
    }
}

/// The conflicts of all VMs at their present affinities, in the snapshot's order.
#[must_use]
pub fn find(snapshot: &Snapshot) -> Vec<Conflict> {
    let topology = snapshot.topology.as_ref();
    let host = Cores { topology, free: free_cores(snapshot) };
    let mut found = Vec::new();
    for vm in &snapshot.vms {
        let kinds = host.of(vm, |vcpu| &vcpu.allowed);
        found.extend(kinds.into_iter().map(|kind| Conflict { vm: vm.id, kind }));
    }
    found
}

/// A conflict of each VM at its initial affinities that a wider affinity within the cpuset can
/// mend. It does not depend on loads or on what Instep set since, so that mending does not undo
/// itself.
pub(crate) fn mendable(snapshot: &Snapshot) -> Vec<Option<ConflictKind>> {
    let topology = snapshot.topology.as_ref();
    let host = Cores { topology, free: topology.cpus().iter().map(|cpu| cpu.core).collect() };
    let online = topology.all_cpus();
    let mendable = |vm: &Vm| {
        let all = vm.cpuset.and(&online);
        let narrower = vm.vcpus.iter().any(|vcpu| !all.is_subset(&vcpu.initial));
        let mut kinds = if narrower { host.of(vm, |vcpu| &vcpu.initial) } else { Vec::new() };
        (!kinds.is_empty()).then(|| kinds.swap_remove(0))
    };
    snapshot.vms.iter().map(mendable).collect()
}

/// Cores on which vCPUs that last ran there use less than [`FREE_CORE`].
fn free_cores(snapshot: &Snapshot) -> IdSet<CoreId> {
    let topology = snapshot.topology.as_ref();
    let mut load = vec![0; topology.cores().len()];
    for vcpu in snapshot.vms.iter().flat_map(|vm| &vm.vcpus) {
        if let Some(cpu) = vcpu.cpu.and_then(|cpu| topology.cpu(cpu)) {
            load[cpu.core.0 as usize] += vcpu.demand(snapshot.window).0;
        }
    }
    (0..load.len()).filter(|core| load[*core] < FREE_CORE).map(|core| CoreId(core as u32)).collect()
}

/// The host's cores and which of them are free.
struct Cores<'a> {
    topology: &'a Topology,
    free: IdSet<CoreId>,
}

impl Cores<'_> {
    /// The conflicts of one VM when its vCPUs may use what `set` says.
    fn of<'v>(&self, vm: &'v Vm, set: impl Fn(&'v Vcpu) -> &'v CpuSet) -> Vec<ConflictKind> {
        let mut found = Vec::new();
        let mut groups: BTreeMap<&CpuSet, Vec<u32>> = BTreeMap::new();
        match vm.vcpus.first() {
            Some(first) if vm.vcpus.iter().all(|vcpu| set(vcpu) == set(first)) => {
                groups.insert(set(first), vm.vcpus.iter().map(|vcpu| vcpu.index).collect());
            }
            _ => vm
                .vcpus
                .iter()
                .for_each(|vcpu| groups.entry(set(vcpu)).or_default().push(vcpu.index)),
        }
        let allowed = groups.keys().fold(CpuSet::new(), |all, cpus| all.or(cpus));
        found.extend(self.preferred(vm, &allowed));
        found.extend(groups.into_iter().filter_map(|(cpus, vcpus)| self.crowded(vm, cpus, vcpus)));
        found.extend(self.threads_apart(vm, set));
        found.extend(self.memory(vm, &allowed));
        found
    }

    fn preferred(&self, vm: &Vm, allowed: &CpuSet) -> Option<ConflictKind> {
        let preferred = vm.preferred.clone()?;
        let missed = allowed.minus(&self.topology.cpus_of(&preferred));
        (!missed.is_empty()).then_some(ConflictKind::PreferredMissesAllowed { preferred, missed })
    }

    fn memory(&self, vm: &Vm, allowed: &CpuSet) -> Option<ConflictKind> {
        let bound = vm.memory_bound.clone()?;
        let allowed = self.topology.nodes_of(allowed);
        let apart = !allowed.is_empty() && !bound.is_empty() && !bound.intersects(&allowed);
        apart.then_some(ConflictKind::MemoryBoundElsewhere { bound, allowed })
    }

    /// vCPUs that share one set of fewer cores than they are.
    fn crowded(&self, vm: &Vm, cpus: &CpuSet, vcpus: Vec<u32>) -> Option<ConflictKind> {
        // No core has more than 8 threads, so this many CPUs are enough cores.
        if vcpus.len() < 2 || cpus.len() >= vcpus.len() * 8 {
            return None;
        }
        let cores = self.cores_of(cpus);
        if cores.len() >= vcpus.len() {
            return None;
        }
        let free_cores = self.cores_of(&vm.cpuset).minus(&cores).and(&self.free).len();
        if free_cores == 0 {
            return None;
        }
        let (room, cores, cpus) = (cpus.len(), cores.len(), cpus.clone());
        Some(if room < vcpus.len() {
            ConflictKind::VcpusShareCpus { vcpus, cpus, free_cores }
        } else {
            ConflictKind::VcpusShareCores { vcpus, cpus, cores, free_cores }
        })
    }

    /// Guest threads that operators pinned to different cores of a host that has threads.
    fn threads_apart<'v>(
        &self,
        vm: &'v Vm,
        set: impl Fn(&'v Vcpu) -> &'v CpuSet,
    ) -> Option<ConflictKind> {
        let threads = vm.guest_threads_per_core;
        if threads < 2 || self.topology.cores().len() == self.topology.cpus().len() {
            return None;
        }
        let mut cpus = CpuSet::new();
        let mut virtual_cores = Vec::new();
        for part in vm.vcpus.chunk_by(|a, b| a.index / threads == b.index / threads) {
            let pinned: Option<IdSet<CoreId>> = part
                .iter()
                .map(|vcpu| {
                    (*set(vcpu) == vcpu.initial).then(|| self.only_core(set(vcpu))).flatten()
                })
                .collect();
            if pinned.is_some_and(|cores| cores.len() > 1) {
                if virtual_cores.is_empty() {
                    cpus = part.iter().fold(CpuSet::new(), |all, vcpu| all.or(set(vcpu)));
                }
                virtual_cores.push(part[0].index / threads);
            }
        }
        let apart = ConflictKind::GuestThreadsApart { virtual_cores, threads, cpus };
        matches!(&apart, ConflictKind::GuestThreadsApart { cpus, .. } if !cpus.is_empty())
            .then_some(apart)
    }

    fn cores_of(&self, cpus: &CpuSet) -> IdSet<CoreId> {
        cpus.iter().filter_map(|id| self.topology.cpu(id)).map(|cpu| cpu.core).collect()
    }

    /// The core that holds all of `cpus`.
    fn only_core(&self, cpus: &CpuSet) -> Option<CoreId> {
        let core = self.topology.cpu(cpus.first()?)?.core;
        cpus.is_subset(&self.topology.cores()[core.0 as usize]).then_some(core)
    }
}

/// Numbers with commas, the first eight of them.
struct List<'a>(&'a [u32]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, number) in self.0.iter().take(8).enumerate() {
            write!(f, "{}{number}", if position == 0 { "" } else { "," })?;
        }
        f.write_str(if self.0.len() > 8 { ",..." } else { "" })
    }
}
