//! Small helpers for text on a terminal: wrapping, indenting, plurals, the terminal's width.

use instep_core::wording::Count;
use std::io::IsTerminal as _;

/// Columns to draw in: the terminal's, or 80 in a pipe; never below 40 or above 160.
pub(crate) fn width() -> usize {
    terminal_width().unwrap_or(80)
}

/// Columns of the terminal to draw in, never below 40 or above 160; `None` in a pipe or a file.
pub(crate) fn terminal_width() -> Option<usize> {
    std::io::stdout().is_terminal().then(|| {
        let size = terminal_size::terminal_size();
        size.map_or(80, |(columns, _)| usize::from(columns.0)).clamp(40, 160)
    })
}

/// `1 VM`, `3 VMs`.
pub(crate) fn plural(count: usize, noun: &'static str) -> String {
    Count::of(count, noun).to_string()
}

/// Breaks a sentence into lines of at most `width` columns at white space.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let options = textwrap::Options::new(width)
        // A path or a name broken at a hyphen could not be copied.
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).into_iter().map(|line| line.into_owned()).collect()
}

/// The lines with `spaces` before each, each ended.
pub(crate) fn indented(lines: &[String], spaces: usize) -> String {
    lines.iter().map(|line| format!("{:spaces$}{line}\n", "")).collect()
}

/// A name from a foreign command line without what could move a terminal's cursor.
pub(crate) fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A name in at most `width` columns; what is left out is in the middle, for names often differ
/// at their end.
pub(crate) fn shortened(name: &str, width: usize) -> String {
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
pub(crate) fn of_guest_node(number: Option<u32>) -> String {
    number.map_or_else(String::new, |number| format!(" of guest node {number}"))
}

/// Numbers as a list with ranges: `0-3,7`. Ascending input gives the shortest list.
pub(crate) fn ranges(numbers: &[u32]) -> String {
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
    fn names_cannot_move_the_cursor() {
        assert_eq!(printable("a\x1b[2Jb\r"), "a?[2Jb?");
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
