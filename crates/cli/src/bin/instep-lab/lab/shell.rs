//! `instep lab shell`: a prompt in an emulated host; each line is a shell command there.

use super::{Progress, interrupted, load, options};
use crate::args::LabShellArgs;
use crate::{Outcome, tell};
use instep_lab::host::channel::Answer;
use instep_lab::prompt::Lines;
use instep_lab::scenario::Scenario;
use instep_lab::scenario::run::{Kit, Running, again};
use instep_lab::{Error, Stop};
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

/// How long a command typed at the prompt may take, by the host's clock.
const PROMPT_LIMIT: Duration = Duration::from_secs(600);

/// How long a shell's host may live.
const LIFE: Duration = Duration::from_secs(24 * 3600);

/// The host of a shell for which no scenario is named.
const PLAIN: &str = "about = 'a prompt'\n\
                     [host]\nnodes = 2\ncores = 2\nthreads = 2\nmemory = '2GiB'\n";

pub(super) fn command(args: &LabShellArgs) -> anyhow::Result<Outcome> {
    let scenario = match &args.file {
        Some(file) => load(file)?,
        None => Scenario::parse(PLAIN, "shell").map_err(anyhow::Error::msg)?,
    };
    let stop = Stop::on_signals()?;
    let progress = Progress::start();
    let (kit, mut running) = match up(args, &scenario, &stop, &progress) {
        Ok(both) => both,
        Err(error) => return ended(progress, error),
    };
    drop(progress);
    let prompt = io::stdin().is_terminal();
    if prompt {
        eprintln!(
            "{} CPUs on {} nodes, kernel {}. Each line is a shell command of its own; end with \
             Ctrl-D.",
            scenario.host.cpus(),
            scenario.host.nodes,
            running.kernel
        );
    }
    let mut lines = Lines::of(&io::stdin())?;
    let next = || {
        if prompt {
            eprint!("lab# ");
        }
        lines.next(&stop)
    };
    match converse(next, |line| running.host.run(line, PROMPT_LIMIT, &stop)) {
        Ok(status) => Ok(Outcome::Status(status)),
        Err(error) => match error.downcast_ref() {
            Some(Error::Interrupted) => Ok(left(running)),
            Some(_) => {
                let place = kit.keep_consoles(&mut running, &scenario, &stop);
                tell(&format!("consoles are kept in {}", place.display()));
                Err(error)
            }
            None => Err(error),
        },
    }
}

/// Runs line after line and prints what each says. The status is that of the last line, as a
/// shell's is, 0 when there was none.
fn converse(
    mut next: impl FnMut() -> Result<Option<String>, Error>,
    mut run: impl FnMut(&str) -> Result<Answer, Error>,
) -> anyhow::Result<u8> {
    let mut last = 0;
    while let Some(line) = next()? {
        if line.trim().is_empty() {
            continue;
        }
        let answer = run(&line)?;
        io::stdout().lock().write_all(&answer.stdout)?;
        io::stdout().flush()?;
        io::stderr().lock().write_all(answer.stderr.as_bytes())?;
        last = u8::try_from(answer.status).unwrap_or(u8::MAX);
    }
    Ok(last)
}

/// A host with the scenario's guests; the consoles are kept of one whose guests do not come up.
fn up(
    args: &LabShellArgs,
    scenario: &Scenario,
    stop: &Stop,
    progress: &Progress,
) -> anyhow::Result<(Kit, Running)> {
    let options = options(&args.host, None)?;
    let hypervisor = scenario.host.hypervisor;
    let kit = Kit::obtain_for(hypervisor, &options, stop, &mut |said| progress.say(said))?;
    progress.say("booting");
    let running = again(stop, &mut |said| progress.say(said), |_, say| {
        let mut running = kit.boot_for(scenario, LIFE, None, stop, say)?;
        say("starting guests");
        if let Err(error) = running.start_guests(scenario, stop) {
            if !matches!(error, Error::Interrupted) {
                let place = kit.keep_consoles(&mut running, scenario, stop);
                tell(&format!("consoles are kept in {}", place.display()));
            }
            return Err(error);
        }
        Ok(running)
    })?;
    Ok((kit, running))
}

fn ended(progress: Progress, error: anyhow::Error) -> anyhow::Result<Outcome> {
    match error.downcast_ref() {
        Some(Error::Interrupted) => Ok(interrupted(progress)),
        _ => Err(error),
    }
}

/// Ends the host, and then says so.
fn left(running: Running) -> Outcome {
    drop(running);
    tell("interrupted: everything is ended and removed");
    Outcome::Finding
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_of(lines: &[&str]) -> u8 {
        let mut lines = lines.iter().map(|line| (*line).to_owned());
        let answer = |line: &str| {
            let status = line.trim_start_matches("exit ").parse().unwrap();
            Ok(Answer { status, stdout: Vec::new(), stderr: String::new() })
        };
        converse(|| Ok(lines.next()), answer).unwrap()
    }

    #[test]
    fn the_last_line_s_status_becomes_the_shell_s() {
        assert_eq!(status_of(&["exit 0", "exit 3"]), 3);
        assert_eq!(status_of(&["exit 3", "exit 0"]), 0);
        assert_eq!(status_of(&["exit 7", "  ", ""]), 7, "an empty line is none");
        assert_eq!(status_of(&[]), 0);
        assert_eq!(status_of(&["exit 300"]), 255, "never a success by being cut");
    }
}
