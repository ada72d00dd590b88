//! CFS's load balancing (load_balance): periodically and when a CPU goes idle, span by span. It looks at
//! load only, never at whose task it moves: that is how siblings come together.
//!
//! **Balancing.** Spans are cores, caches, nodes and the host. The groups of a span are the spans
//! inside.
//!
//! * `rebalance_domains`: at ticks, each span in its time; a busy CPU waits 64 times as long (32 for
//!   nodes, in 3.19 always).
//! * Intervals: some ms by span, from 3.13 on (3.19: of all spans) as many as CPUs, to twice that where
//!   nothing is to be moved.
//! * `should_we_balance`: a group's first idle CPU, or its first; and each CPU that goes idle.
//! * Group capacity: its power in CPUs, rounded (a core of two threads: 1.15), from 3.13 on at most its
//!   cores; one task among nodes (3.0: and caches) where the own group has room.
//! * Uneven groups: in 3.0 those whose CPUs differ by a mean task, from 3.13 on those held by
//!   affinities.
//! * `update_sd_pick_busiest`: most load for its power, of groups beyond capacity or uneven (3.19: then
//!   all).
//! * `find_busiest_group`: a group gives tasks if it is uneven, full beside idle CPUs, or ahead of the
//!   own group by the slack. To an idle CPU a group with no more tasks than CPUs gives nothing, unless
//!   it is less idle.
//! * `calculate_imbalance`, `fix_small_imbalance`: what makes both groups even, at most the tasks beyond
//!   capacity. Less than a mean task is one task, unless it reverses the difference.
//! * `find_busiest_queue`: the group's queue of most load. A single task must fit into what is to be
//!   moved.
//! * `move_tasks`: the last to come goes first; half of its load must fit. 32 are looked at (3.0: 33).
//! * `can_migrate_task`, `task_hot`: a task must be allowed there. At first it may not be marked, or
//!   have run within 0.5 ms (3.19: there).
//! * `load_balance`: if no task of a queue may move, again without that CPU.
//! * `need_active_balance`, `active_load_balance_cpu_stop`: after two more failures the last to come
//!   that may go is pushed, the running one included.

use super::groups::Puller;
use super::{Cfs, domains::Turn};
use crate::context::{SchedContext, TaskId};
use crate::params::LinuxRelease::{V3_0, V3_13, V3_19};

/// Tasks that one try looks at (sysctl_sched_nr_migrate; 3.0 looks at one more).
const LOOKS: usize = 32;
/// The longest interval of a CPU beside tasks that may not move to it (MAX_PINNED_INTERVAL).
const LONGEST_PINNED: u64 = 512_000_000;

/// What a try to move tasks found.
#[derive(Clone, Copy, Debug, Default)]
struct Pulled {
    moved: u32,
    /// No task that was looked at may use the CPU (LBF_ALL_PINNED).
    all_pinned: bool,
    /// One of them may not (LBF_SOME_PINNED).
    some_pinned: bool,
    /// How much weight is left to move.
    left: u64,
}

impl Cfs {
    /// rebalance_domains: on a tick, each span in its time. A CPU that does not balance a span for its group
    /// leaves larger ones alone, too.
    pub(super) fn balance_periodic(&mut self, ctx: &mut SchedContext, cpu: usize) {
        let mut idle = if ctx.load(cpu) == 0 { Puller::Idle } else { Puller::Busy };
        for level in 0..self.domains.levels(cpu) {
            let turn = *self.domains.turn(cpu, level);
            let busy = self.domains.domain(turn.domain).busy;
            let interval = turn.interval * if idle == Puller::Idle { 1 } else { busy };
            // A tenth of a second for each CPU at most (max_load_balance_interval), in whole ticks.
            let most = 100_000_000 * ctx.host.cpus() as u64;
            let interval = interval.min(most).next_multiple_of(self.rules.tick);
            if ctx.now < turn.last + interval {
                continue;
            }
            self.share_sleepers(ctx, cpu);
            let does = self.should_balance(ctx, cpu, turn);
            if !does {
                self.give_up(cpu, level, false);
            } else if self.balance(ctx, cpu, level, idle) > 0 {
                idle = Puller::Busy;
            }
            self.domains.turn(cpu, level).last = ctx.now;
            if !does {
                break;
            }
        }
    }

    /// idle_balance: a CPU that is about to idle pulls tasks from the nearest span that has some to give. Not if it idles for less
    /// time, in the mean, than a task needs to warm up, nor, in 3.19, if no CPU was seen with two tasks.
    pub(super) fn balance_new_idle(&mut self, ctx: &mut SchedContext, cpu: usize) {
        self.queues[cpu].idle_since = Some(ctx.now);
        let in_vain = self.linux == V3_19 && !self.crowded;
        if in_vain || self.queues[cpu].idles < self.rules.migration_cost {
            return;
        }
        self.share_sleepers(ctx, cpu);
        for level in 0..self.domains.levels(cpu) {
            if self.balance(ctx, cpu, level, Puller::Newly) > 0 {
                self.queues[cpu].idle_since = None;
                return;
            }
        }
    }

    /// ttwu_do_wakeup: a task wakes up on a CPU that idled. An eighth of the mean is how long it did; it is twice the cost of a
    /// migration at most. In 3.0 it is that at once after an idleness that was as long.
    pub(super) fn note_idle_end(&mut self, ctx: &SchedContext, cpu: usize) {
        let (longest, now) = (2 * self.rules.migration_cost, ctx.now);
        let queue = &mut self.queues[cpu];
        let Some(since) = queue.idle_since.take() else { return };
        let mean = queue.idles as i64 + ((now - since) as i64 - queue.idles as i64).div_euclid(8);
        let at_once = self.linux == V3_0 && now - since > longest;
        queue.idles = if at_once { longest } else { (mean as u64).min(longest) };
    }

    /// Whether `cpu` balances for its group: its first idle CPU does, or its first.
    pub(super) fn should_balance(&self, ctx: &SchedContext, cpu: usize, turn: Turn) -> bool {
        let own = &self.domains.domain(turn.domain).groups[turn.own].cpus;
        let idle = own.iter().find(|other| ctx.load(**other) == 0);
        idle.or(own.first()) == Some(&cpu)
    }

    /// load_balance: pulls to `cpu` within one span; how many tasks came.
    pub(super) fn balance(
        &mut self,
        ctx: &mut SchedContext,
        cpu: usize,
        level: usize,
        idle: Puller,
    ) -> u32 {
        self.passed.clear_all();
        let (mut all_pinned, mut some_pinned) = (false, false);
        loop {
            let turn = *self.domains.turn(cpu, level);
            if self.linux == V3_19 && level + 1 == self.domains.levels(cpu) {
                self.crowded = (0..ctx.host.cpus()).any(|cpu| ctx.load(cpu) > 1);
            }
            let busiest = self.imbalance(ctx, cpu, turn, idle);
            let from = busiest.and_then(|(group, imbalance)| {
                let from = self.busiest_queue(ctx, turn.domain, group, imbalance, cpu)?;
                Some((from, imbalance))
            });
            let Some((from, imbalance)) = from else { return self.give_up(cpu, level, all_pinned) };
            if ctx.load(from) < 2 {
                self.note_failure(ctx, from, cpu, level, idle);
                return 0;
            }
            let pulled = self.pull(ctx, from, cpu, level, imbalance);
            (all_pinned, some_pinned) = (pulled.all_pinned, some_pinned || pulled.some_pinned);
            let is_uneven = some_pinned && pulled.left > 0;
            if is_uneven || self.linux == V3_13 {
                self.domains.set_uneven(cpu, level + 1, is_uneven);
            }
            if all_pinned {
                // Nothing of that queue may move here: the search begins anew without it.
                self.passed.set(from);
            } else if pulled.moved > 0 {
                let least = self.domains.domain(turn.domain).interval[0];
                let turn = self.domains.turn(cpu, level);
                (turn.failed, turn.interval) = (0, least);
                return pulled.moved;
            } else {
                self.note_failure(ctx, from, cpu, level, idle);
                return 0;
            }
        }
    }

    /// There is nothing to move, or nothing that may move, or another CPU does: the span is looked at more seldom.
    fn give_up(&mut self, cpu: usize, level: usize, all_pinned: bool) -> u32 {
        self.domains.turn(cpu, level).failed = 0;
        if self.linux == V3_19 {
            self.domains.set_uneven(cpu, level + 1, false);
        }
        self.wait_longer(cpu, level, all_pinned);
        0
    }

    fn wait_longer(&mut self, cpu: usize, level: usize, is_pinned: bool) {
        let longest = self.domains.domain(self.domains.turn_of(cpu, level).domain).interval[1];
        let longest = if is_pinned { longest.max(LONGEST_PINNED) } else { longest };
        let turn = self.domains.turn(cpu, level);
        if turn.interval < longest {
            turn.interval *= 2;
        }
    }

    /// Nothing was moved though there was something to move. After some such tries the task that runs is
    /// pushed away (need_active_balance); going idle does not count as a try.
    fn note_failure(
        &mut self,
        ctx: &mut SchedContext,
        from: usize,
        cpu: usize,
        level: usize,
        idle: Puller,
    ) {
        let domain = self.domains.turn_of(cpu, level).domain;
        let (tries, least) = {
            let domain = self.domains.domain(domain);
            (domain.tries, domain.interval[0])
        };
        let turn = self.domains.turn(cpu, level);
        if idle != Puller::Newly {
            turn.failed += 1;
        }
        if turn.failed <= tries + 2 || (self.linux == V3_0 && idle == Puller::Newly) {
            turn.interval = least;
            return;
        }
        let may = ctx.current(from).is_some_and(|task| self.may_be_on(ctx, task, cpu));
        if may {
            self.push_one(ctx, from, cpu);
            self.domains.turn(cpu, level).failed = tries + 1;
        }
        self.wait_longer(cpu, level, !may);
    }

    /// find_busiest_queue: that of the group with the most load, of more than one task unless one
    /// is light enough to move.
    pub(super) fn busiest_queue(
        &self,
        ctx: &SchedContext,
        at: usize,
        group: usize,
        imbalance: u64,
        cpu: usize,
    ) -> Option<usize> {
        let cpus = &self.domains.domain(at).groups[group].cpus;
        let fits = |from: &usize| {
            let queue = &self.queues[*from];
            let other = *from != cpu && !self.passed.has(*from);
            other && queue.load > 0 && (ctx.load(*from) > 1 || queue.load <= imbalance)
        };
        let heaviest = |from: &usize| (self.queues[*from].load, usize::MAX - *from);
        cpus.iter().copied().filter(fits).max_by_key(heaviest)
    }

    /// move_tasks (3.0: balance_tasks, as often as it moves something): tasks, the newest first, as long as there is imbalance.
    fn pull(
        &mut self,
        ctx: &mut SchedContext,
        from: usize,
        to: usize,
        level: usize,
        imbalance: u64,
    ) -> Pulled {
        let turn = self.domains.turn_of(to, level);
        let eager = turn.failed > self.domains.domain(turn.domain).tries;
        let mut found = Pulled { all_pinned: true, left: imbalance, ..Pulled::default() };
        loop {
            let before = found.moved;
            self.look_through(ctx, [from, to], eager, &mut found);
            if self.linux >= V3_13 || found.left == 0 || found.moved == before {
                return found;
            }
        }
    }

    /// One look through the tasks of a queue, the running one included. Half of a task's load must fit into what is left to move.
    /// In 3.0 tasks that are too heavy are not asked whether they may move at all. Later tasks that were looked at and stay are the
    /// last that the next try looks at.
    fn look_through(
        &mut self,
        ctx: &mut SchedContext,
        [from, to]: [usize; 2],
        eager: bool,
        found: &mut Pulled,
    ) {
        let is_old = self.linux == V3_0;
        let looks = self.newest(ctx, from, LOOKS + usize::from(is_old));
        for task in looks.iter().copied() {
            if found.left == 0 {
                break;
            }
            let load = self.entities[task.ix()].average.load;
            let heavy = load / 2 > found.left;
            let may = (!is_old || !heavy).then(|| self.may_be_on(ctx, task, to));
            found.some_pinned |= may == Some(false);
            found.all_pinned &= may != Some(true);
            let stays = heavy || ctx.current(from) == Some(task) || may != Some(true);
            if !stays && (eager || !self.is_hot(ctx, task, to)) {
                self.migrate(ctx, task, to);
                found.left = found.left.saturating_sub(load);
                found.moved += 1;
            } else if !is_old {
                self.make_oldest(from, task);
            }
        }
        self.looks = looks;
    }

    /// So many tasks of a CPU, the running one included, the one that came last first. The list's room is that of `looks`.
    pub(super) fn newest(&mut self, ctx: &SchedContext, cpu: usize, count: usize) -> Vec<TaskId> {
        let mut tasks = std::mem::take(&mut self.looks);
        tasks.clear();
        tasks.extend(self.queues[cpu].newest().take(count));
        if let Some(runs) = ctx.current(cpu).filter(|runs| !self.queues[cpu].has(*runs)) {
            let came = |task: &TaskId| self.entities[task.ix()].arrived;
            let at = tasks.partition_point(|task| came(task) > came(&runs));
            tasks.insert(at, runs);
            tasks.truncate(count);
        }
        tasks
    }

    /// A task counts as the first that came to its CPU.
    fn make_oldest(&mut self, cpu: usize, task: TaskId) {
        self.oldest -= 1;
        let arrived = std::mem::replace(&mut self.entities[task.ix()].arrived, self.oldest);
        self.queues[cpu].make_oldest(task, arrived, self.oldest);
    }

    /// task_hot: it ran a short while ago, or shall run next there (CACHE_HOT_BUDDY).
    pub(super) fn is_hot(&self, ctx: &SchedContext, task: TaskId, to: usize) -> bool {
        let queue = &self.queues[ctx.task(task).cpu];
        let buddy = queue.next == Some(task) || queue.last == Some(task);
        let entity = &self.entities[task.ix()];
        let cold = ctx.now >= entity.last_ran + self.rules.migration_cost;
        (buddy && ctx.load(to) > 0) || (entity.paid > 0 && !cold)
    }

    /// active_load_balance_cpu_stop: of the tasks on `from` the last that came and may use `to` moves there. If it runs it moves
    /// when it stops, which is now.
    fn push_one(&mut self, ctx: &mut SchedContext, from: usize, to: usize) {
        let tasks = self.newest(ctx, from, usize::MAX);
        let found = tasks.iter().copied().find(|task| self.may_be_on(ctx, *task, to));
        self.looks = tasks;
        let Some(task) = found else { return };
        if ctx.current(from) == Some(task) {
            self.entities[task.ix()].push = Some(to);
            ctx.resched(from);
        } else {
            self.migrate(ctx, task, to);
        }
    }
}
