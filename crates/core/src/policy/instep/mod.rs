//! `instep`, the default: Best Node that counts whole cores, weighs load and memory together,
//! keeps what works, makes no plan that shares cores more than the kernel would, and lets one in
//! force do so little more that no VM misses its home for it.
//!
//! ```text
//! units ──> plan: greedy by demand, passes ──> guard: estimate, widen ──┐
//!   └────> keep: where they are, new ones added ──> narrow what is wide ┴─> the new plan only
//!                                                     if it clearly pays ──> cores, emulators
//! ```
//!
//! The new plan depends on loads, memory and limits, not on where VMs are; so on constant load
//! it stays what it was, and nothing flaps. Knows nothing of how VMs communicate or of the
//! phases of their load; it takes the window it is given for the future.

mod cores;
mod guard;
mod host;
mod plan;
mod unit;
mod wishes;

use super::Settings;
use super::wish::{Wish, initial};
use crate::conflict::ConflictKind;
use crate::idset::CpuSet;
use crate::reason::Reason;
use crate::score::{Estimate, Estimator};
use crate::snapshot::Snapshot;
use crate::units::Nanos;
use cores::{Apart, Before};
use guard::Guard;
use host::{Crowd, Host, Spot, Spots};
use plan::{Plan, Planner};
use unit::Unit;

/// What a new plan must save to be taken, in thousandths of the demand of the VMs it moves: a
/// little less than all their memory being one hop away costs ([`crate::score::REMOTE`]).
const MOVE_PAYS: u64 = 150;

/// And in thousandths of the demand of all VMs. With both, 5 % of noise in every load moved no
/// home on any of 1,500 random hosts; with a tenth of the moved demand alone it did on 37.
const PLAN_PAYS: u64 = 20;

/// Which part of the kernel's core sharing a plan may have, in thousandths, to narrow what is wide
/// without [`MOVE_PAYS`]: 5 % of noise in the loads are 10 % of sharing, on either side.
const CLEAR_SHARING: u64 = 800;

/// By how much core sharing of a plan that is in force may exceed the kernel's before it is
/// given up, in thousandths of the kernel's: loads vary, and sharing with their square.
const KEEP_SHARING: u64 = 250;

/// The same in thousandths of a pair of fully busy CPUs.
const KEEP_PAIRS: u64 = 250;

/// What a vCPU counts as at least while every vCPU can have a core of its own, in thousandths of a
/// CPU. A pair of these loses 448 by sharing a core, and each of them 160 for all memory one hop away:
/// up to distance 38 a VM goes to free cores rather than share.
const MAY_BE_BUSY: u64 = 800;

/// Decides for every VM, in the snapshot's order, which is ascending by id. `mend` holds
/// the conflict for which a VM's initial affinity is to be widened.
pub(super) fn decide(
    snapshot: &Snapshot,
    settings: &Settings,
    mend: &[Option<ConflictKind>],
) -> Vec<Wish> {
    let host = Host::new(snapshot);
    if !cores::undercommitted(&host, Before::new(&host).other) {
        return planned(&host, &host, settings, mend, false).unwrap_or_default();
    }
    let apart =
        |now: &Snapshot| planned(&host, &Host::new(&may_be_busy(now)), settings, mend, true);
    if let Some(wishes) = apart(snapshot) {
        return wishes;
    }
    let wishes = planned(&host, &host, settings, mend, false).unwrap_or_default();
    // With these in force, all may find cores from there; they shall not move twice for it.
    apart(&granted(snapshot, &wishes)).unwrap_or(wishes)
}

/// The host with these wishes in force.
fn granted(snapshot: &Snapshot, wishes: &[Wish]) -> Snapshot {
    let mut host = snapshot.clone();
    for (vm, wish) in host.vms.iter_mut().zip(wishes) {
        vm.placed = wish.home.clone();
        let wished = vm.vcpus.iter_mut().zip(&wish.vcpus).filter(|(_, cpus)| !cpus.is_empty());
        wished.for_each(|(vcpu, cpus)| vcpu.allowed = cpus.clone());
    }
    host
}

/// The host as if all vCPUs were busy, those that are a little more: where each can have a core, VMs
/// that rest now do not share cores for it, nor beside free ones for their memory, which can follow.
fn may_be_busy(snapshot: &Snapshot) -> Snapshot {
    let mut busy = snapshot.clone();
    for vcpu in busy.vms.iter_mut().flat_map(|vm| &mut vm.vcpus) {
        let demand = vcpu.demand(snapshot.window).0;
        let counted = MAY_BE_BUSY + demand * (1000 - MAY_BE_BUSY) / 1000;
        vcpu.steal = Nanos(0);
        vcpu.busy = Nanos((u128::from(snapshot.window.0) * u128::from(counted) / 1000) as u64);
    }
    busy
}

/// The wishes for this host, chosen as if it were `seen`, which has the same VMs; `None` where all
/// were to have cores of their own (`apart`) and do not.
fn planned(
    host: &Host,
    seen: &Host,
    settings: &Settings,
    mend: &[Option<ConflictKind>],
    apart: bool,
) -> Option<Vec<Wish>> {
    let vms = host.snapshot.vms.len();
    let mut spots = Spots::new(seen);
    let mut units = Vec::with_capacity(vms);
    let mut refused: Vec<Option<Reason>> = vec![None; vms];
    for index in 0..vms {
        match unit::units_of(seen, &mut spots, index, settings, mend[index].is_some()) {
            Ok(more) => units.extend(more),
            Err(why) => refused[index] = Some(why),
        }
    }
    let choice = choose(seen, &spots, &units, &refused, mend);
    if apart && choice.apart.vcpus.iter().any(Option::is_none) {
        return None;
    }
    let chosen = wishes::Chosen { host, spots: &spots, units: &units, choice: &choice };
    Some(wishes::wishes(&chosen, refused, mend))
}

/// What was chosen for all units.
struct Choice {
    /// The spot of every unit.
    plan: Plan,
    /// The spots they would have if nothing were in force.
    wanted: Plan,
    /// The cores of those that can have one per vCPU.
    apart: Apart,
}

/// The spot of every unit, and the cores of those that can have one per vCPU.
fn choose(
    host: &Host,
    spots: &Spots,
    units: &[Unit],
    refused: &[Option<Reason>],
    mend: &[Option<ConflictKind>],
) -> Choice {
    let before = Before::new(host);
    let undercommitted = cores::undercommitted(host, before.other);
    let open = units.iter().any(|unit| unit.options.len() > 1);
    let mut plan: Plan = units.iter().map(|unit| unit.wide).collect();
    let mut wanted = plan.clone();
    if !open && !undercommitted {
        return Choice { plan, wanted, apart: Apart::none(units, before) };
    }
    let untouched = untouched(host, refused, mend);
    let mut estimator = Estimator::new(host.snapshot);
    let fixed = fixed_crowds(host, refused);
    let planner = Planner::new(host, spots, units, &estimator, fixed);
    let mut guard = Guard::new(&mut estimator, spots, units, &untouched);
    if open {
        (plan, wanted) = places(&planner, &mut guard, !undercommitted);
    }
    if undercommitted {
        let left: Vec<bool> = refused.iter().map(Option::is_some).collect();
        let apart = cores::apart(host, spots, units, &plan, &left, before);
        if guard.holds_apart(&plan, &apart, before.held) {
            return Choice { plan, wanted, apart };
        }
    }
    Choice { plan, wanted, apart: Apart::none(units, before) }
}

/// The spot of every unit: as it is now with new units added, or a new plan if that pays. And the
/// new plan, as far as it was worked out. Where VMs are that have no core for each vCPU (`crowded`),
/// what is wide is narrowed.
fn places(planner: &Planner, guard: &mut Guard, crowded: bool) -> (Plan, Plan) {
    let units = planner.units;
    let intended = planner.complete(&vec![None; units.len()]);
    if units.iter().all(|unit| unit.current.is_none()) {
        let plan = fresh(planner, guard, intended).0;
        return (plan.clone(), plan);
    }
    let (kept, now) = keep(planner, guard);
    let (kept, now) = relieved(planner, guard, kept, now);
    let (kept, now) = narrowed(planner, guard, (kept, now), crowded);
    let limit = guard.kernel.sharing;
    // What would not pay without the guard is not worth the search for what holds it.
    let wanted = guard.estimate(&intended);
    if !pays(units, (&kept, &now), (&intended, &wanted), limit) {
        return (kept, intended);
    }
    let (fresh, new) = fresh(planner, guard, intended);
    let (fresh, new) = narrowed(planner, guard, (fresh, new), crowded);
    let plan = if pays(units, (&kept, &now), (&fresh, &new), limit) { fresh.clone() } else { kept };
    (plan, fresh)
}

/// A plan for a host on which nothing is placed.
fn fresh(planner: &Planner, guard: &mut Guard, intended: Plan) -> (Plan, Estimate) {
    let (plan, estimate) = guard.enforce(planner, intended);
    relieved(planner, guard, plan, estimate)
}

/// Moves single units as long as that clearly pays; each round saves [`PLAN_PAYS`], so there are
/// few. What comes out is left alone when it comes in again.
fn relieved(
    planner: &Planner,
    guard: &mut Guard,
    mut plan: Plan,
    mut now: Estimate,
) -> (Plan, Estimate) {
    while let Some(next) = relief(planner, guard, &plan, &now) {
        (plan, now) = next;
    }
    (plan, now)
}

/// The plan after one round of moves of single units, if that clearly pays.
fn relief(
    planner: &Planner,
    guard: &mut Guard,
    plan: &Plan,
    now: &Estimate,
) -> Option<(Plan, Estimate)> {
    let limit = guard.kernel.sharing;
    let moved = planner.relieve(plan);
    if moved == *plan {
        return None;
    }
    let new = guard.estimate(&moved);
    let no_worse = new.sharing <= limit.max(now.sharing);
    let pays = no_worse && saves(planner.units, (plan, now), (&moved, &new), limit);
    pays.then_some((moved, new))
}

/// Gives units that are wide a spot, on a host where a plan is in force and cores are shared: such
/// a plan may share more than the kernel, so that a VM does not miss its home by a hair.
fn narrowed(
    planner: &Planner,
    guard: &mut Guard,
    from: (Plan, Estimate),
    crowded: bool,
) -> (Plan, Estimate) {
    if !crowded {
        return from;
    }
    let intended = planner.narrow(&from.0);
    guard.narrowed(planner, from, &intended)
}

/// Placed units stay, the others are added where that costs least, or wide if they would make
/// core sharing worse than the kernel's.
fn keep(planner: &Planner, guard: &mut Guard) -> (Plan, Estimate) {
    let current: Vec<Option<Spot>> = planner.units.iter().map(|unit| unit.current).collect();
    let plan = planner.complete(&current);
    let estimate = guard.estimate(&plan);
    if estimate.sharing <= guard.kernel.sharing || current.iter().all(Option::is_some) {
        return (plan, estimate);
    }
    let wide: Plan = planner.units.iter().map(|unit| unit.current.unwrap_or(unit.wide)).collect();
    let wider = guard.estimate(&wide);
    if wider.sharing < estimate.sharing { (wide, wider) } else { (plan, estimate) }
}

/// Whether the new plan saves enough against what is in force, or that shares cores too much
/// more than `limit`, which is the kernel's.
fn pays(units: &[Unit], old: (&Plan, &Estimate), new: (&Plan, &Estimate), limit: u64) -> bool {
    old.1.sharing > tolerated(limit) || saves(units, old, new, limit)
}

/// Whether the new plan loses so much less that the moves are worth it. Narrowing what was left
/// wide is no move, as the kernel runs it there at times, too; unless core sharing comes so near
/// to `limit`, which is the kernel's, that it may be what was left wide because of that.
fn saves(units: &[Unit], old: (&Plan, &Estimate), new: (&Plan, &Estimate), limit: u64) -> bool {
    let clear = new.1.sharing <= limit / 1000 * CLEAR_SHARING;
    let moves = |index: &usize| {
        let unit = &units[*index];
        let free = clear && old.0[*index] == unit.wide;
        old.0[*index] != new.0[*index] && unit.current.is_some() && !free
    };
    let moved: u64 = (0..units.len()).filter(moves).map(|index| units[index].crowd.sum).sum();
    let margin = (moved * MOVE_PAYS + old.1.demand * PLAN_PAYS) / 1000;
    // Strictly less even where nothing is demanded: equal plans change nothing.
    new.1.lost() + margin < old.1.lost()
}

/// The core sharing that what is in force may have when the kernel's is `limit`, micro.
fn tolerated(limit: u64) -> u64 {
    limit + limit / 1000 * KEEP_SHARING + KEEP_PAIRS * 1000
}

/// What vCPUs have when Instep leaves them but for mending their VM, by VM: each set, and how many
/// vCPUs in turn have it. Without mending no plan might be within this limit: vCPUs that wait for
/// each other on few CPUs share no cores, and elsewhere they do.
fn untouched(
    host: &Host,
    refused: &[Option<Reason>],
    mend: &[Option<ConflictKind>],
) -> Vec<Vec<(CpuSet, usize)>> {
    let sets = |index: usize| {
        let vm = &host.snapshot.vms[index];
        if mend[index].is_some() && refused[index].is_none() {
            return vec![(vm.cpuset.and(&host.online), vm.vcpus.len())];
        }
        let sets = vm.vcpus.chunk_by(|a, b| a.initial == b.initial && a.allowed == b.allowed);
        let sets = sets.map(|alike| {
            let vcpu = &alike[0];
            let cpus = initial(&vcpu.initial, &vcpu.allowed, &vm.cpuset, &host.online);
            (if cpus.is_empty() { host.online.clone() } else { cpus }, alike.len())
        });
        sets.collect()
    };
    (0..host.snapshot.vms.len()).map(sets).collect()
}

/// The demand of VMs that are left alone, divided over the nodes they may use.
fn fixed_crowds(host: &Host, refused: &[Option<Reason>]) -> Vec<Crowd> {
    let mut fixed = vec![Crowd::default(); host.places.len()];
    for (vm, _) in host.snapshot.vms.iter().zip(refused).filter(|(_, why)| why.is_some()) {
        for vcpu in &vm.vcpus {
            let demand = vcpu.demand(host.snapshot.window).0;
            let crowd = Crowd { sum: demand, squares: demand * demand };
            let on: Vec<usize> = (0..host.places.len())
                .filter(|place| host.places[*place].cpus.intersects(&vcpu.initial))
                .collect();
            for place in &on {
                fixed[*place] = fixed[*place].plus(crowd.part(1, on.len() as u64));
            }
        }
    }
    fixed
}
