//! Affinities of domains set and put back, on a made host that begins as a captured one: recorded first, each domain
//! wholly or not at all.

use crate::made::{Made, Trouble, captured, changed};
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::policy::{PolicyName, PolicySettings, decide};
use instep_core::snapshot::Snapshot;
use instep_xen::apply::{Applied, Applier, DomainChange, Holder, Journal};
use instep_xen::{XenScan, rates};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

const STATE: &str = "four-nodes/partial";
/// This process.
const OWN: Holder = Holder::Instance { pid: 7, start: 9 };

fn snapshot(scan: &XenScan, journal: Option<&Journal>) -> Snapshot {
    let topology = Arc::new(scan.topology().unwrap());
    let before = |key: &_| journal.map(|journal| journal.before(key, scan)).unwrap_or_default();
    rates::snapshot(&topology, None, scan, before)
}

/// Policy `none` with mending: what is mended, and nothing else.
fn mending(scan: &XenScan, journal: Option<&Journal>) -> Vec<DomainChange> {
    let settings = PolicySettings {
        policy: PolicyName::None,
        mend_conflicts: true,
        ..PolicySettings::default()
    };
    DomainChange::of_decision(&decide(&snapshot(scan, journal), &settings), scan)
}

fn applier<'a>(dir: &Path, made: &'a Made) -> Applier<&'a Made> {
    Applier::open(dir.to_owned(), OWN, made).unwrap()
}

fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Domain 3 may use nodes 1 and 2. Its vCPUs prefer nodes 0 and 1, and its memory comes from nodes 0 and 3.
#[test]
fn conflict_is_mended_recorded_and_put_back() {
    let (dir, made) = (dir(), Made::of(STATE));
    let seen = captured(STATE);
    let changes = mending(&seen, None);
    let mut applier = applier(dir.path(), &made);
    let outcomes = applier.apply(&changes, &seen).unwrap();
    assert!(outcomes.iter().all(|applied| matches!(applied, Applied::Set)), "{outcomes:?}");
    assert_eq!((made.sets(3, 0), made.nodes(3)), (("2-5".into(), "2-5".into()), "1-2".into()));
    applier.keep().unwrap();
    let journal = Journal::load(dir.path()).unwrap().unwrap();
    assert_eq!(journal.holder, Holder::Kept);
    applier.take_over().unwrap();
    assert_eq!(Journal::load(dir.path()).unwrap().unwrap().holder, OWN);
    // A second cycle finds nothing to do, and knows what there was.
    let now = made.scan.borrow().clone();
    assert!(mending(&now, Some(&journal)).is_empty());
    let soft = snapshot(&now, Some(&journal)).vms[2].soft.clone().unwrap();
    assert_eq!(soft.initial_vcpus[&0].to_string(), "0-3");
    assert_eq!(soft.initial_nodes.to_string(), "0,3");
    // A process of its own restores.
    let report = self::applier(dir.path(), &made).restore(|_| true).unwrap();
    assert!(report.is_complete() && report.left_alone.is_empty(), "{report:?}");
    for (index, domain) in seen.domains.iter().enumerate() {
        assert_eq!(*domain, made.scan.borrow().domains[index]);
    }
    assert!(Journal::load(dir.path()).unwrap().is_none(), "nothing is left to put back");
}

/// No file can be put in the journal's place from now on.
fn block_journal(dir: &Path) {
    std::fs::create_dir_all(dir.join("xen-journal.json.part/in-the-way")).unwrap();
}

#[test]
fn all_domains_are_put_back_where_the_journal_cannot_be_written() {
    let (dir, made, seen) = (dir(), Made::of(STATE), captured(STATE));
    let settings = PolicySettings { policy: PolicyName::Bind, ..PolicySettings::default() };
    let changes = DomainChange::of_decision(&decide(&snapshot(&seen, None), &settings), &seen);
    let outcomes = applier(dir.path(), &made).apply(&changes, &seen).unwrap();
    let set = outcomes.iter().filter(|applied| matches!(applied, Applied::Set)).count();
    assert!(set > 1, "{outcomes:?}");
    block_journal(dir.path());
    applier(dir.path(), &made).restore(|_| true).unwrap_err();
    assert_eq!(seen.domains, made.scan.borrow().domains);
}

#[test]
fn what_cannot_be_recorded_is_neither_done_nor_remembered() {
    let (dir, made, seen) = (dir(), Made::of(STATE), captured(STATE));
    let changes = mending(&seen, None);
    let mut applier = applier(dir.path(), &made);
    applier.apply(&changes, &seen).unwrap();
    applier.keep().unwrap();
    block_journal(dir.path());
    applier.take_over().unwrap_err();
    assert_eq!(applier.journal().holder, Holder::Kept, "as on disk");
}

#[test]
fn original_is_on_disk_before_the_first_command() {
    let (dir, made) = (dir(), Made::of(STATE));
    made.recorded_in.replace(Some(dir.path().to_owned()));
    made.trouble.set(Trouble::DeniedAfter(0));
    let seen = captured(STATE);
    let mut applier = applier(dir.path(), &made);
    let outcomes = applier.apply(&mending(&seen, None), &seen).unwrap();
    assert!(outcomes.iter().all(|one| matches!(one, Applied::Failed(error) if error.is_denied())));
    assert!(made.log.borrow().is_empty());
    assert!(Journal::load(dir.path()).unwrap().is_none(), "what was refused is not held");
    made.trouble.set(Trouble::None);
    let outcomes = applier.apply(&mending(&seen, None), &seen).unwrap();
    assert!(outcomes.iter().all(|applied| matches!(applied, Applied::Set)), "{outcomes:?}");
}

/// Someone sets another node affinity after Instep did; then Instep changes vCPUs of that domain only.
#[test]
fn node_affinity_set_by_others_survives_a_change_of_vcpus() {
    let (dir, made) = (dir(), Made::of(STATE));
    let seen = captured(STATE);
    let mut changes = mending(&seen, None);
    changes.retain(|change| change.domain.id == 3);
    let mut applier = applier(dir.path(), &made);
    applier.apply(&changes, &seen).unwrap();
    assert_eq!(made.nodes(3), "1-2");
    made.scan.borrow_mut().domains[3].nodes = NodeSet::parse_list("3").unwrap();
    let now = made.scan.borrow().clone();
    let soft = Some(CpuSet::parse_list("4-5").unwrap());
    let of_vcpus =
        DomainChange { vcpus: [(0, (None, soft))].into(), nodes: None, ..changes[0].clone() };
    applier.apply(&[of_vcpus], &now).unwrap();
    let report = applier.restore(|_| true).unwrap();
    assert_eq!(report.left_alone.len(), 1, "{report:?}");
    assert_eq!((made.sets(3, 0).1, made.nodes(3)), ("0-3".to_owned(), "3".to_owned()));
}

#[test]
fn originals_of_a_suspended_domain_are_kept_until_it_runs_again() {
    let (dir, made) = (dir(), Made::of(STATE));
    let seen = captured(STATE);
    let mut applier = applier(dir.path(), &made);
    applier.apply(&mending(&seen, None), &seen).unwrap();
    let suspend = |is: bool| {
        let mut scan = made.scan.borrow_mut();
        (scan.domains[3].is_ending, scan.domains[3].is_suspended) = (is, is);
    };
    suspend(true);
    let report = applier.restore(|key| key.id == 3).unwrap();
    assert_eq!((report.gone, report.failed.len()), (0, 1), "{report:?}");
    assert!(report.failed[0].1.to_string().contains("suspended"), "{report:?}");
    suspend(false);
    let report = applier.restore(|key| key.id == 3).unwrap();
    assert_eq!((report.restored, report.failed.len()), (1, 0), "{report:?}");
    assert_eq!((made.sets(3, 0).1, made.nodes(3)), ("0-3".to_owned(), "0,3".to_owned()));
}

/// All four vCPUs of a domain are set, and its node affinity is refused.
#[test]
fn domain_that_fails_half_way_gets_back_what_it_had() {
    let (dir, made) = (dir(), Made::of(STATE));
    let seen = captured(STATE);
    let changes: Vec<DomainChange> =
        mending(&seen, None).into_iter().filter(|change| change.domain.id == 3).collect();
    made.trouble.set(Trouble::NodesRefused);
    let mut applier = applier(dir.path(), &made);
    let outcomes = applier.apply(&changes, &seen).unwrap();
    assert!(matches!(outcomes.as_slice(), [Applied::Failed(_)]), "{outcomes:?}");
    assert_eq!(made.log.borrow().len(), 8, "four vCPUs, and back: {:?}", made.log.borrow());
    assert_eq!((made.sets(3, 0).1, made.nodes(3)), ("0-3".to_owned(), "0,3".to_owned()));
    // After two of four vCPUs everything is refused, the way back, too. The journal has the original affinities.
    made.trouble.set(Trouble::DeniedAfter(2));
    let outcomes = applier.apply(&changes, &seen).unwrap();
    assert!(matches!(outcomes.as_slice(), [Applied::Half(_)]), "{outcomes:?}");
    made.trouble.set(Trouble::None);
    let report = applier.restore(|_| true).unwrap();
    assert_eq!((report.restored, report.failed.len()), (1, 0));
    assert_eq!(made.sets(3, 0), ("2-5".into(), "0-3".into()));
}

/// `xl` cannot set a soft affinity of no CPUs, and that of all CPUs means the same.
#[test]
fn soft_affinity_of_no_cpus_is_put_back_as_one_of_all() {
    let no_soft = |_: &str, text: String| text.replace("2-5 / 0-3", "2-5 / none");
    let seen = changed(STATE, no_soft).unwrap();
    let (dir, made) = (dir(), Made::from(seen.clone()));
    let key = seen.by_id(3).unwrap().key.clone();
    let was = seen.by_id(3).unwrap().vcpus[0].soft.clone();
    let to = |soft: &CpuSet| DomainChange {
        domain: key.clone(),
        name: "four".to_owned(),
        vcpus: [(0, (None, Some(soft.clone())))].into(),
        nodes: None,
    };
    let mut applier = applier(dir.path(), &made);
    for soft in [&CpuSet::parse_list("4-5").unwrap(), &was] {
        let now = made.scan.borrow().clone();
        let outcomes = applier.apply(&[to(soft)], &now).unwrap();
        assert!(matches!(outcomes[..], [Applied::Set]), "{soft}: {outcomes:?}");
    }
    assert!(applier.journal().domains.is_empty(), "it has what it had");
}

/// The mending of domain 3 under one trouble: what came of it, and whether the domain is as it was.
fn mended_under(trouble: Trouble) -> (Applied, bool) {
    let (dir, made) = (dir(), Made::of(STATE));
    let seen = captured(STATE);
    let mut changes = mending(&seen, None);
    changes.retain(|change| change.domain.id == 3);
    made.trouble.set(trouble);
    let mut applier = applier(dir.path(), &made);
    let applied = applier.apply(&changes, &seen).unwrap().remove(0);
    let is_as_before = made.scan.borrow().by_id(3) == seen.by_id(3);
    assert_eq!(applier.journal().domains.is_empty(), is_as_before, "what is not back is on record");
    made.trouble.set(Trouble::None);
    assert!(applier.restore(|_| true).unwrap().is_complete());
    assert_eq!(made.scan.borrow().by_id(3), seen.by_id(3));
    (applied, is_as_before)
}

#[test]
fn change_that_xen_took_from_a_failed_command_is_undone() {
    for trouble in [Trouble::Stopped, Trouble::NodesTakenAndFailed] {
        let (applied, is_as_before) = mended_under(trouble);
        assert!(matches!(applied, Applied::Failed(_)) && is_as_before, "{trouble:?}: {applied:?}");
    }
}

#[test]
fn what_stands_after_a_failure_is_what_xen_holds() {
    // Neither the command that failed nor the way back tells that the first vCPU was changed.
    for trouble in [Trouble::StoppedThenDenied, Trouble::IgnoredFrom(1)] {
        let (applied, is_as_before) = mended_under(trouble);
        assert!(matches!(applied, Applied::Half(_)) && !is_as_before, "{trouble:?}: {applied:?}");
    }
}

#[test]
fn without_libxenlight_nothing_of_a_domain_is_touched() {
    let (dir, made) = (dir(), Made::of(STATE));
    made.trouble.set(Trouble::NoLibrary);
    let seen = captured(STATE);
    let changes = mending(&seen, None);
    let outcomes = applier(dir.path(), &made).apply(&changes, &seen).unwrap();
    for (change, applied) in changes.iter().zip(&outcomes) {
        let fails = matches!(applied, Applied::Failed(_));
        assert_eq!(fails, change.nodes.is_some(), "{change:?}: {applied:?}");
    }
    assert_eq!(made.sets(3, 0).1, "0-3");
}

#[test]
fn domain_that_ends_meanwhile_is_reported_and_forgotten() {
    let (dir, made) = (dir(), Made::of(STATE));
    made.trouble.set(Trouble::Ends(3));
    let seen = captured(STATE);
    let changes = mending(&seen, None);
    let mut applier = applier(dir.path(), &made);
    let outcomes = applier.apply(&changes, &seen).unwrap();
    for (change, applied) in changes.iter().zip(&outcomes) {
        let gone = matches!(applied, Applied::Gone);
        assert_eq!(gone, change.domain.id == 3, "{change:?}: {applied:?}");
    }
    assert!(applier.journal().domains.keys().all(|key| key.id != 3));
}

#[test]
fn domain_that_someone_changed_meanwhile_is_left_alone() {
    let (dir, made) = (dir(), Made::of(STATE));
    let seen = captured(STATE);
    let changes = mending(&seen, None);
    made.scan.borrow_mut().domains[3].vcpus[0].soft = CpuSet::parse_list("1-2").unwrap();
    let outcomes = applier(dir.path(), &made).apply(&changes, &seen).unwrap();
    let at = changes.iter().position(|change| change.domain.id == 3).unwrap();
    assert!(matches!(outcomes[at], Applied::Changed), "{outcomes:?}");
    assert_eq!(made.sets(3, 0).1, "1-2");
}

#[test]
fn what_someone_set_since_is_not_restored() {
    let (dir, made) = (dir(), Made::of(STATE));
    let seen = captured(STATE);
    let mut applier = applier(dir.path(), &made);
    applier.apply(&mending(&seen, None), &seen).unwrap();
    {
        let mut scan = made.scan.borrow_mut();
        scan.domains[3].vcpus[0].soft = CpuSet::parse_list("5").unwrap();
        scan.domains[3].nodes = [0, 1].into_iter().map(instep_core::units::NodeId).collect();
    }
    let report = applier.restore(|key| key.id == 3).unwrap();
    assert_eq!(report.left_alone.len(), 2, "{report:?}");
    assert!(report.left_alone[0].starts_with("four: someone else set the soft affinity of vCPU 0"));
    assert_eq!((made.sets(3, 0).1, made.sets(3, 2).1), ("5".to_owned(), "0-3".to_owned()));
    assert_eq!(made.nodes(3), "0-1");
}

/// A look that misses rows says nothing of a domain's end.
#[test]
fn domain_that_a_look_could_not_read_keeps_its_originals() {
    let (dir, made) = (dir(), Made::of(STATE));
    let seen = captured(STATE);
    let mut applier = applier(dir.path(), &made);
    applier.apply(&mending(&seen, None), &seen).unwrap();
    let whole = made.scan.borrow().clone();
    made.scan.borrow_mut().domains.retain(|domain| domain.key.id != 3);
    made.scan.borrow_mut().named.insert(seen.by_id(3).unwrap().key.uuid.clone());
    let report = applier.restore(|key| key.id == 3).unwrap();
    assert_eq!((report.gone, report.failed.len()), (0, 1), "{report:?}");
    let outcomes = applier.apply(&mending(&seen, None), &seen).unwrap();
    assert!(!outcomes.iter().any(|one| matches!(one, Applied::Gone)), "{outcomes:?}");
    made.scan.replace(whole);
    assert_eq!(applier.restore(|key| key.id == 3).unwrap().restored, 1);
    assert_eq!((made.sets(3, 0).1, made.nodes(3)), ("0-3".to_owned(), "0,3".to_owned()));
}

/// A row that can never be read, as of a domain with an end of line in its name, hides no end of another domain.
#[test]
fn ended_domain_is_forgotten_beside_a_row_that_cannot_be_read() {
    let (dir, made) = (dir(), Made::of(STATE));
    let seen = captured(STATE);
    let mut applier = applier(dir.path(), &made);
    applier.apply(&mending(&seen, None), &seen).unwrap();
    let with_rows_of_four = |row: fn(&str) -> String| {
        let change = |name: &str, text: String| match name {
            "xl-list-v-c-n" | "xl-vcpu-list" => text.lines().map(row).collect(),
            _ => text,
        };
        changed(STATE, change).unwrap()
    };
    let damaged =
        with_rows_of_four(|line| line.replace("four", "four\nx y").replace(" 3 ", " - ") + "\n");
    assert!(damaged.by_id(3).is_none() && damaged.warnings.len() > 1, "{:?}", damaged.warnings);
    made.scan.replace(damaged);
    assert_eq!(applier.restore(|key| key.id == 3).unwrap().failed.len(), 1);
    made.scan.replace(with_rows_of_four(|line| match line.starts_with("four") {
        true => String::new(),
        false => line.replace("two ", "new\ntwo ") + "\n",
    }));
    assert!(!made.scan.borrow().warnings.is_empty(), "a row could not be read");
    let report = applier.restore(|key| key.id == 3).unwrap();
    assert_eq!((report.gone, report.failed.len()), (1, 0), "{report:?}");
    assert!(applier.journal().domains.keys().all(|key| key.id != 3));
}

/// A domain of the same number that was started since has another UUID.
#[test]
fn another_domain_of_the_same_number_is_not_touched() {
    let (dir, made) = (dir(), Made::of(STATE));
    let seen = captured(STATE);
    let mut applier = applier(dir.path(), &made);
    applier.apply(&mending(&seen, None), &seen).unwrap();
    made.scan.borrow_mut().domains[3].key.uuid = "11111111-2222-3333-4444-555555555555".into();
    made.log.borrow_mut().clear();
    let report = applier.restore(|key| key.id == 3).unwrap();
    assert_eq!((report.gone, report.restored), (1, 0));
    assert!(made.log.borrow().is_empty());
}

#[test]
fn damaged_journal_is_refused_and_an_old_one_is_void() {
    let dir = dir();
    let path = Journal::path_in(dir.path());
    std::fs::write(&path, "{").unwrap();
    let error = Journal::load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("xen-journal.json is damaged"), "{error}");
    let old = r#"{"schema":"instep.xen-journal/1","boot_id":"of another boot","holder":"kept","domains":[]}"#;
    std::fs::write(&path, old).unwrap();
    assert!(Journal::load(dir.path()).unwrap().is_none());
}
