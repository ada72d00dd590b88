//! A small swarm of all schedulers finds nothing. `instep sim --swarm 2000` is the large one.

#![allow(missing_docs, reason = "a test")]

use instep_sim::swarm::Swarm;

#[test]
fn a_small_swarm_of_all_schedulers_finds_nothing() {
    let swarm = Swarm { runs: 33, seed: 1, scheduler: None };
    let sum = swarm.run(&|| (), &|| false).unwrap();
    let found: Vec<String> = sum.found.iter().map(|found| found.text(1)).collect();
    assert_eq!((sum.runs, found), (33, Vec::<String>::new()));
}
