//! Why something was decided or refused: values with the numbers in them, printed alike by every
//! front end.

use crate::idset::CpuSet;
use crate::units::{Bytes, Milli, NodeId};
use serde::{Serialize, Serializer};
use std::fmt;

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
    /// Memory lies on other nodes than the VM's home.
    MemoryElsewhere {
        /// How much.
        remote: Bytes,
        /// Of how much.
        of: Bytes,
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
            Reason::OneCpuPerCore { cores } => write!(f, "one CPU of each of {cores} cores"),
            Reason::FewerCoresThanVcpus { vcpus, cores } => {
                write!(f, "one CPU per core would leave its {vcpus} vCPUs only {cores} CPUs")
            }
            Reason::LastFifth { load, total } => {
                write!(f, "in the last fifth of the load: {load} of {total} CPUs")
            }
            Reason::BestNode { node, there, of } => {
                write!(f, "best node {node}: {there} of its {of} lie there")
            }
            Reason::MostRoom { node, left, vcpus, favoured: None } => write!(
                f,
                "its memory favours no node: node {node} has the most room, {left} vCPUs for \
                 {vcpus}"
            ),
            Reason::MostRoom { node, left, vcpus, favoured: Some(favoured) } => write!(
                f,
                "node {favoured} has its memory but no room: node {node} has the most, {left} \
                 vCPUs for {vcpus}"
            ),
            Reason::MemoryElsewhere { remote, of } => {
                write!(f, "{remote} of its {of} lie on other nodes")
            }
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
