//! Findings about made events: each names what the events show, and nothing else. Also halts, vCPUs that appear late in a trace, and
//! hosts whose cores have one CPU.
#![cfg(test)]

use instep_core::topology::{CpuFacts, Topology};
use instep_core::units::{CpuId, Nanos, Tid};
use instep_trace::analysis::report::{AnalysisFinding, AnalysisReport, FindingKind, Halts};
use instep_trace::analysis::{AnalysisSettings, analyze};
use instep_trace::event::{Comm, Event, Fact, Left};
use instep_trace::stream::{EventStream, Header, Tally};

const MS: u64 = 1_000_000;

/// Events in memory, given in one batch after the other.
struct Made {
    header: Header,
    tally: Tally,
    batches: Vec<Vec<Event>>,
}

impl EventStream for Made {
    fn header(&self) -> &Header {
        &self.header
    }

    fn next_batch(&mut self, batch: &mut Vec<Event>) -> bool {
        batch.clear();
        if !self.batches.is_empty() {
            *batch = self.batches.remove(0);
        }
        !batch.is_empty()
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }
}

fn event(time: u64, fact: Fact) -> Event {
    Event { time: Nanos(time), cpu: CpuId(0), fact }
}

fn named(tid: u32, name: &str) -> [Event; 2] {
    let name = Comm::new(name.as_bytes());
    let member = Fact::Member { tid: Tid(tid), tgid: Tid(tid / 10 * 10) };
    [event(0, Fact::Named { tid: Tid(tid), name }), event(0, member)]
}

fn switch(time: u64, prev: u32, next: u32, left: Left) -> Event {
    event(time, Fact::Switch { prev: Tid(prev), next: Tid(next), left })
}

fn report(batches: Vec<Vec<Event>>, settings: &AnalysisSettings) -> AnalysisReport {
    let (header, tally) = (Header::default(), Tally::default());
    analyze(&mut Made { header, tally, batches }, settings)
}

fn of(events: Vec<Event>) -> AnalysisReport {
    report(vec![events], &AnalysisSettings::default())
}

/// Two threads take turns of 4 ms on a CPU for 400 ms, neither sleeps.
fn turns(one: (u32, &str), other: (u32, &str)) -> Vec<Event> {
    let mut events = [named(one.0, one.1), named(other.0, other.1)].concat();
    for turn in 0..100 {
        let (from, to) = if turn % 2 == 0 { (one.0, other.0) } else { (other.0, one.0) };
        events.push(switch(turn * 4 * MS, from, to, Left::Runnable));
    }
    events
}

fn steal<'a>(report: &'a AnalysisReport, vm: &str) -> Option<&'a AnalysisFinding> {
    let is = |finding: &&AnalysisFinding| {
        finding.kind == FindingKind::Steal && finding.vm.as_deref() == Some(vm)
    };
    report.findings.iter().find(is)
}

#[test]
fn vcpu_that_never_slept_has_no_figures_of_sleep_or_siblings() {
    let report = of(turns((11, "CPU 0/KVM"), (21, "CPU 0/KVM")));
    for vm in ["vm-10", "vm-20"] {
        let said = &steal(&report, vm).expect("found").text;
        assert!(said.contains("its one vCPU where there is room"), "{said}");
        assert!(said.contains("its share by weight"), "{said}");
        assert!(!said.contains("sleep") && !said.contains("different CPUs"), "{said}");
    }
}

#[test]
fn vcpus_that_hardly_ran_have_no_figure_of_sleep() {
    let mut events = [named(11, "CPU 0/KVM"), named(12, "CPU 1/KVM"), named(21, "busy")].concat();
    // 2 ms in all, and 40 ms of waiting.
    for turn in 0..2 {
        events.push(switch(turn * 22 * MS, 21, 11, Left::Runnable));
        events.push(switch(turn * 22 * MS + MS, 11, 21, Left::Runnable));
    }
    events.push(switch(44 * MS, 21, 11, Left::Runnable));
    let report = of(events);
    let said = &steal(&report, "vm-10").expect("found").text;
    assert!(said.contains("on different CPUs") && !said.contains("sleep"), "{said}");
}

#[test]
fn thread_whose_name_begins_with_bracket_is_culprit_as_others() {
    for name in ["(udev-worker)", "(idle)"] {
        let report = of(turns((11, "CPU 0/KVM"), (31, name)));
        let found = steal(&report, "vm-10").expect("found");
        assert!(found.text.contains(&format!("{name} ran in 100 %")), "{}", found.text);
        assert!(found.lost_ns > 190 * MS, "{}", found.lost_ns);
    }
}

#[test]
fn halts_are_counted_by_end_and_unknown_without_their_event() {
    let mut events = turns((11, "CPU 0/KVM"), (21, "CPU 0/KVM"));
    assert!(of(events.clone()).vms.iter().all(|vm| vm.halts.is_none()));
    for (time, slept) in [(3, true), (5, false), (7, false)] {
        let halted = Nanos(time * 1000);
        events.push(event(time * MS, Fact::VcpuWakeup { tid: Tid(21), halted, slept }));
    }
    events.sort_by_key(|event| event.time);
    let report = of(events);
    let polled = Halts { count: 3, polled: 2, polled_ns: 12_000 };
    let found: Vec<_> = report.vms.iter().map(|vm| vm.halts).collect();
    assert_eq!(found, [Some(Halts::default()), Some(polled)]);
}

#[test]
fn vcpus_seen_after_the_vms_were_found_count_once_each() {
    let early = turns((11, "CPU 0/KVM"), (21, "CPU 0/KVM"));
    let entry = |time, tid| event(time, Fact::KvmEntry { tid: Tid(tid), vcpu: 0 });
    let more = |tids: &[u32]| -> Vec<Event> {
        let mut events: Vec<Event> =
            tids.iter().map(|tid| entry(500 * MS, *tid)).chain(named(51, "CPU 0/KVM")).collect();
        events.push(switch(501 * MS, 21, 11, Left::Runnable));
        events
    };
    let filler: Vec<Event> =
        (0..500_000).map(|n| switch(400 * MS + n, 0, 0, Left::Other)).collect();
    let said = |batches: Vec<Vec<Event>>| {
        let report = report(batches, &AnalysisSettings::default());
        report.warnings.into_iter().find(|said| said.contains("after the first 500000 events"))
    };
    assert_eq!(said(vec![early.clone(), more(&[11, 41])]), None, "among the first, it is found");
    let told = said(vec![early.clone(), filler.clone(), more(&[11, 41, 41, 42, 51])]).unwrap();
    assert!(told.starts_with("3 vCPU threads came after"), "{told}");
    assert!(told.contains("--vm NAME=TID"), "{told}");
    let told = said(vec![early, filler, more(&[11])]).unwrap();
    assert!(told.starts_with("1 vCPU thread came after"), "{told}");
}

#[test]
fn on_single_threaded_cores_competition_is_zero_not_unknown() {
    let events = turns((11, "CPU 0/KVM"), (21, "CPU 0/KVM"));
    let host = &of(events.clone()).host;
    assert_eq!((host.competing_modules, host.has_single_cores), (None, false));
    let cpus = (0..2).map(|id| CpuFacts { id, ..CpuFacts::default() });
    let topology = Topology::build(cpus.collect(), Vec::new()).unwrap();
    let settings = AnalysisSettings { topology: Some(topology), ..AnalysisSettings::default() };
    let host = report(vec![events], &settings).host;
    assert_eq!((host.competing_modules, host.avoidable_sharing_ns), (Some(0.0), Some(0)));
    assert!(host.has_single_cores);
}
