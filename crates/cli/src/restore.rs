//! `instep restore`: puts back what a `run --once` or a crash left behind.

use crate::args::RestoreArgs;
use crate::observe::state_dir;
use crate::text::plural;
use crate::{Outcome, print, print_json, tell};
use instep_agent::dispatch;
use instep_agent::run::{lock, lock_host, lock_journal, restored};
use instep_host::Root;
use instep_host::apply::{
    Applier, InstanceLock, Journal, KernelAffinity, RestoreReport, StateDir, WidenReport, widen,
};
use instep_host::discover::{Scan, ScanOptions, Scanner};
use serde::Serialize;

/// `instep.restore/1`.
#[derive(Serialize)]
struct RestoreJson {
    schema: &'static str,
    restored: usize,
    gone: usize,
    left_alone: Vec<String>,
    narrowed: Vec<String>,
    failed: Vec<String>,
    /// Threads that `--to-cpuset` let use more CPUs; null without it.
    widened: Option<usize>,
}

pub(crate) fn command(args: &RestoreArgs) -> anyhow::Result<Outcome> {
    let state = state_dir(args.state_dir.as_deref())?;
    let is_there = state.path().exists();
    anyhow::ensure!(
        is_there || args.state_dir.is_none() || args.to_cpuset,
        "there is no state directory {}, so nothing was restored; name the one that `instep run` had \
         with --state-dir DIR, or none for the default",
        state.path().display()
    );
    if args.to_cpuset {
        // It may change what a run elsewhere placed.
        let (report, _lock) = if is_there {
            (put_back(&state, lock(&state)?, args)?, None)
        } else {
            (RestoreReport::default(), lock_host()?)
        };
        return widened(&report, args);
    }
    let report = match is_there {
        true => put_back(&state, lock_journal(&state)?, args)?,
        false => RestoreReport::default(),
    };
    told(&state, &report, args)
}

/// Restores what the journal tells.
fn put_back(
    state: &StateDir,
    lock: InstanceLock,
    args: &RestoreArgs,
) -> anyhow::Result<RestoreReport> {
    if args.discard_damaged
        && let Some(aside) = Journal::discard_damaged(&lock)?
    {
        tell(&format!("the damaged journal is now {}", aside.display()));
    }
    let report = Applier::open(lock)?.restore()?;
    dispatch::forget(state.path());
    Ok(report)
}

/// Lets all threads of VMs use all CPUs of their cpusets.
fn widened(report: &RestoreReport, args: &RestoreArgs) -> anyhow::Result<Outcome> {
    let mut options = ScanOptions::once();
    options.memory.enabled = false;
    let scan = Scanner::new(Root::live(), options).scan()?;
    let pids = named(&scan, &args.vms)?;
    let WidenReport { widened, unchanged, failed } = widen(&KernelAffinity, &pids);
    let mut json = RestoreJson { widened: Some(widened), ..json(report) };
    json.failed.extend(failed.iter().map(|(tid, error)| format!("thread {tid}: {error}")));
    let outcome = if json.failed.is_empty() { Outcome::Fine } else { Outcome::Finding };
    if args.json {
        print_json(&json)?;
        return Ok(outcome);
    }
    print(&format!(
        "{} of {} may use all CPUs of its cpuset again; {} could before.\n",
        plural(widened, "thread"),
        plural(pids.len(), "VM"),
        plural(unchanged, "thread"),
    ))?;
    for line in &json.failed {
        print(&format!("  failed: {line}\n"))?;
    }
    Ok(outcome)
}

/// The processes of the VMs of these names, of all VMs without names.
fn named(scan: &Scan, names: &[String]) -> anyhow::Result<Vec<u32>> {
    let known = scan.vms.iter().map(|vm| (vm.pid, &vm.name));
    let known: Vec<(u32, &String)> =
        known.chain(scan.opaque.iter().map(|vm| (vm.pid, &vm.name))).collect();
    let is_called = |pid: u32, name: &str, wanted: &str| {
        name == wanted || name.strip_suffix(&format!("@{pid}")) == Some(wanted)
    };
    for wanted in names {
        let is_known = known.iter().any(|(pid, name)| is_called(*pid, name, wanted));
        anyhow::ensure!(is_known, "no VM is called `{wanted}`; see `instep status`");
    }
    let chosen = |(pid, name): &(u32, &String)| {
        names.is_empty() || names.iter().any(|wanted| is_called(*pid, name, wanted))
    };
    Ok(known.into_iter().filter(chosen).map(|(pid, _)| pid).collect())
}

/// Tells what was restored.
fn told(state: &StateDir, report: &RestoreReport, args: &RestoreArgs) -> anyhow::Result<Outcome> {
    let outcome = if report.is_complete() { Outcome::Fine } else { Outcome::Finding };
    if args.json {
        print_json(&json(report))?;
        return Ok(outcome);
    }
    let nothing =
        report.is_complete() && report.restored + report.gone + report.left_alone.len() == 0;
    if nothing {
        print(&format!("Nothing to restore in {}.\n", state.path().display()))?;
        return Ok(outcome);
    }
    print(&format!("{}.\n", restored(report)))?;
    let RestoreJson { left_alone, narrowed, failed, .. } = json(report);
    for (what, lines) in
        [("left alone", left_alone), ("narrower than before", narrowed), ("failed", failed)]
    {
        for line in lines {
            print(&format!("  {what}: {line}\n"))?;
        }
    }
    Ok(outcome)
}

fn json(report: &RestoreReport) -> RestoreJson {
    RestoreJson {
        schema: "instep.restore/1",
        restored: report.restored,
        gone: report.gone,
        left_alone: report.left_alone.iter().map(ToString::to_string).collect(),
        narrowed: report.narrowed.iter().map(ToString::to_string).collect(),
        widened: None,
        failed: report.failed.iter().map(|(tid, error)| format!("thread {tid}: {error}")).collect(),
    }
}
