//! Feeds the loaded scheduler the table of VMs and their threads.

use super::{Loaded, nanos, weights};
use crate::skeleton::types;
use crate::table::{Placed, ThreadId, VmEntry, VmTable};
use anyhow::Context as _;
use libbpf_rs::{MapCore as _, MapFlags};
use rustix::thread::MembarrierCommand;
use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes of `struct instep_thread`.
pub(super) const THREAD: usize = std::mem::size_of::<types::instep_thread>();

impl Loaded {
    /// Feeds it the VMs as they are now; returns warnings on those that do not fit.
    ///
    /// # Errors
    /// When the kernel does not take an entry.
    pub fn feed(&mut self, entries: Vec<VmEntry>) -> anyhow::Result<Vec<String>> {
        let (table, warnings) = self.table.renumbered(entries, self.limits);
        if table.vms == self.table.vms {
            return Ok(warnings);
        }
        let data = self.skel.maps.bss_data.as_mut().context("the object has no data")?;
        let state = &mut data.instep;
        let generation = state.set.generation.wrapping_add(1);
        for vm in &table.freed {
            state.vm_set[*vm as usize].weight = 0;
            self.found.remove(vm);
            note_change(state, *vm);
        }
        let goes_on = |placed: &Placed| {
            self.table.vms.iter().any(|old| {
                (old.vm, old.first_slot) == (placed.vm, placed.first_slot)
                    && placed.entry.is(&old.entry)
            })
        };
        let new: Vec<&Placed> = table.vms.iter().filter(|placed| !goes_on(placed)).collect();
        let mut in_use = false;
        for placed in &new {
            note_change(state, placed.vm);
            in_use |= end(state, placed.vm);
        }
        if in_use {
            wait_for_operations();
        }
        for placed in &new {
            self.found.remove(&placed.vm);
            begin(state, placed, generation);
        }
        for placed in &table.vms {
            let set = &mut state.vm_set[placed.vm as usize];
            set.period_ns = nanos(placed.entry.period);
            set.home_node = placed.entry.home.map_or(-1, |node| node.0 as i32);
            set.cosched = placed.entry.cosched.raw();
            set.first_slot = placed.first_slot;
            set.nr_vcpus = placed.entry.vcpus.len() as u32;
            set.latency = placed.entry.latency.micros();
            if state.set.thread_weight == 0 {
                set.weight = placed.entry.weight.clamp(1, 10_000);
            } else if new.iter().any(|new| new.vm == placed.vm) {
                set.weight = weights::UNKNOWN;
            }
        }
        // Entries that were ever in use stay within: threads may still be counted by one.
        let last = table.vms.iter().map(|placed| placed.vm + 1).max();
        state.nr_vms = state.nr_vms.max(last.unwrap_or(0));
        self.feed_threads(&table)?;
        if let Some(data) = self.skel.maps.bss_data.as_mut() {
            data.instep.set.generation = generation;
        }
        self.table = table;
        Ok(warnings)
    }

    fn feed_threads(&mut self, table: &VmTable) -> anyhow::Result<()> {
        let wanted: BTreeMap<u32, [u8; THREAD]> = table.vms.iter().flat_map(threads_of).collect();
        let map = &self.skel.maps.threads;
        for tid in self.threads.keys().filter(|tid| !wanted.contains_key(tid)) {
            // It may have gone by itself; nothing else can fail.
            let _ = map.delete(&tid.to_ne_bytes());
        }
        for (tid, value) in &wanted {
            if self.threads.get(tid) != Some(value) {
                map.update(&tid.to_ne_bytes(), value, MapFlags::ANY)
                    .with_context(|| format!("cannot enter thread {tid}"))?;
            }
        }
        self.threads = wanted;
        Ok(())
    }
}

/// A VM comes or goes: the planner of its domain lists the domain's VMs anew.
fn note_change(state: &mut types::host_state, vm: u32) {
    let old = &state.vms[vm as usize];
    let domain = state.domains.get_mut(old.account.domain as usize);
    if let (true, Some(domain)) = (old.joined != 0, domain) {
        domain.stale = 1;
    }
}

/// No thread is counted by this entry from the operations on that begin now; whether any may have been.
fn end(state: &mut types::host_state, vm: u32) -> bool {
    let old = &mut state.vms[vm as usize];
    let in_use = old.generation != 0;
    // SAFETY: a word of mapped memory, which the kernel reads meanwhile.
    unsafe { std::ptr::write_volatile(&raw mut old.generation, 0) };
    in_use
}

/// Waits until the scheduler's operations that run now are over. They run with preemption off, so a grace period of RCU does
/// (membarrier(2), `MEMBARRIER_CMD_GLOBAL`). Kernels with `nohz_full=` refuse; an operation takes microseconds.
fn wait_for_operations() {
    if rustix::thread::membarrier(MembarrierCommand::Global).is_err() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A VM's entry and its slots as of one that nothing is known of; it joins a domain when one of its threads wakes up.
fn begin(state: &mut types::host_state, placed: &Placed, generation: u32) {
    let fresh = &mut state.vms[placed.vm as usize];
    *fresh = Default::default();
    // The generation comes last, as with it threads are counted.
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
    // SAFETY: as above.
    unsafe { std::ptr::write_volatile(&raw mut fresh.generation, generation) };
    let first = placed.first_slot as usize;
    for slot in state.slots.iter_mut().skip(first).take(placed.entry.vcpus.len()) {
        *slot = Default::default();
    }
}

/// The entries of a VM's threads in the kernel's table.
fn threads_of(placed: &Placed) -> Vec<(u32, [u8; THREAD])> {
    let entry = &placed.entry;
    let vcpus = entry.vcpus.iter().zip(placed.first_slot..);
    let helpers = entry.helpers.iter().map(|id| (id, u32::MAX));
    let bytes =
        |(id, slot): (&ThreadId, u32)| (id.tid.0, thread_bytes(id.start_ticks, placed.vm, slot));
    vcpus.chain(helpers).map(bytes).collect()
}

/// `struct instep_thread` as the kernel reads it; a test compares the offsets with the object's.
fn thread_bytes(start_ticks: u64, vm: u32, slot: u32) -> [u8; THREAD] {
    let mut bytes = [0; THREAD];
    bytes[0..8].copy_from_slice(&start_ticks.to_ne_bytes());
    bytes[8..12].copy_from_slice(&vm.to_ne_bytes());
    bytes[12..16].copy_from_slice(&slot.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn entries_of_threads_are_laid_out_as_the_kernel_reads_them() {
        assert_eq!(offset_of!(types::instep_thread, start_ticks), 0);
        assert_eq!(offset_of!(types::instep_thread, vm), 8);
        assert_eq!(offset_of!(types::instep_thread, slot), 12);
        assert_eq!(THREAD, 16);
    }
}
