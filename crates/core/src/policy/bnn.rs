//! `bnn`: Best NUMA Node as published (systems.md 4, parts i and ii, to the letter).
//!
//! Selects the VMs that make up the first four fifths of the load and gives each one node by its
//! memory, as long as vCPU numbers stay even. It counts threads, not cores, keeps no hysteresis
//! and treats a VM larger than a node like any other; `instep` exists because of that.

use super::fixed::on_node;
use super::wish::{Homeward, Wish, elsewhere, memory_may_move};
use crate::conflict::ConflictKind;
use crate::reason::Reason;
use crate::snapshot::{Snapshot, Vm};
use crate::topology::Node;
use crate::units::{Bytes, Milli};
use std::cmp::Reverse;

/// Decides for every VM, in the snapshot's order, which is ascending by id.
pub(crate) fn decide(snapshot: &Snapshot, mend: &[Option<ConflictKind>]) -> Vec<Wish> {
    let online = snapshot.topology.all_cpus();
    let mut room = Room::new(snapshot);
    let (chosen, total) = select(snapshot);
    let mut wishes: Vec<Wish> = snapshot
        .vms
        .iter()
        .map(|vm| {
            let load = vm.busy().milli_of(snapshot.window);
            Wish::give_back(vm, &online, Reason::LastFifth { load, total })
        })
        .collect();
    for index in chosen {
        let vm = &snapshot.vms[index];
        let Some((node, why)) = room.take_best(vm) else { continue };
        let mut wish = on_node(vm, node, &online, mend[index].is_some(), why);
        let remote = elsewhere(&vm.memory, &wish.home);
        let moved = wish.selected && vm.placed != wish.home;
        if moved && remote > Bytes(0) && memory_may_move(&[&vm.memory_bound], &wish.home) {
            let (to, why) =
                (wish.home.clone(), Reason::MemoryElsewhere { remote, of: vm.memory_total() });
            wish.memory.push(Homeward { guest_node: None, to, remote, why, gain: None });
        }
        wishes[index] = wish;
    }
    wishes
}

/// (i) The smallest set of VMs, by descending load, whose load exceeds 4/5 of all; none when
/// there is no load. Ties go to the lower id. Also the load of all, in thousandths of a CPU.
fn select(snapshot: &Snapshot) -> (Vec<usize>, Milli) {
    let loads: Vec<u128> = snapshot.vms.iter().map(|vm| u128::from(vm.busy().0)).collect();
    let total: u128 = loads.iter().sum();
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_by_key(|index| (Reverse(loads[*index]), snapshot.vms[*index].id));
    let mut sum = 0;
    let mut chosen = Vec::new();
    for index in order {
        if total == 0 || sum * 5 > total * 4 {
            break;
        }
        sum += loads[index];
        chosen.push(index);
    }
    let milli = total * 1000 / u128::from(snapshot.window.0.max(1));
    (chosen, Milli(u64::try_from(milli).unwrap_or(u64::MAX)))
}

/// (ii) The nodes that have CPUs, and the vCPUs each may still take.
struct Room<'a> {
    nodes: Vec<&'a Node>,
    /// VR of each node, multiplied by the number of nodes so that it stays whole.
    scaled: Vec<i128>,
}

impl<'a> Room<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        let nodes: Vec<&Node> =
            snapshot.topology.nodes().iter().filter(|node| !node.cpus.is_empty()).collect();
        let scaled = vec![i128::from(snapshot.vcpu_count()); nodes.len()];
        Self { nodes, scaled }
    }

    /// The best node of a VM, its vCPUs subtracted. `None` only where no node has CPUs.
    fn take_best(&mut self, vm: &Vm) -> Option<(&'a Node, Reason)> {
        let n = self.nodes.len() as i128;
        let need = vm.vcpus.len() as i128 * n;
        let footprints: Vec<u128> =
            self.nodes.iter().map(|node| u128::from(vm.memory_on(node.id).0)).collect();
        let total: u128 = footprints.iter().sum();
        let exceeds_mean = |index: &usize| footprints[*index] * n as u128 > total;
        // Among equal VR the node with more of its memory, then the lower number.
        let rank = |index: &usize| (self.scaled[*index], footprints[*index], Reverse(*index));
        let indices = 0..self.nodes.len();
        let candidate = indices.clone().filter(exceeds_mean).max_by_key(rank);
        let fits = candidate.filter(|index| self.scaled[*index] >= need);
        let index = fits.or_else(|| indices.max_by_key(rank))?;
        let node = self.nodes[index];
        let why = if fits.is_some() {
            let there = vm.memory_on(node.id);
            Reason::BestNode { node: node.id, there, of: vm.memory_total() }
        } else {
            let left = Milli((self.scaled[index].max(0) * 1000 / n) as u64);
            let favoured = candidate.map(|index| self.nodes[index].id);
            Reason::MostRoom { node: node.id, left, vcpus: vm.vcpus.len(), favoured }
        };
        self.scaled[index] -= need;
        Some((node, why))
    }
}
