//! `instep run` in the control domain of a Xen host.

use super::output::Output;
use crate::Outcome;
use crate::args::{Hypervisor, RunArgs};
use crate::guard::of_run;
use crate::observe::{state_dir, xen_journal};
use instep_agent::config::{Config, ConfigError};
use instep_agent::run::{Events, Sink};
use instep_agent::xen::{Ended, XenRunOptions, describe_restore, run};
use instep_kernel::Mode;
use instep_xen::Source;
use std::cell::Cell;
use std::time::Duration;

/// Runs until told to stop; what is worth telling goes to the sink.
pub(super) fn place(
    (args, events, config): (&RunArgs, Events, Config),
    source: Source,
    (make, interval): (&dyn Fn() -> Result<Config, ConfigError>, &Cell<Duration>),
    sink: &mut Output<'_>,
) -> anyhow::Result<Outcome> {
    anyhow::ensure!(
        config.dispatch.mode == Mode::Off,
        "the kernel scheduler schedules threads of Linux, and Xen schedules its domains itself: leave --dispatch \
         (or `[dispatch] mode` of the configuration) out"
    );
    let (mut state, mut known) = (None, None);
    if args.dry_run {
        let mut warnings = Vec::new();
        known = xen_journal(args.state_dir.as_deref(), &mut warnings);
        warnings.iter().for_each(|warning| sink.notice(warning));
    } else {
        state = Some(state_dir(args.state_dir.as_deref())?);
    }
    let guardian = state.as_ref().and_then(|state| of_run(args, state, Hypervisor::Xen, sink));
    let mut reload = || {
        let config = make()?;
        interval.set(config.interval);
        Ok(config)
    };
    let reload = args.policy.config.is_some().then_some(&mut reload as &mut dyn FnMut() -> _);
    let once = args.once;
    let options = XenRunOptions { config, reload, once, state, known, guardian, events, source };
    let Ended { failed, restored } = run(options, sink)?;
    if let Some(report) = &restored {
        describe_restore(report).iter().for_each(|line| sink.notice(line));
    }
    let complete = restored.is_none_or(|report| report.is_complete());
    Ok(if failed == 0 && complete { Outcome::Fine } else { Outcome::Finding })
}
