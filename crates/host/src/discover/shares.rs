//! What each VM weighs against all others, by `cpu.weight` at every level of the tree of cgroups.
//!
//! A slice divides its CPU time among the VMs in it, so ten VMs in one slice have together what a single VM has in
//! another of the same weight. All VMs are taken to want CPUs, whatever they use now: this is what each can count on.

use super::facts::VmFacts;
use instep_core::entitled::{EntitledVm, Group, entitled};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A cgroup and its weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupWeight {
    /// Its directory.
    pub dir: PathBuf,
    /// `cpu.weight`, or version 1's shares scaled to it.
    pub weight: u32,
}

/// The least that a VM weighs: then rounding to whole numbers changes no weight by more than 1 %.
const LEAST: f64 = 50.0;

/// What each VM weighs, in their order, scaled so that the sum is that of the VMs' own weights: where all lie in one
/// slice, each weighs what its own cgroup does. Where one would weigh less than [`LEAST`], all weigh more.
pub fn shares(vms: &[VmFacts]) -> Vec<u32> {
    let mut ids: BTreeMap<&Path, u64> = BTreeMap::new();
    for group in vms.iter().flat_map(|vm| &vm.groups) {
        let next = ids.len() as u64 + 1;
        ids.entry(&group.dir).or_insert(next);
    }
    let id = |group: Option<&GroupWeight>| group.map_or(0, |group| ids[group.dir.as_path()]);
    let mut groups: BTreeMap<u64, Group> = BTreeMap::new();
    for vm in vms {
        for (at, own) in vm.groups.iter().enumerate() {
            let (parent, weight) = (id(vm.groups.get(at + 1)), f64::from(own.weight));
            let group =
                Group { id: id(Some(own)), parent, weight, wants: 0.0, most: f64::INFINITY };
            groups.insert(group.id, group);
        }
    }
    let groups: Vec<Group> = groups.into_values().collect();
    let all: f64 = vms.iter().map(|vm| f64::from(vm.weight)).sum();
    // A thread in the root counts like a cgroup of weight 100 there, and so does one of two VMs in one cgroup.
    let leaf = |vm: &VmFacts| EntitledVm {
        group: id(vm.groups.first()),
        weight: 100.0,
        wants: all,
        most: all,
    };
    let leaves: Vec<EntitledVm> = vms.iter().map(leaf).collect();
    let has = entitled(all, &groups, &leaves).vms;
    let least = has.iter().copied().fold(LEAST, f64::min);
    let scale = (LEAST / least).min(f64::from(u32::MAX) / all);
    has.into_iter().map(|share| (share * scale).round().max(1.0) as u32).collect()
}
