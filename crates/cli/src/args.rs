//! The command line: every command, its options and its examples.

use clap::{Args, Parser, Subcommand, ValueEnum};
use instep_agent::dispatch::config::ProcessVm;
use instep_core::policy::PolicyName;
use instep_kernel::Mode;
use std::path::PathBuf;
use std::time::Duration;

/// Keeps the vCPUs of SMP virtual machines in step.
///
/// Sees every VM of a Linux host, decides which NUMA node, cores and CPUs each should use, says
/// why, and applies it. What it changes it records first and puts back.
#[derive(Debug, Parser)]
#[command(
    name = "instep",
    version,
    max_term_width = 100,
    after_help = "Exit status: 0 fine; 1 a finding, or the work failed; 2 wrong use or environment.\n\
                  Try: instep status; instep plan; instep demo"
)]
pub(crate) struct Cli {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Cores, modules, caches and NUMA nodes of a host.
    #[command(after_help = "Examples:\n  instep topology\n  \
        instep topology --root /tmp/copy-of-a-host --json")]
    Topology(TopologyArgs),
    /// Every VM: its vCPUs, where they run, what they use and wait, where its memory is.
    #[command(after_help = "Exits with 1 when it finds an affinity conflict.\n\n\
        Examples:\n  instep status\n  instep status --window 5s --json")]
    Status(StatusArgs),
    /// What `run` would change and why; nothing is touched.
    #[command(
        after_help = "Examples:\n  instep plan\n  instep plan --policy bnn --format virsh\n  \
        instep plan --root AFTER --before BEFORE --elapsed 60s --json"
    )]
    Plan(PlanArgs),
    /// Places the VMs, again and again; puts everything back when it ends.
    #[command(after_help = "SIGTERM and SIGINT put everything back and end; SIGHUP reads the \
        configuration again.\n\n\
        Examples:\n  instep run\n  instep run --once --policy spread\n  \
        instep run --interval 30s --log /var/log/instep.jsonl")]
    Run(RunArgs),
    /// Puts back what `run` changed, after `run --once` or a crash.
    #[command(after_help = "Example:\n  instep restore")]
    Restore(RestoreArgs),
    /// Shows all of it without VMs of yours: an emulated NUMA host whose guests it places.
    #[command(after_help = "Exits with 1 when something did not hold.\n\n\
        The full form boots a host of 2 nodes x 2 cores x 2 threads in software, with real KVM \
        guests in it, and draws what happened on one HTML page. Where that host cannot be had, or \
        with --here, the first form starts three small VMs directly on this machine.\n\n\
        Examples:\n  instep demo\n  instep demo --html demo.html\n  instep demo --here")]
    Demo(DemoArgs),
    /// Says of a recorded trace (perf.data, trace.dat) which VMs lost time, to whom, and why.
    #[command(
        after_help = "Exits with 1 when something was found. Record with `perf sched record -a \
        -e kvm:kvm_entry` or\n`trace-cmd record -e sched -e kvm:kvm_entry`.\n\n\
        Examples:\n  instep analyze perf.data\n  \
        instep analyze trace.dat --vm db=158,161 --topology host.json --json\n  \
        perf record -o - -a -e sched:\\* sleep 5 | instep analyze -"
    )]
    Analyze(AnalyzeArgs),
    /// Runs scenarios on real kernels with real KVM guests in an emulated host of any topology.
    #[command(subcommand)]
    Lab(LabCommand),
    /// Simulates a host, its VMs and a hypervisor scheduler.
    #[command(after_help = "Examples:\n  instep sim scenarios/sim/spinning.toml\n  \
        instep sim scenarios/sim/opteron.toml --seed 7 --json\n  \
        instep sim scenarios/sim/spinning.toml --check\n  \
        instep sim --swarm 2000 --scheduler cfs --out small.toml")]
    Sim(SimArgs),
    /// Runs published experiments in the simulator, published beside simulated.
    #[command(after_help = "A difference is shown, not an error. Ctrl-C leaves what is finished \
        and exits with 1.\n\n\
        Examples:\n  instep reproduce --list\n  instep reproduce stacking\n  \
        instep reproduce all --html published.html")]
    Reproduce(ReproduceArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    /// The scenario.
    #[arg(value_name = "FILE", required_unless_present = "swarm")]
    pub(crate) file: Option<PathBuf>,
    /// The seed, instead of the scenario's; of a swarm, 1 when not given.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// The hypervisor's scheduler, instead of the scenario's; for a swarm also `all`.
    #[arg(long, value_name = "NAME")]
    pub(crate) scheduler: Option<String>,
    /// Only checks the schedule: exits with 1 when a rule is broken that the scheduler promises.
    #[arg(long, conflicts_with_all = ["json", "swarm"])]
    pub(crate) check: bool,
    /// Checks so many random scenarios instead; a finding is shrunk and printed as a scenario.
    #[arg(long, value_name = "RUNS", conflicts_with_all = ["file", "json"],
        value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) swarm: Option<u64>,
    /// Write the shrunk scenario of a swarm here instead of printing it.
    #[arg(long, value_name = "FILE", requires = "swarm")]
    pub(crate) out: Option<PathBuf>,
    /// Print JSON (schema instep.sim/1).
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReproduceArgs {
    /// The experiment, or all of them.
    #[arg(value_name = "NAME", default_value = "all")]
    pub(crate) name: String,
    /// Say which there are and what was published; run nothing.
    #[arg(long, conflicts_with_all = ["html", "seeds"])]
    pub(crate) list: bool,
    /// Print JSON (schema instep.reproduce/1).
    #[arg(long)]
    pub(crate) json: bool,
    /// Write one page that draws published against simulated.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Seeds of each experiment in which chance plays a part, instead of its own number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) seeds: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Runs a scenario and says whether what it demands holds.
    #[command(after_help = "Exits with 1 when something does not hold.\n\n\
        Examples:\n  instep lab run scenarios/lab/hello.toml\n  \
        instep lab run scenarios/lab/misplaced.toml --json")]
    Run(LabRunArgs),
    /// A prompt in an emulated host with Instep in it: each line is a shell command.
    #[command(after_help = "Examples:\n  instep lab shell\n  \
        echo 'instep status' | instep lab shell scenarios/lab/misplaced.toml")]
    Shell(LabShellArgs),
    /// The scenarios in a directory.
    #[command(after_help = "Example:\n  instep lab list scenarios/lab")]
    List(LabListArgs),
    /// What this machine lacks for the lab, and the command that installs it.
    #[command(after_help = "Exits with 1 when something is missing.\n\n\
        Example:\n  instep lab doctor")]
    Doctor(LabJsonArgs),
    /// Removes fetched kernels, built images and kept consoles from the cache.
    #[command(after_help = "Example:\n  instep lab clean")]
    Clean,
}

/// What every emulated host takes.
#[derive(Debug, Args)]
pub(crate) struct LabHostArgs {
    /// Boot this kernel (a bzImage) instead of Debian's newest.
    #[arg(long, value_name = "FILE")]
    pub(crate) kernel: Option<PathBuf>,
    /// Where that kernel's modules lie (/lib/modules/RELEASE), if KVM is not built in.
    #[arg(long, value_name = "DIR", requires = "kernel")]
    pub(crate) modules: Option<PathBuf>,
    /// The guest workload; instep-load beside this program when not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) load: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct LabRunArgs {
    /// The scenario.
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
    /// The directory.
    #[arg(value_name = "DIR", default_value = "scenarios/lab")]
    pub(crate) dir: PathBuf,
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
pub(crate) struct TopologyArgs {
    /// Read a copy of a host's /proc and /sys instead of this host.
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Print JSON (schema instep.topology/1).
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which host is read, and over which window loads are measured.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// Read a copy of a host's /proc and /sys instead of this host.
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// An earlier copy of the same host: loads are the difference. Without it, loads of a copy
    /// are those since each VM started.
    #[arg(long, value_name = "DIR", requires = "root")]
    pub(crate) before: Option<PathBuf>,
    /// Time between the two copies; their /proc/uptime tells when this is not given.
    #[arg(long, value_name = "TIME", requires = "before", value_parser = duration)]
    pub(crate) elapsed: Option<Duration>,
    /// How long the loads of this host are measured [default: 1s].
    #[arg(long, value_name = "TIME", conflicts_with = "root", value_parser = duration)]
    pub(crate) window: Option<Duration>,
    /// Where the original affinities are recorded [default: /run/instep, or
    /// $XDG_RUNTIME_DIR/instep without root].
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// One row per vCPU even when there are many.
    #[arg(long)]
    pub(crate) vcpus: bool,
    /// Print JSON (schema instep.status/1).
    #[arg(long)]
    pub(crate) json: bool,
}

/// What shall be decided.
#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    /// The placement policy: instep, bnn, spread, bind or none [default: instep].
    #[arg(long, value_name = "P")]
    pub(crate) policy: Option<PolicyName>,
    /// Mend affinity conflicts, too, widening an initial affinity where that is needed.
    #[arg(long)]
    pub(crate) mend_conflicts: bool,
    /// Take charge of VMs that an operator pinned by hand, too.
    #[arg(long)]
    pub(crate) include_pinned: bool,
    /// Place only this VM (repeatable); the others still count as load.
    #[arg(long = "vm", value_name = "NAME")]
    pub(crate) vms: Vec<String>,
    /// Settings from this TOML file; options of the command line win.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlanFormat {
    /// For people.
    Text,
    /// Schema instep.plan/1.
    Json,
    /// A shell script of virsh commands (libvirt's VMs only).
    Virsh,
    /// A shell script of taskset commands.
    Taskset,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) host: HostArgs,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// How the plan is printed.
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: PlanFormat,
    /// The same as --format json.
    #[arg(long, conflicts_with = "format")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// Time between two cycles [default: 60s].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) interval: Option<Duration>,
    /// How long the loads are measured before the first cycle [default: 1s].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) window: Option<Duration>,
    /// One cycle; what it set stays until `instep restore`.
    #[arg(long)]
    pub(crate) once: bool,
    /// Decide and record, change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The kernel scheduler: auto (where the kernel has sched_ext), kernel (or fail) or off
    /// [default: off].
    #[arg(long, value_name = "MODE")]
    pub(crate) dispatch: Option<Mode>,
    /// Load the kernel scheduler although threads of VMs have core-scheduling cookies.
    #[arg(long)]
    pub(crate) dispatch_with_cookies: bool,
    /// Treat a plain process as a VM of the kernel scheduler, its threads as vCPUs (repeatable).
    #[arg(long = "process-vm", value_name = "NAME=PID", value_parser = process_vm)]
    pub(crate) process_vms: Vec<ProcessVm>,
    /// Leave memory where it is.
    #[arg(long)]
    pub(crate) no_memory: bool,
    /// Append one JSON line per cycle to this file (schema instep.record/1).
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Print one JSON line per cycle on standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Where the original affinities are recorded [default: /run/instep, or
    /// $XDG_RUNTIME_DIR/instep without root].
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Where the original affinities are recorded [default: /run/instep, or
    /// $XDG_RUNTIME_DIR/instep without root].
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Set a damaged record aside instead of refusing; affinities stay as they are.
    #[arg(long)]
    pub(crate) discard_damaged: bool,
    /// Print JSON (schema instep.restore/1).
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AnalyzeArgs {
    /// The traces, each analysed by itself; `-` reads perf's pipe format from standard input.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// A VM and the threads of its vCPUs 0, 1, ... (repeatable), where the trace does not tell.
    #[arg(long = "vm", value_name = "NAME=TID,...")]
    pub(crate) vms: Vec<String>,
    /// Copies of /proc/PID of the VMs, taken beside the trace: they tell names.
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
    /// Also write a page with a timeline, stacking and who ran instead.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Also write every run and wait of every vCPU for ui.perfetto.dev.
    #[arg(long, value_name = "FILE")]
    pub(crate) perfetto: Option<PathBuf>,
    /// Print JSON (schema instep.analysis/1).
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
    /// The first form: three small VMs directly on this machine, no emulated host, no page.
    #[arg(long, conflicts_with_all = ["html", "modules"])]
    pub(crate) here: bool,
    /// Where the page goes [default: instep/demo.html in the cache directory].
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = humantime::parse_duration(text)
        .map_err(|error| format!("durations look like 4ms, 60s or 5m ({error})"))?;
    if parsed.is_zero() { Err("must be longer than 0".to_owned()) } else { Ok(parsed) }
}

fn process_vm(text: &str) -> Result<ProcessVm, String> {
    let wrong = || "NAME=PID, such as job=4711".to_owned();
    let (name, pid) = text.split_once('=').ok_or_else(wrong)?;
    let pid = pid.parse().map_err(|_| wrong())?;
    if name.is_empty() { Err(wrong()) } else { Ok(ProcessVm { name: name.to_owned(), pid }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_unknown_policy_is_refused_with_the_known_ones() {
        let error = Cli::try_parse_from(["instep", "plan", "--policy", "best"]).unwrap_err();
        assert!(error.to_string().contains("known are instep, bnn"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn durations_need_units() {
        for bad in ["60", "0s", "-1s", "soon"] {
            let args = ["instep", "run", "--interval", bad];
            assert!(Cli::try_parse_from(args).is_err(), "{bad}");
        }
        assert!(Cli::try_parse_from(["instep", "run", "--interval", "60s"]).is_ok());
    }
}
