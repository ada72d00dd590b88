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
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

    /// The file, which is opened where it is not; `line` is its last one.
    fn file(&mut self, line: &mut Line) -> io::Result<&mut File> {
        match self {
            Self::Open(file, _) | Self::Log(_, Some(file)) => Ok(file),
            Self::Log(path, none) => {
                let file = append_to(path)?;
                line.is_open &= file.metadata()?.len() != 0;
                Ok(none.insert(file))
            }
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

/// Whether the last line of a file lacks its end, as the disk was full in the middle of it: the next text
/// begins a line of its own then.
#[derive(Default)]
struct Line {
    is_open: bool,
}

impl Line {
    fn write(&mut self, file: &mut impl Write, text: &str) -> io::Result<()> {
        let whole = if self.is_open { format!("\n{text}") } else { text.to_owned() };
        let mut rest = whole.as_bytes();
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.is_open = rest[written - 1] != b'\n';
                    rest = &rest[written..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

enum Item {
    Text(String),
    /// Something else than a text is to be done, see [`Counts::reopen`].
    Nudge,
}

/// What both sides know.
#[derive(Default)]
struct Counts {
    /// Texts and bytes that wait.
    waiting: AtomicU64,
    bytes: AtomicU64,
    /// Texts that were not written.
    lost: AtomicU64,
    /// Whether the log is to be opened again. It is no item of the queue, which may be full.
    reopen: AtomicBool,
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
            line: Line::default(),
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
        self.counts.reopen.store(true, Ordering::SeqCst);
        let _ = self.sender.try_send(Item::Nudge);
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
    line: Line,
    /// Whether nobody reads any more.
    closed: bool,
}

impl Writer {
    fn take(&mut self, item: Item) {
        if self.counts.reopen.swap(false, Ordering::SeqCst) {
            self.target.reopen();
        }
        match item {
            Item::Nudge => {}
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
        let line = &mut self.line;
        match self.target.file(line).and_then(|file| line.write(file, text)) {
            Ok(()) => {
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

    /// Later than all that is waited for; a busy machine is slow.
    fn in_time() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn stuck_reader_delays_nothing_and_losses_are_counted() {
        let (reader, writer) = pipe().unwrap();
        let target = Target::standard(&writer, "the pipe").unwrap();
        let mut outlet = Outlet::start(target, None).unwrap();
        let (began, count) = (Instant::now(), 2000);
        (0..count).for_each(|_| outlet.offer("x".repeat(4096)));
        assert!(began.elapsed() < Duration::from_secs(5));
        let lost = outlet.finish(Instant::now());
        // A pipe holds 64 KiB, which may not all be there yet.
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
        assert_eq!(outlet.finish(in_time()), 0);
    }

    #[test]
    fn failed_log_is_reported_once_and_tried_again() {
        let (mut heard, writer) = pipe().unwrap();
        let errors = Outlet::start(Target::standard(&writer, "errors").unwrap(), None).unwrap();
        drop(writer);
        let target = Target::log("/dev/full".into()).unwrap();
        let mut outlet = Outlet::start(target, errors.reports()).unwrap();
        (0..3).for_each(|_| outlet.offer("record\n".to_owned()));
        assert_eq!(outlet.finish(in_time()), 3);
        assert_eq!(errors.finish(in_time()), 0);
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
        let end = in_time();
        while std::fs::read(&path).unwrap() != b"one\n" {
            assert!(Instant::now() < end, "nothing is written");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::rename(&path, &old).unwrap();
        outlet.reopen();
        outlet.offer("two\n".to_owned());
        assert_eq!(outlet.finish(in_time()), 0);
        assert_eq!(std::fs::read(&old).unwrap(), b"one\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"two\n");
    }

    /// A log that cannot be written to for now: a pipe that is full.
    fn stuck() -> (tempfile::TempDir, PathBuf, File, Target) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let reader = File::options().read(true).write(true).open(&path).unwrap();
        (dir, path.clone(), reader, Target::log(path).unwrap())
    }

    #[test]
    fn log_is_opened_again_even_if_the_queue_was_full_at_the_time() {
        let (_dir, path, mut reader, target) = stuck();
        let mut outlet = Outlet::start(target, None).unwrap();
        (0..2000).for_each(|_| outlet.offer("x".repeat(4095) + "\n"));
        std::fs::rename(&path, path.with_extension("1")).unwrap();
        outlet.reopen();
        // It is read again from now on, and the rest goes where the log is now.
        let reads = std::thread::spawn(move || while reader.read(&mut [0; 4096]).unwrap() != 0 {});
        outlet.finish(in_time());
        assert!(std::fs::read(&path).unwrap().ends_with(b"x\n"));
        drop(reads);
    }

    #[test]
    fn full_disk_leaves_no_empty_lines_and_no_line_in_two() {
        /// A file with room for so many bytes.
        struct Disk(Vec<u8>, usize);
        impl Write for Disk {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let room = bytes.len().min(self.1);
                if room == 0 {
                    return Err(ErrorKind::StorageFull.into());
                }
                self.0.extend(&bytes[..room]);
                self.1 -= room;
                Ok(room)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for room in 0..9 {
            let (mut disk, mut line) = (Disk(Vec::new(), room), Line::default());
            for text in ["one\n", "two\n", "three\n"] {
                let _ = line.write(&mut disk, text);
            }
            disk.1 = usize::MAX;
            for text in ["four\n", "five\n"] {
                line.write(&mut disk, text).unwrap();
            }
            let text = String::from_utf8(disk.0).unwrap();
            assert!(text.ends_with("\nfour\nfive\n") || text == "four\nfive\n", "{room}: {text:?}");
            assert!(!text.contains("\n\n"), "{room}: {text:?}");
        }
    }
}
