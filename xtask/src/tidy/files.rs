//! What every file must and must not be: not too long (the changelog by version), begun with what it is for, free of one
//! machine's paths and mirrors.

use super::Finding;
use std::path::Path;

/// Lines of a source file that call for a reason.
const LONG: usize = 600;
/// Lines of a source file that call for a split.
const TOO_LONG: usize = 900;

/// Lines of text that a version has in the changelog at most.
const CHANGES: usize = 40;

/// How git marks the two sides of a merge that nobody finished. Split here, as the next is.
const CONFLICT: [&str; 2] = [concat!("<<<", "<<<< "), concat!(">>>", ">>>> ")];

/// A skip that nobody counts.
const UNCOUNTED: &str = concat!("println!(\"", "skipped");

/// Text that belongs to one machine. Split here so that this file does not hold it.
const FORBIDDEN: [&str; 5] = [
    concat!("http:", "//deb."),
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/tmp", "/wt/"),
];

/// Checks one file, named relative to the workspace.
pub(super) fn check(path: &Path, bytes: &[u8]) -> Vec<Finding> {
    let Ok(text) = std::str::from_utf8(bytes) else { return Vec::new() };
    let mut findings = Vec::new();
    let name = path.display();
    let extension = path.extension().and_then(|extension| extension.to_str());
    if matches!(extension, Some("rs" | "c" | "h")) {
        let lines = text.lines().count();
        if lines > TOO_LONG {
            findings.push(Finding::error(format!("{name} has {lines} lines; split it")));
        } else if lines > LONG {
            findings
                .push(Finding::warning(format!("{name} has {lines} lines; is there a reason?")));
        }
    }
    if path == Path::new("CHANGELOG.md") {
        findings.extend(long_versions(text));
    }
    if extension == Some("rs") && in_src(path) && !text.starts_with("//!") {
        findings.push(Finding::error(format!("{name} does not begin with //! and what it is for")));
    }
    let skips = extension == Some("rs") && !path.ends_with("madehost/src/skip.rs");
    for (line, number) in text.lines().zip(1..) {
        if skips && line.contains(UNCOUNTED) {
            findings.push(Finding::error(format!(
                "{name}:{number}: a skip that is not counted; call instep_madehost::skip::note"
            )));
        }
        if CONFLICT.iter().any(|mark| line.starts_with(mark)) {
            findings
                .push(Finding::error(format!("{name}:{number}: a merge that was not finished")));
        }
        for forbidden in FORBIDDEN.iter().filter(|forbidden| holds(line, forbidden)) {
            findings.push(Finding::error(format!(
                "{name}:{number}: `{forbidden}` belongs to one machine"
            )));
        }
    }
    findings
}

/// Versions of the changelog that say too much.
fn long_versions(text: &str) -> impl Iterator<Item = Finding> {
    text.split("\n## ").skip(1).filter_map(|version| {
        let mut lines = version.lines().filter(|line| !line.trim().is_empty());
        let name = lines.next()?;
        let count = lines.count();
        (count > CHANGES).then(|| {
            Finding::error(format!(
                "CHANGELOG.md has {count} lines of text on {name}; join or drop some, {CHANGES} at most"
            ))
        })
    })
}

fn in_src(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "src")
}

/// Whether `line` holds `pattern` where a path or address begins, not within a longer one.
fn holds(line: &str, pattern: &str) -> bool {
    line.match_indices(pattern).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-}*)".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(path: &str, text: &str) -> Vec<Finding> {
        check(Path::new(path), text.as_bytes())
    }

    #[test]
    fn long_files_are_warned_of_and_longer_ones_refused() {
        let file = |lines: usize| format!("//! x\n{}", "\n".repeat(lines - 1));
        assert_eq!(check_text("a/src/b.rs", &file(LONG)), []);
        assert!(!check_text("a/src/b.rs", &file(LONG + 1))[0].fatal);
        assert!(check_text("a/src/b.rs", &file(TOO_LONG + 1))[0].fatal);
        assert!(check_text("bpf/main.c", &file(TOO_LONG + 1))[0].fatal);
    }

    #[test]
    fn version_of_more_than_40_lines_in_the_changelog_is_refused() {
        let version = |lines: usize| format!("\n## 0.{lines}\n\n{}", "* text\n\n".repeat(lines));
        let changelog = |lines| format!("# Changelog\n\nAbout.\n{}{}", version(3), version(lines));
        assert_eq!(check_text("CHANGELOG.md", &changelog(CHANGES)), []);
        let found = check_text("CHANGELOG.md", &changelog(CHANGES + 1));
        assert!(found[0].fatal && found[0].what.contains("on 0.41"), "{found:?}");
        assert_eq!(check_text("README.md", &changelog(CHANGES + 1)), []);
    }

    #[test]
    fn a_source_file_without_a_purpose_is_refused() {
        assert!(check_text("a/src/b.rs", "use std::fmt;\n")[0].fatal);
        assert_eq!(check_text("a/tests/b.txt", "use std::fmt;\n"), []);
    }

    #[test]
    fn a_skip_that_is_not_counted_is_refused() {
        let text = format!("//! x\ne{UNCOUNTED}: no KVM\");\n");
        assert!(check_text("a/src/b.rs", &text)[0].fatal);
        assert_eq!(check_text("crates/madehost/src/skip.rs", &text), []);
    }

    #[test]
    fn merge_that_was_not_finished_is_refused() {
        for mark in CONFLICT {
            let found = check_text("README.md", &format!("text\n{mark}HEAD\n"));
            assert!(found[0].fatal && found[0].what.contains("README.md:2"), "{found:?}");
        }
    }

    #[test]
    fn paths_and_mirrors_of_one_machine_are_refused() {
        for pattern in FORBIDDEN {
            let text = format!("see {pattern}x\n");
            assert_eq!(check_text("README.md", &text).len(), 1, "{pattern}");
        }
    }

    #[test]
    fn the_same_words_within_another_path_are_fine() {
        for pattern in &FORBIDDEN[1..] {
            let text = format!("see example.org{pattern}x and {{dir}}{pattern}x\n");
            assert_eq!(check_text("README.md", &text), [], "{pattern}");
        }
    }

    #[test]
    fn binary_files_are_left_alone() {
        assert_eq!(check(Path::new("a/src/b.rs"), &[0xff, 0xfe]), []);
    }
}
