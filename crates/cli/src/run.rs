//! `instep run`: places the VMs, again and again, and tells what it does.

use crate::args::{PolicyArgs, RunArgs};
use crate::observe::{journal, state_dir};
use crate::text::{indented, of_guest_node, plural, printable, ranges, width, wrapped};
use crate::{Outcome, guard, tell};
use instep_agent::config::{Config, ConfigError};
use instep_agent::guard::missing;
use instep_agent::record::{ActionRecord, MemoryRecord, Record};
use instep_agent::run::{Ended, Hands, Options, Sink, run, told};
use instep_agent::view::{ActionView, VerdictView};
use instep_core::units::Milli;
use instep_kernel::Mode;
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

pub(crate) fn command(args: RunArgs) -> anyhow::Result<Outcome> {
    let make = || {
        let mut config = config_from(&args.policy, args.interval, args.window)?;
        config.memory.home &= !args.no_memory;
        config.dispatch.mode = args.dispatch.unwrap_or(config.dispatch.mode);
        config.dispatch.despite_cookies |= args.dispatch_with_cookies;
        config.dispatch.process.extend(args.process_vms.iter().cloned());
        Ok(config)
    };
    let config = make()?;
    anyhow::ensure!(
        args.process_vms.is_empty() || config.dispatch.mode != Mode::Off,
        "--process-vm is for the kernel scheduler alone, which is off: add --dispatch auto"
    );
    let interval = Cell::new(config.interval);
    let mut sink = Output {
        log: None,
        json: args.json,
        once: args.once,
        interval: &interval,
        verdicts: String::new(),
    };
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
    let guardian = match &hands {
        Hands::Free(state) if !args.no_guard && !args.once => {
            let command = guard::command_of(state);
            command.inspect_err(|error| sink.notice(&missing(error))).ok()
        }
        _ => None,
    };
    let mut reload = || {
        let config = make()?;
        interval.set(config.interval);
        Ok(config)
    };
    let reload = args.policy.config.is_some().then_some(&mut reload as &mut dyn FnMut() -> _);
    let options = Options { config, reload, once: args.once, hands, guardian };
    let Ended { failed, restored: report } = run(options, &mut sink)?;
    if let Some(report) = &report {
        told(report).iter().for_each(|line| sink.notice(line));
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
    file.map_err(|source| {
        anyhow::anyhow!(
            "cannot append to the log {}: {source}; name a file you may write with --log FILE",
            path.display()
        )
    })
}

/// With more VMs than this the verdict on each is not drawn every cycle.
const FEW_VMS: usize = 32;

/// Writes records to the log, and to the terminal as text or JSON lines.
struct Output<'a> {
    log: Option<File>,
    json: bool,
    once: bool,
    /// The interval now; a reload may change it.
    interval: &'a Cell<Duration>,
    /// The verdicts of the cycle before, which are not said twice.
    verdicts: String,
}

impl Sink for Output<'_> {
    fn record(&mut self, record: &Record<'_>) -> io::Result<()> {
        let mut line = serde_json::to_string(record)?;
        line.push('\n');
        if let Some(log) = &mut self.log {
            log.write_all(line.as_bytes())?;
        }
        if self.json {
            return io::stdout().lock().write_all(line.as_bytes());
        }
        let said = verdicts(record, width());
        let fresh = if said == self.verdicts { "" } else { &said };
        let text = drawn(record, fresh, width()) + &self.next(record);
        self.verdicts = said;
        io::stdout().lock().write_all(text.as_bytes())
    }

    fn notice(&mut self, text: &str) {
        tell(text);
    }
}

impl Output<'_> {
    fn next(&self, record: &Record<'_>) -> String {
        let changed = record.actions.iter().any(|action| action.outcome == "done");
        match (self.once, changed && !record.dry_run) {
            (true, true) => "`instep restore` puts it back.\n".to_owned(),
            (true, false) => String::new(),
            (false, _) => format!(
                "next cycle in {}\n",
                humantime::format_duration(Duration::from_secs(self.interval.get().as_secs()))
            ),
        }
    }
}

/// The verdicts, or where to find them when they are many.
fn verdicts(record: &Record<'_>, width: usize) -> String {
    if record.vms.len() > FEW_VMS {
        return "  add --json or --log FILE for the verdict on every VM\n".to_owned();
    }
    let line = |verdict: &VerdictView<'_>| {
        let line = format!("{}: {}", printable(verdict.name), verdict.why);
        indented(&wrapped(&line, width - 2), 2)
    };
    record.vms.iter().map(line).collect()
}

/// One cycle for people: what changed and what did not work, and `verdicts` in between.
fn drawn(record: &Record<'_>, verdicts: &str, width: usize) -> String {
    let head = format!(
        "{} cycle {}: {}, {}, policy {}, own CPU {}ms",
        seconds(&record.time),
        record.cycle,
        plural(record.vms.len(), "VM"),
        plural(record.actions.len(), "change"),
        record.policy,
        Milli(record.cost.cpu_ns.0 / 1000),
    );
    let mut text = indented(&wrapped(&head, width), 0);
    let described: Vec<_> = record.actions.iter().map(described).collect();
    for alike in described.chunk_by(|a, b| a.is_like(b)) {
        let Line { vm, what, outcome, .. } = &alike[0];
        let vcpus: Vec<u32> = alike.iter().filter_map(|line| line.vcpu).collect();
        let who = match (vcpus.as_slice(), alike.len()) {
            ([one], _) => format!(" vCPU {one} ->"),
            ([], 1) => String::new(),
            ([], count) => format!(", {}:", plural(count, "thread")),
            (several, _) => format!(" vCPUs {} ->", ranges(several)),
        };
        let line = format!("{}{who}{what}: {outcome}", printable(vm));
        text.push_str(&indented(&wrapped(&line, width - 2), 2));
    }
    text.push_str(verdicts);
    for memory in record.memory {
        text.push_str(&indented(&wrapped(&memory_line(memory), width - 2), 2));
    }
    for warning in record.warnings {
        text.push_str(&indented(&wrapped(&format!("warning: {warning}"), width - 2), 2));
    }
    text
}

/// A time of a record without its fraction of a second.
fn seconds(time: &str) -> String {
    time.split_once('.').map_or_else(|| time.to_owned(), |(whole, _)| format!("{whole}Z"))
}

/// One action in words, in parts that tell which can share a line.
struct Line<'a> {
    vm: &'a str,
    vcpu: Option<u32>,
    what: String,
    outcome: &'a str,
}

impl Line<'_> {
    fn is_like(&self, other: &Self) -> bool {
        let parts = |line: &Self| (line.vcpu.is_some(), line.what.clone());
        self.vm == other.vm && self.outcome == other.outcome && parts(self) == parts(other)
    }
}

fn described<'a>(action: &'a ActionRecord<'a>) -> Line<'a> {
    let (vm, vcpu, what) = match &action.action {
        ActionView::VcpuAffinity { vm, vcpu, cpus, .. } => {
            (vm, Some(*vcpu), format!(" CPUs {cpus}"))
        }
        ActionView::EmulatorAffinity { vm, cpus, .. } => {
            (vm, None, format!(" emulator -> CPUs {cpus}"))
        }
        ActionView::SoftHome { vm, node, .. } => (vm, None, format!(" home -> node {node}")),
        ActionView::MoveMemory { vm, guest_node, nodes, remote_bytes, .. } => {
            let of = of_guest_node(*guest_node);
            (vm, None, format!(" {remote_bytes} of memory{of} -> node {nodes}"))
        }
    };
    Line { vm, vcpu, what, outcome: &action.outcome }
}

fn memory_line(memory: &MemoryRecord) -> String {
    let (vm, of) = (printable(&memory.vm), of_guest_node(memory.guest_node));
    let mut line = format!("{vm}: {}{of} came home", memory.moved_bytes);
    for (cause, bytes) in &memory.stayed_bytes {
        line.push_str(&format!(", {bytes} stayed ({cause})"));
    }
    if let Some(error) = &memory.error {
        line.push_str(&format!("; {error}"));
    } else if !memory.complete {
        line.push_str("; that is not all yet");
    }
    line
}
