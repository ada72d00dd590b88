//! How fast a trace is analysed, and with what memory: `speed FILE`.
//!
//! Prints the records a second of reading alone and of reading with the analysis, for comparison
//! with `perf sched timehist` on the same file (docs/performance.md).

use instep_trace::analysis::{Settings, analyze};
use std::fs::{self, File};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: speed FILE")?;
    let begin = Instant::now();
    let mut stream = instep_trace::open(File::open(&path)?, &path, Default::default())?;
    let (mut batch, mut facts) = (Vec::new(), 0);
    while stream.next_batch(&mut batch) {
        facts += batch.len();
    }
    let (took, records) = (begin.elapsed().as_secs_f64(), stream.tally().records as f64);
    println!(
        "read: {took:.3} s, {:.2} million records a second, {facts} facts",
        records / took / 1e6
    );

    let begin = Instant::now();
    let mut stream = instep_trace::open(File::open(&path)?, &path, Default::default())?;
    let report = analyze(stream.as_mut(), &Settings::default());
    let took = begin.elapsed().as_secs_f64();
    println!("analysed: {took:.3} s, {:.2} million records a second", records / took / 1e6);
    println!("{} VMs, {} findings", report.vms.len(), report.findings.len());
    let status = fs::read_to_string("/proc/self/status")?;
    status.lines().filter(|line| line.starts_with("VmHWM")).for_each(|line| println!("{line}"));
    Ok(())
}
