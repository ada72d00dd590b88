//! Synchronisation-aware scheduling over credit: it acts where siblings wait for longer than the ideal
//! scheduling interval, and only there.

#![cfg(test)]
#![allow(missing_docs, reason = "a test")]

use instep_sim::engine::Outcome;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::Plan;

/// Six vCPUs that block at barriers on six CPUs beside five VMs of as many that run this.
fn run(scheduler: &str, phase: &str, others: &str) -> Outcome {
    let text = format!(
        r#"scheduler = "{scheduler}"
        duration = "60s"
        host = {{ machine = "xen-6" }}
        guest = [{{ name = "a", vcpus = 6, memory = "1GiB",
                    load = "instep-load barrier --kind block --phase {phase}" }},
                 {{ name = "b", count = 5, vcpus = 6, memory = "1GiB", load = "{others}" }}]"#
    );
    Plan::new(&Scenario::parse(&text).unwrap(), &|_| Err(String::new())).unwrap().run()
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
fn nobody_is_boosted_where_no_wait_reaches_the_threshold() {
    // A CPU for each: they wait for each other's phases, of which none is longer than 180 ms, the threshold.
    assert_eq!(run("sync-aware", "30ms", "idle").host.boosts, Some(0));
}
