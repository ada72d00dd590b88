//! Raw records of tracepoints to facts, by the layouts that the trace itself brings.
//!
//! Tracepoints that no analysis uses are recognised by their number and cost one look-up.

use crate::bytes::{u16_at, u32_at, u64_at};
use crate::event::{Context, Event, Fact, Left, MAX_CPUS};
use crate::format::{Field, Format};
use crate::threads::{At, Threads};
use instep_core::units::{CpuId, Nanos, Tid};

/// What a reader shall give beyond the facts of scheduling.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReaderOptions {
    /// Also [`Fact::KvmExit`]: the most frequent record of a busy host.
    pub exits: bool,
}

/// How records of one tracepoint are read.
#[derive(Clone, Debug)]
enum TracepointFields {
    Switch { prev: Word, next: Word, state: Word, names: [Word; 2] },
    Waking { tid: Word, target: Word, name: Word },
    Wakeup { tid: Word, target: Word, name: Word, is_new: bool },
    Migrate { tid: Word, from: Word, to: Word, name: Word },
    Entry { vcpu: Word },
    Exit { reason: Word },
    VcpuWakeup { halted: Word, slept: Option<Word> },
    Fork { parent: Word, child: Word },
    TaskExit { tid: Word },
    Rename { tid: Word, name: Word },
}

/// A field's place.
#[derive(Clone, Copy, Debug)]
struct Word {
    offset: usize,
    size: usize,
}

/// The layouts of a trace.
#[derive(Debug, Default)]
pub(crate) struct Tracepoints {
    /// By `common_type`; `None` for what is not used.
    kinds: Vec<Option<TracepointFields>>,
    /// Tracepoints whose layout lacks a field that is needed.
    pub(crate) unknown: Vec<String>,
}

/// What a record came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// A fact.
    Used,
    /// A tracepoint that is not used.
    Unused,
    /// Shorter than its layout.
    Damaged,
}

impl Tracepoints {
    /// Learns one layout.
    pub(crate) fn add(&mut self, format: &Format, options: ReaderOptions) {
        let wanted = matches!(
            format.name.as_str(),
            "sched_switch"
                | "sched_waking"
                | "sched_wakeup"
                | "sched_wakeup_new"
                | "sched_migrate_task"
                | "sched_process_fork"
                | "sched_process_exit"
                | "task_rename"
                | "kvm_entry"
                | "kvm_vcpu_wakeup"
        ) || (format.name == "kvm_exit" && options.exits);
        if !wanted {
            return;
        }
        match kind(format) {
            Some(kind) => {
                let id = usize::from(format.id);
                if self.kinds.len() <= id {
                    self.kinds.resize(id + 1, None);
                }
                self.kinds[id] = Some(kind);
            }
            None => self.unknown.push(format.name.clone()),
        }
    }

    /// Whether sched_switch is known, without which nothing can be said.
    pub(crate) fn has_switch(&self) -> bool {
        self.kinds.iter().flatten().any(|kind| matches!(kind, TracepointFields::Switch { .. }))
    }

    /// Reads one raw record and appends its facts.
    #[inline]
    pub(crate) fn read(
        &self,
        raw: &[u8],
        at: At,
        threads: &mut Threads,
        out: &mut Vec<Event>,
    ) -> Read {
        let Some(id) = u16_at(raw, 0) else { return Read::Damaged };
        match self.kinds.get(usize::from(id)) {
            Some(Some(kind)) => match facts(kind, raw, at, threads, out) {
                Some(()) => Read::Used,
                None => Read::Damaged,
            },
            _ => Read::Unused,
        }
    }
}

/// The layout of a wanted tracepoint; `None` when a field is missing.
fn kind(format: &Format) -> Option<TracepointFields> {
    let word = |name: &str| format.field(name).and_then(Word::of);
    let name = |name: &str| format.field(name).and_then(Word::of_name);
    let first = |names: [&str; 2]| names.iter().find_map(|name| word(name));
    Some(match format.name.as_str() {
        "sched_switch" => TracepointFields::Switch {
            prev: word("prev_pid")?,
            next: word("next_pid")?,
            state: word("prev_state")?,
            names: [name("prev_comm")?, name("next_comm")?],
        },
        "sched_waking" => TracepointFields::Waking {
            tid: word("pid")?,
            target: word("target_cpu")?,
            name: name("comm")?,
        },
        "sched_wakeup" | "sched_wakeup_new" => {
            let is_new = format.name == "sched_wakeup_new";
            let (tid, target) = (word("pid")?, word("target_cpu")?);
            TracepointFields::Wakeup { tid, target, name: name("comm")?, is_new }
        }
        "sched_migrate_task" => TracepointFields::Migrate {
            tid: word("pid")?,
            from: word("orig_cpu")?,
            to: word("dest_cpu")?,
            name: name("comm")?,
        },
        "kvm_entry" => TracepointFields::Entry { vcpu: first(["vcpu_id", "vcpu"])? },
        "kvm_exit" => TracepointFields::Exit { reason: first(["exit_reason", "ret"])? },
        "kvm_vcpu_wakeup" => {
            TracepointFields::VcpuWakeup { halted: word("ns")?, slept: word("waited") }
        }
        "sched_process_fork" => {
            TracepointFields::Fork { parent: word("parent_pid")?, child: word("child_pid")? }
        }
        "sched_process_exit" => TracepointFields::TaskExit { tid: word("pid")? },
        "task_rename" => TracepointFields::Rename { tid: word("pid")?, name: name("newcomm")? },
        _ => return None,
    })
}

impl Word {
    /// A number of one to eight bytes.
    fn of(field: &Field) -> Option<Word> {
        let number = matches!(field.size, 1 | 2 | 4 | 8) && !field.dynamic;
        number.then_some(Word { offset: field.offset, size: field.size })
    }

    /// A name: inside the record, or behind it.
    fn of_name(field: &Field) -> Option<Word> {
        let size = if field.dynamic { 0 } else { field.size };
        (field.dynamic || size == 16).then_some(Word { offset: field.offset, size })
    }

    #[inline]
    fn number(self, raw: &[u8]) -> Option<u64> {
        match self.size {
            4 => u32_at(raw, self.offset).map(u64::from),
            8 => u64_at(raw, self.offset),
            2 => u16_at(raw, self.offset).map(u64::from),
            _ => raw.get(self.offset).map(|byte| u64::from(*byte)),
        }
    }

    /// A number that is an identity; none is wider than 32 bits.
    #[inline]
    fn id(self, raw: &[u8]) -> Option<u32> {
        self.number(raw).map(|number| number as u32)
    }

    /// A number that is a CPU's.
    #[inline]
    fn cpu(self, raw: &[u8]) -> Option<CpuId> {
        self.id(raw).filter(|cpu| *cpu < MAX_CPUS).map(CpuId)
    }

    #[inline]
    fn name(self, raw: &[u8]) -> Option<[u8; 16]> {
        if self.size == 16 {
            return raw.get(self.offset..)?.first_chunk().copied();
        }
        let place = u32_at(raw, self.offset)?;
        let (start, length) = ((place & 0xffff) as usize, (place >> 16) as usize);
        let text = raw.get(start..start.checked_add(length)?)?;
        let mut name = [0; 16];
        name.iter_mut().zip(text).take(15).for_each(|(to, from)| *to = *from);
        Some(name)
    }
}

/// The thread that ran and the context, from the fields that every record begins with.
#[inline]
fn current(raw: &[u8]) -> Option<(Tid, Context)> {
    Some((Tid(u32_at(raw, 4)?), Context::from_common_flags(*raw.get(2)?)))
}

#[inline]
fn facts(
    kind: &TracepointFields,
    raw: &[u8],
    at: At,
    threads: &mut Threads,
    out: &mut Vec<Event>,
) -> Option<()> {
    let fact = match kind {
        TracepointFields::Switch { prev, next, state, names } => {
            let (prev, next) = (Tid(prev.id(raw)?), Tid(next.id(raw)?));
            threads.named(at, prev, &names[0].name(raw)?, out);
            threads.named(at, next, &names[1].name(raw)?, out);
            Fact::Switch { prev, next, left: Left::from_prev_state(state.number(raw)?) }
        }
        TracepointFields::Waking { tid, target, name } => {
            let tid = Tid(tid.id(raw)?);
            threads.named(at, tid, &name.name(raw)?, out);
            let (waker, context) = current(raw)?;
            Fact::Waking { tid, target: target.cpu(raw)?, waker, context }
        }
        TracepointFields::Wakeup { tid, target, name, is_new } => {
            let tid = Tid(tid.id(raw)?);
            threads.named(at, tid, &name.name(raw)?, out);
            let (waker, context) = current(raw)?;
            let (target, is_new) = (target.cpu(raw)?, *is_new);
            Fact::Wakeup { tid, target, is_new, waker, context }
        }
        TracepointFields::Migrate { tid, from, to, name } => {
            let tid = Tid(tid.id(raw)?);
            threads.named(at, tid, &name.name(raw)?, out);
            Fact::Migrate { tid, from: from.cpu(raw)?, to: to.cpu(raw)? }
        }
        TracepointFields::Entry { vcpu } => {
            threads.vcpu(at, current(raw)?.0, vcpu.id(raw)?, out);
            return Some(());
        }
        TracepointFields::Exit { reason } => {
            Fact::KvmExit { tid: current(raw)?.0, reason: reason.id(raw)? }
        }
        TracepointFields::VcpuWakeup { halted, slept } => Fact::VcpuWakeup {
            tid: current(raw)?.0,
            halted: Nanos(halted.number(raw)?),
            slept: slept.is_none_or(|slept| slept.number(raw).is_some_and(|slept| slept & 1 != 0)),
        },
        TracepointFields::Fork { parent, child } => {
            threads.forked(at, Tid(parent.id(raw)?), Tid(child.id(raw)?), out);
            return Some(());
        }
        TracepointFields::TaskExit { tid } => Fact::Exit { tid: Tid(tid.id(raw)?) },
        TracepointFields::Rename { tid, name } => {
            threads.named(at, Tid(tid.id(raw)?), &name.name(raw)?, out);
            return Some(());
        }
    };
    out.push(at.event(fact));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch() -> Tracepoints {
        let text = "name: sched_switch\nID: 3\nformat:\n\
            field:char prev_comm[16];offset:8;size:16;signed:0;\n\
            field:pid_t prev_pid;offset:24;size:4;signed:1;\n\
            field:long prev_state;offset:32;size:8;signed:1;\n\
            field:char next_comm[16];offset:40;size:16;signed:0;\n\
            field:pid_t next_pid;offset:56;size:4;signed:1;\n";
        let mut points = Tracepoints::default();
        points.add(&crate::format::parse(text).unwrap(), ReaderOptions::default());
        points
    }

    #[test]
    fn a_record_cut_at_any_length_is_damaged_never_a_panic() {
        let points = switch();
        assert!(points.has_switch());
        let mut raw = [0u8; 64];
        raw[0] = 3;
        raw[24] = 7;
        raw[56] = 9;
        let at = At { time: Nanos(1), cpu: CpuId(0) };
        for length in 0..raw.len() {
            let (mut threads, mut out) = (Threads::default(), Vec::new());
            let read = points.read(&raw[..length], at, &mut threads, &mut out);
            assert_eq!(read, if length < 60 { Read::Damaged } else { Read::Used }, "{length}");
        }
    }

    #[test]
    fn a_cpu_that_cannot_be_is_damage() {
        let text = "name: sched_migrate_task\nID: 3\n\
            field:char comm[16];offset:8;size:16;\nfield:pid_t pid;offset:24;size:4;\n\
            field:int orig_cpu;offset:28;size:4;\nfield:int dest_cpu;offset:32;size:4;\n";
        let mut points = Tracepoints::default();
        points.add(&crate::format::parse(text).unwrap(), ReaderOptions::default());
        let at = At { time: Nanos(1), cpu: CpuId(0) };
        for (cpu, expected) in
            [(8191u32, Read::Used), (8192, Read::Damaged), (u32::MAX, Read::Damaged)]
        {
            let mut raw = [0u8; 36];
            raw[0] = 3;
            raw[32..].copy_from_slice(&cpu.to_le_bytes());
            let (mut threads, mut out) = (Threads::default(), Vec::new());
            assert_eq!(points.read(&raw, at, &mut threads, &mut out), expected, "{cpu}");
        }
    }

    #[test]
    fn a_layout_without_a_needed_field_is_named() {
        let mut points = Tracepoints::default();
        let format = crate::format::parse("name: sched_switch\nID: 3\n").unwrap();
        points.add(&format, ReaderOptions::default());
        assert_eq!(points.unknown, ["sched_switch"]);
    }
}
