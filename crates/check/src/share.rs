//! Share error bounded: at the end every VM had its fair part of the CPUs, by weight. Only for VMs
//! that always want all their vCPUs to run and may use all CPUs; the caller knows which are.

use super::Checker;
use super::picture::Picture;
use instep_core::measure;

/// The checker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// How far from its share a VM may be, in per cent of it.
    pub percent: u32,
    /// And beside that, in per cent of all CPU time.
    pub floor: u32,
    /// And beside that, nanoseconds for each task that a CPU has on average: starting, and turns
    /// that have begun.
    pub slack: u64,
    /// Whether a VM may have more than its share, as one that fills what others cannot use.
    pub more: bool,
    /// Whether it holds where all wait for one CPU only.
    pub one_cpu: bool,
    /// Whether a VM's weight counts once for each of its vCPUs, as Xen's credit scheduler has it.
    pub by_vcpu: bool,
    /// Only VMs below this number are judged, and what they had together is what they share: on a
    /// recorded host other threads run besides, as much as they want. All with `None`.
    pub among: Option<usize>,
}

impl Checker for Share {
    fn name(&self) -> &'static str {
        "share"
    }

    fn end(&mut self, picture: &Picture) -> Option<String> {
        let all = picture.tasks.iter().map(|task| task.vm + 1).max().unwrap_or(0);
        let vms = self.among.unwrap_or(all).min(all);
        let cpus = picture.cpus.len() as u64;
        if self.one_cpu && cpus != 1 {
            return None;
        }
        let each = (picture.tasks.len() as u64).div_ceil(cpus.max(1));
        let own = |vm: usize| picture.tasks.iter().filter(move |task| task.vm == vm);
        let claim = |vm: usize| {
            let weight = own(vm).next().map_or(0, |task| u64::from(task.weight));
            let count = own(vm).count() as u64;
            (if self.by_vcpu { weight * count } else { weight }, count.min(cpus) * 1000)
        };
        let claims: Vec<(u64, u64)> = (0..vms).map(claim).collect();
        let whole = match self.among {
            None => u128::from(cpus) * u128::from(picture.now),
            Some(_) => {
                let judged = picture.tasks.iter().filter(|task| task.vm < vms);
                u128::from(judged.map(|task| task.had(picture.now)).sum::<u64>())
            }
        };
        let thousandths = whole * 1000 / u128::from(picture.now.max(1));
        let fair = measure::fair_shares(thousandths as u64, &claims);
        for (vm, share) in fair.into_iter().enumerate() {
            let fair = u128::from(share) * u128::from(picture.now) / 1000;
            let had: u64 = own(vm).map(|task| task.had(picture.now)).sum();
            let slack =
                u128::from(self.slack) * u128::from(each) + whole * u128::from(self.floor) / 100;
            if self.more && u128::from(had) >= fair {
                continue;
            }
            let error = fair.abs_diff(u128::from(had));
            if error > fair * u128::from(self.percent) / 100 + slack {
                let ms = 1_000_000;
                return Some(format!(
                    "VM {vm} had {} ms, its share is {} ms",
                    had / ms,
                    fair / u128::from(ms)
                ));
            }
        }
        None
    }
}
