//! A CPU's run queue: who waits, by virtual runtime and in the order of arrival.
//!
//! What a choice needs is found in the logarithm of the queue's length, as with the kernel's tree.
//! Balancing looks at tasks in the order in which they came, newest first.

use crate::desk::TaskId;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// In the order of arrival.
    tasks: Vec<TaskId>,
    /// Virtual runtime of each and itself, ascending.
    line: Vec<(u64, TaskId)>,
    /// update_min_vruntime.
    pub(super) min_vruntime: u64,
    /// Weight of all its tasks, the running one included.
    pub(super) weight: u64,
    /// Whom a directed yield asked to run next.
    pub(super) next: Option<TaskId>,
    /// Who yielded and shall not run next.
    pub(super) skip: Option<TaskId>,
}

impl Queue {
    /// Tasks that wait, in the order of arrival.
    pub(super) fn tasks(&self) -> &[TaskId] {
        &self.tasks
    }

    /// A task comes. Its virtual runtime stands still while it is here.
    pub(super) fn join(&mut self, task: TaskId, vruntime: u64) {
        self.tasks.push(task);
        let at = self.line.partition_point(|other| *other < (vruntime, task));
        self.line.insert(at, (vruntime, task));
    }

    /// A task with this virtual runtime leaves; whether it was here.
    pub(super) fn leave(&mut self, task: TaskId, vruntime: u64) -> bool {
        let Ok(at) = self.line.binary_search(&(vruntime, task)) else { return false };
        self.line.remove(at);
        let place = self.tasks.iter().position(|other| *other == task);
        place.map(|at| self.tasks.remove(at)).is_some()
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
        for (task, vruntime) in [(3, 50), (1, 70), (2, 50), (0, 60)] {
            queue.join(TaskId(task), vruntime);
        }
        assert_eq!(queue.tasks(), [3, 1, 2, 0].map(TaskId));
        assert_eq!((queue.nth(0), queue.nth(1)), (Some((50, TaskId(2))), Some((50, TaskId(3)))));
        assert!(queue.leave(TaskId(2), 50) && !queue.leave(TaskId(2), 50));
        assert!(queue.leave(TaskId(3), 50));
        assert_eq!(queue.tasks(), [1, 0].map(TaskId));
        assert_eq!((queue.nth(0), queue.nth(1)), (Some((60, TaskId(0))), Some((70, TaskId(1)))));
        assert_eq!(queue.nth(2), None);
    }
}
