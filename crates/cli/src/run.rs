//! `instep run`: places the VMs, again and again, and tells what it does.

use crate::args::{PolicyArgs, RunArgs};
use crate::observe::{journal, state_dir};
use crate::text::{indented, plural, width, wrapped};
use crate::{Outcome, print, tell};
use anyhow::Context as _;
use instep_agent::config::{Config, ConfigError};
use instep_agent::record::{MemoryRecord, Record};
use instep_agent::run::{Ended, Hands, Options, Sink, restored, run};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

pub(crate) fn command(args: RunArgs) -> anyhow::Result<Outcome> {
    let make = || {
        let mut config = config_from(&args.policy, args.interval, args.window)?;
        config.memory.home &= !args.no_memory;
        Ok(config)
    };
    let config = make()?;
    let mut sink =
        Output { log: None, json: args.json, once: args.once, interval: config.interval };
    if let Some(path) = &args.log {
        sink.log = Some(open_log(path)?);
    }
    let hands = if args.dry_run {
        let mut warnings = Vec::new();
        let known = journal(args.state_dir.as_deref(), &mut warnings);
        warnings.iter().for_each(|warning| sink.notice(warning));
        Hands::Tied(known)
    } else {
        Hands::Free(state_dir(args.state_dir.as_deref())?)
    };
    let options = Options { config, reload: &mut || make(), once: args.once, hands };
    let Ended { failed, restored: report } = run(options, &mut sink)?;
    if let Some(report) = &report {
        sink.notice(&restored(report));
        for left in &report.left_alone {
            sink.notice(&left.to_string());
        }
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
    config.check().map_err(|message| ConfigError::Value {
        path: args.config.clone().unwrap_or_else(|| "command line".into()),
        message,
    })?;
    Ok(config)
}

fn open_log(path: &Path) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.append(true).create(true).open(path);
    file.with_context(|| format!("cannot append to the log {}", path.display()))
}

/// Writes records to the log, and to the terminal as text or JSON lines.
struct Output {
    log: Option<File>,
    json: bool,
    once: bool,
    interval: Duration,
}

impl Sink for Output {
    fn record(&mut self, record: &Record<'_>) -> io::Result<()> {
        let mut line = serde_json::to_string(record)?;
        line.push('\n');
        if let Some(log) = &mut self.log {
            log.write_all(line.as_bytes())?;
        }
        if self.json {
            return io::stdout().lock().write_all(line.as_bytes());
        }
        let text = drawn(record, width()) + &self.next(record);
        print(&text).map_err(io::Error::other)
    }

    fn notice(&mut self, text: &str) {
        tell(text);
    }
}

impl Output {
    fn next(&self, record: &Record<'_>) -> String {
        let changed = record.actions.iter().any(|action| action.outcome == "done");
        match (self.once, changed && !record.dry_run) {
            (true, true) => "`instep restore` puts it back.\n".to_owned(),
            (true, false) => String::new(),
            (false, _) => format!(
                "next cycle in {}\n",
                humantime::format_duration(Duration::from_secs(self.interval.as_secs()))
            ),
        }
    }
}

/// One cycle for people: what changed and what did not work; verdicts only where nothing changed.
fn drawn(record: &Record<'_>, width: usize) -> String {
    let mut text = format!(
        "{} cycle {}: {}, {}, policy {}; own CPU time {}us\n",
        record.time,
        record.cycle,
        plural(record.vms.len(), "VM"),
        plural(record.actions.len(), "change"),
        record.policy,
        record.cost.cpu_ns.0 / 1000,
    );
    for action in &record.actions {
        let line = format!("{}: {}", described(&action.action), action.outcome);
        text.push_str(&indented(&wrapped(&line, width - 2), 2));
    }
    for verdict in &record.vms {
        let line = format!("{}: {}", crate::text::printable(verdict.name), verdict.why);
        text.push_str(&indented(&wrapped(&line, width - 2), 2));
    }
    for memory in record.memory {
        text.push_str(&indented(&wrapped(&memory_line(memory), width - 2), 2));
    }
    for warning in record.warnings {
        text.push_str(&indented(&wrapped(&format!("warning: {warning}"), width - 2), 2));
    }
    text
}

fn described(action: &instep_agent::view::ActionView<'_>) -> String {
    use instep_agent::view::ActionView;
    match action {
        ActionView::VcpuAffinity { vm, vcpu, cpus, .. } => {
            format!("{vm} vCPU {vcpu} -> CPUs {cpus}")
        }
        ActionView::EmulatorAffinity { vm, tid, cpus, .. } => {
            format!("{vm} emulator thread {tid} -> CPUs {cpus}")
        }
        ActionView::MoveMemory { vm, nodes, remote_bytes, .. } => {
            format!("{vm} {remote_bytes} of memory -> node {nodes}")
        }
    }
}

fn memory_line(memory: &MemoryRecord) -> String {
    let mut line = format!("{}: {} came home", memory.vm, memory.moved_bytes);
    for (cause, bytes) in &memory.stayed_bytes {
        line.push_str(&format!(", {bytes} stayed ({cause})"));
    }
    if let Some(error) = &memory.error {
        line.push_str(&format!("; {error}"));
    } else if !memory.complete {
        line.push_str("; more in the next cycle");
    }
    line
}
