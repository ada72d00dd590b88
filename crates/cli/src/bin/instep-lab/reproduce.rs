//! `instep reproduce`: runs published experiments and prints or draws what came of them. Knows no
//! model and no figure.

use crate::args::ReproduceArgs;
use crate::pending::Pending;
use crate::scenario_file::hinted_name;
use crate::{Outcome, Stamped, print, print_json, tell};
use indicatif::{ProgressBar, ProgressStyle};
use instep_lab::Stop;
use instep_sim::reproduce::{self, Reproduced, page, table};

/// Finds, runs, prints.
pub(crate) fn command(args: &ReproduceArgs) -> anyhow::Result<Outcome> {
    let mut experiments: Vec<reproduce::Experiment> = Vec::new();
    for name in &args.names {
        let known = reproduce::FILES.iter().map(|(name, _)| *name);
        let found = reproduce::find(name).map_err(|error| hinted_name(error, name, known))?;
        for found in found {
            if experiments.iter().all(|other| other.name != found.name) {
                experiments.push(found);
            }
        }
    }
    if args.list {
        let list = reproduce::list(&experiments);
        if experiments.len() > 1 && !args.json {
            print(&table::summary(&list))?;
        } else {
            show(args, &list)?;
        }
        return Ok(Outcome::Fine);
    }
    // Minutes of work are not lost to a directory that is not there.
    let html = args.html.as_deref().map(Pending::new).transpose()?;
    let stop = Stop::on_signals()?;
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} runs, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(0).with_style(style);
    let progress = |done: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    };
    let found = reproduce::run(&experiments, args.seeds, &progress, &|| stop.raised());
    bar.finish_and_clear();
    if let Some(html) = html {
        html.write(page::page(&found).as_bytes(), "open it in a browser")?;
    }
    show(args, &found)?;
    if stop.raised() {
        tell("interrupted: the results are those of the runs that were finished");
        return Ok(Outcome::Finding);
    }
    Ok(Outcome::Fine)
}

fn show(args: &ReproduceArgs, found: &Reproduced) -> anyhow::Result<()> {
    if args.json { print_json(&Stamped::new(found, None)) } else { print(&table::table(found)) }
}
