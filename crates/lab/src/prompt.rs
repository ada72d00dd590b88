//! Lines from standard input, or whatever feeds a prompt, read so that a stop is heeded while
//! nobody types: an ordinary read goes on after a signal.
//!
//! It knows nothing of terminals and of what the lines mean.

use crate::error::Error;
use crate::stop::{Stop, TICK};
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::{AsFd, AsRawFd as _};

/// The most bytes a line may have.
const MAX_LINE: usize = 1 << 20;

/// The lines of a file, pipe or terminal.
#[derive(Debug)]
pub struct Lines {
    file: File,
    buffer: Vec<u8>,
    ended: bool,
}

impl Lines {
    /// Reads from a descriptor of its own for the same file; nothing else may read from it.
    ///
    /// # Errors
    /// When there is no further descriptor.
    pub fn of(from: &impl AsFd) -> Result<Self, Error> {
        let own = from.as_fd().try_clone_to_owned();
        let own = own.map_err(|error| Error::io("read", "standard input", error))?;
        Ok(Self { file: own.into(), buffer: Vec::new(), ended: false })
    }

    /// The next line without its end, bytes that are not UTF-8 replaced; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Interrupted`] when `stop` is raised meanwhile; else when nothing can be read or a
    /// line is longer than 1 MiB.
    pub fn next(&mut self, stop: &Stop) -> Result<Option<String>, Error> {
        let wrong = |error| Error::io("read", "standard input", error);
        loop {
            stop.check()?;
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            if self.ended {
                let rest = std::mem::take(&mut self.buffer);
                let rest = String::from_utf8_lossy(&rest).into_owned();
                return Ok(Some(rest).filter(|rest| !rest.is_empty()));
            }
            if self.buffer.len() > MAX_LINE {
                return Err(wrong(io::Error::other("a line has more than 1 MiB")));
            }
            if !readable(&self.file).map_err(wrong)? {
                continue;
            }
            let mut chunk = [0; 4096];
            match self.file.read(&mut chunk) {
                Ok(0) => self.ended = true,
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(error) if waits(&error) => {}
                Err(error) => return Err(wrong(error)),
            }
        }
    }
}

fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock)
}

/// Waits a [`TICK`] at most for something to read, or for the end.
fn readable(file: &File) -> io::Result<bool> {
    let mut asked = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let tick = i32::try_from(TICK.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `asked` is one valid pollfd that lives through the call.
    match unsafe { libc::poll(&raw mut asked, 1, tick) } {
        -1 => match io::Error::last_os_error() {
            error if waits(&error) => Ok(false),
            error => Err(error),
        },
        ready => Ok(ready > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::time::{Duration, Instant};

    #[test]
    fn lines_come_one_by_one_and_the_last_needs_no_end() {
        let (ours, mut theirs) = io::pipe().unwrap();
        let mut lines = Lines::of(&ours).unwrap();
        theirs.write_all(b"one\n\n\xfftwo\nlast").unwrap();
        drop(theirs);
        let stop = Stop::never();
        let mut next = || lines.next(&stop).unwrap();
        assert_eq!(next().as_deref(), Some("one"));
        assert_eq!(next().as_deref(), Some(""));
        assert_eq!(next().as_deref(), Some("\u{fffd}two"));
        assert_eq!(next().as_deref(), Some("last"));
        assert_eq!(next(), None);
    }

    #[test]
    fn a_stop_ends_the_wait_for_a_line() {
        let (ours, _theirs) = io::pipe().unwrap();
        let stop = Stop::never();
        let raise = stop.clone();
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            raise.raise();
        });
        let began = Instant::now();
        let got = Lines::of(&ours).unwrap().next(&stop);
        assert!(matches!(got, Err(Error::Interrupted)), "{got:?}");
        assert!(began.elapsed() < Duration::from_secs(20));
        other.join().unwrap();
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let (ours, mut theirs) = io::pipe().unwrap();
        let writer = std::thread::spawn(move || {
            let _ = theirs.write_all(&vec![b'x'; MAX_LINE + (1 << 16)]);
        });
        let mut lines = Lines::of(&ours).unwrap();
        drop(ours);
        let error = lines.next(&Stop::never()).unwrap_err().to_string();
        assert!(error.contains("1 MiB"), "{error}");
        drop(lines);
        writer.join().unwrap();
    }
}
