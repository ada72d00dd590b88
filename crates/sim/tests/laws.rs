//! Laws that hold for every scheduler on any scenario: CPU time is conserved, affinities are kept,
//! no task runs twice, and a seed fixes a run to the byte. Rules that only some promise: `swarm.rs`.

#![allow(missing_docs, reason = "a test")]

use instep_sim::context::{SchedContext, TaskState};
use instep_sim::engine::Engine;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;
use instep_sim::swarm::Swarm;
use proptest::prelude::*;

/// A random scenario, as text.
fn drawn() -> impl Strategy<Value = String> {
    let swarm = Swarm { runs: 0, seed: 1, scheduler: None };
    (0u64..100_000).prop_map(move |run| swarm.draft(run).text("drawn"))
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
        let plan = plan(&drawn);
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
        let plan = plan(&drawn);
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
            let report = plan(&drawn).report().unwrap();
            serde_json::to_string(&report).unwrap()
        };
        prop_assert_eq!(json(), json());
    }
}
