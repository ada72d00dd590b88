//! What the two programs share: text for terminals, pages, files that are written at the end, values of
//! options, how a command ends, and where each program finds the other.
//!
//! `instep` is for operators (`main.rs` and the modules beside it); `instep-lab` is the laboratory
//! (`bin/instep-lab`): the simulator, emulated hosts, benchmarks and published experiments. Nothing here and
//! nothing of `instep` may know a crate of the laboratory, which `cargo xtask tidy` checks.

pub mod imitation;
pub mod page;
pub mod pending;
pub mod programs;
pub mod schemas;
pub mod text;
pub mod values;

use anyhow::Context as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

/// The version, the commit, and whether the kernel scheduler is in.
pub const VERSION: &str = if cfg!(feature = "kernel") {
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("INSTEP_COMMIT"), ", with the kernel scheduler)")
} else {
    concat!(
        env!("CARGO_PKG_VERSION"),
        " (",
        env!("INSTEP_COMMIT"),
        ", without the kernel scheduler)"
    )
};

/// A report with the build that made it, as JSON has it.
#[derive(Debug, schemars::JsonSchema, serde::Serialize)]
#[schemars(rename = "Stamped{T}")]
pub struct Stamped<'a, T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    scenario: Option<&'a str>,
    version: &'static str,
    commit: &'static str,
    #[serde(flatten)]
    report: &'a T,
}

impl<'a, T> Stamped<'a, T> {
    /// `scenario`: its name, where the report has none.
    pub fn new(report: &'a T, scenario: Option<&'a str>) -> Self {
        let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("INSTEP_COMMIT"));
        Self { scenario, version, commit, report }
    }
}

/// How a command ended when nothing stood in its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is well: exit status 0.
    Fine,
    /// Something was found, or part of the work failed: exit status 1.
    Finding,
    /// What was run for the user ended with this status, which becomes ours.
    Status(u8),
}

/// Sends what is logged to standard error, as `INSTEP_LOG` asks.
pub fn begin_log() {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("INSTEP_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .with_writer(|| text::Messages)
        .with_ansi(false)
        .without_time()
        .init();
}

/// The exit status of a command. An error goes to standard error, and `status_of` gives its exit status.
pub fn exit_code(
    result: anyhow::Result<Outcome>,
    status_of: impl FnOnce(&anyhow::Error) -> u8,
) -> ExitCode {
    match result {
        Ok(Outcome::Fine) => ExitCode::SUCCESS,
        Ok(Outcome::Finding) => ExitCode::from(1),
        Ok(Outcome::Status(status)) => ExitCode::from(status),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&error_text(&error));
            ExitCode::from(status_of(&error))
        }
    }
}

/// An error with its causes, save those that the text before repeats already.
pub fn error_text(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Says something on standard error, without what would steer the terminal: messages hold the ends
/// of guests' consoles and lines of users' files. What cannot be written has nowhere else to go.
pub fn tell(said: &str) {
    let _ = io::stderr().write_all(message(said).as_bytes());
}

/// The same as text, ended.
pub fn message(said: &str) -> String {
    let lines: Vec<String> = said.split('\n').map(text::printable).collect();
    format!("instep: {}\n", lines.join("\n"))
}

/// Whether standard output's reader went away (`instep status | head`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints text that ends in its own line end, without what would steer the terminal.
pub fn print(text: &str) -> anyhow::Result<()> {
    io::stdout().lock().write_all(text::drawable(text).as_bytes())?;
    Ok(())
}

/// Whether a file can be written that is to hold what minutes of work give; it stays as it is.
pub fn writable(file: &Path) -> anyhow::Result<()> {
    let existed = file.exists();
    let opened = OpenOptions::new().append(true).create(true).open(file);
    opened.with_context(|| format!("cannot write {}", file.display()))?;
    if !existed {
        // Work that fails shall not leave an empty file.
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

/// Prints a value as one JSON document, readable.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text = text::escaped_json(&serde_json::to_string_pretty(value)?);
    text.push('\n');
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_reported_once() {
        let cause = || io::Error::other("disk on fire");
        let error = anyhow::Error::from(instep_host::Error::read("/f", cause()));
        assert_eq!(error_text(&error), "cannot read /f: disk on fire");
        let error = Err::<(), _>(cause()).context("cannot append").unwrap_err();
        assert_eq!(error_text(&error), "cannot append: disk on fire");
    }
}
