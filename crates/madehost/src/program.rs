//! Programs that a test writes and then runs.
//!
//! Linux runs no file that anybody has open for writing ("Text file busy"). A test that writes a program itself cannot be
//! sure of that: other tests start children meanwhile, which have all open files until they run their own program. So
//! another process writes it.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes a program: whatever `bytes` are, may be run by all.
///
/// # Panics
/// When it cannot be written.
pub fn program(path: &Path, bytes: &[u8]) {
    let mut writer = Command::new("/bin/sh");
    writer.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut child = writer.spawn().expect("/bin/sh runs");
    child.stdin.take().expect("it is piped").write_all(bytes).expect("cat reads");
    assert!(child.wait().expect("it ends").success(), "{} cannot be written", path.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_runs_while_other_threads_start_theirs() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let dir = dir.path();
                scope.spawn(move || {
                    for n in 0..20 {
                        let path = dir.join(format!("says-{thread}-{n}"));
                        program(&path, b"#!/bin/sh\necho here\n");
                        assert_eq!(Command::new(&path).output().unwrap().stdout, b"here\n");
                    }
                });
            }
        });
    }
}
