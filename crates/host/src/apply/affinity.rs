//! Which CPUs a thread may use: asks the kernel and tells it, for hosts of any size.
//!
//! `sched_setaffinity` silently keeps only the CPUs that the thread's cpuset allows, and
//! `sched_getaffinity` shows only CPUs that are online (kernel/sched/syscalls.c, 6.18), so what
//! was asked and what came of it are read back and compared by the callers. It does not know
//! which cpuset a thread is in.

use crate::error::Error;
use crate::system;
use instep_core::idset::{CpuSet, MAX_ID};
use instep_core::units::{CpuId, Id, Tid};
use libc::{c_ulong, pid_t};
use std::io;

const WORD_BITS: usize = c_ulong::BITS as usize;

/// The two system calls, replaceable where a test needs one of them to fail.
pub trait Affinity {
    /// Online CPUs that the thread may use.
    ///
    /// # Errors
    /// `ESRCH` when there is no such thread.
    fn get(&self, tid: Tid) -> io::Result<CpuSet>;

    /// Lets the thread use these CPUs.
    ///
    /// # Errors
    /// `ESRCH`, `EPERM`, or `EINVAL` when its cpuset and the online CPUs leave none of them.
    fn set(&self, tid: Tid, cpus: &CpuSet) -> io::Result<()>;
}

/// The running kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelAffinity;

impl Affinity for KernelAffinity {
    fn get(&self, tid: Tid) -> io::Result<CpuSet> {
        system::affinity(tid)
    }

    fn set(&self, tid: Tid, cpus: &CpuSet) -> io::Result<()> {
        let pid = pid_of(tid)?;
        let mask = mask_of(cpus);
        // SAFETY: `mask` is valid for reads of the length given in bytes; the kernel ignores
        // what exceeds its own mask and takes what is missing as zero.
        let result =
            unsafe { libc::sched_setaffinity(pid, size_of_val(&mask[..]), mask.as_ptr().cast()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Every CPU that a mask can name: the kernel keeps those that exist and that the cpuset allows.
pub fn every_cpu() -> CpuSet {
    (0..=MAX_ID).map(CpuId).collect()
}

/// The error of a failed [`Affinity::set`] in words: `ESRCH` stays recognisable by
/// [`Error::is_gone`], `EPERM` by [`Error::is_denied`].
pub fn set_error(tid: Tid, cpus: &CpuSet, source: io::Error) -> Error {
    if source.raw_os_error() == Some(libc::EINVAL) {
        return Error::Unusable {
            what: format!(
                "thread {tid} cannot use CPUs {cpus}: each is offline or outside the cpuset of its \
                 cgroup"
            ),
            next: format!("see /proc/{tid}/cpuset and widen that cgroup's cpuset.cpus"),
        };
    }
    Error::system(format!("cannot set the CPUs of thread {tid} to {cpus}"), source)
}

/// The error of a failed [`Affinity::get`] in words.
pub fn get_error(tid: Tid, source: io::Error) -> Error {
    Error::system(format!("cannot read the CPUs of thread {tid}"), source)
}

/// 0 would mean the calling thread, so it is refused here.
fn pid_of(tid: Tid) -> io::Result<pid_t> {
    match pid_t::try_from(tid.raw()) {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

fn mask_of(cpus: &CpuSet) -> Vec<c_ulong> {
    let highest = cpus.iter().last().map_or(0, |cpu| cpu.raw() as usize);
    let mut mask = vec![0; highest / WORD_BITS + 1];
    for cpu in cpus.iter().map(|cpu| cpu.raw() as usize) {
        mask[cpu / WORD_BITS] |= 1 << (cpu % WORD_BITS);
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::testing::Sleeper;

    #[test]
    fn a_mask_has_the_bits_of_its_cpus_beyond_1024_too() {
        let mask = mask_of(&CpuSet::parse_list("0,63-64,1024").unwrap());
        assert_eq!((mask[0], mask[1], mask[16], mask.len()), (1 << 63 | 1, 1, 1, 17));
    }

    #[test]
    fn what_is_set_on_a_thread_is_read_back() {
        let sleeper = Sleeper::start();
        let found = KernelAffinity.get(sleeper.tid()).unwrap();
        let first = CpuSet::one(found.first().unwrap());
        KernelAffinity.set(sleeper.tid(), &first).unwrap();
        assert_eq!(KernelAffinity.get(sleeper.tid()).unwrap(), first);
    }

    #[test]
    fn cpus_host_does_not_have_are_silently_dropped_by_the_kernel() {
        let sleeper = Sleeper::start();
        let found = KernelAffinity.get(sleeper.tid()).unwrap();
        let mut asked = found.clone();
        asked.insert(CpuId(60_000));
        KernelAffinity.set(sleeper.tid(), &asked).unwrap();
        assert_eq!(KernelAffinity.get(sleeper.tid()).unwrap(), found);
        KernelAffinity.set(sleeper.tid(), &every_cpu()).unwrap();
        assert_eq!(KernelAffinity.get(sleeper.tid()).unwrap(), found);
    }

    #[test]
    fn errors_name_the_cause() {
        let mut sleeper = Sleeper::start();
        let none = CpuSet::one(CpuId(60_000));
        let error = KernelAffinity.set(sleeper.tid(), &none).unwrap_err();
        let text = set_error(sleeper.tid(), &none, error).to_string();
        assert!(text.contains("60000") && text.contains("cpuset"), "{text}");

        let denied = io::Error::from_raw_os_error(libc::EPERM);
        let text = set_error(sleeper.tid(), &none, denied).to_string();
        assert!(text.contains("CAP_SYS_NICE"), "{text}");

        sleeper.stop();
        let error = KernelAffinity.set(sleeper.tid(), &none).unwrap_err();
        assert!(set_error(sleeper.tid(), &none, error).is_gone());
        assert!(get_error(Tid(0), KernelAffinity.get(Tid(0)).unwrap_err()).is_gone());
    }
}
