//! Clock ticks of guests' kernels. A tick takes its vCPU away from the thread that runs there. All vCPUs of a VM tick at the same
//! moments (`skew_tick` is off in Linux), VMs at moments of their own. A vCPU that idles has no ticks (NO_HZ). One that has no
//! CPU when a tick is due gets it when it runs again, and no more than one.

use super::Engine;
use crate::context::TaskId;

impl Engine {
    /// The first tick of every vCPU, if guests tick on this machine.
    pub(super) fn begin_guest_ticks(&mut self) {
        let period = self.params.guest_tick.period;
        if period == 0 || self.bare {
            return;
        }
        for vm in 0..self.ctx.vms.len() {
            if self.ctx.vms[vm].is_vm() {
                let first = self.ctx.rng.below(period);
                for task in self.ctx.vms[vm].tasks() {
                    self.vcpus[task.ix()].tick_at = first;
                }
            }
        }
    }

    /// Nanoseconds of the tick that `task` missed while it had no CPU. It goes on now, from idleness or not.
    #[inline]
    pub(super) fn missed_tick(&mut self, task: TaskId, was_idle: bool) -> u64 {
        let is_due = self.vcpus[task.ix()].tick_at <= self.ctx.now;
        if is_due {
            self.skip_ticks(task);
        }
        if is_due && !was_idle { self.params.guest_tick.cost } else { 0 }
    }

    /// The tick of the vCPU on `cpu` is handled if it is due. What the CPU did is settled.
    #[inline]
    pub(super) fn tick_guest(&mut self, cpu: usize, task: TaskId) {
        if self.vcpus[task.ix()].tick_at <= self.ctx.now {
            self.skip_ticks(task);
            self.cost(cpu, self.params.guest_tick.cost);
        }
    }

    /// Ticks up to now are over.
    pub(super) fn skip_ticks(&mut self, task: TaskId) {
        let (now, period) = (self.ctx.now, self.params.guest_tick.period.max(1));
        let at = &mut self.vcpus[task.ix()].tick_at;
        if *at <= now {
            *at += ((now - *at) / period + 1) * period;
        }
    }
}
