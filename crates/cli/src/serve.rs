//! `instep serve`: the page and the metrics of what a run publishes, on this machine alone.

use crate::args::ServeArgs;
use crate::observe::seen_state_dir;
use crate::{Outcome, tell};
use instep_agent::published::{HISTORY, HOST, METRICS, history_dir};
use instep_serve::{Address, PublishedFiles, serve};

/// Serves until it is ended by a signal.
pub(crate) fn command(args: &ServeArgs) -> anyhow::Result<Outcome> {
    let state = seen_state_dir(args.state_dir.as_deref());
    let file = |name| state.path().join(name);
    let past = args.history.clone().unwrap_or_else(|| history_dir(state.path()));
    let files =
        PublishedFiles { host: file(HOST), history: file(HISTORY), past, metrics: file(METRICS) };
    let address = match &args.unix {
        Some(path) => Address::Unix(path.clone()),
        None => Address::Tcp(args.listen),
    };
    serve(&address, files, |shown| tell(&format!("serves {shown}")))?;
    Ok(Outcome::Fine)
}
