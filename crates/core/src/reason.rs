//! Why something was decided or refused: values with the numbers in them, printed alike by every
//! front end.

use crate::conflict::ConflictKind;
use crate::idset::{CpuSet, NodeSet};
use crate::units::{Bytes, Milli, NodeId};
use crate::wording::{Count, Named};
use serde::{Serialize, Serializer};
use std::fmt;

/// What keeps a VM from the node with most of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    /// It may use no CPU there.
    NotAllowed,
    /// It is elsewhere, and a move must clearly pay.
    GainsTooLittle,
    /// Others need the node's cores, or sharing would exceed the kernel's.
    Others,
}

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
    /// `instep`: limits set by operators leave it no core per vCPU, though the host has enough.
    NoCoreEach {
        /// The VM's vCPUs.
        vcpus: usize,
        /// Cores of the host.
        cores: u64,
    },
    /// `instep`: the home node holds most of the VM's memory, or nothing speaks for another.
    Home {
        /// The node.
        node: NodeId,
        /// The VM's memory there.
        there: Bytes,
        /// All its memory.
        of: Bytes,
        /// Whether it was there before.
        kept: bool,
        /// Cores of the host, when each vCPU has one of its own.
        cores: Option<u64>,
    },
    /// `instep`: the node with most of the memory would cost more in crowding, or a move would.
    Elsewhere {
        /// The node it lives on.
        node: NodeId,
        /// The node with most of its memory.
        favoured: NodeId,
        /// The VM's memory on `favoured`.
        there: Bytes,
        /// All its memory.
        of: Bytes,
        /// What keeps it from there.
        bar: Bar,
        /// Cores of the host, when each vCPU has one of its own.
        cores: Option<u64>,
    },
    /// `instep`: no smaller set of nodes would serve it as well.
    Wide {
        /// All nodes it may use.
        nodes: NodeSet,
        /// The VM's vCPUs.
        vcpus: usize,
        /// Cores of the host, when each vCPU has one of its own.
        cores: Option<u64>,
    },
    /// `instep`: nothing speaks for fewer nodes, as no memory of it is known.
    MemoryUnknown {
        /// All nodes it may use.
        nodes: NodeSet,
        /// Cores of the host, when each vCPU has one of its own.
        cores: Option<u64>,
    },
    /// `instep`: fewer nodes would serve it better, but not by enough to change what is in force.
    GainsTooLittle {
        /// All nodes it may use.
        nodes: NodeSet,
        /// Cores of the host, when each vCPU has one of its own.
        cores: Option<u64>,
    },
    /// `instep`: a VM that takes several nodes.
    Spans {
        /// The nodes.
        nodes: NodeSet,
        /// The VM's vCPUs.
        vcpus: usize,
        /// Guest nodes that were placed one by one; 1 when it was placed as a whole.
        guest_nodes: usize,
        /// Memory on those nodes; of guest nodes that were placed one by one, on the node of each.
        there: Bytes,
        /// All its memory.
        of: Bytes,
    },
    /// `instep`: the initial affinity is widened because of a conflict.
    Mends {
        /// Where the VM goes.
        nodes: NodeSet,
        /// What is mended.
        conflict: ConflictKind,
    },
    /// `instep`: emulator threads on cores that no vCPU has.
    EmulatorsBeside {
        /// The CPUs.
        cpus: CpuSet,
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
            | Reason::NoCoreEach { .. } => self.fmt_refusal(f),
            Reason::Home { .. }
            | Reason::Elsewhere { .. }
            | Reason::Wide { .. }
            | Reason::MemoryUnknown { .. }
            | Reason::GainsTooLittle { .. }
            | Reason::Spans { .. }
            | Reason::Mends { .. }
            | Reason::EmulatorsBeside { .. } => self.fmt_home(f),
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
            Reason::NoCoreEach { vcpus, cores } => write!(
                f,
                "affinities leave its {vcpus} vCPUs no core each, though the host has {cores}: \
                 left to the kernel"
            ),
            _ => Ok(()),
        }
    }

    /// Why `instep` places a VM where it does.
    fn fmt_home(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Home { node, there, of, kept, cores } => {
                let verb = if *kept { "stays on node" } else { "best node" };
                write!(f, "{verb} {node}: ")?;
                match of {
                    Bytes(0) => write!(f, "where its memory lies is not known yet")?,
                    _ => write!(f, "{there} of its {of} lie there")?,
                }
                write!(f, "{}", one_to_one(*cores))
            }
            Reason::Elsewhere { node, favoured, there, of, bar, cores } => {
                let (verb, bar) = match bar {
                    Bar::NotAllowed => ("node", "none of the CPUs it may use"),
                    Bar::GainsTooLittle => ("stays on node", "moving there would gain too little"),
                    Bar::Others => ("node", "the host does better with it here"),
                };
                write!(
                    f,
                    "{verb} {node}: node {favoured} has {there} of its {of}, but {bar}{}",
                    one_to_one(*cores)
                )
            }
            Reason::Wide { nodes, vcpus, cores } => write!(
                f,
                "may use {}: on fewer its {vcpus} vCPUs would crowd themselves or \
                 others for more than its memory gains{}",
                Named("node", nodes),
                one_to_one(*cores)
            ),
            Reason::MemoryUnknown { nodes, cores } => write!(
                f,
                "may use {}: where its memory lies is not known{}",
                Named("node", nodes),
                one_to_one(*cores)
            ),
            Reason::GainsTooLittle { nodes, cores } => write!(
                f,
                "still may use {}: fewer would gain too little to change what is in force{}",
                Named("node", nodes),
                one_to_one(*cores)
            ),
            Reason::Spans { nodes, vcpus, guest_nodes, there, of } => {
                write!(f, "its {} take {}", Count::of(*vcpus, "vCPU"), Named("node", nodes))?;
                if *guest_nodes > 1 {
                    write!(f, ", one by one for {}", Count::of(*guest_nodes, "guest node"))?;
                }
                match (guest_nodes, of) {
                    (_, Bytes(0)) => write!(f, ": where its memory lies is not known"),
                    (0 | 1, _) => write!(f, ": {there} of its {of} lie there"),
                    _ => write!(f, ": {there} of its {of} lie with their vCPUs"),
                }
            }
            Reason::Mends { nodes, conflict } => {
                write!(f, "to {}, mending a conflict: {conflict}", Named("node", nodes))
            }
            Reason::EmulatorsBeside { cpus } => {
                let cpus = Named("CPU", cpus);
                write!(f, "kept off the cores of vCPUs: there is room on {cpus}")
            }
            _ => Ok(()),
        }
    }
}

/// What to add when each vCPU has a core of its own.
fn one_to_one(cores: Option<u64>) -> String {
    cores.map_or_else(String::new, |cores| {
        format!("; a core for each vCPU, the host's {cores} suffice")
    })
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
