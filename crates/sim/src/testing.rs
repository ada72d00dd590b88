//! Small hosts for tests and benchmarks. Not part of the product.

#[cfg(test)]
use crate::context::{SchedContext, StopReason, TaskId, TaskState};
use crate::host::Host;
use crate::scenario::machine;
#[cfg(test)]
use crate::sched::{Pick, Scheduler};

/// A host of `nodes` nodes, each with `cores` cores of `threads` threads; distance 20.
pub fn host(nodes: u32, cores: u32, threads: u32) -> Host {
    Host::new(&machine::regular(nodes, nodes, cores, threads, 1 << 30))
}

/// A context of so many CPUs and VMs of so many vCPUs, and the host's own threads: one bound to each
/// CPU, one for each VM that roams.
#[cfg(test)]
pub(crate) fn ctx(cpus: u32, vms: &[u32]) -> SchedContext {
    ctx_of(host(1, cpus, 1), vms)
}

/// The same on this host.
#[cfg(test)]
pub(crate) fn ctx_of(host: Host, vms: &[u32]) -> SchedContext {
    use crate::context::{SCHED_TIMERS, VmTasks};
    use instep_check::mask::Mask;
    let cpus = host.cpus();
    let hidden = [cpus as u32, vms.len() as u32];
    let mut first = 0;
    let all = vms.iter().map(|count| (*count, false)).chain(hidden.map(|count| (count, true)));
    let vm = |(count, hidden): (u32, bool)| {
        first += count;
        VmTasks {
            first: first - count,
            count,
            weight: 100,
            cap: 0,
            own: Default::default(),
            hidden,
            service: false,
            cgroup: 0,
            is_there: true,
        }
    };
    let task = |vm: usize, index: u32| {
        let all = Mask::all(cpus);
        let bound = vm == vms.len();
        (if bound { Mask::of(cpus, [index as usize]) } else { all.clone() }, all, 1)
    };
    let timers = crate::timers::Timers::new(3 * cpus + SCHED_TIMERS);
    let rng = crate::rng::Rng::new(1);
    SchedContext::new(host, all.map(vm).collect(), task, rng, timers, 2 * cpus as u32)
}

/// A case of a scheduler's original: in which releases, the function that it comes from, the rule, the events, and the
/// outcome.
#[cfg(test)]
pub(crate) type Case<R, B> =
    (&'static [R], &'static str, &'static str, fn(B) -> String, &'static str);

/// All cases hold, each on boards of its releases.
#[cfg(test)]
pub(crate) fn hold<R: Copy + std::fmt::Debug + 'static, B>(
    cases: &[Case<R, B>],
    board: impl Fn(R) -> B,
) {
    let mut wrong = Vec::new();
    for (releases, function, rule, outcome, expected) in cases {
        for release in *releases {
            let found = outcome(board(*release));
            if found != *expected {
                wrong.push(format!("{function} ({release:?}): {rule}: {found}, not {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} do not hold:\n{}", wrong.len(), wrong.join("\n"));
}

/// `cpu` chooses, as the engine has it done; the choice.
#[cfg(test)]
pub(crate) fn choose(
    (ctx, scheduler): (&mut SchedContext, &mut dyn Scheduler),
    cpu: usize,
    why: StopReason,
) -> Option<Pick> {
    ctx.pending.clear(cpu);
    let before = ctx.running[cpu];
    if let Some(task) = before {
        ctx.charge(task);
        ctx.tasks[task.ix()].state = TaskState::Queued;
        scheduler.put(ctx, cpu, task, why);
    }
    go_on((ctx, scheduler), cpu, before)
}

/// The task on `cpu` blocks, and the CPU chooses; the choice.
#[cfg(test)]
pub(crate) fn block(
    (ctx, scheduler): (&mut SchedContext, &mut dyn Scheduler),
    cpu: usize,
) -> Option<Pick> {
    let task = ctx.running[cpu].expect("it runs");
    ctx.charge(task);
    ctx.end(task, cpu, TaskState::Blocked);
    scheduler.block(ctx, cpu, task);
    go_on((ctx, scheduler), cpu, None)
}

#[cfg(test)]
fn go_on(
    (ctx, scheduler): (&mut SchedContext, &mut dyn Scheduler),
    cpu: usize,
    before: Option<TaskId>,
) -> Option<Pick> {
    let pick = scheduler.pick(ctx, cpu);
    if let Some(before) = before {
        ctx.end(before, cpu, TaskState::Queued);
    }
    if let Some(Pick { task, .. }) = pick {
        ctx.begin(task, cpu);
    }
    pick
}
