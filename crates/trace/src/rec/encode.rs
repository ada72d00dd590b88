//! Events to the bytes of one block: a varint with the time of the first record in nanoseconds, a varint with the
//! number of records, then the records:
//!
//! ```text
//! tag (1)   [CPU: varint]   time since the record before: zigzag varint   numbers: varints
//! ```
//! In the tag, bits 0 to 3 are the kind and bits 5 to 7 the kind's own. Bit 4 says that the CPU is that of the record
//! before (0 at the beginning of a block) and is left out. A *varint* is an unsigned number in groups of seven bits,
//! the lowest first, with the top bit of every byte but the last set. *Zigzag* maps 0, -1, 1, -2, ... to 0, 1, 2, 3, ...
//! before.
//!
//! Records of one CPU come in order of time. After the end of a round no record is older than the latest of the round
//! before. So a reader holds two rounds, a fifth of a second, to put them in order.
//!
//! Nothing refers to another block. The thread that leaves a CPU is left out where the block's last switch
//! of that CPU names it, which is nearly always the case. So is a waker that runs there.

use crate::event::{Context, Event, Fact, Left};
use instep_core::units::{CpuId, Tid};

/// Kinds of records, with their numbers and what is their own in the tag.
///
/// How a thread left a CPU is 0 runnable, 1 asleep, 2 uninterruptible, 3 dead, 4 otherwise; thread 0 is the idle
/// thread of whichever CPU. The context of a wake-up is 0 the thread itself, 1 a soft interrupt, 2 an interrupt; 4 is
/// added where the waker is left out, as it is the thread that the last switch put on this CPU ([`BY_RUNNING`]).
pub(super) mod kind {
    /// From the CPU's last next thread to the next thread. Own: how the old one left.
    pub(crate) const SWITCH: u8 = 0;
    /// Old thread, next thread. Own: how the old one left.
    pub(crate) const SWITCH_FROM: u8 = 1;
    /// Thread, its last CPU, waker. Own: the context.
    pub(crate) const WAKING: u8 = 2;
    /// Thread, CPU of its queue, waker. Own: the context.
    pub(crate) const WAKEUP: u8 = 3;
    /// The same of a new thread.
    pub(crate) const WAKEUP_NEW: u8 = 4;
    /// Thread, from CPU, to CPU.
    pub(crate) const MIGRATE: u8 = 5;
    /// Thread, number of the vCPU; once per thread.
    pub(crate) const KVM_ENTRY: u8 = 6;
    /// Thread, reason.
    pub(crate) const KVM_EXIT: u8 = 7;
    /// Thread, nanoseconds halted. Own: 1 if the thread slept.
    pub(crate) const VCPU_WAKEUP: u8 = 8;
    /// Parent, child.
    pub(crate) const FORK: u8 = 9;
    /// Thread.
    pub(crate) const TASK_EXIT: u8 = 10;
    /// Thread, length (up to 15), bytes of its name.
    pub(crate) const NAMED: u8 = 11;
    /// Thread, thread group.
    pub(crate) const MEMBER: u8 = 12;
    /// Events lost here, 0 if unknown.
    pub(crate) const LOST: u8 = 13;
    /// The end of a round.
    pub(crate) const ROUND: u8 = 14;
    /// Length, as many bytes, of a later writer.
    pub(crate) const EXTENSION: u8 = 15;
}

/// In a tag: on the CPU of the record before.
pub(super) const SAME_CPU: u8 = 1 << 4;
/// The upper three bits of a tag are the kind's own.
pub(super) const OWN: u32 = 5;
/// In the tag of a wake-up: by who runs there.
pub(super) const BY_RUNNING: u8 = 1 << 2;

/// Who runs on each CPU as far as one block tells.
#[derive(Debug, Default)]
pub(super) struct Running(Vec<Option<Tid>>);

impl Running {
    pub(super) fn on(&self, cpu: CpuId) -> Option<Tid> {
        self.0.get(cpu.0 as usize).copied().flatten()
    }

    pub(super) fn put(&mut self, cpu: CpuId, tid: Tid) {
        let at = cpu.0 as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        self.0[at] = Some(tid);
    }
}

/// One block in the making.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    bytes: Vec<u8>,
    base: u64,
    last: u64,
    cpu: u32,
    running: Running,
    pub(super) records: u64,
}

impl Encoder {
    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The block's contents; the next block begins afresh.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let done = std::mem::take(self);
        let mut out = Vec::with_capacity(done.bytes.len() + 16);
        put(&mut out, done.base);
        put(&mut out, done.records);
        out.extend(done.bytes);
        out
    }

    /// Everything of the round before has been appended.
    pub(super) fn round(&mut self) {
        self.records += 1;
        self.bytes.push(kind::ROUND | SAME_CPU);
        self.bytes.push(0);
    }

    /// Appends one event.
    pub(super) fn event(&mut self, event: &Event) {
        if self.records == 0 {
            (self.base, self.last) = (event.time.0, event.time.0);
        }
        self.records += 1;
        match event.fact {
            Fact::Switch { prev, next, left } => self.switch(event, prev, next, left),
            Fact::Waking { tid, target, waker, context } => {
                self.wake(event, kind::WAKING, [tid.0, target.0], waker, context);
            }
            Fact::Wakeup { tid, target, is_new, waker, context } => {
                let kind = if is_new { kind::WAKEUP_NEW } else { kind::WAKEUP };
                self.wake(event, kind, [tid.0, target.0], waker, context);
            }
            Fact::Migrate { tid, from, to } => {
                self.record(event, kind::MIGRATE, 0, &[tid.0, from.0, to.0].map(u64::from));
            }
            Fact::KvmEntry { tid, vcpu } => {
                self.record(event, kind::KVM_ENTRY, 0, &[tid.0, vcpu].map(u64::from));
            }
            Fact::KvmExit { tid, reason } => {
                self.record(event, kind::KVM_EXIT, 0, &[tid.0, reason].map(u64::from));
            }
            Fact::VcpuWakeup { tid, halted, slept } => {
                let numbers = [u64::from(tid.0), halted.0];
                self.record(event, kind::VCPU_WAKEUP, u8::from(slept), &numbers);
            }
            Fact::Fork { parent, child } => {
                self.record(event, kind::FORK, 0, &[parent.0, child.0].map(u64::from));
            }
            Fact::Exit { tid } => self.record(event, kind::TASK_EXIT, 0, &[u64::from(tid.0)]),
            Fact::Named { tid, name } => {
                let name = name.as_bytes();
                self.record(event, kind::NAMED, 0, &[u64::from(tid.0), name.len() as u64]);
                self.bytes.extend(name);
            }
            Fact::Member { tid, tgid } => {
                self.record(event, kind::MEMBER, 0, &[tid.0, tgid.0].map(u64::from));
            }
            Fact::Lost { events } => self.record(event, kind::LOST, 0, &[events]),
        }
    }

    fn switch(&mut self, event: &Event, prev: Tid, next: Tid, left: Left) {
        let left = match left {
            Left::Runnable => 0,
            Left::Asleep => 1,
            Left::Uninterruptible => 2,
            Left::Dead => 3,
            Left::Other => 4,
        };
        if self.running.on(event.cpu) == Some(prev) {
            self.record(event, kind::SWITCH, left, &[u64::from(next.0)]);
        } else {
            self.record(event, kind::SWITCH_FROM, left, &[prev.0, next.0].map(u64::from));
        }
        self.running.put(event.cpu, next);
    }

    fn wake(&mut self, event: &Event, kind: u8, numbers: [u32; 2], waker: Tid, context: Context) {
        let context = match context {
            Context::Thread => 0,
            Context::SoftInterrupt => 1,
            Context::Interrupt => 2,
        };
        let [tid, target] = numbers.map(u64::from);
        if self.running.on(event.cpu) == Some(waker) {
            self.record(event, kind, context | BY_RUNNING, &[tid, target]);
        } else {
            self.record(event, kind, context, &[tid, target, u64::from(waker.0)]);
        }
    }

    fn record(&mut self, event: &Event, kind: u8, own: u8, numbers: &[u64]) {
        let same = event.cpu.0 == self.cpu;
        self.bytes.push(kind | (own << OWN) | if same { SAME_CPU } else { 0 });
        if !same {
            put(&mut self.bytes, u64::from(event.cpu.0));
            self.cpu = event.cpu.0;
        }
        let step = event.time.0.wrapping_sub(self.last) as i64;
        put(&mut self.bytes, zigzag(step));
        self.last = event.time.0;
        numbers.iter().for_each(|number| put(&mut self.bytes, *number));
    }
}

/// Seven bits a byte, the lowest first; the top bit says that more follow.
pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Small numbers of either sign as small numbers.
fn zigzag(step: i64) -> u64 {
    ((step << 1) ^ (step >> 63)) as u64
}

/// Back from [`zigzag`].
pub(super) fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_either_sign_come_back() {
        for step in [0, 1, -1, 63, -64, i64::MAX, i64::MIN] {
            assert_eq!(unzigzag(zigzag(step)), step);
        }
        assert_eq!((zigzag(-1), zigzag(1)), (1, 2));
    }
}
