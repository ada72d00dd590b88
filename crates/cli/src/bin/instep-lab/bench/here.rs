//! `instep bench --here`: cells on this machine itself, with processes as VMs.

use super::pace::Pace;
use super::{BenchOrder, FinishedCells};
use crate::args::BenchArgs;
use crate::lab::{self, Progress};
use anyhow::Context as _;
use instep_bench::cells_file::Boot;
use instep_bench::here::{self, Tools};
use instep_bench::plan::{Block, Job, SchedulerKind, blocks};
use instep_lab::Stop;
use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

/// What this cannot show, beside what the work itself cannot.
const DOES_NOT_SHOW: &str = "real guests' halts, interrupts and exits: the VMs are processes";

/// Whether it can be done here; leaves out what cannot, with a warning.
pub(super) fn check(wanted: &mut BenchOrder) -> anyhow::Result<()> {
    let only_default = wanted.schedulers.iter().all(|s| s.kind == SchedulerKind::Default);
    here::ready(!only_default)?;
    let guests: Vec<String> = wanted
        .cases
        .iter()
        .filter(|case| case.has_guests())
        .map(|case| case.name.clone())
        .collect();
    if !guests.is_empty() {
        wanted.cases.retain(|case| !case.has_guests());
        let text = format!("left out, for they need the lab's guests: {}", guests.join(", "));
        wanted.warnings.push(text);
    }
    anyhow::ensure!(!wanted.cases.is_empty(), "no case is left that can run here");
    // This machine's CPUs, whatever the cases would have liked.
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    for case in &mut wanted.cases {
        if case.host.cpus() != cpus {
            let text = format!(
                "cases run on this machine's {cpus} CPUs: made for others, they may be under- or \
                 overcommitted otherwise than their names say"
            );
            if !wanted.warnings.contains(&text) {
                wanted.warnings.push(text);
            }
        }
        (case.host.cores, case.host.threads) = (cpus, 1);
    }
    Ok(())
}

pub(super) fn run(
    wanted: &BenchOrder,
    args: &BenchArgs,
    stop: &Stop,
    progress: &Progress,
) -> anyhow::Result<FinishedCells> {
    let options = lab::options(&args.host, None)?;
    let load = options
        .load
        .clone()
        .context("instep-load is not built; run `cargo xtask load`, or give --load FILE")?;
    let mut finished = FinishedCells::begin(wanted.order(&options), args.resume.as_deref())?;
    let done = finished.kept.done();
    let blocks = left(wanted, &done);
    if blocks.is_empty() {
        return Ok(finished);
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let boot = finished.booted(Boot {
        kernel: kernel.trim().to_owned(),
        machine: "this machine itself, VMs as processes".to_owned(),
        does_not_show: DOES_NOT_SHOW.to_owned(),
        ..Boot::default()
    })?;
    let dir = tempfile::Builder::new().prefix("instep-bench.").tempdir()?;
    let stopped = || stop.raised();
    let tools = Tools {
        instep: options.instep,
        unit_ns: here::unit_ns(&load)?,
        load,
        peers: wanted.peers.clone(),
        dir: dir.path().to_owned(),
        boot,
        stop: &stopped,
    };
    let all = blocks.iter().map(|block| block.jobs.len()).sum();
    let about = blocks.iter().map(Block::about).sum();
    let mut pace = Pace::begin(all, 0, about, finished.keeper.is_some());
    for block in &blocks {
        let what = format!("run {} under {}", block.run + 1, block.program);
        pace.block(&what, progress);
        let mut jobs = block.jobs.iter();
        let mut kept = Ok(());
        here::run(block, &tools, &mut |cell| {
            let about = jobs.next().map_or(Duration::ZERO, |job| block.times.about(job));
            pace.cell(&cell, about, progress);
            let one = finished.finished(cell);
            kept = std::mem::replace(&mut kept, Ok(())).and(one);
        })?;
        kept?;
        if stop.raised() {
            break;
        }
    }
    here::sweep();
    Ok(finished)
}

/// What is not done yet, and the work of it alone, which is measured anew: another start of this program
/// makes other work of the same options.
fn left(wanted: &BenchOrder, done: &BTreeSet<(String, String, u32)>) -> Vec<Block> {
    let Some(host) = wanted.cases.first().map(|case| case.host) else { return Vec::new() };
    let mut blocks = blocks(&wanted.cases, host, &wanted.present(), wanted.runs, wanted.times);
    let mut jobs = Vec::new();
    for block in &mut blocks {
        let is_done =
            |job: &Job| done.contains(&(job.case.name.clone(), job.scheduler.clone(), block.run));
        block.jobs.retain(|job| job.alone || !is_done(job));
        jobs.extend(block.jobs.iter().filter(|job| !job.alone).cloned());
    }
    for block in &mut blocks {
        let wanted = |job: &Job| jobs.iter().any(|other| other.case.is_same_alone(&job.case));
        block.jobs.retain(|job| !job.alone || wanted(job));
    }
    blocks.retain(|block| !block.jobs.is_empty());
    blocks
}
