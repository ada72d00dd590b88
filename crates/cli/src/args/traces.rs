//! Options of commands that watch, record and compare.

use super::HostArgs;
use super::values::{HistoryTime, beside, duration, percent, share, size, when};
use clap::{Args, ValueEnum};
use instep_core::units::{Bytes, Milli};
use std::path::PathBuf;
use std::time::Duration;

/// Where a recording's events come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecordSource {
    /// BPF, and tracefs where that is not allowed.
    Auto,
    /// BPF or nothing.
    Bpf,
    /// tracefs or nothing.
    Tracefs,
}

#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// For how long [default: until Ctrl-C].
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub(crate) duration: Option<Duration>,
    /// Where the recording goes; `-` is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "host.instep")]
    pub(crate) output: PathBuf,
    /// Record wake-ups and moves of this VM only (repeatable); runs are recorded of all threads.
    #[arg(long = "vm", value_name = "NAME")]
    pub(crate) vms: Vec<String>,
    /// End when the file is as large.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub(crate) max_size: Bytes,
    /// Memory of the kernel's buffers together [default: 1MiB a CPU, at least 16MiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) buffer: Option<Bytes>,
    /// Where events come from.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) source: RecordSource,
    /// Write blocks as they are: larger, and cheaper by a little.
    #[arg(long)]
    pub(crate) no_compress: bool,
    /// Print JSON (schema instep.recording/1).
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AnalyzeArgs {
    /// The traces, each analysed by itself; `-` reads standard input (Instep's or perf's pipe format).
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// A VM and the threads of its vCPUs 0, 1, ... (repeatable), where the trace does not say.
    #[arg(long = "vm", value_name = "NAME=TID,...")]
    pub(crate) vms: Vec<String>,
    /// A VM's weight among VMs (repeatable), where the trace does not say it; 100 otherwise.
    #[arg(long = "weight", value_name = "NAME=WEIGHT")]
    pub(crate) weights: Vec<String>,
    /// Copies of /proc/PID of the VMs, taken beside the trace, for their names.
    #[arg(long, value_name = "DIR")]
    pub(crate) facts: Option<PathBuf>,
    /// The host's topology, as `instep topology --json` printed it there; the trace's own when
    /// not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) topology: Option<PathBuf>,
    /// The scheduler's quantum, of which the ideal scheduling interval is made.
    #[arg(long, value_name = "TIME", default_value = "3ms", value_parser = duration)]
    pub(crate) quantum: Duration,
    /// The allocation period whose use is reported.
    #[arg(long, value_name = "TIME", default_value = "24ms", value_parser = duration)]
    pub(crate) period: Duration,
    /// Also write a page with a timeline, stacking and what ran instead.
    #[arg(long, value_name = "FILE", value_parser = beside())]
    pub(crate) html: Option<PathBuf>,
    /// Also write every run and wait of every vCPU for ui.perfetto.dev.
    #[arg(long, value_name = "FILE", value_parser = beside())]
    pub(crate) perfetto: Option<PathBuf>,
    /// Only check the schedule by rules: those that every scheduler keeps, and those named here of
    /// woken, idle, wait, apart, share [default: woken,idle,wait]. Exits with 1 when one is broken.
    #[arg(long, value_name = "RULES", num_args = 0..=1, default_missing_value = "woken,idle,wait",
        require_equals = true, conflicts_with_all = ["html", "perfetto"])]
    pub(crate) check: Option<String>,
    /// The CPUs that a VM may use (repeatable), for --check; those that its threads used otherwise.
    #[arg(long = "allowed", value_name = "NAME=CPUS", requires = "check")]
    pub(crate) allowed: Vec<String>,
    /// Print JSON (schema instep.analysis/1; with --check, instep.check/1).
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// Time between two frames.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub(crate) interval: Duration,
    /// Print one frame and end.
    #[arg(long)]
    pub(crate) once: bool,
    /// Go through the history that `instep run` keeps [default: that of the run on this host], or through one file of it.
    #[arg(long, value_name = "DIR|FILE", num_args = 0..=1, conflicts_with_all = ["root", "window"])]
    #[expect(clippy::option_option, reason = "an option whose value may be left out")]
    pub(crate) replay: Option<Option<PathBuf>>,
    /// Begin at this time, such as 2026-11-26T11:00:00Z, or at one before the newest record, such as -2h.
    #[arg(long, value_name = "TIME", requires = "replay", allow_hyphen_values = true, value_parser = when)]
    pub(crate) from: Option<HistoryTime>,
    /// With --json, end at this time.
    #[arg(long, value_name = "TIME", requires = "json", allow_hyphen_values = true, value_parser = when)]
    pub(crate) to: Option<HistoryTime>,
    /// Print the records from --from to --to, or all, one JSON line each (schema instep.moment/1).
    #[arg(long, requires = "replay", conflicts_with = "once")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// The command to run and profile; what it prints goes to standard error.
    #[arg(last = true, value_name = "CMD", conflicts_with_all = ["pid", "vm"])]
    pub(crate) command: Vec<String>,
    /// Watch this process.
    #[arg(long, value_name = "PID", conflicts_with = "vm")]
    pub(crate) pid: Option<u32>,
    /// Watch the vCPUs of this VM.
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    /// Run the command with each of these numbers in the place of `{threads}`.
    #[arg(long, value_name = "N,...", value_delimiter = ',', conflicts_with_all = ["pid", "vm", "on"],
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) threads: Vec<u32>,
    /// Run the command on these CPUs, such as 0-3 (repeatable: places are compared).
    #[arg(long, value_name = "CPUS", conflicts_with_all = ["pid", "vm"])]
    pub(crate) on: Vec<String>,
    /// Watch for at most this time; a command is then ended [default: 10s for --pid and --vm].
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub(crate) duration: Option<Duration>,
    /// The share of its vCPUs' time that the VM in question would get.
    #[arg(long, value_name = "PERCENT", default_value = "50%", value_parser = share)]
    pub(crate) share: Milli,
    /// The allocation period of the hypervisor in question.
    #[arg(long, value_name = "TIME", default_value = "24ms", value_parser = duration)]
    pub(crate) period: Duration,
    /// How many threads work, where counting them would mislead.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) workers: Option<u32>,
    /// Ask /proc alone; trace no context switches.
    #[arg(long)]
    pub(crate) no_trace: bool,
    /// Write a simulator scenario that behaves alike.
    #[arg(long, value_name = "FILE", value_parser = beside())]
    pub(crate) scenario: Option<PathBuf>,
    /// Write a page with plots.
    #[arg(long, value_name = "FILE", value_parser = beside())]
    pub(crate) html: Option<PathBuf>,
    /// Print JSON (schema instep.profile/1).
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The result to compare with.
    #[arg(value_name = "A")]
    pub(crate) a: PathBuf,
    /// The result to compare.
    #[arg(value_name = "B")]
    pub(crate) b: PathBuf,
    /// Differences up to this part of A are none, in percent.
    #[arg(long, value_name = "PERCENT", default_value = "2", value_parser = percent)]
    pub(crate) tolerance: f64,
    /// List measures that are the same, too.
    #[arg(long)]
    pub(crate) all: bool,
    /// Print JSON (schema instep.compare/1).
    #[arg(long)]
    pub(crate) json: bool,
}
