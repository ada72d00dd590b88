//! Lets threads use all CPUs of their cpusets: what is left when the journal that tells their
//! original affinities is lost.
//!
//! It knows nothing of who bound them: what an operator set is lost, too. As the kernel uses numbers
//! again, the start of a process and of each thread is checked right before the thread is changed.

use crate::apply::affinity::{self, Affinity};
use crate::apply::thread::{self, ThreadKey};
use crate::error::Error;
use crate::root::Root;
use instep_core::units::Tid;

/// What widening did.
#[derive(Debug, Default)]
pub struct WidenReport {
    /// Threads that may use more CPUs than before.
    pub widened: usize,
    /// Threads that could use all of them already.
    pub unchanged: usize,
    /// Threads that could not be changed.
    pub failed: Vec<(Tid, Error)>,
}

/// Lets every thread of these processes, each with its start in ticks since boot, use all CPUs of its
/// cpuset, which it then follows. Threads and processes that end meanwhile are passed over.
pub fn widen(affinity: &impl Affinity, processes: &[(u32, u64)]) -> WidenReport {
    let mut report = WidenReport::default();
    for (pid, start) in processes {
        let threads = thread::threads_of(&Root::live(), *pid).unwrap_or_default();
        for thread in threads.into_iter().filter(|thread| thread.pid_start == *start) {
            match widen_thread(affinity, &thread) {
                Ok(Some(true)) => report.widened += 1,
                Ok(Some(false)) => report.unchanged += 1,
                Ok(None) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => report.failed.push((thread.tid, error)),
            }
        }
    }
    report
}

/// Whether it may use more CPUs than before; `None` when the thread has ended.
fn widen_thread(affinity: &impl Affinity, thread: &ThreadKey) -> Result<Option<bool>, Error> {
    let tid = thread.tid;
    let get = || affinity.get(tid).map_err(|error| affinity::get_error(tid, error));
    let before = get()?;
    if !thread.is_alive(&Root::live())? {
        return Ok(None);
    }
    let every = affinity::every_cpu();
    let set = affinity.set(tid, &every);
    set.map_err(|error| {
        Error::system(format!("cannot let thread {tid} use all CPUs of its cpuset"), error)
    })?;
    Ok(Some(get()? != before))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::affinity::KernelAffinity;
    use crate::apply::testing::{Sleeper, two_cpus};
    use instep_core::idset::CpuSet;

    #[test]
    fn bound_thread_may_use_its_whole_cpuset_again() {
        let Some((a, _)) = two_cpus() else { return };
        let (bound, free, mut gone) = (Sleeper::start(), Sleeper::start(), Sleeper::start());
        let found = KernelAffinity.get(free.tid()).unwrap();
        KernelAffinity.set(bound.tid(), &a).unwrap();
        let processes = [&bound, &free, &gone].map(process);
        gone.stop();
        let report = widen(&KernelAffinity, &processes);
        assert_eq!((report.widened, report.unchanged, report.failed.len()), (1, 1, 0));
        assert_eq!(KernelAffinity.get(bound.tid()).unwrap(), found);
    }

    fn process(sleeper: &Sleeper) -> (u32, u64) {
        (sleeper.tid().0, sleeper.key().pid_start)
    }

    #[test]
    fn later_process_of_the_same_number_is_left_alone() {
        let Some((a, _)) = two_cpus() else { return };
        let bound = Sleeper::start();
        KernelAffinity.set(bound.tid(), &a).unwrap();
        let (pid, start) = process(&bound);
        let report = widen(&KernelAffinity, &[(pid, start - 1)]);
        assert_eq!((report.widened, report.unchanged, report.failed.len()), (0, 0, 0));
        assert_eq!(KernelAffinity.get(bound.tid()).unwrap(), a);
    }

    /// Between the list of threads and the change of one of them that thread ends.
    struct Ending(std::cell::RefCell<Sleeper>, CpuSet);

    impl Affinity for Ending {
        fn get(&self, _: Tid) -> std::io::Result<CpuSet> {
            self.0.borrow_mut().stop();
            Ok(self.1.clone())
        }
        fn set(&self, tid: Tid, _: &CpuSet) -> std::io::Result<()> {
            panic!("thread {tid} is changed, whatever it is now");
        }
    }

    #[test]
    fn thread_that_ends_is_not_changed_by_its_number() {
        let Some((a, _)) = two_cpus() else { return };
        let sleeper = Sleeper::start();
        let processes = [process(&sleeper)];
        let report = widen(&Ending(sleeper.into(), a), &processes);
        assert_eq!((report.widened, report.unchanged, report.failed.len()), (0, 0, 0));
    }
}
