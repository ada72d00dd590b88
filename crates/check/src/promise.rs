//! What a scheduler promises, as far as checkers can hold it to it. Affinity, conservation of CPU time
//! and the order of facts are promised by all.

use super::{
    Affinity, Checker, Conserved, Idle, Share, Stacking, Wait, WaitBound, Woken, wait_bound,
};

/// Promises; what is `None` or false is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promises {
    /// For how long at most a CPU idles beside a task that it may run, nanoseconds.
    pub idle: Option<u64>,
    /// Whether that holds, too, where some tasks may not use all CPUs.
    pub pinned: bool,
    /// For how long at most a woken task waits on a CPU that idles, nanoseconds.
    pub woken: Option<u64>,
    /// How long a turn at weight 100 is at most, nanoseconds: bounds waits.
    pub turn: Option<u64>,
    /// Whether that bounds waits only where all VMs always want to run: who wakes goes first, each time.
    pub wakers_first: bool,
    /// Instead of that for vCPUs: how long one waits at most.
    pub wait_bound: Option<WaitBound>,
    /// Whether runnable siblings are never on one CPU.
    pub apart: bool,
    /// How far VMs that always want to run are from their shares at most.
    pub share: Option<Share>,
}

impl Promises {
    /// What every scheduler promises, and no more.
    pub const NONE: Self = Self {
        idle: None,
        pinned: true,
        woken: None,
        turn: None,
        wakers_first: false,
        wait_bound: None,
        apart: false,
        share: None,
    };

    /// What the name *work conserving* says, and turns of at most 30 ms, for a scheduler with
    /// this tick, nanoseconds.
    pub fn usual(work_conserving: bool, tick: u64) -> Self {
        // Every CPU looks for work on a tick, one for its group in a span.
        let idle = work_conserving.then_some(8 * tick + 100_000_000);
        Self { idle, woken: Some(tick), turn: Some(30_000_000), ..Self::NONE }
    }

    /// The checkers of these promises. VMs from number `vms` on stand for threads of none. `saturated`:
    /// all VMs always want all their vCPUs to run, and may use all CPUs.
    pub fn checkers(&self, vms: usize, saturated: bool) -> Vec<Box<dyn Checker>> {
        let mut all: Vec<Box<dyn Checker>> = vec![Box::new(Conserved), Box::new(Affinity)];
        if let Some(grace) = self.woken {
            all.push(Box::new(Woken { grace }));
        }
        if let Some(grace) = self.idle {
            all.push(Box::new(Idle::new(grace, self.pinned)));
        }
        if let Some(turn) = self.turn.filter(|_| saturated || !self.wakers_first) {
            let from = if self.wait_bound.is_some() { vms } else { 0 };
            all.push(Box::new(Wait::of(turn, from)));
        }
        if let Some(rules) = self.wait_bound {
            all.push(Box::new(wait_bound::Checked::new(rules, vms)));
        }
        if self.apart {
            all.push(Box::<Stacking>::default());
        }
        if let Some(share) = self.share.filter(|_| saturated) {
            all.push(Box::new(share));
        }
        all
    }
}
