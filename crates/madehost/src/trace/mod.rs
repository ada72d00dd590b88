//! Made traces: scheduling events written as perf.data and trace.dat, for tests of their readers
//! and for measuring how fast they are read.
//!
//! The layouts are this module's own, as every trace describes its own. Knows nothing of who reads
//! them.

mod dat;
mod perf;

pub use dat::{dat_6, dat_7};
pub use perf::{perf_file, perf_file_compressed, perf_pipe};

/// Compresses a part of a trace (zstd or zlib, as the caller says elsewhere).
pub type Compress<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

/// One event.
#[derive(Clone, Debug)]
pub struct MadeEvent {
    /// Nanoseconds.
    pub time: u64,
    /// The CPU that recorded it.
    pub cpu: u32,
    /// The thread that ran there, and its process.
    pub current: (u32, u32),
    /// `common_flags`: 0x08 in an interrupt.
    pub flags: u8,
    /// What happened.
    pub what: TracepointFields,
}

/// A tracepoint's own fields. Threads are number and name.
#[derive(Clone, Debug)]
pub enum TracepointFields {
    /// sched_switch from, to, `prev_state`.
    Switch((u32, &'static str), (u32, &'static str), u64),
    /// sched_waking of a thread, onto a CPU.
    Waking((u32, &'static str), u32),
    /// sched_wakeup of a thread on a CPU.
    Wakeup((u32, &'static str), u32),
    /// sched_migrate_task from, to.
    Migrate((u32, &'static str), u32, u32),
    /// kvm_entry of this vCPU.
    Entry(u32),
}

/// A field: type, name, size.
type Field = (&'static str, &'static str, usize);

/// The tracepoints: system, name, number and fields beyond the common ones.
const TRACEPOINTS: &[(&str, &str, u16, &[Field])] = &[
    (
        "sched",
        "sched_switch",
        310,
        &[
            ("char", "prev_comm[16]", 16),
            ("pid_t", "prev_pid", 4),
            ("int", "prev_prio", 4),
            ("long", "prev_state", 8),
            ("char", "next_comm[16]", 16),
            ("pid_t", "next_pid", 4),
            ("int", "next_prio", 4),
        ],
    ),
    ("sched", "sched_waking", 313, WAKE),
    ("sched", "sched_wakeup", 312, WAKE),
    (
        "sched",
        "sched_migrate_task",
        309,
        &[
            ("char", "comm[16]", 16),
            ("pid_t", "pid", 4),
            ("int", "prio", 4),
            ("int", "orig_cpu", 4),
            ("int", "dest_cpu", 4),
        ],
    ),
    ("kvm", "kvm_entry", 1739, &[("unsigned int", "vcpu_id", 4), ("unsigned long", "rip", 8)]),
];

const WAKE: &[Field] =
    &[("char", "comm[16]", 16), ("pid_t", "pid", 4), ("int", "prio", 4), ("int", "target_cpu", 4)];

/// Number and layout of a tracepoint's format file. Fields follow each other unaligned.
fn format(name: &str, id: u16, fields: &[Field]) -> String {
    let mut text = format!("name: {name}\nID: {id}\nformat:\n");
    let common = [
        ("unsigned short", "common_type", 2),
        ("unsigned char", "common_flags", 1),
        ("unsigned char", "common_preempt_count", 1),
        ("int", "common_pid", 4),
    ];
    let mut at = 0;
    for (kind, field, size) in common.iter().chain(fields) {
        text.push_str(&format!("\tfield:{kind} {field};\toffset:{at};\tsize:{size};\tsigned:0;\n"));
        at += size;
    }
    text.push_str("\nprint fmt: \"\"\n");
    text
}

fn name(out: &mut Vec<u8>, name: &str) {
    let mut field = [0; 16];
    field.iter_mut().zip(name.bytes().take(15)).for_each(|(to, from)| *to = from);
    out.extend(field);
}

impl MadeEvent {
    /// The raw record.
    #[must_use]
    pub fn raw(&self) -> Vec<u8> {
        let id: u16 = match self.what {
            TracepointFields::Switch(..) => 310,
            TracepointFields::Waking(..) => 313,
            TracepointFields::Wakeup(..) => 312,
            TracepointFields::Migrate(..) => 309,
            TracepointFields::Entry(_) => 1739,
        };
        let mut out = id.to_le_bytes().to_vec();
        out.extend([self.flags, 0]);
        out.extend(self.current.0.to_le_bytes());
        let word = |out: &mut Vec<u8>, word: u32| out.extend(word.to_le_bytes());
        match self.what {
            TracepointFields::Switch(prev, next, state) => {
                name(&mut out, prev.1);
                word(&mut out, prev.0);
                word(&mut out, 120);
                out.extend(state.to_le_bytes());
                name(&mut out, next.1);
                word(&mut out, next.0);
                word(&mut out, 120);
            }
            TracepointFields::Waking(thread, cpu) | TracepointFields::Wakeup(thread, cpu) => {
                name(&mut out, thread.1);
                word(&mut out, thread.0);
                word(&mut out, 120);
                word(&mut out, cpu);
            }
            TracepointFields::Migrate(thread, from, to) => {
                name(&mut out, thread.1);
                [thread.0, 120, from, to].iter().for_each(|number| word(&mut out, *number));
            }
            TracepointFields::Entry(vcpu) => {
                word(&mut out, vcpu);
                out.extend(0u64.to_le_bytes());
            }
        }
        out
    }
}

/// Magic to page size, as trace.dat and perf's description of tracepoints begin.
fn preamble(version: &str) -> Vec<u8> {
    let mut out = b"\x17\x08\x44tracing".to_vec();
    out.extend(version.as_bytes());
    out.extend([0, 0, 8]);
    out.extend(4096u32.to_le_bytes());
    out
}

fn header_info() -> Vec<u8> {
    let page = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
        \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
        \tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n";
    let mut out = Vec::new();
    for (name, text) in [("header_page", page), ("header_event", "# compressed entry header\n")] {
        out.extend(name.as_bytes());
        out.push(0);
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }
    out
}

fn event_formats() -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for system in ["sched", "kvm"] {
        out.extend(system.as_bytes());
        out.push(0);
        let these: Vec<_> = TRACEPOINTS.iter().filter(|point| point.0 == system).collect();
        out.extend((these.len() as u32).to_le_bytes());
        for (_, name, id, fields) in these {
            let text = format(name, *id, fields);
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        }
    }
    out
}

/// What perf keeps as TRACING_DATA.
fn tracing_data() -> Vec<u8> {
    let mut out = preamble("0.6");
    out.extend(header_info());
    out.extend(0u32.to_le_bytes());
    out.extend(event_formats());
    out.extend([0; 16]);
    out
}

/// Events by CPU, each in order of time.
fn by_cpu(events: &[MadeEvent]) -> Vec<Vec<&MadeEvent>> {
    let cpus = events.iter().map(|event| event.cpu + 1).max().unwrap_or(1);
    let of = |cpu| {
        let mut of: Vec<&MadeEvent> = events.iter().filter(|event| event.cpu == cpu).collect();
        of.sort_by_key(|event| event.time);
        of
    };
    (0..cpus).map(of).collect()
}
