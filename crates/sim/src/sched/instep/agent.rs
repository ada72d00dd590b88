//! What user space does for the scheduler once a second, as crates/agent (`dispatch`) does on a host: it tells what VMs and cgroups
//! weigh, and of VMs that came and went, for which it looks five times a second. What all want is not known when the scheduler
//! is loaded or a VM comes, so that it looks at weights a second time soon after.

use crate::context::SchedContext;
use instep_core::entitled::{DemandTracker, Group, SeenGroup, SeenVm};
use instep_scx::instep::{GroupSeen, Instep as Native, Weights};
use std::time::Duration;

/// Between two looks for VMs that came and went (`LOOK` of crates/agent, `run`), nanoseconds.
pub(super) const LOOK: u64 = 200_000_000;

/// Between two looks at weights (`LOOK` of crates/agent, `dispatch`), nanoseconds.
const WEIGHT_LOOK: u64 = 1_000_000_000;

/// What it knows from the look before.
#[derive(Debug, Default)]
pub(super) struct Agent {
    /// When it last looked at weights because it was time to, or because VMs came or went.
    looked: Option<u64>,
    /// Demand of VMs and cgroups.
    tracker: DemandTracker<usize>,
    /// For each VM whether it is in the scheduler's table.
    told: Vec<bool>,
}

impl Agent {
    /// The agent of a host. The VMs that exist at the begin are in the scheduler's table.
    pub(super) fn new(ctx: &SchedContext) -> Self {
        let vms = ctx.vms.iter().filter(|vm| vm.is_vm());
        let told: Vec<bool> = vms.map(|vm| vm.is_there).collect();
        Self { told, ..Self::default() }
    }

    /// `there` says of each thread whether it exists: a VM is found when all its vCPUs do.
    pub(super) fn update_weights(
        &mut self,
        native: &mut Native,
        ctx: &SchedContext,
        there: &[bool],
    ) {
        let mut has_change = false;
        for (vm, told) in self.told.iter_mut().enumerate() {
            let this = &ctx.vms[vm];
            let is_there = this.is_there && (*told || this.tasks().all(|task| there[task.ix()]));
            if is_there == *told {
                continue;
            }
            *told = is_there;
            has_change = true;
            if is_there {
                native.begin_vm(vm);
            } else {
                native.end_vm(vm);
            }
        }
        if self.is_time_to_weigh(has_change, ctx.now) && !ctx.cgroups.is_empty() {
            let weights = self.weights(native, ctx);
            native.set_weights(&weights);
        }
    }

    /// At once when VMs came or went, once a second, and soon after something new is there.
    fn is_time_to_weigh(&mut self, has_change: bool, now: u64) -> bool {
        if has_change || self.looked.is_none_or(|looked| now >= looked + WEIGHT_LOOK) {
            self.looked = Some(now);
            return true;
        }
        self.tracker.measures_first(Duration::from_nanos(now))
    }

    /// Weights of VMs and cgroups (crates/agent, `dispatch/weights.rs`).
    fn weights(&mut self, native: &mut Native, ctx: &SchedContext) -> Weights {
        let numbers = 1..=ctx.cgroups.len() as u32;
        let seen: Vec<GroupSeen> = numbers.filter_map(|id| native.group_seen(id)).collect();
        let group = |seen: &GroupSeen| SeenGroup {
            id: seen.id.into(),
            parent: seen.parent,
            weight: seen.shares as f64 * 100.0 / instep_scx::instep::Cgroup::SHARES as f64,
            wanted_ns: seen.want_ns,
            most: Group::limit(seen.most),
        };
        let groups: Vec<SeenGroup> = seen.iter().map(group).collect();
        let known: Vec<usize> = (0..self.told.len()).filter(|vm| self.told[*vm]).collect();
        let vm = |vm: &usize| SeenVm {
            key: *vm,
            group: ctx.vms[*vm].cgroup.into(),
            weight: 100.0,
            vcpus: ctx.vms[*vm].count,
            wanted_ns: native.vm_wanted(*vm),
        };
        let vms: Vec<SeenVm<usize>> = known.iter().map(vm).collect();
        let now = Duration::from_nanos(ctx.now);
        let all = self.tracker.update(ctx.host.cpus() as f64, &groups, &vms, now);
        Weights {
            threads: seen.iter().map(|group| group.id).zip(all.threads).collect(),
            vms: known.into_iter().zip(all.vms).collect(),
            mean: all.mean,
        }
    }
}
