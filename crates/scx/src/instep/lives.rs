//! VMs that come and go while the scheduler is loaded: their threads, and their entries in its tables as crates/kernel writes
//! them (`loaded.rs`, `feed`).

use super::cgroups::UNKNOWN;
use super::{Instep, c};

/// In an entry of the table of threads: of no VM.
const NO_VM: u32 = u32::MAX;

impl Instep {
    /// A thread is made by what runs on this CPU and wants to run (copy_process, wake_up_new_task).
    pub fn fork(&mut self, task: usize, cpu: usize, now: u64) {
        self.kernel.fork(task, None, cpu, now);
    }

    /// User space has found a VM: nothing is known of its entry.
    pub fn begin_vm(&mut self, vm: usize) {
        let weight = if self.weighs_tree { UNKNOWN } else { self.vms[vm].0.weight };
        let state = self.kernel.globals();
        self.tell_vm(vm, weight);
        // SAFETY: it is the state that this scheduler was loaded with; C checks the VM's number.
        unsafe {
            c::shim_note_change(state, vm as u32 + 1);
            c::shim_begin_vm(state, vm as u32 + 1);
            c::shim_next_generation(state);
        }
    }

    /// User space has found that a VM is gone.
    pub fn end_vm(&mut self, vm: usize) {
        let (state, threads) = (self.kernel.globals(), self.kernel.threads());
        let this = self.vms[vm].0;
        // SAFETY: as above, and `threads` has room for all tasks.
        unsafe {
            c::shim_set_vm_weight(state, vm as u32 + 1, 0);
            c::shim_note_change(state, vm as u32 + 1);
            for task in this.first..this.first + this.count {
                c::shim_set_thread(threads, self.kernel.task(task).pid.get() as u32, 0, NO_VM, 0);
            }
            c::shim_next_generation(state);
        }
    }
}
