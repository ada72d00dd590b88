//! Which group of CPUs has too much, and how much of it: find_busiest_group, calculate_imbalance and
//! fix_small_imbalance.

use super::Cfs;
use super::domains::{Domain, ONE, Turn};
use crate::context::SchedContext;
use crate::params::LinuxRelease::{V3_0, V3_13, V3_19};

/// What the CPU that pulls is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Puller {
    /// It is about to idle.
    Newly,
    /// It idles.
    Idle,
    /// It runs something.
    Busy,
}

/// A group's load (sg_lb_stats).
#[derive(Clone, Copy, Debug)]
struct Load {
    group: usize,
    /// Its CPUs' load, by the mean that counts.
    load: u64,
    /// That of its tasks, as it is now.
    tasks: u64,
    power: u64,
    /// Load for 1024ths of a CPU (avg_load).
    per_cpu: u64,
    running: u32,
    cpus: u32,
    capacity: u32,
    /// It has fewer tasks than fit (group_has_capacity).
    room: bool,
    /// Its CPUs are not even (group_imb).
    uneven: bool,
}

impl Load {
    fn per_task(&self) -> u64 {
        self.tasks / u64::from(self.running.max(1))
    }

    fn is_overloaded(&self) -> bool {
        self.running > self.capacity
    }

    /// group_classify, of 3.19.
    fn class(&self) -> u32 {
        if self.is_overloaded() { 2 } else { u32::from(self.uneven) }
    }
}

impl Cfs {
    /// update_sg_lb_stats, with this mean of loads.
    fn load(
        &self,
        ctx: &SchedContext,
        domain: &Domain,
        at: usize,
        (mean, own): (usize, usize),
    ) -> Load {
        let group = &domain.groups[at];
        let (load, tasks, running) = match group.node {
            Some(node) if self.passed.is_empty() && mean == 0 => {
                (self.nodes[node], self.nodes[node], ctx.node_load(node))
            }
            _ => {
                let cpus = || group.cpus.iter().copied().filter(|cpu| !self.passed.has(*cpu));
                (
                    cpus().map(|cpu| self.queues[cpu].biased_load(mean, at == own)).sum(),
                    cpus().map(|cpu| self.queues[cpu].load).sum(),
                    cpus().map(|cpu| ctx.load(cpu)).sum(),
                )
            }
        };
        let power = group.power.max(1);
        Load {
            group: at,
            load,
            tasks,
            power,
            per_cpu: load * ONE / power,
            running,
            cpus: group.cpus.len() as u32,
            capacity: group.capacity,
            room: group.capacity > running,
            uneven: group.uneven,
        }
    }

    /// As 3.0 has it: the heaviest CPU has a task's weight more than the lightest one, and more than one task.
    fn is_uneven(&self, ctx: &SchedContext, domain: &Domain, load: &Load, mean: usize) -> bool {
        let cpus = || domain.groups[load.group].cpus.iter().filter(|cpu| !self.passed.has(**cpu));
        let weight = |cpu: &usize| self.queues[*cpu].biased_load(mean, false);
        // The first of the heaviest.
        let heaviest = cpus()
            .copied()
            .reduce(|best, cpu| if weight(&cpu) > weight(&best) { cpu } else { best });
        let least = cpus().map(weight).min().unwrap_or(0);
        heaviest.is_some_and(|cpu| {
            weight(&cpu) - least >= load.per_task() && load.running > 0 && ctx.load(cpu) > 1
        })
    }

    fn idle_cpus(&self, ctx: &SchedContext, domain: &Domain, load: &Load) -> usize {
        let idles = |cpu: &&usize| ctx.load(**cpu) == 0 && !self.passed.has(**cpu);
        domain.groups[load.group].cpus.iter().filter(idles).count()
    }

    /// update_sd_pick_busiest.
    fn is_busier(&self, load: &Load, best: Option<&Load>) -> bool {
        let (class, per_cpu) = best.map_or((0, 0), |best| (best.class(), best.per_cpu));
        match self.linux {
            V3_0 | V3_13 => load.per_cpu > per_cpu && (load.is_overloaded() || load.uneven),
            V3_19 => load.class() > class || load.class() == class && load.per_cpu > per_cpu,
        }
    }

    /// find_busiest_group and calculate_imbalance: the group to pull from and how much weight.
    pub(super) fn imbalance(
        &self,
        ctx: &SchedContext,
        cpu: usize,
        turn: Turn,
        idle: Puller,
    ) -> Option<(usize, u64)> {
        let domain = self.domains.domain(turn.domain);
        let means = match idle {
            Puller::Newly => 0,
            Puller::Busy => domain.means[0],
            Puller::Idle => domain.means[1],
        };
        let of = |at| self.load(ctx, domain, at, (means, turn.own));
        let local = of(turn.own);
        let (mut total, mut power) = (local.load, local.power);
        let mut busiest: Option<Load> = None;
        let count = domain.groups.len();
        for at in (turn.own + 1..count).chain(0..turn.own) {
            let mut load = of(at);
            (total, power) = (total + load.load, power + load.power);
            if domain.spreads && local.room {
                load.capacity = load.capacity.min(1);
            }
            if self.linux == V3_0 {
                load.uneven = self.is_uneven(ctx, domain, &load, means);
            }
            if self.is_busier(&load, busiest.as_ref()) {
                busiest = Some(load);
            }
        }
        let mean = total * ONE / power;
        let busiest = busiest.filter(|busiest| busiest.running > 0)?;
        if !self.is_due(ctx, domain, [&local, &busiest], mean, idle) {
            return None;
        }
        // cpu_avg_load_per_task
        let own = match local.running {
            0 => self.queues[cpu].load / self.running(ctx, cpu).max(1),
            _ => local.per_task(),
        };
        Some((busiest.group, self.excess([&local, &busiest], mean, own)))
    }

    /// Whether the busiest group has more than the local one by enough.
    fn is_due(
        &self,
        ctx: &SchedContext,
        domain: &Domain,
        [local, busiest]: [&Load; 2],
        mean: u64,
        idle: Puller,
    ) -> bool {
        if busiest.uneven && (self.linux < V3_19 || busiest.class() == 1) {
            return true;
        }
        if idle == Puller::Newly && local.room && !busiest.room {
            return true;
        }
        if local.per_cpu >= busiest.per_cpu || local.per_cpu >= mean {
            return false;
        }
        if idle != Puller::Idle {
            return 100 * busiest.per_cpu > domain.slack * local.per_cpu;
        }
        let idles = |load: &Load| self.idle_cpus(ctx, domain, load);
        let fits = busiest.running <= busiest.cpus;
        !match self.linux {
            V3_0 => fits && idles(local) <= idles(busiest) + 1,
            V3_13 => fits && idles(local) < idles(busiest),
            V3_19 => !busiest.is_overloaded() && idles(local) <= idles(busiest) + 1,
        }
    }

    /// calculate_imbalance: as much as makes both groups even, and no more than does not fit into the busiest.
    /// `own` is the weight of a task of the local group.
    fn excess(&self, [local, busiest]: [&Load; 2], mean: u64, own: u64) -> u64 {
        let mut per_task = busiest.per_task();
        if busiest.uneven && (self.linux < V3_19 || busiest.class() == 1) {
            per_task = per_task.min(mean);
        }
        let even = match self.linux {
            V3_0 => busiest.per_cpu < mean,
            V3_13 | V3_19 => busiest.per_cpu <= mean || local.per_cpu >= mean,
        };
        if even {
            return self.small_excess([local, busiest], per_task, own, 0);
        }
        let limited = match self.linux {
            V3_0 | V3_13 => !busiest.uneven,
            V3_19 => busiest.is_overloaded() && local.is_overloaded(),
        };
        let above = match busiest.running.checked_sub(busiest.capacity).filter(|_| limited) {
            Some(tasks) => u64::from(tasks) * ONE * ONE / busiest.power,
            None => u64::MAX,
        };
        let from = (busiest.per_cpu - mean).min(above).saturating_mul(busiest.power);
        let to = mean.checked_sub(local.per_cpu).map_or(u64::MAX, |room| room * local.power);
        let excess = from.min(to) / ONE;
        if excess < per_task {
            return self.small_excess([local, busiest], per_task, own, excess);
        }
        excess
    }

    /// fix_small_imbalance: one task, if that does not turn the difference round or if more power is used
    /// then. In 3.0 also if the busiest group has less by more than a task: the difference is unsigned there.
    fn small_excess(
        &self,
        [local, busiest]: [&Load; 2],
        per_task: u64,
        own: u64,
        excess: u64,
    ) -> u64 {
        let twice = if local.running > 0 && per_task > own { 1 } else { 2 };
        let scaled = per_task * ONE / busiest.power;
        let with_task = busiest.per_cpu + scaled;
        let is_negative = self.linux == V3_0 && with_task < local.per_cpu;
        if is_negative || with_task >= local.per_cpu + scaled * twice {
            return per_task;
        }
        let used = |load: &Load, task: u64, per_cpu: u64| load.power * task.min(per_cpu);
        let now =
            (used(busiest, per_task, busiest.per_cpu) + used(local, own, local.per_cpu)) / ONE;
        let less = used(busiest, per_task, busiest.per_cpu.saturating_sub(scaled));
        let moves = (per_task * ONE).min(busiest.per_cpu * busiest.power) / local.power;
        let then = (less + used(local, own, local.per_cpu + moves)) / ONE;
        if then > now { per_task } else { excess }
    }
}
