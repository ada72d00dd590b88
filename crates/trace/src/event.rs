//! What a trace says of scheduling, as plain data: one [`Event`] per fact, whatever the format it
//! was recorded in.
//!
//! Facts of threads (their names, groups and vCPU numbers) come as events of their own, once and
//! again when they change, so that scheduling events stay small.

use instep_core::units::{CpuId, Nanos, Tid};
use instep_core::wording::is_steering;
use std::fmt;

/// CPU numbers end below this (`NR_CPUS` of the largest kernels): a higher one is damage, and must
/// not size a table.
pub const MAX_CPUS: u32 = 8192;

/// One fact at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, by the clock of the recording (its start is arbitrary).
    pub time: Nanos,
    /// The CPU on which it was recorded.
    pub cpu: CpuId,
    /// What.
    pub fact: Fact,
}

/// What happened. Thread 0 is the idle thread of whichever CPU is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The CPU goes from one thread to another (sched_switch).
    Switch {
        /// The thread that ran.
        prev: Tid,
        /// The thread that runs now.
        next: Tid,
        /// How `prev` left.
        left: Left,
    },
    /// A thread is about to be made runnable (sched_waking), recorded where the waker ran.
    Waking {
        /// The thread that is woken.
        tid: Tid,
        /// On whose queue it was last; where it goes is decided next.
        target: CpuId,
        /// The thread that ran there; in an interrupt the thread that was interrupted.
        waker: Tid,
        /// In which context it was woken.
        context: Context,
    },
    /// A thread is runnable on a CPU's queue (sched_wakeup, sched_wakeup_new).
    Wakeup {
        /// Who.
        tid: Tid,
        /// On whose queue.
        target: CpuId,
        /// Whether it was just made (sched_wakeup_new).
        is_new: bool,
        /// Who ran there where this was recorded; it may be the target CPU (remote wake-ups).
        waker: Tid,
        /// The context in which this was recorded.
        context: Context,
    },
    /// A thread is moved to another CPU's queue (sched_migrate_task). Also a sleeping thread is
    /// "moved" when it is woken elsewhere.
    Migrate {
        /// Who.
        tid: Tid,
        /// From this CPU's queue
        from: CpuId,
        /// to this one's.
        to: CpuId,
    },
    /// This thread runs the vCPU of this number (kvm_entry); once and when that changes.
    KvmEntry {
        /// The thread.
        tid: Tid,
        /// The number of its vCPU within its VM.
        vcpu: u32,
    },
    /// The guest was left (kvm_exit). Only when the reader is asked for exits.
    KvmExit {
        /// The thread.
        tid: Tid,
        /// The architecture's number of the reason.
        reason: u32,
    },
    /// A halted vCPU goes on (kvm_vcpu_wakeup).
    VcpuWakeup {
        /// Its thread.
        tid: Tid,
        /// How long it was halted.
        halted: Nanos,
        /// Whether the thread slept, rather than polled.
        slept: bool,
    },
    /// A thread was made.
    Fork {
        /// By whom.
        parent: Tid,
        /// The new thread.
        child: Tid,
    },
    /// A thread ended.
    Exit {
        /// Which.
        tid: Tid,
    },
    /// A thread's name, the first time and whenever it changes.
    Named {
        /// Whose.
        tid: Tid,
        /// The name.
        name: Comm,
    },
    /// A thread's process (thread group), once.
    Member {
        /// The thread.
        tid: Tid,
        /// The process.
        tgid: Tid,
    },
    /// The recorder lost events of this CPU here.
    Lost {
        /// How many; 0 where the recorder does not say.
        events: u64,
    },
}

/// How a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Still runnable: it was preempted or yielded.
    Runnable,
    /// It sleeps until woken.
    Asleep,
    /// It waits uninterruptibly, as a rule for I/O.
    Uninterruptible,
    /// It ended.
    Dead,
    /// Stopped, traced, parked or idle kernel thread.
    Other,
}

impl Left {
    /// From the `prev_state` of sched_switch. The low eight bits have had one meaning since Linux
    /// 4.14; higher ones say "preempted" (include/linux/sched.h, `TASK_REPORT`).
    pub fn from_prev_state(state: u64) -> Left {
        match state & 0xff {
            0 => Left::Runnable,
            bits if bits & 0x30 != 0 => Left::Dead,
            bits if bits & 0x80 != 0 && bits & 0x02 == 0 => Left::Other,
            bits if bits & 0x02 != 0 => Left::Uninterruptible,
            bits if bits & 0x01 != 0 => Left::Asleep,
            _ => Left::Other,
        }
    }
}

/// In which context code ran, from a record's `common_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// The current thread did it.
    Thread,
    /// A soft interrupt.
    SoftInterrupt,
    /// A hardware interrupt: a device or a timer.
    Interrupt,
}

impl Context {
    /// From `common_flags` (include/linux/trace_events.h of Linux 6.18: `TRACE_FLAG_HARDIRQ` 0x08,
    /// `TRACE_FLAG_SOFTIRQ` 0x10, `TRACE_FLAG_NMI` 0x40).
    pub fn from_common_flags(flags: u8) -> Context {
        if flags & 0x48 != 0 {
            Context::Interrupt
        } else if flags & 0x10 != 0 {
            Context::SoftInterrupt
        } else {
            Context::Thread
        }
    }
}

/// A thread's name: at most 15 bytes and no zero among them.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Comm([u8; 16]);

impl Comm {
    /// The name in a kernel's field: up to the first zero byte, at most 15 bytes.
    pub fn new(bytes: &[u8]) -> Comm {
        let mut name = [0; 16];
        for (to, from) in name.iter_mut().take(15).zip(bytes.iter().take_while(|b| **b != 0)) {
            *to = *from;
        }
        Comm(name)
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(16);
        &self.0[..end]
    }
}

impl fmt::Display for Comm {
    /// As text; bytes that are none become U+FFFD, control characters `?`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(self.as_bytes());
        text.chars().try_for_each(|c| write!(f, "{}", if is_steering(c) { '?' } else { c }))
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Comm({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_old_and_new_kernels_are_distinguished() {
        assert_eq!(Left::from_prev_state(0), Left::Runnable);
        assert_eq!(Left::from_prev_state(0x100), Left::Runnable);
        assert_eq!(Left::from_prev_state(1), Left::Asleep);
        assert_eq!(Left::from_prev_state(2), Left::Uninterruptible);
        assert_eq!(Left::from_prev_state(0x82), Left::Uninterruptible);
        assert_eq!(Left::from_prev_state(0x80), Left::Other);
        assert_eq!(Left::from_prev_state(0x20), Left::Dead);
    }

    #[test]
    fn names_end_at_zero_and_cannot_move_a_cursor() {
        assert_eq!(Comm::new(b"CPU 0/KVM\0\0junk").to_string(), "CPU 0/KVM");
        assert_eq!(Comm::new(b"a\x1b[2J\xff").to_string(), "a?[2J\u{fffd}");
        assert_eq!(Comm::new(&[b'x'; 40]).as_bytes().len(), 15);
    }

    #[test]
    fn an_event_stays_small() {
        assert!(size_of::<Event>() <= 40, "{}", size_of::<Event>());
    }
}
