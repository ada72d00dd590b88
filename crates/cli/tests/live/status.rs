//! `instep status --json` against what QEMU and the kernel say.

use super::common::{list, text};
use super::stage::{Stage, affinities, assert_as_before, schedstat, vcpus};
use instep_lab::command;
use instep_madehost::skip;
use instep_testguest::{Guest, affinity};
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The clock tick is 10 ms at most, in nanoseconds; schedstat of a running thread may lag behind by
/// one.
const TICK: f64 = 1e7;

#[test]
fn each_vm_and_its_vcpu_threads_are_named_as_qmp_does() {
    let Some(stage) = Stage::new() else { return };
    let bare = instep_testguest::GuestSpec { debug_threads: false, ..stage.spec("bare") };
    let guests = stage.start([stage.spec("named"), bare]);
    let before: Vec<_> = guests.iter().map(affinities).collect();
    let status = stage.instep(&["status", "--json", "--window", "100ms"]).json();
    assert_eq!(status["schema"], "instep.status/1");
    for guest in &guests {
        let vm = vm_of(&status, guest);
        assert_eq!(text(vm, "name"), guest.spec().name);
        assert_eq!(text(vm, "id"), guest.spec().name);
        assert_eq!((text(vm, "vmm"), text(vm, "accel")), ("qemu", "tcg"));
        // Some versions of QEMU name the threads unasked.
        let named = affinities(guest).values().any(|(comm, _)| comm.starts_with("CPU 0"));
        assert!(named || !guest.spec().debug_threads);
        assert_eq!(text(vm, "identified_by"), if named { "thread names" } else { "qmp" }, "{vm}");
        let told: Vec<u32> = list(vm, "vcpus").iter().map(|v| number(v, "tid") as u32).collect();
        assert_eq!(told, vcpus(guest));
        let indices: Vec<u64> = list(vm, "vcpus").iter().map(|v| number(v, "index")).collect();
        assert_eq!(indices, [0, 1]);
        let memory = vm["memory_bytes_by_node"].as_object().unwrap();
        assert!(memory.values().filter_map(Value::as_u64).sum::<u64>() > 32 << 20, "{vm}");
    }
    for (guest, before) in guests.iter().zip(&before) {
        assert_as_before(guest, before);
    }
}

/// Counters only grow, so what Instep read lies between a reading of ours before and one after, and
/// what a thread ran outside Instep's window is at most the time outside it: on a busy machine the
/// bounds are wider, and they hold.
#[test]
fn loads_are_those_of_schedstat() {
    let Some(stage) = Stage::new() else { return };
    let guest = stage.start_one("load");
    let tids = vcpus(&guest);
    let read = || tids.iter().map(|tid| schedstat(guest.pid(), *tid)).collect::<Vec<_>>();
    let (start, before) = (Instant::now(), read());
    let status = stage.instep(&["status", "--json", "--window", "3s"]).json();
    let (after, wall) = (read(), start.elapsed().as_nanos() as f64);
    let window = number(&status, "window_ns") as f64;
    assert!((3e9..=wall).contains(&window), "{window} of {wall}");
    // Instep's own window for a thread is not exactly that of the scan, but no shorter than this.
    let shortest = window - (wall - window);
    if shortest < window / 2.0 {
        return skip::note(&format!(
            "the machine is too busy: readings around a window of {window} ns are {wall} ns apart and bound nothing"
        ));
    }
    for (index, vcpu) in list(vm_of(&status, &guest), "vcpus").iter().enumerate() {
        let told = |key: &str| vcpu[key].as_f64().unwrap();
        let ran = (after[index].0 - before[index].0) as f64;
        let waited = (after[index].1 - before[index].1) as f64;
        let least = 1.0 - (wall + 2.0 * TICK - ran) / shortest;
        let most = ran / shortest;
        let used = told("used");
        let shown = format!("{used} of {least} to {most}, {wall} around {window}");
        assert!(used >= least - 0.02 * least.abs() && used <= 1.02 * most, "{shown}");
        assert!(told("steal") <= 1.02 * waited / shortest, "{vcpu}: {waited}, {shown}");
    }
}

#[test]
fn vm_with_unknown_vcpus_is_listed_with_the_reason() {
    let Some(stage) = Stage::new() else { return };
    let name = format!("single-{}", std::process::id());
    let single = Single::start(&name);
    let ours =
        |status: &Value| list(status, "vms").iter().find(|vm| vm["pid"] == single.0.id()).cloned();
    let end = Instant::now() + Duration::from_secs(30);
    let vm = loop {
        let status = stage.instep(&["status", "--json", "--window", "100ms"]).json();
        if let Some(vm) = ours(&status) {
            break vm;
        }
        assert!(Instant::now() < end, "{status}");
    };
    assert_eq!(text(&vm, "name"), name);
    assert!(list(&vm, "vcpus").is_empty());
    assert!(text(&vm, "left_alone").contains("thread=multi"), "{vm}");
    let shown = stage.instep(&["status", "--window", "100ms"]);
    assert!(shown.stdout.contains("Left alone") && shown.stdout.contains(&name), "{}", shown.all());
}

#[test]
fn vcpus_bound_to_one_cpu_are_a_conflict_while_another_is_free() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let guests = [stage.start_one("crowded")];
    if !stage.alone_with(&guests) {
        return;
    }
    let fine = stage.instep(&["status", "--json", "--window", "100ms"]).expect(0).json();
    assert!(list(&fine, "conflicts").is_empty(), "{fine}");
    for tid in vcpus(&guests[0]) {
        affinity::bind(tid, super::stage::first_cpu()).unwrap();
    }
    // No core counts as free while load of others may need it, so a busy machine has none to find.
    let end = Instant::now() + Duration::from_secs(60);
    let found = loop {
        let busy = others_busy(&guests[0]);
        let status = stage.instep(&["status", "--json", "--window", "1s"]);
        if status.code == Some(1) {
            break status.json();
        }
        let quiet = busy.max(others_busy(&guests[0])) < 0.1;
        assert!(!quiet, "no conflict on a quiet machine: {}", status.all());
        if Instant::now() > end {
            return skip::note("the machine is too busy for a core to be free");
        }
    };
    let conflict = &list(&found, "conflicts")[0];
    assert_eq!(text(conflict, "vm"), guests[0].spec().name);
    assert!(text(conflict, "text").starts_with("2 vCPUs (0,1) may use only CPU "), "{conflict}");
}

/// CPUs that all but this guest keep busy, measured for half a second.
fn others_busy(guest: &Guest) -> f64 {
    let now = || {
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        let fields: Vec<f64> = stat
            .lines()
            .next()
            .unwrap()
            .split_whitespace()
            .skip(1)
            .map(|f| f.parse().unwrap())
            .collect();
        let all: f64 = fields[..8].iter().sum();
        let idle = fields[3] + fields[4];
        let process = std::fs::read_to_string(format!("/proc/{}/stat", guest.pid())).unwrap();
        let after = process.rsplit(')').next().unwrap();
        let own: f64 =
            after.split_whitespace().skip(11).take(2).map(|f| f.parse::<f64>().unwrap()).sum();
        (all - idle - own) / 100.0
    };
    let (began, before) = (Instant::now(), now());
    std::thread::sleep(Duration::from_millis(500));
    (now() - before) / began.elapsed().as_secs_f64()
}

/// A QEMU that runs all vCPUs in one thread; it needs no kernel, its firmware is enough.
struct Single(Child);

impl Single {
    fn start(name: &str) -> Self {
        let mut qemu = Command::new(instep_lab::host::emulator::QEMU);
        qemu.args(["-name", name, "-accel", "tcg,thread=single", "-smp", "2", "-m", "32"])
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(command::die_with_parent(&mut qemu).spawn().unwrap())
    }
}

impl Drop for Single {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn vm_of<'a>(status: &'a Value, guest: &Guest) -> &'a Value {
    let found = list(status, "vms").iter().find(|vm| vm["pid"] == guest.pid());
    found.unwrap_or_else(|| panic!("no {} in {status}", guest.spec().name))
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no number `{key}` in {value}"))
}
