//! How fast a trace is analysed, and with what memory: `speed FILE [read]`.
//!
//! Prints the records a second by the clock of reading and analysing, or of reading alone; for
//! comparison with `perf sched timehist` on the same file (docs/performance.md).

use instep_trace::analysis::{AnalysisSettings, analyze};
use std::fs::{self, File};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: speed FILE [read]")?;
    let begin = Instant::now();
    let mut stream = instep_trace::open(File::open(&path)?, &path, Default::default())?;
    if std::env::args().nth(2).is_some() {
        let (mut batch, mut facts) = (Vec::new(), 0);
        while stream.next_batch(&mut batch) {
            facts += batch.len();
        }
        println!("{facts} facts");
    } else {
        let report = analyze(stream.as_mut(), &AnalysisSettings::default());
        println!("{} VMs, {} findings", report.vms.len(), report.findings.len());
    }
    let (took, records) = (begin.elapsed().as_secs_f64(), stream.tally().records as f64);
    println!("{records} records, {took:.3} s, {:.2} million a second", records / took / 1e6);
    let status = fs::read_to_string("/proc/self/status")?;
    status.lines().filter(|line| line.starts_with("VmHWM")).for_each(|line| println!("{line}"));
    Ok(())
}
