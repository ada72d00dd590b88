//! Bounds and types that follow from a run and from the VM alone, by formulas of systems.md: the
//! completion time by Lag (2), the type of an application, its potential and its efficiency (5).
//!
//! They are models of parallel programs of phases: for a VM that sleeps on timers or devices they
//! mean little. Nothing here is fed back into a simulation.

use schemars::JsonSchema;
use serde::Serialize;

pub use crate::params::PERIOD_NS;

/// The model of completion by Lag (systems.md, 2), for the work that the VM did in the run.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct LagModel {
    /// The quantum T, as the scheduler says.
    pub quantum_ns: u64,
    /// `R_I`: the part of a CPU that each vCPU has by weight, 1 at most.
    pub rate: f64,
    /// `E_T`: the largest sum over one thread of its phases' execution times, in quanta.
    pub e_t: f64,
    /// `Lag`: by how much CPU time a vCPU was behind its rate, at most, in quanta.
    pub lag: f64,
    /// `T_parallel` with this Lag, nanoseconds: the run should not have taken longer.
    pub latest_ns: u64,
    /// `T_parallel` without any, nanoseconds: by its share alone it could not be faster.
    pub ideal_ns: u64,
}

impl LagModel {
    /// The model for `work_ns` of work of the busiest thread; nothing for no work or no rate.
    pub fn new(quantum_ns: u64, rate: f64, work_ns: f64, lag_ns: u64) -> Option<Self> {
        let quantum = quantum_ns as f64;
        let (e_t, lag) = (work_ns / quantum, lag_ns as f64 / quantum);
        let sound = e_t > 0.0 && e_t.is_finite() && rate > 0.0;
        sound.then(|| Self {
            quantum_ns,
            rate,
            e_t,
            lag,
            latest_ns: (t_parallel(lag, e_t, rate) * quantum) as u64,
            ideal_ns: (t_parallel(0.0, e_t, rate) * quantum) as u64,
        })
    }
}

/// `floor((Lag + ceil(E_T) - 1) / R_I) + E_T - (ceil(E_T) - 1)`, in quanta.
fn t_parallel(lag: f64, e_t: f64, rate: f64) -> f64 {
    let whole = e_t.ceil() - 1.0;
    ((lag + whole) / rate).floor() + e_t - whole
}

/// The mean over allocation periods of min(1, used / share): *efficiency* of what the VM used in the
/// run, *potential* of what it uses alone (systems.md, 5). Spinning is no use. `share` in CPUs; nothing
/// without a period.
pub fn part_of_share(used: &[u64], share: f64) -> Option<f64> {
    let due = share * PERIOD_NS as f64;
    let parts = used.iter().map(|used| if due > 0.0 { (*used as f64 / due).min(1.0) } else { 1.0 });
    (!used.is_empty()).then(|| parts.sum::<f64>() / used.len() as f64)
}

/// The type of an application, 1 to 4 (systems.md, 5), by what it does alone: mean threads that make
/// progress, blocked waits for siblings a second of each of its `threads`; `slice_ns` is a thread's
/// time in an allocation period.
pub fn type_of(parallelism: f64, sync_hz: f64, threads: usize, slice_ns: f64) -> u8 {
    let parallel = parallelism >= 0.75 * threads as f64;
    let frequent = sync_hz > 0.0 && 1e9 / sync_hz < slice_ns;
    match (parallel, frequent) {
        (true, false) => 1,
        (false, true) => 2,
        (true, true) => 3,
        (false, false) => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formula_gives_the_whole_quanta_by_rate_and_the_rest_at_once() {
        // Two and a half quanta at half a CPU: two whole ones take four, the rest comes at once.
        let model = LagModel::new(10, 0.5, 25.0, 0).unwrap();
        assert_eq!((model.ideal_ns, model.latest_ns), (45, 45));
        // A quantum of lag is two quanta later at this rate.
        assert_eq!(LagModel::new(10, 0.5, 25.0, 10).unwrap().latest_ns, 65);
        assert_eq!(LagModel::new(10, 0.5, 0.0, 10), None);
    }

    #[test]
    fn what_exceeds_the_share_of_a_period_does_not_help_another() {
        let used = [2 * PERIOD_NS, 0, PERIOD_NS / 2];
        assert!((part_of_share(&used, 1.0).unwrap() - 0.5).abs() < 1e-12);
        assert_eq!(part_of_share(&[], 1.0), None);
    }

    #[test]
    fn types_are_by_parallelism_and_frequency() {
        let slice = 6e6;
        assert_eq!(type_of(15.0, 10.0, 16, slice), 1);
        assert_eq!(type_of(6.0, 1000.0, 16, slice), 2);
        assert_eq!(type_of(13.0, 1000.0, 16, slice), 3);
        assert_eq!(type_of(6.0, 0.0, 16, slice), 4);
    }
}
