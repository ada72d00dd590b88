//! A CPU's run queue: who waits, by virtual runtime and in the order of arrival.
//!
//! What a choice needs is found in the logarithm of the queue's length, as with the kernel's tree.
//! Balancing looks at tasks in the order in which they came, newest first. A task that ran and waits
//! again keeps its place in that order.
//!
//! **Virtual time and the choice.** The latency is 6 ms, the least turn 0.75 ms and the granularity of
//! wake-ups 1 ms, each times 1 + log2 of the CPUs (8 at most).
//!
//! * `update_curr`: CPU time becomes virtual time by weight.
//! * `update_min_vruntime`: a queue's least is the smaller of the running and the first task's. It never
//!   falls.
//! * `sched_slice`, `__sched_period`: a task's part of the latency; above eight tasks of as many least
//!   turns.
//! * `place_entity`: a sleeper comes at most half a latency behind the least, a new task a slice after
//!   it.
//! * `task_waking_fair`: on another CPU a task keeps its distance from the least.
//! * `check_preempt_wakeup`, `wakeup_gran`: a task that is behind the running one by more than the
//!   granularity, in the waking task's virtual time, preempts it.
//! * `check_preempt_tick`: a task gives way after its slice, or after its least turn if it is a slice
//!   ahead.
//! * `pick_next_entity`: the task marked as next, then the preempted one (both within their
//!   granularity), then the first.
//! * `pick_next_task_fair`, 3.19: a task that is chosen again goes on with its slice, before with a new
//!   one.
//! * `clear_buddies`: a mark ends when its task runs, sleeps or moves.
//! * `yield_to_task_fair`: the other task is next, and the one that yields is passed over.

use crate::context::TaskId;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// When each came, ascending, and itself.
    tasks: Vec<(u64, TaskId)>,
    /// Virtual runtime of each and itself, ascending; of equal ones the first that was queued.
    line: Vec<(u64, TaskId)>,
    /// update_min_vruntime.
    pub(super) min_vruntime: u64,
    /// Weight of all its tasks, the running one included.
    pub(super) weight: u64,
    /// Their load (runnable_load_avg; in 3.0 the same as the weight).
    pub(super) load: u64,
    /// What it was at the last tick, and means over more and more ticks (cpu_load).
    past: [u64; 3],
    /// For how long the CPU idles, in the mean, nanoseconds (avg_idle), and since when it does.
    pub(super) idles: u64,
    pub(super) idle_since: Option<u64>,
    /// The task that shall run next: it preempted, or a directed yield asked for it.
    pub(super) next: Option<TaskId>,
    /// The task that was preempted last, while many wait.
    pub(super) last: Option<TaskId>,
    /// The task that yielded and shall not run next.
    pub(super) skip: Option<TaskId>,
    /// The task that ran until now and waits again, while the CPU chooses.
    pub(super) stopped: Option<TaskId>,
}

impl Queue {
    /// Nobody is here. The CPU idles so long in the mean.
    pub(super) fn new(idles: u64) -> Self {
        Self { idles, ..Self::default() }
    }

    /// update_cpu_load, at a tick: the second mean takes half of what is new, the third a quarter, rounded up if it grows.
    pub(super) fn remember_load(&mut self) {
        for (at, past) in self.past.iter_mut().enumerate() {
            let most = (1 << at) - 1;
            let new = if self.load > *past { self.load + most } else { self.load };
            *past = (*past * most + new) >> at;
        }
    }

    /// Its load has been as it is now for long.
    #[cfg(test)]
    pub(super) fn settle_load(&mut self) {
        self.past = [self.load; 3];
    }

    /// Nothing has been here so far.
    #[cfg(test)]
    pub(super) fn forget_load(&mut self) {
        self.past = [0; 3];
    }

    /// source_load and target_load: a CPU from which tasks shall come counts for the least of its load now and that mean of it, the
    /// own one for the greatest. Mean 0 is the load as it is.
    pub(super) fn biased_load(&self, mean: usize, is_own: bool) -> u64 {
        match mean.checked_sub(1).map(|at| self.past[at]) {
            None => self.load,
            Some(past) if is_own => self.load.max(past),
            Some(past) => self.load.min(past),
        }
    }

    /// How many tasks wait.
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The tasks that wait, the one that came last first.
    pub(super) fn newest(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.tasks.iter().rev().map(|(_, task)| *task)
    }

    /// A task that came as `arrived` counts as one that came before all others, if it waits here.
    pub(super) fn make_oldest(&mut self, task: TaskId, arrived: u64, oldest: u64) {
        if let Ok(at) = self.tasks.binary_search(&(arrived, task)) {
            self.tasks[..=at].rotate_right(1);
            self.tasks[0] = (oldest, task);
        }
    }

    /// Whether a task waits here.
    pub(super) fn has(&self, task: TaskId) -> bool {
        self.tasks.iter().any(|(_, other)| *other == task)
    }

    /// A task comes; `arrived` is its place among those that came. Its virtual runtime stands still while
    /// it is here.
    pub(super) fn join(&mut self, task: TaskId, vruntime: u64, arrived: u64) {
        let at = self.tasks.partition_point(|(other, _)| *other < arrived);
        self.tasks.insert(at, (arrived, task));
        let at = self.line.partition_point(|(other, _)| *other <= vruntime);
        self.line.insert(at, (vruntime, task));
    }

    /// A task with this virtual runtime and arrival leaves; whether it was here.
    pub(super) fn leave(&mut self, task: TaskId, vruntime: u64, arrived: u64) -> bool {
        let from = self.line.partition_point(|(other, _)| *other < vruntime);
        let equal = self.line[from..].iter().take_while(|(other, _)| *other == vruntime);
        let Some(at) = equal.into_iter().position(|(_, other)| *other == task) else {
            return false;
        };
        self.line.remove(from + at);
        match self.tasks.binary_search(&(arrived, task)) {
            Ok(at) => self.tasks.remove(at).1 == task,
            Err(_) => false,
        }
    }

    /// clear_buddies: nothing is known of this task any more.
    pub(super) fn forget(&mut self, task: TaskId) {
        for buddy in [&mut self.next, &mut self.last, &mut self.skip] {
            if *buddy == Some(task) {
                *buddy = None;
            }
        }
    }

    /// Who waits, by virtual runtime.
    pub(super) fn line(&self) -> impl Iterator<Item = (u64, TaskId)> + '_ {
        self.line.iter().copied()
    }

    /// The task of least virtual runtime and, with 1, the next: its virtual runtime and itself.
    pub(super) fn nth(&self, at: usize) -> Option<(u64, TaskId)> {
        self.line.get(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_in_line_by_virtual_runtime_and_listed_as_they_came() {
        let mut queue = Queue::default();
        for (at, (task, vruntime)) in [(3, 50), (1, 70), (2, 50), (0, 60)].into_iter().enumerate() {
            queue.join(TaskId(task), vruntime, at as u64);
        }
        let newest = |queue: &Queue| queue.newest().collect::<Vec<TaskId>>();
        assert_eq!(newest(&queue), [0, 2, 1, 3].map(TaskId));
        assert_eq!((queue.nth(0), queue.nth(1)), (Some((50, TaskId(3))), Some((50, TaskId(2)))));
        assert!(queue.leave(TaskId(2), 50, 2) && !queue.leave(TaskId(2), 50, 2));
        assert!(queue.leave(TaskId(3), 50, 0));
        assert_eq!(newest(&queue), [0, 1].map(TaskId));
        assert_eq!((queue.nth(0), queue.nth(1)), (Some((60, TaskId(0))), Some((70, TaskId(1)))));
        assert_eq!(queue.nth(2), None);
    }
}
