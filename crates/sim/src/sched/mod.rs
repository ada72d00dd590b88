//! Hypervisor schedulers: one interface, and a module for each published set of rules.
//!
//! The engine tells what happened and asks what shall run; it never decides. Order of calls for a
//! task: `wake`, then `pick` and `put` in turn, then `block`. A task that `pick` returned is out of
//! the scheduler's queues until `put`. `tick` comes on every CPU each [`Scheduler::tick_period`],
//! idle ones too.

pub mod affinity;
pub mod balance;
pub mod cfs;
pub mod credit;
pub mod eevdf;
pub mod instep;
pub mod period;
pub mod pm;
pub mod relaxed;
pub mod strict;
pub mod sync_aware;

use crate::context::{SchedContext, StopReason, TaskId, Waker};
use crate::host::Host;
use instep_check::Promises;
use std::collections::BTreeMap;
use std::fmt;

/// What shall run, and for how long at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The task.
    pub task: TaskId,
    /// Nanoseconds from now after which the CPU chooses again; `u64::MAX` for no end.
    pub slice: u64,
}

/// What Xen's debug key `r` prints of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its priority: 0 is BOOST, -1 UNDER, -2 OVER.
    pub pri: i32,
    /// Its credits.
    pub credit: i64,
    /// Whether it is parked: its VM has used more than its cap allows.
    pub is_parked: bool,
}

/// A hypervisor's scheduler.
pub trait Scheduler: fmt::Debug + Send {
    /// Its name, as in scenarios.
    fn name(&self) -> &'static str;

    /// Called once; all tasks are blocked. May arm timers and narrow affinities.
    fn start(&mut self, ctx: &mut SchedContext);

    /// A blocked task became runnable: choose its CPU ([`SchedContext::assign`]), put it into a queue, ask
    /// for CPUs to choose again ([`SchedContext::resched`]). Its state is `Queued` already.
    fn wake(&mut self, ctx: &mut SchedContext, task: TaskId, by: Waker);

    /// The task that ran on `cpu` blocks. It is charged up to now and `Blocked` already.
    fn block(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId);

    /// The task that ran on `cpu` is runnable still: put it back into a queue. It is charged up to
    /// now and `Queued` already. [`Scheduler::pick`] follows at once.
    fn put(&mut self, ctx: &mut SchedContext, cpu: usize, task: TaskId, why: StopReason);

    /// What shall run on `cpu`: a queued task, which leaves its queue and is assigned to `cpu`.
    fn pick(&mut self, ctx: &mut SchedContext, cpu: usize) -> Option<Pick>;

    /// The CPU's clock tick.
    fn tick(&mut self, ctx: &mut SchedContext, cpu: usize);

    /// Nanoseconds between two ticks of a CPU.
    fn tick_period(&self) -> u64;

    /// When a CPU's first tick comes, nanoseconds. Those of all CPUs come together, as in Linux without
    /// `skew_tick`, unless a scheduler says otherwise.
    fn first_tick(&self, _ctx: &mut SchedContext) -> u64 {
        self.tick_period()
    }

    /// Nanoseconds from a CPU's tick to its next one.
    fn next_tick(&self, _ctx: &mut SchedContext) -> u64 {
        self.tick_period()
    }

    /// Its quantum on a host of so many CPUs, for the model of Lag (systems.md, 2): nanoseconds that
    /// a chosen task runs while others wait. Asked before it is started. Without one of its own, CFS's
    /// on 8 CPUs.
    fn quantum(&self, _cpus: usize) -> u64 {
        3_000_000
    }

    /// A timer that was armed with [`SchedContext::arm`] is due.
    fn timer(&mut self, _ctx: &mut SchedContext, _id: u32) {}

    /// Placement changed what a task may or should use, which is in [`SchedContext`] already. It may be
    /// running or queued where it may not be any more.
    fn affinity_changed(&mut self, ctx: &mut SchedContext, task: TaskId);

    /// The thread of a vCPU began to wait for siblings (futex_wait), seen from outside the guest.
    fn sync_wait(&mut self, _ctx: &mut SchedContext, _task: TaskId) {}

    /// A vCPU of this VM woke its siblings (futex_wake).
    fn sync_wake(&mut self, _ctx: &mut SchedContext, _vm: usize) {}

    /// Whether it has room for this host and for VMs of so many vCPUs.
    ///
    /// # Errors
    /// Why not.
    fn fits(&self, _host: &Host, _vcpus: &[usize]) -> Result<(), String> {
        Ok(())
    }

    /// Whether cgroups lie within others, and have quotas and idle classes ([`SchedContext::cgroups`]).
    fn keeps_cgroups(&self) -> bool {
        false
    }

    /// Whether VMs have caps ([`VmTasks::cap`](crate::context::VmTasks::cap)).
    fn keeps_caps(&self) -> bool {
        false
    }

    /// Credits and priority of a task, for schedulers that have them.
    fn standing(&self, _task: TaskId) -> Option<Standing> {
        None
    }

    /// A blocked task of a VM that is gone has ended.
    fn ends(&mut self, _ctx: &mut SchedContext, _task: TaskId) {}

    /// Placement says on which node, an index, a VM is at home; on none with `None`.
    fn set_home(&mut self, _vm: usize, _node: Option<u32>) {}

    /// How often it put those first who hold their VM up; none for who does not look for them.
    fn boosts(&self) -> Option<u64> {
        None
    }

    /// Why it does not schedule any more, if the host threw it out.
    fn failed(&self) -> Option<String> {
        None
    }

    /// Whether tasks are threads on the bare machine: no exits, no halts, no directed yields.
    fn bare_metal(&self) -> bool {
        false
    }

    /// Whether no CPU may be idle while a task that may use it waits, at the latest one tick
    /// later.
    fn work_conserving(&self) -> bool {
        true
    }

    /// What else it promises, and with which times.
    fn promises(&self) -> Promises {
        Promises::usual(self.work_conserving(), self.tick_period())
    }
}

/// Names of all schedulers, as scenarios use them.
pub const NAMES: [&str; 11] = [
    "credit",
    "sync-aware",
    "cfs",
    "balance",
    "affinity",
    "strict",
    "relaxed",
    "eevdf",
    "period",
    "pm",
    "instep",
];

/// What of a scheduler differs from what was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunedValue {
    /// A time, nanoseconds.
    Time(u64),
    /// Whether a rule is followed.
    Switch(bool),
}

/// What of a scheduler differs from what was published, by name.
pub type Tuning = BTreeMap<String, TunedValue>;

/// Takes what is known of a tuning.
struct Tuner<'a> {
    scheduler: &'a str,
    left: Tuning,
    known: Vec<&'static str>,
    /// A value that cannot be, and why.
    wrong: Option<String>,
}

/// Linux's numbers grow with the CPUs, up to eight (sched_tunable_scaling): by this factor.
fn scaling(cpus: usize) -> u64 {
    1 + u64::from(cpus.clamp(1, 8).ilog2())
}

/// The shortest time that may pass between two of a scheduler's own doings, nanoseconds: with less a
/// run does little else.
const LEAST: u64 = 100_000;

impl Tuner<'_> {
    fn set(&mut self, name: &'static str, value: &mut u64) {
        self.known.push(name);
        match self.left.remove(name) {
            None => {}
            Some(TunedValue::Time(given)) => *value = given.max(1),
            Some(TunedValue::Switch(given)) => {
                self.wrong =
                    Some(format!("tuning: {name} = {given}: it is a time such as \"3ms\""));
            }
        }
    }

    fn switch(&mut self, name: &'static str, value: &mut bool) {
        self.known.push(name);
        match self.left.remove(name) {
            None => {}
            Some(TunedValue::Switch(given)) => *value = given,
            Some(TunedValue::Time(given)) => {
                self.wrong = Some(format!("tuning: {name} = {given}ns: it is true or false"));
            }
        }
    }

    /// The same for a time between two ticks, looks or turns.
    fn pace(&mut self, name: &'static str, value: &mut u64) {
        self.paced(name);
        self.set(name, value);
    }

    /// A time that paces the scheduler is not too short.
    fn paced(&mut self, name: &str) {
        if let Some(TunedValue::Time(given @ ..LEAST)) = self.left.get(name) {
            let least = LEAST / 1000;
            self.wrong = Some(format!("tuning: {name} = {given}ns: it is {least}us at least"));
        }
    }

    fn finish(self) -> Result<(), String> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let Some((name, _)) = self.left.first_key_value() else { return Ok(()) };
        let known = self.known.join(", ");
        Err(format!("tuning: {} has no {name}; known are: {known}", self.scheduler))
    }
}

/// The scheduler of this name, with its published numbers but for `tuning`.
///
/// # Errors
/// When the name or a number's name is not known.
pub fn make(name: &str, tuning: &Tuning) -> Result<Box<dyn Scheduler>, String> {
    let mut tuner = Tuner { scheduler: name, left: tuning.clone(), known: Vec::new(), wrong: None };
    let scheduler: Box<dyn Scheduler> = match name {
        "credit" => Box::new(credit::Credit::new(credit_rules(&mut tuner))),
        "sync-aware" => {
            let (mut quantum, mut own) = (0, false);
            let rules = credit_rules(&mut tuner);
            tuner.pace("quantum", &mut quantum);
            tuner.switch("threshold.own", &mut own);
            let quantum = Some(quantum).filter(|given| *given > 0);
            let threshold = sync_aware::Threshold { quantum, own };
            Box::new(sync_aware::SyncAware::new(rules, threshold))
        }
        "cfs" => Box::new(cfs::Cfs::new(cfs_rules(&mut tuner))),
        "balance" => Box::new(balance::new(cfs_rules(&mut tuner))),
        "affinity" => {
            let mut rules = cfs_rules(&mut tuner);
            tuner.switch("groups", &mut rules.has_groups);
            Box::new(affinity::new(rules))
        }
        "pm" => Box::new(pm::new(cfs_rules(&mut tuner))),
        "strict" => {
            let mut rules = strict::StrictTuning::default();
            tuner.pace("slice", &mut rules.slice);
            Box::new(strict::Strict::new(rules))
        }
        "relaxed" => {
            let mut rules =
                relaxed::RelaxedTuning { cfs: cfs_rules(&mut tuner), ..Default::default() };
            tuner.set("threshold", &mut rules.threshold);
            tuner.pace("period", &mut rules.period);
            Box::new(relaxed::Relaxed::new(rules))
        }
        "eevdf" => {
            let mut rules = eevdf::EevdfTuning::default();
            tuner.pace("slice", &mut rules.slice);
            tuner.pace("tick", &mut rules.tick);
            tuner.set("hrtick", &mut rules.hrtick);
            tuner.switch("lazy", &mut rules.is_lazy);
            Box::new(eevdf::Eevdf::new(rules))
        }
        "instep" => {
            ["slice", "period", "tick"].iter().for_each(|name| tuner.paced(name));
            Box::new(instep::Instep::new(instep::InstepTuning::tuned(&mut tuner)))
        }
        "period" => {
            let mut rules = period::PeriodTuning::default();
            tuner.pace("period", &mut rules.period);
            Box::new(period::Period::new(rules))
        }
        _ => return Err(format!("scheduler {name}: known are {}", NAMES.join(", "))),
    };
    tuner.finish().map(|()| scheduler)
}

fn credit_rules(tuner: &mut Tuner<'_>) -> credit::CreditTuning {
    let mut rules = credit::CreditTuning::default();
    tuner.pace("slice", &mut rules.slice);
    tuner.set("ratelimit", &mut rules.ratelimit);
    let mut slop = 0;
    tuner.set("slop", &mut slop);
    rules.slop = Some(slop).filter(|given| *given > 0);
    rules
}

fn cfs_rules(tuner: &mut Tuner<'_>) -> cfs::CfsTuning {
    let mut rules = cfs::CfsTuning::default();
    tuner.set("latency", &mut rules.latency);
    tuner.set("min_granularity", &mut rules.min_granularity);
    tuner.set("wakeup_granularity", &mut rules.wakeup_granularity);
    tuner.set("migration_cost", &mut rules.migration_cost);
    tuner.pace("tick", &mut rules.tick);
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_makes_a_scheduler_of_that_name() {
        for name in NAMES {
            assert_eq!(make(name, &Tuning::new()).unwrap().name(), name);
        }
    }

    #[test]
    fn times_that_pace_a_scheduler_have_a_least_value() {
        let of = |scheduler, name: &str, ns| {
            make(scheduler, &[(name.to_owned(), TunedValue::Time(ns))].into())
        };
        for (scheduler, name) in [
            ("cfs", "tick"),
            ("credit", "slice"),
            ("sync-aware", "slice"),
            ("relaxed", "period"),
            ("strict", "slice"),
            ("eevdf", "slice"),
            ("period", "period"),
            ("instep", "tick"),
            ("instep", "slice"),
        ] {
            let refused = of(scheduler, name, 99_999).unwrap_err();
            assert!(
                refused.contains(&format!("{name} = 99999ns: it is 100us at least")),
                "{refused}"
            );
            assert!(of(scheduler, name, 100_000).is_ok(), "{scheduler} {name}");
        }
    }

    #[test]
    fn switch_is_no_time_and_a_time_is_no_switch() {
        let of = |scheduler, name: &str, value| make(scheduler, &[(name.to_owned(), value)].into());
        for (scheduler, name) in [
            ("instep", "without.holes"),
            ("eevdf", "lazy"),
            ("affinity", "groups"),
            ("sync-aware", "threshold.own"),
        ] {
            assert!(of(scheduler, name, TunedValue::Switch(true)).is_ok(), "{name}");
            let refused = of(scheduler, name, TunedValue::Time(1)).unwrap_err();
            assert_eq!(refused, format!("tuning: {name} = 1ns: it is true or false"));
        }
        for (scheduler, name) in [("instep", "slice"), ("eevdf", "tick"), ("cfs", "latency")] {
            let refused = of(scheduler, name, TunedValue::Switch(true)).unwrap_err();
            assert_eq!(refused, format!("tuning: {name} = true: it is a time such as \"3ms\""));
        }
    }

    #[test]
    fn numbers_that_a_scheduler_does_not_have_are_refused() {
        let tuning = Tuning::from([("period".to_owned(), TunedValue::Time(5_000_000))]);
        assert!(make("period", &tuning).is_ok());
        assert!(make("credit", &tuning).unwrap_err().contains("known are: slice, ratelimit, slop"));
        assert!(make("best", &tuning).is_err());
    }
}
