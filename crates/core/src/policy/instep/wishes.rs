//! Turns the chosen spots and cores into wishes with reasons, per VM.

use super::super::wish::{Homeward, Wish, elsewhere, emulators_back};
use super::Choice;
use super::cores::{free_room, undercommitted};
use super::host::{Host, Spots};
use super::unit::Unit;
use crate::conflict::ConflictKind;
use crate::idset::{CpuSet, NodeSet};
use crate::reason::{Bar, Reason};
use crate::snapshot::{Vcpu, Vm};
use crate::units::{Bytes, NodeId};
use std::collections::BTreeMap;

/// Remote memory below this is not worth a move: a kernel's and monitor's shared pages.
const REMOTE_BYTES: Bytes = Bytes::from_mib(16);
/// Nor is less than this part of the memory of the VM or the guest's node, in percent.
const REMOTE_PERCENT: u64 = 5;

/// What was chosen for all units of the host.
pub(super) struct Chosen<'a> {
    pub(super) host: &'a Host<'a>,
    pub(super) spots: &'a Spots,
    pub(super) units: &'a [Unit],
    pub(super) choice: &'a Choice,
}

/// The wishes for every VM. `refused` says why a VM has no units, `mend` which conflict of a VM
/// is mended.
pub(super) fn wishes(
    chosen: &Chosen,
    refused: Vec<Option<Reason>>,
    mend: &[Option<ConflictKind>],
) -> Vec<Wish> {
    let mut rest = 0;
    let mut room = chosen.host.free_memory();
    let mut wishes = Vec::with_capacity(refused.len());
    for (index, why) in refused.into_iter().enumerate() {
        let vm = &chosen.host.snapshot.vms[index];
        if let Some(why) = why {
            wishes.push(Wish::give_back(vm, &chosen.host.online, why));
            continue;
        }
        let count = chosen.units[rest..].iter().take_while(|unit| unit.vm == index).count();
        let its = Placed { chosen, vm, range: rest..rest + count, mend: mend[index].as_ref() };
        rest += count;
        let mut wish = its.wish();
        if wish.selected {
            wish.memory =
                its.range.clone().filter_map(|index| its.homeward(index, &mut room)).collect();
        }
        wishes.push(wish);
    }
    wishes
}

/// One VM, its units, and the conflict that is mended.
struct Placed<'a> {
    chosen: &'a Chosen<'a>,
    vm: &'a Vm,
    range: std::ops::Range<usize>,
    mend: Option<&'a ConflictKind>,
}

impl Placed<'_> {
    fn is_wide(&self) -> bool {
        let Chosen { choice, units, .. } = self.chosen;
        self.range.clone().all(|index| choice.plan[index] == units[index].wide)
    }

    /// Whether some of it would be elsewhere if it were not in force where it is.
    fn is_held(&self) -> bool {
        let Chosen { host, spots, units, choice } = self.chosen;
        let held = |index: usize| {
            let spot = choice.plan[index];
            // The units may be those of a host on which other wishes are in force already.
            let stays = spots.node_set(host, spot).is_subset(&self.vm.placed);
            stays && units[index].current == Some(spot) && choice.wanted[index] != spot
        };
        self.range.clone().any(held)
    }

    fn is_apart(&self) -> bool {
        self.range.clone().all(|index| self.chosen.choice.apart.vcpus[index].is_some())
    }

    fn wish(&self) -> Wish {
        let Chosen { host, spots, units, choice } = self.chosen;
        let Choice { plan, apart, .. } = choice;
        let mut home = NodeSet::new();
        let mut spot = CpuSet::new();
        let mut vcpus = vec![CpuSet::new(); self.vm.vcpus.len()];
        for index in self.range.clone() {
            let unit = &units[index];
            home = home.or(&spots.node_set(host, plan[index]));
            spot = spot.or(spots.cpus(plan[index]));
            for (k, vcpu) in unit.vcpus.iter().enumerate() {
                vcpus[*vcpu] = match &apart.vcpus[index] {
                    Some(cores) => cores[k].clone(),
                    None => unit.cpus(spots, k, plan[index]),
                };
            }
        }
        if host.places.len() == 1 && !self.is_apart() && self.mend.is_none() {
            return Wish::keep_within_initial(
                self.vm,
                &host.online,
                false,
                NodeSet::new(),
                self.not_apart(),
            );
        }
        let why = self.why(&home);
        let emulators = self.emulators(&spot, &why);
        Wish { selected: true, home, why, vcpus, emulators, memory: Vec::new() }
    }

    fn not_apart(&self) -> Reason {
        let (host, other) = (self.chosen.host, self.chosen.choice.apart.before.other);
        let (vcpus, cores) = (host.snapshot.vcpu_count(), host.cores());
        if undercommitted(host, other) {
            return Reason::NoCoreEach { vcpus: self.vm.vcpus.len(), cores };
        }
        Reason::Overcommitted { vcpus, cores, other }
    }

    fn why(&self, home: &NodeSet) -> Reason {
        if let Some(conflict) = self.mend {
            return Reason::Mends { nodes: home.clone(), conflict: conflict.clone() };
        }
        let cores = self.is_apart().then(|| self.chosen.host.cores());
        let (there, of) = self.at_home();
        if self.is_wide() && home.len() > 1 {
            let nodes = home.clone();
            return if of == Bytes(0) {
                Reason::MemoryUnknown { nodes, cores }
            } else if self.is_held() {
                Reason::GainsTooLittle { nodes, cores }
            } else {
                Reason::Wide { nodes, vcpus: self.vm.vcpus.len(), cores }
            };
        }
        if home.len() > 1 {
            let (vcpus, nodes) = (self.vm.vcpus.len(), home.clone());
            return Reason::Spans { nodes, vcpus, guest_nodes: self.range.len(), there, of };
        }
        let Some(node) = home.first() else { return self.not_apart() };
        match favourite(self.vm).filter(|(favoured, _)| *favoured != node) {
            Some((favoured, most)) if most > self.vm.memory_on(node) => {
                let bar = self.bar(favoured);
                Reason::Elsewhere { node, favoured, there: most, of, bar, cores }
            }
            _ => Reason::Home { node, there, of, kept: self.vm.placed == *home, cores },
        }
    }

    /// What keeps it from the node that most of its memory is on.
    fn bar(&self, favoured: NodeId) -> Bar {
        let host = self.chosen.host;
        let may = |vcpu: &Vcpu| vcpu.initial.and(&self.vm.cpuset).and(&host.online);
        let node = host.snapshot.topology.node(favoured);
        if !node.is_some_and(|node| self.vm.vcpus.iter().all(|v| may(v).intersects(&node.cpus))) {
            Bar::NotAllowed
        } else if self.is_held() {
            Bar::GainsTooLittle
        } else {
            Bar::Others
        }
    }

    /// The memory of its units that lies on the nodes of each, and all of it.
    fn at_home(&self) -> (Bytes, Bytes) {
        let Chosen { host, spots, units, choice } = self.chosen;
        let (mut there, mut of) = (0u64, 0u64);
        for index in self.range.clone() {
            let home = spots.node_set(host, choice.plan[index]);
            // Parts without a footprint are those of a VM of whose memory nothing is known.
            for (node, bytes) in units[index].memory(self.vm) {
                of = of.saturating_add(bytes.0);
                there = there.saturating_add(if home.contains(*node) { bytes.0 } else { 0 });
            }
        }
        (Bytes(there), Bytes(of))
    }

    /// The memory of a unit that is to move where the unit is.
    fn homeward(&self, index: usize, room: &mut [(NodeId, u64)]) -> Option<Homeward> {
        let Chosen { host, spots, units, choice } = self.chosen;
        let (unit, spot) = (&units[index], choice.plan[index]);
        if spots.places(spot).len() == host.places.len() {
            // Left open to every node, it has no home.
            return None;
        }
        let to = spots.node_set(host, spot);
        let node = unit.guest_node.map(|position| &self.vm.guest_nodes[position]);
        let guest_node = node.map(|node| node.id);
        let memory = node.map_or(&self.vm.memory, |node| &node.resident);
        if !unit.memory_may_move(self.vm, &to) {
            return None;
        }
        let (remote, why) = bring_home(memory, &to, room)?;
        Some(Homeward { guest_node, to, remote, why })
    }

    /// Beside the vCPUs when there is room, else with them, within their own limits.
    fn emulators(&self, spot: &CpuSet, why: &Reason) -> Vec<(CpuSet, Reason)> {
        let online = &self.chosen.host.online;
        let mut wishes = emulators_back(self.vm, online, why);
        let beside = self
            .is_apart()
            .then(|| free_room(self.chosen.host, spot, &self.chosen.choice.apart))
            .flatten();
        if beside.is_none() && self.is_wide() {
            return wishes;
        }
        for (thread, wish) in self.vm.emulators.iter().zip(&mut wishes) {
            let may = thread.initial.and(&self.vm.cpuset).and(online);
            let apart = beside.as_ref().map(|free| may.and(free)).unwrap_or_default();
            let near = may.and(spot);
            if !apart.is_empty() {
                *wish = (apart.clone(), Reason::EmulatorsBeside { cpus: apart });
            } else if !near.is_empty() {
                *wish = (near, why.clone());
            }
        }
        wishes
    }
}

/// The node with most of a VM's memory, the lowest of equals.
fn favourite(vm: &Vm) -> Option<(NodeId, Bytes)> {
    let most = vm.memory.values().copied().max()?;
    let (node, _) = vm.memory.iter().find(|(_, bytes)| **bytes == most)?;
    Some((*node, most))
}

/// How much memory to bring home: enough of it to matter, and with room there.
fn bring_home(
    memory: &BTreeMap<NodeId, Bytes>,
    home: &NodeSet,
    room: &mut [(NodeId, u64)],
) -> Option<(Bytes, Reason)> {
    let remote = elsewhere(memory, home);
    let of = Bytes(memory.values().map(|bytes| bytes.0).fold(0, u64::saturating_add));
    if remote <= REMOTE_BYTES || remote.0 / REMOTE_PERCENT <= of.0 / 100 {
        return None;
    }
    let free: u64 = room.iter().filter(|(id, _)| home.contains(*id)).map(|(_, free)| *free).sum();
    if free < remote.0 {
        return None;
    }
    let mut rest = remote.0;
    for (_, free) in room.iter_mut().filter(|(id, _)| home.contains(*id)) {
        let taken = rest.min(*free);
        *free -= taken;
        rest -= taken;
    }
    Some((remote, Reason::MemoryElsewhere { remote, of }))
}
