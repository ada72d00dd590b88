//! The collector of scheduling events in the kernel (bpf/collect.bpf.c): what it puts into its ring,
//! and, with the feature `kernel`, loading it and draining the ring.
//!
//! It decides nothing and writes nothing: `instep-record` makes facts of what comes out.

use std::fmt;

/// Kinds of events; `enum collect_kind` of bpf/collect.h.
pub mod kind {
    /// `a` leaves the CPU for `b`, as `arg` says ([`super::left`]).
    pub const SWITCH: u8 = 0;
    /// `a`, last on CPU `b`, is woken by `c` in the context `arg` ([`super::context`]).
    pub const WAKING: u8 = 1;
    /// `a` is on CPU `b`'s queue; `c` ran here.
    pub const WAKEUP: u8 = 2;
    /// The same of a new thread.
    pub const WAKEUP_NEW: u8 = 3;
    /// `a` moves from CPU `b` to `c`.
    pub const MIGRATE: u8 = 4;
    /// `a` runs vCPU `b`.
    pub const KVM_ENTRY: u8 = 5;
    /// `a` made `b` of process `c`, whose name follows.
    pub const FORK: u8 = 6;
    /// `a` ends.
    pub const EXIT: u8 = 7;
    /// `a` of process `c` has the name that follows.
    pub const RENAME: u8 = 8;
    /// A halt of the vCPU that `a` runs ended after `b` (low half) and `c` (high half) nanoseconds; `arg`
    /// is 1 when the thread slept, 0 when it polled.
    pub const KVM_WAKEUP: u8 = 9;
}

/// How a thread left its CPU; `enum collect_left`. Any other number: stopped, traced, parked, idle.
pub mod left {
    /// It could go on.
    pub const RUNNABLE: u8 = 0;
    /// It sleeps.
    pub const ASLEEP: u8 = 1;
    /// It sleeps uninterruptibly.
    pub const UNINTERRUPTIBLE: u8 = 2;
    /// It ended.
    pub const DEAD: u8 = 3;
}

/// In which context; `enum collect_context`. Any other number: a hardware interrupt.
pub mod context {
    /// The running thread itself.
    pub const THREAD: u8 = 0;
    /// A soft interrupt.
    pub const SOFTIRQ: u8 = 1;
}

/// One event as the kernel gave it; what the numbers mean depends on its [`kind`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
    /// See [`kind`].
    pub a: u32,
    /// See [`kind`].
    pub b: u32,
    /// See [`kind`].
    pub c: u32,
    /// The CPU that recorded it.
    pub cpu: u16,
    /// One of [`kind`]; others are of a newer collector.
    pub kind: u8,
    /// See [`kind`].
    pub arg: u8,
    /// The name that follows, ended by a zero byte; zeros where none does.
    pub name: [u8; 16],
}

/// Bytes of `struct collect_event`, and of `struct collect_named`.
const EVENT: usize = 24;
const NAMED: usize = EVENT + 16;

/// Reads what lies in the ring; `None` when it is too short.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<Collected> {
    let head: &[u8; EVENT] = bytes.first_chunk()?;
    let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (time, _) = head.split_first_chunk::<8>()?;
    Some(Collected {
        time_ns: u64::from_ne_bytes(*time),
        a: word(8),
        b: word(12),
        c: word(16),
        cpu: u16::from_ne_bytes([head[20], head[21]]),
        kind: head[22],
        arg: head[23],
        name: bytes.get(EVENT..NAMED).and_then(|name| name.try_into().ok()).unwrap_or_default(),
    })
}

/// What the collector shall do.
#[derive(Clone, Debug)]
pub struct CollectOptions {
    /// Bytes of the ring: a power of two, at least a page.
    pub ring_bytes: u32,
    /// Processes whose wake-ups and moves alone are collected; all when empty. Switches are
    /// always.
    pub wanted: Vec<u32>,
}

/// What it lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectLost {
    /// By CPU: there was no room in the ring.
    pub ring: Vec<u64>,
    /// The kernel was in the same program on the same CPU already.
    pub nested: u64,
}

/// Why there is no collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoCollector(pub String);

impl fmt::Display for NoCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoCollector {}

#[cfg(feature = "kernel")]
pub use loaded::Collector;

#[cfg(feature = "kernel")]
mod loaded;

/// Stands in for the collector in builds without the feature `kernel`: there never is one.
#[cfg(not(feature = "kernel"))]
#[derive(Debug)]
pub enum Collector {}

#[cfg(not(feature = "kernel"))]
impl Collector {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn load(_: &CollectOptions) -> Result<Self, NoCollector> {
        Err(NoCollector("this build of instep has no BPF programs (feature `kernel`)".to_owned()))
    }

    /// What is odd about it.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        match *self {}
    }

    /// Drains the ring.
    ///
    /// # Errors
    /// Never.
    pub fn drain(&mut self, _: usize, _: &mut Vec<Collected>) -> Result<usize, NoCollector> {
        match *self {}
    }

    /// What was lost.
    #[must_use]
    pub fn lost(&self) -> CollectLost {
        match *self {}
    }

    /// Collects no more.
    pub fn stop(&mut self) {
        match *self {}
    }

    /// What the programs cost.
    #[must_use]
    pub fn cost_ns(&self) -> Option<u64> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../../../bpf/collect.h");

    /// The value of a constant in the header.
    fn of(name: &str) -> u8 {
        let line = HEADER.lines().find(|line| line.trim_start().starts_with(&format!("{name} =")));
        let value = line.unwrap_or_else(|| panic!("{name} is gone")).split(['=', ',']).nth(1);
        value.unwrap().trim().parse().unwrap()
    }

    #[test]
    fn numbers_are_those_of_the_header() {
        let kinds = [
            ("COLLECT_SWITCH", kind::SWITCH),
            ("COLLECT_WAKING", kind::WAKING),
            ("COLLECT_WAKEUP", kind::WAKEUP),
            ("COLLECT_WAKEUP_NEW", kind::WAKEUP_NEW),
            ("COLLECT_MIGRATE", kind::MIGRATE),
            ("COLLECT_KVM_ENTRY", kind::KVM_ENTRY),
            ("COLLECT_FORK", kind::FORK),
            ("COLLECT_EXIT", kind::EXIT),
            ("COLLECT_RENAME", kind::RENAME),
            ("COLLECT_KVM_WAKEUP", kind::KVM_WAKEUP),
            ("COLLECT_RUNNABLE", left::RUNNABLE),
            ("COLLECT_ASLEEP", left::ASLEEP),
            ("COLLECT_UNINTERRUPTIBLE", left::UNINTERRUPTIBLE),
            ("COLLECT_DEAD", left::DEAD),
            ("COLLECT_THREAD", context::THREAD),
            ("COLLECT_SOFTIRQ", context::SOFTIRQ),
        ];
        for (name, value) in kinds {
            assert_eq!(of(name), value, "{name}");
        }
    }

    #[test]
    fn fields_lie_where_the_header_puts_them() {
        let fields: Vec<&str> = HEADER
            .lines()
            .skip_while(|line| *line != "struct collect_event {")
            .skip(1)
            .take_while(|line| *line != "};")
            .map(str::trim)
            .collect();
        let expected = [
            "unsigned long long time_ns;",
            "unsigned int a;",
            "unsigned int b;",
            "unsigned int c;",
            "unsigned short cpu;",
            "unsigned char kind;",
            "unsigned char arg;",
        ];
        assert_eq!(fields, expected);
        let mut bytes = [0u8; NAMED];
        bytes[..8].copy_from_slice(&77u64.to_ne_bytes());
        bytes[8..12].copy_from_slice(&1u32.to_ne_bytes());
        bytes[12..16].copy_from_slice(&2u32.to_ne_bytes());
        bytes[16..20].copy_from_slice(&3u32.to_ne_bytes());
        bytes[20..22].copy_from_slice(&4u16.to_ne_bytes());
        (bytes[22], bytes[23], bytes[24]) = (5, 6, b'n');
        let mut name = [0; 16];
        name[0] = b'n';
        let whole = Collected { time_ns: 77, a: 1, b: 2, c: 3, cpu: 4, kind: 5, arg: 6, name };
        assert_eq!(parse(&bytes), Some(whole));
        let plain = Collected { name: [0; 16], ..whole };
        assert_eq!(parse(&bytes[..EVENT]), Some(plain));
        assert_eq!(parse(&bytes[..EVENT - 1]), None);
    }
}
