//! Which CPUs and which whole cores are idle (kernel/sched/ext_idle.c, Linux 6.15 to 7.2): set when a
//! CPU finds nothing to run, cleared when it runs something or is claimed for a waking task.
//!
//! A claimed CPU that then gets nothing is idle again when it next looks. Searches go round, each
//! CPU's from where its last ended.

use crate::abi::{CpuMask, PICK_IDLE_CORE};
use crate::inner::Inner;

impl Inner {
    /// A CPU goes idle or begins to run (update_builtin_idle).
    pub(crate) fn set_idle(&self, cpu: usize, idle: bool) {
        if idle {
            self.idle.set(cpu);
        } else {
            self.idle.clear(cpu);
        }
        if self.smt {
            let core = &self.machine.core[cpu];
            if !idle {
                core.iter().for_each(|cpu| self.idle_cores.clear(*cpu));
            } else if core.iter().all(|cpu| self.idle.has(*cpu)) {
                core.iter().for_each(|cpu| self.idle_cores.set(*cpu));
            }
        }
    }

    /// Claims a CPU; false if it was not idle. Its core is not wholly idle any more in any case.
    pub(crate) fn claim_idle(&self, cpu: usize) -> bool {
        if self.smt {
            self.machine.core[cpu].iter().for_each(|cpu| self.idle_cores.clear(*cpu));
        }
        let idle = self.idle.has(cpu);
        self.idle.clear(cpu);
        idle
    }

    /// Claims an idle CPU of `allowed`, of a wholly idle core first (scx_pick_idle_cpu).
    pub(crate) fn pick_idle(&self, allowed: &CpuMask, flags: u64) -> Option<usize> {
        loop {
            let whole = if self.smt { self.any(&self.idle_cores, allowed) } else { None };
            if whole.is_none() && self.smt && flags & PICK_IDLE_CORE != 0 {
                return None;
            }
            let cpu = whole.or_else(|| self.any(&self.idle, allowed))?;
            if self.claim_idle(cpu) {
                return Some(cpu);
            }
        }
    }

    /// A CPU that is in both, going round (cpumask_any_and_distribute).
    pub(crate) fn any(&self, a: &CpuMask, b: &CpuMask) -> Option<usize> {
        let round = &self.round[self.here.cpu.get() as usize];
        let found = a.first_common(b, round.get() + 1).or_else(|| a.first_common(b, 0))?;
        round.set(found);
        Some(found)
    }
}
