//! Guests on this machine, by software emulation: they boot, work, and leave nothing behind.

use instep_madehost::skip;
use instep_testguest::{Assets, Guest, GuestLoad, GuestSpec};
use std::path::Path;
use std::time::{Duration, Instant};

/// What guests boot from, or a note why this machine has it not.
fn assets() -> Option<Assets> {
    if !skip::may_boot() {
        return None;
    }
    Assets::obtain(&mut |said| eprintln!("{said}"))
        .map_err(|error| {
            assert!(error.is_lacking(), "{error}");
            skip::note(&error.to_string());
        })
        .ok()
}

#[test]
fn a_guest_boots_works_and_leaves_nothing_behind() {
    let Some(assets) = assets() else { return };
    let sockets = tempfile::tempdir().unwrap();
    let socket = sockets.path().join("qmp");
    let spec = GuestSpec { qmp: Some(socket.clone()), ..GuestSpec::new("works", &assets) };
    let guest = Guest::start(spec).unwrap();
    let (pid, dir) = (guest.pid(), guest.dir().to_owned());

    let cpus = guest.vcpu_threads().unwrap();
    assert_eq!(cpus.len(), 2);
    for (index, tid) in cpus {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap();
        assert_eq!(comm.trim(), format!("CPU {index}/TCG"));
    }
    let end = Instant::now() + Duration::from_secs(60);
    while guest.beats().iter().filter(|beat| beat.rate > 0).count() < 2 {
        assert!(Instant::now() < end, "no work done:\n{}", guest.console());
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(guest);
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "QEMU is reaped");
    assert!(!dir.exists() && !socket.exists());
}

#[test]
fn a_guest_that_lives_too_long_is_ended_by_its_watchdog() {
    let Some(assets) = assets() else { return };
    let spec = GuestSpec {
        load: GuestLoad::Idle,
        life_limit: Duration::from_millis(200),
        ..GuestSpec::new("short", &assets)
    };
    let error = Guest::start(spec).unwrap_err().to_string();
    assert!(error.contains("guest short: QEMU ended (signal: 9"), "{error}");
}

#[test]
fn failed_guest_reports_the_messages_of_qemu() {
    let Some(assets) = assets() else { return };
    let spec =
        GuestSpec { extra: vec!["-no-such-option".into()], ..GuestSpec::new("wrong", &assets) };
    let error = Guest::start(spec).unwrap_err().to_string();
    assert!(error.contains("no-such-option"), "{error}");
}
