//! Developer tasks: ci, tidy, bench, fuzz, load, man, deb, rpm, bpf-clang.

mod bench;
mod bpf;
mod built;
mod ci;
mod deny;
mod fuzz;
mod load;
mod package;
mod placement;
mod scale;
mod simbench;
mod simulations;
mod tidy;
mod tracebench;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer tasks", max_term_width = 100)]
enum Task {
    /// What CI runs: fmt, clippy, tests, tidy, cargo-deny, docs.
    Ci {
        /// Leaves the tests out.
        #[arg(long)]
        no_test: bool,
    },
    /// Layering of the crates, file sizes, forbidden text, links of the documents.
    Tidy,
    /// Measures; without another word cycle time by number of VMs: cargo run --release -p xtask -- bench.
    Bench(Bench),
    /// Every fuzz target (or those named) for some seconds each.
    Fuzz {
        /// For how long.
        #[arg(long, value_name = "S", default_value = "60")]
        seconds: u32,
        #[arg(value_name = "TARGET")]
        targets: Vec<String>,
    },
    /// Builds instep-load, the static guest program, and prints its path.
    Load,
    /// Writes man pages and completions to target/package.
    Man,
    /// Builds the Debian packages in target/package/deb (needs cargo-deb).
    Deb,
    /// Builds the RPM packages in target/package/rpm (needs cargo-generate-rpm).
    Rpm,
    /// The clang that the feature `kernel` is built with; status 1 and why if none.
    BpfClang,
    /// Writes the seeds of the fuzz targets to fuzz/corpus.
    FuzzSeeds,
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
struct Bench {
    /// Numbers of VMs.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = bench::SIZES)]
    vms: Vec<u32>,
    #[command(subcommand)]
    what: Option<BenchTask>,
}

#[derive(Subcommand)]
enum BenchTask {
    /// The simulator's speed by size, and beside SimSo (pip), as tables.
    Sim,
    /// `instep analyze` beside `perf sched timehist`, as a table.
    Analyze {
        #[arg(value_name = "PERF_DATA")]
        files: Vec<PathBuf>,
    },
    /// The kernel scheduler on simulated hosts beside its targets (scenarios/scale/targets.toml) and others.
    ///
    /// Status 1 if a target is missed, or with --mechanisms if one of them loses no 3 %.
    Scale(scale::Options),
    /// The policy instep beside bnn, bind, none, spread and numad's rule on simulated hosts.
    ///
    /// Speed of guests on random hosts and on recorded machines, the gap to the best plan on small hosts, time of
    /// deciding; status 1 if a target is missed.
    Placement(placement::Options),
}

fn main() -> ExitCode {
    match run(Task::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs a task; whether all it checked was fine.
fn run(task: Task) -> Result<bool> {
    let root = workspace_root()?;
    match task {
        Task::Ci { no_test } => return ci::run(&root, !no_test),
        Task::Tidy => return tidy::run(&root),
        Task::Bench(Bench { what: None, vms }) => bench::run(&vms)?,
        Task::Bench(Bench { what: Some(what), .. }) => match what {
            BenchTask::Sim => simbench::run(&root)?,
            BenchTask::Analyze { files } => tracebench::run(&root, &files)?,
            BenchTask::Scale(options) => return scale::run(&root, &options),
            BenchTask::Placement(options) => return placement::run(&root, &options),
        },
        Task::Fuzz { seconds, targets } => return fuzz::run(&root, seconds, &targets),
        Task::Load => load::run(&root)?,
        Task::Man => package::write_pages(&root)?,
        Task::Deb => package::deb(&root)?,
        Task::Rpm => package::rpm(&root)?,
        Task::BpfClang => match bpf::clang() {
            Ok(name) => println!("{name}"),
            Err(why) => {
                eprintln!("the kernel scheduler is not built here: {why}");
                return Ok(false);
            }
        },
        Task::FuzzSeeds => fuzz::write_seeds(&root)?,
    }
    Ok(true)
}

/// The options of a command line.
#[cfg(test)]
fn parse_options<T: Args>(args: &[&str]) -> Result<T, clap::Error> {
    #[derive(Parser)]
    struct Line<T: Args> {
        #[command(flatten)]
        options: T,
    }
    Line::try_parse_from([&["xtask"], args].concat()).map(|line| line.options)
}

fn workspace_root() -> Result<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(own.parent().context("xtask has no parent directory")?.to_owned())
}
