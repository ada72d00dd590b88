//! What threads do: a program is a list of operations, run from the first and round by jumps.
//!
//! Work is in nanoseconds of an undisturbed CPU. Objects (barriers, locks, queues, pools) are
//! numbered within a VM. A program knows nothing of vCPUs.

/// How a thread waits for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Sleeps in the guest kernel (futex).
    Block,
    /// Spins at user level for as long as it takes.
    Spin,
    /// Spins for so many nanoseconds, then sleeps.
    SpinBlock(u64),
    /// Spins for as long as waits of this thread usually take, so many nanoseconds at most, then
    /// sleeps. The rule of glibc's adaptive mutex (nptl/pthread_mutex_lock.c, 2.36): twice the mean
    /// of past spins, of which each new one weighs an eighth.
    Adaptive(u64),
    /// Spins in the guest kernel with the pause instruction: what pause-loop exiting catches.
    KernelSpin,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Computes `ns`, up to `spread` per cent more or less.
    Work {
        /// Nanoseconds.
        ns: u64,
        /// Per cent.
        spread: u32,
    },
    /// Computes for ever; every microsecond of it is a unit of throughput.
    Burn,
    /// Meets the other threads.
    Barrier {
        /// Which barrier.
        barrier: u32,
        /// How it waits.
        wait: Waiting,
    },
    /// Takes a lock, in order of asking.
    Lock {
        /// Which lock.
        lock: u32,
        /// How it waits.
        wait: Waiting,
    },
    /// Gives the lock to the thread that waits longest.
    Unlock {
        /// Which lock.
        lock: u32,
    },
    /// Puts an item into a queue; sleeps while it is full.
    Push {
        /// Which queue.
        queue: u32,
    },
    /// Takes an item out of a queue; sleeps while it is empty.
    Pop {
        /// Which queue.
        queue: u32,
    },
    /// Sleeps until its own timer fires after `ns`, up to `spread` per cent more or less.
    Sleep {
        /// Nanoseconds.
        ns: u64,
        /// Per cent.
        spread: u32,
    },
    /// Sleeps until the next multiple of `ns` since it began; how late it wakes is recorded.
    Periodic {
        /// Nanoseconds.
        ns: u64,
    },
    /// Waits for a device for `ns`, up to `spread` per cent more or less.
    Io {
        /// Nanoseconds.
        ns: u64,
        /// Per cent.
        spread: u32,
    },
    /// Skips the next `skip` operations unless it is this thread's turn: always that of thread 0,
    /// or when `rotating` each one's once in `of` times.
    Turn {
        /// Threads.
        of: u32,
        /// Whether the turn goes round.
        rotating: bool,
        /// Operations to skip.
        skip: u32,
    },
    /// Works off a pool of divisible work by stealing, round after round, for ever.
    Steal {
        /// Which pool.
        pool: u32,
    },
    /// Counts units of throughput.
    Count {
        /// Units.
        units: u64,
    },
    /// Goes to an operation.
    Jump {
        /// Its place.
        to: u32,
    },
    /// Goes to an operation unless it has come here so many times.
    Again {
        /// Times.
        times: u64,
        /// The operation's place.
        to: u32,
    },
    /// Ends.
    End,
}

/// What one kind of thread does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The operations.
    pub ops: Vec<Op>,
    /// Index of the profile of its work.
    pub profile: usize,
}

/// What a VM runs: programs, the threads that run them, and what they share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// The programs.
    pub programs: Vec<Program>,
    /// For each thread its program and its number within it.
    pub threads: Vec<(usize, u32)>,
    /// The barriers.
    pub barriers: Vec<BarrierPlan>,
    /// Number of locks.
    pub locks: u32,
    /// Items that fit into each queue.
    pub queues: Vec<u32>,
    /// Pools of divisible work.
    pub pools: Vec<PoolPlan>,
    /// Whether the guest's scheduler moves threads between vCPUs; else thread i stays on vCPU
    /// i modulo their number.
    pub float: bool,
    /// What a unit of throughput is.
    pub unit: &'static str,
    /// Of programs before this one throughput is measured; of all with `None`.
    pub measured: Option<usize>,
}

impl Workload {
    /// Throughput is that of the programs so far, if there are any and none were before: loads that run
    /// beside the first one have other units, which cannot be added to its.
    pub fn measure_first(&mut self) {
        if self.measured.is_none() && !self.programs.is_empty() {
            self.measured = Some(self.programs.len());
        }
    }

    /// Says what a unit is, unless that of what is measured has been said.
    pub fn count_in(&mut self, unit: &'static str) {
        if self.measured.is_none() {
            self.unit = unit;
        }
    }

    /// Whether what threads of this program do is throughput.
    pub fn measures(&self, program: usize) -> bool {
        self.measured.is_none_or(|end| program < end)
    }
}

/// A barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierPlan {
    /// Threads that meet.
    pub parties: u32,
    /// Whether the last one wakes sleepers one after the other, as long as it has a CPU, and none of them runs before its turn.
    /// So does `futex_wake` (kernel/futex.c, 3.0: under the lock of the hash bucket; 6.12, futex/waitwake.c: `wake_up_q`).
    /// Else all are woken at the same moment.
    pub wakes_in_turn: bool,
}

/// A pool of divisible work: a search tree under backtracking-based work stealing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolPlan {
    /// Work of one round, nanoseconds.
    pub round: u64,
    /// Work below this is not divided, nanoseconds.
    pub grain: u64,
    /// Of what is divided the victim keeps between `100 - uneven` and 100 per cent of a half.
    pub uneven: u32,
    /// Cost of giving work away: the victim backtracks, nanoseconds.
    pub give: u64,
}
