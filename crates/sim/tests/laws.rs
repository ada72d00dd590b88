//! Laws that hold for every scheduler on any scenario: CPU time is conserved, affinities are kept,
//! nobody runs twice, no CPU idles for long beside work it may do where that is promised, and a seed
//! fixes a run to the byte.

#![allow(missing_docs, reason = "a test")]

use instep_sim::context::{SchedContext, TaskState};
use instep_sim::engine::Engine;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;
use instep_sim::sched;
use proptest::prelude::*;

/// A scenario drawn by proptest, as text.
#[derive(Clone, Debug)]
struct Drawn {
    text: String,
}

const LOADS: [&str; 12] = [
    "spin",
    "idle",
    "instep-load barrier --kind block --phase 200us --imbalance 30%",
    "instep-load barrier --kind spin --phase 300us",
    "instep-load barrier --kind spin-block --phase 100us --imbalance 10%",
    "instep-load serial --parallel 4ms --sequential 1ms --serial rotating",
    "instep-load lock --hold 20us --think 40us",
    "instep-load lock --kind kernel-spin --hold 20us --think 40us",
    "instep-load fib 30",
    "instep-load pipeline --stage 80us",
    "instep-load ping --period 3ms --burst 100us",
    "instep-load io --threads 6 --float --compute 200us --wait 500us",
];

fn drawn() -> impl Strategy<Value = Drawn> {
    let guest = (1u32..6, 0usize..LOADS.len(), 50u32..200, 0u8..4, 0usize..3);
    let host = (1u32..3, 1u32..5, 1u32..3, 0usize..sched::NAMES.len(), 0u64..1000);
    (host, proptest::collection::vec(guest, 1..5)).prop_map(|(host, guests)| {
        let (nodes, cores, threads, scheduler, seed) = host;
        let mut text = format!(
            "about = \"drawn\"\nseed = {seed}\nscheduler = \"{}\"\nduration = \"200ms\"\n\
             warmup = \"0s\"\n[host]\nnodes = {nodes}\ncores = {cores}\nthreads = {threads}\n\
             memory = \"64GiB\"\n",
            sched::NAMES[scheduler]
        );
        for (at, (vcpus, load, weight, pin, profile)) in guests.into_iter().enumerate() {
            let profile = ["plain", "fetch", "chase"][profile];
            text.push_str(&format!(
                "[[guest]]\nname = \"g{at}\"\nvcpus = {vcpus}\nmemory = \"1GiB\"\n\
                 weight = {weight}\nload = \"{}\"\nprofile = \"{profile}\"\n",
                LOADS[load]
            ));
            match pin {
                0 => text.push_str("allowed = \"0\"\n"),
                1 => text.push_str("prefer_nodes = [0]\n"),
                _ => {}
            }
        }
        Drawn { text }
    })
}

fn plan(text: &str) -> SimulationPlan {
    let scenario = Scenario::parse(text).unwrap_or_else(|fault| panic!("{fault:?}\n{text}"));
    SimulationPlan::new(&scenario, &|_| Err(String::new()))
        .unwrap_or_else(|fault| panic!("{fault:?}\n{text}"))
}

/// What must hold between two events.
fn check(ctx: &SchedContext) {
    let mut queued = vec![0; ctx.host.cpus()];
    for (at, task) in ctx.tasks.iter().enumerate() {
        if task.state != TaskState::Blocked {
            queued[task.cpu] += 1;
        }
        let on: Vec<_> = (0..ctx.host.cpus())
            .filter(|cpu| ctx.current(*cpu).is_some_and(|current| current.ix() == at))
            .collect();
        match task.state {
            TaskState::Running => {
                assert_eq!(on, [task.cpu], "task {at} runs on one CPU, its own");
                assert!(task.allowed.has(task.cpu), "task {at} runs where it may not");
            }
            _ => assert!(on.is_empty(), "task {at} is not running and yet on {on:?}"),
        }
    }
    for (cpu, count) in queued.iter().enumerate() {
        assert_eq!(ctx.load(cpu), *count, "CPU {cpu} counts its queue");
        assert_eq!(ctx.idle.has(cpu), ctx.current(cpu).is_none(), "CPU {cpu} knows if it idles");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn affinities_are_kept_and_no_task_runs_twice(drawn in drawn()) {
        let plan = plan(&drawn.text);
        let mut engine = Engine::new(plan.setup.clone(), plan.scheduler());
        engine.begin();
        for _ in 0..20_000 {
            if !engine.advance(200_000_000) {
                break;
            }
            check(engine.ctx());
        }
    }

    #[test]
    fn cpu_time_is_conserved(drawn in drawn()) {
        let plan = plan(&drawn.text);
        let outcome = plan.run();
        let busy: u64 = outcome.host.busy.iter().sum();
        let ran: u64 = outcome.vms.iter().map(|vm| vm.2.sums.running).sum();
        prop_assert_eq!(busy, ran + outcome.host.own);
        prop_assert!(outcome.host.busy.iter().all(|busy| *busy <= outcome.duration));
        for (name, _, tally) in &outcome.vms {
            prop_assert!(tally.progress + tally.spun <= tally.sums.running, "{}", name);
            prop_assert_eq!(tally.sums.elapsed, outcome.duration);
        }
    }

    #[test]
    fn a_seed_fixes_a_run_to_the_byte(drawn in drawn()) {
        let json = || {
            let report = plan(&drawn.text).report().unwrap();
            serde_json::to_string(&report).unwrap()
        };
        prop_assert_eq!(json(), json());
    }

    #[test]
    fn no_cpu_idles_for_long_beside_work_it_may_do(drawn in drawn()) {
        let plan = plan(&drawn.text);
        let scheduler = plan.scheduler();
        prop_assume!(scheduler.work_conserving());
        // Every CPU looks for work on a tick, one for its group in a span; give it some.
        let patience = 8 * scheduler.tick_period() + 100_000_000;
        let mut engine = Engine::new(plan.setup.clone(), scheduler);
        engine.begin();
        let mut since = vec![0; plan.setup.host.cpus()];
        while engine.advance(200_000_000) {
            let ctx = engine.ctx();
            for (cpu, since) in since.iter_mut().enumerate() {
                let waits = |task: &instep_sim::context::Task| {
                    task.state == TaskState::Queued
                        && task.allowed.has(cpu)
                        && ctx.load(task.cpu) > 1
                };
                if !ctx.idle.has(cpu) || !ctx.tasks.iter().any(waits) {
                    *since = ctx.now;
                }
                prop_assert!(ctx.now - *since <= patience, "CPU {} at {}", cpu, ctx.now);
            }
        }
    }
}
