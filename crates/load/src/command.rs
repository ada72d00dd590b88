//! From the words of the command line to a running mode.

use crate::args::Args;
use crate::cpu;
use crate::error::LoadError;
use crate::frame::{self, Mode, Plan};
use crate::mode;
use crate::unit::Scale;
use std::io::Write;
use std::time::Duration;

/// Threads beyond which a number is taken for a mistake.
const MAX_THREADS: u64 = 4096;

const USAGE: &str = "\
usage: instep-load MODE [N] [OPTION VALUE]...

Loads the machine as MODE says and prints a line of JSON every second and one with totals at the
end (schema instep.load/1). A guest program: static, needs no files.

modes (instep-load MODE --help tells the options of each)
";

const COMMON: &str = "
options of every mode
  --threads N          threads that work [the CPUs this process may use]
  --float              let the kernel place the threads; without it each is tied to one CPU
  --duration DURATION  how long, such as 500ms or 10s [10s]; 0: until SIGINT or SIGTERM
  --report DURATION    from one line to the next [1s]
  --seed N             of all randomness [1]
  --unit-ns NS         nanoseconds that a unit of work takes here; without it measured at the
                       start. Give the options.unit_ns of an earlier run to do the same work
exit status: 0 done (also by SIGINT or SIGTERM), 2 usage, environment or a wrong result

instep-load barrier --threads 2 --kind spin --phase 100us --duration 5s
";

/// A mode as the command line sees it.
struct Entry {
    name: &'static str,
    help: &'static str,
    run: fn(&[String], &mut dyn Write) -> Result<(), LoadError>,
}

const fn entry<M: Mode>() -> Entry {
    Entry { name: M::NAME, help: M::HELP, run: run::<M> }
}

const MODES: [Entry; 11] = [
    entry::<mode::compute::Compute>(),
    entry::<mode::stream::Stream>(),
    entry::<mode::chase::Chase>(),
    entry::<mode::barrier::Barrier>(),
    entry::<mode::serial::Serial>(),
    entry::<mode::lock::Lock>(),
    entry::<mode::fib::Fib>(),
    entry::<mode::nqueens::Nqueens>(),
    entry::<mode::pipeline::Pipeline>(),
    entry::<mode::ping::Ping>(),
    entry::<mode::idle::Idle>(),
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
    let about = if first == "help" || asks_help(first) {
        rest.first().map(String::as_str)
    } else if rest.iter().any(asks_help) {
        Some(first.as_str())
    } else {
        return (find(first)?.run)(rest, out);
    };
    let text = help(about)?;
    out.write_all(text.as_bytes())
        .map_err(|source| LoadError::System { what: "write to standard output".to_owned(), source })
}

/// The help of one mode, or of the program.
///
/// # Errors
/// An unknown mode.
pub fn help(mode: Option<&str>) -> Result<String, LoadError> {
    if let Some(mode) = mode {
        return Ok(format!("{}{COMMON}", find(mode)?.help));
    }
    let line = |entry: &Entry| {
        let first = entry.help.lines().next().unwrap_or_default();
        let summary = first.split_once(": ").map_or(first, |(_, summary)| summary);
        format!("  {:<10} {summary}\n", entry.name)
    };
    let list: String = MODES.iter().map(line).collect();
    Ok(format!("{USAGE}{list}{COMMON}"))
}

fn find(mode: &str) -> Result<&'static Entry, LoadError> {
    const TABLE: &[Entry] = &MODES;
    TABLE.iter().find(|entry| entry.name == mode).ok_or_else(|| {
        let names: Vec<&str> = TABLE.iter().map(|entry| entry.name).collect();
        LoadError::Usage(format!(
            "unknown mode `{mode}`; expected {}; see instep-load --help",
            names.join(", ")
        ))
    })
}

/// Understands the whole command line, calibrates, runs.
fn run<M: Mode>(words: &[String], out: &mut dyn Write) -> Result<(), LoadError> {
    let mut args = Args::new(M::NAME, words)?;
    let mut cpus = cpu::allowed()?;
    let threads = threads::<M>(&mut args, cpus.len())?;
    if args.flag("--float")? {
        cpus.clear();
    }
    let second = Duration::from_secs(1);
    let duration = args.duration("--duration", 10 * second, Duration::ZERO)?;
    let interval = args.duration("--report", second, Duration::from_millis(10))?;
    let seed = args.number("--seed", 1, 0..=u64::MAX)?;
    let scale = args.parsed("--unit-ns", None, |value| {
        let scale = value.parse().ok().and_then(Scale::new);
        scale.map(Some).ok_or_else(|| "a positive number of nanoseconds".to_owned())
    })?;
    let mode = M::from_args(&mut args, threads)?;
    args.finish()?;
    let scale = scale.unwrap_or_else(Scale::calibrate);
    frame::run(&mode, &Plan { threads, cpus, duration, interval, seed, scale }, out)
}

fn threads<M: Mode>(args: &mut Args, cpus: usize) -> Result<usize, LoadError> {
    if !M::THREADS {
        return Ok(0);
    }
    Ok(args.number("--threads", cpus as u64, 1..=MAX_THREADS)? as usize)
}
