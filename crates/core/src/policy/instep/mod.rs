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
#[cfg(test)]
mod exact;
mod memory;
mod plan;
mod search;
mod spots;
mod unit;
mod wishes;

use super::Settings;
use super::wish::Wish;
use crate::conflict::ConflictKind;
use crate::reason::Reason;
use crate::snapshot::Snapshot;
use cells::{Host, Load};
use plan::Plan;
use spots::Spots;

/// Decides for every VM, in the snapshot's order, which is ascending by id. `mend` holds
/// the conflict for which a VM's initial affinity is to be widened.
pub(super) fn decide(
    snapshot: &Snapshot,
    settings: &Settings,
    mend: &[Option<ConflictKind>],
) -> Vec<Wish> {
    let host = Host::new(snapshot);
    let mut spots = Spots::default();
    let mut units = Vec::with_capacity(snapshot.vms.len());
    let mut refused: Vec<Option<Reason>> = vec![None; snapshot.vms.len()];
    for (index, mend) in mend.iter().enumerate() {
        match unit::units_of(&host, &mut spots, index, settings, mend.is_some()) {
            Ok(more) => units.extend(more),
            Err(why) => refused[index] = Some(why),
        }
    }
    let mut plan = Plan::new(&host, &spots, &units, fixed(&host, &refused));
    search::search(&mut plan);
    let left: Vec<bool> = refused.iter().map(Option::is_some).collect();
    let given = cores::give(&plan, &left);
    wishes::wishes(&mut plan, &given, refused, mend)
}

/// The load of each cell that no unit makes: other processes, and VMs that are left alone, which are
/// divided over the cells that they may use.
fn fixed(host: &Host, refused: &[Option<Reason>]) -> Vec<Load> {
    let mut loads = host.loads();
    for (vm, _) in host.snapshot.vms.iter().zip(refused).filter(|(_, why)| why.is_some()) {
        for (vcpu, demand) in vm.vcpus.iter().zip(vm.demands(host.snapshot.window)) {
            let on: Vec<usize> = (0..host.cells.len())
                .filter(|cell| host.cells[*cell].cpus.intersects(&vcpu.initial))
                .collect();
            let load = Load::of(demand.0 as i64, 1000);
            for cell in &on {
                loads[*cell] = loads[*cell].plus(&load.part(1000 / on.len() as i64));
            }
        }
    }
    loads
}
