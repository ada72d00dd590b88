//! `instep restore`: puts back what a `run --once` or a crash left behind.

use crate::args::RestoreArgs;
use crate::observe::state_dir;
use crate::{Outcome, print, print_json, tell};
use instep_agent::dispatch;
use instep_agent::run::{lock, restored};
use instep_host::apply::{Applier, Journal, RestoreReport};
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
}

pub(crate) fn command(args: &RestoreArgs) -> anyhow::Result<Outcome> {
    let state = state_dir(args.state_dir.as_deref())?;
    let lock = lock(&state)?;
    if args.discard_damaged
        && let Some(aside) = Journal::discard_damaged(&lock)?
    {
        tell(&format!("the damaged journal is now {}", aside.display()));
    }
    let report = Applier::open(lock)?.restore()?;
    dispatch::forget(state.path());
    let outcome = if report.is_complete() { Outcome::Fine } else { Outcome::Finding };
    if args.json {
        print_json(&json(&report))?;
        return Ok(outcome);
    }
    let nothing =
        report.is_complete() && report.restored + report.gone + report.left_alone.len() == 0;
    if nothing {
        print(&format!("Nothing to restore in {}.\n", state.path().display()))?;
        return Ok(outcome);
    }
    print(&format!("{}.\n", restored(&report)))?;
    let RestoreJson { left_alone, narrowed, failed, .. } = json(&report);
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
        failed: report.failed.iter().map(|(tid, error)| format!("thread {tid}: {error}")).collect(),
    }
}
