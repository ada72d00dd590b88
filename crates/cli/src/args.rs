//! The command line: every command, its options and its examples.

mod traces;
mod values;

use clap::{Args, Parser, Subcommand, ValueEnum};
use instep_agent::config::dispatch::ProcessVm;
use instep_core::policy::PolicyName;
use instep_core::units::Bytes;
use instep_kernel::Mode;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
pub(crate) use traces::{AnalyzeArgs, CompareArgs, ProfileArgs, RecordArgs, RecordSource, TopArgs};
pub(crate) use values::HistoryTime;
use values::{duration, process_vm, size, window};

/// Keeps the vCPUs of SMP virtual machines in step.
///
/// Sees every VM of a Linux host, or every domain of a Xen host, decides which NUMA node, cores and CPUs each should use, says
/// why, and applies it. What it changes it records first and puts back.
#[derive(Debug, Parser)]
#[command(
    name = "instep",
    version = instep_cli::VERSION,
    max_term_width = 100,
    after_help = "With instep-lab: sim, reproduce, agree, lab, bench, demo.\n\
                  Exit status: 0 fine; 1 a finding, or the work failed; 2 wrong use or environment.\n\
                  Try: instep status; instep plan; instep top"
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
    /// Every VM, live in the terminal: a map of the cores, the VMs, a VM's vCPUs.
    #[command(after_help = "Press ? in it for the keys.\n\n\
        Examples:\n  instep top\n  instep top --interval 500ms\n  instep top --once\n  \
        instep top --replay --from -2h\n  instep top --replay --json --from -1h > hour.jsonl")]
    Top(TopArgs),
    /// What `run` would change and why; nothing is touched.
    #[command(
        after_help = "Examples:\n  instep plan\n  instep plan --policy bnn --format virsh\n  \
        instep plan --root AFTER --before BEFORE --elapsed 60s --json"
    )]
    Plan(PlanArgs),
    /// Where a VM that has not started yet should start; room is kept for it for a minute.
    #[command(
        after_help = "A link to this program by the name of numad answers `numad -w VCPUS:MIB`, as libvirt \
        asks for <vcpu placement='auto'>.\n\n\
        Examples:\n  instep advise --vcpus 8 --memory 16GiB\n  \
        instep advise --vcpus 8 --memory 16GiB --device 0000:3b:00.0 --json"
    )]
    Advise(AdviseArgs),
    /// Copies what Instep reads of this host, twice, for `plan --root` on another machine.
    #[command(
        after_help = "The copies hold the host's topology and load, and files of each VM's process: threads, cgroups, \
        descriptors of KVM and of devices, where its memory lies, and its command line. In that the \
        values of known options for passwords are replaced; look at it before you pass a copy on. Of other processes the copies \
        hold only ids that are listed in a VM's cgroup. Only the user who made them can read them.\n\n\
        A plan from the copies can differ from one made on this host. They do not show vCPU threads that only \
        QMP knows, nor which cgroups belong to root: there VMs of the user who reads the copies count, and \
        those of system users. DIR/before has no memory figures.\n\n\
        Examples:\n  instep collect host1 --window 10s\n  \
        instep plan --root host1/after --before host1/before   # elsewhere"
    )]
    Collect(CollectArgs),
    /// Places the VMs, again and again; puts everything back when it ends.
    #[command(after_help = "SIGTERM and SIGINT put everything back and end; SIGHUP reads the \
        configuration again and opens the file of --log anew; SIGUSR1 ends and leaves everything as it is \
        to the next run.\n\n\
        Examples:\n  instep run\n  instep run --once --policy spread\n  \
        instep run --interval 30s --log /var/log/instep.jsonl\n  \
        instep run --dispatch auto --config instep.toml\n  \
        instep run --dispatch auto --dry-run --once   # whether it would be loaded, and for which VMs")]
    Run(RunArgs),
    /// Puts back what `run` changed, after `run --once` or a crash.
    #[command(after_help = "Examples:\n  instep restore\n  \
        instep restore --to-cpuset   # where the record of what there was is lost")]
    Restore(RestoreArgs),
    /// A page in the browser and metrics for Prometheus of what `run` sees and does; on this machine alone.
    #[command(
        after_help = "It reads only what `instep run` publishes in its state directory, and needs no privileges: where root \
        starts it, it becomes nobody. It asks for no password, so it listens on loopback or a Unix \
        socket only. /metrics is for Prometheus, /state.json holds all that the page shows \
        (schema instep.serve/1).\n\n\
        Examples:\n  instep serve\n  instep serve --listen 127.0.0.1:8080\n  \
        ssh -L 9877:127.0.0.1:9877 host1   # then http://127.0.0.1:9877/ here"
    )]
    Serve(ServeArgs),
    /// Waits for the end of the `run` that started it, and restores if that did not.
    #[command(hide = true)]
    Guard(GuardArgs),
    /// Records this host's scheduling into a file for `analyze`.
    #[command(after_help = "Takes root, or CAP_BPF and CAP_PERFMON (BPF), or access to tracefs. \
        Exits with 1 when events were lost.\n\n\
        Examples:\n  instep record\n  instep record -d 10s -o slow.instep --vm db\n  \
        instep record -d 5s -o - | instep analyze -")]
    Record(RecordArgs),
    /// Finds in a recorded trace (Instep's, perf.data, trace.dat) which VMs lost time, what had it, and why.
    #[command(
        after_help = "Exits with 1 when something was found. Record with `instep record`, `perf \
        sched record -a`\nor `trace-cmd record -e sched -e kvm:kvm_entry`.\n\n\
        Examples:\n  instep analyze host.instep\n  instep analyze perf.data\n  \
        instep analyze trace.dat --vm db=158,161 --topology host.json --json\n  \
        perf record -o - -a -e sched:\\* sleep 5 | instep analyze -"
    )]
    Analyze(AnalyzeArgs),
    /// How an application would scale on VMs: runs it, or watches a process or a VM.
    #[command(
        after_help = "Exits with 1 when the command failed, 2 when there was nothing to profile.\n\n\
        Examples:\n  instep profile -- make -j4\n  \
        instep profile --threads 1,2,4 -- ./solver --threads {threads}\n  \
        instep profile --vm db --share 25% --html db.html\n  \
        instep profile --scenario app.toml -- ./app; instep sim app.toml"
    )]
    Profile(ProfileArgs),
    /// Two analyses, benches or simulations side by side, and whether their runs show a difference.
    #[command(
        after_help = "Exits with 1 when a measure is shown to be worse in B, 2 when the two cannot \
        be compared.\n\nA file holds what `analyze`, `bench` or `sim` printed with --json: one \
        run, or several one after another.\n\n\
        Examples:\n  instep compare before.json after.json\n  \
        for s in 1 2 3 4 5; do instep sim x.toml --seed $s --json; done > a.json"
    )]
    Compare(CompareArgs),
    /// The JSON schemas of what this program prints with --json and publishes; docs/schemas.json has those of both programs.
    #[command(hide = true)]
    Schemas,
}

/// What runs the VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Hypervisor {
    /// Xen, from its control domain.
    Xen,
    /// KVM, or any other monitors of this Linux host.
    Kvm,
}

#[derive(Debug, Args)]
pub(crate) struct TopologyArgs {
    /// Read a copy of a host's /proc and /sys instead of this host.
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// What runs the VMs: xen (in its control domain) or kvm [default: what is there].
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) hypervisor: Option<Hypervisor>,
    /// Print JSON (schema instep.topology/1).
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which host is read, and over which window loads are measured.
#[derive(Debug, Default, Args)]
pub(crate) struct HostArgs {
    /// Read a copy of a host's /proc and /sys instead of this host.
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// An earlier copy of the same host: loads are the difference. Without it, loads of a copy
    /// are those since each VM started.
    #[arg(long, value_name = "DIR", requires = "root")]
    pub(crate) before: Option<PathBuf>,
    /// Time between the two copies; that of their /proc/uptime when not given.
    #[arg(long, value_name = "TIME", requires = "before", value_parser = duration)]
    pub(crate) elapsed: Option<Duration>,
    /// How long the loads of this host are measured, 10ms to 1day [default: 1s].
    #[arg(long, value_name = "TIME", conflicts_with = "root", value_parser = window)]
    pub(crate) window: Option<Duration>,
    /// What runs the VMs: xen (in its control domain) or kvm [default: what is there].
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) hypervisor: Option<Hypervisor>,
    /// Where a run records what it changed [default: $XDG_RUNTIME_DIR/instep where this user's run does,
    /// else /run/instep].
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// The configuration file of `instep run`, which says which users' VMs count.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// One row per vCPU even when there are many.
    #[arg(long)]
    pub(crate) vcpus: bool,
    /// On a Xen host show memory by node, too: Xen walks the page lists of all domains for it.
    #[arg(long)]
    pub(crate) memory: bool,
    /// Print JSON (schema instep.status/1).
    #[arg(long)]
    pub(crate) json: bool,
}

/// What decides, and about which VMs.
#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    /// The placement policy: instep, bnn, spread, bind or none [default: instep].
    #[arg(long, value_name = "P")]
    pub(crate) policy: Option<PolicyName>,
    /// Mend affinity conflicts, too, widening an initial affinity where that is needed.
    #[arg(long)]
    pub(crate) mend_conflicts: bool,
    /// Place VMs that an operator pinned by hand, too.
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
    /// A shell script of virsh commands, by UUID (VMs in libvirt's cgroups only).
    Virsh,
    /// A shell script of taskset commands.
    Taskset,
    /// A shell script of xl commands (Xen hosts only).
    Xl,
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
    /// Plan for another host, to which these VMs will migrate: a file of what `instep topology --json` prints there.
    #[arg(long = "for", value_name = "FILE")]
    pub(crate) elsewhere: Option<PathBuf>,
}

/// The most vCPUs that a VM may be said to have: KVM allows 4096.
pub(crate) const MOST_VCPUS: i64 = 4096;

#[derive(Debug, Args)]
pub(crate) struct AdviseArgs {
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// How many vCPUs it will have.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_VCPUS))]
    pub(crate) vcpus: u32,
    /// How much memory it will have.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Bytes,
    /// A PCI device that it will be given, by its address (repeatable).
    #[arg(long = "device", value_name = "ADDR")]
    pub(crate) devices: Vec<String>,
    /// Print JSON (schema instep.advice/1).
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CollectArgs {
    /// The folder for the copies DIR/before and DIR/after; it must be empty, or not there yet.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// How long the loads are measured: the time between the two copies, 10ms to 1day.
    #[arg(long, value_name = "TIME", value_parser = window, default_value = "1s")]
    pub(crate) window: Duration,
    /// What runs the VMs: xen (in its control domain) or kvm [default: what is there].
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) hypervisor: Option<Hypervisor>,
    /// Print JSON (schema instep.collect/1).
    #[arg(long)]
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
    #[arg(long, value_name = "TIME", value_parser = window)]
    pub(crate) window: Option<Duration>,
    /// One cycle; what it set stays until `instep restore`.
    #[arg(long)]
    pub(crate) once: bool,
    /// Decide and record, change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The kernel scheduler: auto (where the kernel has sched_ext, Linux 6.12 or newer), kernel (the
    /// same, or fail) or off [default: off]. Its settings are in `[dispatch]` of --config.
    #[arg(long, value_name = "MODE")]
    pub(crate) dispatch: Option<Mode>,
    /// Load the kernel scheduler although threads of VMs have core-scheduling cookies.
    #[arg(long)]
    pub(crate) despite_cookies: bool,
    /// Treat a plain process as a VM of the kernel scheduler, its threads as vCPUs (repeatable).
    #[arg(long = "process-vm", value_name = "NAME=PID", value_parser = process_vm)]
    pub(crate) process_vms: Vec<ProcessVm>,
    /// Leave memory where it is.
    #[arg(long)]
    pub(crate) no_memory: bool,
    /// Start no guardian, the small process that puts everything back when this one is killed: what
    /// a killed run changed then stays until `instep restore`, which is to be run by other means.
    #[arg(long)]
    pub(crate) no_guard: bool,
    /// Append one JSON line per cycle to this file (schema instep.record/1).
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Print one JSON line per cycle on standard output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write metrics for Prometheus to this file after each cycle, for node_exporter's textfile
    /// collector; its name must end with .prom.
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics: Option<PathBuf>,
    /// What runs the VMs: xen (in its control domain) or kvm [default: what is there].
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) hypervisor: Option<Hypervisor>,
    /// Where the history for `instep top --replay` and the page is kept [default: /var/lib/instep/history,
    /// or `history` in another state directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) history: Option<PathBuf>,
    /// Where the original affinities are recorded [default: /run/instep, or
    /// $XDG_RUNTIME_DIR/instep without root].
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The loopback address and port to listen on.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9877", value_parser = instep_serve::loopback)]
    pub(crate) listen: SocketAddr,
    /// Listen on a Unix socket, which the owner and the group may use, in place of a port.
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    pub(crate) unix: Option<PathBuf>,
    /// The history of the run [default: /var/lib/instep/history, or `history` in another state directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) history: Option<PathBuf>,
    /// The state directory of the run [default: $XDG_RUNTIME_DIR/instep where a run of this user publishes there,
    /// else /run/instep].
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    /// Where the original affinities are recorded.
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: PathBuf,
    /// The process of that `run`.
    #[arg(long, value_name = "PID")]
    pub(crate) agent: u32,
    /// What runs the VMs that it places.
    #[arg(long, value_enum, value_name = "NAME", default_value = "kvm")]
    pub(crate) hypervisor: Hypervisor,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Where the original affinities are recorded [default: /run/instep, or
    /// $XDG_RUNTIME_DIR/instep without root].
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// What runs the VMs: xen (in its control domain) or kvm [default: what is there].
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) hypervisor: Option<Hypervisor>,
    /// Set a damaged record aside instead of refusing; affinities stay as they are.
    #[arg(long)]
    pub(crate) discard_damaged: bool,
    /// Let every thread of every VM use all CPUs of its cpuset, for when the record is lost. What an
    /// operator bound is lost, too.
    #[arg(long)]
    pub(crate) to_cpuset: bool,
    /// With --to-cpuset only this VM (repeatable): no other one is restored or widened.
    #[arg(long = "vm", value_name = "NAME", requires = "to_cpuset")]
    pub(crate) vms: Vec<String>,
    /// Print JSON (schema instep.restore/1).
    #[arg(long)]
    pub(crate) json: bool,
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
    fn a_window_has_bounds_that_are_reported() {
        for (command, bad) in
            [("status", "10y"), ("plan", "10y"), ("run", "25h"), ("status", "1ms"), ("run", "1ns")]
        {
            let error = Cli::try_parse_from(["instep", command, "--window", bad]).unwrap_err();
            assert!(error.to_string().contains("a window is 10ms to 1day"), "{command}: {error}");
        }
        let zero = Cli::try_parse_from(["instep", "status", "--window", "0"]).unwrap_err();
        assert!(zero.to_string().contains("longer than 0"), "{zero}");
        for good in ["10ms", "1day"] {
            assert!(Cli::try_parse_from(["instep", "plan", "--window", good]).is_ok(), "{good}");
        }
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
