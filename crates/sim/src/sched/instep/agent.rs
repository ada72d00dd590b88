//! What user space does for the scheduler once a second, as crates/agent (`dispatch`) does on a host: it tells what VMs and cgroups
//! weigh, and of VMs that came and went, for which it looks five times a second. What all want is not known when the scheduler
//! is loaded or a VM comes, so that it looks at weights a second time soon after.

use crate::desk::Desk;
use instep_core::entitled::{self, Group};
use instep_scx::instep::{GroupSeen, Instep as Native, Weights};
use std::collections::BTreeSet;

/// Between two looks for VMs that came and went (`LOOK` of crates/agent, `run`), nanoseconds.
pub(super) const LOOK: u64 = 200_000_000;

/// Between two looks at weights (`LOOK` of crates/agent, `dispatch`), nanoseconds.
const WEIGHT_LOOK: u64 = 1_000_000_000;

/// From a look after loading, or after VMs came or went, to the second one at weights, at least (`REST` of crates/agent,
/// `dispatch/weights.rs`), nanoseconds.
const REST: u64 = 500_000_000;

/// What it knows from the look before.
#[derive(Debug, Default)]
pub(super) struct Agent {
    /// When it last looked at weights because it was time to, or because VMs came or went.
    looked: u64,
    /// Looks of this kind since the scheduler was loaded, or VMs came or went.
    looks: u32,
    /// When it last told what all weigh.
    weighed: Option<u64>,
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
        Self { groups, vms: vec![0; told.len()], told, ..Self::default() }
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
        if has_change {
            self.looks = 0;
        }
        if self.is_time_to_weigh(desk.now) && !desk.cgroups.is_empty() {
            let weights = self.weights(native, desk, &joined);
            native.set_weights(&weights);
        }
    }

    fn is_time_to_weigh(&mut self, now: u64) -> bool {
        if self.looks == 0 || now >= self.looked + WEIGHT_LOOK {
            self.looks += 1;
            self.looked = now;
            return true;
        }
        self.looks == 1 && self.weighed.is_none_or(|at| now >= at + REST)
    }

    /// What all weigh (crates/agent, `dispatch/weights.rs`). VMs that are new have `joined` these cgroups.
    fn weights(&mut self, native: &mut Native, desk: &Desk, joined: &BTreeSet<u32>) -> Weights {
        let elapsed =
            self.weighed.replace(desk.now).map_or(0.0, |before| (desk.now - before) as f64);
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
        let vms: Vec<entitled::EntitledVm> = known
            .iter()
            .map(|vm| {
                let this = &desk.vms[*vm];
                let own = seen.iter().any(|group| group.id == this.cgroup);
                entitled::EntitledVm {
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
