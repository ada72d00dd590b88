//! Every checker catches a scheduler that is broken in the way it is there for, and lets the sound one
//! pass.

#![cfg(test)]
#![allow(missing_docs, reason = "a test")]

mod robin;

use instep_check::{
    Conserved, Fact, FactKind, Promises, RuleWatch, ScheduleFinding, Share, WaitBound,
};
use instep_sim::check::check;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;
use robin::{Fault, MS, Robin};

fn plan(guests: &[(u32, &str, &str)]) -> SimulationPlan {
    let mut text = "about = \"it\"\nscheduler = \"cfs\"\nduration = \"2s\"\nwarmup = \"0s\"\n\
                    [host]\ncores = 2\nmemory = \"8GiB\"\nnoise = false\n"
        .to_owned();
    for (at, (vcpus, load, more)) in guests.iter().enumerate() {
        text.push_str(&format!(
            "[[guest]]\nname = \"g{at}\"\nvcpus = {vcpus}\nmemory = \"1GiB\"\n\
             load = \"{load}\"\n{more}\n"
        ));
    }
    SimulationPlan::new(&Scenario::parse(&text).unwrap(), &|_| Err(String::new())).unwrap()
}

/// The rule that this scheduler breaks on these guests.
fn rule(fault: Fault, promises: Promises, guests: &[(u32, &str, &str)]) -> Option<&'static str> {
    let checked = check(&plan(guests).setup, Robin::broken(fault), &promises, u64::MAX);
    checked.finding.map(|finding| finding.rule)
}

/// Broken in this way the rule is found broken; sound it is not.
fn shown(fault: Fault, promises: Promises, expected: &str, guests: &[(u32, &str, &str)]) {
    assert_eq!(rule(Fault::None, promises, guests), None, "the sound one");
    assert_eq!(rule(fault, promises, guests), Some(expected));
}

const SPIN: (u32, &str, &str) = (2, "spin", "");

#[test]
fn a_task_on_two_cpus_is_found() {
    shown(Fault::Twice, Promises::NONE, "conserved", &[SPIN, SPIN]);
}

#[test]
fn a_task_where_it_may_not_run_is_found() {
    let bound = (2, "spin", "allowed = \"1\"");
    shown(Fault::Anywhere, Promises::NONE, "affinity", &[bound, SPIN]);
}

#[test]
fn a_scheduler_that_is_thrown_out_is_found() {
    shown(Fault::Ejected, Promises::NONE, "ejected", &[SPIN, SPIN]);
}

#[test]
fn an_idle_cpu_beside_waiting_tasks_is_found() {
    let promises = Promises { idle: Some(20 * MS), ..Promises::NONE };
    shown(Fault::Lazy, promises, "idle", &[SPIN, SPIN]);
}

#[test]
fn a_starved_task_is_found() {
    let promises = Promises { turn: Some(5 * MS), ..Promises::NONE };
    shown(Fault::Unfair, promises, "wait", &[SPIN, SPIN]);
}

/// No vCPU that is entitled to an eighth of a CPU waits longer than 20 ms.
const BOUND: WaitBound = WaitBound { each: 20 * MS };

#[test]
fn a_vcpu_that_waits_beyond_its_bound_is_found() {
    let promises = Promises { wait_bound: Some(BOUND), ..Promises::NONE };
    shown(Fault::Unfair, promises, "wait", &[SPIN, SPIN]);
}

/// The millisecond in which a wait is found, where these tasks wait on the first CPU and the last of them runs.
fn late(cpus: usize, tasks: &[(usize, u32)], vms: usize, from: &[u32]) -> Option<u64> {
    let promises = Promises { wait_bound: Some(BOUND), ..Promises::NONE };
    let mut watch = RuleWatch::new(cpus, tasks, promises.checkers(vms, false));
    let mut see = |what| watch.see(&Fact { at: 0, what });
    from.iter().for_each(|task| see(FactKind::Wake { task: *task, cpu: 0 }).unwrap());
    see(FactKind::Start { task: *from.last().unwrap(), cpu: 0 }).unwrap();
    (1..200).find(|ms| watch.pass(ms * MS).is_err())
}

#[test]
fn a_vcpu_that_is_entitled_to_less_may_wait_longer() {
    // Two CPUs; VM 0 is tasks 0 and 1, VM 1 is task 2; task 3 is a thread of no VM.
    let few = [(0, 100), (0, 100), (1, 100), (2, 100)];
    assert_eq!(late(2, &few, 2, &[0, 2]), Some(21));
    assert_eq!(late(2, &few, 2, &[3, 2]), None, "a thread of no VM has no such bound");
    assert_eq!(late(2, &few, 2, &[0]), None, "a vCPU that runs does not wait");
    // Sixteen VMs of one vCPU on one CPU: each is entitled to a sixteenth.
    let many: Vec<(usize, u32)> = (0..16).map(|vm| (vm, 100)).collect();
    let all: Vec<u32> = (0..16).collect();
    assert_eq!(late(1, &many, 16, &all), Some(40));
}

#[test]
fn a_lost_wake_up_is_found() {
    let promises = Promises { woken: Some(4 * MS), ..Promises::NONE };
    let io = (2, "instep-load io --compute 200us --wait 50ms", "");
    shown(Fault::Deaf, promises, "woken", &[io]);
}

#[test]
fn vms_that_are_groups_share_by_vm_and_not_by_vcpu() {
    let text = "about = \"it\"\nscheduler = \"affinity\"\ntuning = { groups = true }\nduration = \"2s\"\nwarmup = \"0s\"\n\
                [host]\ncores = 1\nmemory = \"8GiB\"\nnoise = false\n\
                [[guest]]\nname = \"a\"\nvcpus = 2\nmemory = \"1GiB\"\nload = \"spin\"\n\
                [[guest]]\nname = \"b\"\nvcpus = 1\nmemory = \"1GiB\"\nload = \"spin\"\n";
    let plan =
        SimulationPlan::new(&Scenario::parse(text).unwrap(), &|_| Err(String::new())).unwrap();
    let share = plan.scheduler().promises().share.expect("it is promised");
    let rule = |share| {
        let promises = Promises { share: Some(share), ..Promises::NONE };
        check(&plan.setup, plan.scheduler(), &promises, u64::MAX).finding.map(|found| found.rule)
    };
    assert_eq!(rule(share), None);
    assert_eq!(rule(Share { by_vcpu: true, ..share }), Some("share"));
}

#[test]
fn unfair_shares_are_found() {
    let share = Share { percent: 10, slack: 30 * MS, ..Share::default() };
    let promises = Promises { share: Some(share), ..Promises::NONE };
    shown(Fault::Favour, promises, "share", &[SPIN, SPIN]);
}

#[test]
fn stacked_siblings_are_found_and_balance_has_none() {
    let promises = Promises { apart: true, ..Promises::NONE };
    let guests = [SPIN, (2, "instep-load barrier --phase 300us", ""), SPIN];
    assert_eq!(rule(Fault::Together, promises, &guests), Some("apart"));
    let plan = plan(&guests);
    let balance = instep_sim::sched::make("balance", &Default::default()).unwrap();
    assert!(balance.promises().apart);
    let checked = check(&plan.setup, balance, &promises, u64::MAX);
    assert_eq!(checked.finding, None);
}

fn see(facts: &[(u64, FactKind)]) -> Result<(), ScheduleFinding> {
    let mut watch = RuleWatch::new(2, &[(0, 100), (0, 100)], Promises::NONE.checkers(2, false));
    facts.iter().try_for_each(|(at, what)| watch.see(&Fact { at: *at, what: what.clone() }))
}

#[test]
fn recorded_nonsense_is_a_finding_and_no_panic() {
    let wake = |task, cpu| FactKind::Wake { task, cpu };
    assert_eq!(see(&[(1, wake(0, 1)), (1, FactKind::Start { task: 0, cpu: 0 })]), Ok(()));
    let rule = |facts: &[(u64, FactKind)]| see(facts).map_err(|finding| finding.rule);
    assert_eq!(rule(&[(5, wake(0, 0)), (4, wake(1, 0))]), Err("order"));
    assert_eq!(rule(&[(5, wake(2, 0))]), Err("order"));
    assert_eq!(rule(&[(5, wake(1, 2))]), Err("order"));
    assert_eq!(rule(&[(5, wake(1, 1)), (6, wake(1, 1))]), Err("conserved"));
    assert_eq!(rule(&[(5, FactKind::Stop { task: 0, cpu: 0, blocks: true })]), Err("conserved"));
    assert_eq!(rule(&[(u64::MAX, FactKind::Move { task: 0, cpu: 0 })]), Err("conserved"));
}

#[test]
fn an_account_that_disagrees_with_the_facts_is_found() {
    let mut watch = RuleWatch::new(1, &[(0, 100)], Vec::new());
    watch.see(&Fact { at: 0, what: FactKind::Wake { task: 0, cpu: 0 } }).unwrap();
    watch.see(&Fact { at: 10, what: FactKind::Start { task: 0, cpu: 0 } }).unwrap();
    watch.pass(30).unwrap();
    assert_eq!(Conserved::account(watch.picture(), &[20], &[20]), Ok(()));
    assert!(Conserved::account(watch.picture(), &[21], &[20]).is_err());
    assert!(Conserved::account(watch.picture(), &[20], &[19]).is_err());
}
