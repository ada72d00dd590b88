//! Bounded wait: a task that wants a CPU gets one in time. The bound is one turn of every other task; for one of
//! larger weight as many turns as its weight is larger.

use super::Checker;
use super::picture::{Picture, TaskLife};

/// The checker.
#[derive(Clone, Debug)]
pub struct Wait {
    turn: u64,
    /// Only tasks of VMs from this number on.
    from: usize,
    bounds: Vec<u64>,
}

/// Beside the turns, nanoseconds: balancing between CPUs has its own times.
const GRACE: u64 = 200_000_000;

impl Wait {
    /// With turns of so many nanoseconds at weight 100.
    pub fn new(turn: u64) -> Self {
        Self { turn, from: 0, bounds: Vec::new() }
    }

    /// The same, for VMs from this number on.
    pub(super) fn of(turn: u64, from: usize) -> Self {
        Self { from, ..Self::new(turn) }
    }

    /// How long each task may wait, nanoseconds. Twice all turns: one that has begun may be lost
    /// by moving to another CPU.
    fn bounds(&self, picture: &Picture) -> Vec<u64> {
        let turns = |own: usize| {
            let weight = u64::from(picture.tasks[own].weight.max(1));
            let others = picture.tasks.iter().enumerate().filter(|(other, _)| *other != own);
            let times = others.map(|(_, other)| {
                let other = u64::from(other.weight);
                other.div_ceil(weight).max(other.div_ceil(100)).max(1)
            });
            times.sum::<u64>()
        };
        let bound = |own| GRACE.saturating_add(self.turn.saturating_mul(2 * turns(own)));
        (0..picture.tasks.len()).map(bound).collect()
    }
}

impl Checker for Wait {
    fn name(&self) -> &'static str {
        "wait"
    }

    fn span(&mut self, picture: &Picture, to: u64) -> Option<String> {
        if picture.waiting == 0 {
            return None;
        }
        if self.bounds.len() != picture.tasks.len() {
            self.bounds = self.bounds(picture);
        }
        let late = |(task, bound): (&super::picture::TaskPicture, &u64)| {
            task.vm >= self.from && task.life == TaskLife::Waiting && to - task.since > *bound
        };
        let at = picture.tasks.iter().zip(&self.bounds).position(late)?;
        let (task, ms) = (&picture.tasks[at], 1_000_000);
        Some(format!(
            "task {at} waits for {} ms on CPU {}; {} ms are the bound",
            (to - task.since) / ms,
            task.cpu,
            self.bounds[at] / ms
        ))
    }
}
