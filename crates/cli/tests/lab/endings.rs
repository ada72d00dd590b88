//! However and whenever a lab ends, nothing is left of it; and labs do not meet.

use crate::held::lacking;
use crate::stage::{Lab, can_run, left_by, runs, scenarios, turn};
use instep_madehost::skip;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn hello() -> PathBuf {
    scenarios().join("hello.toml")
}

/// Interrupts a lab, which must end in order, and looks for what is left.
fn interrupt(mut lab: Lab, phase: &str) {
    let processes = lab.processes();
    let asked = Instant::now();
    lab.signal("INT");
    assert_eq!(lab.end().code(), Some(1), "{phase}: {}", lab.text("err"));
    eprintln!("{phase}: ended {:?} after Ctrl-C", asked.elapsed());
    assert_eq!(left_by(lab.pid()), Vec::<PathBuf>::new(), "{phase}");
    for process in processes {
        assert!(!runs(process), "{phase}: process {process} is left");
    }
}

/// What a cache holds that is not whole.
fn unfinished(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(".filling") {
            found.push(entry.path());
        } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(unfinished(&entry.path()));
        }
    }
    found
}

#[test]
fn ctrl_c_while_the_kernel_is_fetched_leaves_nothing() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let mut lab = Lab::start(&hello(), &[], Some(cache.path()));
    if !lab.until_message("(apt-get") {
        let said = lab.text("err");
        let what = lacking(&said).unwrap_or_else(|| panic!("nothing is fetched: {said}"));
        return skip::note(&format!("nothing is fetched here: {what}"));
    }
    interrupt(lab, "fetching");
    assert_eq!(unfinished(cache.path()), Vec::<PathBuf>::new());
}

/// One after the other: while the image is built, the host boots, a guest boots, a step runs.
#[test]
fn ctrl_c_in_any_later_phase_leaves_nothing() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    let Some(real) = user_cache() else { return skip::note("no cache with a kernel") };
    let cache = tempfile::tempdir().unwrap();
    let own = cache.path().join("instep");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::symlink(real.join("kernels"), own.join("kernels")).unwrap();
    let mut lab = Lab::start(&hello(), &[], Some(cache.path()));
    assert!(lab.until(|_| own.join("images").exists()), "{}", lab.text("err"));
    interrupt(lab, "building the image");
    assert_eq!(unfinished(&own.join("images")), Vec::<PathBuf>::new());

    let mut lab = Lab::start(&hello(), &[], None);
    // Its host is a process with a directory; ldd is a process without.
    let boots = |lab: &Lab| !left_by(lab.pid()).is_empty() && !lab.processes().is_empty();
    assert!(lab.until(boots), "{}", lab.text("err"));
    std::thread::sleep(Duration::from_secs(1));
    interrupt(lab, "the host boots");

    let mut lab = Lab::start(&hello(), &[], None);
    assert!(lab.until_message("starting 1 guest"), "{}", lab.text("err"));
    std::thread::sleep(Duration::from_secs(1));
    interrupt(lab, "a guest boots");

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("step.toml");
    let text = "about = 'x'\n[host]\ncores = 1\nmemory = '512MiB'\n[[step]]\nrun = 'sleep 50'\n";
    fs::write(&file, text).unwrap();
    let mut lab = Lab::start(&file, &[], None);
    assert!(lab.until_message("step 1"), "{}", lab.text("err"));
    interrupt(lab, "a step runs");
}

/// At the prompt of a shell nobody types and nothing runs.
#[test]
fn a_shell_ends_in_order_on_sigterm_at_its_prompt() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    let (mut lab, mut input) = Lab::shell();
    writeln!(input, "echo the host is $(hostname)").unwrap();
    assert!(lab.until(|lab| lab.text("out").contains("the host is lab")), "{}", lab.text("err"));
    let processes = lab.processes();
    assert!(!processes.is_empty());
    let asked = Instant::now();
    lab.signal("TERM");
    assert_eq!(lab.end().code(), Some(1), "{}", lab.text("err"));
    assert!(asked.elapsed() < Duration::from_secs(30));
    assert!(lab.text("err").contains("interrupted"), "{}", lab.text("err"));
    assert_eq!(left_by(lab.pid()), Vec::<PathBuf>::new());
    assert!(!processes.into_iter().any(runs));
    drop(input);
}

/// Two lines fail in the middle; the last one's status is the shell's.
#[test]
fn a_shell_fed_by_a_pipe_ends_with_the_status_of_its_last_line() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    let (mut lab, mut input) = Lab::shell();
    write!(input, "false\nno-such-program\n\ninstep topology --json >/dev/null\nexit 3").unwrap();
    drop(input);
    assert_eq!(lab.end().code(), Some(3), "{}", lab.text("err"));
    assert!(lab.text("err").contains("no-such-program"), "{}", lab.text("err"));
    assert_eq!(left_by(lab.pid()), Vec::<PathBuf>::new());
}

/// Where kernels are kept, if there is one for hosts.
fn user_cache() -> Option<PathBuf> {
    let xdg = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let dir = xdg.or_else(home)?.join("instep");
    dir.join("kernels/sid").is_dir().then_some(dir)
}

#[test]
fn killed_lab_leaves_only_files_that_the_next_removes() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    let mut lab = Lab::start(&hello(), &[], None);
    assert!(lab.until_message("booting a host"), "{}", lab.text("err"));
    let boots = |lab: &Lab| !left_by(lab.pid()).is_empty() && !lab.processes().is_empty();
    assert!(lab.until(boots), "{}", lab.text("err"));
    let (pid, processes) = (lab.pid(), lab.processes());
    lab.signal("KILL");
    lab.end();
    let end = Instant::now() + Duration::from_secs(30);
    for process in processes {
        while runs(process) {
            assert!(Instant::now() < end, "process {process} is left");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let left = left_by(pid);
    assert!(!left.is_empty(), "nobody was there to remove them");
    let mut next = Lab::start(&hello(), &[], None);
    assert!(next.until(|lab| !left_by(lab.pid()).is_empty()), "{}", next.text("err"));
    assert_eq!(left_by(pid), Vec::<PathBuf>::new());
    interrupt(next, "after a killed one");
}

#[test]
fn two_labs_at_once_do_not_meet() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    let mut labs = [Lab::start(&hello(), &[], None), Lab::start(&hello(), &[], None)];
    for lab in &mut labs {
        let status = lab.end();
        assert_eq!(status.code(), Some(0), "{}\n{}", lab.text("err"), lab.text("out"));
        assert_eq!(left_by(lab.pid()), Vec::<PathBuf>::new());
    }
}
