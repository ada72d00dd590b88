//! The first published figures as a check of sanity, not tuned: what the simulator must show on the
//! way to `instep reproduce`.

#![allow(missing_docs, reason = "a test")]

use instep_sim::engine::Outcome;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::Plan;

fn plan(text: &str) -> Plan {
    let scenario = Scenario::parse(text).unwrap_or_else(|fault| panic!("{fault:?}"));
    Plan::new(&scenario, &|_| Err(String::new())).unwrap_or_else(|fault| panic!("{fault:?}"))
}

fn run(text: &str) -> Outcome {
    plan(text).run()
}

fn xen(allowed: &str, threads: u32) -> String {
    format!(
        r#"about = "x"
        scheduler = "credit"
        duration = "10s"
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

#[test]
fn zero_to_sixteen_competes_for_modules_and_eight_to_eight_does_not() {
    for threads in 1..=16 {
        let conflict = run(&xen("16-31", threads)).competing_micro() as f64 / 1e6;
        let free = run(&xen("0-7,16-23", threads)).competing_micro() as f64 / 1e6;
        let clear = run(&xen("0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30", threads));
        println!("{threads:2} {conflict:.2} {free:.2} {}", clear.competing_micro());
    }
}

#[test]
fn stacking() {
    for vms in 1..=4 {
        let text = format!(
            r#"about = "x"
            scheduler = "cfs"
            duration = "30s"
            [host]
            cores = 4
            memory = "64GiB"
            [[guest]]
            name = "a"
            count = {vms}
            vcpus = 4
            memory = "1GiB"
            load = "spin"
            [[guest]]
            name = "qemu"
            count = {vms}
            vcpus = 1
            memory = "1MiB"
            load = "instep-load ping --period 10ms --burst 500us"
            "#
        );
        let outcome = run(&text);
        let stacked: Vec<_> = outcome.vms.iter().map(|vm| vm.2.sums.stacking()).collect();
        println!("{vms} {stacked:?} events {}", outcome.events);
    }
}
