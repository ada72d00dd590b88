//! Placement above the scheduler: to core's policies the simulation is a host like any other. It shows
//! them a snapshot, carries out their actions, and moves memory at a price.
//!
//! ```text
//!   every period:  counters since the last look -> Snapshot -> policy::decide -> affinities, homes,
//!                  memory to be moved
//!   meanwhile:     a batch of pages after the other, VM by VM
//! ```
//! Pages move at [`PAGE`] each, by a thread of the host that holds up one CPU of the node that they
//! come to while it copies a batch. Which pages are hot is not simulated: all are alike.

use super::Engine;
use crate::context::TaskId;
use crate::params::ONE;
use instep_check::FactKind;
use instep_check::mask::Mask;
use instep_core::decision::{Action, Decision};
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::policy::{self, PolicyName, PolicySettings};
use instep_core::snapshot::{Snapshot, Vcpu, Vm};
use instep_core::topology::Topology;
use instep_core::units::{Bytes, Nanos, NodeId, Tid, VmId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Nanoseconds that moving a page of 4 KiB takes. Source: Goglin and Furmento (MTAAP 2009) have
/// move_pages at some 600 MB/s on Opterons.
pub(super) const PAGE: u64 = 6_800;
/// Nanoseconds of moving between two looks at what else there is to do. Assumed: published is "a
/// bounded batch" without its size (systems.md, 4); this holds up a vCPU for less than a slice.
const BATCH: u64 = 2_000_000;
/// Nanoseconds from one batch to the next: half of a CPU. Assumed.
const PACE: u64 = 4_000_000;
/// Nanoseconds after which is decided for the first time. Assumed: policies need some load to have been
/// seen; half of the usual warm-up, so that what is measured is placed.
const FIRST: u64 = 500_000_000;

/// What places VMs. See the module.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The policy.
    pub policy: PolicyName,
    /// Nanoseconds between two decisions; 60 s is published.
    pub period: u64,
    /// The host, as policies know it.
    pub topology: Arc<Topology>,
}

/// Placement under way.
#[derive(Debug)]
pub(super) struct Placer {
    placement: Placement,
    /// When was looked last.
    at: u64,
    /// CPU time of each task then, and time it had waited for a CPU.
    ran: Vec<u64>,
    waited: Vec<u64>,
    /// What each task might use at the beginning.
    initial: Vec<CpuSet>,
    /// Nodes that each VM prefers, if not all.
    preferred: Vec<Option<NodeSet>>,
    placed: Vec<NodeSet>,
    /// Bytes of each VM on each node.
    memory: Vec<Vec<u64>>,
    /// VMs whose memory comes to these nodes.
    moving: VecDeque<(usize, NodeSet)>,
    next_decision: u64,
    next_batch: u64,
}

impl Placer {
    /// Bytes that one batch moves.
    const BYTES: u64 = BATCH / PAGE * 4096;

    pub(super) fn due(&self) -> u64 {
        self.next_decision.min(self.next_batch)
    }
}

impl Engine {
    /// From now on a task may use these CPUs, at least one. What runs or waits elsewhere is moved.
    /// Called between two events.
    pub fn set_affinity(&mut self, task: TaskId, allowed: &Mask) {
        self.allow(task, allowed);
        self.settle_down();
    }

    fn allow(&mut self, task: TaskId, allowed: &Mask) {
        let this = &mut self.ctx.tasks[task.ix()];
        if this.allowed == *allowed || allowed.is_empty() {
            return;
        }
        this.allowed.copy(allowed);
        if self.ctx.facts.is_some() {
            self.ctx.note(FactKind::Allowed { task: task.0, cpus: allowed.clone() });
        }
        self.sched.affinity_changed(&mut self.ctx, task);
    }

    /// Placement begins. `bytes` are those of each VM.
    pub(super) fn begin_placing(&mut self, placement: Placement, bytes: &[u64]) {
        let ctx = &self.ctx;
        let set = |mask: &Mask| mask.iter().map(|cpu| ctx.host.ids[cpu]).collect::<CpuSet>();
        let all = ctx.host.cpus();
        let preferred = |vm: &crate::context::VmTasks| {
            let mask = &ctx.tasks.get(vm.first as usize)?.preferred;
            let node = |node: &usize| ctx.host.nodes[*node].meets(mask);
            let nodes = (0..ctx.host.nodes.len()).filter(node).map(|at| ctx.host.node_ids[at]);
            (vm.count > 0 && (mask.count() as usize) < all).then(|| nodes.collect::<NodeSet>())
        };
        let part = |(parts, bytes): (&Vec<u32>, &u64)| {
            let of = |part: &u32| (u128::from(*part) * u128::from(*bytes) / u128::from(ONE)) as u64;
            parts.iter().map(of).collect()
        };
        let first = FIRST.min(placement.period).max(1);
        self.placer = Some(Box::new(Placer {
            at: 0,
            ran: vec![0; ctx.tasks.len()],
            waited: vec![0; ctx.tasks.len()],
            initial: ctx.tasks.iter().map(|task| set(&task.allowed)).collect(),
            preferred: ctx.vms.iter().map(preferred).collect(),
            placed: vec![NodeSet::new(); ctx.vms.len()],
            memory: self.memory.iter().zip(bytes).map(part).collect(),
            moving: VecDeque::new(),
            next_decision: first,
            next_batch: u64::MAX,
            placement,
        }));
        self.ctx.timers.arm(self.place_slot(), first);
    }

    /// The timer of placement.
    pub(super) fn place(&mut self) {
        let Some(mut placer) = self.placer.take() else { return };
        let now = self.ctx.now;
        if now >= placer.next_decision {
            placer.next_decision = now.saturating_add(placer.placement.period);
            let snapshot = self.snapshot(&mut placer);
            let settings =
                PolicySettings { policy: placer.placement.policy, ..PolicySettings::default() };
            self.apply(&mut placer, &policy::decide(&snapshot, &settings));
        }
        if now >= placer.next_batch {
            self.move_batch(&mut placer);
        }
        placer.next_batch = match placer.moving.is_empty() {
            true => u64::MAX,
            false if now < placer.next_batch && placer.next_batch < u64::MAX => placer.next_batch,
            false => now + PACE,
        };
        self.ctx.timers.arm(self.place_slot(), placer.due());
        self.placer = Some(placer);
    }

    /// The host as it was since the last look.
    fn snapshot(&self, placer: &mut Placer) -> Snapshot {
        let ctx = &self.ctx;
        let window = ctx.now - std::mem::replace(&mut placer.at, ctx.now);
        let mut other_busy = 0;
        let mut vms = Vec::new();
        for (vm, this) in ctx.vms.iter().enumerate() {
            if !this.is_there {
                continue;
            }
            let mut vcpus = Vec::with_capacity(this.count as usize);
            for task in this.tasks() {
                let at = task.ix();
                let (ran, waited) = (ctx.ran(task), ctx.waited(task));
                let busy = ran - std::mem::replace(&mut placer.ran[at], ran);
                let steal = waited - std::mem::replace(&mut placer.waited[at], waited);
                let cpus = &ctx.task(task).allowed;
                vcpus.push(Vcpu {
                    index: ctx.task(task).index,
                    tid: Tid(task.0),
                    start_ticks: 0,
                    cpu: Some(ctx.host.ids[ctx.task(task).cpu]),
                    allowed: cpus.iter().map(|cpu| ctx.host.ids[cpu]).collect(),
                    initial: placer.initial[at].clone(),
                    busy: Nanos(busy),
                    steal: Nanos(steal),
                });
            }
            if !this.is_vm() {
                other_busy += vcpus.iter().map(|vcpu| vcpu.busy.0).sum::<u64>();
                continue;
            }
            let memory = placer.memory[vm].iter().zip(&ctx.host.node_ids);
            let (id, all) = (VmId(vm as u32), placer.placement.topology.all_cpus());
            vms.push(Vm {
                memory: memory.map(|(bytes, node)| (*node, Bytes(*bytes))).collect(),
                preferred: placer.preferred[vm].clone(),
                weight: this.weight,
                placed: placer.placed[vm].clone(),
                ..Vm::new(id, self.names[vm].clone(), vcpus, all)
            });
        }
        Snapshot {
            at: Nanos(ctx.now),
            window: Nanos(window.max(1)),
            topology: Arc::clone(&placer.placement.topology),
            isolated: CpuSet::new(),
            other_busy: Nanos(other_busy),
            vms,
            opaque: Vec::new(),
        }
    }

    fn apply(&mut self, placer: &mut Placer, decision: &Decision) {
        for verdict in &decision.vms {
            let vm = verdict.vm.0 as usize;
            let one = if verdict.home.len() == 1 { verdict.home.first() } else { None };
            let node = one.and_then(|node: NodeId| self.ctx.host.node_index(node.0));
            self.sched.set_home(vm, node.map(|node| node as u32));
            placer.placed[vm] = verdict.home.clone();
        }
        for action in &decision.actions {
            match action {
                Action::SetVcpuAffinity { tid, cpus, .. } => {
                    let members = cpus.iter().filter_map(|cpu| self.ctx.host.index(cpu.0));
                    let mask = Mask::of(self.ctx.host.cpus(), members);
                    self.allow(TaskId(tid.0), &mask);
                }
                Action::MoveMemory { vm, to, .. } => {
                    let vm = vm.0 as usize;
                    placer.moving.retain(|(other, _)| *other != vm);
                    placer.moving.push_back((vm, to.clone()));
                }
                // Monitors' threads are the host's here, and go where they find room.
                Action::SetEmulatorAffinity { .. } | Action::SetSoftAffinity { .. } => {}
            }
        }
    }

    /// Moves a batch of pages of the first VM in turn.
    fn move_batch(&mut self, placer: &mut Placer) {
        let Some((vm, to)) = placer.moving.pop_front() else { return };
        let nodes = &self.ctx.host.node_ids;
        let targets: Vec<usize> =
            (0..nodes.len()).filter(|node| to.contains(nodes[*node])).collect();
        let memory = &mut placer.memory[vm];
        let from = (0..memory.len())
            .filter(|node| !targets.contains(node))
            .max_by_key(|node| (memory[*node], usize::MAX - node));
        let least = targets.iter().copied().min_by_key(|node| (memory[*node], *node));
        let (Some(from), Some(target)) = (from, least) else { return };
        let bytes = memory[from].min(Placer::BYTES);
        if bytes == 0 {
            return;
        }
        memory[from] -= bytes;
        memory[target] += bytes;
        let all: u128 = memory.iter().map(|bytes| u128::from(*bytes)).sum();
        let part = |bytes: &u64| (u128::from(*bytes) * u128::from(ONE) / all.max(1)) as u32;
        let parts: Vec<u32> = memory.iter().map(part).collect();
        self.set_memory(vm, parts);
        self.ctx_work(target, bytes / 4096 * PAGE);
        placer.moving.push_back((vm, to));
    }

    /// A VM's memory lies so (1024ths by node) from now on.
    fn set_memory(&mut self, vm: usize, parts: Vec<u32>) {
        let running = |engine: &Self, cpu: usize| {
            engine.ctx.running[cpu].filter(|task| engine.ctx.task(*task).vm == vm)
        };
        for cpu in 0..self.cpus.len() {
            if let Some(task) = running(self, cpu) {
                self.account_elapsed(cpu);
                self.charge(cpu, task);
            }
        }
        self.memory[vm].clone_from(&parts);
        self.speed.set_memory(&self.ctx.host, vm, parts);
        (0..self.cpus.len()).for_each(|cpu| self.rerate(cpu));
    }

    /// The host works for so many nanoseconds on a CPU of this node: on one that idles, where that
    /// holds up nobody, else on the first.
    fn ctx_work(&mut self, node: usize, ns: u64) {
        let cpus = &self.ctx.host.nodes[node];
        if cpus.first_common(&self.ctx.idle, 0).is_some() {
            return;
        }
        let Some(cpu) = cpus.first() else { return };
        self.account_elapsed(cpu);
        self.cost(cpu, ns);
        self.arm_run(cpu);
    }
}
