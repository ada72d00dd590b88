//! `instep restore` in the control domain of a Xen host.

use super::RestoreJson;
use crate::args::RestoreArgs;
use crate::{Outcome, print, print_json, tell};
use instep_agent::run::lock_journal;
use instep_agent::xen::{describe_restore, restore};
use instep_host::apply::StateDir;
use instep_xen::Source;
use instep_xen::apply::Journal;
use std::fs;

/// Puts back what the journal of this host tells.
pub(super) fn command(
    args: &RestoreArgs,
    state: &StateDir,
    source: Source,
) -> anyhow::Result<Outcome> {
    anyhow::ensure!(
        !args.to_cpuset,
        "--to-cpuset is for Linux hosts; on Xen `xl vcpu-pin DOMAIN all all all` lets a domain use all CPUs"
    );
    let path = Journal::path_in(state.path());
    let report = if path.exists() {
        let _lock = lock_journal(state)?;
        if args.discard_damaged && Journal::load(state.path()).is_err() {
            let aside = path.with_extension("damaged");
            fs::rename(&path, &aside)?;
            tell(&format!("the damaged journal is now {}", aside.display()));
        }
        restore(state, source)?
    } else {
        Default::default()
    };
    let outcome = if report.is_complete() { Outcome::Fine } else { Outcome::Finding };
    if args.json {
        print_json(&RestoreJson {
            schema: "instep.restore/1",
            restored: report.restored,
            gone: report.gone,
            left_alone: report.left_alone.clone(),
            narrowed: Vec::new(),
            monitor: None,
            failed: report.failed.iter().map(|(name, error)| format!("{name}: {error}")).collect(),
            widened: None,
        })?;
        return Ok(outcome);
    }
    if report.is_complete() && report.restored + report.gone + report.left_alone.len() == 0 {
        print(&format!("Nothing to restore in {}.\n", state.path().display()))?;
        return Ok(outcome);
    }
    let mut lines = describe_restore(&report).into_iter();
    print(&format!("{}.\n", lines.next().unwrap_or_default()))?;
    for line in lines {
        print(&format!("  {line}\n"))?;
    }
    Ok(outcome)
}
