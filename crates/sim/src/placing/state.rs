//! What placement has in force on a simulated host: affinities, homes and where memory lies. Shows it to policies as a
//! snapshot and carries out what they decide.

use crate::params::ONE;
use crate::rng::Rng;
use crate::scenario::build::SimulationPlan;
use instep_core::decision::{Action, Decision};
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::snapshot::{Snapshot, Vcpu, Vm};
use instep_core::topology::Topology;
use instep_core::units::{Bytes, Nanos, NodeId, Tid, VmId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Where a VM is, as a file keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The list of its home nodes; empty without a home.
    pub home: String,
    /// The list of the CPUs of each vCPU; once where all may use the same.
    pub cpus: Vec<String>,
    /// Its memory by node, MiB.
    pub mib: Vec<u64>,
}

/// See the module. Everything is by VM, memory then by node.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) allowed: Vec<Vec<CpuSet>>,
    pub(super) placed: Vec<NodeSet>,
    /// Bytes.
    pub(super) memory: Vec<Vec<u64>>,
    /// The kernel's numbers of nodes, and what memory they have, bytes.
    nodes: Vec<(NodeId, u64)>,
}

impl State {
    /// Nothing is placed; every vCPU may use all CPUs.
    pub(super) fn new(plan: &SimulationPlan, memory: &[Vec<u64>]) -> Self {
        let all = plan.topology.all_cpus();
        let vms = &plan.setup.vms[..memory.len()];
        let nodes = plan.topology.nodes().iter().map(|node| (node.id, node.memory.0));
        Self {
            allowed: vms.iter().map(|vm| vec![all.clone(); vm.affinity.len()]).collect(),
            placed: vec![NodeSet::new(); vms.len()],
            memory: memory.to_vec(),
            nodes: nodes.collect(),
        }
    }

    /// What a policy is given: `loads` are used and waited nanoseconds of each vCPU in `window`.
    pub(super) fn snapshot(
        &self,
        plan: &SimulationPlan,
        loads: &[Vec<[u64; 2]>],
        window: u64,
        other_busy: u64,
    ) -> Snapshot {
        let all = plan.topology.all_cpus();
        let mut tids = 0..;
        let mut vcpu = |(index, [busy, steal]): (usize, &[u64; 2])| Vcpu {
            busy: Nanos(*busy),
            steal: Nanos(*steal),
            ..Vcpu::new(index as u32, Tid(tids.next().unwrap_or(0)), all.clone())
        };
        let vm = |(at, loads): (usize, &Vec<[u64; 2]>)| {
            let vcpus = loads.iter().enumerate().map(&mut vcpu).collect();
            let setup = &plan.setup.vms[at];
            let weight = setup.weight;
            Vm { weight, ..Vm::new(VmId(at as u32), setup.name.clone(), vcpus, all.clone()) }
        };
        let mut snapshot = Snapshot {
            at: Nanos(window),
            window: Nanos(window),
            topology: Arc::new(plan.topology.clone()),
            isolated: CpuSet::new(),
            other_busy: Nanos(other_busy),
            vms: loads.iter().enumerate().map(vm).collect(),
            opaque: Vec::new(),
        };
        self.show(&mut snapshot);
        snapshot
    }

    /// Puts what is in force into a snapshot of the same VMs.
    pub(super) fn show(&self, snapshot: &mut Snapshot) {
        for (at, vm) in snapshot.vms.iter_mut().enumerate() {
            for (vcpu, allowed) in vm.vcpus.iter_mut().zip(&self.allowed[at]) {
                vcpu.allowed.clone_from(allowed);
            }
            let memory = self.nodes.iter().zip(&self.memory[at]);
            vm.memory = memory.map(|((node, _), bytes)| (*node, Bytes(*bytes))).collect();
            vm.placed.clone_from(&self.placed[at]);
        }
    }

    /// Where each VM is.
    pub(super) fn placements(&self) -> Vec<Placement> {
        let one = |((allowed, home), memory): ((&Vec<CpuSet>, &NodeSet), &Vec<u64>)| {
            let mut cpus: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            if allowed.windows(2).all(|pair| pair[0] == pair[1]) {
                cpus.truncate(1);
            }
            let mib = memory.iter().map(|bytes| bytes >> 20).collect();
            Placement { home: home.to_string(), cpus, mib }
        };
        self.allowed.iter().zip(&self.placed).zip(&self.memory).map(one).collect()
    }

    /// Puts each VM where it was kept to be. Fails if those were other VMs or another host.
    pub(super) fn put(&mut self, kept: &[Placement]) -> Result<(), String> {
        if kept.len() != self.allowed.len() {
            return Err(format!("{} VMs are kept of {}", kept.len(), self.allowed.len()));
        }
        for (at, Placement { home, cpus, mib }) in kept.iter().enumerate() {
            let read = |list: &String| CpuSet::parse_list(list).map_err(|error| error.to_string());
            let cpus = cpus.iter().map(read).collect::<Result<Vec<CpuSet>, String>>()?;
            let allowed = &mut self.allowed[at];
            let all = allowed.iter().fold(CpuSet::new(), |all, own| all.or(own));
            let is_known = cpus.iter().all(|cpus| !cpus.is_empty() && cpus.is_subset(&all));
            if mib.len() != self.nodes.len() || !is_known {
                return Err(format!("VM {at} is kept on another host"));
            }
            match &cpus[..] {
                [cpus] => allowed.fill(cpus.clone()),
                _ if cpus.len() == allowed.len() => *allowed = cpus,
                _ => return Err(format!("VM {at} is kept with {} vCPUs", cpus.len())),
            }
            self.placed[at] = NodeSet::parse_list(home).map_err(|error| error.to_string())?;
            self.memory[at] = mib.iter().map(|mib| mib << 20).collect();
        }
        Ok(())
    }

    /// Carries out a decision for a snapshot of it.
    pub(super) fn apply(&mut self, decision: &Decision) {
        for (at, verdict) in decision.vms.iter().enumerate() {
            self.placed[at].clone_from(&verdict.home);
        }
        for action in &decision.actions {
            let at = action.vm().0 as usize;
            match action {
                Action::SetVcpuAffinity { vcpu, cpus, .. } => {
                    self.allowed[at][*vcpu as usize].clone_from(cpus);
                }
                Action::MoveMemory { to, .. } => self.move_memory(at, to),
                // No VM of a snapshot has any.
                Action::SetEmulatorAffinity { .. } | Action::SetSoftAffinity { .. } => {}
            }
        }
    }

    /// Puts a VM on a node that has a CPU for each of its vCPUs, or half the time, if it fits there, on one of its last-level
    /// caches; on all nodes one in eight times, and where it fits on no node.
    pub(super) fn place_at_random(&mut self, topology: &Topology, vm: usize, rng: &mut Rng) {
        let node = &topology.nodes()[rng.below(topology.nodes().len() as u64) as usize];
        let first = rng.below(node.cpus.len() as u64) as usize;
        let llc = |cpu| topology.cpu(cpu).map(|cpu| cpu.llc);
        let first = node.cpus.iter().nth(first).and_then(llc);
        let cache: CpuSet = node.cpus.iter().filter(|cpu| llc(*cpu) == first).collect();
        let (narrow, wide) = (rng.below(2) == 0, rng.below(8) == 0);
        let fits = |cpus: &CpuSet| cpus.len() >= self.allowed[vm].len();
        let home = [node.id].into_iter().collect();
        let (cpus, nodes) = if narrow && fits(&cache) {
            (cache, home)
        } else if !wide && fits(&node.cpus) {
            (node.cpus.clone(), home)
        } else {
            (topology.all_cpus(), NodeSet::new())
        };
        self.allowed[vm].fill(cpus);
        if !nodes.is_empty() {
            self.move_memory(vm, &nodes);
        }
        self.placed[vm] = nodes;
    }

    /// Memory of a VM comes to these nodes, in equal parts, as far as they have room.
    pub(super) fn move_memory(&mut self, vm: usize, to: &NodeSet) {
        let is_target: Vec<bool> = self.nodes.iter().map(|(node, _)| to.contains(*node)).collect();
        let mut targets: Vec<usize> = (0..self.nodes.len()).filter(|at| is_target[*at]).collect();
        // The fullest first, so that what it has no room for goes to the others.
        targets.sort_by_key(|node| (self.room(*node), *node));
        for (turn, target) in targets.iter().enumerate() {
            let away = |node: &usize| !is_target[*node];
            let left: u64 =
                (0..self.nodes.len()).filter(away).map(|node| self.memory[vm][node]).sum();
            let mut comes = (left / (targets.len() - turn) as u64).min(self.room(*target));
            for node in (0..self.nodes.len()).filter(away) {
                let bytes = self.memory[vm][node].min(comes);
                self.memory[vm][node] -= bytes;
                self.memory[vm][*target] += bytes;
                comes -= bytes;
            }
        }
    }

    /// Bytes of a node that are free.
    pub(super) fn room(&self, node: usize) -> u64 {
        let used: u64 = self.memory.iter().map(|memory| memory[node]).sum();
        self.nodes[node].1.saturating_sub(used)
    }

    /// Part of a VM's memory on each node, 1024ths that sum to one.
    pub(super) fn parts(&self, vm: usize) -> Vec<u32> {
        let memory = &self.memory[vm];
        let all: u128 = memory.iter().map(|bytes| u128::from(*bytes)).sum();
        let part = |bytes: &u64| (u128::from(*bytes) * u128::from(ONE) / all.max(1)) as u32;
        let mut parts: Vec<u32> = memory.iter().map(part).collect();
        let rest = ONE as u32 - parts.iter().sum::<u32>();
        let largest = (0..parts.len()).max_by_key(|node| (memory[*node], usize::MAX - node));
        if let Some(node) = largest.filter(|_| all > 0) {
            parts[node] += rest;
        }
        parts
    }
}
