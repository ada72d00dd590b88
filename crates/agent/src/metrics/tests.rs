//! What a page of metrics holds, for made VMs and a made scheduler.

use super::*;
use crate::dispatch::in_force::VmInForce;

fn vm(name: &str, uuid: &str) -> VmMetrics {
    VmMetrics {
        name: name.to_owned(),
        uuid: uuid.to_owned(),
        run: Nanos(2_500_000_000),
        throttled: Nanos(7_000_000_000),
        quota_milli: Some(200),
        memory: BTreeMap::from([(NodeId(0), Bytes(4096))]),
        home: vec![NodeId(1)],
        locality: Some(0.25),
        ..VmMetrics::default()
    }
}

fn metrics(vms: impl IntoIterator<Item = VmMetrics>) -> Metrics {
    let key = |id: u32| VmKey { id: instep_core::units::VmId(id), start_ticks: 1 };
    let vms = (1..).zip(vms).map(|(id, vm)| (key(id), vm)).collect();
    Metrics { vms, ..Metrics::default() }
}

#[test]
fn samples_have_base_units_and_stable_labels() {
    let page = metrics([vm("web", "u-1")]).page(None);
    for line in [
        "instep_vm_run_seconds_total{name=\"web\",uuid=\"u-1\"} 2.5\n",
        "instep_vm_throttled_seconds_total{name=\"web\",uuid=\"u-1\"} 7\n",
        "instep_vm_quota_cpus{name=\"web\",uuid=\"u-1\"} 0.2\n",
        "instep_vm_memory_bytes{name=\"web\",uuid=\"u-1\",node=\"0\"} 4096\n",
        "instep_vm_home{name=\"web\",uuid=\"u-1\",node=\"1\"} 1\n",
        "instep_vm_locality_ratio{name=\"web\",uuid=\"u-1\"} 0.25\n",
        "instep_scheduler_in_force 0\n",
    ] {
        assert!(page.contains(line), "{line} in\n{page}");
    }
}

#[test]
fn no_series_is_there_twice() {
    let long = |end: &str| "x".repeat(200) + end;
    let page = metrics([vm(&long("a"), ""), vm(&long("b"), ""), vm("c", "")]).page(None);
    let samples: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
    let series: BTreeSet<&str> =
        samples.iter().map(|line| line.rsplit_once(' ').unwrap().0).collect();
    assert_eq!(series.len(), samples.len(), "{page}");
}

#[test]
fn scheduler_has_samples_only_while_it_is_in_force() {
    let mut in_force = InForce { instep: true, failures: 2, ..InForce::default() };
    in_force.counters.insert("slots".to_owned(), 9);
    let seen = VmInForce { name: "web".to_owned(), gang_cpus: 4, ..VmInForce::default() };
    in_force.vms.push(seen);
    let dir = instep_madehost::scratch_dir().unwrap();
    let path = dir.path().join("a.prom");
    let mut metrics = metrics([vm("web", "")]);
    for failures in [2, 0, 1] {
        in_force.failures = failures;
        assert_eq!(metrics.write([Some(&path), None], Some(&in_force)), None);
    }
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page.contains("instep_scheduler_ejections_total 3\n"), "{page}");
    assert!(page.contains("instep_scheduler_events_total{event=\"slots\"} 9\n"), "{page}");
    assert!(page.contains("instep_vm_gang_cpus{name=\"web\",uuid=\"\"} 4\n"), "{page}");
    assert!(!metrics.page(None).contains("gang"));
    assert_eq!(metrics.write([None, None], None), None);
    assert!(!path.exists(), "metrics were switched off");
}

#[test]
fn guide_lists_every_metric_and_no_other() {
    let mut in_force = InForce { instep: true, ..InForce::default() };
    in_force.counters.insert("slots".to_owned(), 9);
    in_force.vms.push(VmInForce { name: "web".to_owned(), ..VmInForce::default() });
    let mut metrics = metrics([vm("web", "")]);
    metrics.note_history(Some(HistoryMetrics { bytes: 1, written: 1, lost: 0 }));
    let page = metrics.page(Some(&in_force));
    let kinds = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let written: BTreeSet<&str> =
        kinds.map(|line| line.split_once(' ').unwrap_or((line, "")).0).collect();
    let guide = include_str!("../../../../docs/guide.md");
    let (_, table) = guide.split_once("| metric | what it is |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|line| line.split('|').nth(1).unwrap_or_default());
    let names = cells.flat_map(|cell| cell.split('`')).filter(|name| name.starts_with("instep_"));
    let listed: BTreeSet<&str> = names.collect();
    assert_eq!(written, listed);
    assert!(written.len() > 30, "{written:?}");
}
