//! Sentences in lines. What would steer a terminal is replaced.

use instep_core::wording::printable;
use textwrap::{Options, WordSplitter};

/// Breaks a sentence into lines of at most `width` columns at white space. A line end inside is not
/// one of ours: it could make a line that looks like one.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    lines(text, width, "", "")
}

/// The same, each line ended, `first` before the first line and `rest` before the others.
pub fn paragraph(text: &str, width: usize, first: &str, rest: &str) -> String {
    lines(text, width, first, rest).into_iter().map(|line| line + "\n").collect()
}

/// Lines with `first` before the first and `rest` before the others.
pub fn lines(text: &str, width: usize, first: &str, rest: &str) -> Vec<String> {
    let options = Options::new(width)
        .initial_indent(first)
        .subsequent_indent(rest)
        // A path or a name broken at a hyphen could not be copied.
        .word_splitter(WordSplitter::NoHyphenation);
    let text = printable(text);
    textwrap::wrap(&text, options).into_iter().map(|line| line.into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_after_the_first_are_indented_and_no_line_is_too_wide() {
        let text = paragraph(&"word ".repeat(30), 80, "  ", "    ");
        assert!(text.lines().count() == 2 && text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.starts_with("  word") && text.lines().nth(1).unwrap().starts_with("    word"));
    }

    #[test]
    fn nothing_steers_terminal_and_no_word_is_broken_at_a_hyphen() {
        assert_eq!(wrapped("a\x1b[2J b\nc", 80), ["a?[2J b?c"]);
        assert_eq!(wrapped("one two-three", 10), ["one", "two-three"].map(str::to_owned));
    }
}
