//! The kernel scheduler as the loop holds it: told homes, looked after, and whether it does what the last
//! cycle left to it.
//!
//! ```text
//! decide --affinities set--> tell --memory moves, a look a second--> wait, a look a second--> decide
//!                                        | outdated                      | outdated
//!                                        +---------> wait                +---------> decide soon
//! ```
//! Whose home is soft it leaves to [`crate::soft`], and what is loaded to [`crate::dispatch`].

use crate::config::Config;
use crate::dispatch::scheduler::Scheduler;
use crate::dispatch::{Dispatch, LOOK};
use crate::observe::{Observation, VmKey};
use crate::sink::Sink;
use crate::soft::{Decided, Keeps, NewHome, SoftHomes};
use instep_core::snapshot::Vm;
use instep_core::units::{Nanos, NodeId};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The least time between two times that the scheduler is told of VMs that came.
const BETWEEN_ARRIVALS: Duration = Duration::from_millis(500);

/// The kernel scheduler, if it was asked for, and the homes that are soft.
#[derive(Debug)]
pub(crate) struct Watch<S = Dispatch> {
    pub(crate) scheduler: Option<S>,
    soft: SoftHomes,
    /// The time between two looks.
    every: Duration,
    looked: Instant,
    /// VMs came or ended, and it was not told yet.
    has_arrivals: bool,
    /// When it was last told that, and the least time between two: each time all of /proc is read.
    told_arrivals: Option<Instant>,
    between_arrivals: Duration,
    /// The times of [`Scheduler::held`] at the last cycle.
    held: BTreeMap<String, Nanos>,
}

impl<S: Scheduler> Watch<S> {
    pub(crate) fn of(scheduler: Option<S>) -> Self {
        Self {
            scheduler,
            soft: SoftHomes::default(),
            every: LOOK,
            looked: Instant::now(),
            has_arrivals: false,
            told_arrivals: None,
            between_arrivals: BETWEEN_ARRIVALS,
            held: BTreeMap::new(),
        }
    }

    /// Takes the time for which the scheduler held VMs by CPU limits since the last cycle out of their steal. The kernel's
    /// own account of throttling (`cpu.stat`) stands still meanwhile.
    pub(crate) fn take_held(&mut self, vms: &mut [Vm]) {
        let now = self.scheduler.as_ref().map(S::held).unwrap_or_default();
        let before = std::mem::replace(&mut self.held, now);
        for vm in vms {
            if let (Some(before), Some(now)) = (before.get(&vm.name), self.held.get(&vm.name)) {
                vm.count_as_throttled(Nanos(now.0.saturating_sub(before.0)));
            }
        }
    }

    /// What cycle `count` is to do as things are now. Nothing counts as done before it is
    /// [told](Self::tell): a cycle may fail.
    pub(crate) fn decide(&self, observation: &Observation, cycle: (&Config, u64)) -> Decided {
        self.with_keeps(|keeps| self.soft.decide(observation, cycle, keeps))
    }

    /// Affinities are set: these homes are soft from now on, and the scheduler is told all homes at once.
    /// Notes of those that are new to it whether it keeps the VMs there.
    pub(crate) fn tell(
        &mut self,
        homes: BTreeMap<VmKey, NodeId>,
        (soft, told): (SoftHomes, &mut [NewHome]),
        sink: &mut dyn Sink,
    ) {
        self.soft = soft;
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.note_homes(homes);
        }
        self.supervise_scheduler(sink);
        let keeps = |vm| self.scheduler.as_ref().is_some_and(|it| it.keeps_home(vm));
        told.iter_mut().for_each(|told| told.taken = keeps(told.vm));
    }

    /// Looks after the scheduler now, and tells what is worth it.
    pub(crate) fn supervise_scheduler(&mut self, sink: &mut dyn Sink) {
        self.looked = Instant::now();
        let said = self.scheduler.as_mut().map(S::supervise).unwrap_or_default();
        said.iter().for_each(|line| sink.notice(line));
    }

    /// In the midst of work that takes its time: looks when it is time to, and says whether the work is
    /// to end, as a cycle must follow soon.
    pub(crate) fn interrupts(&mut self, sink: &mut dyn Sink) -> bool {
        self.supervise_if_due(sink);
        self.is_outdated()
    }

    /// VMs came or ended. A new VM shares the account of the host's threads until the scheduler knows it, so the scheduler is told now,
    /// unless it was just before: a user who starts and ends processes that look like VMs would have /proc read all the time.
    pub(crate) fn note_arrivals(&mut self, sink: &mut dyn Sink) {
        self.has_arrivals = true;
        self.supervise_if_due(sink);
    }

    /// Looks if it is time to, however often this is called.
    pub(crate) fn supervise_if_due(&mut self, sink: &mut dyn Sink) {
        let is_rested = self.told_arrivals.is_none_or(|at| at.elapsed() >= self.between_arrivals);
        if self.has_arrivals && is_rested {
            (self.has_arrivals, self.told_arrivals) = (false, Some(Instant::now()));
            if let Some(scheduler) = &mut self.scheduler {
                scheduler.note_arrivals();
            }
            self.supervise_scheduler(sink);
        } else if self.looked.elapsed() >= self.every {
            self.supervise_scheduler(sink);
        } else if let Some(scheduler) = &mut self.scheduler {
            scheduler.follow_weights();
        }
    }

    /// How long it is to the next cycle, which is to be in `left`, and may be in `soon`.
    pub(crate) fn pause(&self, left: Duration, soon: Duration) -> Duration {
        if self.is_outdated() { left.min(soon) } else { left }
    }

    /// Whether a cycle is to bind VMs or to free them.
    fn is_outdated(&self) -> bool {
        self.with_keeps(|keeps| self.soft.is_outdated(keeps))
    }

    /// Hands on whom the scheduler keeps at home; `None` while it keeps nobody.
    fn with_keeps<T>(&self, to: impl FnOnce(Option<Keeps<'_>>) -> T) -> T {
        let scheduler = self.scheduler.as_ref().filter(|scheduler| scheduler.keeps_homes());
        match scheduler {
            Some(scheduler) => to(Some(&|vm| scheduler.keeps_home(vm))),
            None => to(None),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
