//! Where vCPUs are, one change after the other, and how far a waiting one falls behind its siblings.
//!
//! *Skew* (systems.md, 3) grows while a vCPU waits and a sibling runs, and shrinks while it runs and a sibling waits, not
//! below zero: what relaxed co-scheduling bounds. A vCPU that sleeps falls behind nobody.

use crate::units::{CpuId, Nanos};

/// Where a vCPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedState {
    /// Not seen yet.
    Unknown,
    /// Runs on this CPU.
    Running(CpuId),
    /// Could run and waits, on this CPU's queue.
    Waiting(CpuId),
    /// Was told to wake up and is not on a queue yet: the CPU it goes to may have to be told, too.
    Waking,
    /// Sleeps: the guest CPU is halted, or the VMM waits for something.
    Blocked,
}

impl SchedState {
    /// Whether the vCPU could run and does not.
    #[inline]
    pub fn is_waiting(self) -> bool {
        matches!(self, SchedState::Waking | SchedState::Waiting(_))
    }

    /// The CPU on which it runs, or on whose queue it waits.
    #[inline]
    pub fn cpu(self) -> Option<CpuId> {
        match self {
            SchedState::Running(cpu) | SchedState::Waiting(cpu) => Some(cpu),
            SchedState::Waking | SchedState::Blocked | SchedState::Unknown => None,
        }
    }
}

/// A vCPU goes from one place to another: what every measure of a schedule is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuChange {
    /// When.
    pub time: Nanos,
    /// The vCPU's number among those of all VMs.
    pub vcpu: usize,
    /// Its VM's number.
    pub vm: usize,
    /// Where it was.
    pub from: SchedState,
    /// Where it is from now on.
    pub to: SchedState,
    /// Since when it was `from`.
    pub since: Nanos,
}

/// How many of a VM's vCPUs run and how many wait, and for how long any did: the two clocks of skew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Siblings {
    running: u32,
    waiting: u32,
    any_running: u64,
    any_waiting: u64,
    beside_waiting: u64,
}

impl Siblings {
    /// So much time went by, nanoseconds, in which nothing changed.
    #[inline]
    pub fn pass(&mut self, span: u64) {
        if self.running > 0 {
            self.any_running += span;
        }
        if self.waiting > 0 {
            self.any_waiting += span;
            self.beside_waiting += span * u64::from(self.running);
        }
    }

    /// A vCPU is no longer at a place.
    #[inline]
    pub fn leave(&mut self, place: SchedState) {
        if let Some(count) = self.count_of(place) {
            *count = count.saturating_sub(1);
        }
    }

    /// A vCPU is at a place from now on.
    #[inline]
    pub fn enter(&mut self, place: SchedState) {
        if let Some(count) = self.count_of(place) {
            *count += 1;
        }
    }

    #[inline]
    fn count_of(&mut self, place: SchedState) -> Option<&mut u32> {
        match place {
            SchedState::Running(_) => Some(&mut self.running),
            SchedState::Waking | SchedState::Waiting(_) => Some(&mut self.waiting),
            SchedState::Blocked | SchedState::Unknown => None,
        }
    }

    /// How many run now.
    #[inline]
    pub fn running(&self) -> u32 {
        self.running
    }

    /// Time of vCPUs that ran while a sibling waited, summed over them.
    pub fn beside_waiting(&self) -> Nanos {
        Nanos(self.beside_waiting)
    }

    /// Forgets the times, not who is where; skews begin anew, too.
    pub fn reset(&mut self) {
        (self.any_running, self.any_waiting, self.beside_waiting) = (0, 0, 0);
    }
}

/// By how much CPU time a vCPU is behind its siblings, and its VM's two clocks when that was last brought up to date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skew {
    behind: u64,
    any_running: u64,
    any_waiting: u64,
}

impl Skew {
    /// Brings it up to date for a vCPU that was at `place` since the last call; how far it is behind now.
    #[inline]
    pub fn advance(&mut self, place: SchedState, siblings: &Siblings) -> u64 {
        match place {
            SchedState::Waking | SchedState::Waiting(_) => {
                self.behind += siblings.any_running - self.any_running;
            }
            SchedState::Running(_) => {
                let waited = siblings.any_waiting - self.any_waiting;
                self.behind = self.behind.saturating_sub(waited);
            }
            SchedState::Blocked | SchedState::Unknown => self.behind = 0,
        }
        (self.any_running, self.any_waiting) = (siblings.any_running, siblings.any_waiting);
        self.behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_grows_while_waiting_shrinks_while_running_and_ends_asleep() {
        let (mut siblings, mut skew) = (Siblings::default(), Skew::default());
        let (here, there) = (SchedState::Running(CpuId(0)), SchedState::Waiting(CpuId(1)));
        siblings.enter(here);
        siblings.enter(there);
        siblings.pass(100);
        assert_eq!(skew.advance(there, &siblings), 100);
        assert_eq!((siblings.beside_waiting(), siblings.running()), (Nanos(100), 1));
        // They change places.
        siblings.pass(40);
        assert_eq!(skew.advance(here, &siblings), 60);
        siblings.leave(there);
        siblings.pass(50);
        assert_eq!(skew.advance(here, &siblings), 60, "no sibling waits");
        assert_eq!(skew.advance(SchedState::Blocked, &siblings), 0);
    }
}
