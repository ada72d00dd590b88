//! vCPUs of which events say nothing because they run on: whoever has a CPU for himself is not switched
//! for seconds, and what it did before would be unknown. This thread goes to such a CPU once, for
//! some microseconds, so that a switch tells who runs there. It goes nowhere else, never behind a real-time
//! thread, behind which it might wait for ever, and comes back to where it may run.

use instep_core::units::{CpuId, Tid};
use instep_host::Root;
use instep_host::discover::proc_text;
use instep_trace::event::{Event, Fact};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeSet;

/// vCPUs that no switch has told of.
#[derive(Debug)]
pub(crate) struct Silent(BTreeSet<Tid>);

impl Silent {
    pub(crate) fn new(tids: &[u32]) -> Self {
        Self(tids.iter().copied().map(Tid).collect())
    }

    /// Hears an event.
    pub(crate) fn hear(&mut self, event: &Event) {
        if self.0.is_empty() {
            return;
        }
        if let Fact::Switch { prev, next, .. } = event.fact {
            self.0.remove(&prev);
            self.0.remove(&next);
        }
    }

    /// Goes to the CPUs on which those who are left run; once.
    pub(crate) fn visit(&mut self, root: &Root) {
        let silent = std::mem::take(&mut self.0);
        let cpus: BTreeSet<CpuId> = silent.iter().filter_map(|tid| runs_on(root, *tid)).collect();
        let Ok(before) = sched_getaffinity(None) else { return };
        for cpu in cpus {
            // A CPU that this process may not use stays untold.
            let _ = go_to(cpu);
        }
        let _ = sched_setaffinity(None, &before);
    }
}

/// Where a thread runs that is no real-time thread.
fn runs_on(root: &Root, tid: Tid) -> Option<CpuId> {
    let stat = proc_text::stat(&std::fs::read(root.join(format!("proc/{}/stat", tid.0))).ok()?)?;
    stat.cpu.filter(|_| stat.state == b'R' && !stat.is_real_time)
}

fn go_to(cpu: CpuId) -> rustix::io::Result<()> {
    let mut one = CpuSet::new();
    if (cpu.0 as usize) < CpuSet::MAX_CPU {
        one.set(cpu.0 as usize);
    }
    sched_setaffinity(None, &one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::Nanos;
    use instep_trace::event::Left;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn whoever_was_switched_is_not_visited_and_who_runs_on_is() {
        let mut silent = Silent::new(&[7, 8, 9]);
        let fact = Fact::Switch { prev: Tid(7), next: Tid(8), left: Left::Runnable };
        silent.hear(&Event { time: Nanos(1), cpu: CpuId(0), fact });
        assert_eq!(silent.0, BTreeSet::from([Tid(9)]));
    }

    #[test]
    fn it_comes_back_and_a_thread_that_runs_is_found_where_it_runs() {
        let (done, before) = (AtomicBool::new(false), sched_getaffinity(None).unwrap());
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let done = &done;
            scope.spawn(move || {
                tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let tid = told.recv().unwrap();
            let cpu = runs_on(&Root::live(), Tid(tid)).unwrap();
            assert!(before.is_set(cpu.0 as usize));
            Silent::new(&[tid]).visit(&Root::live());
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        assert_eq!(runs_on(&Root::live(), Tid(u32::MAX)), None);
    }
}
