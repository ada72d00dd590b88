//! Placement above schedulers: core's policies in a simulated host, and affinities that change while
//! all goes on.

#![allow(missing_docs, reason = "a test")]
#![expect(clippy::unwrap_used, reason = "all of this is a test, which fails by a panic")]

use instep_check::mask::Mask;
use instep_sim::check::check;
use instep_sim::context::{TaskId, TaskState};
use instep_sim::engine::{Engine, RunTotals};
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;
use instep_sim::sched;

const MS: u64 = 1_000_000;

fn parsed(text: &str) -> Result<SimulationPlan, String> {
    let scenario = Scenario::parse(text).map_err(|fault| fault.what)?;
    SimulationPlan::new(&scenario, &|_| Err(String::new())).map_err(|fault| fault.what)
}

/// Two nodes of four cores with two threads, and guests.
fn plan(scheduler: &str, placement: &str, guests: &str) -> SimulationPlan {
    let text = format!(
        "about = \"it\"\nscheduler = \"{scheduler}\"\nduration = \"4s\"\nwarmup = \"3s\"\n\
         placement = \"{placement}\"\nplacement_period = \"1s\"\n[host]\nnodes = 2\ncores = 4\n\
         threads = 2\nmemory = \"64GiB\"\nnoise = false\n{guests}"
    );
    parsed(&text).unwrap()
}

fn guest(name: &str, vcpus: u32, more: &str) -> String {
    format!(
        "[[guest]]\nname = \"{name}\"\nvcpus = {vcpus}\nmemory = \"512MiB\"\nload = \"spin\"\n\
         profile = \"chase\"\n{more}\n"
    )
}

/// Part of a VM's CPU time next to its memory.
fn locality(outcome: &RunTotals, vm: usize) -> f64 {
    let tally = &outcome.vms[vm].2;
    tally.local as f64 / (tally.sums.running as f64 * 1024.0)
}

#[test]
fn locality_is_of_the_memory_by_where_the_vcpus_ran() {
    for (allowed, expected) in [("0-7", 1.0), ("8-15", 0.0), ("0-15", 0.5)] {
        let more = format!("start = {{ memory_node = 0 }}\nallowed = \"{allowed}\"");
        let found = locality(&plan("cfs", "none", &guest("a", 16, &more)).run(), 0);
        assert!((found - expected).abs() < 0.02, "{allowed}: {found}");
    }
}

#[test]
fn bnn_puts_vms_where_their_memory_is() {
    let home = |node: u32| format!("start = {{ memory_node = {node} }}");
    let guests: String =
        (0..4u32).map(|at| guest(&format!("g{at}"), 4, &home(at.div_ceil(2) % 2))).collect();
    for scheduler in ["cfs", "eevdf", "instep", "pm"] {
        let outcome = plan(scheduler, "bnn", &guests).run();
        for vm in 0..4 {
            let local = locality(&outcome, vm);
            assert!(local > 0.99, "over {scheduler}: VM {vm} {local}");
        }
    }
    let left = plan("cfs", "none", &guests).run();
    assert!((0..4).any(|vm| locality(&left, vm) < 0.9), "it is placement that does it");
    let mean = |outcome: &RunTotals| (0..4).map(|vm| locality(outcome, vm)).sum::<f64>() / 4.0;
    let (own, left) = (mean(&plan("cfs", "instep", &guests).run()), mean(&left));
    assert!(own > left, "instep's policy {own}, without any {left}");
}

#[test]
fn memory_that_lies_elsewhere_comes_home_at_a_price() {
    let guests = guest("a", 4, "") + &guest("b", 4, "");
    for vm in 0..2 {
        let before = locality(&plan("cfs", "bind", &guests).run(), vm);
        assert!((before - 0.5).abs() < 0.01, "bind moves no memory: {before}");
        let after = locality(&plan("cfs", "bnn", &guests).run(), vm);
        assert!(after > 0.95, "{after}");
    }
}

#[test]
fn spread_uses_one_cpu_of_each_core() {
    let guests = guest("a", 4, "allowed = \"0-7\"\nprofile = \"fetch\"").replacen(
        "profile = \"chase\"\n",
        "",
        1,
    );
    let competing = |policy| plan("credit", policy, &guests).run().competing_micro();
    assert_eq!(competing("spread"), 0);
}

#[test]
fn a_seed_fixes_placement_too() {
    let guests = guest("a", 6, "") + &guest("b", 6, "") + &guest("c", 6, "");
    let run = || plan("instep", "instep", &guests).run();
    assert_eq!(run(), run());
}

#[test]
fn every_scheduler_follows_affinities_that_change() {
    let load = "load = \"instep-load lock --hold 20us --think 300us\"";
    let guests = guest("a", 4, "").replace("load = \"spin\"", load) + &guest("b", 3, "");
    for name in sched::NAMES.into_iter().filter(|name| *name != "affinity") {
        let plan = plan(name, "none", &guests);
        let mut engine = Engine::new(plan.setup.clone(), plan.scheduler());
        engine.begin();
        let cpus = plan.setup.host.cpus();
        for turn in 0..40usize {
            while engine.advance((turn as u64 + 1) * 20 * MS) {
                for (at, task) in engine.ctx().tasks.iter().enumerate() {
                    assert!(
                        task.state != TaskState::Running || task.allowed.has(task.cpu),
                        "{name}: task {at} runs on CPU {} at {}",
                        task.cpu,
                        engine.now()
                    );
                }
            }
            let first = turn * 5 % cpus;
            let mask = Mask::of(cpus, [first, (first + turn) % cpus]);
            engine.set_affinity(TaskId((turn % 7) as u32), &mask);
        }
    }
}

#[test]
fn schedulers_keep_their_promises_under_placement() {
    let guests = guest("a", 6, "") + &guest("b", 3, "weight = 300") + &guest("c", 2, "");
    for scheduler in ["cfs", "eevdf", "credit", "balance", "instep", "pm"] {
        for policy in ["bnn", "instep", "bind", "spread"] {
            let mut plan = plan(scheduler, policy, &guests);
            plan.setup.placement.as_mut().unwrap().period = 150 * MS;
            plan.setup.duration = 1500 * MS;
            plan.setup.warmup = 0;
            let promises = plan.scheduler().promises();
            let checked = check(&plan.setup, plan.scheduler(), &promises, u64::MAX);
            assert_eq!(checked.finding, None, "{policy} over {scheduler}");
        }
    }
}

#[test]
fn fixed_places_follow_affinities_that_change_under_running_task() {
    // Found by swarms: seed 77, run 173, and seed 1, run 38.
    for (scheduler, policy, nodes, cores) in
        [("period", "bind", 2, 1), ("strict", "spread", 1, 2), ("strict", "bind", 2, 2)]
    {
        let text = format!(
            "about = \"it\"\nscheduler = \"{scheduler}\"\nduration = \"300ms\"\nwarmup = \"0s\"\n\
             placement = \"{policy}\"\nplacement_period = \"79ms\"\n[host]\nnodes = {nodes}\n\
             cores = {cores}\nthreads = 2\nmemory = \"64GiB\"\nnoise = false\n[[guest]]\n\
             name = \"g\"\nvcpus = 2\nmemory = \"1GiB\"\nload = \"spin\"\n"
        );
        let finding = parsed(&text).unwrap().check(u64::MAX).finding;
        assert_eq!(finding, None, "{scheduler}, {policy}");
    }
}

#[test]
fn what_cannot_be_placed_is_refused() {
    let text = |scheduler: &str, placement: &str, period: &str| {
        parsed(&format!(
            "about = \"it\"\nscheduler = \"{scheduler}\"\nduration = \"1s\"\n\
             placement = \"{placement}\"\nplacement_period = \"{period}\"\n[host]\ncores = 2\n\
             memory = \"8GiB\"\n{}",
            guest("a", 2, "")
        ))
    };
    assert!(text("cfs", "bnn", "60s").is_ok());
    for (scheduler, placement, period, word) in [
        ("cfs", "best", "60s", "known are instep, bnn"),
        ("affinity", "bind", "60s", "affinity is a placement: it binds each vCPU to one CPU, once"),
        ("cfs", "bnn", "0", "placement_period"),
        ("cfs", "bnn", "1us", "at least 1ms"),
    ] {
        let error = text(scheduler, placement, period).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
}
