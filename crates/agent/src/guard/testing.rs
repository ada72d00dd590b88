//! What is left behind for a guardian, made by hand.

use instep_host::apply::journal::SCHEMA;
use instep_host::apply::{Journal, StateDir};

/// A folder with a journal of nothing that is held as told.
pub(super) fn left_by(holder: &str) -> (tempfile::TempDir, StateDir) {
    let dir = instep_madehost::scratch_dir().unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = format!(
        r#"{{"schema":"{SCHEMA}","boot_id":"{}","holder":{holder},"threads":[]}}"#,
        boot.trim()
    );
    std::fs::write(dir.path().join("journal.json"), text).unwrap();
    let state = StateDir::at(dir.path());
    assert!(Journal::load(&state).unwrap().is_some());
    (dir, state)
}

/// Such a holder.
pub(super) fn by_process(pid: u32, start: u64) -> String {
    format!(r#"{{"instance":{{"pid":{pid},"start":{start}}}}}"#)
}
