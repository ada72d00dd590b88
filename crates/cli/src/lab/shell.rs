//! `instep lab shell`: a prompt in an emulated host; each line is a shell command there.

use super::{Progress, interrupted, options};
use crate::args::LabShellArgs;
use crate::{Outcome, tell};
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
        Some(file) => Scenario::load(file)?,
        None => Scenario::parse(PLAIN, "shell").map_err(anyhow::Error::msg)?,
    };
    let stop = Stop::on_signals()?;
    let progress = Progress::start();
    let mut running = match up(args, &scenario, &stop, &progress) {
        Ok(running) => running,
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
    let mut last = 0;
    loop {
        if prompt {
            eprint!("lab# ");
        }
        let line = match lines.next(&stop) {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(Error::Interrupted) => return Ok(left(running)),
            Err(error) => return Err(error.into()),
        };
        if line.trim().is_empty() {
            continue;
        }
        let answer = match running.host.run(&line, PROMPT_LIMIT, &stop) {
            Ok(answer) => answer,
            Err(Error::Interrupted) => return Ok(left(running)),
            Err(error) => return Err(error.into()),
        };
        io::stdout().lock().write_all(&answer.stdout)?;
        io::stdout().flush()?;
        io::stderr().lock().write_all(answer.stderr.as_bytes())?;
        last = answer.status;
    }
    Ok(if last == 0 { Outcome::Fine } else { Outcome::Finding })
}

/// A host with the scenario's guests; the consoles are kept of one whose guests do not come up.
fn up(
    args: &LabShellArgs,
    scenario: &Scenario,
    stop: &Stop,
    progress: &Progress,
) -> anyhow::Result<Running> {
    let kit = Kit::obtain(&options(&args.host, None)?, stop, &mut |said| progress.say(said))?;
    progress.say("booting");
    let running = again(stop, &mut |said| progress.say(said), |_, say| {
        let mut running = kit.boot_for(scenario, LIFE, stop)?;
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
    Ok(running)
}

fn ended(progress: Progress, error: anyhow::Error) -> anyhow::Result<Outcome> {
    match error.downcast_ref() {
        Some(Error::Interrupted) => Ok(interrupted(progress)),
        _ => Err(error),
    }
}

/// Ends the host before it is said that it is ended.
fn left(running: Running) -> Outcome {
    drop(running);
    tell("interrupted: everything is ended and removed");
    Outcome::Finding
}
