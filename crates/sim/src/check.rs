//! Runs a plan with the checkers of the crate `instep-check`: every fact is judged as it happens, and at
//! the end what the engine counted is compared with what was seen.

use crate::engine::{Engine, Life, Setup};
use crate::guest::program::Op;
use crate::scenario::build::SimulationPlan;
use crate::sched::Scheduler;
use instep_check::{Conserved, Promises, RuleWatch, ScheduleFinding};

/// Events of one instant after which the clock is said to stand still.
const STUCK: u32 = 1_000_000;

/// What a checked run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Events that were simulated.
    pub events: u64,
    /// Simulated time, nanoseconds.
    pub until: u64,
    /// The first rule that was broken.
    pub finding: Option<ScheduleFinding>,
}

impl SimulationPlan {
    /// Simulates it once with all checkers of what its scheduler promises, up to its end, the first
    /// finding or `most` events.
    pub fn check(&self, most: u64) -> Checked {
        let scheduler = self.scheduler();
        let mut promises = scheduler.promises();
        if !self.setup.cgroups.is_empty() {
            // The checkers know weights of VMs only, and no threads that wait for a CPU limit.
            (promises.share, promises.wait_bound) = (None, None);
        }
        let limited = self.setup.cgroups.iter().any(|one| one.limit.is_some());
        let capped = self.setup.vms.iter().any(|vm| vm.cap > 0);
        if capped {
            (promises.share, promises.wait_bound) = (None, None);
        }
        if limited || capped {
            (promises.idle, promises.woken, promises.turn) = (None, None, None);
        }
        check(&self.setup, scheduler, &promises, most)
    }
}

/// As [`SimulationPlan::check`], with any scheduler and promises.
pub fn check(
    setup: &Setup,
    scheduler: Box<dyn Scheduler>,
    promises: &Promises,
    most: u64,
) -> Checked {
    // The host's own threads belong to no VM: each is alone, with a number after all VMs'.
    let mut alone = setup.vms.len()..;
    let mut tasks: Vec<(usize, u32)> = Vec::new();
    for (vm, setup) in setup.vms.iter().enumerate() {
        let own = |_| (if setup.hidden { alone.next().unwrap_or(vm) } else { vm }, setup.weight);
        tasks.extend(setup.affinity.iter().map(own));
    }
    let shown = setup.vms.iter().filter(|vm| !vm.hidden).count();
    let checkers = promises.checkers(shown, saturated(setup));
    let mut watch = RuleWatch::new(setup.host.cpus(), &tasks, checkers);
    // All is counted from the beginning: warming up would forget.
    let mut setup = setup.clone();
    setup.duration = setup.duration.saturating_add(std::mem::take(&mut setup.warmup));
    let end = setup.duration;
    let mut engine = Engine::new(setup, scheduler);
    engine.watch();
    engine.begin();
    let result = judge(&mut engine, &mut watch, end, most);
    let (events, until) = (engine.events(), engine.now());
    let whole = matches!(result, Ok(true));
    let failed = engine.scheduler().failed();
    let thrown_out = failed.map(|what| ScheduleFinding { rule: "ejected", at: until, what });
    let mut finding = result.err().or(thrown_out);
    if whole && finding.is_none() {
        let outcome = engine.finish();
        let vms: Vec<u64> = outcome.vms.iter().map(|vm| vm.2.sums.running).collect();
        let account = Conserved::account(watch.picture(), &outcome.host.busy, &vms);
        finding = account.err().map(|what| ScheduleFinding { rule: "conserved", at: end, what });
    }
    Checked { events, until, finding }
}

/// Whether it came to its end.
fn judge(
    engine: &mut Engine,
    watch: &mut RuleWatch,
    end: u64,
    most: u64,
) -> Result<bool, ScheduleFinding> {
    let (mut instant, mut here) = (0, 0);
    loop {
        for fact in engine.facts() {
            watch.see(&fact)?;
        }
        if engine.events() >= most {
            return Ok(false);
        }
        if !engine.advance(end) {
            break;
        }
        here = if engine.now() == instant { here + 1 } else { 0 };
        instant = engine.now();
        if here > STUCK {
            let what = format!("{here} events, and no time passes");
            return Err(ScheduleFinding { rule: "clock", at: instant, what });
        }
    }
    watch.pass(end)?;
    watch.end()?;
    Ok(true)
}

/// Whether all VMs always want all their vCPUs to run, and may use all CPUs.
fn saturated(setup: &Setup) -> bool {
    setup.placement.is_none()
        && setup.vms.iter().all(|vm| vm.life == Life::WHOLE)
        && setup.vms.iter().all(|vm| {
            let workload = &vm.workload;
            let burns = |(program, _): &(usize, u32)| {
                workload.programs.get(*program).and_then(|program| program.ops.first())
                    == Some(&Op::Burn)
            };
            let free = |(allowed, _): &(instep_check::mask::Mask, instep_check::mask::Mask)| {
                allowed.count() as usize == setup.host.cpus()
            };
            workload.threads.len() >= vm.affinity.len()
                && workload.threads.iter().all(burns)
                && vm.affinity.iter().all(free)
        })
}
