//! Simulates a scenario once and prints how many events that took: to be run under `time` or `perf`.

#![allow(missing_docs, reason = "an example")]

use instep_sim::scenario::{Overrides, Scenario};
use std::path::Path;

fn main() {
    let Some(file) = std::env::args().nth(1) else {
        eprintln!("usage: events SCENARIO.toml");
        std::process::exit(2);
    };
    match Scenario::load(Path::new(&file), &Overrides::default()) {
        Ok(plan) => println!("{}", plan.run().events),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    }
}
