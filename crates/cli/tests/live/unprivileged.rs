//! `instep run` by a user who may not change the VM's threads.

use super::common::{Started, binary};
use super::stage::{Stage, affinities, assert_as_before};
use instep_madehost::skip;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;

/// `nobody` on most systems; any user but root will do.
const USER: u32 = 65534;

#[test]
fn missing_capability_is_named_and_nothing_changes() {
    if !rustix::process::geteuid().is_root() {
        return skip::note("only root can start a VM and then act as another user");
    }
    let Some(stage) = Stage::with_two_cores() else { return };
    let guest = stage.start_pinned("roots");
    let before = affinities(&guest);
    // The build may lie where another user cannot reach it.
    let dir = tempfile::tempdir().unwrap();
    let (program, state) = (dir.path().join("instep"), dir.path().join("state"));
    instep_madehost::program(&program, &fs::read(env!("CARGO_BIN_EXE_instep")).unwrap());
    chown(dir.path(), Some(USER), Some(USER)).unwrap();

    let run = |args: &[&str]| {
        let mut command = binary(&program);
        command.args(args).arg("--state-dir").arg(&state).uid(USER).gid(USER).current_dir("/");
        Started::new(&mut command).end()
    };
    let vm = guest.spec().name.as_str();
    let mend = ["--mend-conflicts", "--include-pinned", "--vm", vm, "--window", "200ms"];
    for once in [&["run"][..], &["run", "--once"]] {
        let refused = run(&[once, &mend].concat()).expect(2).says(&["CAP_SYS_NICE", "root"]);
        assert!(!refused.stderr.contains("affinity again"), "{}", refused.all());
        assert_as_before(&guest, &before);
    }
    assert!(!state.join("journal.json").exists(), "nothing was changed, so nothing is recorded");
    // Looking and dry runs need no privilege.
    run(&[&["run", "--once", "--dry-run"][..], &mend].concat()).expect(0);
    let status = run(&["status", "--window", "100ms"]);
    let top = run(&["top", "--once", "--window", "100ms"]).expect(0);
    // Processes of others may come and go meanwhile.
    let without_counts = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    let said = without_counts(&top.stderr);
    for line in status.stderr.lines().filter(|line| line.contains("CAP_SYS_PTRACE")) {
        assert!(said.contains(&without_counts(line)), "{line}\n{}", top.all());
    }
    assert_as_before(&guest, &before);
}
