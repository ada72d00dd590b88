//! The demo: the whole story of placing VMs, on a machine that has none.
//!
//! It is the scenario `scenarios/lab/demo.toml`, told while it runs on an emulated NUMA host; it touches nothing
//! of this machine. It does not know the policies: what they decide is for Instep to explain, and what
//! came of it is read from /proc without Instep.

mod story;

use crate::error::Error;
use crate::stop::Stop;
use std::path::PathBuf;

/// What the user asked for.
#[derive(Clone, Debug, Default)]
pub struct DemoOptions {
    /// The `instep` binary that is shown.
    pub instep: PathBuf,
    /// The `instep-lab` binary, which the demo puts into its host, too.
    pub laboratory: PathBuf,
    /// Boot with this kernel image instead of a fetched one.
    pub kernel: Option<PathBuf>,
    /// The directory below which that kernel's modules lie.
    pub modules: Option<PathBuf>,
    /// Where the page goes; into the cache when not given.
    pub html: Option<PathBuf>,
    /// The guest workload `instep-load`, which the last act needs.
    pub load: Option<PathBuf>,
    /// Why the `instep` binary has no kernel scheduler, if it has none: the last act is left out.
    pub lacks_scheduler: Option<String>,
}

/// How the demo ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemoResult {
    /// Everything was shown, and held as proven from /proc.
    Shown,
    /// Something was not as it should be; it was said what.
    Failed,
    /// A signal ended it; everything was cleaned up.
    Interrupted,
}

/// Runs the demo.
///
/// # Errors
/// When the machine lacks something (the error says what to install), or a guest or a command
/// fails. Guests and temporary files are gone in any case.
pub fn run(options: &DemoOptions) -> anyhow::Result<DemoResult> {
    let stop = Stop::on_signals()?;
    match story::run(options, &stop) {
        Err(error) if matches!(error.downcast_ref(), Some(Error::Interrupted)) => {
            eprintln!("interrupted: the guests and all temporary files are gone");
            Ok(DemoResult::Interrupted)
        }
        result => result,
    }
}
