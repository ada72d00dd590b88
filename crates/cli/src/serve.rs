//! `instep serve`: the page and the metrics of what a run publishes, on this machine alone.

use crate::args::ServeArgs;
use crate::observe::state_dir;
use crate::{Outcome, tell};
use instep_agent::published::{HISTORY, HOST, METRICS, history_dir};
use instep_serve::{Address, PublishedFiles, serve};
use std::path::PathBuf;

/// Serves until it is ended by a signal.
pub(crate) fn command(args: &ServeArgs) -> anyhow::Result<Outcome> {
    let state = args.state_dir.clone().unwrap_or_else(published_in);
    let file = |name| state.join(name);
    let past = args.history.clone().unwrap_or_else(|| history_dir(&state));
    let files =
        PublishedFiles { host: file(HOST), history: file(HISTORY), past, metrics: file(METRICS) };
    let address = match &args.unix {
        Some(path) => Address::Unix(path.clone()),
        None => Address::Tcp(args.listen),
    };
    serve(&address, files, |shown| tell(&format!("serves {shown}")))?;
    Ok(Outcome::Fine)
}

/// The directory of this user, where a run of theirs publishes there; else that of the host's run.
fn published_in() -> PathBuf {
    let own = state_dir(None).ok().filter(|own| own.path().join(HOST).exists());
    own.map_or_else(|| PathBuf::from("/run/instep"), |own| own.path().to_owned())
}
