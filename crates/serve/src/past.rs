//! The past, as far as the run keeps it on disk: the last day in one document, and single moments.
//!
//! A moment is looked up when it is asked for: at most one segment of the history is read and unpacked for it, up to 64 MiB. As
//! one thread answers everybody, looking up rests as long as the last time took, and meanwhile refuses: others
//! have half of its time at least.

use crate::files::read;
use bytes::Bytes;
use instep_history::{Cursor, Error};
use serde_json::value::RawValue;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The file with the last day.
const DAY: &str = "day.json";

/// Looks up the past.
#[derive(Debug)]
pub(crate) struct Past {
    dir: PathBuf,
    /// Until when nothing more is looked up.
    rests: Mutex<Option<Instant>>,
}

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// What was asked for cannot be understood.
    Unclear,
    /// There is none.
    None(String),
    /// Others have their turn first.
    Busy,
}

/// Which moment is asked for, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// The last one until then, or the first of all.
    At(u64),
    /// The first one after it.
    After(u64),
}

impl Wanted {
    fn parse(query: Option<&str>) -> Option<Self> {
        let (name, value) = query?.split_once('=')?;
        let is_number = value.len() <= 15 && value.bytes().all(|byte| byte.is_ascii_digit());
        let at = value.parse().ok().filter(|_| is_number)?;
        match name {
            "at" => Some(Self::At(at)),
            "after" => Some(Self::After(at)),
            _ => None,
        }
    }
}

impl Past {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, rests: Mutex::new(None) }
    }

    /// The last day, schema `instep.history/1`.
    pub(crate) fn day(&self) -> Result<Bytes, NoAnswer> {
        self.rested(|| {
            let path = self.dir.join(DAY);
            let bytes = read(&path).map_err(|source| Error::File { path, source });
            bytes.map(Bytes::from).map_err(|error| self.lacking(&error))
        })
    }

    /// The moment that `at=TIME` or `after=TIME` asks for, schema `instep.moment/1`.
    pub(crate) fn moment(&self, query: Option<&str>) -> Result<Bytes, NoAnswer> {
        let wanted = Wanted::parse(query).ok_or(NoAnswer::Unclear)?;
        self.rested(|| {
            self.find(wanted).map_err(|error| self.lacking(&error))?.ok_or_else(none_later)
        })
    }

    fn find(&self, wanted: Wanted) -> Result<Option<Bytes>, Error> {
        let (Wanted::At(at) | Wanted::After(at)) = wanted;
        let mut cursor = Cursor::at(&self.dir, at)?;
        let is_early = |cursor: &Cursor| cursor.moment().is_none_or(|moment| moment.at_ms <= at);
        if matches!(wanted, Wanted::After(_)) && is_early(&cursor) && !cursor.forward()? {
            return Ok(None);
        }
        let line = cursor.moment().map(|moment| moment.line.to_vec());
        // Only what is a document goes out as one.
        let is_document = |line: &Vec<u8>| serde_json::from_slice::<&RawValue>(line).is_ok();
        Ok(line.filter(is_document).map(Bytes::from))
    }

    /// The answer, unless looking up rests; then rests as long as it took.
    fn rested(&self, answer: impl FnOnce() -> Result<Bytes, NoAnswer>) -> Result<Bytes, NoAnswer> {
        let began = Instant::now();
        let mut rests = self.rests.lock().unwrap_or_else(PoisonError::into_inner);
        if rests.is_some_and(|until| began < until) {
            return Err(NoAnswer::Busy);
        }
        let answer = answer();
        let now = Instant::now();
        *rests = now.checked_add(now.duration_since(began));
        answer
    }

    fn lacking(&self, error: &Error) -> NoAnswer {
        let dir = self.dir.display();
        let next = match error {
            Error::File { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                format!("let everybody read it: chmod a+rX {dir}")
            }
            _ => "start a run that keeps it: systemctl start instep, or name its directory with --history".to_owned(),
        };
        NoAnswer::None(format!("no history: {error}; {next}\n"))
    }
}

fn none_later() -> NoAnswer {
    NoAnswer::None("nothing is later in the history\n".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_history::{LEAST_SIZE, Writer, opening};
    use std::time::Duration;

    /// Asks again until it is not busy.
    fn ask(past: &Past, query: &str) -> Result<String, NoAnswer> {
        loop {
            match past.moment(Some(query)) {
                Err(NoAnswer::Busy) => std::thread::sleep(Duration::from_millis(1)),
                answer => return answer.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()),
            }
        }
    }

    #[test]
    fn moment_is_found_by_time_and_the_next_one_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let past = Past::new(dir.path().join("h"));
        let NoAnswer::None(why) = ask(&past, "at=1").unwrap_err() else { panic!("no reason") };
        assert!(why.contains("systemctl start instep"), "{why}");
        let line = |at| format!("{}\"x\":{at}}}", opening(at));
        let mut writer = Writer::open(&dir.path().join("h"), LEAST_SIZE).unwrap();
        for at in [10, 20, 30] {
            writer.append(at, line(at).as_bytes()).unwrap();
            writer.end().unwrap();
        }
        for (query, at) in
            [("at=0", 10), ("at=25", 20), ("at=99", 30), ("after=10", 20), ("after=0", 10)]
        {
            assert_eq!(ask(&past, query), Ok(line(at)), "{query}");
        }
        assert_eq!(ask(&past, "after=30"), Err(none_later()));
        for bad in ["at", "at=", "at=-1", "at=+1", "at=9999999999999999999999", "to=1", "at=1&x"] {
            assert_eq!(ask(&past, bad), Err(NoAnswer::Unclear), "{bad}");
        }
        writer.append(40, format!("{}no document}}", opening(40)).as_bytes()).unwrap();
        assert_eq!(ask(&past, "at=40"), Err(none_later()));
    }

    #[test]
    fn looking_up_rests_as_long_as_it_took() {
        let past = Past::new(PathBuf::new());
        let slow = || {
            std::thread::sleep(Duration::from_millis(300));
            Ok(Bytes::new())
        };
        assert!(past.rested(slow).is_ok());
        assert_eq!(past.rested(|| Ok(Bytes::new())), Err(NoAnswer::Busy));
        std::thread::sleep(Duration::from_millis(400));
        assert!(past.rested(|| Ok(Bytes::new())).is_ok());
    }
}
