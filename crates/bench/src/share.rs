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
pub fn given(all: &[Wanting], cpus: f64) -> Vec<f64> {
    let claim = |one: &Wanting| (one.weight.round() as u64, (one.wants * PARTS).round() as u64);
    let claims: Vec<(u64, u64)> = all.iter().map(claim).collect();
    let given = measure::fair_shares((cpus * PARTS).round() as u64, &claims);
    given.into_iter().map(|parts| parts as f64 / PARTS).collect()
}

/// The same where each lies in a slice, of this number: CPUs are given to slices by weight, none more than its limit, and what a
/// slice has to those within it.
pub fn given_in_slices(all: &[(Wanting, usize)], slices: &[Wanting], cpus: f64) -> Vec<f64> {
    let within =
        |slice: usize| all.iter().filter(move |(_, own)| *own == slice).map(|(one, _)| *one);
    let wanted = |slice: usize| within(slice).map(|one| one.wants).sum::<f64>();
    let claims = slices.iter().enumerate();
    let claims = claims.map(|(at, slice)| Wanting { wants: slice.wants.min(wanted(at)), ..*slice });
    let given_to = given(&claims.collect::<Vec<_>>(), cpus);
    let mut inner: Vec<_> = (0..slices.len())
        .map(|at| given(&within(at).collect::<Vec<_>>(), given_to[at]).into_iter())
        .collect();
    all.iter().filter_map(|(_, slice)| inner.get_mut(*slice)?.next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(weight: f64, wants: f64) -> Wanting {
        Wanting { weight, wants }
    }

    /// The share of the first among all, of what it could use alone.
    fn of_first(all: &[Wanting], cpus: f64) -> f64 {
        given(all, cpus)[0] / all[0].wants.min(cpus)
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
    fn vm_that_wants_little_gets_all_of_it() {
        near(of_first(&[vm(100.0, 0.1), vm(100.0, 2.0), vm(100.0, 2.0)], 2.0), 1.0);
        near(of_first(&[vm(100.0, 1.0), vm(100.0, 1.0)], 2.0), 1.0);
    }

    #[test]
    fn slices_share_by_weight_and_unused_time_stays_in_the_slice() {
        let slices = [vm(100.0, f64::INFINITY), vm(300.0, f64::INFINITY)];
        let all =
            [(vm(100.0, 4.0), 0), (vm(300.0, 4.0), 0), (vm(100.0, 4.0), 1), (vm(300.0, 4.0), 1)];
        let parts =
            |all: &[(Wanting, usize)], slices: &[Wanting]| given_in_slices(all, slices, 4.0);
        let all_near = |given: Vec<f64>, wanted: [f64; 4]| {
            given.into_iter().zip(wanted).for_each(|(own, wanted)| near(own, wanted));
        };
        all_near(parts(&all, &slices), [0.25, 0.75, 0.75, 2.25]);
        let idle = [all[0], (vm(300.0, 0.25), 0), all[2], all[3]];
        all_near(parts(&idle, &slices), [0.75, 0.25, 0.75, 2.25]);
        let limited = [slices[0], vm(300.0, 1.0)];
        all_near(parts(&all, &limited), [0.75, 2.25, 0.25, 0.75]);
    }

    #[test]
    fn more_vcpus_than_cpus_use_all_cpus_alone() {
        near(of_first(&[vm(100.0, 8.0), vm(100.0, 2.0)], 2.0), 0.5);
    }
}
