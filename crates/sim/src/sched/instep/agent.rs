//! What user space does for the scheduler once a second, as crates/agent (`dispatch`) does on a host: it tells what VMs and cgroups
//! weigh, and of VMs that came and went, for which it looks five times a second.

use crate::desk::Desk;
use instep_core::entitled::{self, Group};
use instep_scx::instep::{GroupSeen, Instep as Native, Weights};
use std::collections::BTreeSet;

/// Between two looks for VMs that came and went (`LOOK` of crates/agent, `run`), nanoseconds.
pub(super) const LOOK: u64 = 200_000_000;

/// Between two looks at weights (`LOOK` of crates/agent, `dispatch`), nanoseconds.
const WEIGHT_LOOK: u64 = 1_000_000_000;

/// What it knows from the look before.
#[derive(Debug, Default)]
pub(super) struct Agent {
    at: u64,
    /// Of each cgroup by its number: runnable time summed over threads of the host.
    groups: Vec<u64>,
    /// Of each VM: the same over its threads, ...
    vms: Vec<u64>,
    /// ... and whether the scheduler was told of it.
    told: Vec<bool>,
}

impl Agent {
    /// Of a host with these VMs, of which those that are there were told of.
    pub(super) fn new(desk: &Desk) -> Self {
        let vms = desk.vms.iter().filter(|vm| vm.is_vm());
        let told: Vec<bool> = vms.map(|vm| vm.is_there).collect();
        let groups = vec![0; desk.cgroups.len() + 1];
        Self { at: 0, groups, vms: vec![0; told.len()], told }
    }

    /// `there` says of each thread whether it exists: a VM is found when all its vCPUs do.
    pub(super) fn update_weights(&mut self, native: &mut Native, desk: &Desk, there: &[bool]) {
        let (mut has_change, mut joined) = (false, BTreeSet::new());
        for (vm, told) in self.told.iter_mut().enumerate() {
            let this = &desk.vms[vm];
            let is_there = this.is_there && (*told || this.tasks().all(|task| there[task.ix()]));
            if is_there == *told {
                continue;
            }
            *told = is_there;
            has_change = true;
            if is_there {
                native.begin_vm(vm);
                self.vms[vm] = 0;
                joined.insert(this.cgroup);
            } else {
                native.end_vm(vm);
            }
        }
        if !has_change && desk.now < self.at + WEIGHT_LOOK {
            return;
        }
        if !desk.cgroups.is_empty() {
            let weights = self.weights(native, desk, &joined);
            native.set_weights(&weights);
        }
        self.at = desk.now;
    }

    /// What all weigh (crates/agent, `dispatch/weights.rs`). VMs that are new have `joined` these cgroups.
    fn weights(&mut self, native: &mut Native, desk: &Desk, joined: &BTreeSet<u32>) -> Weights {
        let elapsed = (desk.now - self.at) as f64;
        let wants = |before: &mut u64, now: u64| {
            let new = now.saturating_sub(std::mem::replace(before, now));
            if elapsed > 0.0 { new as f64 / elapsed } else { 0.0 }
        };
        let numbers = 1..=desk.cgroups.len() as u32;
        let seen: Vec<GroupSeen> = numbers.filter_map(|id| native.group_seen(id)).collect();
        // What lies in no known cgroup lies in the root.
        let top = seen.iter().filter(|group| group.parent == 0).map(|group| group.id).min();
        // What threads of a VM wanted before it was known was charged to its cgroup, where they count no more.
        let mut group_wants = |seen: &GroupSeen| {
            let wants = wants(&mut self.groups[seen.id as usize], seen.want_ns);
            if joined.contains(&seen.id) { 0.0 } else { wants }
        };
        let groups: Vec<Group> = seen
            .iter()
            .map(|seen| Group {
                id: seen.id.into(),
                parent: seen.parent,
                weight: seen.shares as f64 * 100.0 / instep_scx::instep::Cgroup::SHARES as f64,
                wants: group_wants(seen),
                most: Group::limit(seen.most),
            })
            .collect();
        let known: Vec<usize> = (0..self.told.len()).filter(|vm| self.told[*vm]).collect();
        let vms: Vec<entitled::Vm> = known
            .iter()
            .map(|vm| {
                let this = &desk.vms[*vm];
                let own = seen.iter().any(|group| group.id == this.cgroup);
                entitled::Vm {
                    group: if own { this.cgroup } else { top.unwrap_or(0) }.into(),
                    weight: 100.0,
                    wants: wants(&mut self.vms[*vm], native.vm_wanted(*vm)),
                    most: f64::from(this.count),
                }
            })
            .collect();
        let all = entitled::weights(desk.host.cpus() as f64, &groups, &vms);
        Weights {
            threads: seen.iter().map(|group| group.id).zip(all.threads).collect(),
            vms: known.into_iter().zip(all.vms).collect(),
            mean: all.mean,
        }
    }
}
