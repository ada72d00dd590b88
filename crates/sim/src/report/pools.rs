//! Who shares CPUs with whom. VMs whose vCPUs may use a common CPU are in one pool, and so are those
//! that others between them join; weights divide a pool's CPUs among its VMs, not the host's.
//!
//! Exact where the VMs of a pool may use the same CPUs. Where sets only overlap, less can be all that is
//! possible: of three VMs of equal weight, two on CPU 0 and one on CPUs 0 and 1, the two have half a
//! CPU each at most, and 0.67 is called fair.

use crate::engine::{Setup, VmSetup};
use instep_check::mask::Mask;

/// VMs that may meet.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// What they may use, all together.
    cpus: Mask,
    /// Their numbers, ascending.
    pub(super) vms: Vec<usize>,
}

impl Pool {
    /// The pools of the VMs that exist at this moment, nanoseconds since the start.
    pub(super) fn all(setup: &Setup, at: u64) -> Vec<Self> {
        let mut pools: Vec<Self> = Vec::new();
        let there = |vm: &VmSetup| !vm.hidden && vm.life.from <= at && at < vm.life.until;
        for (vm, this) in setup.vms.iter().enumerate().filter(|(_, vm)| there(vm)) {
            let own = used(this, setup.host.cpus());
            let (met, apart): (Vec<Self>, Vec<Self>) =
                pools.into_iter().partition(|pool| pool.cpus.meets(&own));
            let mut joined = Self { cpus: own, vms: vec![vm] };
            for pool in met {
                pool.cpus.iter().for_each(|cpu| joined.cpus.set(cpu));
                joined.vms.extend(pool.vms);
            }
            joined.vms.sort_unstable();
            pools = apart;
            pools.push(joined);
        }
        pools
    }

    /// How many CPUs it has.
    pub(super) fn cpus(&self) -> u64 {
        u64::from(self.cpus.count())
    }
}

/// The CPUs that any vCPU of a VM may use.
fn used(vm: &VmSetup, cpus: usize) -> Mask {
    let mut all = Mask::none(cpus);
    for (allowed, _) in &vm.affinity {
        allowed.iter().for_each(|cpu| all.set(cpu));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Alone;
    use crate::scenario::{Scenario, build::SimulationPlan};

    /// A plan of 8 CPUs and a VM of 8 vCPUs for each of these sets of CPUs and weights.
    fn plan(guests: &[(&str, u32)]) -> SimulationPlan {
        let mut text =
            "about = \"it\"\nscheduler = \"eevdf\"\nduration = \"1s\"\nwarmup = \"1s\"\n\
                        [host]\ncores = 8\nmemory = \"64GiB\"\n"
                .to_owned();
        for (at, (allowed, weight)) in guests.iter().enumerate() {
            text.push_str(&format!(
                "[[guest]]\nname = \"g{at}\"\nvcpus = 8\nmemory = \"1GiB\"\nload = \"spin\"\n\
                 allowed = \"{allowed}\"\nweight = {weight}\n"
            ));
        }
        SimulationPlan::new(&Scenario::parse(&text).unwrap(), &|_| Err(String::new())).unwrap()
    }

    #[test]
    fn vms_that_may_meet_are_one_pool() {
        let pools = |guests: &[&str]| {
            let guests: Vec<_> = guests.iter().map(|allowed| (*allowed, 100)).collect();
            let pools = Pool::all(&plan(&guests).setup, 0);
            pools.iter().map(|pool| (pool.cpus(), pool.vms.clone())).collect::<Vec<_>>()
        };
        assert_eq!(pools(&["0-7", "0-1"]), [(8, vec![0, 1])]);
        assert_eq!(pools(&["0-1", "2-7", "0-1"]), [(6, vec![1]), (2, vec![0, 2])]);
        assert_eq!(pools(&["0-1", "2-3", "1-2"]), [(4, vec![0, 1, 2])]);
    }

    #[test]
    fn shares_are_of_the_cpus_that_vms_share() {
        let full = Alone { rate_milli: 1, cpus_milli: 2000, ..Alone::default() };
        let plan = plan(&[("0-1", 100), ("0-1", 300), ("2-7", 100)]);
        let alone = [full.clone(), full.clone(), Alone { cpus_milli: 6000, ..full }].map(Some);
        assert_eq!(plan.fair_shares(&alone), [500, 1500, 6000]);
        assert_eq!(plan.by_weight(), [0.5, 1.5, 6.0]);
    }

    #[test]
    fn two_vms_confined_to_the_same_cpus_have_all_their_speed() {
        let report = plan(&[("0-1", 100), ("0-1", 100)]).report().unwrap();
        for vm in &report.vms {
            let speed = vm.fair_share_speed.unwrap();
            assert!((0.9..1.1).contains(&speed), "{}: {speed}", vm.name);
        }
    }
}
