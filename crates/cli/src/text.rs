//! Small helpers for text on a terminal: wrapping, indenting, plurals, the terminal's width.

pub use instep_core::wording::printable;
use instep_core::wording::{Count, is_steering};
pub use instep_report::text::wrapped;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, IsTerminal as _};

/// Columns to draw in: the terminal's, or 80 in a pipe; never below 40 or above 160.
pub fn width() -> usize {
    terminal_width().unwrap_or(80)
}

/// Columns of the terminal to draw in, never below 40 or above 160; `None` in a pipe or a file.
pub fn terminal_width() -> Option<usize> {
    std::io::stdout().is_terminal().then(|| {
        let size = terminal_size::terminal_size();
        size.map_or(80, |(columns, _)| usize::from(columns.0)).clamp(40, 160)
    })
}

/// `1 VM`, `3 VMs`.
pub fn plural(count: usize, noun: &'static str) -> String {
    Count::of(count, noun).to_string()
}

/// The lines with `spaces` before each, each ended.
pub fn indented(lines: &[String], spaces: usize) -> String {
    lines.iter().map(|line| format!("{:spaces$}{line}\n", "")).collect()
}

/// Text of several lines that is fit to be shown. All that is printed passes through it, whatever a
/// guest, a user or a file put into it.
pub fn drawable(text: &str) -> String {
    text.chars()
        .map(|c| if is_steering(c) && !matches!(c, '\n' | '\t') { '?' } else { c })
        .collect()
}

/// A JSON document that is fit to be shown: the same document, with what would steer a terminal written
/// as its number. Such characters can stand in strings only.
pub fn escaped_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if is_steering(c) && c != '\n' {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            text.push(c);
        }
    }
    text
}

/// Standard error for messages that must not wait for long for a reader who does not read: those of the
/// program's own log, and of the guardian. Nothing in them steers the terminal.
pub struct Messages;

/// How long a message of the log waits at most.
const LOG_PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

impl io::Write for Messages {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stderr = io::stderr();
        let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
        if poll(&mut fds, Some(&LOG_PATIENCE)).is_ok_and(|ready| ready != 0) {
            let text = drawable(&String::from_utf8_lossy(bytes));
            // A pipe that can be written to takes as much as this at once.
            let end = text.floor_char_boundary(PIPE_BUF);
            io::stderr().write_all(&text.as_bytes()[..end])?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What can be written to a pipe at once (PIPE_BUF of limits.h).
const PIPE_BUF: usize = 4096;

/// A name in at most `width` columns; what is left out is in the middle, for names often differ
/// at their end.
pub fn shortened(name: &str, width: usize) -> String {
    let count = name.chars().count();
    if count <= width {
        return name.to_owned();
    }
    let tail = width.saturating_sub(1) / 2;
    let head = width.saturating_sub(1) - tail;
    let (start, end) = (name.chars().take(head), name.chars().skip(count - tail));
    start.chain(['~']).chain(end).collect()
}

/// ` of guest node 1`, or nothing for all memory of a VM.
pub fn of_guest_node(number: Option<u32>) -> String {
    number.map_or_else(String::new, |number| format!(" of guest node {number}"))
}

/// Numbers as a list with ranges: `0-3,7`. Ascending input gives the shortest list.
pub fn ranges(numbers: &[u32]) -> String {
    let parts = numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let part = |part: &[u32]| match part {
        [one] => one.to_string(),
        _ => format!("{}-{}", part[0], part[part.len() - 1]),
    };
    parts.map(part).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_wrap_and_indent() {
        let text = indented(&wrapped("one two three four", 9), 2);
        assert_eq!(text, "  one two\n  three\n  four\n");
    }

    #[test]
    fn a_path_is_not_broken_at_its_hyphens() {
        assert_eq!(wrapped("it is at /opt/instep-load", 22), ["it is at", "/opt/instep-load"]);
    }

    #[test]
    fn what_others_wrote_cannot_move_the_cursor() {
        assert_eq!(drawable("a\x1b[2Jb\r\n\u{202e}c\td"), "a?[2Jb?\n?c\td");
        assert_eq!(wrapped("web\nroot: all is well", 40), ["web?root: all is well"]);
    }

    #[test]
    fn json_stays_the_same_document() {
        let value = serde_json::json!({ "a\u{202e}": "x\x1b[2J\u{7f}\u{9b}\u{2066}é\n" });
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let escaped = escaped_json(&text);
            assert!(!escaped.contains(|c| is_steering(c) && c != '\n'), "{escaped}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
        }
    }

    #[test]
    fn a_long_name_keeps_both_ends() {
        assert_eq!(shortened("tenant-001", 7), "ten~001");
        assert_eq!(shortened("short", 7), "short");
    }

    #[test]
    fn neighbours_make_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 7, 9, 10]), "0-2,7,9-10");
        assert_eq!(ranges(&[u32::MAX]), u32::MAX.to_string());
    }
}
