//! A made host with three VMs: a spinning and a blocking one lose time to a CPU-bound one, and the
//! analysis says so, says why, and adds up.

use instep_madehost::trace::{MadeEvent, TracepointFields, perf_file};
use instep_trace::analysis::report::{AnalysisReport, FindingKind};
use instep_trace::analysis::{AnalysisSettings, analyze};
use std::io::Cursor;

const MS: u64 = 1_000_000;
type Thread = (u32, &'static str);

/// alpha spins, beta blocks, gamma computes: process ids 100, 200, 300.
const ALPHA: [Thread; 2] = [(101, "CPU 0/KVM"), (102, "CPU 1/KVM")];
const BETA: [Thread; 2] = [(201, "CPU 0/KVM"), (202, "CPU 1/KVM")];
const GAMMA: [Thread; 4] =
    [(301, "CPU 0/KVM"), (302, "CPU 1/KVM"), (303, "CPU 2/KVM"), (304, "CPU 3/KVM")];

fn tgid(tid: u32) -> u32 {
    tid / 100 * 100
}

struct Host(Vec<MadeEvent>);

impl Host {
    fn push(&mut self, time: u64, cpu: u32, current: u32, what: TracepointFields) {
        self.0.push(MadeEvent { time, cpu, current: (current, tgid(current)), flags: 0, what });
    }

    fn switch(&mut self, time: u64, cpu: u32, from: Thread, to: Thread, state: u64) {
        self.push(time, cpu, from.0, TracepointFields::Switch(from, to, state));
    }
}

/// 400 ms of four CPUs. On CPUs 0 and 1 alpha and gamma take turns of 4 ms, but never at the same
/// time; on 2 and 3 beta runs 1 ms, sleeps, is woken by its sibling after 1 ms and then waits 4 ms
/// for gamma.
fn trace() -> AnalysisReport {
    trace_with(|_| true)
}

/// The same with some of the events only.
fn trace_with(keep: fn(&TracepointFields) -> bool) -> AnalysisReport {
    let mut host = Host(Vec::new());
    for turn in 0..50 {
        let at = MS + turn * 8 * MS;
        for cpu in 0..2usize {
            let shift = cpu as u64 * 4 * MS;
            host.switch(at + shift, cpu as u32, GAMMA[cpu], ALPHA[cpu], 0);
            host.switch(at + shift + 4 * MS, cpu as u32, ALPHA[cpu], GAMMA[cpu], 0);
        }
        for cpu in 2..4usize {
            let (beta, gamma) = (BETA[cpu - 2], GAMMA[cpu]);
            let sibling = BETA[3 - cpu];
            host.switch(at, cpu as u32, gamma, beta, 0);
            host.switch(at + MS, cpu as u32, beta, gamma, 1);
            let wake = at + 2 * MS;
            host.push(wake, 5 - cpu as u32, sibling.0, TracepointFields::Waking(beta, cpu as u32));
            host.push(wake + 10, cpu as u32, gamma.0, TracepointFields::Wakeup(beta, cpu as u32));
        }
    }
    host.0.sort_by_key(|moment| moment.time);
    host.0.retain(|moment| keep(&moment.what));
    let data = perf_file(&host.0, 64);
    let mut stream = instep_trace::open(Cursor::new(data), "made", Default::default())
        .expect("a made trace is whole");
    let vms = [("alpha", 100, &ALPHA[..]), ("beta", 200, &BETA), ("gamma", 300, &GAMMA)];
    let vms = vms.map(|(name, pid, threads)| {
        let vcpus = threads.iter().enumerate().map(|(index, thread)| (index as u32, thread.0));
        let (name, pid, vcpus) = (name.to_owned(), Some(pid), vcpus.collect());
        instep_trace::analysis::discover::FoundVm { name, pid, vcpus }
    });
    analyze(stream.as_mut(), &AnalysisSettings { vms: vms.to_vec(), ..AnalysisSettings::default() })
}

#[test]
fn spinning_and_the_blocking_vm_lose_time_to_the_computing_one() {
    let report = trace();
    assert_eq!(report.vms.iter().map(|vm| vm.vcpus.len()).sum::<usize>(), 8);
    for name in ["alpha", "beta"] {
        let vm = report.vms.iter().find(|vm| vm.name == name).unwrap();
        assert_eq!(vm.culprits[0].name, "gamma", "{name}");
        let steal = report.findings.iter().find(|finding| {
            finding.kind == FindingKind::Steal && finding.vm.as_deref() == Some(name)
        });
        let text = &steal.unwrap().text;
        assert!(text.contains("gamma ran in 100 % of that"), "{text}");
    }
    let of = |name: &str| {
        let is = |finding: &&instep_trace::analysis::report::AnalysisFinding| {
            finding.kind == FindingKind::Steal && finding.vm.as_deref() == Some(name)
        };
        report.findings.iter().find(is).unwrap().text.clone()
    };
    assert!(of("alpha").contains("co-scheduling"), "{}", of("alpha"));
    assert!(of("beta").contains("boost"), "{}", of("beta"));
}

#[test]
fn vm_that_spins_at_times_is_distinguished_from_a_blocking_one() {
    let report = trace();
    let found = |name: &str| {
        let is = |finding: &&instep_trace::analysis::report::AnalysisFinding| {
            finding.kind == FindingKind::NotCoScheduled && finding.vm.as_deref() == Some(name)
        };
        report.findings.iter().find(is).is_some()
    };
    assert!(found("alpha") && !found("beta"));
    let alpha = &report.vms[0];
    // One of its two vCPUs runs at any time.
    assert!((alpha.co_run.unwrap() - 0.5).abs() < 0.02, "{:?}", alpha.co_run);
    assert_eq!(alpha.stacking, Some(0.0));
}

#[test]
fn switches_that_are_missing_are_counted() {
    let is_told = |report: &AnalysisReport| {
        report.warnings.iter().find(|warning| warning.contains("switches are missing")).cloned()
    };
    assert_eq!(is_told(&trace()), None);
    // Of alpha's first vCPU only its leaving is kept.
    let cut = trace_with(
        |what| !matches!(what, TracepointFields::Switch(_, next, _) if next.0 == ALPHA[0].0),
    );
    let told = is_told(&cut).expect("said");
    assert!(told.starts_with("49 switches"), "{told}");
    // Who leaves a CPU ran on it: nothing else is made of the gap.
    for vm in &cut.vms {
        let steal: u64 = vm.vcpus.iter().filter_map(|vcpu| vcpu.steal_ns).sum();
        let charged: u64 = vm.culprits.iter().map(|culprit| culprit.ns).sum();
        assert_eq!(steal, charged, "{}", vm.name);
    }
    assert!(cut.vms[0].vcpus[0].run_ns > trace().vms[0].vcpus[0].run_ns.map(|run| run / 2));
}

#[test]
fn every_nanosecond_is_accounted_for_and_every_wait_is_charged() {
    let report = trace();
    for vm in &report.vms {
        for vcpu in &vm.vcpus {
            let sum =
                [vcpu.run_ns, vcpu.steal_ns, vcpu.blocked_ns].into_iter().flatten().sum::<u64>();
            assert_eq!(sum, report.duration_ns, "{} vCPU {}", vm.name, vcpu.index);
        }
        let steal: u64 = vm.vcpus.iter().filter_map(|vcpu| vcpu.steal_ns).sum();
        let charged: u64 = vm.culprits.iter().map(|culprit| culprit.ns).sum();
        assert_eq!(steal, charged, "{}", vm.name);
    }
    let busy: u64 = report.vms.iter().flat_map(|vm| &vm.vcpus).filter_map(|vcpu| vcpu.run_ns).sum();
    assert_eq!(busy, 4 * report.duration_ns);
}

#[test]
fn sleeps_are_classified_by_the_waker() {
    let report = trace();
    let beta = &report.vms[1];
    assert_eq!(beta.wakeups.sibling.count, 100);
    assert_eq!(beta.wakeups.timer.count + beta.wakeups.io.count + beta.wakeups.other.count, 0);
    assert_eq!(beta.wakeups.sibling.ns, 100 * MS);
}

#[test]
fn without_sched_wakeup_a_woken_vcpu_waits_for_its_last_cpu() {
    // As `perf sched record` records: nothing says when a woken thread is on a queue.
    let report = trace_with(|what| !matches!(what, TracepointFields::Wakeup(..)));
    let beta = &report.vms[1];
    let names: Vec<&str> = beta.culprits.iter().map(|culprit| culprit.name.as_str()).collect();
    assert_eq!(names, ["gamma"]);
    assert_eq!(beta.wakeups.sibling.count, 100);
}

#[test]
fn without_sched_waking_the_wake_up_tells_the_waker() {
    let report = trace_with(|what| !matches!(what, TracepointFields::Waking(..)));
    let beta = &report.vms[1].wakeups;
    // The wake-up is recorded where the sleeper was: whoever ran there seems to be the waker.
    assert_eq!((beta.total().count, beta.sibling.count), (100, 0));
}
