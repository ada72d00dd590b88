//! Small helpers for text on a terminal: wrapping, indenting, plurals, the terminal's width.

use std::io::IsTerminal as _;

/// Columns to draw in: the terminal's, or 80 in a pipe; never below 40 or above 160.
pub(crate) fn width() -> usize {
    let columns = if std::io::stdout().is_terminal() {
        terminal_size::terminal_size().map_or(80, |(columns, _)| usize::from(columns.0))
    } else {
        80
    };
    columns.clamp(40, 160)
}

/// `1 VM`, `3 VMs`.
pub(crate) fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Breaks a sentence into lines of at most `width` columns at white space.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    textwrap::wrap(text, width).into_iter().map(|line| line.into_owned()).collect()
}

/// The lines with `spaces` before each, each ended.
pub(crate) fn indented(lines: &[String], spaces: usize) -> String {
    lines.iter().map(|line| format!("{:spaces$}{line}\n", "")).collect()
}

/// A name from a foreign command line without what could move a terminal's cursor.
pub(crate) fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
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
    fn names_cannot_move_the_cursor() {
        assert_eq!(printable("a\x1b[2Jb\r"), "a?[2Jb?");
    }
}
