//! `instep`, the default: one objective, the CPU time that VMs are predicted to lose, and a search for
//! a plan that loses little.
//!
//! ```text
//! host: cells ─┐
//! VMs: units, their options ─┴─> plan: the objective <─> search ──> cores ──> wishes with reasons
//! ```
//!
//! What is in force stays unless a change saves more than the measured noise of the loads, so that
//! constant load changes nothing. Knows nothing of how VMs communicate or of the phases of their load;
//! it takes the window it is given for the future.

mod cells;
mod cores;
mod exact;
mod near;
mod plan;
mod search;
mod spots;
mod unit;
mod wishes;

use super::PolicySettings;
use super::wish::Wish;
use crate::conflict::ConflictKind;
use crate::idset::{CpuSet, NodeSet};
use crate::reason::Reason;
use crate::snapshot::Snapshot;
use cells::{Host, Load};
use cores::{Cores, Given};
pub(super) use exact::against_exact;
use plan::Plan;
use spots::Spots;
use unit::Unit;

/// Times that a plan is taken to be in force and searched again, at most. Nearly all need one.
const ROUNDS: usize = 8;

/// Decides for every VM, in the snapshot's order, which is ascending by id. `mend` holds
/// the conflict for which a VM's initial affinity is to be widened.
pub(super) fn decide(
    snapshot: &Snapshot,
    settings: &PolicySettings,
    mend: &[Option<ConflictKind>],
) -> Vec<Wish> {
    let is_mended = |index: usize| Ok(mend[index].is_some());
    with_plan(snapshot, settings, is_mended, |mut plan, refused| {
        let cores = Cores::new(plan.host, &refused);
        let given = find_lasting_plan(&mut plan, &cores);
        wishes::wishes(&mut plan, &given, refused, mend)
    })
}

/// Searches for a plan that the same search would not change if it were in force, and returns the cores that
/// are given with it.
fn find_lasting_plan(plan: &mut Plan, cores: &Cores) -> Given {
    let (units, spots) = (plan.units, plan.spots);
    let vms = &plan.host.snapshot.vms;
    let vcpu = |unit: &Unit, k: usize| &vms[unit.vm].vcpus[unit.vcpus[k]];
    let mut held = cores.held(plan, |unit, k| Some(&vcpu(&units[unit], k).allowed));
    let mut given = Given::new();
    for _ in 0..ROUNDS {
        search::search(plan);
        given = cores.give(plan, &held);
        let spot = |(unit, cpus): (usize, &Option<Vec<CpuSet>>)| match cpus {
            None => plan.state.at[unit],
            Some(cpus) => {
                let all = cpus.iter().fold(CpuSet::new(), |all, cpus| all.or(cpus));
                let nodes = &spots.homes[plan.area(unit).nodes].nodes;
                units[unit].spot_in_force(plan.host, spots, nodes, &all)
            }
        };
        let current = given.iter().enumerate().map(spot).collect();
        let stays = plan.current == current;
        plan.current = current;
        let before = held;
        held = cores.held(plan, |unit, k| given[unit].as_ref().map(|cpus| &cpus[k]));
        if stays && held == before {
            break;
        }
    }
    given
}

/// Where the last VM of the snapshot should start while all others stay where they are: its nodes, CPUs, and
/// why there.
pub(super) fn advise(snapshot: &Snapshot) -> Result<(NodeSet, CpuSet, Reason), Reason> {
    let new = snapshot.vms.len().saturating_sub(1);
    let only_new = |index| if index == new { Ok(false) } else { Err(Reason::PolicyNone) };
    with_plan(snapshot, &PolicySettings::default(), only_new, |mut plan, mut refused| {
        refused.pop().flatten().map_or(Ok(()), Err)?;
        search::search(&mut plan);
        let area = plan.area(0);
        let home = plan.spots.homes[area.nodes].nodes.clone();
        let why = wishes::placement(&mut plan, &snapshot.vms[new], 0..1, &home, &area.cpus);
        let why = Reason::Placed { placement: why.into(), cores: false };
        Ok((home, area.cpus.and(&snapshot.vms[new].cpuset), why))
    })
}

/// Calls `with` with a plan in which nothing is placed, and with why VMs have no units. `is_mended` says which VMs
/// are left alone, and of the others for which the initial affinity does not count.
fn with_plan<T>(
    snapshot: &Snapshot,
    settings: &PolicySettings,
    is_mended: impl Fn(usize) -> Result<bool, Reason>,
    with: impl FnOnce(Plan, Vec<Option<Reason>>) -> T,
) -> T {
    let host = Host::new(snapshot, settings);
    let (mut spots, mut units) = (Spots::default(), Vec::new());
    let place = |index| {
        let mend = is_mended(index)?;
        units.extend(unit::units_of(&host, &mut spots, index, settings, mend)?);
        Ok(())
    };
    let refused: Vec<_> = (0..snapshot.vms.len()).map(place).map(Result::err).collect();
    for unit in &mut units {
        unit.near = spots.homes.iter().map(|home| home.costs(&host, unit)).collect();
    }
    with(Plan::new(&host, &spots, &units, fixed(&host, &refused)), refused)
}

/// The load of each cell that no unit makes: other processes, and VMs that are left alone, which are
/// divided over the cells that they may use.
fn fixed(host: &Host, refused: &[Option<Reason>]) -> Vec<Load> {
    let mut loads = host.loads();
    let vms = host.snapshot.vms.iter().zip(&host.counts).zip(refused);
    for ((vm, counts), _) in vms.filter(|(_, why)| why.is_some()) {
        for (vcpu, demand) in vm.vcpus.iter().zip(vm.demands(host.snapshot.window)) {
            let may = |cell: &usize| host.cells[*cell].cpus.intersects(&vcpu.initial);
            let on: Vec<usize> = (0..host.cells.len()).filter(may).collect();
            let part = Load::of(demand.0 as i64, *counts).part(1000 / on.len().max(1) as i64);
            on.iter().for_each(|cell| loads[*cell] = loads[*cell].plus(&part));
        }
    }
    loads
}
