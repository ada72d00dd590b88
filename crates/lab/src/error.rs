//! What can go wrong between the lab and QEMU, apt or the file system, each with the next step.

use std::io;
use std::path::{Path, PathBuf};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something this machine lacks.
    #[error("{what}; {next}")]
    Missing {
        /// What is missing.
        what: String,
        /// What to do about it.
        next: String,
    },
    /// A command could not be started, failed or took too long.
    #[error("`{command}` {why}")]
    Command {
        /// The command line.
        command: String,
        /// How it ended, with the last of what it printed.
        why: String,
    },
    /// A file or directory could not be made, read or written.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// The verb: `read`, `write`, ...
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A machine did not do what it should.
    #[error("{name}: {what}{}", tail(.console))]
    Guest {
        /// Whose machine.
        name: String,
        /// What went wrong.
        what: String,
        /// The end of its console and of what QEMU said; may be empty.
        console: String,
    },
    /// A machine was too slow: on an overloaded one another try may do.
    #[error(
        "{name}: no `{awaited}` within {seconds}s; try again when this machine has less to do{}",
        tail(.console)
    )]
    Slow {
        /// Whose machine.
        name: String,
        /// What was waited for.
        awaited: String,
        /// How long it had since its start.
        seconds: u64,
        /// The end of its console and of what QEMU said; may be empty.
        console: String,
    },
    /// An emulated machine died of what looks like a flaw of the emulation: another try may do.
    #[error(
        "{name}: {how}; seen now and then under emulation, so try again, or install a newer \
         QEMU{}", kept_or_tail(.kept.as_deref(), .console)
    )]
    Died {
        /// Whose machine.
        name: String,
        /// How it died.
        how: String,
        /// The file that has its whole console, once that is kept.
        kept: Option<PathBuf>,
        /// The end of its console and of what QEMU said; may be empty.
        console: String,
    },
    /// An emulated host is up and KVM is not: its kernel has none, or QEMU emulated no SVM.
    #[error(
        "kernel {kernel} has no /dev/kvm in the emulated host; give one with KVM and its modules: \
         --kernel FILE --modules /lib/modules/{kernel}{}", tail(.console)
    )]
    NoKvm {
        /// The release of the host's kernel.
        kernel: String,
        /// The end of its console; may be empty.
        console: String,
    },
    /// A scenario that is none.
    #[error("{}: {what}", .path.display())]
    Scenario {
        /// The scenario's file.
        path: PathBuf,
        /// What is wrong, and where in it.
        what: String,
    },
    /// What the lab does not do, though it could.
    #[error("{what}; {next}")]
    Refused {
        /// What is refused.
        what: String,
        /// What to do instead.
        next: String,
    },
    /// The user or the system asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// An I/O error.
    pub fn io(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Error::Io { what, path: path.into(), source }
    }

    /// Whether this machine lacks something that could be installed or fetched, or has no room for
    /// it: no failure of the lab, so that a test may be skipped and the demo may do without.
    pub fn is_lacking(&self) -> bool {
        match self {
            Error::Missing { .. } => true,
            Error::Command { command, .. } => command.starts_with("apt-"),
            Error::Io { source, .. } => source.kind() == io::ErrorKind::StorageFull,
            _ => false,
        }
    }

    /// The same of a machine that died, whose console is in this file.
    #[must_use]
    pub fn kept_in(mut self, file: &Path) -> Self {
        if let Error::Died { kept, .. } = &mut self {
            *kept = Some(file.to_owned());
        }
        self
    }

    /// Something missing and what to do about it.
    pub fn missing(what: impl Into<String>, next: impl Into<String>) -> Self {
        Error::Missing { what: what.into(), next: next.into() }
    }
}

/// The file alone where there is one: what a kernel says when it panics is long.
pub(crate) fn kept_or_tail(kept: Option<&Path>, console: &str) -> String {
    let file = kept.map(|path| format!("; its console is in {}", path.display()));
    file.unwrap_or_else(|| tail(console))
}

fn tail(console: &str) -> String {
    if console.is_empty() { String::new() } else { format!("; it last said:\n{console}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn death_is_reported_in_one_line_once_the_console_is_kept() {
        let (name, how) = ("emulated host".to_owned(), "its kernel panicked: x".to_owned());
        let died = Error::Died { name, how, kept: None, console: "a\nb".to_owned() };
        assert!(died.to_string().ends_with("it last said:\na\nb"), "{died}");
        let said = died.kept_in(Path::new("d/console.txt")).to_string();
        assert!(said.ends_with("; its console is in d/console.txt"), "{said}");
        assert!(said.contains("panicked: x") && said.lines().count() == 1, "{said}");
    }

    #[test]
    fn only_installable_things_are_lacking_and_failures_are_not() {
        let command = |command: &str| Error::Command { command: command.into(), why: "x".into() };
        let full = io::Error::from(io::ErrorKind::StorageFull);
        for lacking in [
            Error::missing("no QEMU", "install it"),
            command("apt-get -q update"),
            Error::io("write", "/x", full),
        ] {
            assert!(lacking.is_lacking(), "{lacking}");
        }
        let (name, console) = ("a".to_owned(), "apt: install me".to_owned());
        let how = "no apt: install it".to_owned();
        let died = Error::Died { name: name.clone(), how, kept: None, console: console.clone() };
        for failure in [
            died,
            Error::Guest { name, what: "no apt: install it".into(), console: console.clone() },
            Error::NoKvm { kernel: "7".into(), console },
            command("qemu-system-x86_64 -version"),
            Error::io("read", "/x", io::Error::other("apt")),
            Error::Interrupted,
        ] {
            assert!(!failure.is_lacking(), "{failure}");
        }
    }
}
