//! A small swarm of all schedulers finds nothing. `instep sim --swarm 2000` is the large one.

#![allow(missing_docs, reason = "a test")]

use instep_sim::check::Promises;
use instep_sim::check::run::check;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::Plan;
use instep_sim::swarm::Swarm;

#[test]
fn a_small_swarm_of_all_schedulers_finds_nothing() {
    let swarm = Swarm { runs: 33, seed: 1, scheduler: None };
    let sum = swarm.run(&|| (), &|| false).unwrap();
    let found: Vec<String> = sum.found.iter().map(|found| found.text(1)).collect();
    assert_eq!((sum.runs, found), (33, Vec::<String>::new()));
}

#[test]
fn those_who_block_pass_over_who_does_not_under_credit_for_as_long_as_they_like() {
    // Seed 2, run 825; that it is no finding any more, tests of what was found show.
    let plan = |scheduler: &str| {
        let text = include_str!("found/boosted-siblings.toml").replace("\"credit\"", scheduler);
        Plan::new(&Scenario::parse(&text).unwrap(), &|_| Err(String::new())).unwrap()
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
