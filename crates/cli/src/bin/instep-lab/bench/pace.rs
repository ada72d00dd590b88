//! How long a benchmark takes: told before it begins, and how much is left while it runs.

use crate::lab::Progress;
use crate::tell;
use instep_bench::cell::BenchCell;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

/// Until so much is done, the estimate made before is believed.
const ENOUGH: Duration = Duration::from_secs(60);

/// What is done and what is left, by estimates made before, held against the clock.
#[derive(Debug)]
pub(super) struct Pace {
    began: Instant,
    all: Duration,
    done: Duration,
    cells: usize,
    number: usize,
}

impl Pace {
    /// Tells how long it will take.
    pub(super) fn begin(cells: usize, boots: usize, all: Duration, kept: bool) -> Self {
        let hosts = match boots {
            0 => String::new(),
            1 => " on one emulated host".to_owned(),
            many => format!(" on {many} emulated hosts"),
        };
        let end = if kept { "; finished cells are kept" } else { "" };
        tell(&format!("{cells} cells{hosts}: about {} on a quiet machine{end}", spoken(all)));
        Self { began: Instant::now(), all, done: Duration::ZERO, cells, number: 0 }
    }

    /// Something that was reckoned to take so long is done, or need not be done.
    pub(super) fn done(&mut self, about: Duration) {
        self.done += about;
    }

    /// A cell is done that was reckoned to take so long.
    pub(super) fn cell(&mut self, cell: &BenchCell, about: Duration, progress: &Progress) {
        self.done(about);
        self.number += 1;
        let mark = if cell.failed.is_some() { ", failed" } else { "" };
        progress.say(&format!(
            "cell {} of {}: {} under {}, run {}{mark}; about {} left",
            self.number.min(self.cells),
            self.cells,
            cell.case,
            cell.scheduler,
            cell.run + 1,
            spoken(self.left(self.began.elapsed()))
        ));
    }

    /// A block begins: a line where no spinner is seen.
    pub(super) fn block(&self, what: &str, progress: &Progress) {
        progress.say(what);
        if !std::io::stderr().is_terminal() {
            tell(&format!("{what}; about {} left", spoken(self.left(self.began.elapsed()))));
        }
    }

    fn left(&self, elapsed: Duration) -> Duration {
        let left = self.all.saturating_sub(self.done);
        if self.done < ENOUGH {
            return left;
        }
        left.mul_f64((elapsed.as_secs_f64() / self.done.as_secs_f64()).clamp(0.2, 20.0))
    }
}

/// Rounded up to what is worth saying.
fn spoken(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{}s", seconds.div_ceil(10) * 10),
        seconds => format!("{} minutes", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_the_clock_once_enough_is_done() {
        let s = Duration::from_secs;
        let pace = |done| Pace { began: Instant::now(), all: s(1000), done, cells: 9, number: 0 };
        assert_eq!(pace(s(50)).left(s(500)), s(950), "too early to tell");
        assert_eq!(pace(s(200)).left(s(400)), s(1600), "twice as slow as thought");
        assert_eq!(pace(s(2000)).left(s(4000)), s(0));
    }

    #[test]
    fn times_are_spoken_roughly() {
        let spoken = |seconds| spoken(Duration::from_secs(seconds));
        assert_eq!((spoken(0), spoken(1), spoken(119)), ("0s".into(), "10s".into(), "120s".into()));
        assert_eq!((spoken(121), spoken(2400)), ("3 minutes".into(), "40 minutes".into()));
    }
}
