//! What a page of metrics holds, for made VMs and a made scheduler.

use super::*;
use crate::dispatch::LimitInForce;
use crate::dispatch::in_force::{Program, VmInForce, WaitsInForce};
use instep_kernel::stats::DomainSeen;
use instep_madehost::skip;
use std::io::Write as _;
use std::process::{Command, Stdio};

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

/// Instep's scheduler with two domains, a program, so many CPU limits, and the VM `web`.
fn scheduler(limits: u64) -> InForce {
    let domain = |domain: u32, clock_ns, host_held_ns| DomainSeen {
        domain,
        node: NodeId(domain),
        cpus: 2,
        clock_ns,
        vms: 1,
        gangs: 0,
        host_held_ns,
    };
    let program = |name: &str, runs| Program {
        name: name.to_owned(),
        instructions: 9,
        runs,
        run_ns: runs * 1000,
    };
    // The kernel cut the names of two programs.
    let programs = [("instep_enqueue", 3_000_000), ("instep_init_tas", 2), ("instep_init_tas", 3)];
    let limit = |at| LimitInForce {
        cgroup: format!("/system.slice/{at}.service"),
        milli_cpus: 200,
        is_used_up: true,
        held_ns: 3_000_000_000,
    };
    let waits = WaitsInForce { count: 9, p50_us: 7, p99_us: 2047, longest_us: 3000 };
    let name = "web".to_owned();
    InForce {
        instep: true,
        counters: [("slots".to_owned(), 9)].into(),
        domains: vec![
            domain(0, 2_500_000_000, 1_000_000_000),
            domain(1, 1_000_000_000, 500_000_000),
        ],
        programs: programs.map(|(name, runs)| program(name, runs)).to_vec(),
        limits: (0..limits).map(limit).collect(),
        vms: vec![VmInForce { name, waits, lag_ns: -2_000_000, ..VmInForce::default() }],
        ..InForce::default()
    }
}

#[test]
fn scheduler_s_clocks_operations_waits_and_limits_have_samples() {
    let page = metrics([vm("web", "")]).page(Some(&scheduler(1)));
    for line in [
        "instep_vm_wait_p50_seconds{name=\"web\",uuid=\"\"} 0.000007\n",
        "instep_vm_wait_p99_seconds{name=\"web\",uuid=\"\"} 0.002047\n",
        "instep_vm_lag_seconds{name=\"web\",uuid=\"\"} -0.002\n",
        "instep_domain_clock_seconds_total{domain=\"0\",node=\"0\"} 2.5\n",
        "instep_scheduler_clock_spread_seconds 1.5\n",
        "instep_scheduler_program_runs_total{program=\"instep_init_tas\"} 5\n",
        "instep_scheduler_program_seconds_total{program=\"instep_enqueue\"} 3\n",
        "instep_host_held_seconds_total 1.5\n",
        "instep_cgroup_limit_cpus{cgroup=\"/system.slice/0.service\"} 0.2\n",
        "instep_cgroup_held_seconds_total{cgroup=\"/system.slice/0.service\"} 3\n",
    ] {
        assert!(page.contains(line), "{line} in\n{page}");
    }
}

#[test]
fn promtool_accepts_the_metrics_of_a_scheduler() {
    let page = metrics([vm("web", "u-1")]).page(Some(&scheduler(64)));
    let started = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut started = match started {
        Ok(started) => started,
        Err(error) => return skip::note(&format!("promtool: {error} (apt install prometheus)")),
    };
    started.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let done = started.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.is_empty(), "{said}");
    // What is counted is bounded whatever cgroups there are: those of the scheduler and of one VM.
    let samples = page.lines().filter(|line| !line.starts_with('#')).count();
    assert!(samples < 2 * 64 + 60, "{samples}");
}

#[test]
fn guide_lists_every_metric_and_no_other() {
    let in_force = scheduler(1);
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
