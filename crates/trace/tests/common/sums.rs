//! Run time and steal of every vCPU by the text of the recorders' own tools, to hold an analysis against:
//! within 1 %.

use instep_madehost::skip;
use instep_trace::analysis::report::AnalysisReport;
use instep_trace::analysis::{AnalysisSettings, analyze};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

/// What another tool prints; notes the reason and gives nothing where it is missing or fails.
pub(crate) fn printed(tool: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(tool).args(args).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => {
            skip::note(&format!("{tool} {args:?} failed: {}", output.status));
            None
        }
        Err(error) => {
            skip::note(&format!("{tool} cannot be run: {error}"));
            None
        }
    }
}

/// The analysis of a file; `edges`: what came before a thread's first event, too.
pub(crate) fn report(path: &Path, edges: bool) -> AnalysisReport {
    let file = File::open(path).expect("the file is there");
    let mut stream = instep_trace::open(file, "shared", Default::default()).expect("a whole trace");
    analyze(stream.as_mut(), &AnalysisSettings { edges, ..AnalysisSettings::default() })
}

/// Run time and steal of a thread, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    run: f64,
    steal: f64,
}

/// Holds run time and steal of so many vCPUs against a tool's sums.
pub(crate) fn assert_agree(report: &AnalysisReport, oracle: &BTreeMap<u32, Sums>, count: usize) {
    let vcpus: Vec<_> = report.vms.iter().flat_map(|vm| &vm.vcpus).collect();
    assert_eq!(vcpus.len(), count);
    for vcpu in vcpus {
        let sums = oracle[&vcpu.tid];
        for (name, ours, theirs) in
            [("run", vcpu.run_ns, sums.run), ("steal", vcpu.steal_ns, sums.steal)]
        {
            let ours = ours.expect("it has events") as f64;
            // Tools print microseconds; below a tenth of a millisecond that is not 1 %.
            let close = (ours - theirs).abs() <= theirs * 0.01 + 1e5;
            assert!(close, "thread {}: {name} {ours} here, {theirs} there", vcpu.tid);
        }
    }
}

/// Sums of `perf sched timehist --state`: delays are steal, and so are waits of a task that left
/// runnable (R; perf 6.1 prints W for R+ of newer kernels).
pub(crate) fn timehist(text: &str) -> BTreeMap<u32, Sums> {
    let mut all = BTreeMap::<u32, Sums>::new();
    let mut left_runnable = BTreeMap::new();
    for line in text.lines() {
        let Some((name, numbers)) = line.rsplit_once(']') else { continue };
        let Some(tid) = name.rsplit('[').next().and_then(|ids| ids.split('/').next()?.parse().ok())
        else {
            continue;
        };
        let words: Vec<&str> = numbers.split_whitespace().collect();
        let [wait, delay, run, state] = words[..] else { continue };
        let nanos = |text: &str| text.parse::<f64>().map(|millis| millis * 1e6);
        let (Ok(wait), Ok(delay), Ok(run)) = (nanos(wait), nanos(delay), nanos(run)) else {
            continue;
        };
        let sums = all.entry(tid).or_default();
        sums.run += run;
        sums.steal += delay;
        if left_runnable.insert(tid, matches!(state, "R" | "W")) == Some(true) {
            sums.steal += wait;
        }
    }
    all
}

/// Sums from the lines of `trace-cmd report -t`; a thread wants to run from its waking on. With `edges`
/// what its first event tells of the time before it counts, too, and its last of the time behind.
pub(crate) fn trace_cmd(text: &str, edges: bool) -> BTreeMap<u32, Sums> {
    let mut all = BTreeMap::<u32, Sums>::new();
    let (mut on, mut runnable) =
        (BTreeMap::<String, (u32, f64)>::new(), BTreeMap::<u32, f64>::new());
    let (mut begin, mut end, mut seen) = (None, 0.0, BTreeSet::new());
    for line in text.lines() {
        let Some((cpu, rest)) = line.split_once('[').and_then(|(_, rest)| rest.split_once(']'))
        else {
            continue;
        };
        let Some((time, rest)) = rest.trim().split_once(": ") else { continue };
        let Ok(time) = time.trim().parse::<f64>().map(|seconds| seconds * 1e9) else { continue };
        // NAME:TID, where names have colons of their own.
        let tid = |text: &str| -> Option<u32> { text.rsplit(':').next()?.trim().parse().ok() };
        if let Some(rest) = rest.trim().strip_prefix("sched_switch:") {
            // NAME:TID [PRIO] STATE ==> NAME:TID [PRIO]
            let Some((prev, next)) = rest.split_once("==>") else { continue };
            let Some((prev, state)) = prev.trim().rsplit_once("] ") else { continue };
            let thread = |text: &str| tid(text.rsplit_once(" [")?.0);
            let (Some(prev), Some(next)) = (thread(prev), thread(next)) else { continue };
            (begin, end) = (begin.or(Some(time)), time);
            let before = time - begin.unwrap_or(time);
            if let Some((_, since)) = on.insert(cpu.to_owned(), (next, time)) {
                all.entry(prev).or_default().run += time - since;
            } else if edges && seen.insert(prev) {
                all.entry(prev).or_default().run += before;
            }
            if edges && seen.insert(next) {
                all.entry(next).or_default().steal += before;
            }
            seen.insert(prev);
            runnable.remove(&prev);
            if state.trim().starts_with('R') {
                runnable.insert(prev, time);
            }
            if let Some(since) = runnable.remove(&next) {
                all.entry(next).or_default().steal += time - since;
            }
        } else if let Some(rest) = rest.trim().strip_prefix("sched_waking:")
            && let Some((_, pid)) = rest.split_once(" pid=")
            && let Some(Ok(tid)) = pid.split(' ').next().map(str::parse)
        {
            (begin, end) = (begin.or(Some(time)), time);
            seen.insert(tid);
            runnable.entry(tid).or_insert(time);
        } else if let Some(rest) = rest.trim().strip_prefix("sched_wakeup:")
            && let Some(tid) = rest.rsplit_once(" [").and_then(|(name, _)| tid(name))
        {
            (begin, end) = (begin.or(Some(time)), time);
            seen.insert(tid);
            // A waking that overtakes the switch to sleep on another CPU is not seen as one.
            runnable.entry(tid).or_insert(time);
        }
    }
    if edges {
        on.into_values().for_each(|(tid, since)| all.entry(tid).or_default().run += end - since);
        let waits = runnable.into_iter();
        waits.for_each(|(tid, since)| all.entry(tid).or_default().steal += end - since);
    }
    all
}
