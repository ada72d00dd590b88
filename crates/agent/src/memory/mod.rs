//! Memory on its way home: which VMs, how far, and how much of it in one cycle.
//!
//! The policy decided that it moves and where; the host adapter moves pages. Here the passes of
//! several VMs share one cycle's budget, and a VM whose memory will not move is asked less and
//! less often.

use crate::config::MemoryConfig;
use crate::observe::{Observation, facts_of};
use crate::record::MemoryRecord;
use crate::signals::Events;
use instep_core::decision::Action;
use instep_core::idset::NodeSet;
use instep_core::snapshot::Vm;
use instep_core::units::{Bytes, Tid, VmId};
use instep_host::apply::homecoming::{Budget, Homecoming, Stop, Tally};
use instep_host::apply::move_pages::{Cause, KernelPages};
use instep_host::apply::ranges::Range;
use instep_host::apply::sampling::{HotPages, MemorySampler, Source};
use instep_host::apply::{ranges, room};
use instep_host::discover::Accel;
use instep_host::{Error, Root};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The longest that one step may keep a request to stop waiting.
const STEP: Duration = Duration::from_millis(50);
/// After fruitless passes a VM is passed over for up to this many cycles.
const MAX_REST: u32 = 64;

/// How long a VM's accesses are sampled before its memory moves.
const SAMPLED: Duration = Duration::from_millis(200);
/// Pages brought home with each sampled one, on either side.
const RADIUS: u64 = 16;
/// The most that is preferred for being hot.
const HOT: Bytes = Bytes::from_mib(256);

/// The VMs whose memory is on its way.
#[derive(Debug)]
pub(crate) struct Homes {
    passes: BTreeMap<VmId, Pass>,
    /// How this CPU samples memory accesses, if it does.
    source: Option<Source>,
}

/// One VM's way home.
#[derive(Debug)]
struct Pass {
    pid_start: u64,
    homecoming: Homecoming,
    /// Cycles to pass over before the next pass begins.
    rest: u32,
    /// `rest` after the next fruitless pass.
    next_rest: u32,
}

impl Homes {
    /// Nothing is on its way; `source` tells hot pages.
    pub(crate) fn new(source: Option<Source>) -> Self {
        Self { passes: BTreeMap::new(), source }
    }

    /// Moves memory for the VMs that `actions` name, and goes on with what earlier cycles began,
    /// within the cycle's budget (without bound when this is the only cycle).
    pub(crate) fn bring_home<'a>(
        &mut self,
        observation: &Observation,
        actions: impl Iterator<Item = &'a Action>,
        config: &MemoryConfig,
        once: bool,
        events: &mut Events,
    ) -> Vec<MemoryRecord> {
        if !config.home {
            return Vec::new();
        }
        let mut records = self.begin(observation, actions);
        let mut left = if once { Bytes(u64::MAX) } else { config.per_cycle };
        let deadline = (!once).then(|| Instant::now() + config.time_per_cycle);
        for (vm, pass) in &mut self.passes {
            let Some(vm) = observation.snapshot.vm(*vm) else { continue };
            if pass.homecoming.is_finished() {
                continue;
            }
            let mut tally = Tally::default();
            let result = pass.walk(&mut tally, &mut left, config.batch, |moved_all| {
                events.stopping() || moved_all || deadline.is_some_and(|d| Instant::now() >= d)
            });
            records.push(record(vm, &tally, pass.homecoming.is_finished(), result));
            pass.settle();
        }
        records
    }

    /// Forgets VMs that are gone or go elsewhere, begins passes that are asked for.
    fn begin<'a>(
        &mut self,
        observation: &Observation,
        actions: impl Iterator<Item = &'a Action>,
    ) -> Vec<MemoryRecord> {
        let start_of = |vm: &Vm| facts_of(&observation.scan, vm).map(|facts| facts.start_ticks);
        self.passes.retain(|id, pass| {
            observation.snapshot.vm(*id).and_then(start_of) == Some(pass.pid_start)
        });
        let mut records = Vec::new();
        for action in actions {
            let Action::MoveMemory { vm: id, to, .. } = action else { continue };
            let Some(vm) = observation.snapshot.vm(*id) else { continue };
            let Some(pid_start) = start_of(vm) else { continue };
            let before = self.passes.get_mut(id).filter(|pass| pass.homecoming.home() == to);
            let next_rest = match before {
                Some(pass) if !pass.homecoming.is_finished() => continue,
                Some(pass) if pass.rest > 0 => {
                    pass.rest -= 1;
                    continue;
                }
                Some(pass) => pass.next_rest,
                None => 1,
            };
            match ranges::read(&Root::live(), id.0) {
                Ok((ranges, _)) => {
                    let hot = self.hot(observation, vm, &ranges);
                    let mut homecoming = Homecoming::new(id.0, to.clone(), ranges);
                    homecoming.prefer(hot);
                    self.passes.insert(*id, Pass { pid_start, homecoming, rest: 0, next_rest });
                }
                Err(error) => records.push(record(vm, &Tally::default(), false, Err(error))),
            }
        }
        records
    }

    /// The ranges that the VM uses most now, found by sampling for a moment; none where the CPU
    /// cannot tell.
    fn hot(&self, observation: &Observation, vm: &Vm, mapped: &[Range]) -> Vec<Range> {
        let accel = facts_of(&observation.scan, vm).map(|facts| facts.accel);
        let Some(source) = &self.source else { return Vec::new() };
        if accel == Some(Accel::Kvm) && !source.sees_kvm_guests() {
            return Vec::new();
        }
        let tids: Vec<Tid> = vm.vcpus.iter().map(|vcpu| vcpu.tid).collect();
        let mut pages = HotPages::default();
        match MemorySampler::start(source, vm.id.0, &tids, &vm.allowed()) {
            Ok(mut sampler) => {
                std::thread::sleep(SAMPLED);
                sampler.drain(&mut pages);
            }
            Err(error) => tracing::info!("{}: not sampled: {error}", vm.name),
        }
        pages.ranges(mapped, RADIUS, HOT)
    }
}

impl Pass {
    /// Walks until the pass is over, nothing is left of the budget or `enough` says so.
    fn walk(
        &mut self,
        tally: &mut Tally,
        left: &mut Bytes,
        batch: Bytes,
        mut enough: impl FnMut(bool) -> bool,
    ) -> Result<(), Error> {
        let home: NodeSet = self.homecoming.home().clone();
        let mut pages = KernelPages::of(self.homecoming.pid(), self.pid_start)?;
        let mut rooms = room::read(&Root::live(), &home, None)?;
        while !enough(left.0 == 0) {
            let budget = Budget { bytes: Bytes(batch.0.min(left.0)), time: STEP };
            let step = self.homecoming.step(&mut pages, &mut rooms, budget)?;
            tally.add(&step.tally);
            left.0 = left.0.saturating_sub(step.tally.of(Cause::Moved).0);
            if matches!(step.stop, Stop::Finished | Stop::NoRoom) {
                break;
            }
        }
        Ok(())
    }

    /// A pass that moved next to nothing makes the VM rest, twice as long each time.
    fn settle(&mut self) {
        if self.homecoming.is_finished() {
            let moved = self.homecoming.total().of(Cause::Moved);
            (self.rest, self.next_rest) = rest(moved, self.homecoming.remote(), self.next_rest);
        }
    }
}

/// Cycles to pass over after a pass that moved `moved` of `remote` bytes, and after the next one
/// like it.
fn rest(moved: Bytes, remote: Bytes, next: u32) -> (u32, u32) {
    if moved.0 < remote.0 / 64 { (next, (next * 2).min(MAX_REST)) } else { (0, 1) }
}

fn record(vm: &Vm, tally: &Tally, complete: bool, result: Result<(), Error>) -> MemoryRecord {
    let stayed = |cause: &Cause| !matches!(cause, Cause::Moved | Cause::AlreadyHome);
    MemoryRecord {
        vm: vm.name.clone(),
        moved_bytes: tally.of(Cause::Moved),
        stayed_bytes: tally
            .0
            .iter()
            .filter(|(cause, _)| stayed(cause))
            .map(|(cause, bytes)| (cause.to_string(), *bytes))
            .collect(),
        complete,
        error: result.err().map(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_will_not_move_is_asked_for_less_and_less_often() {
        let (mut next, mut rests) = (1, Vec::new());
        for _ in 0..9 {
            let (now, then) = rest(Bytes(0), Bytes::from_mib(64), next);
            rests.push(now);
            next = then;
        }
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(rest(Bytes::from_mib(32), Bytes::from_mib(64), next), (0, 1));
    }
}
