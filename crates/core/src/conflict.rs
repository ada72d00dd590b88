//! Affinity conflicts: settings of a VM that work against each other or against the host
//! (systems.md 1). Found here, reported by `status`, mended by a policy when asked to.
//!
//! What is found is certain; not all that could be wrong is found. It knows what threads and
//! memory may use and where vCPUs last ran, not who set it or why.

use crate::idset::{CpuSet, IdSet, NodeSet};
use crate::matching::{Tight, match_up};
use crate::snapshot::{Snapshot, Vcpu, Vm};
use crate::topology::Topology;
use crate::units::{CoreId, VmId};
use crate::wording::{Count, Named};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// A core on which less than this of a CPU is used counts as free, in thousandths. Where vCPUs run
/// is known; any other load may run anywhere and is taken to fill up as many cores as it can.
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
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
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
        /// Cores of the cpuset that are certainly free, and not among theirs.
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
        /// Cores of the cpuset that are certainly free, and not among theirs.
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
    /// The soft affinity holds a part of the hard one only: the scheduler crowds that part.
    SoftMissesAllowed {
        /// Indices of the vCPUs.
        vcpus: Vec<u32>,
        /// The CPUs that both affinities hold, which are filled first.
        crowded: CpuSet,
        /// The allowed CPUs that the soft affinity leaves out.
        missed: CpuSet,
    },
    /// The soft affinity holds none of the allowed CPUs: the scheduler ignores it.
    SoftOutsideAllowed {
        /// Indices of the vCPUs.
        vcpus: Vec<u32>,
        /// CPUs of their soft affinity.
        soft: CpuSet,
        /// CPUs that they may use.
        allowed: CpuSet,
    },
    /// The node affinity names nodes that have none of the allowed CPUs.
    NodeAffinityElsewhere {
        /// The nodes that memory comes from.
        nodes: NodeSet,
        /// The nodes of the allowed CPUs.
        allowed: NodeSet,
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
            ConflictKind::SoftMissesAllowed { vcpus, crowded, missed } => write!(
                f,
                "the soft affinity of {} ({}) draws them to {} and leaves out {} that they may use",
                Count::of(vcpus.len(), "vCPU"),
                List(vcpus),
                Named("CPU", crowded),
                Named("CPU", missed)
            ),
            ConflictKind::SoftOutsideAllowed { vcpus, soft, allowed } => write!(
                f,
                "the soft affinity of {} ({}) is {}, but they may use {} only: the scheduler ignores it",
                Count::of(vcpus.len(), "vCPU"),
                List(vcpus),
                Named("CPU", soft),
                Named("CPU", allowed)
            ),
            ConflictKind::NodeAffinityElsewhere { nodes, allowed } => write!(
                f,
                "its node affinity is {}, so its memory comes from there, but the CPUs it may use are on {}",
                Named("node", nodes),
                Named("node", allowed)
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
pub fn find(snapshot: &Snapshot) -> Vec<Conflict> {
    let topology = snapshot.topology.as_ref();
    let other = snapshot.fixed_busy().milli_of(snapshot.window).0 / FREE_CORE;
    let in_use = usize::try_from(other).unwrap_or(usize::MAX);
    let host = Cores { topology, free: free_cores(snapshot), in_use };
    let mut found = Vec::new();
    for vm in &snapshot.vms {
        let mut kinds = crate::soft::find(topology, vm);
        kinds.extend(host.of(vm, |vcpu| &vcpu.allowed));
        found.extend(kinds.into_iter().map(|kind| Conflict { vm: vm.id, kind }));
    }
    found
}

/// A conflict of each VM at its initial affinities that a wider affinity within the cpuset can
/// mend. It does not depend on loads or on what Instep set since, so that mending does not undo
/// itself.
pub(crate) fn mendable(snapshot: &Snapshot) -> Vec<Option<ConflictKind>> {
    let topology = snapshot.topology.as_ref();
    let free = topology.cpus().iter().map(|cpu| cpu.core).collect();
    let host = Cores { topology, free, in_use: 0 };
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
    /// How many of them other load may be using, wherever it runs.
    in_use: usize,
}

impl Cores<'_> {
    /// The conflicts of one VM when its vCPUs may use what `set` says.
    fn of<'v>(&self, vm: &'v Vm, set: impl Fn(&'v Vcpu) -> &'v CpuSet) -> Vec<ConflictKind> {
        let mut found = Vec::new();
        let sets: Vec<&CpuSet> = vm.vcpus.iter().map(&set).collect();
        let mut allowed = CpuSet::new();
        for part in sets.chunk_by(|a, b| a == b) {
            allowed = allowed.or(part[0]);
        }
        found.extend(self.preferred(vm, &allowed));
        found.extend(self.crowded(vm, &sets));
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

    /// Groups of vCPUs that together may use fewer cores than they are, while others are free.
    /// `sets` is what each vCPU may use.
    fn crowded(&self, vm: &Vm, sets: &[&CpuSet]) -> Vec<ConflictKind> {
        let Some(first) = sets.first() else { return Vec::new() };
        // No core has more than 8 threads, so this many CPUs are enough cores.
        let ample = |cpus: &CpuSet| cpus.len() >= sets.len() * 8;
        let uniform = sets.iter().all(|cpus| cpus == first);
        if uniform && (ample(first) || self.cores_of(first).len() >= sets.len()) {
            return Vec::new();
        }
        let mut known = BTreeMap::new();
        for cpus in sets {
            known.entry(*cpus).or_insert_with(|| self.cores_of(cpus));
        }
        let claimants = self.claimants(vm, sets);
        let claims: Vec<&IdSet<CoreId>> =
            claimants.iter().map(|vcpus| &known[sets[vcpus.start]]).collect();
        let matching = match_up(&claims);
        if matching.tight.is_empty() {
            return Vec::new();
        }
        let rest = self.cores_of(&vm.cpuset).and(&self.free).minus(&matching.taken).len();
        let free_cores = rest.saturating_sub(matching.easy).saturating_sub(self.in_use);
        let mut found = Vec::new();
        for tight in matching.tight.iter().filter(|_| free_cores > 0) {
            let vcpus = tight.claimants.iter().flat_map(|one| claimants[*one].clone());
            found.extend(crowding(vm, sets, &vcpus.collect::<Vec<_>>(), tight, free_cores));
        }
        found
    }

    /// The positions of vCPUs that need a core: each by itself, but the threads of one virtual
    /// core together where operators pinned them to the threads of one core, as the guest expects.
    fn claimants(&self, vm: &Vm, sets: &[&CpuSet]) -> Vec<Range<usize>> {
        let threads = vm.guest_threads_per_core.max(1);
        let mut claimants = Vec::with_capacity(sets.len());
        let mut start = 0;
        for part in vm.vcpus.chunk_by(|a, b| a.index / threads == b.index / threads) {
            let its = start..start + part.len();
            start = its.end;
            let core = self.only_core(sets[its.start]);
            let one = core.is_some() && sets[its.clone()].iter().all(|s| self.only_core(s) == core);
            if one && match_up(&sets[its.clone()]).tight.is_empty() {
                claimants.push(its);
            } else {
                claimants.extend(its.map(|vcpu| vcpu..vcpu + 1));
            }
        }
        claimants
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

/// What is wrong with the vCPUs at these positions, which have too few cores: too few CPUs even,
/// or CPUs enough that share cores.
fn crowding(
    vm: &Vm,
    sets: &[&CpuSet],
    vcpus: &[usize],
    tight: &Tight<CoreId>,
    free_cores: usize,
) -> Vec<ConflictKind> {
    let index = |position: &usize| vm.vcpus[*position].index;
    let claims: Vec<&CpuSet> = vcpus.iter().map(|position| sets[*position]).collect();
    let lacking = match_up(&claims).tight;
    if lacking.is_empty() {
        let cpus = claims.iter().fold(CpuSet::new(), |all, cpus| all.or(cpus));
        let (vcpus, cores) = (vcpus.iter().map(index).collect(), tight.items.len());
        return vec![ConflictKind::VcpusShareCores { vcpus, cpus, cores, free_cores }];
    }
    lacking
        .into_iter()
        .map(|tight| {
            let vcpus = tight.claimants.iter().map(|one| index(&vcpus[*one])).collect();
            ConflictKind::VcpusShareCpus { vcpus, cpus: tight.items, free_cores }
        })
        .collect()
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
