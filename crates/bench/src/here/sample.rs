//! Stacking by looking again and again, and competing modules from the CPUs' own counters.
//!
//! Where tracing cannot be switched on, siblings are looked at every few milliseconds: which are
//! runnable, and on which CPU (/proc/PID/task/TID/stat, fields state and processor). It is a
//! fraction of looks, not of time, and coarse: 100 looks tell 0.05 from 0, not from 0.03. Threads are
//! read one after the other, so what seems stacked is read once more at once: one that has left the CPU
//! before another came was not.

use super::read;
use instep_core::measure;
use instep_core::topology::Topology;
use std::time::{Duration, Instant};

/// The time between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// A window of competing modules: ten ticks of the CPUs' busy time.
const WINDOW: Duration = Duration::from_millis(100);

/// Where a thread is that is no more.
const GONE: (bool, u32) = (false, u32::MAX);

/// Fraction of looks in `time` at which two or more of these threads were runnable on one CPU;
/// `None` when none of them was ever seen.
pub(super) fn stacking(pid: u32, tids: &[u32], time: Duration) -> Option<f64> {
    let end = Instant::now() + time;
    let (mut looks, mut stacked) = (0u32, 0u32);
    while Instant::now() < end {
        let look = |tid: &u32| place(&read(format!("/proc/{pid}/task/{tid}/stat")));
        // One that is gone is nowhere, and runs there no more.
        let all = || tids.iter().map(|tid| look(tid).unwrap_or(GONE)).collect::<Vec<_>>();
        let seen = all();
        if seen.iter().any(|place| *place != GONE) {
            looks += 1;
            stacked += u32::from(is_stacked(&seen) && are_stacked(&seen, &all()));
        }
        std::thread::sleep(LOOK);
    }
    (looks > 0).then(|| f64::from(stacked) / f64::from(looks))
}

/// Whether two runnable ones are on one CPU.
fn is_stacked(seen: &[(bool, u32)]) -> bool {
    let mut cpus: Vec<u32> = seen.iter().filter(|(runnable, _)| *runnable).map(|s| s.1).collect();
    cpus.sort_unstable();
    cpus.windows(2).any(|pair| pair[0] == pair[1])
}

/// Whether two that were runnable on one CPU still are, on the same.
fn are_stacked(before: &[(bool, u32)], after: &[(bool, u32)]) -> bool {
    let stayed: Vec<(bool, u32)> =
        before.iter().zip(after).filter(|(then, now)| then == now).map(|(_, now)| *now).collect();
    is_stacked(&stayed)
}

/// Whether a thread is runnable, and its CPU, from its stat; `None` for what is no such text.
fn place(stat: &str) -> Option<(bool, u32)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    // Field 39 of proc(5); the state is the third.
    let cpu = fields.nth(35)?.parse().ok()?;
    Some((state == "R", cpu))
}

/// *Competing modules* (systems.md, 1, but for the length of windows). The measure takes the busy parts of a core's
/// CPUs for chances, so a thread that went from one CPU of its core to the other meanwhile counts as two: in
/// windows of a second that made 0.3 of nothing. What is left behind the last window is not looked at.
pub(super) struct Modules {
    /// The CPUs of each core; none where no core has several.
    cores: Vec<Vec<usize>>,
    busy: Vec<u64>,
    at: Instant,
    sum: f64,
    seconds: f64,
}

impl Modules {
    pub(super) fn begin(topology: Option<&Topology>) -> Self {
        let cores = topology.map_or(&[][..], Topology::cores).iter();
        let cores: Vec<Vec<usize>> =
            cores.map(|core| core.iter().map(|cpu| cpu.0 as usize).collect()).collect();
        let cores = if cores.iter().any(|core| core.len() > 1) { cores } else { Vec::new() };
        Self { cores, busy: busy(), at: Instant::now(), sum: 0.0, seconds: 0.0 }
    }

    /// When to look next: never where there is nothing to be seen.
    pub(super) fn next(&self) -> Option<Instant> {
        (!self.cores.is_empty()).then(|| self.at + WINDOW)
    }

    pub(super) fn cpus(&self) -> usize {
        self.busy.len()
    }

    /// A window ends, by which CPUs have been busy so long, and the next begins.
    pub(super) fn note_busy(&mut self, busy: Vec<u64>, now: Instant) {
        let took = now - self.at;
        self.sum += competing(&self.busy, &busy, took, &self.cores) * took.as_secs_f64();
        self.seconds += took.as_secs_f64();
        (self.busy, self.at) = (busy, now);
    }

    /// The mean over all windows.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.sum / self.seconds)
    }
}

/// Busy time of each CPU by number so far, in clock ticks, from /proc/stat.
pub(super) fn busy() -> Vec<u64> {
    busy_of(&read("/proc/stat"))
}

fn busy_of(text: &str) -> Vec<u64> {
    let mut busy = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let number = words.next().and_then(|name| name.strip_prefix("cpu")?.parse::<usize>().ok());
        let Some(cpu) = number.filter(|cpu| *cpu < 8192) else { continue };
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).take(8).collect();
        // Idle is the fourth, waiting for I/O the fifth.
        let all: u64 = ticks.iter().sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        busy.resize(busy.len().max(cpu + 1), 0);
        busy[cpu] = all.saturating_sub(idle);
    }
    busy
}

/// Those of one window, between two readings of [`busy`].
fn competing(before: &[u64], after: &[u64], time: Duration, cores: &[Vec<usize>]) -> f64 {
    let window = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    // Ticks of a hundredth of a second, as everywhere in /proc.
    let ms = |(now, then): (&u64, &u64)| (now.saturating_sub(*then) * 10).min(window);
    let spent: Vec<u64> = after.iter().zip(before).map(ms).collect();
    let cores = cores.iter().map(|core| core.iter().copied());
    measure::competing_modules(&spent, window, cores) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_moving_within_its_core_does_not_compete() {
        let mean = |looks: &[(u64, [u64; 2])]| {
            let begin = Instant::now();
            let (cores, busy) = (vec![vec![0, 1]], vec![5, 5]);
            let mut modules = Modules { cores, busy, at: begin, sum: 0.0, seconds: 0.0 };
            for (ms, [one, two]) in looks {
                modules.note_busy(vec![5 + one, 5 + two], begin + Duration::from_millis(*ms));
            }
            modules.mean()
        };
        assert_eq!(mean(&[]), None, "ended before the first window");
        assert_eq!(mean(&[(100, [10, 0]), (200, [10, 10])]), Some(0.0));
        assert_eq!(mean(&[(100, [10, 10]), (200, [20, 20])]), Some(1.0));
        assert_eq!(mean(&[(100, [10, 10]), (400, [10, 40])]), Some(0.25), "by time");
        let moved = mean(&[(200, [10, 10])]).unwrap();
        assert!((moved - 0.25).abs() < 1e-9, "{moved}: in one long window it would");
        let none = Modules::begin(None);
        assert_eq!((none.next(), none.mean()), (None, None), "no core of several threads");
    }

    #[test]
    fn a_thread_is_where_its_stat_says() {
        let pid = std::process::id();
        let text = read(format!("/proc/{pid}/task/{pid}/stat"));
        assert!(place(&text).is_some(), "{text}");
        let fields: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
        let text = format!("12 (a ) b) R {}", fields.join(" "));
        assert_eq!(place(&text), Some((true, 39)));
        assert_eq!(place(&text.replace(") R", ") S")), Some((false, 39)));
        assert_eq!((place(""), place("1 (a) R 1 2")), (None, None));
    }

    #[test]
    fn only_runnable_siblings_on_one_cpu_are_stacked() {
        assert!(is_stacked(&[(true, 0), (true, 1), (true, 0)]));
        assert!(!is_stacked(&[(true, 0), (true, 1), (false, 0)]));
        assert!(!is_stacked(&[]));
        let (both, moved) = ([(true, 0), (true, 0)], [(true, 0), (true, 1)]);
        assert!(are_stacked(&both, &both));
        assert!(!are_stacked(&both, &moved) && !are_stacked(&both, &both[..1]));
    }

    #[test]
    fn this_very_thread_is_seen_and_never_stacked_with_itself() {
        let pid = std::process::id();
        let seen = stacking(pid, &[pid], Duration::from_millis(20));
        assert_eq!(seen, Some(0.0));
        assert_eq!(stacking(pid, &[], Duration::from_millis(10)), None);
    }

    #[test]
    fn busy_time_is_all_but_idle_and_waiting() {
        let text = "cpu  9 9 9 9\ncpu0 1 2 3 100 50 4 5 6 7 8\ncpu2 10 0 0 5\nintr 1\n";
        assert_eq!(busy_of(text), [21, 0, 10]);
        assert_eq!(busy_of("garbage\ncpux 1\ncpu99999999 1 1 1 1\n"), Vec::<u64>::new());
    }
}
