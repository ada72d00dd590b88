//! Synchronisation-aware scheduling over credit: it acts where siblings wait for longer than the ideal
//! scheduling interval, and only there.

#![cfg(test)]
#![allow(missing_docs, reason = "a test")]

use instep_sim::engine::RunTotals;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;

/// Six vCPUs that block at barriers on six CPUs beside five VMs of as many that run this.
fn run(scheduler: &str, phase: &str, others: &str) -> RunTotals {
    let text = format!(
        r#"scheduler = "{scheduler}"
        duration = "60s"
        host = {{ machine = "xen-6" }}
        guest = [{{ name = "a", vcpus = 6, memory = "1GiB",
                    load = "instep-load barrier --kind block --phase {phase}" }},
                 {{ name = "b", count = 5, vcpus = 6, memory = "1GiB", load = "{others}" }}]"#
    );
    SimulationPlan::new(&Scenario::parse(&text).unwrap(), &|_| Err(String::new())).unwrap().run()
}

#[test]
fn bottlenecks_of_long_phases_are_boosted_and_the_vm_is_faster() {
    let (credit, sync_aware) = (run("credit", "30ms", "spin"), run("sync-aware", "30ms", "spin"));
    assert_eq!(credit.host.boosts, None);
    assert!(sync_aware.host.boosts > Some(20), "{:?}", sync_aware.host.boosts);
    let (slow, fast) = (credit.throughput_milli(0), sync_aware.throughput_milli(0));
    assert!(fast as f64 > slow as f64 * 1.01, "{slow} {fast}");
}

#[test]
fn no_vcpu_is_boosted_where_no_wait_reaches_the_threshold() {
    // A CPU for each: they wait for each other's phases, of which none is longer than 180 ms, the threshold.
    assert_eq!(run("sync-aware", "30ms", "idle").host.boosts, Some(0));
}

/// By how many per cent npb/sp, whose threads block, is faster under sync-aware than under credit beside so
/// many VMs that compute: means of sixteen seeds.
fn gain(others: u32) -> f64 {
    let units = |scheduler: &str, tuning: &str| -> u64 {
        let one = |seed: u32| {
            let text = format!(
                r#"scheduler = "{scheduler}"
                seed = {seed}
                duration = "20s"
                tuning = {{ {tuning} }}
                host = {{ machine = "xen-6" }}
                guest = [{{ name = "a", vcpus = 6, memory = "1GiB", load = "npb/sp --kind block" }},
                         {{ name = "b", count = {others}, vcpus = 6, memory = "1GiB", load = "spin" }}]"#
            );
            let plan =
                SimulationPlan::new(&Scenario::parse(&text).unwrap(), &|_| Err(String::new()));
            plan.unwrap().run().throughput_milli(0)
        };
        (1..=16).map(one).sum()
    };
    let (slow, fast) = (units("credit", ""), units("sync-aware", "quantum = \"10ms\""));
    (fast as f64 / slow as f64 - 1.0) * 100.0
}

#[test]
fn gain_over_credit_rises_as_the_weight_falls() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    // Published: up to 49 % at a weight of 16.66 %. Wanted here: 15 to 60 %.
    let gains = [1, 3, 5].map(gain);
    println!("at weights of 50, 25 and 16.66 %: {gains:?}");
    assert!(gains.is_sorted() && gains[0] < 5.0, "{gains:?}");
    assert!((15.0..=60.0).contains(&gains[2]), "{gains:?}");
}
