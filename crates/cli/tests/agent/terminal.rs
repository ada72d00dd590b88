//! What the owner of a guest chooses does not reach the terminal of root as it is.

use super::common::{binary, list, text};
use super::vm::wait_for;
use instep_madehost::skip;
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_steering(c: char) -> bool {
    (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c)
}

#[test]
fn escape_sequences_in_a_qmp_path_reach_no_terminal() {
    const NASTY: &str = "a\x1b[31m\x07\u{202e}\nroot: all is well";
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join(NASTY);
    // Threads without names, and a socket that somebody holds: the reason tells the socket.
    let started = Command::new("qemu-system-x86_64")
        .args(["-name", "nasty,debug-threads=off", "-smp", "2", "-m", "32", "-S"])
        .args(["-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-accel", "tcg,thread=multi", "-qmp"])
        .arg(format!("unix:{},server=on,wait=off", socket.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let guest = match started {
        Ok(child) => Ended(child),
        Err(error) => return skip::note(&format!("QEMU cannot be started: {error}")),
    };
    let mut held = None;
    wait_for("the QMP socket", || {
        held = UnixStream::connect(&socket).ok();
        held.is_some()
    });
    let mut greeting = String::new();
    BufReader::new(held.as_ref().unwrap()).read_line(&mut greeting).unwrap();
    assert!(greeting.contains("QMP"));
    let threads = format!("/proc/{}/task", guest.0.id());
    wait_for("its threads", || fs::read_dir(&threads).unwrap().count() > 3);

    for args in [&["status"][..], &["plan"], &["status", "--json"]] {
        let mut command = binary(env!("CARGO_BIN_EXE_instep"));
        let ran = command.args(args).args(["--window", "10ms"]).output().unwrap();
        let (out, err) =
            (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
        assert!(
            !out.contains(is_steering) && !err.contains(is_steering),
            "{args:?}: {out:?} {err:?}"
        );
        assert!(!out.lines().any(|line| line.trim_start().starts_with("root:")), "{out}");
        if let [_, "--json"] = args {
            let status: Value = serde_json::from_str(&out).unwrap();
            let vm = list(&status, "vms").iter().find(|vm| vm["pid"] == guest.0.id()).unwrap();
            assert!(text(vm, "left_alone").contains("QMP socket"), "{vm}");
        } else {
            assert!(out.contains("QMP socket"), "{out}");
        }
    }
}
