//! What share of the speed it has alone a VM may fairly expect beside others.
//!
//! CPUs are given by weight; nobody gets more than it can use, and what one leaves goes to the
//! others by weight (weighted max-min fairness). The share is what the VM gets by that, divided by
//! what it could use alone.

use instep_core::measure;

/// One that wants CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanting {
    /// By which CPUs are given; above 0.
    pub weight: f64,
    /// The CPUs it could use at most: its vCPUs times what each wants.
    pub wants: f64,
}

/// Millionths of a CPU, in which shares are reckoned.
const PARTS: f64 = 1e6;

/// CPUs for each, in the order given. The sum is the lesser of `cpus` and all that is wanted.
#[must_use]
pub fn given(all: &[Wanting], cpus: f64) -> Vec<f64> {
    let claim = |one: &Wanting| (one.weight.round() as u64, (one.wants * PARTS).round() as u64);
    let claims: Vec<(u64, u64)> = all.iter().map(claim).collect();
    let given = measure::fair_shares((cpus * PARTS).round() as u64, &claims);
    given.into_iter().map(|parts| parts as f64 / PARTS).collect()
}

/// The share of the first among all; 1 when it wants nothing.
#[must_use]
pub fn of_first(all: &[Wanting], cpus: f64) -> f64 {
    let Some(first) = all.first() else { return 1.0 };
    let alone = first.wants.min(cpus);
    if alone <= 0.0 { 1.0 } else { given(all, cpus)[0] / alone }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(weight: f64, wants: f64) -> Wanting {
        Wanting { weight, wants }
    }

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }

    #[test]
    fn equals_share_equally_and_weights_count() {
        near(of_first(&[vm(100.0, 2.0), vm(100.0, 2.0)], 2.0), 0.5);
        near(of_first(&[vm(100.0, 2.0); 4], 2.0), 0.25);
        near(of_first(&[vm(500.0, 2.0), vm(100.0, 2.0)], 2.0), 5.0 / 6.0);
    }

    #[test]
    fn what_one_cannot_use_goes_to_the_others() {
        // One vCPU of great weight cannot have more than a CPU: the other VM gets the second.
        let all = [vm(100.0, 2.0), vm(900.0, 1.0)];
        near(of_first(&all, 2.0), 0.5);
        near(given(&all, 2.0)[1], 1.0);
    }

    #[test]
    fn who_wants_little_gets_all_of_it() {
        near(of_first(&[vm(100.0, 0.1), vm(100.0, 2.0), vm(100.0, 2.0)], 2.0), 1.0);
        near(of_first(&[vm(100.0, 1.0), vm(100.0, 1.0)], 2.0), 1.0);
        near(of_first(&[vm(1.0, 0.0)], 2.0), 1.0);
    }

    #[test]
    fn more_vcpus_than_cpus_use_all_cpus_alone() {
        near(of_first(&[vm(100.0, 8.0), vm(100.0, 2.0)], 2.0), 0.5);
    }
}
