//! What can go wrong between Instep and a Xen host, each with the command or file and the next step.

use instep_core::wording::printable;
use std::io;
use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The toolstack's program is not there.
    #[error(
        "there is no program `{program}`, which lists domains and sets affinities; install the \
         tools of this Xen (Debian: xen-utils-common), or run this in the control domain (dom0)"
    )]
    NoProgram {
        /// Its name.
        program: String,
    },
    /// The program could not be started or waited for.
    #[error("cannot run `{command}`: {source}")]
    Start {
        /// The command line.
        command: String,
        /// What the system said.
        source: io::Error,
    },
    /// The command ended with an error.
    #[error("`{command}` failed ({status}): {said}{}", hint(said))]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// What it printed on standard error, on one line.
        said: String,
    },
    /// The command did not end in time.
    #[error(
        "`{command}` did not end within {seconds} s and was stopped; try it by hand, and see whether xenstored runs"
    )]
    Slow {
        /// The command line.
        command: String,
        /// The limit.
        seconds: u64,
    },
    /// Output is something else than it should be.
    #[error(
        "{0}; this version of Xen prints something that Instep does not know (4.17 is tried): please report it \
         with the output of `xl info`"
    )]
    Output(String),
    /// A file could not be read or written.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// `read` or `write`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The node affinity cannot be set.
    #[error("cannot set the node affinity of domain {domain}: {why}; {next}")]
    NodeAffinity {
        /// The domain.
        domain: u32,
        /// What stands in the way.
        why: String,
        /// What to do about it.
        next: &'static str,
    },
    /// Something that is needed cannot be used.
    #[error("{what}; {next}")]
    Unusable {
        /// What is wrong.
        what: String,
        /// What to do about it.
        next: &'static str,
    },
}

impl Error {
    /// A parse error, as [`not_so`] words it.
    pub(crate) fn output(
        command: &'static str,
        line: usize,
        value: &str,
        expected: &'static str,
    ) -> Self {
        Self::Output(not_so(command, line, value, expected))
    }

    /// A domain may be there, but a look could not read it.
    pub(crate) fn unread() -> Self {
        Self::Unusable {
            what: "what it has now is unknown, as `xl` printed rows that cannot be read".to_owned(),
            next: "see the warnings of `instep status`",
        }
    }

    /// Whether a command says that a domain is not there (any more).
    pub fn is_gone(&self) -> bool {
        let gone = |said: &str| {
            let said = said.to_ascii_lowercase();
            [
                "invalid domain identifier",
                "no such process",
                "' does not exist",
                "could not get domain info",
            ]
            .iter()
            .any(|part| said.contains(part))
        };
        match self {
            Self::Failed { said, .. } => gone(said),
            Self::NodeAffinity { why, .. } => gone(why),
            _ => false,
        }
    }

    /// Whether the system refused for lack of privilege.
    pub fn is_denied(&self) -> bool {
        match self {
            Self::Failed { said, .. } | Self::NodeAffinity { why: said, .. } => is_refusal(said),
            Self::Start { source, .. } | Self::File { source, .. } => {
                source.kind() == io::ErrorKind::PermissionDenied
            }
            _ => false,
        }
    }
}

/// That a line (from 1; 0 for all of an output) is not what it should be. The line is cut to 60 characters without what
/// steers a terminal.
pub(crate) fn not_so(command: &str, line: usize, value: &str, expected: &str) -> String {
    let value = printable(&value.trim().chars().take(60).collect::<String>());
    format!("line {line} of `{command}` is `{value}`, which is not {expected}")
}

fn is_refusal(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    ["permission denied", "operation not permitted", "must be root", "are you root"]
        .iter()
        .any(|part| said.contains(part))
}

/// What to try after what `xl` said.
fn hint(said: &str) -> &'static str {
    if is_refusal(said) {
        "; run it as root"
    } else if said.contains("privileged command interface") || said.contains("privcmd") {
        "; run it in the control domain (dom0) of a Xen host, as root, with xenfs mounted on /proc/xen"
    } else {
        ""
    }
}
