//! Real traces of ../shared/data, where they are present: what is read equals what the recorders
//! themselves count.

mod common;

use common::shared;
use instep_trace::analysis::report::Halts;
use instep_trace::analysis::{AnalysisSettings, analyze};
use instep_trace::event::{Event, Fact};
use instep_trace::stream::{Header, Tally};
use std::fs::File;
use std::path::Path;

fn read(path: &Path) -> (Header, Vec<Event>, Tally) {
    let file = File::open(path).expect("the file is there");
    let mut stream = instep_trace::open(file, "shared", Default::default()).expect("a whole trace");
    let (mut all, mut batch) = (Vec::new(), Vec::new());
    while stream.next_batch(&mut batch) {
        all.append(&mut batch);
    }
    (stream.header().clone(), all, stream.tally().clone())
}

#[test]
fn perf_data_gives_every_sample_and_the_topology() {
    let Some(path) = shared("kvm-3vms/host.perf.data") else { return };
    let (header, events, tally) = read(&path);
    // As `perf report -D` and `perf script` count them.
    assert_eq!((tally.records, tally.warnings(&header)), (24370, vec![]));
    let count = |wanted: &dyn Fn(&Fact) -> bool| events.iter().filter(|e| wanted(&e.fact)).count();
    assert_eq!(count(&|fact| matches!(fact, Fact::Switch { .. })), 3024);
    assert_eq!(count(&|fact| matches!(fact, Fact::Waking { .. })), 1525);
    assert_eq!(count(&|fact| matches!(fact, Fact::Wakeup { .. })), 1529);
    assert_eq!(count(&|fact| matches!(fact, Fact::VcpuWakeup { .. })), 1519);
    assert_eq!(header.release.as_deref(), Some("7.2.13+deb14-cloud-amd64"));
    let topology = header.topology.unwrap();
    assert_eq!((topology.nodes().len(), topology.llcs().len(), topology.cores().len()), (2, 2, 4));
}

#[test]
fn halts_that_ended_by_polling_are_counted_per_vm() {
    let Some(path) = shared("kvm-3vms/host.perf.data") else { return };
    let file = File::open(path).unwrap();
    let mut stream = instep_trace::open(file, "shared", Default::default()).unwrap();
    let report = analyze(stream.as_mut(), &AnalysisSettings::default());
    let halts: Vec<_> =
        report.vms.iter().map(|vm| vm.halts.expect("their event is there")).collect();
    let sum = |of: fn(&Halts) -> u64| halts.iter().map(of).sum::<u64>();
    // As `perf script` prints them: `polling` of either.
    assert_eq!((sum(|halts| halts.count), sum(|halts| halts.polled)), (1519, 43));
    assert!(sum(|halts| halts.polled_ns) > 0);
}

#[test]
fn trace_dat_gives_as_many_records_as_the_ring_buffers_counted() {
    let Some(path) = shared("kvm-3vms/host.trace.dat") else { return };
    let (header, events, tally) = read(&path);
    // The sum of `read events` in the file's own CPU statistics.
    assert_eq!((tally.records, tally.warnings(&header)), (26096, vec![]));
    assert_eq!(header.format, "trace.dat version 7, zstd");
    assert!(events.is_sorted_by_key(|event| event.time));
}

#[test]
fn version_6_of_another_architecture_is_read() {
    let Some(path) = shared("arm-sched-load.trace.dat") else { return };
    let (header, events, tally) = read(&path);
    assert_eq!((header.format.as_str(), tally.warnings(&header)), ("trace.dat version 6", vec![]));
    assert!(events.iter().any(|event| matches!(event.fact, Fact::Switch { .. })));
}

#[test]
fn a_real_trace_cut_anywhere_errs_or_says_so() {
    for file in ["kvm-3vms/host.perf.data", "kvm-3vms/host.trace.dat"] {
        let Some(path) = shared(file) else { return };
        let data = std::fs::read(path).unwrap();
        for part in 0..200 {
            let cut = std::io::Cursor::new(&data[..data.len() * part / 200]);
            let Ok(mut stream) = instep_trace::open(cut, file, Default::default()) else {
                continue;
            };
            let mut batch = Vec::new();
            while stream.next_batch(&mut batch) {}
            assert!(stream.tally().cut.is_some(), "{file} cut at {part}/200");
        }
    }
}
