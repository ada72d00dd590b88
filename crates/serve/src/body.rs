//! What an answer holds: bytes that are known, or events as they come.

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use crate::files::Shown;

/// After so long without an event a comment is sent, which finds out that nobody listens any more.
const BEAT: Duration = Duration::from_secs(15);

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Body {
    Whole(Option<Bytes>),
    /// Server-sent events. One waits to be written at most: a slow reader misses some, and hears the newest.
    Events(mpsc::Receiver<Bytes>),
}

impl Body {
    pub(crate) fn of(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()))
    }

    /// Tells which version is shown, now and whenever that changes, until nobody listens.
    pub(crate) fn events(
        mut shown: watch::Receiver<Arc<Shown>>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let _permit = permit;
            let mut text = "retry: 3000\n".to_owned();
            loop {
                let version = shown.borrow_and_update().version;
                text.push_str(&format!("event: state\ndata: {version}\n\n"));
                if sender.send(std::mem::take(&mut text).into()).await.is_err() {
                    return;
                }
                while let Err(_late) = tokio::time::timeout(BEAT, shown.changed()).await {
                    if sender.send(Bytes::from_static(b":\n\n")).await.is_err() {
                        return;
                    }
                }
            }
        });
        Self::Events(receiver)
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take()),
            Self::Events(receiver) => receiver.poll_recv(context),
        };
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Events(_) => SizeHint::default(),
        }
    }
}
