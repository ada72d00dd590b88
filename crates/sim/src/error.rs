//! What can go wrong with a scenario, told with file, line and reason.

use std::path::PathBuf;

/// Why something was not simulated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A scenario is wrong.
    #[error("{}{}: {what}", path.display(), if *line > 0 { format!(":{line}") } else { String::new() })]
    Scenario {
        /// The file.
        path: PathBuf,
        /// The line, from 1; 0 when it is about the whole.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// What was asked for is not known.
    #[error("{0}")]
    Asked(String),
}
