//! Where `instep run` puts the vCPUs, and which VMs it touches.

use super::common::{list, text};
use super::stage::{
    Stage, affinities, assert_as_before, core_count, of_vcpus, parse_records, records, terminate,
    topology, vcpus, wait_for,
};
use instep_core::idset::CpuSet;
use instep_madehost::skip;
use instep_testguest::{Guest, GuestSpec};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const ONCE: [&str; 6] = ["run", "--once", "--json", "--no-memory", "--window", "500ms"];

fn cores_of(cpus: &str) -> BTreeSet<u64> {
    let set = CpuSet::parse_list(cpus).unwrap();
    let topology = topology();
    let core = |id: u64| {
        list(&topology, "cpus").iter().find(|cpu| cpu["id"] == id).unwrap()["core"].clone()
    };
    set.iter().map(|cpu| core(u64::from(cpu.0)).as_u64().unwrap()).collect()
}

/// Whether each vCPU has one core that no sibling has.
fn is_apart(guest: &Guest) -> bool {
    let cores: Vec<_> = of_vcpus(guest).iter().map(|cpus| cores_of(cpus)).collect();
    let all: BTreeSet<u64> = cores.iter().flatten().copied().collect();
    cores.iter().all(|own| own.len() == 1) && all.len() == cores.len()
}

#[test]
fn siblings_of_a_lone_vm_get_own_cores_and_restore_undoes_it() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let guests = [stage.start_one("lone")];
    let guest = &guests[0];
    if !stage.alone_with(&guests) {
        return;
    }
    let before = affinities(guest);
    let args: Vec<&str> = ONCE.into_iter().chain(["--vm", &guest.spec().name]).collect();
    // Cores that others keep busy are not for this VM, so wait for a calm moment.
    let end = Instant::now() + Duration::from_secs(40);
    let record = loop {
        let record = parse_records(&stage.instep(&args).expect(0).stdout).remove(0);
        let why = text(&list(&record, "vms")[0], "why");
        if is_apart(guest) {
            break record;
        }
        assert_as_before(guest, &before);
        assert!(!why.starts_with("2 vCPUs share"), "{record}");
        if Instant::now() > end {
            return skip::note(&format!("the machine is too busy: {why}"));
        }
    };
    assert!(text(&list(&record, "vms")[0], "why").contains("a core for each vCPU"), "{record}");
    assert!(list(&record, "actions").iter().all(|action| action["outcome"] == "done"), "{record}");
    kept_placement_is_known(&stage, guest);
    let restored = stage.instep(&["restore"]).expect(0);
    assert!(restored.stdout.contains("have their original affinity again"), "{}", restored.all());
    assert_as_before(guest, &before);
    let again = stage.instep(&["restore"]).expect(0);
    assert!(again.stdout.contains("Nothing to restore"), "{}", again.all());
}

/// What `run --once` left standing is Instep's doing, not an operator's pinning.
fn kept_placement_is_known(stage: &Stage, guest: &Guest) {
    let plan = stage.instep(&["plan", "--json"]).expect(0).json();
    let dry = stage.instep(&["run", "--once", "--dry-run", "--json"]).expect(0);
    for told in [plan, parse_records(&dry.stdout).remove(0)] {
        let why = text(&list(&told, "vms")[0], "why");
        assert!(!why.contains("pinned by hand"), "{told}");
    }
    assert!(is_apart(guest));
}

#[test]
fn more_vcpus_than_cores_are_bound_to_no_single_core() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let cores = core_count();
    if cores > 32 {
        return skip::note(&format!("emulated guests cannot overcommit {cores} cores"));
    }
    let vcpus = u32::try_from(cores.div_ceil(2).max(2)).unwrap();
    let spec = |name: &str| GuestSpec { vcpus, ..stage.spec(name) };
    let guests = stage.start([spec("one"), spec("two"), spec("three")]);
    let before: Vec<_> = guests.iter().map(affinities).collect();
    let mut args = ONCE.to_vec();
    for guest in &guests {
        args.extend(["--vm", &guest.spec().name]);
    }
    let record = parse_records(&stage.instep(&args).expect(0).stdout).remove(0);
    let one_node = topology()["counts"]["nodes"] == 1;
    for (guest, before) in guests.iter().zip(&before) {
        for cpus in of_vcpus(guest) {
            assert!(cores_of(&cpus).len() > 1, "bound to CPUs {cpus}: {record}");
        }
        if one_node {
            assert_as_before(guest, before);
        }
    }
    for vm in list(&record, "vms") {
        assert!(!one_node || text(vm, "why").contains("under overcommit"), "{record}");
    }
    stage.instep(&["restore"]).expect(0);
    for (guest, before) in guests.iter().zip(&before) {
        assert_as_before(guest, before);
    }
}

#[test]
fn a_run_touches_only_the_vm_it_is_given_and_a_dry_run_none() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let guests = [stage.start_pinned("given"), stage.start_pinned("other")];
    let before: Vec<_> = guests.iter().map(affinities).collect();
    let name = guests[0].spec().name.as_str();
    let mend = ["--mend-conflicts", "--include-pinned", "--vm", name];
    let dry: Vec<&str> = ONCE.into_iter().chain(["--dry-run"]).chain(mend).collect();
    let record = parse_records(&stage.instep(&dry).expect(0).stdout).remove(0);
    assert!(!list(&record, "actions").is_empty(), "{record}");
    assert!(list(&record, "actions").iter().all(|a| a["outcome"] == "dry run"), "{record}");
    assert!(!stage.state().exists(), "a dry run leaves no state");
    for (guest, before) in guests.iter().zip(&before) {
        assert_as_before(guest, before);
    }

    let once: Vec<&str> = ONCE.into_iter().chain(mend).collect();
    let record = parse_records(&stage.instep(&once).expect(0).stdout).remove(0);
    assert!(list(&record, "actions").iter().all(|action| action["vm"] == name), "{record}");
    assert_ne!(of_vcpus(&guests[0]), pinned(&before[0], &guests[0]), "{record}");
    assert_as_before(&guests[1], &before[1]);
    let placed = affinities(&guests[0]);
    stage.instep(&["run", "--once", "--vm", "nobody"]).expect(2).says(&["no VM is called"]);
    assert_as_before(&guests[0], &placed);
    stage.instep(&["restore"]).expect(0);
    assert_as_before(&guests[0], &before[0]);
}

fn pinned(all: &instep_testguest::affinity::Affinities, guest: &Guest) -> Vec<String> {
    vcpus(guest).iter().map(|tid| all[tid].1.clone()).collect()
}

#[test]
fn a_vm_that_ends_during_a_run_is_no_error() {
    let Some(stage) = Stage::with_two_cores() else { return };
    let guest = stage.start_pinned("brief");
    let stays = stage.start_pinned("stays");
    let before = affinities(&stays);
    let more = ["--vm", stays.spec().name.as_str(), "--interval", "1s"];
    let run = stage.mending_run(&guest, &more);
    drop(guest);
    let names = |record: &Value| list(record, "vms").len();
    wait_for("a cycle without it", &run, || records(&run).last().is_some_and(|r| names(r) == 1));
    let ended = terminate(run).expect(0);
    for record in parse_records(&ended.stdout) {
        let failed = |action: &Value| {
            !["done", "gone", "the thread is gone"].contains(&text(action, "outcome"))
        };
        assert!(!list(&record, "actions").iter().any(failed), "{record}");
    }
    assert_as_before(&stays, &before);
}
