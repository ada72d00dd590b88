//! Noise of the loads: by how much a VM's demand usually differs from one window to the next.
//!
//! It is the median of the last changes, so that one step of a load, which placement is to follow, is not
//! taken for noise. A VM whose load goes up and down all the time is not moved for it.

use crate::vm_key::VmKey;
use instep_core::snapshot::Snapshot;
use instep_core::units::Milli;
use std::collections::{BTreeMap, VecDeque};

/// Changes that are remembered of a VM.
const REMEMBERED: usize = 7;
/// Changes that are needed to tell what is usual.
const NEEDED: usize = 3;
/// Demand that counts at least, milli: that of a VM at rest differs by many times itself.
const LEAST_DEMAND: u64 = 50;

/// The demands of VMs in earlier windows.
#[derive(Debug, Default)]
pub(crate) struct Noise {
    vms: BTreeMap<VmKey, History>,
}

#[derive(Debug, Default)]
struct History {
    last: Option<u64>,
    /// In thousandths of the greater of both demands.
    changes: VecDeque<u64>,
}

impl Noise {
    /// Remembers the demands of one window. What is gone is forgotten.
    pub(crate) fn remember(&mut self, snapshot: &Snapshot) {
        let mut before = std::mem::take(&mut self.vms);
        for vm in &snapshot.vms {
            let key = VmKey::from(vm);
            let mut history = before.remove(&key).unwrap_or_default();
            let demand = vm.demand(snapshot.window).0.max(LEAST_DEMAND);
            if let Some(last) = history.last.replace(demand) {
                history.changes.push_back(demand.abs_diff(last) * 1000 / demand.max(last));
                if history.changes.len() > REMEMBERED {
                    history.changes.pop_front();
                }
            }
            self.vms.insert(key, history);
        }
    }

    /// The noise of a VM's demand, in thousandths of it, once enough windows were seen.
    pub(crate) fn of(&self, key: VmKey) -> Option<Milli> {
        let mut changes: Vec<u64> = self.vms.get(&key)?.changes.iter().copied().collect();
        changes.sort_unstable();
        (changes.len() >= NEEDED).then(|| Milli(changes[changes.len() / 2]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::{Bytes, Nanos, NodeId, VmId};
    use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm};

    /// The noise after windows in which a VM of one vCPU used these thousandths of a CPU.
    fn noise(loads: &[u64]) -> Option<Milli> {
        let dir = instep_madehost::scratch_dir().unwrap();
        let mut made = MadeHost::new(HostSpec::new(1, 4));
        made.push(VmSpec::new("a", Vmm::QemuKvm, 1, NodeId(0), Bytes::from_mib(64)));
        made.write(dir.path()).unwrap();
        let topology = instep_host::topology::read(&instep_host::Root::at(dir.path())).unwrap();
        let mut snapshot = made.snapshot(topology.into(), Nanos::SECOND);
        let mut noise = Noise::default();
        for load in loads {
            snapshot.vms[0].vcpus[0].busy = Nanos(snapshot.window.0 / 1000 * load);
            snapshot.vms[0].vcpus[0].steal = Nanos(0);
            noise.remember(&snapshot);
        }
        noise.of(VmKey::from(&snapshot.vms[0]))
    }

    #[test]
    fn noise_is_the_usual_change_and_a_step_is_none() {
        assert_eq!(noise(&[500, 500, 500]), None, "too few windows");
        assert_eq!(noise(&[500, 500, 500, 500]), Some(Milli(0)));
        assert_eq!(noise(&[500, 475, 500, 475, 500]), Some(Milli(50)));
        assert_eq!(noise(&[100, 100, 100, 900, 900]), Some(Milli(0)));
        assert_eq!(noise(&[100, 900, 100, 900, 100]), Some(Milli(888)));
        assert_eq!(noise(&[1, 9, 1, 9, 1]), Some(Milli(0)), "at rest");
    }

    #[test]
    fn a_vm_that_is_gone_is_forgotten() {
        let mut noise = Noise::default();
        let key = VmKey { id: VmId(1), start_ticks: 1 };
        noise.vms.insert(key, History { last: Some(1), changes: [0, 0, 0].into() });
        assert!(noise.of(key).is_some());
        let dir = instep_madehost::scratch_dir().unwrap();
        let made = MadeHost::new(HostSpec::new(1, 4));
        made.write(dir.path()).unwrap();
        let topology = instep_host::topology::read(&instep_host::Root::at(dir.path())).unwrap();
        noise.remember(&made.snapshot(topology.into(), Nanos::SECOND));
        assert_eq!(noise.of(key), None);
    }
}
