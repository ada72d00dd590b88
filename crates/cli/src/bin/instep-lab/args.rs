//! The command line of `instep-lab`: every command, its options and its examples. Examples say `instep`, which passes
//! these commands on.

mod lab;
mod simulate;
mod values;

use clap::{Parser, Subcommand};
pub(crate) use lab::{
    BenchArgs, BenchCellsArgs, DemoArgs, LabCommand, LabHostArgs, LabListArgs, LabRunArgs,
    LabShellArgs,
};
pub(crate) use simulate::{AgreeArgs, ReproduceArgs, SimArgs};

/// The laboratory of Instep: a simulator, emulated hosts, benchmarks and published experiments.
///
/// Nothing here is needed to run Instep on a host. The program `instep`, which the emulated hosts run, must be of
/// the same version.
#[derive(Debug, Parser)]
#[command(
    name = "instep-lab",
    version = instep_cli::VERSION,
    max_term_width = 100,
    after_help = "`instep COMMAND` does the same for each of these commands.\n\
                  Exit status: 0 fine; 1 a finding, or the work failed; 2 wrong use or environment.\n\
                  Try: instep-lab demo; instep-lab sim scenarios/sim/spinning.toml"
)]
pub(crate) struct Cli {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows Instep at work without VMs of yours: it places the guests of an emulated NUMA host.
    #[command(after_help = "Exits with 1 when something did not hold.\n\n\
        It boots a host of 2 nodes x 2 cores x 2 threads in software, with real KVM \
        guests in it, then one of 2 CPUs on which two guests show what the kernel scheduler is worth, \
        and draws what happened on one HTML page.\n\n\
        Examples:\n  instep demo\n  instep demo --html demo.html")]
    Demo(DemoArgs),
    /// Runs scenarios on real kernels with real KVM guests in an emulated host of any topology.
    #[command(subcommand)]
    Lab(LabCommand),
    /// Simulates a host, its VMs and a hypervisor scheduler.
    #[command(after_help = "Examples:\n  instep sim scenarios/sim/spinning.toml\n  \
        instep sim scenarios/sim/opteron.toml --seed 7 --json\n  \
        instep sim scenarios/sim/spinning.toml --check\n  \
        instep sim scenarios/sim/consolidated.toml --seeds 10 --parquet runs.parquet\n  \
        instep sim scenarios/sim/consolidated.toml --html page.html --perfetto trace.pftrace\n  \
        instep sim --swarm 2000 --scheduler cfs --out small.toml")]
    Sim(SimArgs),
    /// Runs published experiments in the simulator, and shows published figures beside simulated ones.
    #[command(after_help = "A difference is shown, not an error. Ctrl-C leaves what is finished \
        and exits with 1.\n\n\
        Examples:\n  instep reproduce --list\n  instep reproduce stacking\n  \
        instep reproduce all --html published.html")]
    Reproduce(ReproduceArgs),
    /// The same scenarios in the lab and in the simulator: what is measured, and whether they agree.
    #[command(after_help = "Exits with 1 when a measure does not agree within its tolerance.\n\n\
        Examples:\n  instep agree\n  instep agree spin-100us --runs 5\n  \
        instep agree --json > lab.json; instep agree --from lab.json")]
    Agree(AgreeArgs),
    /// Schedulers side by side on the same work: the kernel's default, others, Instep with each
    /// mechanism off in turn, Instep.
    #[command(
        after_help = "Exits with 1 when a scheduler could not take part or a cell failed.\n\n\
        It boots an emulated host, which needs no root; docs/bench.md says what that shows.\n\n\
        Examples:\n  instep bench --quick\n  instep bench --list\n  \
        instep bench --case 'spin-*' --schedulers default,instep,scx_cosmos --html bench.html\n  \
        instep bench --from one.json --from two.json --html both.html\n  \
        sudo instep bench --here --quick"
    )]
    Bench(BenchArgs),
    /// Runs cells of `bench` where it is (used in the emulated host).
    #[command(hide = true)]
    BenchCells(BenchCellsArgs),
    /// The JSON schemas of what this program prints with --json; docs/schemas.json has those of both programs.
    #[command(hide = true)]
    Schemas,
    /// Writes the scenario of `instep profile --scenario`.
    #[command(hide = true)]
    Imitate,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
