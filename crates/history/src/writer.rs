//! Writes moments into segments, the oldest of which go when there is no room.
//!
//! ```text
//!            failed write: cut off, the segment ends
//! no segment --line--> segment --line--> ... --full--> ended, on disk, next
//! ```
//! Each moment is handed to the kernel before the next is taken, so a killed process loses the one that it was writing at most.
//! A segment is on disk (fdatasync) when it ends; a host that loses power loses the one that was being written.

use crate::segment::Name;
use crate::{Error, FULL_PLAIN, MAX_LINE, MOST_SEGMENTS, at};
use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use zstd::stream::write::Encoder;

/// The least that a history may be bounded to, in bytes.
pub const LEAST_SIZE: u64 = 1 << 20;

/// How strongly it is compressed. A window of 4 MiB holds several moments of a large host, which are much alike.
const LEVEL: i32 = 3;
const WINDOW: u32 = 22;
/// The most bytes of a segment. Small segments lose little when the oldest one is removed, and are read quickly.
const FULL_PACKED: u64 = 1 << 20;
/// Segments that a small history is divided into at least.
const LEAST_SEGMENTS: u64 = 16;

/// Writes a history.
#[derive(Debug)]
pub struct Writer {
    dir: PathBuf,
    size: u64,
    /// Segments with their bytes, the oldest first, the one that is being written last.
    segments: VecDeque<(Name, u64)>,
    /// The bytes of all of them.
    total: u64,
    current: Option<Current>,
}

/// The segment that is being written.
struct Current {
    path: PathBuf,
    file: File,
    encoder: Encoder<'static, Vec<u8>>,
    /// Bytes that are in the file, and of lines that they hold.
    packed: u64,
    plain: usize,
}

impl std::fmt::Debug for Current {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Current").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Writer {
    /// Goes on with the history in `dir`, which is made where it is not there; everybody may read it. All of it has `size`
    /// bytes at most.
    ///
    /// # Errors
    /// The directory cannot be made or listed.
    pub fn open(dir: &Path, size: u64) -> Result<Self, Error> {
        make(dir).map_err(at(dir))?;
        let segments: VecDeque<(Name, u64)> = Name::list(dir)?.into();
        let total = segments.iter().map(|(_, bytes)| bytes).sum();
        let size = size.max(LEAST_SIZE);
        let mut writer = Self { dir: dir.to_owned(), size, segments, total, current: None };
        writer.make_room(0)?;
        Ok(writer)
    }

    /// The bytes that it has on disk.
    pub fn bytes(&self) -> u64 {
        self.total
    }

    /// Adds a moment of this time, and tells the bytes that it has on disk; `line` is one that begins with
    /// [`opening`](crate::opening), without its end.
    ///
    /// # Errors
    /// It is too large, or cannot be written; what was written of it is taken back.
    pub fn append(&mut self, at_ms: u64, line: &[u8]) -> Result<u64, Error> {
        let most = line.len() + line.len() / 128 + 1024;
        if line.len() >= MAX_LINE || most as u64 > self.size / 4 {
            return Err(Error::TooLarge { bytes: line.len(), size: self.size });
        }
        self.make_room(most as u64)?;
        if self.current.is_none() {
            self.begin(at_ms)?;
        }
        let Some(mut current) = self.current.take() else { return Ok(0) };
        let before = current.packed;
        let written = current.append(line);
        let grown = current.packed - before;
        self.total += grown;
        if let Some((_, bytes)) = self.segments.back_mut() {
            *bytes += grown;
        }
        if let Err(error) = written {
            // The next moment begins a new segment: this one's stream is no longer in step with its file.
            if current.packed == 0 {
                // On a full disk there would be an empty one for each moment.
                let _ = fs::remove_file(&current.path);
                self.segments.pop_back();
            }
            return Err(at(&current.path)(error));
        }
        if current.packed >= FULL_PACKED.min(self.size / LEAST_SEGMENTS)
            || current.plain >= FULL_PLAIN
        {
            self.end_segment(current)?;
        } else {
            self.current = Some(current);
        }
        Ok(grown)
    }

    /// Ends the segment that is being written and waits until it is on disk.
    ///
    /// # Errors
    /// The disk is full, or fails.
    pub fn end(&mut self) -> Result<(), Error> {
        self.current.take().map_or(Ok(()), |current| self.end_segment(current))
    }

    fn end_segment(&mut self, current: Current) -> Result<(), Error> {
        let Current { path, mut file, mut encoder, .. } = current;
        let ended = encoder.do_finish().and_then(|()| {
            let rest = encoder.get_ref();
            file.write_all(rest)?;
            self.total += rest.len() as u64;
            if let Some((_, bytes)) = self.segments.back_mut() {
                *bytes += rest.len() as u64;
            }
            file.sync_data()
        });
        ended.map_err(at(&path))
    }

    fn begin(&mut self, at_ms: u64) -> Result<(), Error> {
        let number = self.segments.back().map_or(1, |(name, _)| name.number.saturating_add(1));
        let name = Name { number, at_ms };
        let path = self.dir.join(name.file());
        // Somebody may have removed the directory meanwhile.
        make(&self.dir).map_err(at(&self.dir))?;
        let current = Current::begin(path.clone()).map_err(at(&path))?;
        self.segments.push_back((name, 0));
        self.current = Some(current);
        Ok(())
    }

    /// Removes the oldest segments until so many bytes more have room.
    fn make_room(&mut self, more: u64) -> Result<(), Error> {
        while self.total + more > self.size || self.segments.len() > MOST_SEGMENTS {
            if self.segments.len() == 1 {
                self.current = None;
            }
            let Some((name, bytes)) = self.segments.pop_front() else { break };
            self.total = self.total.saturating_sub(bytes);
            let path = self.dir.join(name.file());
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    // It counts on, and is tried again.
                    self.total += bytes;
                    self.segments.push_front((name, bytes));
                    return Err(at(&path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl Current {
    fn begin(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&path)?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        let mut encoder = Encoder::new(Vec::new(), LEVEL)?;
        encoder.window_log(WINDOW)?;
        Ok(Self { path, file, encoder, packed: 0, plain: 0 })
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.encoder.write_all(line)?;
        self.encoder.write_all(b"\n")?;
        self.encoder.flush()?;
        let bytes = std::mem::take(self.encoder.get_mut());
        let written = self.file.write_all(&bytes);
        if let Err(error) = written {
            // Half of it must not stay; where that fails, too, its reader finds that its end is torn.
            let _ = self.file.set_len(self.packed);
            return Err(error);
        }
        self.packed += bytes.len() as u64;
        self.plain += line.len() + 1;
        Ok(())
    }
}

/// Makes a directory that everybody may read, whatever the umask. One that is there stays as it is.
fn make(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    fs::set_permissions(dir, Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cursor, Segment, opening};
    use rand_xoshiro::SplitMix64;
    use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

    /// A line that hardly compresses, so that bounds are met soon.
    fn line(at_ms: u64, bytes: usize) -> Vec<u8> {
        let mut random = SplitMix64::seed_from_u64(at_ms);
        let mut text = opening(at_ms) + "\"x\":\"";
        for _ in 0..bytes {
            text.push(char::from(b'a' + (random.next_u64() % 26) as u8));
        }
        (text + "\"}").into_bytes()
    }

    fn files(dir: &Path) -> Vec<(PathBuf, u64)> {
        let of = |(name, bytes): (Name, u64)| (dir.join(name.file()), bytes);
        Name::list(dir).unwrap().into_iter().map(of).collect()
    }

    fn times(dir: &Path) -> Vec<u64> {
        let read = |(path, _): &(PathBuf, u64)| Segment::read(path).unwrap();
        let segments: Vec<Segment> = files(dir).iter().map(read).collect();
        let all = |segment: &Segment| -> Vec<u64> {
            (0..segment.len()).map(|place| segment.moment(place).unwrap().at_ms).collect()
        };
        segments.iter().flat_map(all).collect()
    }

    #[test]
    fn bytes_on_disk_keep_the_bound_and_the_oldest_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(dir.path(), LEAST_SIZE).unwrap();
        for at in 1..=200 {
            writer.append(at, &line(at, 20_000)).unwrap();
            let bytes: u64 = files(dir.path()).iter().map(|(_, bytes)| bytes).sum();
            assert!(bytes <= LEAST_SIZE, "{bytes}");
            assert_eq!(bytes, writer.bytes());
        }
        let kept = times(dir.path());
        assert_eq!((kept.last(), kept.is_sorted()), (Some(&200), true));
        assert!((40..100).contains(&kept.len()), "{}", kept.len());
        // A bound that is smaller than before holds from the first record on.
        drop(writer);
        assert!(matches!(
            Writer::open(dir.path(), 0).unwrap().append(1, &line(1, 300_000)),
            Err(Error::TooLarge { .. })
        ));
    }

    #[test]
    fn segment_of_killed_writer_is_read_up_to_its_last_whole_moment() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(dir.path(), LEAST_SIZE).unwrap();
        let mut whole = Vec::new();
        for at in 1..=3 {
            writer.append(at, &line(at, 500)).unwrap();
            whole.push(writer.bytes());
        }
        // As it is while the writer lives, and after kill -9.
        let (path, _) = files(dir.path()).remove(0);
        let bytes = fs::read(&path).unwrap();
        std::mem::forget(writer);
        for cut in 0..=bytes.len() {
            let segment = Segment::parse(&bytes[..cut]);
            let complete = whole.iter().filter(|end| **end <= cut as u64).count();
            assert_eq!(segment.len(), complete, "{cut} of {}", bytes.len());
            let is_whole = cut == 0 || whole.contains(&(cut as u64));
            assert!(
                segment.torn().is_none() == is_whole || cut < 20,
                "{cut}: {:?}",
                segment.torn()
            );
        }
        fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
        // The next one begins a segment of its own.
        let mut writer = Writer::open(dir.path(), LEAST_SIZE).unwrap();
        writer.append(4, &line(4, 500)).unwrap();
        assert_eq!(times(dir.path()), [1, 2, 4]);
        assert_eq!(files(dir.path()).len(), 2);
    }

    #[test]
    fn full_disk_loses_what_has_no_room_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(dir.path(), LEAST_SIZE).unwrap();
        writer.append(1, &line(1, 500)).unwrap();
        let whole = writer.bytes();
        // A file that cannot grow stands for a disk that is full.
        let current = writer.current.as_mut().unwrap();
        current.file = File::options().write(true).open("/dev/full").unwrap();
        let error = writer.append(2, &line(2, 500)).unwrap_err().to_string();
        assert!(error.contains("No space left"), "{error}");
        assert_eq!(writer.bytes(), whole);
        writer.begin(2).unwrap();
        writer.current.as_mut().unwrap().file =
            File::options().write(true).open("/dev/full").unwrap();
        writer.append(2, &line(2, 500)).unwrap_err();
        assert_eq!(files(dir.path()).len(), 1, "no empty segment is left");
        writer.append(3, &line(3, 500)).unwrap();
        writer.end().unwrap();
        assert_eq!(times(dir.path()), [1, 3]);
    }

    #[test]
    fn directory_that_was_removed_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("a/history");
        let mut writer = Writer::open(&own, LEAST_SIZE).unwrap();
        writer.append(1, &line(1, 50)).unwrap();
        fs::remove_dir_all(&own).unwrap();
        writer.end().unwrap();
        writer.append(2, &line(2, 50)).unwrap();
        assert_eq!(times(&own), [2]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&own), mode(&files(&own)[0].0)), (0o755, 0o644));
    }

    #[test]
    fn clock_that_jumps_back_leaves_all_in_the_order_of_writing() {
        let dir = tempfile::tempdir().unwrap();
        for times in [[5000, 6000], [1000, 2000], [9000, 9001]] {
            let mut writer = Writer::open(dir.path(), LEAST_SIZE).unwrap();
            times.iter().for_each(|at| _ = writer.append(*at, &line(*at, 50)).unwrap());
        }
        assert_eq!(times(dir.path()), [5000, 6000, 1000, 2000, 9000, 9001]);
        let mut cursor = Cursor::open(dir.path()).unwrap();
        let mut seek = |at| {
            cursor.seek(at).unwrap();
            cursor.moment().unwrap().at_ms
        };
        // The newest of what has this time, or the next one before it.
        assert_eq!(
            [seek(9000), seek(8000), seek(1500), seek(2), seek(u64::MAX)],
            [9000, 2000, 1000, 5000, 9001]
        );
    }
}
