//! `instep restore`: puts back what a `run --once` or a crash left behind.

mod xen;

use crate::args::RestoreArgs;
use crate::observe::state_dir;
use crate::text::plural;
use crate::{Outcome, hypervisor, print, print_json, tell};
use anyhow::Context as _;
use instep_agent::dispatch;
use instep_agent::published;
use instep_agent::run::{lock, lock_host, lock_journal, summarize_restore};
use instep_host::Root;
use instep_host::apply::{
    Applier, InstanceLock, Journal, KernelAffinity, RestoreReport, StateDir, WidenReport, damon,
    widen,
};
use instep_host::discover::{ScanOptions, Scanner, is_called};
use instep_host::system::check_pid_namespace;
use schemars::JsonSchema;
use serde::Serialize;
use std::io::ErrorKind;
use std::path::Path;

/// `instep.restore/1`.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Restore")]
pub(crate) struct RestoreJson {
    #[schemars(extend("const" = "instep.restore/1"))]
    schema: &'static str,
    restored: usize,
    gone: usize,
    left_alone: Vec<String>,
    narrowed: Vec<String>,
    failed: Vec<String>,
    /// What became of DAMON's monitor, in words; null when none was on record.
    monitor: Option<String>,
    /// Threads that `--to-cpuset` let use more CPUs; null without it.
    widened: Option<usize>,
}

pub(crate) fn command(args: &RestoreArgs) -> anyhow::Result<Outcome> {
    check_pid_namespace()?;
    let state = state_dir(args.state_dir.as_deref())?;
    if let Some(source) = hypervisor::xen(args.hypervisor, None)? {
        return xen::command(args, &state, source);
    }
    let has_journal = has_journal(&state, args.state_dir.is_some())?;
    if args.to_cpuset {
        // A wrong name is found before anything is changed.
        let processes = processes_of(&args.vms)?;
        // No run may begin before all is done, and none elsewhere may have placed what is widened.
        let (report, _locks) = if has_journal {
            let (report, applier) = put_back(&state, lock(&state)?, args, &processes)?;
            (report, (Some(applier), None))
        } else {
            (RestoreReport::default(), (None, lock_host()?))
        };
        return widened(&report, &processes, args);
    }
    let report = match has_journal {
        true => put_back(&state, lock_journal(&state)?, args, &[])?.0,
        false => RestoreReport::default(),
    };
    report_restore(&state, &report, args)
}

/// Whether there is something to restore from. Nothing is made where there is not, a lock file neither.
///
/// # Errors
/// It cannot be looked at; there is no such directory though it `is_named`; a run that has changed nothing
/// yet uses it.
fn has_journal(state: &StateDir, is_named: bool) -> anyhow::Result<bool> {
    let is_there = |path: &Path| match path.try_exists() {
        Err(error) if error.kind() == ErrorKind::NotADirectory => Ok(false),
        known => known.with_context(|| {
            format!("cannot tell whether there is {}, so nothing was restored", path.display())
        }),
    };
    let has_directory = is_there(state.path())?;
    anyhow::ensure!(
        has_directory || !is_named,
        "there is no state directory {}, so nothing was restored; give the --state-dir DIR of \
         that `instep run`, or none if that had none; `instep restore --to-cpuset` needs none",
        state.path().display()
    );
    if !has_directory {
        return Ok(false);
    }
    state.check()?;
    if is_there(&Journal::path_in(state))? || damon::is_recorded(state)?.is_some() {
        return Ok(true);
    }
    match state.running_instance()? {
        Some(pid) => {
            Err(instep_host::Error::Taken { pid: Some(pid).filter(|pid| *pid != 0) }.into())
        }
        None => {
            // Nor does what a run that was killed told of the kernel scheduler hold any more.
            dispatch::forget(state.path());
            published::forget(state.path());
            Ok(false)
        }
    }
}

/// Restores what the journal tells, of VMs that were named (`processes`) only; the lock is held for as
/// long as the applier is.
fn put_back(
    state: &StateDir,
    lock: InstanceLock,
    args: &RestoreArgs,
    processes: &[(u32, u64)],
) -> anyhow::Result<(RestoreReport, Applier)> {
    if args.discard_damaged
        && let Some(aside) = Journal::discard_damaged(&lock)?
    {
        tell(&format!("the damaged journal is now {}", aside.display()));
    }
    let mut applier = Applier::open(lock)?;
    let report = if args.vms.is_empty() {
        applier.restore()?
    } else {
        let chosen = processes.iter().map(|(pid, _)| *pid).collect();
        let report = applier.restore_processes(&chosen)?;
        // Whichever VM it watches: the run that made it has ended.
        RestoreReport { monitor: applier.remove_monitor(), ..report }
    };
    dispatch::forget(state.path());
    published::forget(state.path());
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
    let is_complete = json.failed.is_empty() && report.is_complete();
    let outcome = if is_complete { Outcome::Fine } else { Outcome::Finding };
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
    if let Some(monitor) = &json.monitor {
        print(&format!("  {monitor}\n"))?;
    }
    for line in &json.failed {
        print(&format!("  failed: {line}\n"))?;
    }
    Ok(outcome)
}

/// The processes of the VMs of these names, of all VMs without names, each with its start.
fn processes_of(names: &[String]) -> anyhow::Result<Vec<(u32, u64)>> {
    let mut options = ScanOptions::once();
    options.memory.enabled = false;
    options.waits = false;
    let scan = Scanner::new(Root::live(), options).scan()?;
    let known = scan.vms.iter().map(|vm| ((vm.pid, vm.start_ticks), &vm.name));
    let opaque = scan.opaque.iter().map(|vm| ((vm.pid, vm.start_ticks), &vm.name));
    let known: Vec<((u32, u64), &String)> = known.chain(opaque).collect();
    for wanted in names {
        let is_known =
            known.iter().any(|((pid, _), name)| is_called((*pid, name.as_str()), wanted));
        anyhow::ensure!(is_known, "no VM is called `{wanted}`; see `instep status`");
    }
    let chosen = |((pid, _), name): &((u32, u64), &String)| {
        names.is_empty() || names.iter().any(|wanted| is_called((*pid, name.as_str()), wanted))
    };
    Ok(known.into_iter().filter(chosen).map(|(process, _)| process).collect())
}

/// Tells what was restored.
fn report_restore(
    state: &StateDir,
    report: &RestoreReport,
    args: &RestoreArgs,
) -> anyhow::Result<Outcome> {
    let outcome = if report.is_complete() { Outcome::Fine } else { Outcome::Finding };
    if args.json {
        print_json(&json(report))?;
        return Ok(outcome);
    }
    if report.is_empty() {
        print(&format!("Nothing to restore in {}.\n", state.path().display()))?;
        return Ok(outcome);
    }
    print(&format!("{}.\n", summarize_restore(report)))?;
    let RestoreJson { left_alone, narrowed, failed, monitor, .. } = json(report);
    if let Some(monitor) = monitor {
        print(&format!("  {monitor}\n"))?;
    }
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
        monitor: report.monitor_told(),
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
    fn monitor_of_run_that_was_killed_is_restored_without_a_journal() {
        monitor_is_removed(&["instep", "restore"]);
    }

    #[test]
    fn monitor_of_a_run_that_was_killed_is_removed_with_named_vms() {
        monitor_is_removed(&["instep", "restore", "--to-cpuset", "--vm", "a"]);
    }

    fn monitor_is_removed(command: &[&str]) {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path().join("s"));
        drop(state.lock().unwrap());
        assert!(!has_journal(&state, true).unwrap());
        // The first process did not start that late.
        let boot = instep_host::apply::Instance::this().unwrap().boot_id;
        let holder = format!(r#"{{"boot_id":"{boot}","pid":1,"start":{}}}"#, u64::MAX);
        let text = format!(r#"{{"schema":"instep.damon/1","holder":{holder},"target":4711}}"#);
        std::fs::write(state.path().join("damon.json"), text).unwrap();
        assert!(has_journal(&state, true).unwrap());
        let Command::Restore(args) = Cli::parse_from(command).command else {
            panic!("another command");
        };
        let (report, _) = put_back(&state, state.lock().unwrap(), &args, &[]).unwrap();
        let told = json(&report).monitor.unwrap();
        assert!(!report.is_empty() && report.is_complete() && told.contains("DAMON"), "{told}");
        assert!(!has_journal(&state, true).unwrap());
    }

    #[test]
    fn lock_is_held_until_what_follows_the_restore_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path().join("s"));
        let Command::Restore(args) = Cli::parse_from(["instep", "restore", "--to-cpuset"]).command
        else {
            panic!("another command");
        };
        let (_, applier) = put_back(&state, state.lock().unwrap(), &args, &[]).unwrap();
        assert!(state.lock().unwrap_err().to_string().contains("already runs"));
        drop(applier);
        state.lock().unwrap();
    }
}
