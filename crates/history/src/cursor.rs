//! A place in a history that can be moved: to a time, forth and back.
//!
//! One segment is in memory at a time. The history may grow, and lose its oldest segments, meanwhile.

use crate::segment::{Moment, Name, Segment};
use crate::{Error, at};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A place in a history.
#[derive(Debug)]
pub struct Cursor {
    path: PathBuf,
    /// The segments of a directory in their order; one for a file.
    segments: Vec<Name>,
    is_file: bool,
    /// Which of them is loaded, and the place of the moment in it.
    loaded: Segment,
    index: usize,
    place: usize,
    notes: Vec<String>,
}

/// Notes that are kept at most.
const MOST_NOTES: usize = 32;

impl Cursor {
    /// At the newest moment of the history in a directory, or in one file of it.
    ///
    /// # Errors
    /// It cannot be read, or holds no moment.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut cursor = Self::beside(path)?;
        cursor.last()?;
        Ok(cursor)
    }

    /// At the moment that [`seek`](Self::seek) finds.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn at(path: &Path, at_ms: u64) -> Result<Self, Error> {
        let mut cursor = Self::beside(path)?;
        cursor.seek(at_ms)?;
        Ok(cursor)
    }

    /// At no moment yet.
    fn beside(path: &Path) -> Result<Self, Error> {
        let is_file = !fs::metadata(path).map_err(at(path))?.is_dir();
        let mut cursor = Self {
            path: path.to_owned(),
            segments: Vec::new(),
            is_file,
            loaded: Segment::default(),
            index: 0,
            place: 0,
            notes: Vec::new(),
        };
        if is_file {
            cursor.segments.push(Name { number: 0, at_ms: 0 });
        }
        Ok(cursor)
    }

    /// The moment at which it is.
    pub fn moment(&self) -> Option<Moment<'_>> {
        self.loaded.moment(self.place)
    }

    /// What could not be read so far; each failure is returned once.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Moves to the first moment.
    ///
    /// # Errors
    /// There is none.
    pub fn first(&mut self) -> Result<(), Error> {
        self.refresh()?;
        self.load_from(0, 1, |_| 0)
    }

    /// Moves to the last moment.
    ///
    /// # Errors
    /// There is none.
    pub fn last(&mut self) -> Result<(), Error> {
        self.refresh()?;
        self.load_from(self.segments.len().wrapping_sub(1), -1, |segment| segment.len() - 1)
    }

    /// Moves to the last moment that is not later than this, or to the first one where all are later.
    ///
    /// # Errors
    /// There is none.
    pub fn seek(&mut self, at_ms: u64) -> Result<(), Error> {
        self.refresh()?;
        let Some(index) = self.segments.iter().rposition(|name| name.at_ms <= at_ms) else {
            return self.load_from(0, 1, |_| 0);
        };
        let last = |segment: &Segment| segment.len() - 1;
        self.load_from(index, -1, |segment| segment.last_until(at_ms).unwrap_or(last(segment)))
            .or_else(|_| self.load_from(0, 1, |_| 0))
    }

    /// Moves to the next moment; whether there is one.
    ///
    /// # Errors
    /// The history is gone.
    pub fn forward(&mut self) -> Result<bool, Error> {
        if self.place + 1 < self.loaded.len() {
            self.place += 1;
            return Ok(true);
        }
        // The segment may have grown, and others may have come.
        let (here, count) = (self.segments.get(self.index).copied(), self.loaded.len());
        self.refresh()?;
        let Some(here) = here else { return Ok(false) };
        let index = self.segments.partition_point(|name| *name < here);
        if self.segments.get(index) == Some(&here) && self.load(index) && self.loaded.len() > count
        {
            self.place = count;
            return Ok(true);
        }
        let next = index + usize::from(self.segments.get(index) == Some(&here));
        let moved = next < self.segments.len() && self.load_from(next, 1, |_| 0).is_ok();
        if !moved {
            // It stays where it was.
            self.load_from(index, -1, |segment| segment.len() - 1)?;
        }
        Ok(moved)
    }

    /// Moves to the moment before; whether there is one.
    ///
    /// # Errors
    /// The history is gone.
    pub fn back(&mut self) -> Result<bool, Error> {
        if self.place > 0 {
            self.place -= 1;
            return Ok(true);
        }
        let Some(before) = self.index.checked_sub(1) else { return Ok(false) };
        let (index, place) = (self.index, self.place);
        if self.load_from(before, -1, |segment| segment.len() - 1).is_ok() {
            return Ok(true);
        }
        // What was before has been removed meanwhile.
        self.load_from(index, 1, |_| place)?;
        Ok(false)
    }

    /// Lists the segments anew, and stays at the moment where it is.
    fn refresh(&mut self) -> Result<(), Error> {
        if self.is_file {
            return Ok(());
        }
        let here = self.segments.get(self.index).copied();
        self.segments = Name::list(&self.path)?.into_iter().map(|(name, _)| name).collect();
        if let Some(here) = here {
            self.index = self.segments.partition_point(|name| *name < here);
        }
        Ok(())
    }

    /// Loads the first segment with moments from `index` on in steps of `step`, and chooses one of its moments.
    fn load_from(
        &mut self,
        mut index: usize,
        step: isize,
        place: impl Fn(&Segment) -> usize,
    ) -> Result<(), Error> {
        while index < self.segments.len() {
            if self.load(index) && !self.loaded.is_empty() {
                self.place = place(&self.loaded).min(self.loaded.len() - 1);
                return Ok(());
            }
            index = index.wrapping_add_signed(step);
        }
        Err(Error::Empty { path: self.path.clone() })
    }

    /// Loads that segment; whether it could be read.
    fn load(&mut self, index: usize) -> bool {
        let Some(name) = self.segments.get(index) else { return false };
        let path = if self.is_file { self.path.clone() } else { self.path.join(name.file()) };
        match Segment::read(&path) {
            Ok(segment) => {
                if let Some(torn) = segment.torn() {
                    self.note(format!("part of {} is left out: {torn}", path.display()));
                }
                (self.loaded, self.index) = (segment, index);
                true
            }
            // The writer needed its room.
            Err(Error::File { source, .. })
                if source.kind() == io::ErrorKind::NotFound && !self.is_file =>
            {
                false
            }
            Err(error) => {
                self.note(format!("cannot read a part of the history: {error}"));
                false
            }
        }
    }

    fn note(&mut self, text: String) {
        if self.notes.len() < MOST_NOTES && !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LEAST_SIZE, Writer, opening};

    fn write(writer: &mut Writer, times: impl IntoIterator<Item = u64>) {
        for at in times {
            writer.append(at, format!("{}\"x\":1}}", opening(at)).as_bytes()).unwrap();
        }
    }

    fn now(cursor: &Cursor) -> u64 {
        cursor.moment().unwrap().at_ms
    }

    #[test]
    fn all_moments_are_passed_forth_and_back_and_found_by_time() {
        let dir = tempfile::tempdir().unwrap();
        for begin in [0, 10, 20] {
            write(&mut Writer::open(dir.path(), LEAST_SIZE).unwrap(), begin..begin + 10);
        }
        let mut cursor = Cursor::open(dir.path()).unwrap();
        assert_eq!(now(&cursor), 29);
        for at in (0..29).rev() {
            assert!(cursor.back().unwrap());
            assert_eq!(now(&cursor), at);
        }
        assert!(!cursor.back().unwrap() && now(&cursor) == 0);
        for at in 1..30 {
            assert!(cursor.forward().unwrap());
            assert_eq!(now(&cursor), at);
            cursor.seek(at - 1).unwrap();
            assert_eq!(now(&cursor), at - 1);
            assert!(cursor.forward().unwrap());
        }
        assert!(!cursor.forward().unwrap() && now(&cursor) == 29);
        cursor.first().unwrap();
        assert_eq!(now(&cursor), 0);
    }

    #[test]
    fn history_that_grows_and_loses_its_begin_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(dir.path(), LEAST_SIZE).unwrap();
        write(&mut writer, [1]);
        let mut cursor = Cursor::open(dir.path()).unwrap();
        assert!(!cursor.forward().unwrap());
        write(&mut writer, [2, 3]);
        assert!(cursor.forward().unwrap() && now(&cursor) == 2);
        writer.end().unwrap();
        write(&mut writer, [4]);
        assert!(cursor.forward().unwrap() && cursor.forward().unwrap() && now(&cursor) == 4);
        let (oldest, _) = Name::list(dir.path()).unwrap()[0];
        std::fs::remove_file(dir.path().join(oldest.file())).unwrap();
        assert!(!cursor.back().unwrap() && now(&cursor) == 4);
        assert_eq!(cursor.take_notes(), [""; 0]);
    }

    #[test]
    fn what_is_no_history_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let error = Cursor::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("holds no history"), "{error}");
        let file = dir.path().join("00000001-5.jsonl.zst");
        std::fs::write(&file, "nonsense\n").unwrap();
        assert!(Cursor::open(&file).is_err());
        write(&mut Writer::open(dir.path(), LEAST_SIZE).unwrap(), [7]);
        let mut cursor = Cursor::open(dir.path()).unwrap();
        cursor.seek(6).unwrap();
        assert_eq!(now(&cursor), 7);
        assert!(cursor.take_notes()[0].contains("no moment"));
        assert!(Cursor::open(Path::new("/nonexistent")).is_err());
    }
}
