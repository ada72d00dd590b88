//! Options of commands that boot emulated hosts or guests.

use super::values::{accel, duration, peer};
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Subcommand};
use instep_lab::host::accel::AccelChoice;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Only cases whose names fit (`*`, `?`), or those of a group: barriers, programs, shares, latency, cgroups, guests, cores
    /// (repeatable).
    #[arg(long = "case", value_name = "GLOB")]
    pub(crate) case: Vec<String>,
    /// Cases of your own, as docs/bench.md says (repeatable).
    #[arg(long = "cases", value_name = "FILE")]
    pub(crate) cases: Vec<PathBuf>,
    /// A few cases, short: under ten minutes on two quiet cores. Peers that are not built yet and not
    /// named by --schedulers are left out.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Instep with each mechanism off in turn, on the cases that are marked for that.
    #[arg(long)]
    pub(crate) ablation: bool,
    /// How often every cell is run [default: 3, with --quick 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: Option<u32>,
    /// The schedulers to compare: default, instep, instep-without-MECHANISM, packages of the crates registry
    /// [default: default,instep,scx_cosmos,scx_bpfland; with --ablation default, instep and Instep
    /// without each mechanism].
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) schedulers: Vec<String>,
    /// A scheduler's program, instead of building the package of that name (repeatable).
    #[arg(long = "peer", value_name = "NAME=PATH", value_parser = peer)]
    pub(crate) peers: Vec<(String, PathBuf)>,
    /// Run process VMs on this machine itself; needs root and sched_ext.
    #[arg(long, conflicts_with_all = ["kernel", "modules", "accel"])]
    pub(crate) here: bool,
    /// How long work runs before it is counted [default: 800ms].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) settle: Option<Duration>,
    /// How long it is counted [default: 1200ms; more where shares, wake-ups or guests
    /// are measured].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) measure: Option<Duration>,
    /// Keep every finished cell in FILE; what is there already is not run again.
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    pub(crate) resume: Option<PathBuf>,
    /// Say which cases there are; run nothing.
    #[arg(long)]
    pub(crate) list: bool,
    /// Draw what earlier runs printed with --json or kept by --resume, put together; run nothing
    /// (repeatable).
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["list", "here", "case", "quick", "ablation", "resume"])]
    pub(crate) from: Vec<PathBuf>,
    /// Print JSON (schema instep.bench/1).
    #[arg(long)]
    pub(crate) json: bool,
    /// Write one page that draws it.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) host: LabHostArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BenchCellsArgs {
    /// The block of cells.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Runs a scenario and says whether what it demands holds.
    #[command(after_help = "Exits with 1 when something does not hold.\n\n\
        Examples:\n  instep lab run scenarios/lab/hello.toml\n  \
        instep lab run scenarios/lab/misplaced.toml --json")]
    Run(LabRunArgs),
    /// A prompt in an emulated host with Instep in it: each line is a shell command.
    #[command(
        after_help = "Exits with the status of the last line, as a shell does; with 2 when the \
        host does not boot.\n\n\
        Examples:\n  instep lab shell\n  \
        echo 'instep status' | instep lab shell scenarios/lab/misplaced.toml"
    )]
    Shell(LabShellArgs),
    /// The built-in scenarios, or those in a directory.
    #[command(after_help = "Example:\n  instep lab list")]
    List(LabListArgs),
    /// What this machine lacks for the lab, and the command that installs it.
    #[command(after_help = "Exits with 1 when something is missing.\n\n\
        Example:\n  instep lab doctor")]
    Doctor(LabJsonArgs),
    /// Empties the cache: packages, programs, what is known of this machine, and consoles of failures.
    #[command(after_help = "Example:\n  instep lab clean")]
    Clean,
    /// In an emulated host: holds a VM that never runs, until it is ended.
    #[command(hide = true)]
    Anchor,
}

/// What every emulated host takes.
#[derive(Debug, Args)]
pub(crate) struct LabHostArgs {
    /// Boot this kernel (a bzImage) instead of Debian's newest, or the newest of a series (6.18).
    #[arg(long, value_name = "FILE|SERIES")]
    pub(crate) kernel: Option<PathBuf>,
    /// Where that kernel's modules lie (/lib/modules/RELEASE), if KVM is not built in.
    #[arg(long, value_name = "DIR", requires = "kernel")]
    pub(crate) modules: Option<PathBuf>,
    /// The guest workload; instep-load beside this program when not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) load: Option<PathBuf>,
    /// What runs the host's CPUs: kvm, tcg (software), or auto: this machine's KVM if it boots the
    /// host's kernel and can run guests in it, else software. The report says which.
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = PossibleValuesParser::new(["auto", "kvm", "tcg"]).map(accel))]
    pub(crate) accel: AccelChoice,
}

#[derive(Debug, Args)]
pub(crate) struct LabRunArgs {
    /// The scenario: a file, or the name of a built-in one (`instep lab list`).
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) host: LabHostArgs,
    /// Keep consoles and files brought back in this directory; after a failure they are kept in
    /// the cache without it.
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "instep-lab")]
    pub(crate) keep: Option<PathBuf>,
    /// Draw the report as an HTML page, too.
    #[arg(long, value_name = "PAGE")]
    pub(crate) html: Option<PathBuf>,
    /// Print JSON (schema instep.lab/1).
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabShellArgs {
    /// The scenario whose host and guests are booted; 2 nodes x 2 cores x 2 threads and no guest
    /// without one.
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) host: LabHostArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabListArgs {
    /// The directory [default: the built-in scenarios].
    #[arg(value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Print JSON (schema instep.lab.list/1).
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabJsonArgs {
    /// Print JSON (schema instep.lab.doctor/1).
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Boot with this kernel (a bzImage) instead of Debian's.
    #[arg(long, value_name = "FILE")]
    pub(crate) kernel: Option<PathBuf>,
    /// Where that kernel's modules lie (/lib/modules/RELEASE), if KVM is not built in.
    #[arg(long, value_name = "DIR", requires = "kernel")]
    pub(crate) modules: Option<PathBuf>,
    /// Where the page goes [default: instep/demo.html in the cache directory].
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}
