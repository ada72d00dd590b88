//! `instep reproduce`: runs published experiments and prints or draws what came of them. Knows no
//! model and no figure.

use crate::args::ReproduceArgs;
use crate::{Outcome, print, print_json, tell};
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use instep_lab::Stop;
use instep_sim::reproduce::{self, Reproduced, page, table};
use std::fs;

/// Finds, runs, prints.
pub(crate) fn command(args: &ReproduceArgs) -> anyhow::Result<Outcome> {
    let experiments = reproduce::find(&args.name)?;
    if args.list {
        show(args, &reproduce::list(&experiments))?;
        return Ok(Outcome::Fine);
    }
    if let Some(file) = &args.html {
        // Minutes of work are not lost to a directory that is not there.
        fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(file)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
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
    if let Some(file) = &args.html {
        fs::write(file, page::page(&found))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    show(args, &found)?;
    if stop.raised() {
        tell("interrupted: the results are those of the runs that were finished");
        return Ok(Outcome::Finding);
    }
    Ok(Outcome::Fine)
}

fn show(args: &ReproduceArgs, found: &Reproduced) -> anyhow::Result<()> {
    if args.json { print_json(found) } else { print(&table::table(found)) }
}
