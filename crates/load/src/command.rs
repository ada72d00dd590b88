//! From the words of the command line to a running mode.

use crate::args::Args;
use crate::cpu;
use crate::error::LoadError;
use crate::frame::{self, Mode, Plan};
use crate::mode::{barrier, compute};
use crate::unit::Scale;
use std::io::Write;
use std::time::Duration;

/// Threads beyond which a number is taken for a mistake.
const MAX_THREADS: u64 = 4096;

const USAGE: &str = "\
usage: instep-load MODE [N] [OPTION VALUE]...

Loads the machine as MODE says and prints a line of JSON every second and one with totals at the
end (schema instep.load/1). A guest program: static, needs no files.

";

const COMMON: &str = "\
options of every mode
  --threads N          [CPUs this process may use]
  --float              let the kernel place the threads; without it each is tied to one CPU
  --duration DURATION  [10s]; 0: until SIGINT or SIGTERM
  --report DURATION    from one line to the next [1s]
  --seed N             of all randomness [1]
  --unit-ns NS         nanoseconds that a unit of work takes here; without it measured at the
                       start. Give the value of an earlier run's options.unit_ns to do the same
                       work again
exit status: 0 done (also by SIGINT or SIGTERM), 2 usage, environment or a wrong result

instep-load barrier --threads 2 --kind spin --phase 100us --duration 5s
";

/// Name, what it is, and its own help.
const MODES: &[(&str, &str, &str)] = &[
    ("compute", "arithmetic only", compute::HELP),
    ("barrier", "phases and a barrier that blocks, spins, or spins then blocks", barrier::HELP),
];

/// Runs what the words ask for; lines and help go to `out`.
///
/// # Errors
/// Any [`LoadError`]: the program then ends with status 2.
pub fn execute(words: &[String], out: &mut dyn Write) -> Result<(), LoadError> {
    let Some((first, rest)) = words.split_first() else {
        return Err(LoadError::Usage("no mode given; see instep-load --help".to_owned()));
    };
    let asks_help = |word: &String| matches!(word.as_str(), "--help" | "-h");
    if first == "help" || asks_help(first) {
        return print_help(rest.first().map(String::as_str), out);
    }
    if rest.iter().any(asks_help) {
        return print_help(Some(first), out);
    }
    let mode = find(first)?.0;
    let mut args = Args::new(mode, rest)?;
    let common = Common::from_args(&mut args)?;
    let threads = common.threads;
    match mode {
        "barrier" => start(barrier::Barrier::from_args(&mut args, threads)?, args, common, out),
        _ => start(compute::Compute::from_args(&mut args)?, args, common, out),
    }
}

/// The help of one mode, or of the program.
///
/// # Errors
/// An unknown mode.
pub fn help(mode: Option<&str>) -> Result<String, LoadError> {
    if let Some(mode) = mode {
        let own = find(mode)?.2;
        return Ok(format!("{own}\n{COMMON}"));
    }
    let list: Vec<String> =
        MODES.iter().map(|(name, what, _)| format!("  {name:<10} {what}\n")).collect();
    Ok(format!("{USAGE}modes (instep-load MODE --help for each)\n{}\n{COMMON}", list.concat()))
}

fn print_help(mode: Option<&str>, out: &mut dyn Write) -> Result<(), LoadError> {
    let text = help(mode)?;
    out.write_all(text.as_bytes())
        .map_err(|source| LoadError::System { what: "write to standard output".to_owned(), source })
}

fn find(mode: &str) -> Result<&'static (&'static str, &'static str, &'static str), LoadError> {
    MODES.iter().find(|(name, ..)| *name == mode).ok_or_else(|| {
        let names: Vec<&str> = MODES.iter().map(|(name, ..)| *name).collect();
        LoadError::Usage(format!(
            "unknown mode `{mode}`; expected {}; see instep-load --help",
            names.join(", ")
        ))
    })
}

/// The options of every mode.
struct Common {
    threads: usize,
    cpus: Vec<usize>,
    duration: Duration,
    interval: Duration,
    seed: u64,
    scale: Option<Scale>,
}

impl Common {
    fn from_args(args: &mut Args) -> Result<Self, LoadError> {
        let mut cpus = cpu::allowed()?;
        let threads = args.number("--threads", cpus.len() as u64, 1..=MAX_THREADS)? as usize;
        if args.flag("--float")? {
            cpus.clear();
        }
        let second = Duration::from_secs(1);
        Ok(Self {
            threads,
            cpus,
            duration: args.duration("--duration", 10 * second, Duration::ZERO)?,
            interval: args.duration("--report", second, Duration::from_millis(10))?,
            seed: args.number("--seed", 1, 0..=u64::MAX)?,
            scale: args.parsed("--unit-ns", None, |value| {
                let scale = value.parse().ok().and_then(Scale::new);
                scale.map(Some).ok_or_else(|| "a positive number of nanoseconds".to_owned())
            })?,
        })
    }
}

/// Calibrates and runs, once the whole command line has been understood.
fn start<M: Mode>(
    mode: M,
    args: Args,
    common: Common,
    out: &mut dyn Write,
) -> Result<(), LoadError> {
    args.finish()?;
    let plan = Plan {
        threads: common.threads,
        cpus: common.cpus,
        duration: common.duration,
        interval: common.interval,
        seed: common.seed,
        scale: common.scale.unwrap_or_else(Scale::calibrate),
    };
    frame::run(&mode, &plan, out)
}
