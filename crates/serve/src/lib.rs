//! `instep serve`: what a run publishes, as a page, as metrics and as JSON, over HTTP to this machine alone.
//!
//! ```text
//! host.json, history.json, metrics.prom --looked at each second--> Shown --+--> /  /state.json  /metrics
//!                                                                          +--> /events: which version is shown
//! history on disk ---------looked at when asked for------------------------> Past --> /day.json  /moment.json?at=TIME
//! ```
//! One thread without privileges, which reads files that everybody may read. Requests are answered from memory, but for
//! those of the past. All is bounded: connections, headers, times, streams of events, the time that the past takes.
//! It knows neither the agent nor how anything is measured.
//!
//! A page and Prometheus must get at a run's state without risk for the process that changes affinities. So this is a
//! process of its own, which becomes nobody before the first connection if root starts it. It listens on loopback or a Unix
//! socket, without a password; the `Host` header must name loopback, against DNS rebinding. The page is one HTML file, with
//! script and style allowed by a random number in each answer, and text of others is set as text only. hyper and tokio (8 new
//! crates) limit the time and size of headers. Rejected: axum, which has no time limit, and a crate with the licence
//! Apache-2.0 alone (decision 21); a server in std, with a thread for each connection and an HTTP parser of our own.
#![forbid(unsafe_code)]

mod address;
mod answer;
mod body;
mod connection;
mod files;
mod past;
mod privileges;

pub use address::{Address, BadAddress, loopback};
pub use connection::{MOST_CONNECTIONS, answer_bytes};
pub use files::{Document, PublishedFiles};

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Why nothing can be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be used.
    #[error("cannot listen on {address}: {source}; {next}")]
    Listen {
        /// What it was to listen on.
        address: String,
        /// Why.
        source: io::Error,
        /// What to do.
        next: &'static str,
    },
    /// Privileges that are not needed could not be given up.
    #[error(
        "cannot give up the privileges of this process: {0}; run it as a user that has none: \
         setpriv --reuid nobody --regid nogroup --clear-groups instep serve"
    )]
    Privileges(#[source] io::Error),
    /// The system gives no events of sockets.
    #[error("cannot wait for connections: {0}; look at the limits of this process (ulimit -a)")]
    Runtime(#[source] io::Error),
}

/// Serves until the process is ended. `ready` hears where, once connections are taken and privileges are gone.
///
/// # Errors
/// The address cannot be listened on, or privileges cannot be given up.
pub fn serve(
    address: &Address,
    files: PublishedFiles,
    ready: impl FnOnce(&str),
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    runtime.map_err(Error::Runtime)?.block_on(async {
        let listener = address::Listener::bind(address)?;
        privileges::give_up().map_err(Error::Privileges)?;
        let (sender, shown) = watch::channel(Arc::new(files.read()));
        ready(&listener.shown());
        let past = files.past.clone();
        tokio::spawn(follow(files, sender));
        connection::accept(&listener, &shown, past).await;
        Ok(())
    })
}

/// Reads the files again when they have changed.
async fn follow(files: PublishedFiles, sender: watch::Sender<Arc<files::Shown>>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let is_old = {
            let shown = sender.borrow();
            files.state() != shown.state || shown.is_overdue_since(SystemTime::now())
        };
        if is_old {
            sender.send_replace(Arc::new(files.read()));
        }
    }
}
