//! What happened to a schedule: the facts that checkers judge. Plain data, from the engine or from a
//! recorded trace alike; knows no scheduler and no guest.
//!
//! ```text
//!              Wake                   Start
//!   blocked ----------> waiting <--------------> running
//!      ^                  |  ^    Stop            |
//!      |                  +--+ Move               |
//!      +------------------------------------------+  Stop, blocks
//! ```

use crate::mask::Mask;

/// One fact and when it happened. Facts come in order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Nanoseconds since the beginning.
    pub at: u64,
    /// What happened.
    pub what: FactKind,
}

/// What happened. Tasks (vCPUs) and CPUs are indices from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FactKind {
    /// A waiting task begins to run (`sched_switch`'s next).
    Start {
        /// The task.
        task: u32,
        /// Where.
        cpu: u32,
    },
    /// A running task stops (`sched_switch`'s prev).
    Stop {
        /// The task.
        task: u32,
        /// Where.
        cpu: u32,
        /// Whether it blocks; else it waits, in the queue of the same CPU.
        blocks: bool,
    },
    /// A blocked task waits for a CPU from now on (`sched_wakeup`).
    Wake {
        /// The task.
        task: u32,
        /// In whose queue.
        cpu: u32,
    },
    /// A waiting task goes to another CPU's queue (`sched_migrate_task`).
    Move {
        /// The task.
        task: u32,
        /// In whose queue it is from now on.
        cpu: u32,
    },
    /// Which CPUs a task may use from now on (hard affinity).
    Allowed {
        /// The task.
        task: u32,
        /// The CPUs.
        cpus: Mask,
    },
}

impl FactKind {
    /// Whom it is about.
    pub fn task(&self) -> u32 {
        match self {
            Self::Start { task, .. }
            | Self::Stop { task, .. }
            | Self::Wake { task, .. }
            | Self::Move { task, .. }
            | Self::Allowed { task, .. } => *task,
        }
    }

    /// Where it happened, if it has a place.
    pub fn cpu(&self) -> Option<u32> {
        match self {
            Self::Start { cpu, .. }
            | Self::Stop { cpu, .. }
            | Self::Wake { cpu, .. }
            | Self::Move { cpu, .. } => Some(*cpu),
            Self::Allowed { .. } => None,
        }
    }
}
