//! Options of the simulator's commands.

use super::lab::LabHostArgs;
use super::values::beside;
use clap::Args;
use instep_sim::scenario::sweep::Axis;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    /// The scenario: a file, or the name of a built-in one; --swarm makes its own.
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The seed, instead of the scenario's; of a swarm, 1 when not given.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// The hypervisor's scheduler, instead of the scenario's; a swarm takes all in turn without it, or
    /// with `all`.
    #[arg(long, value_name = "NAME")]
    pub(crate) scheduler: Option<String>,
    /// Simulate so many seeds, from the seed on, side by side; means and 95 % confidence.
    #[arg(long, value_name = "N", conflicts_with_all = ["check", "swarm"],
        value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) seeds: Option<u64>,
    /// Write a page with the results and a timeline of the first seed; of a sweep, with plots along its values.
    #[arg(long, value_name = "FILE", value_parser = beside(), conflicts_with_all = ["check", "swarm"])]
    pub(crate) html: Option<PathBuf>,
    /// Write a Parquet file: a row for each VM of each seed.
    #[arg(long, value_name = "FILE", value_parser = beside(), conflicts_with_all = ["check", "swarm"])]
    pub(crate) parquet: Option<PathBuf>,
    /// Write CSV: a row for each VM of each seed, with the columns of --parquet; of a sweep its values come before.
    #[arg(long, value_name = "FILE", value_parser = beside(), conflicts_with_all = ["check", "swarm"])]
    pub(crate) csv: Option<PathBuf>,
    /// Simulate the scenario with each of these values at a place; repeatable, every combination then:
    /// guest.web.weight=100,50 (an entry of a list by name or number, * for all), scheduler=cfs,instep,
    /// duration=1s,10s; a key without a path is one of
    /// the only guest. With --seeds, so many seeds of each.
    #[arg(long, value_name = "PLACE=VALUE,...",
        conflicts_with_all = ["check", "swarm", "perfetto", "parquet"])]
    pub(crate) sweep: Vec<Axis>,
    /// Write every run and wait of every vCPU, of the first seed, for ui.perfetto.dev.
    #[arg(long, value_name = "FILE", value_parser = beside(), conflicts_with_all = ["check", "swarm"])]
    pub(crate) perfetto: Option<PathBuf>,
    /// What places VMs above the scheduler, instead of the scenario's: none, bind, spread, bnn, instep.
    #[arg(long, value_name = "NAME", conflicts_with = "swarm")]
    pub(crate) placement: Option<String>,
    /// Only checks the schedule: exits with 1 when a rule is broken that the scheduler promises.
    #[arg(long, conflicts_with = "swarm")]
    pub(crate) check: bool,
    /// Checks so many random scenarios instead; a finding is shrunk and printed as a scenario.
    #[arg(long, value_name = "RUNS", conflicts_with = "file",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) swarm: Option<u64>,
    /// Write the shrunk scenario of a swarm here instead of printing it.
    #[arg(long, value_name = "FILE", value_parser = beside(), conflicts_with = "file")]
    pub(crate) out: Option<PathBuf>,
    /// Print JSON (schema instep.sim/1; with --swarm, instep.swarm/1).
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReproduceArgs {
    /// The experiments, or all of them.
    #[arg(value_name = "NAME", default_value = "all")]
    pub(crate) names: Vec<String>,
    /// Say which there are and what was published; run nothing.
    #[arg(long, conflicts_with_all = ["html", "seeds"])]
    pub(crate) list: bool,
    /// Print JSON (schema instep.reproduce/1).
    #[arg(long)]
    pub(crate) json: bool,
    /// Write one page that draws published against simulated.
    #[arg(long, value_name = "FILE", value_parser = beside())]
    pub(crate) html: Option<PathBuf>,
    /// Seeds of each experiment in which chance plays a part, instead of its own number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) seeds: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct AgreeArgs {
    /// Scenarios, by file or by name [default: all built-in ones].
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Compare with what the lab gave before, as --json printed it; boot nothing (repeatable).
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Vec<PathBuf>,
    /// How often the lab runs everything.
    #[arg(long, value_name = "N", default_value = "3", conflicts_with = "from",
        value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// Seeds to simulate.
    #[arg(long, value_name = "N", default_value = "8",
        value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: u64,
    /// Print JSON (schema instep.agreement/1).
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) host: LabHostArgs,
}
