//! Connections and their bounds: how many there are, how long a header may take, how long a reader may read nothing.
//!
//! ```text
//! a place is free? accept -> header (3 s, 16 KiB) -> answer -> written (10 s without a byte read: ended) -> closed
//!      no: it waits in the kernel's queue                        10 minutes at most in all
//! ```
//! A connection carries one request, so that none is held for a next one.

use crate::address::{Accepted, Listener};
use crate::answer::Server;
use crate::files::{PublishedFiles, Shown};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep, timeout};

/// Connections at the same time; others wait.
pub const MOST_CONNECTIONS: usize = 512;
/// How long the header of a request may take.
const HEADER: Duration = Duration::from_secs(3);
/// The most bytes of a header, and the most lines.
const HEADER_BYTES: usize = 16 << 10;
const HEADER_LINES: usize = 64;
/// How long a reader may take nothing of what is written.
const STALL: Duration = Duration::from_secs(10);
/// The longest that a connection lasts; a browser asks for events anew.
const LIFE: Duration = Duration::from_secs(600);

/// Takes connections for ever.
pub(crate) async fn accept(
    listener: &Listener,
    shown: &watch::Receiver<Arc<Shown>>,
    past: PathBuf,
) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let server = Server::new(shown.clone(), past);
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let server = server.clone();
        match listener.accept().await {
            Ok(accepted) => {
                _ = tokio::spawn(async move {
                    let _place = place;
                    match accepted {
                        Accepted::Tcp(stream) => attend(stream, server).await,
                        Accepted::Unix(stream) => attend(stream, server).await,
                    }
                })
            }
            // Such as a limit of descriptors: it passes when connections end.
            Err(error) => {
                tracing::debug!(%error, "cannot take a connection");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Answers the request of a connection.
async fn attend<S: AsyncRead + AsyncWrite + Unpin>(stream: S, server: Server) {
    let service = service_fn(move |request| {
        let answer = server.answer(&request);
        async move { Ok::<_, std::convert::Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER)
        .max_headers(HEADER_LINES)
        .max_buf_size(HEADER_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(Impatient { stream, stalled: None }), service);
    match timeout(LIFE, connection).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection ended early"),
    }
}

/// What the server answers to these bytes of a client, for tests and fuzzing.
///
/// # Panics
/// Where no runtime can be made.
#[must_use]
pub fn answer_bytes(files: &PublishedFiles, request: &[u8]) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime without sockets takes nothing of the system");
    let (_sender, shown) = watch::channel(Arc::new(files.read()));
    let mut written = Vec::new();
    let memory = Memory { read: request, written: &mut written };
    // Events go on until the client is gone.
    runtime.block_on(async {
        let server = Server::new(shown, files.past.clone());
        let _ = timeout(Duration::from_millis(50), attend(memory, server)).await;
    });
    written
}

/// A client in memory, which ends after what it sends.
struct Memory<'a> {
    read: &'a [u8],
    written: &'a mut Vec<u8>,
}

impl AsyncRead for Memory<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (now, later) = self.read.split_at(self.read.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.read = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Memory<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.written.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A stream that fails when its reader takes nothing for too long.
struct Impatient<S> {
    stream: S,
    /// Set while the reader takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    /// The same, or an error when it has been pending for too long.
    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.stalled = None;
            return done;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALL)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.bounded(context, done)
    }

    // Without it hyper copies each answer, to write head and body at once.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
