//! Time as the load sees it: the monotonic clock, absolute sleeps and the process's CPU time.

use crate::error::LoadError;
use std::mem::MaybeUninit;
use std::time::Duration;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Nanoseconds of `CLOCK_MONOTONIC`. Comparable between threads.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to; the clock exists on every Linux, so the
    // call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * NANOS_PER_SECOND + time.tv_nsec as u64
}

/// Sleeps until the monotonic clock shows `deadline` nanoseconds; returns at once when it has.
pub fn sleep_until(deadline: u64) {
    let time = timespec(deadline);
    loop {
        // SAFETY: `time` is a valid timespec; with TIMER_ABSTIME no remainder is written.
        let status = unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &raw const time,
                std::ptr::null_mut(),
            )
        };
        if status != libc::EINTR {
            return;
        }
    }
}

/// Asks the kernel to fire this thread's timers as exactly as it can. Without this the fair class
/// may delay each by 50 us, which would be taken for a late wake-up.
pub fn sharpen_timers() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches no memory of ours. On failure
    // timers stay as they were.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0, 0, 0) };
}

fn timespec(nanos: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (nanos / NANOS_PER_SECOND) as libc::time_t,
        tv_nsec: (nanos % NANOS_PER_SECOND) as libc::c_long,
    }
}

/// What the process has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of all threads, user and system, in nanoseconds, as this kernel counts it.
    pub cpu_ns: u64,
    /// Context switches because a thread waited.
    pub voluntary: u64,
    /// Context switches because a thread was preempted.
    pub involuntary: u64,
}

/// Reads [`Usage`] of this process.
pub fn usage() -> Usage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is valid for writes; zeroes are a valid rusage, so that it is initialised
    // even if the call failed.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let nanos =
        |time: libc::timeval| time.tv_sec as u64 * NANOS_PER_SECOND + time.tv_usec as u64 * 1000;
    Usage {
        cpu_ns: nanos(usage.ru_utime) + nanos(usage.ru_stime),
        voluntary: usage.ru_nvcsw as u64,
        involuntary: usage.ru_nivcsw as u64,
    }
}

/// SIGINT and SIGTERM, held back from every thread so that one can wait for them.
///
/// A waiter is woken at once by a signal, and no handler runs: no state is shared with one.
/// Dropped, they have their usual effect on this thread's process again.
#[derive(Debug)]
pub struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks both signals in this thread and those it will start.
    ///
    /// # Errors
    /// [`LoadError::System`] if the kernel refuses.
    pub fn hold() -> Result<Self, LoadError> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `set` is valid for writes, initialised by sigemptyset before any other use, and
        // both numbers are signals.
        let (set, status) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
            let set = set.assume_init();
            let status =
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            (set, status)
        };
        match status {
            0 => Ok(Self { set }),
            code => Err(LoadError::System {
                what: "hold back SIGINT and SIGTERM".to_owned(),
                source: std::io::Error::from_raw_os_error(code),
            }),
        }
    }

    /// Waits until the monotonic clock shows `deadline` or a signal comes; whether one came.
    pub fn wait_until(&self, deadline: u64) -> bool {
        loop {
            let left = Duration::from_nanos(deadline.saturating_sub(now()));
            let time = timespec(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
            // SAFETY: the set and the time are valid; no siginfo is asked for.
            let signal = unsafe {
                libc::sigtimedwait(&raw const self.set, std::ptr::null_mut(), &raw const time)
            };
            if signal > 0 {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: the set is valid and no old mask is asked for. It cannot fail with SIG_UNBLOCK.
        unsafe {
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const self.set, std::ptr::null_mut());
        }
    }
}
