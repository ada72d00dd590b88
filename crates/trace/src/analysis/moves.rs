//! Migrations of vCPUs: how far each went between two runs (to the core's other thread, within a
//! last-level cache, within a node, to another node), and how many the kernel itself reports.

use super::world::{SchedState, VcpuChange};
use instep_core::topology::Topology;
use instep_core::units::CpuId;

/// Moves by distance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, schemars::JsonSchema, serde::Serialize)]
pub struct Moves {
    /// To another thread of the same core.
    pub within_core: u64,
    /// To another core of the same last-level cache.
    pub within_llc: u64,
    /// To another last-level cache of the same node.
    pub within_node: u64,
    /// To another node.
    pub across_nodes: u64,
    /// Over an unknown distance.
    pub unknown: u64,
}

impl Moves {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.within_core + self.within_llc + self.within_node + self.across_nodes + self.unknown
    }

    /// Adds others.
    pub(super) fn add(&mut self, other: &Moves) {
        self.within_core += other.within_core;
        self.within_llc += other.within_llc;
        self.within_node += other.within_node;
        self.across_nodes += other.across_nodes;
        self.unknown += other.unknown;
    }

    fn count(&mut self, topology: Option<&Topology>, from: CpuId, to: CpuId) {
        let place = |cpu| topology.and_then(|topology| topology.cpu(cpu));
        let counter = match place(from).zip(place(to)) {
            None => &mut self.unknown,
            Some((from, to)) if from.core == to.core => &mut self.within_core,
            Some((from, to)) if from.llc == to.llc => &mut self.within_llc,
            Some((from, to)) if from.node == to.node => &mut self.within_node,
            Some(_) => &mut self.across_nodes,
        };
        *counter += 1;
    }
}

/// Of all vCPUs.
#[derive(Debug)]
pub(super) struct Migrations {
    topology: Option<Topology>,
    vcpus: Vec<MigrationTally>,
    /// Whether the trace has sched_migrate_task.
    is_told: bool,
}

#[derive(Clone, Debug, Default)]
struct MigrationTally {
    last: Option<CpuId>,
    told: u64,
    moves: Moves,
}

impl Migrations {
    pub(super) fn new(vcpus: usize, topology: Option<Topology>) -> Self {
        Migrations { topology, vcpus: vec![MigrationTally::default(); vcpus], is_told: false }
    }

    pub(super) fn change(&mut self, change: &VcpuChange) {
        let SchedState::Running(cpu) = change.to else { return };
        let vcpu = &mut self.vcpus[change.vcpu];
        if let Some(last) = vcpu.last.filter(|last| *last != cpu) {
            vcpu.moves.count(self.topology.as_ref(), last, cpu);
        }
        vcpu.last = Some(cpu);
    }

    /// sched_migrate_task of any thread.
    pub(super) fn note_migration(&mut self, vcpu: Option<usize>) {
        self.is_told = true;
        if let Some(vcpu) = vcpu {
            self.vcpus[vcpu].told += 1;
        }
    }

    /// What the kernel counted, else moves between runs; and the moves by distance.
    pub(super) fn of(&self, vcpu: usize) -> (u64, Moves) {
        let vcpu = &self.vcpus[vcpu];
        let count = if self.is_told { vcpu.told } else { vcpu.moves.total() };
        (count, vcpu.moves)
    }
}
