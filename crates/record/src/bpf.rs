//! The BPF collector as a source: raw events to facts.

use crate::error::Error;
use crate::source::{Source, Wanted};
use instep_core::units::{CpuId, Nanos, Tid};
use instep_kernel::collect::{
    CollectLost, CollectOptions, Collected, Collector, context, kind, left,
};
use instep_trace::event::{Comm, Context, Event, Fact, Left};
use instep_trace::rec::Lost;

/// Events that are drained at once.
const AT_ONCE: usize = 1 << 16;
/// The ring's least and greatest size: at 32 bytes an event, from a quarter of a million on.
const LEAST_RING: u64 = 1 << 20;
const GREATEST_RING: u64 = 1 << 30;

pub(crate) struct Bpf {
    collector: Collector,
    raw: Vec<Collected>,
    /// What was lost up to the last look, by CPU, and nested.
    told: CollectLost,
    /// Time of the last event.
    last: Nanos,
}

impl Bpf {
    pub(crate) fn start(wanted: &Wanted) -> Result<Self, String> {
        let ring = wanted.buffer.clamp(LEAST_RING, GREATEST_RING).next_power_of_two();
        let ring_bytes = u32::try_from(ring).unwrap_or(1 << 30);
        let options = CollectOptions { ring_bytes, wanted: wanted.only.clone() };
        let collector = Collector::load(&options).map_err(|error| error.to_string())?;
        let (raw, told) = (Vec::new(), CollectLost::default());
        Ok(Bpf { collector, raw, told, last: Nanos(0) })
    }

    /// Notes what was lost since the last look, at the time reached.
    fn note_lost(&mut self, out: &mut Vec<Event>) {
        let now = self.collector.lost();
        let mut lost = |cpu: usize, events: u64| {
            if events > 0 {
                let cpu = CpuId(cpu as u32);
                out.push(Event { time: self.last, cpu, fact: Fact::Lost { events } });
            }
        };
        for (cpu, count) in now.ring.iter().enumerate() {
            lost(cpu, count.saturating_sub(self.told.ring.get(cpu).copied().unwrap_or(0)));
        }
        lost(0, now.nested.saturating_sub(self.told.nested));
        self.told = now;
    }
}

impl Source for Bpf {
    fn name(&self) -> &'static str {
        "bpf"
    }

    fn drain(&mut self, out: &mut Vec<Event>) -> Result<bool, Error> {
        self.raw.clear();
        let got = self.collector.drain(AT_ONCE, &mut self.raw);
        let got = got.map_err(|error| Error::Source(error.to_string()))?;
        for raw in &self.raw {
            self.last = self.last.max(Nanos(raw.time_ns));
            facts(raw, out);
        }
        let is_more = got >= AT_ONCE;
        if !is_more {
            self.note_lost(out);
        }
        Ok(is_more)
    }

    fn tells_processes(&self) -> bool {
        true
    }

    fn stop(&mut self) {
        self.collector.stop();
    }

    fn lost(&mut self) -> Vec<Lost> {
        let lost = self.collector.lost();
        let one = |place: &str, events| Lost { place: place.to_owned(), events };
        vec![one("ring", lost.ring.iter().sum()), one("nested", lost.nested)]
    }

    fn kernel_cost_ns(&self) -> Result<u64, String> {
        self.collector.cost_ns().ok_or_else(|| {
            "kernel.bpf_stats_enabled is 0; `sysctl kernel.bpf_stats_enabled=1` lets the kernel count \
             it, at some cost to every BPF program of the host"
                .to_owned()
        })
    }

    fn warnings(&self) -> Vec<String> {
        self.collector.warnings().to_vec()
    }
}

/// What one raw event says; kinds of newer collectors say nothing.
fn facts(raw: &Collected, out: &mut Vec<Event>) {
    let (a, b, c) = (Tid(raw.a), raw.b, raw.c);
    let (target, waker) = (CpuId(b), Tid(c));
    let mut push = |fact| {
        out.push(Event { time: Nanos(raw.time_ns), cpu: CpuId(u32::from(raw.cpu)), fact });
    };
    match raw.kind {
        kind::SWITCH => push(Fact::Switch { prev: a, next: Tid(b), left: left_of(raw.arg) }),
        kind::WAKING => {
            push(Fact::Waking { tid: a, target, waker, context: context_of(raw.arg) });
        }
        kind::WAKEUP | kind::WAKEUP_NEW => {
            let is_new = raw.kind == kind::WAKEUP_NEW;
            push(Fact::Wakeup { tid: a, target, is_new, waker, context: context_of(raw.arg) });
        }
        kind::MIGRATE => push(Fact::Migrate { tid: a, from: CpuId(b), to: CpuId(c) }),
        kind::KVM_ENTRY => push(Fact::KvmEntry { tid: a, vcpu: b }),
        kind::FORK => {
            let child = Tid(b);
            push(Fact::Fork { parent: a, child });
            push(Fact::Named { tid: child, name: Comm::new(&raw.name) });
            push(Fact::Member { tid: child, tgid: Tid(c) });
        }
        kind::KVM_WAKEUP => {
            let halted = Nanos(u64::from(c) << 32 | u64::from(b));
            push(Fact::VcpuWakeup { tid: a, halted, slept: raw.arg != 0 });
        }
        kind::EXIT => push(Fact::Exit { tid: a }),
        kind::RENAME => push(Fact::Named { tid: a, name: Comm::new(&raw.name) }),
        _ => {}
    }
}

fn left_of(arg: u8) -> Left {
    match arg {
        left::RUNNABLE => Left::Runnable,
        left::ASLEEP => Left::Asleep,
        left::UNINTERRUPTIBLE => Left::Uninterruptible,
        left::DEAD => Left::Dead,
        _ => Left::Other,
    }
}

fn context_of(arg: u8) -> Context {
    match arg {
        context::THREAD => Context::Thread,
        context::SOFTIRQ => Context::SoftInterrupt,
        _ => Context::Interrupt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_thread_comes_with_its_name_and_process() {
        let mut name = [0; 16];
        name[..4].copy_from_slice(b"CPU ");
        let raw = Collected { time_ns: 9, a: 1, b: 2, c: 3, kind: kind::FORK, name, ..raw() };
        let mut out = Vec::new();
        facts(&raw, &mut out);
        let (tid, name) = (Tid(2), Comm::new(b"CPU "));
        let expected = [
            Fact::Fork { parent: Tid(1), child: tid },
            Fact::Named { tid, name },
            Fact::Member { tid, tgid: Tid(3) },
        ];
        assert_eq!(out.iter().map(|event| event.fact).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_halt_has_its_whole_length_and_whether_the_thread_slept() {
        for (arg, slept) in [(0, false), (1, true)] {
            let raw = Collected { a: 7, b: 3, c: 1, arg, kind: kind::KVM_WAKEUP, ..raw() };
            let mut out = Vec::new();
            facts(&raw, &mut out);
            let halted = Nanos((1 << 32) + 3);
            assert_eq!(out[0].fact, Fact::VcpuWakeup { tid: Tid(7), halted, slept });
        }
    }

    #[test]
    fn kinds_of_a_newer_collector_say_nothing() {
        let mut out = Vec::new();
        facts(&Collected { kind: 200, ..raw() }, &mut out);
        assert_eq!(out, []);
    }

    fn raw() -> Collected {
        Collected::default()
    }
}
