//! Memory on its way home: which VMs, how far, and how much of it in one cycle.
//!
//! The policy decided that it moves and where; the host adapter moves pages. Here the passes of
//! several VMs share one cycle's budget, a VM with more memory to move than that is watched first, so that
//! what it uses moves first, and a VM whose memory will not move is asked less and less often.

mod live;
#[cfg(test)]
mod tests;
mod wanted;

pub(crate) use live::LiveHost;
pub(crate) use wanted::Wanted;

use crate::config::MemoryConfig;
use crate::observe::Observation;
use crate::record::MemoryRecord;
use instep_core::decision::{Action, Decision};
use instep_core::idset::NodeSet;
use instep_core::snapshot::Vm;
use instep_core::units::{Bytes, VmId};
use instep_host::Error;
use instep_host::apply::damon::Region;
use instep_host::apply::homecoming::{Budget, Homecoming, MoveStop, Tally};
use instep_host::apply::move_pages::{Cause, Pages};
use instep_host::apply::ranges::{GuestRanges, Range};
use instep_host::apply::room::Room;
use std::collections::BTreeMap;
use std::time::Duration;

/// The longest that one step may keep a request to stop waiting.
const STEP: Duration = Duration::from_millis(50);
/// How long it takes to tell which memory is used: the time of watching, and one more aggregation.
const RANKING: Duration = Duration::from_secs(12);
/// DAMON ranks memory that is more than this; less of it only where a cycle moves even less. So much memory moves in
/// the time that watching takes, or sooner.
const RANKED_FROM: Bytes = Bytes::from_mib(4096);
/// After fruitless passes a VM is passed over for up to this many cycles.
const MAX_REST: u32 = 64;

/// What is needed of the host; a test has one of its own.
pub(crate) trait Host {
    /// The pages of one process.
    type Pages: Pages;

    /// Where a process has memory, and where that of each of its guest's nodes begins. Expensive: it
    /// holds the process's memory map.
    fn ranges(&mut self, pid: u32) -> Result<GuestRanges, Error>;

    /// How much each region of the memory of process `pid`, which started at `pid_start`, is used. It takes
    /// [`RANKING`], and ends early with `None` when `enough`, told the time, says so.
    fn regions(
        &mut self,
        process: (u32, u64),
        enough: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<Option<Vec<Region>>, Error>;

    /// The pages of the process that started at `pid_start` (clock ticks since boot).
    fn pages(&mut self, pid: u32, pid_start: u64) -> Result<Self::Pages, Error>;

    /// What these nodes can take.
    fn rooms(&mut self, home: &NodeSet) -> Result<Vec<Room>, Error>;

    /// Time since some fixed moment.
    fn now(&self) -> Duration;
}

/// How much one cycle may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The most that is moved.
    bytes: Bytes,
    /// The longest that it takes; without bound when `None`.
    time: Option<Duration>,
    /// The most that one batch moves.
    batch: Bytes,
    /// Whether memory comes from nodes without CPUs, too.
    memory_only_nodes: bool,
}

impl Limits {
    /// Those of the configuration. The only cycle of a run brings everything home: there is no
    /// later one to go on.
    pub(crate) fn of(config: &MemoryConfig, once: bool) -> Self {
        let MemoryConfig { batch, memory_only_nodes, .. } = *config;
        let (bytes, time) = match once {
            true => (Bytes(u64::MAX), None),
            false => (config.per_cycle, Some(config.time_per_cycle)),
        };
        Self { bytes, time, batch, memory_only_nodes }
    }

    /// Whether the order matters in which so much comes home: it does not come at once, and there is the time to
    /// find the order.
    fn is_ranked(&self, remote: Bytes) -> bool {
        remote > self.bytes.min(RANKED_FROM) && self.time.is_none_or(|time| time > RANKING)
    }
}

/// Whose memory: the VM, and the number of the guest's node if it is not all of the VM's.
type Owner = (VmId, Option<u32>);

/// Whose memory moves next.
struct Turn {
    owner: Owner,
    to: NodeSet,
    /// How much of it is elsewhere, by the decision.
    remote: Bytes,
}

/// The VMs whose memory is on its way.
#[derive(Debug, Default)]
pub(crate) struct Homes {
    passes: BTreeMap<Owner, Pass>,
    /// What was read last in this cycle: the nodes of one guest are begun one after the other.
    read: Option<(VmId, GuestRanges)>,
    /// Which of its memory is used, if that was told.
    used: Option<(VmId, Vec<Region>)>,
    /// Why it cannot be told which memory is used, and whether that was said.
    unranked: Option<(String, bool)>,
}

/// One VM's way home, or that of one of its guest's nodes.
#[derive(Debug)]
struct Pass {
    pid_start: u64,
    /// Where the policy wants the memory, as the topology numbers nodes.
    to: NodeSet,
    homecoming: Homecoming,
    /// Cycles to pass over before the next pass begins.
    rest: u32,
    /// `rest` after the next fruitless pass.
    next_rest: u32,
}

impl Homes {
    /// Goes on with what earlier cycles began and is still wanted, then moves memory for the VMs
    /// that the decision names, within the limits and until `stopping`. A pass begins only when
    /// its turn comes: to plan it is expensive for a large VM.
    pub(crate) fn bring_home(
        &mut self,
        host: &mut impl Host,
        (observation, decision): (&Observation, &Decision),
        limits: Limits,
        stopping: &mut dyn FnMut() -> bool,
    ) -> Vec<MemoryRecord> {
        self.drop_unwanted(observation, decision);
        let deadline = limits.time.map(|time| host.now().saturating_add(time));
        let mut left = limits.bytes;
        let topology = &observation.snapshot.topology;
        let stays = match limits.memory_only_nodes {
            true => NodeSet::new(),
            false => topology.kernel_nodes(&topology.memory_only_nodes()),
        };
        let mut records = Vec::new();
        for Turn { owner, to, remote } in self.turns(decision) {
            let Some(vm) = observation.snapshot.vm(owner.0) else { continue };
            let mut enough = |now: Duration| stopping() || deadline.is_some_and(|end| now >= end);
            let mut tally = Tally::default();
            let result = if left.0 == 0 || enough(host.now()) {
                Ok(())
            } else {
                let to = (to, &stays, remote);
                self.begin(host, observation, (vm, owner.1), to, (limits, &mut enough)).and_then(
                    |pass| match pass {
                        Some(pass) => {
                            pass.walk(host, &mut tally, (&mut left, limits.batch), &mut enough)
                        }
                        None => Ok(()),
                    },
                )
            };
            let pass = self.passes.get(&owner);
            let finished = pass.is_some_and(|pass| pass.homecoming.is_finished());
            let complete = finished && result.is_ok();
            let used = pass.and_then(|pass| pass.homecoming.hot());
            records.push(record((vm, owner.1), (&tally, used), complete, result));
            if let Some(pass) = self.passes.get_mut(&owner) {
                pass.rest_if_idle();
            }
        }
        (self.read, self.used) = (None, None);
        records
    }

    /// Why memory comes home in order of address, where that was not said yet.
    pub(crate) fn take_unranked(&mut self) -> Option<String> {
        let (why, is_said) = self.unranked.as_mut()?;
        (!std::mem::replace(is_said, true))
            .then(|| format!("memory moves home in order of address, not of use: {why}"))
    }

    /// Nothing is on its way any more.
    pub(crate) fn clear(&mut self) {
        self.passes.clear();
    }

    /// Drops the passes of VMs that are gone, that the policy no longer takes charge of, or that
    /// it wants elsewhere now.
    fn drop_unwanted(&mut self, observation: &Observation, decision: &Decision) {
        if self.passes.is_empty() {
            return;
        }
        let wanted = Wanted::by(decision, &observation.snapshot.topology);
        self.passes.retain(|(id, guest_node), pass| {
            let Some(vm) = observation.snapshot.vm(*id) else { return false };
            vm.start_ticks == pass.pid_start && wanted.is_on(&pass.to, vm, *guest_node)
        });
    }

    /// Whose memory moves in this cycle and where to: in the order of the decision, which names first what
    /// gains most for each byte, then others on their way. Memory that is known not to be used comes after that of
    /// all others. A VM that rests is passed over and has rested one cycle more.
    fn turns(&mut self, decision: &Decision) -> Vec<Turn> {
        let mut turns = Vec::new();
        for action in &decision.actions {
            let Action::MoveMemory { vm, guest_node, to, remote, .. } = action else { continue };
            let owner = (*vm, *guest_node);
            match self.passes.get_mut(&owner) {
                Some(pass) if pass.homecoming.is_finished() && pass.rest > 0 => pass.rest -= 1,
                _ => turns.push(Turn { owner, to: to.clone(), remote: *remote }),
            }
        }
        let going = self.passes.iter().filter(|(_, pass)| !pass.homecoming.is_finished());
        for (owner, Pass { to, homecoming, .. }) in going {
            if !turns.iter().any(|turn| turn.owner == *owner) {
                let (owner, to, remote) = (*owner, to.clone(), homecoming.remote());
                turns.push(Turn { owner, to, remote });
            }
        }
        let is_unused = |owner: &Owner| {
            let pass = self.passes.get(owner).filter(|pass| !pass.homecoming.is_finished());
            pass.is_some_and(|pass| pass.homecoming.hot() == Some(Bytes(0)))
        };
        turns.sort_by_key(|turn| is_unused(&turn.owner));
        turns
    }

    /// The pass that is under way, or a new one; `None` when there is not the time to tell which memory comes first. One
    /// that cannot be planned is over at once, so that it rests like others that moved nothing.
    fn begin(
        &mut self,
        host: &mut impl Host,
        observation: &Observation,
        (vm, guest_node): (&Vm, Option<u32>),
        (to, stays, remote): (NodeSet, &NodeSet, Bytes),
        (limits, enough): (Limits, &mut dyn FnMut(Duration) -> bool),
    ) -> Result<Option<&mut Pass>, Error> {
        let owner = (vm.id, guest_node);
        let before = self.passes.get(&owner);
        let next_rest = before.map_or(1, |pass| pass.next_rest);
        if before.is_some_and(|pass| !pass.homecoming.is_finished()) {
            return Ok(self.passes.get_mut(&owner));
        }
        // Reading the memory map of a VM that must wait for the next cycle would be in vain.
        let is_known = self.used.as_ref().is_some_and(|(of, _)| *of == vm.id);
        if limits.is_ranked(remote) && !is_known && enough(host.now().saturating_add(RANKING)) {
            return Ok(None);
        }
        let (mut mapped, result) = match self.mapped(host, owner) {
            Ok(mapped) => (mapped, Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        };
        // The kernel may have several nodes where the topology has one.
        let topology = &observation.snapshot.topology;
        let home = topology.kernel_nodes(&to);
        mapped.retain(|range| range.remote(&home.or(stays)).0 > 0);
        let mut homecoming = Homecoming::leaving(stays, vm.id.0, home, mapped);
        let pid_start = vm.start_ticks;
        if limits.is_ranked(homecoming.remote()) {
            match self.used_of(host, (vm.id, pid_start), enough) {
                Ok(Some(regions)) => homecoming.rank(regions),
                Ok(None) => return Ok(None),
                Err(error) => {
                    // If the VM is gone, that is the reason.
                    host.pages(vm.id.0, pid_start)?;
                    self.note_unranked(&error);
                }
            }
        }
        let pass = Pass { pid_start, to, homecoming, rest: 0, next_rest };
        self.passes.insert(owner, pass);
        result.map(|()| self.passes.get_mut(&owner))
    }

    /// Which memory of a VM is used; `None` when there is not the time to tell. A VM is watched once for all nodes of
    /// its guest whose turn comes in this cycle.
    fn used_of(
        &mut self,
        host: &mut impl Host,
        (vm, pid_start): (VmId, u64),
        enough: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<Option<&[Region]>, Error> {
        let regions = match self.used.take().filter(|(of, _)| *of == vm) {
            Some((_, regions)) => regions,
            None if enough(host.now().saturating_add(RANKING)) => return Ok(None),
            None => match host.regions((vm.0, pid_start), enough)? {
                Some(regions) => regions,
                None => return Ok(None),
            },
        };
        Ok(Some(&self.used.insert((vm, regions)).1))
    }

    fn note_unranked(&mut self, error: &Error) {
        let why = error.to_string();
        if self.unranked.as_ref().is_none_or(|(known, _)| *known != why) {
            self.unranked = Some((why, false));
        }
    }

    /// Where an owner's memory is. The memory map of a VM is read once for all nodes of its guest
    /// whose turn comes in this cycle.
    fn mapped(&mut self, host: &mut impl Host, (vm, node): Owner) -> Result<Vec<Range>, Error> {
        let read = match self.read.take().filter(|(of, _)| *of == vm) {
            Some((_, read)) => read,
            None => host.ranges(vm.0)?,
        };
        self.read.insert((vm, read)).1.of(node)
    }
}

impl Pass {
    /// Walks until the pass is over, nothing is left of the budget or `enough` says so.
    fn walk(
        &mut self,
        host: &mut impl Host,
        tally: &mut Tally,
        (left, batch): (&mut Bytes, Bytes),
        enough: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<(), Error> {
        let mut pages = host.pages(self.homecoming.pid(), self.pid_start)?;
        while left.0 != 0 && !enough(host.now()) {
            // Others take memory there meanwhile.
            let mut rooms = host.rooms(self.homecoming.home())?;
            let budget = Budget { bytes: Bytes(batch.0.min(left.0)), time: STEP };
            let step = self.homecoming.step(&mut pages, &mut rooms, budget)?;
            tally.add(&step.tally);
            left.0 = left.0.saturating_sub(step.tally.of(Cause::Moved).0);
            if matches!(step.stop, MoveStop::Finished | MoveStop::NoRoom) {
                break;
            }
        }
        Ok(())
    }

    /// A pass that moved next to nothing makes the VM rest, twice as long each time.
    fn rest_if_idle(&mut self) {
        if self.homecoming.is_finished() {
            let moved = self.homecoming.total().of(Cause::Moved);
            (self.rest, self.next_rest) = rest(moved, self.homecoming.remote(), self.next_rest);
        }
    }
}

/// Cycles to pass over after a pass that moved `moved` of `remote` bytes, and after the next one
/// like it.
fn rest(moved: Bytes, remote: Bytes, next: u32) -> (u32, u32) {
    if moved.0 == 0 || moved.0 < remote.0 / 64 { (next, (next * 2).min(MAX_REST)) } else { (0, 1) }
}

fn record(
    (vm, guest_node): (&Vm, Option<u32>),
    (tally, used_left): (&Tally, Option<Bytes>),
    complete: bool,
    result: Result<(), Error>,
) -> MemoryRecord {
    let stayed = |cause: &Cause| !matches!(cause, Cause::Moved | Cause::AlreadyHome);
    MemoryRecord {
        vm: vm.name.clone(),
        guest_node,
        moved_bytes: tally.of(Cause::Moved),
        stayed_bytes: tally
            .0
            .iter()
            .filter(|(cause, _)| stayed(cause))
            .map(|(cause, bytes)| (cause.to_string(), *bytes))
            .collect(),
        used_left_bytes: used_left,
        complete,
        error: result.err().map(|error| error.to_string()),
    }
}
