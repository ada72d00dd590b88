//! Writes the history on a thread of its own, so that a slow or full disk never delays placement.
//!
//! ```text
//! loop --offer--> bounded queue --thread--> segments, day.json
//!        |full: dropped, counted     |failed: counted, tried again with the next
//! ```

use crate::published::DAY;
use crate::state_file::publish_file;
use instep_history::{Error, Writer};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What waits at most, in items and in bytes.
const MOST_WAITING: usize = 8;
const MOST_BYTES: u64 = 32 << 20;
/// What the file of the day may have of the bytes of the history.
const DAY_BYTES: u64 = 8 << 20;

const DAY_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The history as the thread that writes it left it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Moments that were written, and those that were not.
    pub(super) written: u64,
    pub(super) lost: u64,
    /// Bytes of its segments, and of the moments that were written.
    pub(super) bytes: u64,
    pub(super) grown: u64,
    /// Why the last moment or day could not be written; `None` where it could.
    pub(super) trouble: Option<String>,
    /// Bytes that wait.
    waiting: u64,
    is_done: bool,
}

/// The loop's side.
#[derive(Debug)]
pub(super) struct Recorder {
    /// `None` once it is finished.
    sender: Option<SyncSender<Item>>,
    /// Bytes for the moments of a day; some more are for those with changes.
    room: u32,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
enum Item {
    /// A moment of this time.
    Moment(u64, Vec<u8>),
    Day(Vec<u8>),
}

impl Item {
    fn bytes(&self) -> u64 {
        let (Self::Moment(_, bytes) | Self::Day(bytes)) = self;
        bytes.len() as u64
    }
}

/// Goes on with the history in this directory, also if root began it in the service's.
fn open(dir: &Path, size: u64) -> Result<Writer, Error> {
    let shared = || {
        let shared = instep_state::share_directory(dir);
        shared.map_err(|source| Error::File { path: dir.to_owned(), source })
    };
    if dir.is_symlink() {
        shared()?;
    }
    let writer = Writer::open(dir, size)?;
    shared().map(|()| writer)
}

impl Recorder {
    /// Starts the thread for a history in this directory that has so many bytes at most.
    ///
    /// # Errors
    /// When no thread can be had.
    pub(super) fn start(dir: &Path, size: u64) -> io::Result<Self> {
        let (sender, queue) = sync_channel(MOST_WAITING);
        let state = Arc::new(Mutex::new(State::default()));
        let size = size.saturating_sub(DAY_BYTES);
        let thread = Thread { dir: dir.to_owned(), size, writer: None, state: Arc::clone(&state) };
        std::thread::Builder::new().name("history".to_owned()).spawn(move || thread.run(&queue))?;
        let room = u32::try_from(size / 8 * 7).unwrap_or(u32::MAX).max(1);
        Ok(Self { sender: Some(sender), room, state })
    }

    /// Hands over a moment, or drops and counts it: never waits.
    pub(super) fn offer_moment(&self, at_ms: u64, line: Vec<u8>) {
        self.offer(Item::Moment(at_ms, line));
    }

    /// Hands over the day, which replaces the one that is there.
    pub(super) fn offer_day(&self, bytes: Vec<u8>) {
        self.offer(Item::Day(bytes));
    }

    fn offer(&self, item: Item) {
        let Some(sender) = &self.sender else { return };
        let bytes = item.bytes();
        let mut state = lock(&self.state);
        let is_moment = matches!(item, Item::Moment(..));
        let has_room = state.waiting == 0 || state.waiting + bytes <= MOST_BYTES;
        let is_taken = has_room && sender.try_send(item).is_ok();
        if is_taken {
            state.waiting += bytes;
        } else {
            state.lost += u64::from(is_moment);
            state.trouble =
                Some("the disk takes no more: what is not written in time is dropped".to_owned());
        }
    }

    /// The least time between two moments with which a day of them has room: how much they take is known of
    /// those that this run wrote.
    pub(super) fn spacing(&self) -> Duration {
        let state = self.state();
        let mean = state.grown.checked_div(state.written).unwrap_or(0);
        DAY_TIME * u32::try_from(mean).unwrap_or(u32::MAX) / self.room
    }

    /// What became of it so far.
    pub(super) fn state(&self) -> State {
        lock(&self.state).clone()
    }

    /// Waits until all is written, for so long at most.
    pub(super) fn finish(&mut self, patience: Duration) {
        self.sender = None;
        let end = Instant::now() + patience;
        while !lock(&self.state).is_done && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The thread's side.
struct Thread {
    dir: PathBuf,
    size: u64,
    /// `None` where the directory could not be used so far.
    writer: Option<Writer>,
    state: Arc<Mutex<State>>,
}

impl Thread {
    fn run(mut self, queue: &Receiver<Item>) {
        for item in queue {
            let bytes = item.bytes();
            let is_moment = matches!(item, Item::Moment(..));
            let done = self.write(&item);
            let mut state = lock(&self.state);
            state.waiting = state.waiting.saturating_sub(bytes);
            if is_moment {
                *(if done.is_ok() { &mut state.written } else { &mut state.lost }) += 1;
            }
            state.grown += done.as_ref().map_or(0, |grown| *grown);
            state.bytes = self.writer.as_ref().map_or(0, Writer::bytes);
            state.trouble = done.err().map(|error| error.to_string());
        }
        if let Some(mut writer) = self.writer.take()
            && let Err(error) = writer.end()
        {
            tracing::debug!(%error, "cannot end the history");
        }
        lock(&self.state).is_done = true;
    }

    /// Writes it; the bytes by which the segments grow.
    fn write(&mut self, item: &Item) -> Result<u64, Error> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(open(&self.dir, self.size)?),
        };
        match item {
            Item::Moment(at_ms, line) => writer.append(*at_ms, line),
            Item::Day(bytes) if bytes.len() as u64 > DAY_BYTES => {
                Err(Error::TooLarge { bytes: bytes.len(), size: DAY_BYTES })
            }
            Item::Day(bytes) => {
                let path = self.dir.join(DAY);
                let written = publish_file(&path, bytes).map(|()| 0);
                written.map_err(|source| Error::File { path, source })
            }
        }
    }
}

/// Nothing that holds it can fail half-way.
fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_drops_counts_and_delays_nothing() {
        // Nobody takes anything: the disk hangs.
        let (sender, queue) = sync_channel(MOST_WAITING);
        let mut recorder = Recorder { sender: Some(sender), room: 1, state: Arc::default() };
        let began = Instant::now();
        (0..100).for_each(|at| recorder.offer_moment(at, vec![b'x'; 5 << 20]));
        let state = recorder.state();
        assert_eq!((state.lost, state.waiting), (94, 30 << 20));
        assert!(state.trouble.unwrap().contains("dropped"));
        recorder.finish(Duration::from_millis(20));
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert_eq!(queue.iter().count(), 6);
    }

    #[test]
    fn day_has_room_however_large_moments_are() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let recorder = Recorder::start(dir.path(), 64 << 20).unwrap();
        assert_eq!(recorder.spacing(), Duration::ZERO, "nothing is known yet");
        let spacing_of = |mean: u64| {
            (lock(&recorder.state).written, lock(&recorder.state).grown) = (3, mean * 3);
            recorder.spacing()
        };
        // 500 VMs with 4 vCPUs each, and 1,024 with 16.
        for (mean, least) in [(37_000, 60), (214_000, 340)] {
            let spacing = spacing_of(mean);
            assert!((least..least + 30).contains(&spacing.as_secs()), "{spacing:?}");
            assert!(mean * 86_400 / spacing.as_secs() < (64 << 20) - DAY_BYTES);
        }
    }

    #[test]
    fn day_beyond_its_part_is_not_written() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let mut recorder = Recorder::start(dir.path(), 16 << 20).unwrap();
        recorder.offer_day(vec![b'1'; 100]);
        recorder.offer_day(vec![b'2'; (8 << 20) + 1]);
        recorder.finish(Duration::from_secs(20));
        assert!(recorder.state().trouble.unwrap().contains("no room"));
        assert_eq!(std::fs::read(dir.path().join(DAY)).unwrap(), vec![b'1'; 100]);
    }
}
