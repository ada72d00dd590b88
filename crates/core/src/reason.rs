//! Why something was decided or refused: values with the numbers in them, printed alike by every
//! front end.

use crate::conflict::ConflictKind;
use crate::idset::{CpuSet, NodeSet};
use crate::units::{Bytes, Milli, NodeId};
use crate::wording::{Count, Named};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Where a VM is placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmPlace {
    /// The nodes.
    pub nodes: NodeSet,
    /// The CPUs, where they are not all of these nodes: those of some last-level caches.
    pub cpus: Option<CpuSet>,
}

/// Where `instep` places a VM, and why there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The place.
    pub place: VmPlace,
    /// The VM's vCPUs.
    pub vcpus: usize,
    /// Whether it was there before.
    pub kept: bool,
    /// What it is better than; `None` where it may be nowhere else.
    pub against: Option<Against>,
}

/// Another place for a VM, and what the chosen one saves against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Against {
    /// Where it was, or the best of all others if it was placed before, or nowhere.
    pub place: VmPlace,
    /// What the chosen place saves.
    pub saved: Saved,
}

/// CPU time that all VMs together lose less with a VM in one place than in another, by the [`TERMS`] of the
/// objective of `instep`, in millionths of a CPU; negative where they lose more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saved(pub [i64; 7]);

/// The terms of the objective of `instep`: accesses to memory of other nodes, once what may follow the VM has
/// followed; bringing memory there, and using it from afar until then; access to passthrough devices of other
/// nodes; sharing cores, and running on slow ones; waiting for a CPU; sharing the last-level cache; siblings in
/// different caches.
pub const TERMS: [&str; 7] = [
    "remote access",
    "moving memory",
    "remote devices",
    "core sharing",
    "waiting",
    "cache sharing",
    "siblings in different caches",
];

/// A reason. `Display` is one clause without a full stop, such as
/// `best node 1: 2.1GiB of its 3GiB lie there`. Serialized as that text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The policy changes nothing by definition.
    PolicyNone,
    /// `bind`: nodes are dealt out in turn.
    InTurn {
        /// The node.
        node: NodeId,
        /// The VM's position in order of id, from 0.
        turn: usize,
    },
    /// No CPU of the node may be used by some vCPU.
    NodeNotPermitted {
        /// The node.
        node: NodeId,
        /// What that vCPU may use.
        permitted: CpuSet,
    },
    /// `spread`: one CPU of every core.
    OneCpuPerCore {
        /// How many cores.
        cores: usize,
    },
    /// `spread` would put several vCPUs on one CPU.
    FewerCoresThanVcpus {
        /// The VM's vCPUs.
        vcpus: usize,
        /// Cores that it may use.
        cores: usize,
    },
    /// `spread` would leave several CPUs of one core to vCPUs that may use different ones.
    SiblingsPermitted {
        /// The CPUs that one per core and vCPU comes to.
        cpus: usize,
        /// The cores that have them.
        cores: usize,
    },
    /// `bnn`: not among the VMs that make up four fifths of the load.
    LastFifth {
        /// Its load, in thousandths of a CPU.
        load: Milli,
        /// The load of all VMs.
        total: Milli,
    },
    /// The node holds more of the VM's memory than its mean, and has room.
    BestNode {
        /// The node.
        node: NodeId,
        /// The VM's memory there.
        there: Bytes,
        /// All its memory.
        of: Bytes,
    },
    /// `bnn`: the node with the most vCPU room, because no candidate has enough.
    MostRoom {
        /// The node.
        node: NodeId,
        /// vCPUs it had left, in thousandths.
        left: Milli,
        /// vCPUs of the VM.
        vcpus: usize,
        /// The node its memory favours, if any.
        favoured: Option<NodeId>,
    },
    /// `instep`: neither cpuset nor initial affinity leaves an online CPU.
    NothingPermitted {
        /// The VM's cpuset.
        cpuset: CpuSet,
    },
    /// `instep`: vCPUs of the VM have affinities of their own.
    VcpusPinned {
        /// A vCPU that differs from the first.
        vcpu: u32,
        /// What it may use.
        cpus: CpuSet,
        /// What the first or the others may use.
        others: CpuSet,
    },
    /// `instep`: vCPUs and emulator threads were given different CPUs.
    PinnedFromEmulators {
        /// What the vCPUs may use.
        cpus: CpuSet,
        /// What the emulator threads may use.
        emulators: CpuSet,
    },
    /// `instep`: fewer CPUs than vCPUs, though the cpuset has more.
    PinnedTogether {
        /// The VM's vCPUs.
        vcpus: usize,
        /// What they may use.
        cpus: CpuSet,
    },
    /// `instep`: more vCPUs than cores on a host of one node.
    Overcommitted {
        /// vCPUs of all VMs.
        vcpus: u64,
        /// Cores of the host.
        cores: u64,
        /// Load of other processes in whole CPUs.
        other: u64,
    },
    /// `instep`: its vCPUs use so little that cores of their own would save nothing.
    Rests {
        /// The VM's vCPUs.
        vcpus: usize,
        /// What they use together, in thousandths of a CPU.
        demand: Milli,
    },
    /// `instep`: the place that loses least CPU time.
    Placed {
        /// Which, and what it is better than.
        placement: Arc<Placement>,
        /// Whether each vCPU has a core of its own.
        cores: bool,
    },
    /// `instep`: the initial affinity is widened because of a conflict.
    Mends {
        /// Where the VM goes.
        nodes: NodeSet,
        /// What is mended.
        conflict: ConflictKind,
    },
    /// The kernel scheduler keeps the VM at home: no affinity does.
    SoftHome {
        /// The home.
        node: NodeId,
    },
    /// Memory lies on other nodes than the VM's home.
    MemoryElsewhere {
        /// How much.
        remote: Bytes,
        /// Of how much.
        of: Bytes,
    },
    /// The host is nearly idle: a good moment to bring remote memory home.
    IdleHomecoming {
        /// CPU time used by all of the host, in thousandths of a CPU.
        busy: Milli,
        /// What lies elsewhere.
        remote: Bytes,
        /// The home.
        to: NodeSet,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::PolicyNone => write!(f, "policy none leaves everything to the kernel"),
            Reason::InTurn { node, turn } => {
                write!(f, "number {} in order of id: node {node} in turn", turn + 1)
            }
            Reason::NodeNotPermitted { node, permitted } => {
                write!(f, "node {node} has none of the CPUs it may use ({permitted})")
            }
            Reason::OneCpuPerCore { cores } => {
                write!(f, "one CPU of each of {}", Count::of(*cores, "core"))
            }
            Reason::FewerCoresThanVcpus { vcpus, cores } => {
                let cores = Count::of(*cores, "core");
                write!(f, "its {vcpus} vCPUs may use only {cores}: one CPU of each is too few")
            }
            Reason::SiblingsPermitted { cpus, cores } => {
                let cores = Count::of(*cores, "core");
                write!(f, "its vCPUs may use different CPUs: one per core is {cpus} of {cores}")
            }
            Reason::LastFifth { load, total } => {
                write!(f, "in the last fifth of the load: {load} of {total} CPUs")
            }
            Reason::BestNode { node, there, of } => {
                write!(f, "best node {node}: {there} of its {of} lie there")
            }
            Reason::MostRoom { node, left, vcpus, favoured: None } => write!(
                f,
                "no node has more than its share of the VM's memory: node {node} has the most room, \
                 {left} vCPUs for {vcpus}"
            ),
            Reason::MostRoom { node, left, vcpus, favoured: Some(favoured) }
                if favoured == node =>
            {
                write!(
                    f,
                    "node {node} has its memory, and the most room though too little: {left} \
                     vCPUs for {vcpus}"
                )
            }
            Reason::MostRoom { node, left, vcpus, favoured: Some(favoured) } => write!(
                f,
                "node {favoured} has its memory but no room: node {node} has the most, {left} \
                 vCPUs for {vcpus}"
            ),
            Reason::MemoryElsewhere { remote, of } => {
                write!(f, "{remote} of its {of} lie on other nodes")
            }
            Reason::SoftHome { node } => {
                write!(f, "the kernel scheduler keeps it on node {node} while that has room")
            }
            Reason::IdleHomecoming { busy, remote, to } => write!(
                f,
                "the host uses {busy} CPUs, less than one: {remote} can come home to node {to}"
            ),
            Reason::NothingPermitted { .. }
            | Reason::VcpusPinned { .. }
            | Reason::PinnedFromEmulators { .. }
            | Reason::PinnedTogether { .. }
            | Reason::Overcommitted { .. }
            | Reason::Rests { .. } => self.fmt_refusal(f),
            Reason::Placed { placement, cores } => {
                write!(f, "{placement}{}", if *cores { "; a core for each vCPU" } else { "" })
            }
            Reason::Mends { nodes, conflict } => {
                write!(f, "to {}, mending a conflict: {conflict}", Named("node", nodes))
            }
        }
    }
}

impl Reason {
    /// Why `instep` leaves a VM alone.
    fn fmt_refusal(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NothingPermitted { cpuset } => {
                write!(f, "its affinity and its cpuset ({cpuset}) leave it no online CPU")
            }
            Reason::VcpusPinned { vcpu, cpus, others } => {
                let cpus = Named("CPU", cpus);
                write!(f, "pinned by hand: vCPU {vcpu} may use {cpus}, others {others}")
            }
            Reason::PinnedFromEmulators { cpus, emulators } => {
                let cpus = Named("CPU", cpus);
                write!(
                    f,
                    "pinned by hand: its vCPUs may use {cpus}, its emulator threads {emulators}"
                )
            }
            Reason::PinnedTogether { vcpus, cpus } => {
                let cpus = Named("CPU", cpus);
                write!(f, "pinned by hand: its {vcpus} vCPUs may use only {cpus}")
            }
            Reason::Overcommitted { vcpus, cores, other } => {
                write!(f, "{} ", Count(*vcpus, "vCPU"))?;
                if *other > 0 {
                    write!(f, "and other load of {} ", Count(*other, "whole CPU"))?;
                }
                let cores = Count(*cores, "core");
                write!(f, "share {cores}: binding one to one would hurt under overcommit")
            }
            Reason::Rests { vcpus, demand } => write!(
                f,
                "its {} use {demand} CPUs: cores of their own would save nothing",
                Count::of(*vcpus, "vCPU")
            ),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for VmPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Named("node", &self.nodes))?;
        self.cpus.as_ref().map_or(Ok(()), |cpus| write!(f, " ({})", Named("CPU", cpus)))
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, vcpus, kept, against } = self;
        write!(f, "{}{place}: ", if *kept { "stays on " } else { "" })?;
        match against {
            None => write!(f, "the only place for {}", Count::of(*vcpus, "vCPU")),
            Some(against) => against.fmt(f),
        }
    }
}

impl fmt::Display for Against {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, saved) = (&self.place, &self.saved);
        let all = saved.0.iter().sum::<i64>();
        if all < 0 {
            let all = cpus(all);
            return write!(f, "{place} would save {all} CPUs, no more than noise of the loads");
        }
        let [saves, costs] = [1, -1].map(|sign| {
            let terms = TERMS.iter().zip(saved.0).filter(|(_, micro)| micro * sign >= SHOWN);
            terms.map(|(what, micro)| (cpus(micro), what)).collect::<Vec<_>>()
        });
        if saves.is_empty() {
            return write!(f, "as good as {place}");
        }
        for (verb, terms) in [("saves", saves), (", costs", costs)] {
            for (at, (cpus, what)) in terms.into_iter().enumerate() {
                let (verb, unit) = if at == 0 { (verb, " CPUs") } else { (",", "") };
                write!(f, "{verb} {cpus}{unit} of {what}")?;
            }
        }
        write!(f, " against {place}")
    }
}

/// What is less is not shown, in millionths of a CPU.
const SHOWN: i64 = 5_000;

/// Millionths of a CPU as CPUs with two places, without a sign.
fn cpus(micro: i64) -> Milli {
    Milli(micro.unsigned_abs().div_ceil(1000))
}

impl JsonSchema for Reason {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Reason".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
