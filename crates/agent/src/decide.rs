//! What one cycle decides: the policy, and what an idle host is good for. `plan` decides so, too.

use crate::config::Config;
use crate::memory::Wanted;
use instep_core::decision::{Action, Decision};
use instep_core::policy::idle::idle_homecoming;
use instep_core::policy::{self, PolicyName};
use instep_core::snapshot::Snapshot;

/// The policy's decision for cycle `count` (from 1), and on an idle host the homecoming of one VM
/// whose memory the policy had no reason to move (systems.md 4 (iv)); `count` seeds whose turn it
/// is.
#[must_use]
pub fn decide(snapshot: &Snapshot, config: &Config, count: u64) -> Decision {
    let mut decision = policy::decide(snapshot, &config.settings());
    let moves = decision.actions.iter().any(|action| matches!(action, Action::MoveMemory { .. }));
    if !moves && config.memory.home && config.policy != PolicyName::None {
        let action = idle_homecoming(snapshot, &config.memory.left(&snapshot.topology), count);
        let wanted = action.filter(|action| is_home(snapshot, &decision, action));
        decision.actions.extend(wanted);
    }
    decision
}

/// Whether the home by this very decision is where the memory would go; the draw knows only the one
/// before.
fn is_home(snapshot: &Snapshot, decision: &Decision, action: &Action) -> bool {
    let Action::MoveMemory { vm, guest_node, to, .. } = action else { return false };
    let wanted = Wanted::by(decision, &snapshot.topology);
    snapshot.vm(*vm).is_some_and(|vm| wanted.is_on(to, vm, *guest_node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Observer;
    use instep_core::idset::{CpuSet, NodeSet};
    use instep_core::units::{Bytes, CpuId, Milli, Nanos, NodeId};
    use instep_host::Root;
    use instep_host::discover::ScanOptions;
    use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm};

    /// An idle host of two nodes. A VM of 1 GiB lives on node 1 and has 20 MiB, too little for the
    /// policy to care, on node 0.
    fn idle() -> Snapshot {
        let dir = instep_madehost::scratch_dir().unwrap();
        let mut made = MadeHost::new(HostSpec::new(2, 4));
        let vm = VmSpec::new("a", Vmm::QemuKvm, 2, NodeId(1), Bytes::from_mib(1024));
        made.push(vm.load(Milli(1)));
        made.write(dir.path()).unwrap();
        let mut observer = Observer::new(Root::at(dir.path()), ScanOptions::once()).unwrap();
        let mut snapshot = observer.observe(None, None).unwrap().snapshot;
        let vm = &mut snapshot.vms[0];
        vm.memory = [(NodeId(0), Bytes::from_mib(20)), (NodeId(1), Bytes::from_mib(1004))].into();
        vm.placed = NodeSet::one(NodeId(1));
        (snapshot.other_busy, snapshot.window) = (Default::default(), Nanos::from_secs(60));
        snapshot
    }

    fn moves(decision: &Decision) -> usize {
        decision.actions.iter().filter(|a| matches!(a, Action::MoveMemory { .. })).count()
    }

    #[test]
    fn an_idle_host_brings_home_what_the_policy_does_not_care_for() {
        let (snapshot, mut config) = (idle(), Config::default());
        assert_eq!(moves(&policy::decide(&snapshot, &config.settings())), 0);
        assert_eq!(moves(&decide(&snapshot, &config, 1)), 1);
        config.memory.home = false;
        assert_eq!(moves(&decide(&snapshot, &config, 1)), 0);
        let none = Config { policy: PolicyName::None, ..Config::default() };
        assert_eq!(moves(&decide(&snapshot, &none, 1)), 0);
    }

    #[test]
    fn memory_of_a_vm_that_the_policy_leaves_alone_stays() {
        let mut snapshot = idle();
        for vcpu in &mut snapshot.vms[0].vcpus {
            let pinned = CpuSet::one(CpuId(vcpu.index));
            (vcpu.initial, vcpu.allowed) = (pinned.clone(), pinned);
        }
        assert!(idle_homecoming(&snapshot, &NodeSet::new(), 1).is_some());
        let decision = decide(&snapshot, &Config::default(), 1);
        assert_eq!((decision.vms[0].selected, moves(&decision)), (false, 0));
    }
}
