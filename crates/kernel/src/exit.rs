//! Why the scheduler is no longer in force: the kernel's exit record in plain data and in words.
//!
//! The record is filled by the kernel (struct scx_exit_info, kernel/sched/ext_internal.h of Linux
//! 7.2) and copied out by `bpf/`. Its message and dump hold names of threads, which anybody chooses:
//! they are made printable and bounded here. It does not decide when to try again.

/// The most of a dump that is kept, in bytes; the kernel's default is 32 KiB.
const MAX_DUMP: usize = 64 << 10;

/// The exit record, as far as it is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// `enum scx_exit_kind`; 0 while it is in force.
    pub kind: i32,
    /// Only with [`Cause::Kernel`]: what the kernel wants (`enum scx_exit_code`).
    pub code: i64,
    /// The CPU that it happened on, from Linux 7.1 on.
    pub cpu: Option<u32>,
    /// The kind in the kernel's words.
    pub reason: String,
    /// What exactly, when the kernel says more.
    pub message: String,
    /// What all CPUs and the threads that waited were doing; empty after an orderly end.
    pub dump: String,
}

/// Kinds of ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its user ended it.
    Unloaded,
    /// The kernel did, in order: CPUs came or went.
    Kernel,
    /// Somebody pressed SysRq-S.
    SysRq,
    /// A thread waited longer than the watchdog allows.
    Stall,
    /// It did something that it must not.
    Error,
}

impl Exit {
    /// Makes one of the kernel's bytes, each string up to its first zero.
    #[must_use]
    pub fn of(kind: i32, code: i64, cpu: i32, reason: &[u8], message: &[u8], dump: &[u8]) -> Self {
        let line = |bytes| printable(bytes, false);
        Self {
            kind,
            code,
            cpu: u32::try_from(cpu).ok(),
            reason: line(reason),
            message: line(message),
            dump: printable(&dump[..dump.len().min(MAX_DUMP)], true),
        }
    }

    /// What kind of end it was (`enum scx_exit_kind`: 64 and more are ends in order, 1024 and more
    /// errors).
    #[must_use]
    pub fn cause(&self) -> Cause {
        match self.kind {
            66 => Cause::Kernel,
            67 => Cause::SysRq,
            1026 => Cause::Stall,
            ..=1023 => Cause::Unloaded,
            _ => Cause::Error,
        }
    }

    /// Whether the kernel asks for it to be loaded again, as it does when CPUs came or went
    /// (SCX_ECODE_ACT_RESTART, bit 48).
    #[must_use]
    pub fn restart(&self) -> bool {
        self.cause() == Cause::Kernel && self.code & 1 << 48 != 0
    }

    /// In one sentence.
    #[must_use]
    pub fn why(&self) -> String {
        let what = match self.cause() {
            Cause::Unloaded => "somebody unloaded it",
            Cause::Kernel => "the kernel ended it",
            Cause::SysRq => "SysRq-S was pressed",
            Cause::Stall => "a thread waited longer than the kernel's watchdog allows",
            Cause::Error => "the kernel found an error in it",
        };
        let cpu = self.cpu.map_or_else(String::new, |cpu| format!(" on CPU {cpu}"));
        let more = if self.message.is_empty() { &self.reason } else { &self.message };
        if more.is_empty() { format!("{what}{cpu}") } else { format!("{what}{cpu}: {more}") }
    }
}

/// Text up to the first zero: what is no UTF-8 or steers terminals becomes `?`.
fn printable(bytes: &[u8], lines: bool) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let fit = |c: char| match c {
        '\n' | '\t' if lines => c,
        c if c.is_control() || c == char::REPLACEMENT_CHARACTER => '?',
        c => c,
    };
    String::from_utf8_lossy(&bytes[..end]).chars().map(fit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(kind: i32, message: &[u8]) -> Exit {
        Exit::of(kind, 0, -1, b"runnable task stall\0rest", message, b"")
    }

    #[test]
    fn each_kind_says_what_happened() {
        assert_eq!(exit(64, b"").cause(), Cause::Unloaded);
        assert_eq!(exit(67, b"").why(), "SysRq-S was pressed: runnable task stall");
        let stall = exit(1026, b"job[12] failed to run for 5.1s");
        assert_eq!(stall.cause(), Cause::Stall);
        assert!(stall.why().ends_with("watchdog allows: job[12] failed to run for 5.1s"));
        assert_eq!(exit(1024, b"").cause(), Cause::Error);
        assert_eq!(exit(1025, b"").cause(), Cause::Error);
        let on = Exit { cpu: Some(3), ..exit(1024, b"x") };
        assert_eq!(on.why(), "the kernel found an error in it on CPU 3: x");
    }

    #[test]
    fn only_the_kernel_asks_for_a_restart() {
        let hotplug = |kind| Exit { kind, code: 1 << 48 | 1 << 32, ..Exit::default() };
        assert!(hotplug(66).restart() && !hotplug(1024).restart() && !exit(66, b"").restart());
    }

    #[test]
    fn names_of_threads_in_a_dump_cannot_steer_a_terminal() {
        let dump = b"R \x1b[31mevil[7]\n\xff\xfe comm\r\0after";
        let exit = Exit::of(1026, 0, 1, b"", b"a\nb", dump);
        assert_eq!(exit.dump, "R ?[31mevil[7]\n?? comm?");
        assert_eq!((exit.message.as_str(), exit.cpu), ("a?b", Some(1)));
        assert_eq!(Exit::of(1, 0, 0, b"", b"", &[b'x'; MAX_DUMP + 9]).dump.len(), MAX_DUMP);
    }
}
