//! What a run prints leaves it through a thread of its own, so that a pipe that nobody reads, a full
//! disk or a slow one never delays placement.
//!
//! ```text
//! loop --offer--> bounded queue --thread--> file, pipe or terminal
//!        |full: dropped, counted     |failed: counted, tried again with the next text
//! ```
//! Each change for the worse, and each recovery, is reported once on standard error. A pipe whose
//! reader has gone is closed for good: what is offered afterwards is discarded and counts as nothing.

use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// Texts that wait at most.
const MAX_WAITING: usize = 256;
/// Bytes that wait at most, if more than one text waits.
const MAX_BYTES: u64 = 8 << 20;

/// Where text goes.
pub(crate) enum Target {
    /// A descriptor of this process, by the name that messages give it.
    Open(File, &'static str),
    /// A log file, which is opened again when it was rotated; `None` while that fails.
    Log(PathBuf, Option<File>),
}

impl Target {
    /// A copy of a standard stream: no lock of this process is held while it is written to.
    pub(crate) fn standard(stream: &impl AsFd, name: &'static str) -> io::Result<Self> {
        Ok(Self::Open(File::from(stream.as_fd().try_clone_to_owned()?), name))
    }

    /// A log that is appended to.
    pub(crate) fn log(path: PathBuf) -> io::Result<Self> {
        let file = append_to(&path)?;
        Ok(Self::Log(path, Some(file)))
    }

    fn name(&self) -> String {
        match self {
            Self::Open(_, name) => (*name).to_owned(),
            Self::Log(path, _) => format!("the log {}", path.display()),
        }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        match self {
            Self::Open(file, _) | Self::Log(_, Some(file)) => file.write_all(text.as_bytes()),
            Self::Log(path, none) => none.insert(append_to(path)?).write_all(text.as_bytes()),
        }
    }

    fn reopen(&mut self) {
        if let Self::Log(_, file) = self {
            // The next text opens it and tells when that fails.
            *file = None;
        }
    }
}

fn append_to(path: &PathBuf) -> io::Result<File> {
    File::options().append(true).create(true).open(path)
}

enum Item {
    Text(String),
    Reopen,
}

/// What both sides know.
#[derive(Default)]
struct Counts {
    /// Texts and bytes that wait.
    waiting: AtomicU64,
    bytes: AtomicU64,
    /// Texts that were not written.
    lost: AtomicU64,
}

/// The loop's side of one target.
pub(crate) struct Outlet {
    sender: SyncSender<Item>,
    counts: Arc<Counts>,
    name: String,
    reports: Option<Reports>,
    /// Texts dropped since the last one that found room.
    dropped: u64,
}

/// Where an outlet reports what it cannot write: the queue of standard error.
#[derive(Clone)]
pub(crate) struct Reports(SyncSender<Item>, Arc<Counts>);

impl Reports {
    fn report(&self, text: &str) {
        let _ = offer(&self.0, &self.1, crate::message(text));
    }
}

/// Puts a text into the queue; false where there is no room for it.
fn offer(sender: &SyncSender<Item>, counts: &Counts, text: String) -> bool {
    let length = text.len() as u64;
    let waiting = counts.bytes.load(Ordering::SeqCst);
    if waiting != 0 && waiting + length > MAX_BYTES {
        return false;
    }
    counts.waiting.fetch_add(1, Ordering::SeqCst);
    counts.bytes.fetch_add(length, Ordering::SeqCst);
    match sender.try_send(Item::Text(text)) {
        Ok(()) => true,
        Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
            counts.waiting.fetch_sub(1, Ordering::SeqCst);
            counts.bytes.fetch_sub(length, Ordering::SeqCst);
            false
        }
    }
}

impl Outlet {
    /// Starts the thread that writes to `target`.
    ///
    /// # Errors
    /// When no thread can be had.
    pub(crate) fn start(target: Target, reports: Option<Reports>) -> io::Result<Self> {
        let (sender, queue) = sync_channel(MAX_WAITING);
        let counts = Arc::new(Counts::default());
        let name = target.name();
        let mut writer = Writer {
            target,
            counts: Arc::clone(&counts),
            reports: reports.clone(),
            failing: 0,
            torn: false,
            closed: false,
        };
        std::thread::Builder::new().name("output".to_owned()).spawn(move || {
            for item in queue {
                writer.take(item);
            }
        })?;
        Ok(Self { sender, counts, name, reports, dropped: 0 })
    }

    /// For other outlets to report on this one, which is standard error.
    pub(crate) fn reports(&self) -> Option<Reports> {
        Some(Reports(self.sender.clone(), Arc::clone(&self.counts)))
    }

    /// Hands over a text, or drops and counts it: never waits.
    pub(crate) fn offer(&mut self, text: String) {
        if !offer(&self.sender, &self.counts, text) {
            self.counts.lost.fetch_add(1, Ordering::SeqCst);
            self.dropped += 1;
            if self.dropped == 1 {
                self.report(&format!(
                    "{} takes no more: what is not written in time is dropped; placement goes on",
                    self.name
                ));
            }
        } else if self.dropped != 0 {
            let dropped = std::mem::take(&mut self.dropped);
            self.report(&format!("{} is written again; {dropped} lost", self.name));
        }
    }

    /// Opens a log again that was rotated.
    pub(crate) fn reopen(&self) {
        let _ = self.sender.try_send(Item::Reopen);
    }

    fn report(&self, text: &str) {
        if let Some(reports) = &self.reports {
            reports.report(text);
        }
    }

    /// Waits until all is written, or `end`; the number of texts that were not.
    pub(crate) fn finish(self, end: Instant) -> u64 {
        while self.counts.waiting.load(Ordering::SeqCst) != 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.counts.lost.load(Ordering::SeqCst) + self.counts.waiting.load(Ordering::SeqCst)
    }
}

/// The thread's side.
struct Writer {
    target: Target,
    counts: Arc<Counts>,
    reports: Option<Reports>,
    /// Texts that failed since the last one that was written.
    failing: u64,
    /// Whether a text may be there in part: the next one begins a line of its own.
    torn: bool,
    /// Whether nobody reads any more.
    closed: bool,
}

impl Writer {
    fn take(&mut self, item: Item) {
        match item {
            Item::Reopen => self.target.reopen(),
            Item::Text(text) => {
                if !self.closed {
                    self.write(&text);
                }
                self.counts.waiting.fetch_sub(1, Ordering::SeqCst);
                self.counts.bytes.fetch_sub(text.len() as u64, Ordering::SeqCst);
            }
        }
    }

    fn write(&mut self, text: &str) {
        let whole = if self.torn { format!("\n{text}") } else { text.to_owned() };
        match self.target.write(&whole) {
            Ok(()) => {
                self.torn = false;
                if self.failing != 0 {
                    self.report(&format!("{} is written again", self.target.name()));
                    self.failing = 0;
                }
            }
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                self.report(&format!(
                    "nobody reads {} any more: nothing is written there; placement goes on until \
                     SIGTERM or SIGINT",
                    self.target.name()
                ));
            }
            Err(error) => {
                self.torn |= matches!(self.target, Target::Log(..));
                self.counts.lost.fetch_add(1, Ordering::SeqCst);
                self.failing += 1;
                if self.failing == 1 {
                    self.report(&format!(
                        "cannot write {}: {error}; placement goes on, and the next record is \
                         tried again",
                        self.target.name()
                    ));
                }
            }
        }
    }

    fn report(&self, text: &str) {
        if let Some(reports) = &self.reports {
            reports.report(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, pipe};

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(200)
    }

    #[test]
    fn reader_that_does_not_read_delays_nobody_and_losses_count() {
        let (reader, writer) = pipe().unwrap();
        let target = Target::standard(&writer, "the pipe").unwrap();
        let mut outlet = Outlet::start(target, None).unwrap();
        let (began, count) = (Instant::now(), 2000);
        (0..count).for_each(|_| outlet.offer("x".repeat(4096)));
        assert!(began.elapsed() < Duration::from_secs(5));
        let lost = outlet.finish(soon());
        // A pipe holds 64 KiB.
        assert!(lost >= count - 17 && lost <= count, "{lost}");
        drop(reader);
    }

    #[test]
    fn closed_pipe_loses_nothing_that_counts() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let mut outlet =
            Outlet::start(Target::standard(&writer, "the pipe").unwrap(), None).unwrap();
        outlet.offer("record\n".to_owned());
        assert_eq!(outlet.finish(soon()), 0);
    }

    #[test]
    fn failed_log_is_reported_once_and_tried_again() {
        let (mut heard, writer) = pipe().unwrap();
        let errors = Outlet::start(Target::standard(&writer, "errors").unwrap(), None).unwrap();
        drop(writer);
        let target = Target::log("/dev/full".into()).unwrap();
        let mut outlet = Outlet::start(target, errors.reports()).unwrap();
        (0..3).for_each(|_| outlet.offer("record\n".to_owned()));
        assert_eq!(outlet.finish(soon()), 3);
        assert_eq!(errors.finish(soon()), 0);
        let mut said = String::new();
        heard.read_to_string(&mut said).unwrap();
        assert!(said.contains("cannot write the log /dev/full: No space left"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }

    #[test]
    fn rotated_log_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("log"), dir.path().join("log.1"));
        let mut outlet = Outlet::start(Target::log(path.clone()).unwrap(), None).unwrap();
        outlet.offer("one\n".to_owned());
        while std::fs::read(&path).unwrap() != b"one\n" {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::rename(&path, &old).unwrap();
        outlet.reopen();
        outlet.offer("two\n".to_owned());
        assert_eq!(outlet.finish(Instant::now() + Duration::from_secs(20)), 0);
        assert_eq!(std::fs::read(&old).unwrap(), b"one\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"two\n");
    }
}
