//! The first published figures as a check of sanity, not tuned: what the simulator must show on the
//! way to `instep reproduce`.

#![allow(missing_docs, reason = "a test")]

use instep_sim::engine::RunTotals;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;

fn plan(text: &str) -> SimulationPlan {
    let scenario = Scenario::parse(text).unwrap_or_else(|fault| panic!("{fault:?}"));
    SimulationPlan::new(&scenario, &|_| Err(String::new()))
        .unwrap_or_else(|fault| panic!("{fault:?}"))
}

fn run(text: &str) -> RunTotals {
    plan(text).run()
}

fn xen(allowed: &str, threads: u32) -> String {
    format!(
        r#"about = "x"
        scheduler = "credit"
        duration = "3s"
        [host]
        nodes = 4
        sockets = 2
        cores = 8
        threads = 2
        memory = "64GiB"
        machine = "opteron-6376"
        [[guest]]
        name = "a"
        vcpus = 16
        memory = "8GiB"
        load = "instep-load fib 48 --threads {threads}"
        allowed = "{allowed}"
        prefer_nodes = [0, 2]
        "#
    )
}

fn competing(allowed: &str, threads: u32) -> f64 {
    run(&xen(allowed, threads)).competing_micro() as f64 / 1e6
}

#[test]
fn with_0_16_modules_compete_from_4_to_8_and_from_12_to_16_threads() {
    let shape: Vec<f64> = [1, 4, 6, 8, 10, 12, 14, 16].map(|n| competing("16-31", n)).to_vec();
    for (found, published) in shape.iter().zip([0.0, 0.0, 2.0, 4.0, 4.0, 4.0, 6.0, 8.0]) {
        assert!((found - published).abs() < 0.3, "{shape:?}");
    }
}

#[test]
fn with_8_8_no_module_competes_up_to_8_threads() {
    let shape: Vec<f64> = [4, 8, 12, 16].map(|n| competing("0-7,16-23", n)).to_vec();
    for (found, published) in shape.iter().zip([0.0, 0.0, 4.0, 8.0]) {
        assert!((found - published).abs() < 0.3, "{shape:?}");
    }
}

#[test]
fn with_one_cpu_of_each_module_none_competes() {
    let even = "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30";
    // The host's own threads run on the other CPU of each module now and then.
    assert!(competing(even, 16) < 0.15, "{}", competing(even, 16));
}

/// The VM of systems.md 5 on half the host; a unit is a millisecond.
fn iterations(serial: &str, parts: &str) -> u64 {
    let text = format!(
        r#"about = "2 sequential and 4 parallel units, a period of 12, half the host"
        scheduler = "period"
        tuning = {{ period = "12ms" }}
        duration = "12s"
        warmup = "1200ms"
        [host]
        cores = 4
        memory = "8GiB"
        machine = "ideal"
        [[guest]]
        name = "a"
        vcpus = 4
        memory = "1GiB"
        parts = {parts}
        load = "instep-load serial --parallel 4ms --sequential 2ms --serial {serial}"
        [[guest]]
        name = "b"
        vcpus = 4
        memory = "1GiB"
        load = "spin"
        "#
    );
    run(&text).vms[0].2.units
}

#[test]
fn two_iterations_period_with_equal_slices_and_four_when_matched() {
    let periods = 1000;
    assert_eq!(iterations("fixed", "[1, 1, 1, 1]"), 2 * periods);
    assert_eq!(iterations("fixed", "[12, 4, 4, 4]"), 4 * periods);
    assert_eq!(iterations("rotating", "[1, 1, 1, 1]"), 4 * periods);
}

/// Mean part of the time with siblings in one queue, over VMs and seeds, in thousandths; `work` are the numbers of the host's own
/// threads.
fn stacking(scheduler: &str, vms: u32, work: &str) -> u64 {
    let seeds = 6;
    let mut sum = 0;
    for seed in 1..=seeds {
        let text = format!(
            r#"about = "4-vCPU VMs on 4 CPUs, all vCPUs busy, and what a host does besides"
            seed = {seed}
            scheduler = "{scheduler}"
            duration = "20s"
            [host]
            machine = "kvm-4"
            {work}
            [[guest]]
            name = "a"
            count = {vms}
            vcpus = 4
            memory = "1GiB"
            load = "spin"
            "#
        );
        let outcome = run(&text);
        let vms = outcome.vms.iter().take(vms as usize);
        sum += vms.map(|vm| vm.2.sums.stacking().0).sum::<u64>();
    }
    sum / seeds / u64::from(vms)
}

#[test]
fn siblings_stack_under_cfs_in_time_and_never_under_balance() {
    let long = "numbers.noise = { roaming = \"20ms\", wait = \"200ms\" }";
    let two = ["", long].map(|work| stacking("cfs", 2, work));
    println!("two VMs stacked, thousandths: {two:?}; published 431");
    // Loads that come and go between two ticks move nothing.
    assert!(two[0] < 50 && two[1] > 200 && two[1] < 900, "{two:?}");
    assert_eq!([1, 2, 3].map(|vms| stacking("balance", vms, "")), [0, 0, 0]);
    assert_eq!(stacking("balance", 2, long), 0);
}
