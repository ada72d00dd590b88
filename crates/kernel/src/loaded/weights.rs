//! Weights of VMs and cgroups (`bpf/group.bpf.h`): reads what the scheduler has seen of cgroups, and writes the weights.

use super::Loaded;
use crate::skeleton::types;
use crate::stats::{GroupSeen, VmWant, Wants};
use anyhow::Context as _;
use libbpf_rs::{MapCore as _, MapFlags};
use std::mem::offset_of;

/// Of a VM until it is known what it is entitled to: a CPU, in thousandths.
pub(super) const UNKNOWN: u32 = 1000;

impl Loaded {
    /// What threads want now.
    #[must_use]
    pub fn wants(&self) -> Wants {
        let Some(data) = self.skel.maps.bss_data.as_ref() else { return Wants::default() };
        let map = &self.skel.maps.groups;
        let seen = |key: Vec<u8>| {
            let value = map.lookup(&key, MapFlags::ANY).ok()??;
            let word =
                |at: usize| Some(u64::from_ne_bytes(value.get(at..at + 8)?.try_into().ok()?));
            Some(GroupSeen {
                id: u64::from_ne_bytes(key.try_into().ok()?),
                parent: word(offset_of!(types::group, parent))?,
                shares: word(offset_of!(types::group, shares))?,
                most: word(offset_of!(types::group, most))?,
                want_ns: word(offset_of!(types::group, want_ns))?,
            })
        };
        let want = |placed: &crate::Placed| {
            let vm = &data.instep.vms[placed.vm as usize];
            VmWant { begun: vm.generation, wanted_ns: vm.account.wanted_ns }
        };
        Wants {
            cpus: data.instep.online,
            groups: map.keys().filter_map(seen).collect(),
            vms: self.table.vms.iter().map(want).collect(),
        }
    }

    /// Tells it what each thread of these cgroups weighs, what VMs weigh in the order of the table, and what threads weigh
    /// on average, at least 1 each: thousandths of a CPU.
    ///
    /// # Errors
    /// The kernel does not take an entry.
    pub fn set_weights(
        &mut self,
        threads: &[(u64, u32)],
        vms: &[u32],
        mean: u32,
    ) -> anyhow::Result<()> {
        let map = &self.skel.maps.group_weights;
        for (id, weight) in threads {
            if self.weights.get(id) == Some(weight) {
                continue;
            }
            map.update(&id.to_ne_bytes(), &weight.max(&1).to_ne_bytes(), MapFlags::ANY)
                .with_context(|| format!("cannot enter the weight of cgroup {id}"))?;
        }
        self.weights = threads.iter().copied().collect();
        let data = self.skel.maps.bss_data.as_mut().context("the object has no data")?;
        for (placed, weight) in self.table.vms.iter().zip(vms) {
            data.instep.vm_set[placed.vm as usize].weight = (*weight).max(1);
        }
        data.instep.set.thread_weight = mean.max(1);
        Ok(())
    }

    /// VMs weigh what their own settings or cgroups say, and the host's threads together what was set.
    pub(super) fn weigh_alone(&mut self) {
        let Some(data) = self.skel.maps.bss_data.as_mut() else { return };
        if std::mem::replace(&mut data.instep.set.thread_weight, 0) == 0 {
            return;
        }
        for placed in &self.table.vms {
            data.instep.vm_set[placed.vm as usize].weight = placed.entry.weight.clamp(1, 10_000);
        }
    }
}
