//! `instep sim`: simulates a scenario and prints what came of it. Knows no model.

use crate::args::SimArgs;
use crate::{Outcome, print, print_json};
use indicatif::{ProgressBar, ProgressStyle};
use instep_sim::scenario::{Overrides, Scenario};

/// Reads, simulates, prints.
pub(crate) fn command(args: &SimArgs) -> anyhow::Result<Outcome> {
    let overrides = Overrides { seed: args.seed, scheduler: args.scheduler.clone() };
    let plan = Scenario::load(&args.file, &overrides)?;
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template("{bar:30} {pos} of {len} runs, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let report = plan.report(&mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    if args.json {
        print_json(&report)?;
    } else {
        print(&report.table())?;
    }
    Ok(Outcome::Fine)
}
