//! Skipping a test because of what the machine lacks: said aloud, and counted by scripts/test.sh.
//!
//! So is what was run once more ([`retried`]), which counts as what it then is.
//!
//! The convention: a test that cannot run here calls [`note`] with the reason and returns. The
//! line `skipped: REASON (TEST)` goes to standard error and, when the environment variable
//! `INSTEP_SKIP_LOG` names a file, is appended there, since cargo hides what passing tests print.
//!
//! Tests that boot machines ([`may_boot`]) or take long ([`may_take_long`]) run where the variable `INSTEP_TEST_ALL` or
//! `INSTEP_LAB_ALL` is set, as scripts/test.sh sets it.

use std::fs::File;
use std::io::Write;

/// Whether tests may boot machines; notes that the calling test is skipped when not.
#[must_use]
pub fn may_boot() -> bool {
    runs_all("it boots a machine")
}

/// Whether a test may take more than three seconds of a quiet machine's time; notes that it is skipped when not.
#[must_use]
pub fn may_take_long() -> bool {
    runs_all("it takes long")
}

fn runs_all(why: &str) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let does = ["INSTEP_TEST_ALL", "INSTEP_LAB_ALL"].into_iter().any(is_set);
    if !does {
        note(&format!("{why}: make test runs it, and INSTEP_TEST_ALL=1 cargo test"));
    }
    does
}

/// Notes that the calling test is skipped, and why.
pub fn note(reason: &str) {
    tell("skipped", reason);
}

/// Notes that the calling test runs something once more, and why.
pub fn retried(reason: &str) {
    tell("retried once", reason);
}

/// Notes that a check which is no test was not made, and why.
pub fn unchecked(reason: &str) {
    tell("not checked", reason);
}

fn tell(what: &str, reason: &str) {
    let thread = std::thread::current();
    let line = format!("{what}: {reason} ({})\n", thread.name().unwrap_or("unnamed test"));
    eprint!("{line}");
    if let Some(path) = std::env::var_os("INSTEP_SKIP_LOG") {
        // One write of one line: appends of tests that run at once do not mix.
        let written = File::options().create(true).append(true).open(path);
        if let Err(error) = written.and_then(|mut file| file.write_all(line.as_bytes())) {
            eprintln!("INSTEP_SKIP_LOG cannot be written: {error}");
        }
    }
}
