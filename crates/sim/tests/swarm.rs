//! A small swarm of all schedulers finds nothing (`instep sim --swarm 2000` is the large one), and one of a
//! broken scheduler finds it and makes a small scenario of it.

#![cfg(test)]
#![allow(missing_docs, reason = "a test")]

#[allow(dead_code, reason = "the checkers' tests break it in other ways")]
mod robin;

use instep_check::Promises;
use instep_sim::check::{Checked, check};
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;
use instep_sim::swarm::Swarm;
use robin::{Fault, MS, Robin};

#[test]
fn a_small_swarm_of_all_schedulers_finds_nothing() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    let swarm = Swarm { runs: 33, seed: 1, scheduler: None };
    let sum = swarm.run(&|| (), &|| false).unwrap();
    let found: Vec<String> = sum.found.iter().map(|found| found.text(1)).collect();
    assert_eq!((sum.runs, found), (33, Vec::<String>::new()));
}

/// A swarm under a scheduler that is broken so: whatever is found is made small, and the text of the
/// small scenario, read anew, breaks the same rule.
fn finds(fault: Fault, promises: &Promises, rule: &str, most: (usize, u32, u32)) {
    let by = |fault| {
        move |plan: &SimulationPlan, events: u64| -> Checked {
            check(&plan.setup, Robin::broken(fault), promises, events)
        }
    };
    let swarm = Swarm { runs: 40, seed: 1, scheduler: Some("cfs".to_owned()) };
    let sound = swarm.run_by(&by(Fault::None), &|| (), &|| false).unwrap();
    assert_eq!((sound.runs, sound.found), (40, Vec::new()), "the sound one");
    let broken = by(fault);
    let sum = swarm.run_by(&broken, &|| (), &|| false).unwrap();
    assert_eq!(sum.runs, 40);
    let first = sum.found.first().expect("a swarm finds it");
    assert!(sum.found.iter().all(|found| found.finding.rule == rule), "{:?}", sum.found);
    let small = first.shrink_by(&broken);
    let text = small.text(swarm.seed);
    let (guests, vcpus, cpus) = small.draft.size();
    assert!(guests <= most.0 && vcpus <= most.1 && cpus <= most.2, "{text}");
    let plan =
        SimulationPlan::new(&Scenario::parse(&text).unwrap(), &|_| Err(String::new())).unwrap();
    let again = broken(&plan, u64::MAX).finding.expect("it is broken again");
    assert_eq!((again.rule, &again), (rule, &small.finding), "{text}");
    assert_eq!(by(Fault::None)(&plan, u64::MAX).finding, None, "{text}");
}

#[test]
fn a_swarm_finds_a_scheduler_that_runs_tasks_where_they_may_not() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    finds(Fault::Anywhere, &Promises::NONE, "affinity", (2, 3, 2));
}

#[test]
fn a_swarm_finds_a_scheduler_that_runs_a_task_twice() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    finds(Fault::Twice, &Promises::NONE, "conserved", (2, 2, 2));
}

#[test]
fn swarm_finds_a_scheduler_that_misses_wakeups() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    let promises = Promises { woken: Some(4 * MS), ..Promises::NONE };
    finds(Fault::Deaf, &promises, "woken", (2, 2, 2));
}

#[test]
fn blocking_vcpus_starve_a_computing_one_under_credit() {
    // Seed 2, run 825; that it is no finding any more, tests of what was found show.
    let plan = |scheduler: &str| {
        let text = include_str!("found/boosted-siblings.toml").replace("\"credit\"", scheduler);
        SimulationPlan::new(&Scenario::parse(&text).unwrap(), &|_| Err(String::new())).unwrap()
    };
    for scheduler in ["\"credit\"", "\"sync-aware\""] {
        let plan = plan(scheduler);
        let promises = plan.scheduler().promises();
        let bounded = Promises { wakers_first: false, ..promises };
        let found = |promises| check(&plan.setup, plan.scheduler(), promises, u64::MAX).finding;
        assert_eq!(found(&promises), None, "{scheduler}");
        assert_eq!(found(&bounded).map(|finding| finding.rule), Some("wait"), "{scheduler}");
    }
    let eevdf = plan("\"eevdf\"");
    assert_eq!(eevdf.check(u64::MAX).finding, None);
}
