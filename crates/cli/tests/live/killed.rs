//! A run that is killed: its guardian puts everything back, or what is left to `instep restore`.

use super::common::{Started, binary, text};
use super::stage::{
    Stage, affinities, assert_as_before, crash, of_vcpus, records, signal, terminate, wait_for,
};
use instep_madehost::skip;
use rustix::process::{Pid, Signal, getpgid, getsid, kill_process};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long what follows a kill may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The process of the guardian that this run started, if it stands.
fn guardian(run: &Started) -> Option<Pid> {
    let parent = run.child.id().to_string();
    fs::read_dir("/proc").unwrap().find_map(|entry| {
        let pid: i32 = entry.unwrap().file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let (state, of) = (fields.next()?, fields.next()?);
        let stands = name == "instep-guard" && of == parent && state != "Z";
        stands.then(|| Pid::from_raw(pid)).flatten()
    })
}

/// Waits until a process is no more.
fn until_gone(pid: Pid) {
    let end = Instant::now() + PATIENCE;
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(Instant::now() < end, "process {pid:?} is still there");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn guardian_of_a_killed_run_puts_every_affinity_back_and_ends() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let guest = stage.start_pinned("killed");
    let before = affinities(&guest);
    let pinned = of_vcpus(&guest);
    let run = stage.mending_run(&guest, &[]);
    assert_ne!(of_vcpus(&guest), pinned, "{}", run.text("out"));
    let guard = guardian(&run).expect("a guardian runs");
    assert_eq!((getsid(Some(guard)).unwrap(), getpgid(Some(guard)).unwrap()), (guard, guard));
    let called = fs::read(format!("/proc/{}/cmdline", guard.as_raw_nonzero())).unwrap();
    assert!(called.starts_with(b"instep-guard\0guard\0"), "by its name it is not meant");
    // What a terminal or systemd sends to all of them leaves it standing.
    for deaf in [Signal::HUP, Signal::INT, Signal::TERM, Signal::USR1, Signal::ABORT] {
        kill_process(guard, deaf).unwrap();
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(guardian(&run), Some(guard));
    assert_ne!(of_vcpus(&guest), pinned);

    // Nobody takes note of the end: the process stays as a zombie until the test ends.
    signal(&run, Signal::KILL);
    let killed = Instant::now();
    until_gone(guard);
    eprintln!("everything was put back {:?} after kill -9", killed.elapsed());
    assert_as_before(&guest, &before);
    assert!(!stage.state().join("journal.json").exists(), "no journal stays");
    let said = run.text("err");
    assert!(said.contains("`instep run` ended without restoring everything; "), "{said}");
    assert!(said.contains("original affinity again"), "{said}");
    assert_eq!(run.end().code, None);
    stage.instep(&["restore"]).expect(0);
    assert_as_before(&guest, &before);
}

#[test]
fn guardian_ends_with_its_run_and_a_killed_one_is_replaced() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let guest = stage.start_pinned("guard");
    let before = affinities(&guest);
    let config = stage.file("instep.toml");
    fs::write(&config, "").unwrap();
    let copy = stage.file("instep");
    // Not by this process: a program that others start meanwhile could have it open for writing.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_instep")).arg(&copy).status();
    assert!(copied.unwrap().success());
    let run = stage.mending_run_by(&copy, &guest, &["--config", config.to_str().unwrap()]);
    let first = guardian(&run).expect("a guardian stands");
    fs::remove_file(&copy).unwrap();
    kill_process(first, Signal::KILL).unwrap();
    until_gone(first);
    signal(&run, Signal::HUP);
    wait_for("another cycle", &run, || records(&run).len() == 2);
    let second = guardian(&run).expect("another guardian stands");
    assert!(run.text("err").contains("the guardian ended"), "{}", run.text("err"));

    let ended = terminate(run).expect(0);
    until_gone(second);
    assert!(!ended.stderr.contains("ended without restoring"), "{}", ended.stderr);
    assert_as_before(&guest, &before);

    let run = stage.mending_run(&guest, &["--no-guard"]);
    assert_eq!(guardian(&run), None);
    terminate(run).expect(0);
}

#[test]
fn what_kills_the_guardian_too_leaves_the_rest_to_restore() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let guest = stage.start_pinned("both");
    let before = affinities(&guest);
    let pinned = of_vcpus(&guest);
    let run = stage.mending_run(&guest, &[]);
    let guard = guardian(&run).expect("a guardian stands");
    kill_process(guard, Signal::KILL).unwrap();
    crash(run);
    until_gone(guard);
    assert_ne!(of_vcpus(&guest), pinned, "nobody was left to put it back");
    stage.instep(&["restore"]).expect(0);
    assert_as_before(&guest, &before);
}

/// A run that is killed while it starts a guardian has nothing to hear whether that stands.
#[test]
fn guardian_whose_run_ended_before_it_was_ready_restores() {
    let dir = tempfile::tempdir().unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    // The first process lives, but started at another time; nothing was changed yet.
    let holder = r#"{"instance":{"pid":1,"start":999999999}}"#;
    let text = format!(
        r#"{{"schema":"instep.journal/1","boot_id":"{}","holder":{holder},"threads":[]}}"#,
        boot.trim()
    );
    let journal = dir.path().join("journal.json");
    fs::write(&journal, text).unwrap();
    let (hears_nothing, ready) = std::io::pipe().unwrap();
    drop(hears_nothing);
    let mut guard = binary(env!("CARGO_BIN_EXE_instep"));
    guard.args(["guard", "--agent", "1", "--state-dir"]).arg(dir.path());
    let ended = guard.stdout(ready).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert!(!journal.exists(), "{ended:?}");
}

/// The first of both, the guardian or the new run, puts things back. The new run does not end because of the
/// guardian, and the guardian leaves alone what the new run does.
#[test]
fn run_started_right_after_a_kill_places_its_vms() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let guest = stage.start_pinned("again");
    let before = affinities(&guest);
    let pinned = of_vcpus(&guest);
    for _ in 0..5 {
        let run = stage.mending_run(&guest, &[]);
        let guard = guardian(&run).expect("a guardian stands");
        signal(&run, Signal::KILL);
        let next = stage.mending_run(&guest, &[]);
        until_gone(guard);
        assert_ne!(of_vcpus(&guest), pinned, "the new run placed it");
        run.end();
        terminate(next).expect(0);
        assert_as_before(&guest, &before);
    }
}

/// No scheduler can be loaded here: what a run that had loaded one leaves is made by hand.
#[test]
fn status_says_why_default_is_in_force_after_a_run_was_killed() {
    let state = fs::read_to_string("/sys/kernel/sched_ext/state").unwrap_or_default();
    if state.trim() == "enabled" {
        return skip::note("another scheduler is in force on this machine");
    }
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let command = |args: &[&str]| {
        let mut command = binary(env!("CARGO_BIN_EXE_instep"));
        Started::new(command.args(args).arg("--state-dir").arg(&state)).end()
    };
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    // The first process lives, but started at another time.
    let left = |boot: &str| {
        let instance = format!(r#"{{"boot_id":"{boot}","pid":1,"start":999999999}}"#);
        let rest = r#""why":"","failures":0,"counters":{},"vms":[]"#;
        let text = format!(r#"{{"instep":true,"pid":1,"instance":{instance},{rest}}}"#);
        fs::write(state.join("dispatch.json"), text).unwrap();
    };
    let dispatch = || command(&["status", "--json", "--window", "10ms"]).json()["dispatch"].take();
    let silent = |what: &str| {
        let dispatch = dispatch();
        let untold = text(&dispatch, "why").contains("no record of a running");
        assert!(untold && dispatch["ended"].is_null(), "{what}: {dispatch}");
    };
    fs::create_dir(&state).unwrap();
    command(&["restore"]).expect(0);
    silent("no run was killed");

    left("another");
    silent("that run went down with the machine");
    left(boot.trim());
    let told = dispatch();
    assert_eq!((&told["ended"]["pid"], &told["instep"]), (&1.into(), &false.into()), "{told}");
    assert!(text(&told["ended"], "last_heard").ends_with('Z'), "{told}");
    assert!(text(&told, "why").contains("ended without saying so"), "{told}");
    let said = command(&["status", "--window", "10ms"]).stdout;
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let line =
        "scheduler: the kernel's default the `instep run` that had loaded Instep's (process 1,";
    assert!(said.contains(line) && said.contains("; start it again"), "{said}");

    command(&["restore"]).expect(0);
    silent("all was restored");
    left(boot.trim());
    command(&["run", "--once", "--window", "10ms", "--vm", "no-vm-has-this-name"]).expect(2);
    silent("another run began");
}
