//! Runs an example of `instep-sim` that reads jobs as lines of JSON and answers each with one, side by side on all CPUs:
//! builds it for release, gives it all jobs, and takes the results as they come.

use crate::built::built;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Gives these jobs to the example; `take` gets the number of each job with its result, in the order in which they end.
/// `doing` is the benchmark's name on standard error.
pub(crate) fn run_jobs(
    root: &Path,
    example: &str,
    doing: &str,
    jobs: &[Value],
    mut take: impl FnMut(usize, Value),
) -> Result<()> {
    let program = built(root, &["-p", "instep-sim", "--example", example], example)?;
    let begin = Instant::now();
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let mut input = child.stdin.take().context("the program has no standard input")?;
    for job in jobs {
        writeln!(input, "{job}").context("the simulations ended early")?;
    }
    drop(input);
    let output = child.stdout.take().context("the program has no standard output")?;
    let terminal = std::io::stderr().is_terminal();
    let mut done = 0;
    for line in BufReader::new(output).lines() {
        let result: Value = serde_json::from_str(&line?).context("a result is not JSON")?;
        let number = result["job"].as_u64().and_then(|number| usize::try_from(number).ok());
        let number = number.filter(|number| *number < jobs.len()).context("a result of no job")?;
        take(number, result);
        done += 1;
        if terminal {
            eprint!("\r{doing}: {done} of {} simulated", jobs.len());
        }
    }
    let end = if terminal { "\n" } else { "" };
    eprintln!("{end}{doing}: {done} simulated in {} s", begin.elapsed().as_secs());
    let status = child.wait().context("the simulations cannot be waited for")?;
    if !status.success() || done < jobs.len() {
        bail!("the simulations ended after {done} of {} jobs: {status}", jobs.len());
    }
    Ok(())
}
