//! Random scenarios with all checkers on, side by side; the first finding is shrunk to a small
//! scenario. A seed fixes scenarios, findings and what is written, in whatever order runs end.

mod draft;

pub use draft::Draft;

use crate::check::Checked;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::scenario::build::SimulationPlan;
use crate::sched::{self, Tuning};
use instep_check::ScheduleFinding;
use rayon::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Events after which a run ends though its time is not over: some load makes many.
const MOST: u64 = 400_000;
/// Runs that shrinking may cost.
const TRIES: u32 = 400;

/// Simulates a plan with checkers, up to so many events: [`SimulationPlan::check`], or what shall be checked
/// instead, as a scheduler that is known to be broken.
pub type Judge<'a> = &'a (dyn Fn(&SimulationPlan, u64) -> Checked + Sync);

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swarm {
    /// How many runs.
    pub runs: u64,
    /// The seed of all.
    pub seed: u64,
    /// Only this scheduler; all in turn when not given.
    pub scheduler: Option<String>,
}

/// A broken rule and the scenario that shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenScenario {
    /// Which run, from 0.
    pub run: u64,
    /// The scenario.
    pub draft: Draft,
    /// The rule.
    pub finding: ScheduleFinding,
}

/// What came of a swarm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Runs that were done; fewer than wished for after a stop.
    pub runs: u64,
    /// Events in all.
    pub events: u64,
    /// Simulated time in all, nanoseconds.
    pub simulated: u64,
    /// All findings, by run.
    pub found: Vec<BrokenScenario>,
}

impl Swarm {
    /// Runs all. `done` is called after each run, from any thread; once `stop` says so no further
    /// run is begun.
    ///
    /// # Errors
    /// When the scheduler's name is not known.
    pub fn run(
        &self,
        done: &(dyn Fn() + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Sum, String> {
        self.run_by(&SimulationPlan::check, done, stop)
    }

    /// The same by another judge.
    ///
    /// # Errors
    /// When the scheduler's name is not known.
    pub fn run_by(
        &self,
        judge: Judge<'_>,
        done: &(dyn Fn() + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Sum, String> {
        if let Some(name) = &self.scheduler {
            sched::make(name, &Tuning::new())?;
        }
        let one = |run: u64| {
            if stop() {
                return None;
            }
            let draft = self.draft(run);
            let checked = simulate(&draft, judge);
            done();
            Some((run, draft, checked))
        };
        let all: Vec<(u64, Draft, Checked)> =
            (0..self.runs).into_par_iter().filter_map(one).collect();
        let mut sum = Sum::default();
        for (run, draft, checked) in all {
            sum.runs += 1;
            sum.events += checked.events;
            sum.simulated += checked.until;
            sum.found.extend(checked.finding.map(|finding| BrokenScenario { run, draft, finding }));
        }
        Ok(sum)
    }

    /// The scenario of a run.
    pub fn draft(&self, run: u64) -> Draft {
        let turn = run % sched::NAMES.len() as u64;
        let name = self.scheduler.as_deref().unwrap_or(sched::NAMES[turn as usize]);
        let mut seeds = Rng::new(self.seed);
        let mut rng = Rng::new(seeds.draw().wrapping_add(run));
        Draft::draw(&mut rng, name)
    }
}

impl BrokenScenario {
    /// The smallest scenario found that breaks the same rule. Greedy: the first step that still
    /// breaks it is taken, until none does.
    pub fn shrink(&self) -> Self {
        self.shrink_by(&SimulationPlan::check)
    }

    /// The same by the judge that found it.
    pub fn shrink_by(&self, judge: Judge<'_>) -> Self {
        let again = |finding: &ScheduleFinding| finding.rule == self.finding.rule;
        self.shrink_while(|draft| simulate(draft, judge).finding.filter(again))
    }

    /// The same, for whatever says that a draft still breaks it.
    fn shrink_while(&self, breaks: impl Fn(&Draft) -> Option<ScheduleFinding>) -> Self {
        let (mut best, mut tries) = (self.clone(), 0);
        best.draft.cut(best.finding.at);
        if breaks(&best.draft).is_none() {
            best = self.clone();
        }
        'smaller: loop {
            for less in best.draft.smaller() {
                tries += 1;
                if tries > TRIES {
                    break 'smaller;
                }
                if let Some(finding) = breaks(&less) {
                    (best.draft, best.finding) = (less, finding);
                    continue 'smaller;
                }
            }
            break;
        }
        best
    }

    /// Its scenario as TOML; `about` says what is wrong and where it came from.
    pub fn text(&self, seed: u64) -> String {
        self.draft.text(&format!("swarm seed {seed}, run {}: {}", self.run, self.finding))
    }
}

/// Simulates a draft with all checkers; a panic is a finding, too.
fn simulate(draft: &Draft, judge: Judge<'_>) -> Checked {
    let run = || plan(draft).map(|plan| judge(&plan, MOST));
    let found = |rule, what| Checked {
        events: 0,
        until: 0,
        finding: Some(ScheduleFinding { rule, at: 0, what }),
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(checked)) => checked,
        Ok(Err(what)) => found("scenario", what),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            found("panic", text.unwrap_or("it panicked").to_owned())
        }
    }
}

fn plan(draft: &Draft) -> Result<SimulationPlan, String> {
    let scenario = Scenario::parse(&draft.text("drawn")).map_err(|fault| fault.what)?;
    SimulationPlan::new(&scenario, &|file| Err(format!("{file} is not read")))
        .map_err(|fault| fault.what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_runs_whatever_their_order() {
        let swarm = Swarm { runs: 12, seed: 5, scheduler: None };
        let all = || swarm.run(&|| (), &|| false);
        assert_eq!(all(), all());
        assert_eq!(all().unwrap().runs, 12);
        assert_eq!(swarm.run(&|| (), &|| true).unwrap(), Sum::default());
        assert_ne!(swarm.draft(0), Swarm { seed: 6, ..swarm.clone() }.draft(0));
    }

    fn found(run: u64) -> BrokenScenario {
        let draft = Swarm { runs: 1, seed: 3, scheduler: Some("cfs".to_owned()) }.draft(run);
        let finding = ScheduleFinding { rule: "wait", at: 5_000_000, what: "made".to_owned() };
        BrokenScenario { run, draft, finding }
    }

    #[test]
    fn shrinking_ends_with_what_the_finding_needs() {
        // As if two guests on two CPUs broke the rule as soon as one has three vCPUs.
        let needs = |draft: &Draft| {
            let (guests, _, cpus) = draft.size();
            guests >= 2 && cpus >= 2 && (0..3).any(|at| draft.text("").contains(&three(at)))
        };
        fn three(at: usize) -> String {
            format!("name = \"g{at}\"\nvcpus = 3\n")
        }
        let breaks = |draft: &Draft| {
            needs(draft).then(|| ScheduleFinding { rule: "wait", at: 7, what: "made".to_owned() })
        };
        let mut shrunk = 0;
        for found in (0..400).map(found).filter(|found| needs(&found.draft)) {
            let small = found.shrink_while(breaks);
            assert!(needs(&small.draft) && small.finding.at == 7 && small.run == found.run);
            assert!(!small.draft.smaller().iter().any(needs), "{}", small.text(3));
            let (guests, vcpus, cpus) = small.draft.size();
            assert_eq!((guests, vcpus, cpus), (2, 4, 2), "{}", small.text(3));
            assert!(small.draft.text("").contains("duration = \"6ms\""));
            shrunk += 1;
        }
        assert!(shrunk > 20, "{shrunk}");
    }

    #[test]
    fn a_finding_that_needs_its_time_keeps_it() {
        let found = found(1);
        let whole = found.draft.text("");
        let duration = whole.lines().find(|line| line.starts_with("duration")).unwrap();
        let breaks =
            |draft: &Draft| draft.text("").contains(duration).then(|| found.finding.clone());
        let small = found.shrink_while(breaks);
        assert!(small.draft.text("").contains(duration));
        assert_eq!(small.draft.size(), (1, 1, 1));
    }

    #[test]
    fn nothing_smaller_that_breaks_it_leaves_it_as_it_was() {
        let found = found(2);
        assert_eq!(found.shrink_while(|_| None), found);
    }

    #[test]
    fn unknown_schedulers_are_refused() {
        let swarm = Swarm { runs: 1, seed: 1, scheduler: Some("best".to_owned()) };
        assert!(swarm.run(&|| (), &|| false).unwrap_err().contains("known are"));
    }
}
