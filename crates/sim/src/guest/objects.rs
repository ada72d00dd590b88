//! What threads of a VM wait for: barriers, locks, queues, pools of work; and lists of waiters,
//! first come first served, kept in the threads themselves so that nothing is allocated.

use super::program::{BarrierPlan, PoolPlan, Workload};

/// Nobody.
pub const NONE: u32 = u32::MAX;

/// A list of threads, linked through [`Links`].
#[derive(Clone, Copy, Debug)]
pub struct List {
    head: u32,
    tail: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NONE, tail: NONE }
    }
}

/// For each thread the next in the one list it is in.
#[derive(Clone, Debug)]
pub struct Links(Vec<u32>);

impl Links {
    /// Links of so many threads, none in a list.
    pub fn new(threads: usize) -> Self {
        Self(vec![NONE; threads])
    }
}

impl List {
    /// Whether nobody is in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Adds a thread, which is in no list, at the end.
    #[inline]
    pub fn push(&mut self, links: &mut Links, thread: u32) {
        links.0[thread as usize] = NONE;
        if self.tail == NONE {
            self.head = thread;
        } else {
            links.0[self.tail as usize] = thread;
        }
        self.tail = thread;
    }

    /// Takes the first.
    #[inline]
    pub fn pop(&mut self, links: &Links) -> Option<u32> {
        let first = self.head;
        if first == NONE {
            return None;
        }
        self.head = links.0[first as usize];
        if self.head == NONE {
            self.tail = NONE;
        }
        Some(first)
    }
}

/// A barrier.
#[derive(Clone, Debug)]
pub struct Barrier {
    /// Its plan.
    pub plan: BarrierPlan,
    /// Threads that are there.
    pub arrived: u32,
    /// The CPU that wrote its cache line last.
    pub writer: Option<usize>,
    /// Those who wait.
    pub waiters: List,
    /// Those who slept when the last one came, and are still to be woken.
    pub sleepers: List,
}

/// A lock, given to the thread that waits longest. Its owner is known to have it, not recorded.
#[derive(Clone, Debug, Default)]
pub struct Lock {
    /// Whether somebody has it.
    pub held: bool,
    /// The CPU that wrote its cache line last.
    pub writer: Option<usize>,
    /// Those who wait.
    pub waiters: List,
}

/// A bounded queue of items.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Items that fit.
    pub depth: u32,
    /// Items in it.
    pub items: u32,
    /// The CPU that wrote its cache line last.
    pub writer: Option<usize>,
    /// Those who wait to put one in.
    pub full: List,
    /// Those who wait to take one out.
    pub empty: List,
}

/// A pool of divisible work; the work itself is in the threads.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Its plan.
    pub plan: PoolPlan,
    /// Threads that have work.
    pub busy: u32,
    /// Its threads, numbers of the engine.
    pub members: Vec<u32>,
}

/// Everything that one VM's threads share.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Barriers.
    pub barriers: Vec<Barrier>,
    /// Locks.
    pub locks: Vec<Lock>,
    /// Queues.
    pub queues: Vec<Queue>,
    /// Pools.
    pub pools: Vec<Pool>,
}

impl Objects {
    /// What `workload` shares, before anything ran.
    pub fn new(workload: &Workload) -> Self {
        let barrier = |plan: &BarrierPlan| Barrier {
            plan: *plan,
            arrived: 0,
            writer: None,
            waiters: List::default(),
            sleepers: List::default(),
        };
        let queue = |depth: &u32| Queue {
            depth: *depth,
            items: 0,
            writer: None,
            full: List::default(),
            empty: List::default(),
        };
        let pool = |plan: &PoolPlan| Pool { plan: *plan, busy: 0, members: Vec::new() };
        Self {
            barriers: workload.barriers.iter().map(barrier).collect(),
            locks: vec![Lock::default(); workload.locks as usize],
            queues: workload.queues.iter().map(queue).collect(),
            pools: workload.pools.iter().map(pool).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_waiter_leaves_first() {
        let (mut links, mut list) = (Links::new(4), List::default());
        for thread in [2, 0, 3] {
            list.push(&mut links, thread);
        }
        let order: Vec<_> = std::iter::from_fn(|| list.pop(&links)).collect();
        assert_eq!(order, [2, 0, 3]);
        assert!(list.is_empty());
        list.push(&mut links, 1);
        assert_eq!(list.pop(&links), Some(1));
    }
}
