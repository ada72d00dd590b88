//! For how much of the past a task was runnable (struct sched_avg of 3.13 and 3.19), and what it counts for in the load of its CPU.
//!
//! Time is counted in units of 1024 ns and periods of 1024 units. What was a period ago counts a little less, and what was 32
//! periods ago half.
//!
//! **Load.** In 3.0 a task's load is its weight. From 3.13 on it is an average:
//!
//! * `__update_entity_runnable_avg`: weight times the runnable part of the past, half-life 32 periods of
//!   1.05 ms.
//! * `update_entity_load_avg`: updated when the task changes state, and at ticks while it runs.
//! * `init_task_runnable_average`: a new task counts as runnable for a slice so far.
//! * `update_cpu_load`, `source_load`, `target_load`: at ticks a CPU notes its load, and means that take
//!   half and a quarter of it. Of load and mean the least counts for another CPU, the greatest for the
//!   own one. Larger spans take slower means.
//! * `idle_balance`: a CPU that goes idle looks for tasks if its mean idle time (`ttwu_do_wakeup`: an
//!   eighth is the last one, at most 1 ms) is 0.5 ms or more.

/// Units of a period.
const PERIOD: u64 = 1024;
/// The sum of all the past (LOAD_AVG_MAX).
const WHOLE: u64 = 47_742;
/// After so many periods of runnable time a sum is whole (LOAD_AVG_MAX_N).
const ALL_PERIODS: u64 = 345;
/// After so many periods nothing of a sum is left.
const FORGOTTEN: u64 = 32 * 63;

/// What is left after so many periods, below 32, 2^32nds (runnable_avg_yN_inv), and the sums of the first to 32 whole ones
/// (runnable_avg_yN_sum): powers of the 32nd root of a half.
const TABLES: ([u64; 32], [u64; 33]) = tables();

const fn tables() -> ([u64; 32], [u64; 33]) {
    // 2^(-1/32), 2^64ths. As there a power is of 2^32 - 1, and a sum loses its fraction with each period.
    const ROOT: u128 = 0xfa83_b2db_722a_033a;
    const ONE: u128 = u32::MAX as u128;
    let (mut left, mut sums) = ([u32::MAX as u64; 32], [0; 33]);
    let (mut power, mut at) = (ROOT, 1);
    while at <= 32 {
        if at < 32 {
            left[at] = ((power * ONE) >> 64) as u64;
        }
        sums[at] = (((sums[at - 1] + PERIOD) as u128 * ROOT) >> 64) as u64;
        power = (power * ROOT) >> 64;
        at += 1;
    }
    (left, sums)
}

/// decay_load: what is left of a sum after so many periods.
pub(super) fn decayed(sum: u64, periods: u64) -> u64 {
    match periods {
        0 => sum,
        1..=FORGOTTEN => ((sum >> (periods / 32)) * TABLES.0[(periods % 32) as usize]) >> 32,
        _ => 0,
    }
}

/// __compute_runnable_contrib: the sum of so many whole periods that came before the one that has begun.
fn whole_periods(periods: u64) -> u64 {
    if periods >= ALL_PERIODS {
        return WHOLE;
    }
    let halves = (0..periods.saturating_sub(1) / 32).fold(0, |sum, _| sum / 2 + TABLES.1[32]);
    let rest = periods - periods.saturating_sub(1) / 32 * 32;
    decayed(halves, rest) + TABLES.1[rest as usize]
}

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Average {
    /// Units in which it was runnable (runnable_avg_sum), and all units (runnable_avg_period).
    runnable: u64,
    all: u64,
    /// Up to when they are counted, nanoseconds (last_runnable_update).
    until: u64,
    /// Its part of the load of its CPU (load_avg_contrib).
    pub(super) load: u64,
}

impl Average {
    /// Of a task that was runnable for so many nanoseconds, and is (init_task_runnable_average).
    pub(super) fn new(ns: u64, weight: u64, now: u64) -> Self {
        let units = (ns >> 10).min(WHOLE);
        let mut average = Self { runnable: units, all: units, until: now, load: 0 };
        average.set_load(weight);
        average
    }

    /// Of a task that has this load for now.
    pub(super) fn of_load(load: u64) -> Self {
        Self { load, ..Self::default() }
    }

    /// __update_task_entity_contrib.
    fn set_load(&mut self, weight: u64) {
        self.load = self.runnable * weight / (self.all + 1);
    }

    /// update_entity_load_avg: until now it was runnable, or not. Its load changes when a period ends.
    pub(super) fn update(&mut self, now: u64, is_runnable: bool, weight: u64) {
        let mut units = (now - self.until) >> 10;
        if units == 0 {
            return;
        }
        self.until = now;
        let add = |average: &mut Self, units: u64| {
            average.all += units;
            average.runnable += if is_runnable { units } else { 0 };
        };
        let rest = PERIOD - self.all % PERIOD;
        let has_ended = units >= rest;
        if has_ended {
            add(self, rest);
            units -= rest;
            let periods = units / PERIOD;
            units %= PERIOD;
            self.all = decayed(self.all, periods + 1);
            self.runnable = decayed(self.runnable, periods + 1);
            add(self, whole_periods(periods));
        }
        add(self, units);
        if has_ended {
            self.set_load(weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nanoseconds of a period.
    const MS: u64 = PERIOD << 10;

    #[test]
    fn powers_are_those_of_the_kernel() {
        let some = [0, 1, 2, 16, 31].map(|at| TABLES.0[at]);
        assert_eq!(some, [0xffff_ffff, 0xfa83_b2da, 0xf525_7d14, 0xb504_f333, 0x82cd_8698]);
        // Sums of 1 to 4 and of 32 periods.
        let sums: Vec<u64> = [1, 2, 3, 4, 32].into_iter().map(whole_periods).collect();
        assert_eq!(sums, [1002, 1982, 2941, 3880, 23_371]);
        // 23,371 / 2 + 23,371, and one more after them: 35,056 * 1002 / 1024 + 1002.
        assert_eq!([whole_periods(65), whole_periods(345)], [35_306, WHOLE]);
    }

    #[test]
    fn task_that_always_runs_has_nearly_its_weight() {
        let mut average = Average::new(0, 1024, 0);
        assert_eq!(average.load, 0);
        (1..1000).for_each(|ms| average.update(ms * MS, true, 1024));
        assert!((1022..1024).contains(&average.load), "{}", average.load);
    }

    #[test]
    fn half_of_a_load_is_gone_after_32_periods() {
        let mut average = Average::new(60_000_000, 1024, 0);
        // 47,742 of 47,743.
        assert_eq!(average.load, 1023);
        average.update(32 * MS, false, 1024);
        assert!((505..=515).contains(&average.load), "{}", average.load);
        average.update(64 * MS, false, 1024);
        assert!((252..=258).contains(&average.load), "{}", average.load);
        average.update(96 * MS, true, 1024);
        assert!((635..=645).contains(&average.load), "{}", average.load);
    }

    #[test]
    fn load_changes_when_a_period_ends() {
        // 6 ms are 5,859 units: 5 periods and 739 units, 285 from the end of a period.
        let mut average = Average::new(6_000_000, 1024, 0);
        assert_eq!(average.load, 1023);
        average.update(284 << 10, false, 1024);
        assert_eq!(average.load, 1023, "a period goes on");
        average.update(285 << 10, false, 1024);
        // 5,859 of 6,144 units, both of them 1002 / 1024 as much as before.
        assert!((974..=977).contains(&average.load), "{}", average.load);
    }
}
