//! Turns the plan and the cores into wishes, per VM, with the terms of the objective that decided.

use super::super::wish::{Homeward, Wish, elsewhere, emulators_back};
use super::cores::Given;
use super::plan::{Plan, Terms};
use super::search;
use crate::conflict::ConflictKind;
use crate::idset::{CpuSet, NodeSet};
use crate::reason::{Against, Placement, Reason, Saved, Where};
use crate::snapshot::Vm;
use crate::units::{Bytes, Milli, NodeId};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// Remote memory below this is not worth a move: a kernel's and monitor's shared pages.
const REMOTE_BYTES: Bytes = Bytes::from_mib(16);
/// Nor is less than this part of the memory of the VM or the guest's node, in percent.
const REMOTE_PERCENT: u64 = 5;

/// The wishes for every VM. `refused` says why a VM has no units, `mend` which conflict of a VM
/// is mended.
pub(super) fn wishes(
    plan: &mut Plan,
    given: &Given,
    refused: Vec<Option<Reason>>,
    mend: &[Option<ConflictKind>],
) -> Vec<Wish> {
    let (host, units) = (plan.host, plan.units);
    let mut rest = 0;
    let mut wishes = Vec::with_capacity(refused.len());
    for (index, why) in refused.into_iter().enumerate() {
        let vm = &host.snapshot.vms[index];
        if let Some(why) = why {
            wishes.push(Wish::give_back(vm, &host.online, why));
            continue;
        }
        let count = units[rest..].iter().take_while(|unit| unit.vm == index).count();
        let range = rest..rest + count;
        rest += count;
        wishes.push(Placed { plan, given, vm, range, mend: mend[index].as_ref() }.wish());
    }
    bring_home(plan, &mut wishes);
    wishes
}

/// One VM, its units, and the conflict that is mended.
struct Placed<'p, 'a> {
    plan: &'p mut Plan<'a>,
    given: &'p Given,
    vm: &'a Vm,
    range: Range<usize>,
    mend: Option<&'p ConflictKind>,
}

impl Placed<'_, '_> {
    fn has_cores(&self) -> bool {
        self.range.clone().all(|unit| self.given.vcpus[unit].is_some())
    }

    fn wish(mut self) -> Wish {
        let (host, spots, units) = (self.plan.host, self.plan.spots, self.plan.units);
        if host.cells.len() == 1 && !self.has_cores() && self.mend.is_none() {
            let why = self.no_cores();
            return Wish::keep_within_initial(self.vm, &host.online, false, NodeSet::new(), why);
        }
        let (mut home, mut cpus) = (NodeSet::new(), CpuSet::new());
        let mut vcpus = vec![CpuSet::new(); self.vm.vcpus.len()];
        let mut is_wide = true;
        for unit in self.range.clone() {
            let spot = self.plan.state.at[unit].unwrap_or(units[unit].wide);
            is_wide &= spot == units[unit].wide;
            home = home.or(&spots.node_set(host, spot));
            cpus = cpus.or(&spots.areas[spot].cpus);
            for (k, vcpu) in units[unit].vcpus.iter().enumerate() {
                vcpus[*vcpu] = match &self.given.vcpus[unit] {
                    Some(cores) => cores[k].clone(),
                    None => units[unit].cpus(spots, k, spot),
                };
            }
        }
        let why = match self.mend {
            Some(conflict) => Reason::Mends { nodes: home.clone(), conflict: conflict.clone() },
            None => self.why(&home, &cpus),
        };
        // Emulator and I/O threads share the home of their VM.
        let mut emulators = emulators_back(self.vm, &host.online, &why);
        for (thread, wish) in self.vm.emulators.iter().zip(&mut emulators).filter(|_| !is_wide) {
            let near = thread.initial.and(&self.vm.cpuset).and(&cpus);
            if !near.is_empty() {
                *wish = (near, why.clone());
            }
        }
        Wish { selected: true, home, why, vcpus, emulators, memory: Vec::new() }
    }

    /// Why no vCPU has a core of its own on a host where there is nothing else to decide.
    fn no_cores(&self) -> Reason {
        let host = self.plan.host;
        let (vcpus, cores) = (self.vm.vcpus.len(), self.plan.cores_of(0) as u64);
        if self.range.clone().all(|unit| Given::rests(&self.plan.units[unit])) {
            let demand = self.vm.demand(host.snapshot.window);
            return Reason::Rests { vcpus, demand };
        }
        let own: i64 = self.range.clone().map(|unit| self.plan.units[unit].load.sum).sum();
        if (self.plan.demand_on(0) - own + 999) / 1000 > cores as i64 - vcpus as i64 {
            let (vcpus, other) = (host.snapshot.vcpu_count(), host.other.div_ceil(1000));
            return Reason::Overcommitted { vcpus, cores, other };
        }
        Reason::NoCoreEach { vcpus, cores }
    }

    fn why(&mut self, home: &NodeSet, cpus: &CpuSet) -> Reason {
        let (host, spots, units) = (self.plan.host, self.plan.spots, self.plan.units);
        let (mut nodes, mut there) = (NodeSet::new(), CpuSet::new());
        let (mut saved, mut moved) = (Terms::default(), false);
        let mut differs = false;
        for unit in self.range.clone() {
            let Some(spot) = self.plan.take(unit) else { continue };
            let before = units[unit].current.filter(|before| *before != spot);
            let other = before.or_else(|| search::second_best(self.plan, unit, spot));
            if let Some(other) = other {
                let here = self.plan.terms(unit, spot);
                saved = saved.and(&self.plan.terms(unit, other), 1).and(&here, -1);
            }
            differs |= other.is_some();
            moved |= before.is_some() || units[unit].current.is_none();
            nodes = nodes.or(&spots.node_set(host, other.unwrap_or(spot)));
            there = there.or(&spots.areas[other.unwrap_or(spot)].cpus);
            self.plan.put(unit, spot);
        }
        let place = |nodes: &NodeSet, cpus: &CpuSet| {
            let all = host.snapshot.topology.cpus_of(nodes).minus(&host.snapshot.isolated);
            Where { nodes: nodes.clone(), cpus: (*cpus != all).then(|| cpus.clone()) }
        };
        let against =
            differs.then(|| Against { place: place(&nodes, &there), saved: shown(&saved) });
        let (vcpus, kept) = (self.vm.vcpus.len(), !moved);
        let placement = Placement { place: place(home, cpus), vcpus, kept, against };
        Reason::Placed { placement: placement.into(), cores: self.has_cores() }
    }
}

fn shown(terms: &Terms) -> Saved {
    Saved {
        remote: terms.remote,
        moving: terms.moving,
        cores: terms.on_cells.cores,
        waiting: terms.on_cells.waiting,
        cache: terms.on_cells.cache,
        spread: terms.spread,
    }
}

/// Adds the memory that is to move where its unit is: what gains most for each byte first, as long as
/// there is room.
fn bring_home(plan: &Plan, wishes: &mut [Wish]) {
    let (host, units) = (plan.host, plan.units);
    let total = |unit: usize| -> u64 {
        let memory = units[unit].memory(&host.snapshot.vms[units[unit].vm]);
        memory.values().map(|bytes| bytes.0).fold(0, u64::saturating_add)
    };
    // All memory of a unit is taken to be used alike.
    let gain = |unit: usize| {
        units[unit].load.weighted.unsigned_abs().saturating_mul(1024) / ((total(unit) >> 20) + 1)
    };
    let mut order: Vec<(Reverse<u64>, usize)> =
        (0..units.len()).map(|unit| (Reverse(gain(unit)), unit)).collect();
    order.sort_unstable();
    let mut room = host.free_memory();
    for (Reverse(gain), unit) in order {
        let wish = &mut wishes[units[unit].vm];
        if wish.selected
            && let Some(homeward) = homeward(plan, unit, gain, &mut room)
        {
            wish.memory.push(homeward);
        }
    }
}

/// The memory of a unit that is to move where the unit is: enough of it to matter, with room there.
fn homeward(plan: &Plan, unit: usize, gain: u64, room: &mut [(NodeId, u64)]) -> Option<Homeward> {
    let (host, own) = (plan.host, &plan.units[unit]);
    let vm = &host.snapshot.vms[own.vm];
    if plan.area(unit).places.len() == host.places.len() {
        // Left open to every node, it has no home.
        return None;
    }
    let to = plan.spots.node_set(host, plan.state.at[unit]?);
    let node = own.guest_node.map(|position| &vm.guest_nodes[position]);
    let memory: BTreeMap<NodeId, Bytes> = node
        .map_or(&vm.memory, |node| &node.resident)
        .iter()
        .filter(|(node, _)| host.is_movable(**node))
        .map(|(node, bytes)| (*node, *bytes))
        .collect();
    let remote = elsewhere(&memory, &to);
    let of = Bytes(memory.values().map(|bytes| bytes.0).fold(0, u64::saturating_add));
    let little = remote <= REMOTE_BYTES || remote.0 / REMOTE_PERCENT <= of.0 / 100;
    let free: u64 = room.iter().filter(|(id, _)| to.contains(*id)).map(|(_, free)| *free).sum();
    if little || free < remote.0 || !own.memory_may_move(vm, &to) {
        return None;
    }
    let mut rest = remote.0;
    for (_, free) in room.iter_mut().filter(|(id, _)| to.contains(*id)) {
        let taken = rest.min(*free);
        *free -= taken;
        rest -= taken;
    }
    let (guest_node, why) = (node.map(|node| node.id), Reason::MemoryElsewhere { remote, of });
    let gain = Some(Milli(gain));
    Some(Homeward { guest_node, to, remote, why, gain })
}
