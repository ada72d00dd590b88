//! The readers of recorded traces, and the analysis of whatever they give.

use instep_trace::analysis::{AnalysisSettings, analyze};
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

/// Instep's own recordings: as they are, and as the contents of a block whose checksum is right.
pub(crate) fn recording(data: &[u8]) {
    for bytes in [Some(data.to_vec()), instep_trace::rec::framed(data)].into_iter().flatten() {
        if let Ok(stream) = instep_trace::rec::RecStream::open(&bytes[..], "fuzz", OPTIONS) {
            drained(stream);
        }
        analysed(&bytes);
    }
}

/// Pages of the kernel's ring buffers, as tracefs gives them.
pub(crate) fn ring_pages(data: &[u8]) {
    let Ok(mut pages) = instep_trace::live::Pages::new(HEADER_PAGE, &[SWITCH.to_vec()]) else {
        panic!("the layouts are understood");
    };
    let mut out = Vec::new();
    for page in data.chunks(4096) {
        pages.read(instep_core::units::CpuId(0), page, &mut out);
    }
}

const HEADER_PAGE: &[u8] = b"field: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
    field: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
    field: char data;\toffset:16;\tsize:4080;\tsigned:1;\n";
const SWITCH: &[u8] = b"name: sched_switch\nID: 3\n\
    field:char prev_comm[16];offset:8;size:16;\nfield:pid_t prev_pid;offset:24;size:4;\n\
    field:long prev_state;offset:32;size:8;\nfield:char next_comm[16];offset:40;size:16;\n\
    field:pid_t next_pid;offset:56;size:4;\n";

const OPTIONS: instep_trace::ReaderOptions = instep_trace::ReaderOptions { exits: true };

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
    let report = analyze(stream.as_mut(), &AnalysisSettings::default());
    for vcpu in report.vms.iter().flat_map(|vm| &vm.vcpus) {
        let times = [vcpu.run_ns, vcpu.steal_ns, vcpu.blocked_ns];
        let sum: u128 = times.into_iter().flatten().map(u128::from).sum();
        assert!(sum <= u128::from(report.duration_ns), "{vcpu:?} in {}", report.duration_ns);
    }
}
