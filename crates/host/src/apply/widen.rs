//! Lets threads use all CPUs of their cpusets: what is left when the journal that tells their
//! original affinities is lost.
//!
//! It knows nothing of who bound them: what an operator set is lost, too.

use crate::apply::affinity::{self, Affinity};
use crate::apply::thread;
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

/// Lets every thread of these processes use all CPUs of its cpuset, which it then follows. Threads and
/// processes that end meanwhile are passed over.
pub fn widen(affinity: &impl Affinity, pids: &[u32]) -> WidenReport {
    let mut report = WidenReport::default();
    for pid in pids {
        for thread in thread::threads_of(&Root::live(), *pid).unwrap_or_default() {
            let tid = thread.tid;
            match widen_thread(affinity, tid) {
                Ok(true) => report.widened += 1,
                Ok(false) => report.unchanged += 1,
                Err(error) if error.is_gone() => {}
                Err(error) => report.failed.push((tid, error)),
            }
        }
    }
    report
}

fn widen_thread(affinity: &impl Affinity, tid: Tid) -> Result<bool, Error> {
    let get = || affinity.get(tid).map_err(|error| affinity::get_error(tid, error));
    let before = get()?;
    let every = affinity::every_cpu();
    let set = affinity.set(tid, &every);
    set.map_err(|error| {
        Error::system(format!("cannot let thread {tid} use all CPUs of its cpuset"), error)
    })?;
    Ok(get()? != before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::affinity::KernelAffinity;
    use crate::apply::testing::{Sleeper, two_cpus};

    #[test]
    fn bound_thread_may_use_its_whole_cpuset_again() {
        let Some((a, _)) = two_cpus() else { return };
        let (bound, free, mut gone) = (Sleeper::start(), Sleeper::start(), Sleeper::start());
        let found = KernelAffinity.get(free.tid()).unwrap();
        KernelAffinity.set(bound.tid(), &a).unwrap();
        let pids = [&bound, &free, &gone].map(|sleeper| sleeper.tid().0);
        gone.stop();
        let report = widen(&KernelAffinity, &pids);
        assert_eq!((report.widened, report.unchanged, report.failed.len()), (1, 1, 0));
        assert_eq!(KernelAffinity.get(bound.tid()).unwrap(), found);
    }
}
