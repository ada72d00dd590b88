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
use instep_host::discover::{ScanOptions, Scanner};
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
        // A wrong name is found before anything is changed.
        let processes = processes_of(&args.vms)?;
        // No run may begin before all is done, and none elsewhere may have placed what is widened.
        let (report, _locks) = if is_there {
            let (report, applier) = put_back(&state, lock(&state)?, args)?;
            (report, (Some(applier), None))
        } else {
            (RestoreReport::default(), (None, lock_host()?))
        };
        return widened(&report, &processes, args);
    }
    let report = match is_there {
        true => put_back(&state, lock_journal(&state)?, args)?.0,
        false => RestoreReport::default(),
    };
    told(&state, &report, args)
}

/// Restores what the journal tells; the lock is held for as long as the applier is.
fn put_back(
    state: &StateDir,
    lock: InstanceLock,
    args: &RestoreArgs,
) -> anyhow::Result<(RestoreReport, Applier)> {
    if args.discard_damaged
        && let Some(aside) = Journal::discard_damaged(&lock)?
    {
        tell(&format!("the damaged journal is now {}", aside.display()));
    }
    let mut applier = Applier::open(lock)?;
    let report = applier.restore()?;
    dispatch::forget(state.path());
    Ok((report, applier))
}

/// Lets all threads of these processes use all CPUs of their cpusets.
fn widened(
    report: &RestoreReport,
    processes: &[(u32, u64)],
    args: &RestoreArgs,
) -> anyhow::Result<Outcome> {
    let WidenReport { widened, unchanged, failed } = widen(&KernelAffinity, processes);
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
        plural(processes.len(), "VM"),
        plural(unchanged, "thread"),
    ))?;
    for line in &json.failed {
        print(&format!("  failed: {line}\n"))?;
    }
    Ok(outcome)
}

/// The processes of the VMs of these names, of all VMs without names, each with its start.
fn processes_of(names: &[String]) -> anyhow::Result<Vec<(u32, u64)>> {
    let mut options = ScanOptions::once();
    options.memory.enabled = false;
    let scan = Scanner::new(Root::live(), options).scan()?;
    let known = scan.vms.iter().map(|vm| ((vm.pid, vm.start_ticks), &vm.name));
    let opaque = scan.opaque.iter().map(|vm| ((vm.pid, vm.start_ticks), &vm.name));
    let known: Vec<((u32, u64), &String)> = known.chain(opaque).collect();
    let is_called = |pid: u32, name: &str, wanted: &str| {
        name == wanted || name.strip_suffix(&format!("@{pid}")) == Some(wanted)
    };
    for wanted in names {
        let is_known = known.iter().any(|((pid, _), name)| is_called(*pid, name, wanted));
        anyhow::ensure!(is_known, "no VM is called `{wanted}`; see `instep status`");
    }
    let chosen = |((pid, _), name): &((u32, u64), &String)| {
        names.is_empty() || names.iter().any(|wanted| is_called(*pid, name, wanted))
    };
    Ok(known.into_iter().filter(chosen).map(|(process, _)| process).collect())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser as _;

    #[test]
    fn lock_is_held_until_what_follows_the_restore_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path().join("s"));
        let Command::Restore(args) = Cli::parse_from(["instep", "restore", "--to-cpuset"]).command
        else {
            panic!("another command");
        };
        let (_, applier) = put_back(&state, state.lock().unwrap(), &args).unwrap();
        assert!(state.lock().unwrap_err().to_string().contains("already runs"));
        drop(applier);
        state.lock().unwrap();
    }
}
