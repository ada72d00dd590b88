//! Asking by QMP: whom to believe and how long it may take, with sockets of this process.

use super::super::debugfs::KvmDirs;
use super::super::examine::{Means, Monitor};
use super::super::files::Reader;
use super::super::qmp::{QmpBudget, query};
use super::super::*;
use crate::root::Root;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn listener(dir: &Path, name: &str) -> (UnixListener, PathBuf) {
    let path = dir.join(name);
    (UnixListener::bind(&path).unwrap(), path)
}

/// Greets and answers as QEMU does, with one vCPU.
fn serve(listener: &UnixListener) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.write_all(b"{\"QMP\":{}}\r\n")?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    for answer in ["{\"return\":{}}", "{\"return\":[{\"cpu-index\":0,\"thread-id\":7}]}"] {
        if lines.next().transpose()?.is_none() {
            return Ok(());
        }
        stream.write_all(answer.as_bytes())?;
    }
    Ok(())
}

#[test]
fn only_the_monitor_itself_is_listened_to() {
    let dir = instep_madehost::scratch_dir().unwrap();
    let (listener, path) = listener(dir.path(), "s");
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let _ = serve(&listener);
        }
    });
    let ask = |pid| query(pid, Path::new("/proc/self"), path.to_str().unwrap());
    let own = std::process::id();
    let refused = ask(own + 1).unwrap_err().to_string();
    assert_eq!(refused, format!("is served by process {own} instead of the monitor"));
    assert_eq!(ask(own).unwrap(), [(0, 7)]);
    server.join().unwrap();
}

#[test]
fn monitors_that_do_not_answer_take_bounded_part_of_scan_in_turn() {
    let dir = instep_madehost::scratch_dir().unwrap();
    let names = ["a", "b", "c", "d", "e", "f"];
    let sockets: Vec<_> = names.iter().map(|name| listener(dir.path(), name)).collect();
    let mut monitors: Vec<Monitor> = sockets
        .iter()
        .map(|(_, path)| {
            let socket = format!("unix:{},server=on,wait=off", path.display());
            let words = ["qemu-system-x86_64", "-accel", "tcg", "-qmp", &socket, "-smp", "1"];
            let words = words.map(str::to_owned).to_vec();
            let pid = std::process::id();
            Monitor::new(pid, PathBuf::from(format!("/proc/{pid}")), Vmm::Qemu, words)
        })
        .collect();
    let (dirs, mut reader, mut turns) =
        (KvmDirs::default(), Reader::new(&Root::live()), QmpBudget::default());
    let (begun, mut tries) = (Instant::now(), 0);
    turns.begin(Duration::from_millis(300));
    for monitor in &mut monitors {
        let mut means = Means {
            dirs: &dirs,
            qmp: true,
            scan: 0,
            qmp_turns: &mut turns,
            qmp_tries: &mut tries,
            young: false,
        };
        monitor.identify_vcpus(&mut means, &mut reader);
    }
    // Each greeting is waited for for 200 ms.
    assert!((1..=2).contains(&tries), "{tries}");
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn vm_that_found_no_time_is_first_in_the_next_scan() {
    let mut turns = QmpBudget::default();
    let mut asked = Vec::new();
    for _ in 0..3 {
        turns.begin(Duration::from_millis(300));
        for pid in [10, 20, 30, 40, 50] {
            if turns.has_time(pid) {
                turns.spend(Duration::from_millis(200));
                asked.push(pid);
            }
        }
    }
    assert_eq!(asked, [10, 20, 30, 40, 50]);
}
