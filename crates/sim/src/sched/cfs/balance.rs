//! CFS's load balancing (load_balance, find_busiest_group, Linux 3.10): by weights in queues, group
//! by group, periodically and when a CPU goes idle. It looks at load only, never at whose task it
//! moves: that is how siblings come together.

use super::Cfs;
use super::domains::{Domain, Turn};
use crate::desk::{Desk, TaskId};

/// How many times more seldom a busy CPU balances (busy_factor).
const BUSY_FACTOR: u64 = 32;
/// Failures after which a running task is pushed away (cache_nice_tries + 2).
const FAILURES: u32 = 3;

/// An imbalance that stands for one task of whatever weight.
const ANY_ONE: u64 = u64::MAX;

/// Load of a group: weight per 1024ths of a CPU.
#[derive(Clone, Copy, Debug)]
struct Load {
    group: usize,
    weight: u64,
    per_cpu: u64,
    running: u32,
    cpus: u32,
    power: u64,
}

impl Cfs {
    /// rebalance_domains: on a tick, each span in its time.
    pub(super) fn balance_periodic(&mut self, desk: &mut Desk, cpu: usize) {
        let idle = desk.load(cpu) == 0;
        for level in 0..self.domains.levels(cpu) {
            let turn = *self.domains.turn(cpu, level);
            if desk.now < turn.next {
                continue;
            }
            let interval = self.domains.domain(turn.domain).interval;
            let factor = if idle { 1 } else { BUSY_FACTOR };
            self.domains.turn(cpu, level).next = desk.now + interval * factor;
            if self.should_balance(desk, cpu, turn) {
                self.balance(desk, cpu, level, idle);
            }
        }
    }

    /// idle_balance: a CPU that is about to idle pulls one task.
    pub(super) fn balance_new_idle(&mut self, desk: &mut Desk, cpu: usize) {
        for level in 0..self.domains.levels(cpu) {
            if self.balance(desk, cpu, level, true) > 0 {
                return;
            }
        }
    }

    /// Whether `cpu` balances for its group: its first idle CPU does, or its first.
    fn should_balance(&self, desk: &Desk, cpu: usize, turn: Turn) -> bool {
        let own = &self.domains.domain(turn.domain).groups[turn.own].cpus;
        let idle = own.iter().find(|other| desk.load(**other) == 0);
        idle.or(own.first()) == Some(&cpu)
    }

    fn loads<'a>(&'a self, desk: &'a Desk, domain: &'a Domain) -> impl Iterator<Item = Load> + 'a {
        domain.groups.iter().enumerate().map(|(at, group)| {
            let cpus = &group.cpus;
            let (weight, running) = match group.node {
                Some(node) => (self.nodes[node], desk.node_load(node)),
                None => (
                    cpus.iter().map(|cpu| self.queues[*cpu].weight).sum(),
                    cpus.iter().map(|cpu| desk.load(*cpu)).sum(),
                ),
            };
            let power = group.power.max(1);
            let (per_cpu, cpus) = (weight * 1024 / power, cpus.len() as u32);
            Load { group: at, weight, per_cpu, running, cpus, power }
        })
    }

    /// Pulls to `cpu` within one span; how many tasks came.
    fn balance(&mut self, desk: &mut Desk, cpu: usize, level: usize, idle: bool) -> u32 {
        let turn = *self.domains.turn(cpu, level);
        let at = turn.domain;
        let Some((busiest, imbalance)) = self.imbalance(desk, turn, idle) else {
            self.domains.turn(cpu, level).failed = 0;
            return 0;
        };
        // If nothing of the busiest queue may move, the next one is tried (LBF_ALL_PINNED).
        let (mut below, mut first) = (None, None);
        while let Some(from) = self.busiest_queue(desk, at, busiest, imbalance, cpu, below) {
            below = Some((self.queues[from].weight, usize::MAX - from));
            first = first.or(Some(from));
            let moved = self.pull(desk, from, cpu, imbalance);
            if moved > 0 {
                self.domains.turn(cpu, level).failed = 0;
                return moved;
            }
        }
        let Some(from) = first else { return 0 };
        let turn = self.domains.turn(cpu, level);
        turn.failed += 1;
        if turn.failed > FAILURES && idle {
            turn.failed = 0;
            self.push_running(desk, from, cpu);
        }
        0
    }

    /// find_busiest_group and calculate_imbalance: the group to pull from and how much weight.
    fn imbalance(&self, desk: &Desk, turn: Turn, idle: bool) -> Option<(usize, u64)> {
        let domain = self.domains.domain(turn.domain);
        let (mut total, mut power) = (0, 0);
        let (mut local, mut busiest): (Option<Load>, Option<Load>) = (None, None);
        let mut crowded: Option<Load> = None;
        for load in self.loads(desk, domain) {
            (total, power) = (total + load.weight, power + load.power);
            if load.group == turn.own {
                local = Some(load);
                continue;
            }
            // Groups with no more tasks than capacity have nothing to give.
            let full = u64::from(load.running) * 1024 > load.power + 512;
            let heavier = |other: Load| load.per_cpu > other.per_cpu;
            if load.running > load.cpus && crowded.is_none_or(heavier) {
                crowded = Some(load);
            }
            if full && busiest.is_none_or(|other| load.per_cpu > other.per_cpu) {
                busiest = Some(load);
            }
        }
        let local = local?;
        // An idle CPU in a group with room trumps weights (force_balance): newly idle ones in Linux
        // 3.x (fab47622), all of them since 4.15 (583ffd99d765) and here. With the former alone a
        // CPU idles for ever beside light tasks.
        let forced = crowded.filter(|_| idle && local.running < local.cpus);
        let forced = forced.map(|load: Load| (load.group, ANY_ONE));
        let Some(busiest) = busiest else { return forced };
        let mean = total * 1024 / power;
        if local.per_cpu >= busiest.per_cpu || local.per_cpu >= mean {
            return forced;
        }
        if idle {
            if local.running + 1 >= busiest.running && local.running > 0 {
                return forced;
            }
        } else if 100 * busiest.per_cpu <= domain.slack * local.per_cpu {
            return None;
        }
        let above = (busiest.per_cpu - mean.min(busiest.per_cpu)) * busiest.power;
        let below = (mean - local.per_cpu) * local.power;
        let imbalance = above.min(below) / 1024;
        let task = busiest.weight / u64::from(busiest.running.max(1));
        // fix_small_imbalance: one task, if that does not turn the difference round.
        if imbalance < task {
            let scaled = task * 1024 / busiest.power;
            let pays = idle || busiest.per_cpu >= local.per_cpu + scaled;
            return pays.then_some((busiest.group, task));
        }
        Some((busiest.group, imbalance))
    }

    /// find_busiest_queue: that of the group with the most weight, of more than one task unless one
    /// is light enough to move; only those that come after `below`.
    fn busiest_queue(
        &self,
        desk: &Desk,
        at: usize,
        group: usize,
        imbalance: u64,
        cpu: usize,
        below: Option<(u64, usize)>,
    ) -> Option<usize> {
        let cpus = &self.domains.domain(at).groups[group].cpus;
        let fits = |from: &usize| {
            let queue = &self.queues[*from];
            let light = imbalance != ANY_ONE && queue.weight <= imbalance;
            *from != cpu && queue.weight > 0 && (desk.load(*from) > 1 || light)
        };
        let heaviest = |from: &usize| (self.queues[*from].weight, usize::MAX - *from);
        let left = |from: &usize| below.is_none_or(|below| heaviest(from) < below);
        cpus.iter().copied().filter(fits).filter(left).max_by_key(heaviest)
    }

    /// move_tasks: queued tasks, not hot in their cache, as long as there is imbalance.
    fn pull(&mut self, desk: &mut Desk, from: usize, to: usize, mut imbalance: u64) -> u32 {
        let limit = imbalance;
        let (mut moved, mut at) = (0, self.queues[from].tasks().len());
        while at > 0 && imbalance > 0 {
            at -= 1;
            let Some(task) = self.queues[from].tasks().get(at).copied() else { break };
            let entity = &self.entities[task.ix()];
            let hot = desk.now - entity.last_ran.min(desk.now) < self.rules.migration_cost
                && entity.paid > 0;
            let weight = entity.weight;
            if weight / 2 > imbalance || hot || !self.may_pull(desk, task, to) {
                continue;
            }
            self.migrate(desk, task, to);
            imbalance = imbalance.saturating_sub(weight);
            moved += 1;
            if limit == ANY_ONE || desk.load(to) == 0 {
                // One is enough for a CPU that is about to idle.
                break;
            }
        }
        moved
    }

    /// Whether a task may be put on `to` at all, and by the choice.
    fn may_pull(&mut self, desk: &Desk, task: TaskId, to: usize) -> bool {
        self.narrow(desk, task);
        self.may.has(to)
    }

    /// active_load_balance: the task that runs on `from` moves to `to` when it stops, which is now.
    fn push_running(&mut self, desk: &mut Desk, from: usize, to: usize) {
        let Some(task) = desk.current(from) else { return };
        if self.may_pull(desk, task, to) {
            self.entities[task.ix()].push = Some(to);
            desk.resched(from);
        }
    }
}
