//! Turns the plan and the cores into wishes, per VM, with the terms of the objective that decided.

use super::super::wish::{Homeward, Wish, emulators_back};
use super::cores::{BUSY, Given};
use super::plan::{Plan, Terms};
use super::search;
use crate::conflict::ConflictKind;
use crate::idset::{CpuSet, NodeSet};
use crate::reason::{Against, Placement, Reason, Saved, VmPlace};
use crate::snapshot::Vm;
use crate::units::{Bytes, Milli, NodeId};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// Remote memory below this is not worth a move: a kernel's and monitor's shared pages.
const REMOTE_BYTES: u64 = 16 << 20;
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
    let mut wishes = Vec::with_capacity(refused.len());
    for (index, why) in refused.into_iter().enumerate() {
        let vm = &host.snapshot.vms[index];
        let start = units.partition_point(|unit| unit.vm < index);
        let range = start..units.partition_point(|unit| unit.vm <= index);
        wishes.push(match why {
            Some(why) => Wish::give_back(vm, &host.online, why),
            None => wish(plan, given, vm, range, mend[index].as_ref()),
        });
    }
    bring_home(plan, &mut wishes);
    wishes
}

/// What is wished for a VM of these units.
fn wish(
    plan: &mut Plan,
    given: &Given,
    vm: &Vm,
    range: Range<usize>,
    mend: Option<&ConflictKind>,
) -> Wish {
    let (host, spots, units) = (plan.host, plan.spots, plan.units);
    let cores = range.clone().all(|unit| given[unit].is_some());
    if host.cells.len() == 1 && !cores && mend.is_none() && !host.has_memory_to_fetch(vm) {
        return Wish::give_back(vm, &host.online, no_cores(plan, vm, range));
    }
    let (mut home, mut cpus) = (NodeSet::new(), CpuSet::new());
    let mut vcpus = vec![CpuSet::new(); vm.vcpus.len()];
    let mut is_wide = true;
    for unit in range.clone() {
        let spot = plan.state.at[unit].unwrap_or(units[unit].wide);
        is_wide &= spot == units[unit].wide;
        home = home.or(&spots.homes[spots.areas[spot].nodes].nodes);
        cpus = cpus.or(&spots.areas[spot].cpus);
        let shared = units[unit].is_uniform().then(|| units[unit].cpus(spots, 0, spot));
        for (k, vcpu) in units[unit].vcpus.iter().enumerate() {
            let core = given[unit].as_ref().map(|cores| &cores[k]);
            let cpus = core.or(shared.as_ref()).cloned();
            vcpus[*vcpu] = cpus.unwrap_or_else(|| units[unit].cpus(spots, k, spot));
        }
    }
    let why = match mend {
        Some(conflict) => Reason::Mends { nodes: home.clone(), conflict: conflict.clone() },
        None => {
            Reason::Placed { placement: placement(plan, vm, range, &home, &cpus).into(), cores }
        }
    };
    // Emulator and I/O threads share the home of their VM.
    let mut emulators = emulators_back(vm, &host.online, &why);
    for (thread, wish) in vm.emulators.iter().zip(&mut emulators).filter(|_| !is_wide) {
        let near = thread.initial.and(&vm.cpuset).and(&cpus);
        if !near.is_empty() {
            wish.0 = near;
        }
    }
    Wish { selected: true, home, why, vcpus, emulators, memory: Vec::new() }
}

/// Why no vCPU has a core of its own on a host where there is nothing else to decide.
fn no_cores(plan: &Plan, vm: &Vm, mut range: Range<usize>) -> Reason {
    let (host, vcpus) = (plan.host, vm.vcpus.len());
    if range.all(|unit| plan.units[unit].mean() < BUSY) {
        return Reason::Rests { vcpus, demand: vm.demand(host.snapshot.window) };
    }
    let (vcpus, other) = (host.snapshot.vcpu_count(), host.other.div_ceil(1000));
    Reason::Overcommitted { vcpus, cores: host.cells[0].cores as u64, other }
}

/// Where a VM of these units is, and what that saves against where it was, or the next best place.
pub(super) fn placement(
    plan: &mut Plan,
    vm: &Vm,
    range: Range<usize>,
    home: &NodeSet,
    cpus: &CpuSet,
) -> Placement {
    let (host, spots, units) = (plan.host, plan.spots, plan.units);
    let (mut nodes, mut there) = (NodeSet::new(), CpuSet::new());
    let mut saved = Terms::default();
    let (mut moved, mut differs) = (false, false);
    for unit in range {
        let Some(spot) = plan.take(unit) else { continue };
        let before = units[unit].current.filter(|before| *before != spot);
        let other = before.or_else(|| search::second_best(plan, unit, spot));
        if let Some(other) = other {
            let [here, there] = [spot, other].map(|spot| plan.terms(unit, spot, 0, i64::MAX));
            (0..saved.len()).for_each(|term| saved[term] += there[term] - here[term]);
        }
        differs |= other.is_some();
        moved |= before.is_some() || units[unit].current.is_none();
        let other = &spots.areas[other.unwrap_or(spot)];
        (nodes, there) = (nodes.or(&spots.homes[other.nodes].nodes), there.or(&other.cpus));
        plan.put(unit, spot);
    }
    let place = |nodes: &NodeSet, cpus: &CpuSet| {
        let all = host.snapshot.topology.cpus_of(nodes).minus(&host.snapshot.isolated);
        VmPlace { nodes: nodes.clone(), cpus: (*cpus != all).then(|| cpus.clone()) }
    };
    let against = differs.then(|| Against { place: place(&nodes, &there), saved: Saved(saved) });
    Placement { place: place(home, cpus), vcpus: vm.vcpus.len(), kept: !moved, against }
}

/// Adds the memory that is to move where its unit is: what gains most for each byte first, as long as
/// there is room.
fn bring_home(plan: &Plan, wishes: &mut [Wish]) {
    let units = plan.units;
    // All memory of a unit is taken to be used alike.
    let gain = |unit: usize| {
        let total = units[unit].memory.values().map(|bytes| bytes.0).fold(0, u64::saturating_add);
        units[unit].weighted.unsigned_abs().saturating_mul(1024) / ((total >> 20) + 1)
    };
    let mut order: Vec<(Reverse<u64>, usize)> =
        (0..units.len()).map(|unit| (Reverse(gain(unit)), unit)).collect();
    order.sort_unstable();
    let mut room = plan.host.free.clone();
    for (Reverse(gain), unit) in order {
        let wish = &mut wishes[units[unit].vm];
        wish.memory.extend(homeward(plan, unit, gain, &mut room).filter(|_| wish.selected));
    }
}

/// The memory of a unit that is to move where the unit is: enough of it to matter, with room there.
fn homeward(
    plan: &Plan,
    unit: usize,
    gain: u64,
    room: &mut BTreeMap<NodeId, u64>,
) -> Option<Homeward> {
    let (host, own) = (plan.host, &plan.units[unit]);
    let vm = &host.snapshot.vms[own.vm];
    let home = &plan.spots.homes[plan.area(unit).nodes];
    let node = own.guest_node.map(|position| &vm.guest_nodes[position]);
    // Left open to every node, it has no home; of memory that is not resident yet nothing moves.
    if home.is_all || node.is_some_and(|node| node.resident.is_empty()) {
        return None;
    }
    let sum = |which: &dyn Fn(NodeId) -> bool| {
        let some = own.memory.iter().filter(|(node, _)| which(**node));
        some.map(|(_, bytes)| bytes.0).fold(0, u64::saturating_add)
    };
    let (remote, of) = (sum(&|node| home.is_away(node)), sum(&|node| host.is_movable(node)));
    let little = remote <= REMOTE_BYTES || remote / REMOTE_PERCENT <= of / 100;
    let free: u64 = home.nodes.iter().map(|node| room[&node]).fold(0, u64::saturating_add);
    if little || free < remote || !own.memory_may_move(vm, &home.nodes) {
        return None;
    }
    let mut rest = remote;
    for node in home.nodes.iter() {
        let taken = rest.min(room[&node]);
        room.insert(node, room[&node] - taken);
        rest -= taken;
    }
    let (to, remote, gain) = (home.nodes.clone(), Bytes(remote), Some(Milli(gain)));
    let why = Reason::MemoryElsewhere { remote, of: Bytes(of) };
    Some(Homeward { guest_node: node.map(|node| node.id), to, remote, why, gain })
}
