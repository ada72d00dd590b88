//! Speeds out of what the guests' loads print: `work NANOSECONDS COUNT`, by the guest's own clock and
//! since its load began.

use crate::page::SpeedSample;

/// What a load had done at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    t_ns: u64,
    work: u64,
}

impl Count {
    /// Reads the last whole line of this form. A console is written byte by byte: what follows the last
    /// end of a line may be a number that lacks digits.
    pub(super) fn last(console: &str) -> Option<Self> {
        let (whole, _) = console.rsplit_once('\n')?;
        whole.lines().rev().find_map(|line| {
            let mut words = line.trim().strip_prefix("work ")?.split(' ');
            let count =
                Self { t_ns: words.next()?.parse().ok()?, work: words.next()?.parse().ok()? };
            words.next().is_none().then_some(count)
        })
    }

    /// Work for each second since an earlier moment; `None` when no time has passed.
    pub(super) fn rate_since(self, before: Self) -> Option<f64> {
        let nanos = self.t_ns.checked_sub(before.t_ns).filter(|nanos| *nanos > 0)?;
        Some(self.work.checked_sub(before.work)? as f64 * 1e9 / nanos as f64)
    }
}

/// A phase while it is read: each guest's counts, and its speed from look to look.
#[derive(Debug)]
pub(super) struct Course {
    /// The rate of each guest that is a speed of 1.
    fair: Vec<f64>,
    first: Vec<Count>,
    last: Vec<Count>,
    pub(super) looks: Vec<SpeedSample>,
}

impl Course {
    pub(super) fn new(fair: &[f64], first: Vec<Count>) -> Self {
        Self { fair: fair.to_vec(), last: first.clone(), first, looks: Vec::new() }
    }

    /// Takes one more look. A guest that has printed nothing since keeps the speed that it had.
    pub(super) fn add_sample(&mut self, seconds: f64, now: &[Count]) {
        let before = self.looks.last().map(|look| look.speeds.clone());
        let mut speeds = before.unwrap_or_else(|| vec![0.0; self.fair.len()]);
        for (guest, speed) in speeds.iter_mut().enumerate() {
            if let Some(rate) = now[guest].rate_since(self.last[guest]) {
                *speed = rate / self.fair[guest];
                self.last[guest] = now[guest];
            }
        }
        self.looks.push(SpeedSample { seconds, speeds });
    }

    /// Each guest's speed over all of it; `None` when one has printed nothing in all the time.
    pub(super) fn mean(&self) -> Option<Vec<f64>> {
        let all = self.last.iter().zip(&self.first).zip(&self.fair);
        all.map(|((last, first), fair)| Some(last.rate_since(*first)? / fair)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(t_ms: u64, work: u64) -> Count {
        Count { t_ns: t_ms * 1_000_000, work }
    }

    #[test]
    fn the_last_whole_line_counts() {
        let console = "instep-guest: ready\r\nwork 1000000 5\r\nwork 2000000 9\r\nwork 3000000 1";
        assert_eq!(Count::last(console), Some(count(2, 9)));
        assert_eq!(Count::last("work x 9\nwork 1 2 3\n"), None);
        assert_eq!(Count::last(""), None);
    }

    #[test]
    fn speeds_are_parts_of_the_fair_rate() {
        let mut course = Course::new(&[100.0, 10.0], vec![count(0, 0), count(500, 7)]);
        course.add_sample(1.0, &[count(1000, 50), count(1500, 17)]);
        // The first has printed nothing since.
        course.add_sample(2.0, &[count(1000, 50), count(2500, 22)]);
        course.add_sample(3.0, &[count(3000, 250), count(3500, 32)]);
        let speeds: Vec<_> = course.looks.iter().map(|look| look.speeds.clone()).collect();
        assert_eq!(speeds, [vec![0.5, 1.0], vec![0.5, 0.5], vec![1.0, 1.0]]);
        let mean = course.mean().unwrap();
        assert!((mean[0] - 250.0 / 300.0).abs() < 1e-9 && (mean[1] - 25.0 / 30.0).abs() < 1e-9);
    }

    #[test]
    fn silent_guest_has_no_mean() {
        let mut course = Course::new(&[1.0], vec![count(1, 1)]);
        course.add_sample(1.0, &[count(1, 1)]);
        assert_eq!(course.mean(), None);
    }
}
