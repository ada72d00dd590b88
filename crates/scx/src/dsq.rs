//! A dispatch queue: first in first out, or ordered by virtual time. It knows positions only, neither
//! CPUs nor what tasks are.
//!
//! As the kernel's (struct scx_dispatch_q, Linux 6.12 to 7.2): a queue that the scheduler made is of
//! one kind at a time; of equal keys who came first goes first; programs look through it in order,
//! and do not see what came after they began.

use crate::abi::{ITER_REV, Iter};

/// A task in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) task: usize,
    /// Key of ordered queues; 0 in others.
    vtime: u64,
    /// Among equal keys: lower is earlier. Negative when it was put to the head.
    place: i64,
    /// How many came to the queue before it.
    seq: u64,
}

/// The queue. See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dsq {
    entries: Vec<Entry>,
    ordered: bool,
    seq: u64,
}

/// Whether key `a` goes before key `b`; virtual times are compared by signed difference.
fn before(a: (u64, i64), b: (u64, i64)) -> bool {
    let by_time = a.0.wrapping_sub(b.0) as i64;
    by_time < 0 || by_time == 0 && a.1 < b.1
}

impl Dsq {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The first task.
    #[inline]
    pub(crate) fn first(&self) -> Option<usize> {
        self.entries.first().map(|entry| entry.task)
    }

    /// The task at this position.
    pub(crate) fn at(&self, at: usize) -> Option<usize> {
        self.entries.get(at).map(|entry| entry.task)
    }

    /// Puts a task to the end, or to the head. False when ordered ones are there.
    pub(crate) fn push(&mut self, task: usize, head: bool) -> bool {
        if self.ordered && !self.entries.is_empty() {
            return false;
        }
        self.ordered = false;
        self.seq += 1;
        let place = self.seq as i64;
        let entry =
            Entry { task, vtime: 0, place: if head { -place } else { place }, seq: self.seq };
        if head {
            self.entries.insert(0, entry);
        } else {
            self.entries.push(entry);
        }
        true
    }

    /// Puts a task to its place by `vtime`. False when others than ordered ones are there.
    pub(crate) fn insert(&mut self, task: usize, vtime: u64) -> bool {
        if !self.ordered && !self.entries.is_empty() {
            return false;
        }
        self.ordered = true;
        self.seq += 1;
        let key = (vtime, self.seq as i64);
        let at = self.entries.partition_point(|entry| !before(key, (entry.vtime, entry.place)));
        self.entries.insert(at, Entry { task, vtime, place: key.1, seq: self.seq });
        true
    }

    /// Takes a task out; false if it is not there.
    pub(crate) fn remove(&mut self, task: usize) -> bool {
        let at = self.entries.iter().position(|entry| entry.task == task);
        at.map(|at| self.entries.remove(at)).is_some()
    }

    /// Begins to look through it.
    pub(crate) fn begin(&self, iter: &mut Iter) {
        iter.begun = 0;
        iter.before_seq = self.seq;
    }

    /// The next task of those that were there when the look began.
    pub(crate) fn next(&self, iter: &mut Iter) -> Option<usize> {
        let reverse = iter.flags & ITER_REV != 0;
        let after = (iter.after_vtime, iter.after_place);
        let key = |entry: &Entry| (entry.vtime, entry.place);
        let old = |entry: &&Entry| entry.seq <= iter.before_seq;
        let entry = match (iter.begun != 0, reverse) {
            (false, false) => self.entries.iter().find(old),
            (false, true) => self.entries.iter().rev().find(old),
            (true, false) => {
                let from = self.entries.partition_point(|entry| !before(after, key(entry)));
                self.entries[from..].iter().find(old)
            }
            (true, true) => {
                let to = self.entries.partition_point(|entry| before(key(entry), after));
                self.entries[..to].iter().rev().find(old)
            }
        }?;
        iter.begun = 1;
        (iter.after_vtime, iter.after_place) = key(entry);
        Some(entry.task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(dsq: &Dsq, flags: u64) -> Vec<usize> {
        let mut iter = Iter { flags, ..Iter::default() };
        dsq.begin(&mut iter);
        std::iter::from_fn(|| dsq.next(&mut iter)).collect()
    }

    #[test]
    fn first_in_first_out_but_for_the_head() {
        let mut dsq = Dsq::default();
        assert!(dsq.push(1, false) && dsq.push(2, false) && dsq.push(3, true) && dsq.push(4, true));
        assert_eq!((all(&dsq, 0), dsq.len()), (vec![4, 3, 1, 2], 4));
        assert_eq!(all(&dsq, ITER_REV), [2, 1, 3, 4]);
    }

    #[test]
    fn virtual_times_order_and_equals_keep_their_turn_across_the_wrap() {
        let mut dsq = Dsq::default();
        for (task, vtime) in [(1, 5), (2, u64::MAX - 1), (3, 5), (4, 0)] {
            assert!(dsq.insert(task, vtime));
        }
        assert_eq!(all(&dsq, 0), [2, 4, 1, 3]);
    }

    #[test]
    fn a_queue_is_of_one_kind_until_it_is_empty() {
        let mut dsq = Dsq::default();
        assert!(dsq.insert(1, 5) && !dsq.push(2, false));
        assert!(dsq.remove(1) && !dsq.remove(1));
        assert!(dsq.push(2, false) && !dsq.insert(1, 5));
    }

    #[test]
    fn iterator_sees_only_tasks_that_were_queued() {
        let mut dsq = Dsq::default();
        (0..4).for_each(|task| assert!(dsq.insert(task, task as u64 * 10)));
        let mut iter = Iter::default();
        dsq.begin(&mut iter);
        assert_eq!(dsq.next(&mut iter), Some(0));
        assert_eq!(dsq.next(&mut iter), Some(1));
        assert!(dsq.remove(1) && dsq.remove(2) && dsq.insert(9, 25));
        assert_eq!((dsq.next(&mut iter), dsq.next(&mut iter)), (Some(3), None));
    }
}
