//! `instep demo` as a user runs it: it shows what it promises and leaves nothing behind. One demo at a time: each
//! starts guests.

use instep_lab::{Stop, command};
use instep_madehost::skip;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The demo, its page at `page`; `None`, noted, where it cannot run.
fn demo(temporary: &Path, page: &Path) -> Option<Command> {
    if !skip::may_boot() {
        return None;
    }
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_instep"));
    let ran =
        command::output(doctor.args(["lab", "doctor"]), Duration::from_secs(60), &Stop::never());
    if !ran.is_ok_and(|ran| ran.status.success()) {
        skip::note("instep lab doctor: the lab cannot run here");
        return None;
    }
    let mut demo = Command::new(env!("CARGO_BIN_EXE_instep"));
    demo.arg("demo").arg("--html").arg(page).env("TMPDIR", temporary);
    Some(demo)
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("the temporary directory can be listed");
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn demo_brings_guests_home_proves_it_draws_it_and_leaves_nothing() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (temporary, output) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let page = output.path().join("page.html");
    let mut tries = 0;
    let ran = loop {
        tries += 1;
        let Some(mut demo) = demo(temporary.path(), &page) else { return };
        match command::output(&mut demo, Duration::from_secs(1200), &Stop::never()) {
            // The doctor has found everything that it needs.
            Ok(ran) if ran.stderr.contains("cannot be had here") => panic!("{}", ran.stderr),
            // A machine that is busy with something else is slow, which proves nothing.
            Ok(ran) if ran.status.code() == Some(2) && tries == 1 => {
                eprintln!("once more: {}\n{}", ran.stderr.trim_end(), ran.stdout);
                skip::retried(ran.stderr.trim_end().lines().last().unwrap_or("the demo"));
            }
            Err(error) if tries == 1 => {
                eprintln!("once more: {error}");
                skip::retried(&error.to_string());
            }
            ran => break ran.unwrap(),
        }
    };
    let said = format!("{}\n{}", ran.stderr, ran.stdout);
    assert_eq!(ran.status.code(), Some(0), "{said}");
    for promised in [
        "1. Two VMs that somebody bound badly",
        "CONFLICT 2 vCPUs",
        "# instep run --mend-conflicts",
        "siblings on distinct cores",
        "moved home in",
        "gamma and delta are started",
        "original affinity again",
        "checks held, by what the host's /proc shows",
    ] {
        assert!(ran.stdout.contains(promised), "no `{promised}` in\n{said}");
    }
    let told = ran.stdout.trim_end().lines().last().unwrap_or_default();
    assert!(told.ends_with("page.html"), "{told}");
    let html = fs::read_to_string(&page).unwrap();
    last_act_is_shown_where_it_can_be(&said, &html);
    for drawn in [">alpha 0</span>", ">delta 1</span>", "Memory over time", "checks held"] {
        assert!(html.contains(drawn), "no `{drawn}` on the page");
    }
    assert!(ran.stdout.lines().all(|line| line.chars().count() <= 80), "{said}");
    assert_eq!(names_in(temporary.path()), Vec::<String>::new());
}

#[test]
fn a_demo_interrupted_while_its_host_boots_leaves_nothing() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (temporary, output) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let page = output.path().join("page.html");
    let Some(mut demo) = demo(temporary.path(), &page) else { return };
    demo.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command::die_with_parent(&mut demo).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(300);
    while names_in(temporary.path()).is_empty() {
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < end);
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(1));
    let mut kill = Command::new("sh");
    kill.args(["-c", &format!("kill -INT {}", child.id())]);
    command::succeed(&mut kill, Duration::from_secs(10), &Stop::never()).unwrap();
    let ended = command::wait(&mut child, Duration::from_secs(60), &Stop::never()).unwrap();
    let _ = child.kill();
    let _ = child.wait();
    assert_eq!(ended.and_then(|status| status.code()), Some(1));
    assert!(!page.exists());
    assert_eq!(names_in(temporary.path()), Vec::<String>::new());
}

/// Holds the last act of a demo: measured where this `instep` has the kernel scheduler and
/// `instep-load` is built, else left out with that reason.
fn last_act_is_shown_where_it_can_be(said: &str, html: &str) {
    let lacks = if cfg!(feature = "kernel") {
        said.contains("Left out: instep-load is not built").then_some("instep-load is not built")
    } else {
        Some("built without the kernel scheduler")
    };
    if let Some(why) = lacks {
        skip::note(&format!("the demo's last act: {why}"));
        assert!(said.contains("Left out: ") && said.contains(why), "{said}");
        assert!(html.contains("<p>Left out: ") && html.contains(why), "no reason on the page");
        return;
    }
    for promised in [
        "5. What the kernel scheduler is worth",
        "# instep run --dispatch kernel",
        "times as fast",
        "default scheduler back",
    ] {
        assert!(said.contains(promised), "no `{promised}` in\n{said}");
    }
    for drawn in ["times as fast under Instep", "class=\"speed\"", "Fair-share speed over time"] {
        assert!(html.contains(drawn), "no `{drawn}` on the page");
    }
}
