//! The bytes of one block back to events. A record that cannot be ends its block.

use super::encode::{BY_RUNNING, OWN, Running, SAME_CPU, kind, unzigzag};
use crate::error::Fault;
use crate::event::{Comm, Context, Event, Fact, Left, MAX_CPUS};
use instep_core::units::{CpuId, Nanos, Tid};

/// What stands next in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// An event.
    Event(Event),
    /// All that comes later than the end of the round before has been given.
    Round,
    /// Of a later writer.
    Passed,
}

/// A place in a block.
#[derive(Debug)]
pub(super) struct Decoder<'a> {
    bytes: &'a [u8],
    last: u64,
    cpu: CpuId,
    running: Running,
    /// Records that the block says it still has.
    left: u64,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, Fault> {
        let running = Running::default();
        let mut decoder = Decoder { bytes, last: 0, cpu: CpuId(0), running, left: 0 };
        decoder.last = decoder.number().ok_or_else(short)?;
        decoder.left = decoder.number().ok_or_else(short)?;
        Ok(decoder)
    }

    /// The next record; `None` at the end of the block.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Result<Item, Fault>> {
        if self.left == 0 && self.bytes.is_empty() {
            return None;
        }
        if self.left == 0 || self.bytes.is_empty() {
            self.left = 0;
            self.bytes = &[];
            return Some(Err(Fault::new("a block has more or fewer records than it says")));
        }
        self.left -= 1;
        let read = self.record();
        if read.is_none() {
            self.left = 0;
            self.bytes = &[];
        }
        Some(read.ok_or_else(|| Fault::new("a record of a block makes no sense")))
    }

    #[inline]
    fn record(&mut self) -> Option<Item> {
        let (tag, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        if tag & SAME_CPU == 0 {
            self.cpu = self.cpu()?;
        }
        let step = unzigzag(self.number()?);
        self.last = self.last.checked_add_signed(step)?;
        let own = tag >> OWN;
        let fact = match tag & 15 {
            kind::SWITCH => self.switch(None, own)?,
            kind::SWITCH_FROM => {
                let prev = self.tid()?;
                self.switch(Some(prev), own)?
            }
            kind::WAKING => {
                let (tid, target, waker, context) = self.wake(own)?;
                Fact::Waking { tid, target, waker, context }
            }
            which @ (kind::WAKEUP | kind::WAKEUP_NEW) => {
                let (tid, target, waker, context) = self.wake(own)?;
                let is_new = which == kind::WAKEUP_NEW;
                Fact::Wakeup { tid, target, is_new, waker, context }
            }
            kind::MIGRATE => Fact::Migrate { tid: self.tid()?, from: self.cpu()?, to: self.cpu()? },
            kind::KVM_ENTRY => Fact::KvmEntry { tid: self.tid()?, vcpu: self.word()? },
            kind::KVM_EXIT => Fact::KvmExit { tid: self.tid()?, reason: self.word()? },
            kind::VCPU_WAKEUP => Fact::VcpuWakeup {
                tid: self.tid()?,
                halted: Nanos(self.number()?),
                slept: own & 1 != 0,
            },
            kind::FORK => Fact::Fork { parent: self.tid()?, child: self.tid()? },
            kind::TASK_EXIT => Fact::Exit { tid: self.tid()? },
            kind::NAMED => {
                let (tid, length) = (self.tid()?, self.number()?);
                let name = self.take(length).filter(|name| name.len() <= 15)?;
                Fact::Named { tid, name: Comm::new(name) }
            }
            kind::MEMBER => Fact::Member { tid: self.tid()?, tgid: self.tid()? },
            kind::LOST => Fact::Lost { events: self.number()? },
            kind::ROUND => return Some(Item::Round),
            kind::EXTENSION => {
                let length = self.number()?;
                self.take(length)?;
                return Some(Item::Passed);
            }
            // Four bits: there are no others.
            _ => return None,
        };
        Some(Item::Event(Event { time: Nanos(self.last), cpu: self.cpu, fact }))
    }

    #[inline]
    fn switch(&mut self, prev: Option<Tid>, own: u8) -> Option<Fact> {
        let prev = prev.or_else(|| self.running.on(self.cpu))?;
        let next = self.tid()?;
        let left = match own {
            0 => Left::Runnable,
            1 => Left::Asleep,
            2 => Left::Uninterruptible,
            3 => Left::Dead,
            _ => Left::Other,
        };
        self.running.put(self.cpu, next);
        Some(Fact::Switch { prev, next, left })
    }

    #[inline]
    fn wake(&mut self, own: u8) -> Option<(Tid, CpuId, Tid, Context)> {
        let (tid, target) = (self.tid()?, self.cpu()?);
        let by_running = own & BY_RUNNING != 0;
        let waker = if by_running { self.running.on(self.cpu)? } else { self.tid()? };
        let context = match own & 3 {
            0 => Context::Thread,
            1 => Context::SoftInterrupt,
            _ => Context::Interrupt,
        };
        Some((tid, target, waker, context))
    }

    #[inline]
    fn number(&mut self) -> Option<u64> {
        let (mut number, mut shift) = (0u64, 0);
        loop {
            let (byte, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
            shift += 7;
            if shift > 63 {
                return None;
            }
        }
    }

    #[inline]
    fn word(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    #[inline]
    fn tid(&mut self) -> Option<Tid> {
        self.word().map(Tid)
    }

    #[inline]
    fn cpu(&mut self) -> Option<CpuId> {
        self.word().filter(|cpu| *cpu < MAX_CPUS).map(CpuId)
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(usize::try_from(length).ok()?)?;
        self.bytes = rest;
        Some(taken)
    }
}

fn short() -> Fault {
    Fault::new("a block of events has no beginning")
}

#[cfg(test)]
mod tests {
    use super::super::encode::Encoder;
    use super::*;
    use proptest::prelude::*;

    fn facts() -> impl Strategy<Value = Fact> {
        let tid = || (0u32..5_000_000).prop_map(Tid);
        let cpu = || (0u32..MAX_CPUS).prop_map(CpuId);
        let left = prop_oneof![
            Just(Left::Runnable),
            Just(Left::Asleep),
            Just(Left::Uninterruptible),
            Just(Left::Dead),
            Just(Left::Other)
        ];
        let context = || {
            let interrupt = Just(Context::Interrupt);
            prop_oneof![Just(Context::Thread), Just(Context::SoftInterrupt), interrupt]
        };
        prop_oneof![
            (tid(), tid(), left).prop_map(|(prev, next, left)| Fact::Switch { prev, next, left }),
            (tid(), cpu(), tid(), context()).prop_map(|(tid, target, waker, context)| {
                Fact::Waking { tid, target, waker, context }
            }),
            (tid(), cpu(), any::<bool>(), tid(), context()).prop_map(
                |(tid, target, is_new, waker, context)| Fact::Wakeup {
                    tid,
                    target,
                    is_new,
                    waker,
                    context
                }
            ),
            (tid(), cpu(), cpu()).prop_map(|(tid, from, to)| Fact::Migrate { tid, from, to }),
            (tid(), any::<u32>()).prop_map(|(tid, vcpu)| Fact::KvmEntry { tid, vcpu }),
            (tid(), any::<u32>()).prop_map(|(tid, reason)| Fact::KvmExit { tid, reason }),
            (tid(), any::<u64>(), any::<bool>()).prop_map(|(tid, halted, slept)| {
                Fact::VcpuWakeup { tid, halted: Nanos(halted), slept }
            }),
            (tid(), tid()).prop_map(|(parent, child)| Fact::Fork { parent, child }),
            tid().prop_map(|tid| Fact::Exit { tid }),
            (tid(), "[a-zA-Z0-9/ ]{0,15}")
                .prop_map(|(tid, name)| Fact::Named { tid, name: Comm::new(name.as_bytes()) }),
            (tid(), tid()).prop_map(|(tid, tgid)| Fact::Member { tid, tgid }),
            any::<u64>().prop_map(|events| Fact::Lost { events }),
        ]
    }

    proptest! {
        #[test]
        fn every_event_comes_back_as_it_was(
            events in prop::collection::vec((0u64..1 << 62, 0u32..8, facts()), 0..40)
        ) {
            let events: Vec<Event> = events
                .into_iter()
                .map(|(time, cpu, fact)| Event { time: Nanos(time), cpu: CpuId(cpu), fact })
                .collect();
            let mut encoder = Encoder::default();
            events.iter().for_each(|event| encoder.event(event));
            let bytes = encoder.take();
            let mut decoder = Decoder::new(&bytes).unwrap();
            for event in events {
                prop_assert_eq!(decoder.next(), Some(Ok(Item::Event(event))));
            }
            prop_assert_eq!(decoder.next(), None);
        }

        #[test]
        fn arbitrary_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(mut decoder) = Decoder::new(&bytes) {
                let mut count = 0;
                while decoder.next().is_some() {
                    count += 1;
                    prop_assert!(count <= bytes.len() + 1);
                }
            }
        }
    }

    #[test]
    fn a_switch_costs_few_bytes() {
        let mut encoder = Encoder::default();
        let mut who = [Tid(0), Tid(1234)];
        for turn in 0..1000u64 {
            let [prev, next] = who;
            let fact = Fact::Switch { prev, next, left: Left::Asleep };
            let time = Nanos(1_000_000_000_000 + turn * 5_000);
            encoder.event(&Event { time, cpu: CpuId(0), fact });
            who.swap(0, 1);
        }
        assert!(encoder.len() < 6_000, "{}", encoder.len());
    }

    #[test]
    fn what_a_later_writer_adds_is_passed_over() {
        // Base 0, two records: an extension of 3 bytes, then thread 7's end.
        let bytes = [0, 2, kind::EXTENSION | SAME_CPU, 2, 3, 9, 9, 9, kind::TASK_EXIT, 1, 4, 7];
        let mut decoder = Decoder::new(&bytes).unwrap();
        assert_eq!(decoder.next(), Some(Ok(Item::Passed)));
        let fact = Fact::Exit { tid: Tid(7) };
        let event = Event { time: Nanos(3), cpu: CpuId(1), fact };
        assert_eq!(decoder.next(), Some(Ok(Item::Event(event))));
        assert_eq!(decoder.next(), None);
    }
}
