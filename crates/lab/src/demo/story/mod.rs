//! The demo's story: an emulated NUMA host with real KVM guests, told while it runs, and a page that draws it.
//!
//! What happens and what must hold is the scenario's (`scenarios/lab/demo.toml`); here are its words
//! and where the page goes. The claims are proven by the lab's own looks into the host's /proc. The
//! last act, [`speed`], has a host of its own.

mod narrator;
mod sketch;
mod speed;

use super::{DemoOptions, DemoResult};
use crate::cache::Cache;
use crate::error::Error;
use crate::page::{self, Act, Words};
use crate::scenario::Scenario;
use crate::scenario::report::LabReport;
use crate::scenario::run::{self, LabOptions};
use crate::stop::Stop;
use narrator::Narrator;
use std::path::{Path, PathBuf};
use std::{fs, io};

const SCENARIO: &str = include_str!("../../../../../scenarios/lab/demo.toml");

/// What is said when the lab fails, though this machine has all it needs.
const FAILED: &str = "the emulated host failed; try again, or see what `instep lab doctor` tells";

/// The observations of the scenario: name, title, caption.
const MOMENTS: [(&str, &str, &str); 4] = [
    (
        "before",
        "Two VMs that somebody bound badly",
        "Each vCPU has a CPU, but the two are the threads of one core, and all memory lies on the \
         other node, while node 1 has nothing to run.",
    ),
    (
        "after",
        "Instep at work",
        "Each VM gets a node and each vCPU a core. One VM goes to its memory; the memory of the \
         other comes to it. Here a cycle moves 48 MiB at most, so that it can be watched; by \
         itself it moves up to 4 GiB.",
    ),
    (
        "four guests",
        "A third and a fourth VM arrive",
        "Now 8 vCPUs share 4 cores. To bind each to a core would make it wait there while another \
         is free, so each VM has the CPUs of its node. What memory of the two lies elsewhere follows in \
         later cycles.",
    ),
    (
        "given back",
        "Everything back",
        "SIGTERM ended Instep. Every affinity is as it was found, the bad ones included: what an \
         operator set by hand is the operator's. Memory that was moved stays there.",
    ),
];

/// Runs it.
pub(super) fn run(options: &DemoOptions, stop: &Stop) -> anyhow::Result<DemoResult> {
    let scenario = Scenario::parse(SCENARIO, "demo")
        .map_err(|what| Error::Scenario { path: "scenarios/lab/demo.toml".into(), what })?;
    let page = match &options.html {
        Some(path) => path.clone(),
        None => Cache::open()?.path("demo.html"),
    };
    let with = LabOptions {
        kernel: options.kernel.clone(),
        modules: options.modules.clone(),
        instep: options.instep.clone(),
        laboratory: options.laboratory.clone(),
        load: options.load.clone(),
        ..LabOptions::default()
    };
    let mut teller = Narrator::new(&scenario, stop.clone());
    teller.opening();
    let ran = run::run(&scenario, &with, stop, &mut teller);
    // A listener who went away raised the stop, and is the reason to end.
    teller.heard()?;
    let mut report = match ran {
        Ok(report) => report,
        Err(error @ Error::Interrupted) => return Err(error.into()),
        Err(error) if error.is_lacking() => return Err(error.into()),
        Err(error) => return Err(anyhow::Error::from(error).context(FAILED)),
    };
    let lacks = options.lacks_scheduler.as_deref();
    let outcome = speed::run(&with, lacks, stop, &mut teller);
    teller.heard()?;
    let outcome = outcome.map_err(|error| match error {
        Error::Interrupted => error.into(),
        error => anyhow::Error::from(error).context(FAILED),
    })?;
    report.checks.extend(outcome.checks.iter().cloned());
    report.held &= outcome.checks.iter().all(|check| check.held);
    report.seconds.total += outcome.seconds;
    teller.closing(&report);
    let words = Words {
        title: "Instep: misplaced VMs come home",
        moments: &MOMENTS,
        act: Some(Act {
            title: speed::TITLE,
            caption: speed::CAPTION,
            speeds: outcome.speeds.as_ref().map_err(String::as_str),
            checks: &outcome.checks,
        }),
    };
    let page = write(&page, &page::draw(&report, &words))?;
    teller.line(&format!("All of it on one page: {}", page.display()));
    teller.heard()?;
    Ok(verdict(&report))
}

fn verdict(report: &LabReport) -> DemoResult {
    if report.held { DemoResult::Shown } else { DemoResult::Failed }
}

/// Writes the page; its absolute path, where that can be told.
fn write(path: &Path, html: &str) -> Result<PathBuf, Error> {
    let written: io::Result<()> = fs::write(path, html);
    written.map_err(|error| Error::io("write", path, error))?;
    Ok(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_s_scenario_is_one_and_every_moment_has_its_words() {
        let scenario = Scenario::parse(SCENARIO, "demo").unwrap();
        let observed: Vec<&str> =
            scenario.step.iter().filter_map(|step| step.observe.as_deref()).collect();
        let told: Vec<&str> = MOMENTS.iter().map(|(name, _, _)| *name).collect();
        assert_eq!(observed, told);
        assert!(scenario.guest.iter().all(|guest| !guest.load.contains("instep-load")));
    }
}
