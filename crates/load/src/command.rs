//! From the words of the command line to a running mode.

use crate::args;
use crate::cpu;
use crate::error::LoadError;
use crate::frame::{self, Mode, Plan};
use crate::mode::{
    barrier, chase, compute, fib, idle, lock, nqueens, ping, pipeline, serial, steal, stream,
};
use crate::unit::Scale;
use clap::{Args, Parser, Subcommand, value_parser};
use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

/// Loads the machine as MODE says
///
/// It prints a line of JSON every second and one with totals at the end (schema instep.load/1). A guest program:
/// static, needs no files.
#[derive(Debug, Parser)]
#[command(
    name = "instep-load",
    max_term_width = 80,
    subcommand_value_name = "MODE",
    subcommand_help_heading = "Modes",
    after_help = "Exit status: 0 done (also by SIGINT or SIGTERM), 2 usage, environment or a wrong result\n\n\
                  instep-load barrier --threads 2 --kind spin --phase 100us --duration 5s"
)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    mode: ModeOptions,
}

/// Options of every mode.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every mode")]
struct Common {
    /// Threads that work, 1 to 4096 [default: the CPUs this process may use]
    #[arg(long, global = true, value_name = "N", value_parser = value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
    /// Let the kernel place the threads; without it each is tied to one CPU
    #[arg(long, global = true)]
    float: bool,
    /// How long, such as 500ms or 10s; 0: until SIGINT or SIGTERM
    #[arg(long, global = true, default_value = "10s", value_parser = args::duration::<0>)]
    duration: Duration,
    /// From one line to the next
    #[arg(long, global = true, value_name = "DURATION", default_value = "1s", value_parser = args::duration::<10_000_000>)]
    report: Duration,
    /// Of all randomness
    #[arg(long, global = true, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Nanoseconds that a unit of work takes here; without it measured at the start. Give the options.unit_ns of an
    /// earlier run to do the same work
    #[arg(long, global = true, value_name = "NS", value_parser = scale)]
    unit_ns: Option<Scale>,
}

#[derive(Debug, Subcommand)]
enum ModeOptions {
    Compute(compute::Options),
    Stream(stream::Options),
    Chase(chase::Options),
    Barrier(barrier::Options),
    Serial(serial::Options),
    Lock(lock::Options),
    /// Fibonacci numbers by recursion under work stealing
    ///
    /// work: calls. round_ns: time of one whole fib(N). rounds, steals, refusals: computations, tasks given away, requests
    /// that found nothing to give.
    Fib(steal::Options<fib::Size>),
    /// All placements of N queens under work stealing
    ///
    /// work: placements tried. round_ns: time of one whole search. rounds, steals, refusals: searches, tasks given away,
    /// requests that found nothing to give.
    Nqueens(steal::Options<nqueens::Size>),
    Pipeline(pipeline::Options),
    Ping(ping::Options),
    Idle(idle::Options),
}

fn scale(text: &str) -> Result<Scale, String> {
    let scale = text.parse().ok().and_then(Scale::new);
    scale.ok_or_else(|| "expected a positive number of nanoseconds".to_owned())
}

/// Runs what the words ask for, the program's name first; lines and help go to `out`.
///
/// # Errors
/// Any [`LoadError`]: the program then ends with status 2.
pub fn execute(
    words: impl IntoIterator<Item = OsString>,
    out: &mut dyn Write,
) -> Result<(), LoadError> {
    let Cli { common, mode } = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            let text = error.to_string();
            return Err(LoadError::Usage(text.trim_start_matches("error: ").to_owned()));
        }
        Err(help) => {
            return out.write_all(help.to_string().as_bytes()).map_err(LoadError::output);
        }
    };
    match mode {
        ModeOptions::Compute(own) => run::<compute::Compute>(own, common, out),
        ModeOptions::Stream(own) => run::<stream::Stream>(own, common, out),
        ModeOptions::Chase(own) => run::<chase::Chase>(own, common, out),
        ModeOptions::Barrier(own) => run::<barrier::Barrier>(own, common, out),
        ModeOptions::Serial(own) => run::<serial::Serial>(own, common, out),
        ModeOptions::Lock(own) => run::<lock::Lock>(own, common, out),
        ModeOptions::Fib(own) => run::<fib::Fib>(own, common, out),
        ModeOptions::Nqueens(own) => run::<nqueens::Nqueens>(own, common, out),
        ModeOptions::Pipeline(own) => run::<pipeline::Pipeline>(own, common, out),
        ModeOptions::Ping(own) => run::<ping::Ping>(own, common, out),
        ModeOptions::Idle(own) => run::<idle::Idle>(own, common, out),
    }
}

/// Calibrates and runs.
fn run<M: Mode>(own: M::Options, common: Common, out: &mut dyn Write) -> Result<(), LoadError> {
    let mut cpus = cpu::allowed()?;
    let threads = match common.threads {
        Some(_) if !M::THREADS => {
            return Err(LoadError::Usage(format!(
                "{} has no threads: leave --threads away; see --help",
                M::NAME
            )));
        }
        None if !M::THREADS => 0,
        given => given.map_or(cpus.len(), |threads| threads as usize),
    };
    if common.float {
        cpus.clear();
    }
    let Common { duration, report: interval, seed, .. } = common;
    let mode = M::new(own, threads)?;
    let scale = common.unit_ns.unwrap_or_else(Scale::calibrate);
    frame::run(&mode, &Plan { threads, cpus, duration, interval, seed, scale }, out)
}
