//! The readers of recorded traces, and the analysis of whatever they give.

use instep_trace::analysis::{Settings, analyze};
use instep_trace::stream::EventStream;
use std::io::Cursor;

/// perf.data as a file, and as it comes through a pipe.
pub(crate) fn perf_data(data: &[u8]) {
    if let Ok(stream) = instep_trace::perf::PerfStream::open(Cursor::new(data), "fuzz", OPTIONS) {
        drained(stream);
    }
    if let Ok(stream) = instep_trace::perf::PerfStream::pipe(data, "fuzz", OPTIONS) {
        drained(stream);
    }
    analysed(data);
}

/// trace.dat of both versions.
pub(crate) fn trace_dat(data: &[u8]) {
    if let Ok(stream) = instep_trace::dat::DatStream::open(Cursor::new(data), "fuzz", OPTIONS) {
        drained(stream);
    }
    analysed(data);
}

const OPTIONS: instep_trace::Options = instep_trace::Options { exits: true };

/// Time never runs backwards, and a stream that ended has ended.
fn drained(mut stream: impl EventStream) {
    let (mut batch, mut reached) = (Vec::new(), 0);
    while stream.next_batch(&mut batch) {
        for event in &batch {
            assert!(event.time.0 >= reached, "{event:?} after {reached}");
            reached = event.time.0;
        }
    }
    assert!(!stream.next_batch(&mut batch));
}

/// A vCPU's times never exceed the trace's.
fn analysed(data: &[u8]) {
    let Ok(mut stream) = instep_trace::open(Cursor::new(data), "fuzz", OPTIONS) else { return };
    let report = analyze(stream.as_mut(), &Settings::default());
    for vcpu in report.vms.iter().flat_map(|vm| &vm.vcpus) {
        let sum = u128::from(vcpu.run_ns) + u128::from(vcpu.steal_ns) + u128::from(vcpu.blocked_ns);
        assert!(sum <= u128::from(report.duration_ns), "{vcpu:?} in {}", report.duration_ns);
    }
}
