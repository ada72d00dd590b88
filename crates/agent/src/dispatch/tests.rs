//! The kernel scheduler in the loop, without loading one.

use super::*;
use instep_core::idset::CpuSet;
use instep_core::units::{Bytes, VmId};
use instep_host::discover::{ScanOptions, Scanner};
use instep_kernel::plan::MAX_DOMAINS;
use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

fn observer() -> Observer {
    Observer::new(Root::live(), ScanOptions::default()).unwrap()
}

fn with(dispatch: DispatchConfig) -> Config {
    Config { dispatch, ..Config::default() }
}

#[test]
fn off_is_off_and_says_why() {
    let dispatch = Dispatch::begin(&Config::default(), &observer(), None).unwrap();
    assert!(!dispatch.is_active() && dispatch.in_force().why.contains("not asked for"));
    let anyone = VmKey { id: VmId(7), start_ticks: 1 };
    assert!(!dispatch.keeps_homes() && !dispatch.keeps_home(anyone));
}

#[test]
fn what_is_in_force_is_reported_as_long_as_its_process_lives() {
    let dir = instep_madehost::scratch_dir().unwrap();
    let dispatch = Dispatch::begin(&Config::default(), &observer(), Some(dir.path())).unwrap();
    assert_eq!(read(dir.path()), Some(dispatch.in_force()));
    drop(dispatch);
    assert_eq!(read(dir.path()), None);
    let instance = Instance { pid: u32::MAX - 1, ..Instance::this().unwrap() };
    let gone = InForce { instance, ..InForce::default() };
    in_force::write(dir.path(), &gone).unwrap();
    assert_eq!(read(dir.path()), None);
    std::fs::write(dir.path().join("dispatch.json"), b"{\"instep\":").unwrap();
    assert_eq!(read(dir.path()), None);
}

#[test]
fn kernel_without_sched_ext_is_error_only_when_it_was_demanded() {
    if Path::new("/sys/kernel/sched_ext").exists() {
        instep_madehost::skip::note("this kernel has sched_ext: loading is the lab's to test");
        return;
    }
    let config = |mode| with(DispatchConfig { mode, ..DispatchConfig::default() });
    let auto = Dispatch::begin(&config(Mode::Auto), &observer(), None).unwrap();
    assert!(!auto.is_active());
    let error = Dispatch::begin(&config(Mode::Kernel), &observer(), None).unwrap_err();
    assert!(error.to_string().contains("--dispatch"), "{error}");
}

#[test]
fn obstacle_while_loaded_is_reported_once_and_checked_again() {
    let dir = instep_madehost::scratch_dir().unwrap();
    let config = Config::default();
    let mut dispatch = Dispatch::begin(&config, &observer(), Some(dir.path())).unwrap();
    dispatch.unload("vCPUs of db have cookies".to_owned());
    assert!(dispatch.is_active(), "it is loaded again when nothing speaks against it");
    let said = dispatch.supervise();
    assert!(said.len() == 1 && said[0].contains("vCPUs of db"), "{said:?}");
    assert_eq!(dispatch.supervise(), [""; 0]);
    let told = read(dir.path()).unwrap();
    assert!(!told.instep && told.why.contains("vCPUs of db"), "{told:?}");
    assert_eq!(told.failures, 0, "it did not fail");
    let next = humantime::parse_rfc3339(&told.next_attempt.unwrap()).unwrap();
    let wait = next.duration_since(SystemTime::now()).unwrap();
    assert!(wait <= BUSY && wait + Duration::from_secs(20) > BUSY, "{wait:?}");
}

#[test]
fn limits_of_an_earlier_scheduler_are_forgotten_at_loading() {
    let mut dispatch = Dispatch::begin(&Config::default(), &observer(), None).unwrap();
    dispatch.limits = (vec![LimitInForce::default()], 7);
    dispatch.programs = vec![Program::default()];
    dispatch.state = State::Off(String::new());
    dispatch.reload(&Config::default());
    assert_eq!(dispatch.limits, (vec![], 0));
    assert_eq!(dispatch.programs, vec![]);
}

#[test]
fn every_online_cpu_has_its_node_and_a_lane_of_its_own() {
    let topology = Arc::clone(observer().topology());
    let places = places(&topology, &CpuSet::default()).unwrap();
    let mut taken = BTreeSet::new();
    for cpu in topology.cpus() {
        let place = places[cpu.id.0 as usize];
        assert_eq!(place.node, cpu.node.0 as i32);
        assert!(place.core & 1 << place.lane != 0, "{place:?}");
        assert!(taken.insert((place.domain, place.lane)), "{place:?}");
    }
    let online = places.iter().filter(|place| **place != CpuPlace::OFFLINE).count();
    assert_eq!(online, topology.cpus().len());
}

#[test]
fn a_host_of_too_many_domains_is_refused_by_name() {
    let spec = |nodes| {
        let dir = instep_madehost::scratch_dir().unwrap();
        MadeHost::new(HostSpec::new(nodes, 1)).write(dir.path()).unwrap();
        places(&instep_host::topology::read(&Root::at(dir.path())).unwrap(), &CpuSet::default())
    };
    assert!(spec(MAX_DOMAINS).is_ok());
    let why = spec(MAX_DOMAINS + 1).unwrap_err();
    assert!(why.starts_with("this host has 65 scheduling domains"), "{why}");
}

#[test]
fn what_failed_is_not_loaded_by_reading_same_configuration_again() {
    let config = Config::default();
    let mut dispatch = Dispatch::begin(&config, &observer(), None).unwrap();
    for _ in 0..3 {
        dispatch.backoff.failed(Duration::ZERO);
    }
    dispatch.state = dispatch.eject("stalled", Duration::ZERO);
    dispatch.said.clear();
    dispatch.reload(&config);
    let told = dispatch.in_force();
    assert!(told.next_attempt.is_some() && told.why.contains("stalled"), "{told:?}");
    assert_eq!(told.failures, 4);
    let said = dispatch.supervise();
    assert!(said.len() == 1 && said[0].contains("tried again in 1m "), "{said:?}");
    // What changed may be the cure, and is tried at once; what was counted stays.
    dispatch.reload(&with(DispatchConfig { host_weight: Some(50), ..config.dispatch }));
    let told = dispatch.in_force();
    assert!(told.why.contains("not asked for"), "it is off in this test: {told:?}");
    assert_eq!((told.next_attempt, told.failures), (None, 4));
}

#[test]
fn after_three_ejections_an_hour_only_new_settings_reload_it() {
    let config = Config::default();
    let mut dispatch = Dispatch::begin(&config, &observer(), None).unwrap();
    for _ in 0..3 {
        dispatch.state = dispatch.eject("stalled", Duration::from_secs(900));
    }
    let told = dispatch.in_force();
    assert!(told.why.contains("stalled; three ejections within an hour"), "{told:?}");
    assert!(told.next_attempt.is_none() && !dispatch.is_active());
    dispatch.supervise();
    dispatch.reload(&config);
    assert!(dispatch.supervise().concat().contains("stays out until [dispatch] is changed"));
    dispatch.reload(&with(DispatchConfig { host_weight: Some(50), ..config.dispatch }));
    assert!(dispatch.in_force().why.contains("not asked for"), "it is off in this test");
}

#[test]
fn limit_without_room_keeps_it_out_and_is_named() {
    let dir = instep_madehost::scratch_dir().unwrap();
    let at = dir.path().join("sys/fs/cgroup/machine.slice/a.scope");
    std::fs::create_dir_all(&at).unwrap();
    std::fs::write(at.join("cpu.max"), "20000 100000\n").unwrap();
    let config = Config::default();
    let mut dispatch = Dispatch::begin(&config, &observer(), None).unwrap();
    let id = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&at).unwrap());
    dispatch.give_up_for_limit(&Root::at(dir.path()), id);
    let told = dispatch.in_force();
    let named = told.why.contains("the cgroup /machine.slice/a.scope (cpu.max 20000 100000)");
    assert!(named && told.why.contains("stays out until"), "{told:?}");
    assert!(told.next_attempt.is_none() && !dispatch.is_active());
    dispatch.reload(&config);
    assert!(dispatch.supervise().concat().contains("nothing of [dispatch] changed"), "said");
}

#[test]
fn obstacle_is_checked_again_when_the_configuration_is_read() {
    let config = Config::default();
    let mut dispatch = Dispatch::begin(&config, &observer(), None).unwrap();
    dispatch.unload("vCPUs of db have cookies".to_owned());
    dispatch.reload(&config);
    assert!(!dispatch.is_active() && dispatch.in_force().why.contains("not asked for"));
}

#[test]
fn failed_scan_is_reported_once_and_hides_no_other_warning() {
    let nowhere = Scanner::new(Root::at("/nonexistent"), ScanOptions::default());
    let config = Config::default();
    let mut dispatch = Dispatch::begin(&config, &observer(), None).unwrap();
    let before = BTreeSet::from(["there is no process 7".to_owned()]);
    dispatch.warn(before.clone());
    dispatch.said.clear();
    dispatch.scanner = Rc::new(RefCell::new(nowhere));
    assert!(dispatch.scan().is_none() && dispatch.scan().is_none());
    let said = std::mem::take(&mut dispatch.said);
    assert!(said.len() == 1 && said[0].contains("cannot look for VMs: "), "{said:?}");
    dispatch.warn(before);
    assert_eq!(dispatch.said, [""; 0]);
    dispatch.scan();
    assert_eq!(dispatch.said, said, "it came back");
}

/// Two VMs of a made host, the second run by an ordinary user.
fn with_untrusted_vm(dir: &Path) -> SharedScanner {
    let mut made = MadeHost::new(HostSpec::new(1, 4));
    for name in ["ours", "theirs"] {
        made.push(VmSpec::new(name, Vmm::QemuKvm, 2, NodeId(0), Bytes::from_mib(64)));
    }
    made.write(dir).unwrap();
    made.give_to_user(dir, 1, (4321, "/user.slice/user-4321.slice")).unwrap();
    Rc::new(RefCell::new(Scanner::new(Root::at(dir), ScanOptions::default())))
}

#[test]
fn cookies_of_untrusted_vms_keep_the_scheduler_out_too() {
    let dir = instep_madehost::scratch_dir().unwrap();
    let scanner = with_untrusted_vm(dir.path());
    let (scan, threads) = trusted(&scanner, &Trust::default()).unwrap();
    let names: Vec<&str> = scan.vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!(names, ["ours"], "the table of VMs has those of trusted users alone");
    let looked_at: Vec<&str> = threads.of_vms().map(|(name, _)| name).collect();
    assert_eq!(looked_at, ["ours", "ours", "theirs", "theirs"]);
}
