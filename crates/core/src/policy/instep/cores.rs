//! A core for each vCPU of the VMs that are busy, as long as the others have enough cores beside them.
//!
//! The kernel keeps busy vCPUs on cores of their own most of the time; bound, they are there all the
//! time. Bound to one core a vCPU waits when another thread runs there, which was measured to lose 14 to
//! 26 % where CPUs are scarce. So demand decides, VM by VM, the busiest first. It does not know which
//! cores other processes use.

use super::cells::Host;
use super::plan::Plan;
use crate::idset::CpuSet;
use crate::reason::Reason;
use crate::topology::CoreKind;
use crate::units::CoreId;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Mean demand of a VM's vCPUs from which a core of its own is worth something to each, milli; an
/// assumption.
pub(super) const BUSY: i64 = 200;

/// By how much the demand of others may exceed the other cores before vCPUs lose theirs, milli.
const KEEP_MARGIN: i64 = 500;

/// Per unit the CPUs of each vCPU, where each has a core of its own; else `None`.
pub(super) type Given = Vec<Option<Vec<CpuSet>>>;

/// Per unit the cores that vCPUs have from an earlier decision.
pub(super) type Held = Vec<Vec<Option<CoreId>>>;

/// The host's cores, as far as no VM that is left alone is pinned to them.
pub(super) struct Cores {
    /// Each with its CPUs; true for efficiency cores.
    free: BTreeMap<CoreId, (CpuSet, bool)>,
}

/// Cores while they are given.
struct Dealer<'p, 'a> {
    plan: &'p Plan<'a>,
    /// Cores that nobody has yet.
    free: BTreeMap<CoreId, (CpuSet, bool)>,
    /// By node: demand of what may run there only and has no core of its own, milli; and of all on the host.
    rest: Vec<i64>,
    all: i64,
    /// By node: cores that are not given.
    cores: Vec<i64>,
}

impl Cores {
    /// `left` says why VMs are left alone.
    pub(super) fn new(host: &Host, left: &[Option<Reason>]) -> Self {
        let mut free = BTreeMap::new();
        for cpu in host.snapshot.topology.cpus() {
            let efficient = cpu.kind == Some(CoreKind::Efficient);
            free.entry(cpu.core).or_insert((CpuSet::new(), efficient)).0.insert(cpu.id);
        }
        let pinned = host.snapshot.vms.iter().zip(left).filter(|(_, why)| why.is_some());
        for vcpu in pinned.flat_map(|(vm, _)| &vm.vcpus) {
            free.retain(|_, (cpus, _)| !vcpu.initial.is_subset(cpus));
        }
        Self { free }
    }

    /// The cores that units have while their vCPUs may use these CPUs, where the plan takes them to be in force.
    pub(super) fn held<'c>(
        &self,
        plan: &Plan,
        now: impl Fn(usize, usize) -> Option<&'c CpuSet>,
    ) -> Held {
        let of = |unit: usize, k: usize| {
            let (own, now) = (&plan.units[unit], now(unit, k)?);
            let core = plan.host.snapshot.topology.cpu(now.first()?)?.core;
            let cpus = &self.free.get(&core)?.0;
            if !now.is_subset(cpus) {
                return None;
            }
            // One core that is all it has there anyway was not given.
            let all = own.permitted(k).and(cpus);
            (all == *now && own.cpus(plan.spots, k, plan.current[unit]?) != *now).then_some(core)
        };
        let units = plan.units.iter().enumerate();
        units.map(|(unit, own)| (0..own.vcpus.len()).map(|k| of(unit, k)).collect()).collect()
    }

    /// Gives cores to the vCPUs of units that have `held` ones.
    pub(super) fn give(&self, plan: &Plan, held: &Held) -> Given {
        let (host, units) = (plan.host, plan.units);
        let cores = |place: usize| {
            host.places[place].cells.clone().map(|cell| host.cells[cell].cores as i64).sum()
        };
        let cores = (0..host.places.len()).map(cores).collect();
        let mut rest = plan.demands();
        let all = rest.iter().sum::<i64>() + host.other as i64;
        for unit in (0..units.len()).filter(|unit| plan.area(*unit).places.len() > 1) {
            plan.parts(unit).for_each(|(place, part)| rest[place] -= part);
        }
        let mut dealer = Dealer { plan, free: self.free.clone(), rest, all, cores };
        // Who has fast cores keeps them against others that are half as busy again.
        let rank = |unit: usize| {
            let has =
                |slow: bool| held[unit].iter().flatten().any(|core| self.free[core].1 == slow);
            units[unit].mean() * if has(false) && !has(true) { 3 } else { 2 }
        };
        let mut order: Vec<usize> = (0..units.len()).collect();
        order.sort_by_key(|unit| (plan.area(*unit).places.len(), Reverse(rank(*unit)), *unit));
        let mut given = vec![None; units.len()];
        for unit in order {
            given[unit] = dealer.deal(unit, held);
        }
        given
    }
}

impl Dealer<'_, '_> {
    /// A core for every vCPU of a unit, if it is busy and others find enough cores beside those: what it held first, fast
    /// ones, in the node with most of the unit's memory, of clusters in turn, then by number.
    fn deal(&mut self, unit: usize, held: &Held) -> Option<Vec<CpuSet>> {
        let (plan, own, area) = (self.plan, &self.plan.units[unit], self.plan.area(unit));
        let keeps = held[unit].iter().all(Option::is_some);
        let (times, margin) = if keeps { (2, KEEP_MARGIN) } else { (1, 0) };
        let left = |cores: i64, others: i64| cores - ((others - margin).max(0) + 999) / 1000;
        let in_all = left(self.cores.iter().sum(), self.all - own.load.sum);
        if own.mean() * times < BUSY || in_all < own.vcpus.len() as i64 {
            return None;
        }
        // What may run elsewhere finds cores there.
        let mut rest = self.rest.clone();
        if let [place] = area.places[..] {
            rest[place] -= own.load.sum;
        }
        let spare = self.cores.iter().zip(&rest).map(|(cores, rest)| left(*cores, *rest));
        let mut spare: Vec<i64> = spare.collect();
        let (topology, places) = (&plan.host.snapshot.topology, &plan.host.places);
        let free = self.free.iter().filter(|(_, (cpus, _))| cpus.intersects(&area.cpus));
        let free =
            free.filter_map(|(id, (cpus, slow))| Some((*id, *slow, topology.cpu(cpus.first()?)?)));
        let mut turns: BTreeMap<_, usize> = BTreeMap::new();
        let mut order = Vec::new();
        for (id, slow, cpu) in free {
            let turn = turns.entry(cpu.cluster).or_default();
            *turn += 1;
            let kept = held[unit].contains(&Some(id));
            let others = !kept && held.iter().any(|held| held.contains(&Some(id)));
            let memory = Reverse(own.memory.get(&cpu.node).copied().unwrap_or_default());
            let place = places.iter().position(|place| place.id == cpu.node)?;
            order.push((slow, !kept, others, memory, cpu.llc, *turn, id, place));
        }
        order.sort_unstable();
        let mut order: Vec<(CoreId, usize)> =
            order.into_iter().map(|(.., id, place)| (id, place)).collect();
        let mut cpus = Vec::new();
        for (k, own_core) in held[unit].iter().enumerate() {
            let may = |(core, place): &(CoreId, usize)| {
                spare[*place] > 0 && self.free[core].0.intersects(own.permitted(k))
            };
            let first = order.iter().position(may)?;
            // It keeps its own unless there are faster ones.
            let same = |(core, _): &(CoreId, usize)| {
                Some(*core) == *own_core && self.free[core].1 == self.free[&order[first].0].1
            };
            let at = order.iter().position(|one| may(one) && same(one)).unwrap_or(first);
            let (core, place) = order.remove(at);
            spare[place] -= 1;
            cpus.push((core, place, own.permitted(k).and(&self.free[&core].0).and(&area.cpus)));
        }
        self.all -= own.load.sum;
        self.rest = rest;
        for (core, place, _) in &cpus {
            self.free.remove(core);
            self.cores[*place] -= 1;
        }
        Some(cpus.into_iter().map(|(.., cpus)| cpus).collect())
    }
}
