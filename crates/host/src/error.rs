//! What can go wrong between Instep and a Linux host, each with the file or value and the next
//! step.

use instep_core::wording::is_steering;
use std::io;
use std::path::{Path, PathBuf};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that must be there could not be read or listed.
    #[error("cannot read {path}: {source}{}", hint(.source))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds something else than it should.
    #[error("{path}{}: `{value}` is not {expected}", line_suffix(*.line))]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line, from 1; 0 when the whole file is meant.
        line: usize,
        /// The offending text, cut to a readable length.
        value: String,
        /// What should stand there.
        expected: &'static str,
    },
    /// A system call or an operation on the state directory failed.
    #[error("{what}: {source}{}", hint(.source))]
    System {
        /// What was being done and to what.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// Another instance of Instep acts on this host.
    #[error("Instep already runs on this host as {}; {}", who(*.pid), to_stop(*.pid))]
    Taken {
        /// Its process, where that can be told.
        pid: Option<u32>,
    },
    /// This is no place where Instep can work.
    #[error("{what}; {next}")]
    Unusable {
        /// What is missing or wrong.
        what: String,
        /// What to do about it.
        next: String,
    },
}

impl Error {
    /// A read error on `path`.
    pub fn read(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Error::Read { path: path.into(), source }
    }

    /// A failed operation.
    pub fn system(what: impl Into<String>, source: io::Error) -> Self {
        Error::System { what: what.into(), source }
    }

    /// A parse error; `value` is cut to 60 characters and stripped of control characters.
    pub fn parse(path: &Path, line: usize, value: &str, expected: &'static str) -> Self {
        let value = value.chars().take(60).map(|c| if is_steering(c) { '?' } else { c }).collect();
        Error::Parse { path: path.to_owned(), line, value, expected }
    }

    /// Whether the thing read or acted on is simply gone (a thread or process that ended).
    pub fn is_gone(&self) -> bool {
        match self {
            Error::Read { source, .. } | Error::System { source, .. } => {
                source.kind() == io::ErrorKind::NotFound
                    || source.raw_os_error() == Some(libc::ESRCH)
            }
            Error::Parse { .. } | Error::Taken { .. } | Error::Unusable { .. } => false,
        }
    }

    /// Whether the system refused for lack of privilege.
    pub fn is_denied(&self) -> bool {
        match self {
            Error::Read { source, .. } | Error::System { source, .. } => {
                source.kind() == io::ErrorKind::PermissionDenied
            }
            Error::Parse { .. } | Error::Taken { .. } | Error::Unusable { .. } => false,
        }
    }
}

fn who(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

fn to_stop(pid: Option<u32>) -> String {
    match pid {
        // systemd would start the service again.
        Some(pid) => format!(
            "stop it first with `systemctl stop instep`, or with `kill {pid}` where it is not the service; it restores what it changed"
        ),
        None => "find it with `ps -C instep` and stop it first".to_owned(),
    }
}

fn line_suffix(line: usize) -> String {
    if line == 0 { String::new() } else { format!(":{line}") }
}

fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            " (run as root, or with CAP_SYS_PTRACE to look and CAP_SYS_NICE to place)"
        }
        _ => "",
    }
}
