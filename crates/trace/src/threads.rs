//! What is known of every thread while a trace is read: its name, its process, its vCPU number.
//! Says so as events, once and on change, so that the analysis need not compare names.

use crate::event::{Comm, Event, Fact};
use crate::tid_map::TidMap;
use instep_core::units::{CpuId, Nanos, Tid};

/// More threads than any host has; hostile traces get no further.
const MAX_THREADS: usize = 1 << 20;

#[derive(Clone, Debug)]
struct Thread {
    raw: [u8; 16],
    name: Comm,
    tgid: Option<Tid>,
    vcpu: Option<u32>,
}

/// Every thread that was met.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    index: TidMap,
    list: Vec<Thread>,
}

/// When and where something became known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) time: Nanos,
    pub(crate) cpu: CpuId,
}

impl At {
    pub(crate) fn event(self, fact: Fact) -> Event {
        Event { time: self.time, cpu: self.cpu, fact }
    }
}

impl Threads {
    #[inline]
    fn entry(&mut self, tid: Tid) -> Option<&mut Thread> {
        if let Some(at) = self.index.get(tid) {
            return self.list.get_mut(at);
        }
        self.add(tid)
    }

    #[cold]
    fn add(&mut self, tid: Tid) -> Option<&mut Thread> {
        if self.list.len() >= MAX_THREADS || !self.index.set(tid, self.list.len()) {
            return None;
        }
        let name = Comm::default();
        self.list.push(Thread { raw: [0; 16], name, tgid: None, vcpu: None });
        self.list.last_mut()
    }

    /// A record says that this thread has this name.
    #[inline]
    pub(crate) fn named(&mut self, at: At, tid: Tid, raw: &[u8; 16], out: &mut Vec<Event>) {
        // Idle threads have one number and a name per CPU.
        if tid.0 == 0 {
            return;
        }
        if let Some(thread) = self.entry(tid)
            && thread.raw != *raw
        {
            thread.raw = *raw;
            let name = Comm::new(raw);
            if thread.name != name {
                thread.name = name;
                out.push(at.event(Fact::Named { tid, name }));
            }
        }
    }

    /// A record says that this thread is of this process.
    #[inline]
    pub(crate) fn member(&mut self, at: At, tid: Tid, tgid: Tid, out: &mut Vec<Event>) {
        if tid.0 == 0 || tgid.0 == 0 {
            return;
        }
        if let Some(thread) = self.entry(tid)
            && thread.tgid != Some(tgid)
        {
            thread.tgid = Some(tgid);
            out.push(at.event(Fact::Member { tid, tgid }));
        }
    }

    /// A record says that this thread runs this vCPU.
    #[inline]
    pub(crate) fn vcpu(&mut self, at: At, tid: Tid, vcpu: u32, out: &mut Vec<Event>) {
        if let Some(thread) = self.entry(tid)
            && thread.vcpu != Some(vcpu)
        {
            thread.vcpu = Some(vcpu);
            out.push(at.event(Fact::KvmEntry { tid, vcpu }));
        }
    }

    /// A thread was made: it has its maker's name; what an earlier thread of this number was is
    /// forgotten.
    pub(crate) fn forked(&mut self, at: At, parent: Tid, child: Tid, out: &mut Vec<Event>) {
        let name = self.index.get(parent).and_then(|at| self.list.get(at));
        let (raw, name) = name.map_or(Default::default(), |thread| (thread.raw, thread.name));
        if let Some(thread) = self.entry(child) {
            *thread = Thread { raw, name, tgid: None, vcpu: None };
            out.push(at.event(Fact::Fork { parent, child }));
            out.push(at.event(Fact::Named { tid: child, name }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_reported_once_and_again_when_it_changes() {
        let at = At { time: Nanos(1), cpu: CpuId(0) };
        let (mut threads, mut out) = (Threads::default(), Vec::new());
        let raw = |text: &[u8]| {
            let mut raw = [0; 16];
            raw[..text.len()].copy_from_slice(text);
            raw
        };
        threads.named(at, Tid(5), &raw(b"a"), &mut out);
        threads.named(at, Tid(5), &raw(b"a"), &mut out);
        threads.named(at, Tid(5), &raw(b"a\0junk"), &mut out);
        assert_eq!(out.len(), 1);
        threads.named(at, Tid(5), &raw(b"b"), &mut out);
        threads.named(at, Tid(0), &raw(b"swapper/1"), &mut out);
        assert_eq!(out.len(), 2);
    }

    #[test]
    fn impossible_thread_ids_are_passed_over() {
        let at = At { time: Nanos(1), cpu: CpuId(0) };
        let (mut threads, mut out) = (Threads::default(), Vec::new());
        threads.vcpu(at, Tid(u32::MAX), 1, &mut out);
        assert!(out.is_empty());
    }
}
