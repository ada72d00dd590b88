//! System calls that only ask the running kernel: clocks, constants, which CPUs a thread may use.
//!
//! What changes something is in [`crate::apply`].

use crate::error::Error;
use instep_core::idset::{CpuSet, MAX_ID};
use instep_core::units::{CpuId, Nanos, Tid};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Words of the first attempt: 8192 CPUs, the most of x86-64 (NR_CPUS, arch/x86/Kconfig, 6.18).
const FIRST_WORDS: usize = 8192 / 64;
/// Words of the last attempt.
const MAX_WORDS: usize = (MAX_ID as usize + 1).div_ceil(64);

/// The online CPUs that a thread may use, by sched_getaffinity(2).
///
/// # Errors
/// `ESRCH` when there is no such thread; thread 0, which would mean the caller, never is.
pub fn affinity(tid: Tid) -> io::Result<CpuSet> {
    let pid = match libc::pid_t::try_from(tid.0) {
        Ok(pid) if pid > 0 => pid,
        _ => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
    };
    let mut words = [0u64; FIRST_WORDS];
    match get(pid, &mut words) {
        // EINVAL: the kernel's mask is larger than the buffer.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let mut words = vec![0u64; MAX_WORDS];
            get(pid, &mut words)?;
            Ok(set_of(&words))
        }
        done => done.map(|()| set_of(&words)),
    }
}

/// What tells a file from every other one, its device and inode; `None` where it cannot be looked at.
pub(crate) fn file_id(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok()
}

fn get(pid: libc::pid_t, words: &mut [u64]) -> io::Result<()> {
    // SAFETY: the buffer is writable for the size that is passed, and aligned for the kernel's
    // unsigned longs; the call writes nothing beyond it.
    let done = unsafe {
        libc::sched_getaffinity(pid, std::mem::size_of_val(words), words.as_mut_ptr().cast())
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn set_of(words: &[u64]) -> CpuSet {
    let mut set = CpuSet::new();
    for (index, word) in (0u32..).zip(words) {
        let mut rest = *word;
        while rest != 0 {
            set.insert(CpuId(index * 64 + rest.trailing_zeros()));
            rest &= rest - 1;
        }
    }
    set
}

/// Checks that /proc numbers processes as the system calls of this process do. In a container with the
/// host's /proc and a pid namespace of its own, a thread id of /proc means another thread, or none.
///
/// # Errors
/// It does not, or it shows nothing of this process.
pub fn check_pid_namespace() -> Result<(), Error> {
    check_self(std::fs::read_link("/proc/self").as_deref(), std::process::id())
}

fn check_self(shown: Result<&Path, &io::Error>, pid: u32) -> Result<(), Error> {
    let what = match shown {
        Ok(shown) if shown == Path::new(&pid.to_string()) => return Ok(()),
        Ok(shown) => format!(
            "/proc is of another pid namespace: process {} there is process {pid} here, so that \
             Instep would look at wrong threads and change them",
            shown.display()
        ),
        Err(error) => format!(
            "/proc does not show this process ({error}): it is not mounted, or of another pid \
             namespace"
        ),
    };
    let next = "run Instep in the pid namespace of the host (docker run --pid=host, Kubernetes \
                hostPID: true) with the /proc of the host";
    Err(Error::Unusable { what, next: next.to_owned() })
}

/// The monotonic clock and the clock that counts from boot, suspension included.
pub fn clocks() -> (Nanos, Nanos) {
    let read = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a timespec of this frame, which the call fills.
        let done = unsafe { libc::clock_gettime(clock, &mut time) };
        if done != 0 {
            return Nanos(0);
        }
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Nanos(Nanos::from_secs(seconds).0 + u64::try_from(time.tv_nsec).unwrap_or(0))
    };
    (read(libc::CLOCK_MONOTONIC), read(libc::CLOCK_BOOTTIME))
}

/// A positive number that the C library knows of the system, or `otherwise`.
pub fn sysconf(name: libc::c_int, otherwise: u64) -> u64 {
    // SAFETY: sysconf takes a number and has no effect.
    let value = unsafe { libc::sysconf(name) };
    u64::try_from(value).ok().filter(|value| *value != 0).unwrap_or(otherwise)
}

/// What ended children of the calling process, waited for, and their ended descendants have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChildUsage {
    /// User and system time.
    pub cpu: Nanos,
    /// Voluntary context switches.
    pub voluntary: u64,
    /// Other context switches.
    pub involuntary: u64,
}

/// Asks getrusage(2) for what ended children have used until now.
pub fn child_usage() -> ChildUsage {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to an rusage of this frame, which the call fills.
    let done = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    if done != 0 {
        return ChildUsage::default();
    }
    // SAFETY: zeroed, which is a valid rusage, and then filled.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| {
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Nanos::from_secs(seconds).0 + u64::try_from(time.tv_usec).unwrap_or(0) * 1000
    };
    ChildUsage {
        cpu: Nanos(time(usage.ru_utime) + time(usage.ru_stime)),
        voluntary: u64::try_from(usage.ru_nvcsw).unwrap_or(0),
        involuntary: u64::try_from(usage.ru_nivcsw).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::proc_text;

    #[test]
    fn the_kernel_and_proc_agree_on_a_threads_cpus() {
        let asked = affinity(Tid(std::process::id())).unwrap();
        let status = std::fs::read(format!("/proc/{}/status", std::process::id())).unwrap();
        // The list of /proc holds offline CPUs too.
        assert!(!asked.is_empty() && asked.is_subset(&proc_text::allowed(&status).unwrap()));
    }

    #[test]
    fn proc_of_another_pid_namespace_is_refused() {
        check_pid_namespace().unwrap();
        check_self(Ok(Path::new("17")), 17).unwrap();
        let gone = io::Error::from_raw_os_error(libc::ENOENT);
        for shown in [Ok(Path::new("4711")), Err(&gone)] {
            let said = check_self(shown, 1).unwrap_err().to_string();
            assert!(said.contains("pid namespace") && said.contains("--pid=host"), "{said}");
        }
    }

    #[test]
    fn no_thread_has_the_number_of_the_caller() {
        for none in [0, u32::MAX] {
            let error = affinity(Tid(none)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
        }
    }

    #[test]
    fn every_bit_of_every_word_is_a_cpu() {
        assert_eq!(set_of(&[1 << 63 | 5, 0, 1]).to_string(), "0,2,63,128");
    }
}
