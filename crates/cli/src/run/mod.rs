//! `instep run`: places the VMs, again and again, and tells what it does.

mod outlet;
mod output;
mod text;
mod xen;

use crate::args::{Hypervisor, PolicyArgs, RunArgs};
use crate::observe::{journal, state_dir};
use crate::{Outcome, guard, hypervisor};
use instep_agent::config::{Config, ConfigError};
use instep_agent::run::{Ended, Events, RunMode, RunOptions, Sink, describe_restore, run};
use instep_kernel::Mode;
use output::Output;
use std::cell::Cell;
use std::time::Duration;

/// `events` are the signals held since the process began, `None` where it did not tell that it is a run.
pub(crate) fn command(args: RunArgs, events: Option<Events>) -> anyhow::Result<Outcome> {
    let events = events.map_or_else(Events::hold_reloads, Ok)?;
    let make = || {
        let mut config = config_from(&args.policy, args.interval, args.window)?;
        config.memory.home &= !args.no_memory;
        config.dispatch.mode = args.dispatch.unwrap_or(config.dispatch.mode);
        config.dispatch.despite_cookies |= args.despite_cookies;
        config.dispatch.process.extend(args.process_vms.iter().cloned());
        if let Some(file) = &args.metrics {
            config.metrics.file.clone_from(file);
        }
        if let Some(dir) = &args.history {
            config.history.dir = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
        }
        check(config, &args.policy)
    };
    let config = make()?;
    anyhow::ensure!(
        args.process_vms.is_empty() || config.dispatch.mode != Mode::Off,
        "--process-vm is for the kernel scheduler alone, which is off: add --dispatch auto"
    );
    let interval = Cell::new(config.interval);
    let mut sink = Output::start(&args, &interval)?;
    let result = match hypervisor::xen(args.hypervisor, None) {
        Ok(None) => place((&args, events, config), &make, &interval, &mut sink),
        Ok(Some(source)) => {
            xen::place((&args, events, config), source, (&make, &interval), &mut sink)
        }
        Err(error) => Err(error),
    };
    let outcome = result.unwrap_or_else(|error| {
        sink.notice(&crate::error_text(&error));
        Outcome::Status(crate::status_of(&error))
    });
    // What could not be written in time, or at all, is work that failed; the placement is not.
    let lost = sink.finish();
    Ok(if lost != 0 && outcome == Outcome::Fine { Outcome::Finding } else { outcome })
}

/// Runs until told to stop; what is worth telling goes to the sink.
fn place(
    (args, events, config): (&RunArgs, Events, Config),
    make: &dyn Fn() -> Result<Config, ConfigError>,
    interval: &Cell<Duration>,
    sink: &mut Output<'_>,
) -> anyhow::Result<Outcome> {
    let run_mode = if args.dry_run {
        let mut warnings = Vec::new();
        let known = journal(args.state_dir.as_deref(), &mut warnings);
        warnings.iter().for_each(|warning| sink.notice(warning));
        RunMode::DryRun(known)
    } else {
        RunMode::Apply(state_dir(args.state_dir.as_deref())?)
    };
    let guardian = match &run_mode {
        RunMode::Apply(state) => guard::of_run(args, state, Hypervisor::Kvm, sink),
        RunMode::DryRun(_) => None,
    };
    let mut reload = || {
        let config = make()?;
        interval.set(config.interval);
        Ok(config)
    };
    let reload = args.policy.config.is_some().then_some(&mut reload as &mut dyn FnMut() -> _);
    let options = RunOptions { config, reload, once: args.once, run_mode, guardian, events };
    let Ended { failed, restored: report } = run(options, sink)?;
    if let Some(report) = &report {
        describe_restore(report).iter().for_each(|line| sink.notice(line));
    }
    let complete = report.is_none_or(|report| report.is_complete());
    Ok(if failed == 0 && complete { Outcome::Fine } else { Outcome::Finding })
}

/// The configuration: the file if one is named, under what the command line says.
pub(crate) fn config(
    args: &PolicyArgs,
    interval: Option<Duration>,
    window: Option<Duration>,
) -> anyhow::Result<Config> {
    Ok(config_from(args, interval, window)?)
}

fn config_from(
    args: &PolicyArgs,
    interval: Option<Duration>,
    window: Option<Duration>,
) -> Result<Config, ConfigError> {
    let mut config = match &args.config {
        Some(path) => Config::load(path)?,
        None => Config::default(),
    };
    config.policy = args.policy.unwrap_or(config.policy);
    config.interval = interval.unwrap_or(config.interval);
    config.window = window.unwrap_or(config.window);
    config.mend_conflicts |= args.mend_conflicts;
    config.include_pinned |= args.include_pinned;
    if !args.vms.is_empty() {
        config.vms.clone_from(&args.vms);
    }
    check(config, args)
}

/// The same, if its values can be used.
fn check(config: Config, args: &PolicyArgs) -> Result<Config, ConfigError> {
    config.check().map_err(|message| ConfigError::Value {
        path: args.config.clone().unwrap_or_else(|| "command line".into()),
        message,
    })?;
    Ok(config)
}
