//! vCPUs without events because they keep running. A vCPU with a CPU of its own is not switched for seconds,
//! and what it did meanwhile would be unknown. So a thread of the recorder visits such a CPU once, for some
//! microseconds: the switch names the vCPU. It does not visit a CPU where a real-time thread runs, behind which
//! it might wait for ever, or where the vCPU only waits.

use instep_core::units::{CpuId, Nanos, Tid};
use instep_host::Root;
use instep_host::discover::proc_text;
use instep_trace::event::{Event, Fact};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::BTreeSet;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fs, io};

/// Long enough for some ticks of a CPU that is not free of them (nohz_full: such stay untold).
const LOOK: Duration = Duration::from_millis(20);

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

    /// Has a thread go to the CPUs on which those who are left run; once. Nobody waits for it.
    pub(crate) fn visit(&mut self, root: &Root) {
        let silent = std::mem::take(&mut self.0);
        if !silent.is_empty() {
            // Without such a thread they stay untold.
            let _ = visitor(root.clone(), silent);
        }
    }
}

/// The thread, which returns the CPUs that it came to: where this process may not run stays untold.
fn visitor(root: Root, silent: BTreeSet<Tid>) -> io::Result<JoinHandle<BTreeSet<CpuId>>> {
    let visit = move || {
        let cpus = running(&root, &silent);
        cpus.into_iter().filter(|cpu| go_to(*cpu).is_ok()).collect()
    };
    thread::Builder::new().name("visitor".to_owned()).spawn(visit)
}

/// The CPUs on which some of these threads run, that are no real-time threads and do not wait behind one:
/// in a look's time they had CPU time, as the kernel counts it at each tick.
fn running(root: &Root, tids: &BTreeSet<Tid>) -> BTreeSet<CpuId> {
    let read = |tid: &Tid, file: &str| fs::read(root.join(format!("proc/{}/{file}", tid.0))).ok();
    let ran = |tid: &Tid| Some(proc_text::schedstat(&read(tid, "schedstat")?)?.0);
    let before: Vec<Option<Nanos>> = tids.iter().map(ran).collect();
    thread::sleep(LOOK);
    let place = |(tid, before): (&Tid, Option<Nanos>)| {
        let stat = proc_text::stat(&read(tid, "stat")?)?;
        let runs = stat.state == b'R' && !stat.is_real_time && ran(tid)? > before?;
        stat.cpu.filter(|_| runs)
    };
    tids.iter().zip(before).filter_map(place).collect()
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
    use instep_trace::event::Left;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn only_threads_without_a_switch_are_visited() {
        let mut silent = Silent::new(&[7, 8, 9]);
        let fact = Fact::Switch { prev: Tid(7), next: Tid(8), left: Left::Runnable };
        silent.hear(&Event { time: Nanos(1), cpu: CpuId(0), fact });
        assert_eq!(silent.0, BTreeSet::from([Tid(9)]));
    }

    #[test]
    fn running_thread_is_visited_and_a_sleeping_one_is_not() {
        let done = AtomicBool::new(false);
        let visited = thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let own = || Tid(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            let (runs, sleeps) = (tell.clone(), tell);
            let (done, until) = (&done, Duration::from_millis(200));
            scope.spawn(move || {
                sleeps.send(own()).unwrap();
                thread::sleep(until);
            });
            let sleeper = told.recv().unwrap();
            scope.spawn(move || {
                runs.send(own()).unwrap();
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let runner = told.recv().unwrap();
            let asleep = running(&Root::live(), &BTreeSet::from([sleeper, Tid(u32::MAX)]));
            let visited = visitor(Root::live(), BTreeSet::from([runner])).unwrap().join().unwrap();
            done.store(true, Ordering::Relaxed);
            (asleep, visited)
        });
        assert_eq!(visited.0, BTreeSet::new());
        assert_eq!(visited.1.len(), 1);
    }
}
