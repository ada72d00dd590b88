//! What cgroups leave each VM of a pool: CPU time is divided at each level by weight, nothing has more than its limit
//! (`cpu.max`) or than it wants, and what one leaves goes to its siblings first. Without cgroups there is one level.

use crate::engine::Setup;
use instep_core::measure;

/// Of a cgroup with `cpu.idle`, as the kernel has it against 1024 for a `cpu.weight` of 100 (WEIGHT_IDLEPRIO).
const IDLE: u64 = 3;
const UNIT: u64 = 1024;

/// A cgroup, or a VM at the end.
#[derive(Clone, Debug, Default)]
struct Node {
    weight: u64,
    /// The most that it can have, thousandths of a CPU.
    most: u64,
    children: Vec<usize>,
}

/// Thousandths of a CPU that each of these VMs has of `cpus` CPUs; `most` is what each could use.
pub(super) fn divide(setup: &Setup, vms: &[usize], cpus: u64, most: &[u64]) -> Vec<u64> {
    if setup.cgroups.is_empty() {
        let claims =
            vms.iter().zip(most).map(|(vm, most)| (u64::from(setup.vms[*vm].weight), *most));
        return measure::fair_shares(cpus * 1000, &claims.collect::<Vec<_>>());
    }
    let mut nodes = tree(setup, vms, most);
    let groups = setup.cgroups.len();
    // Those above come before those below: the order in which they were made.
    for at in (0..groups).rev() {
        let wanted = nodes[at].children.iter().map(|child| nodes[*child].most);
        nodes[at].most = nodes[at].most.min(wanted.fold(0, u64::saturating_add));
    }
    let mut has = vec![0; nodes.len()];
    has[0] = nodes[0].most.min(cpus * 1000);
    for at in 0..groups {
        let children = &nodes[at].children;
        let claims: Vec<(u64, u64)> =
            children.iter().map(|child| (nodes[*child].weight, nodes[*child].most)).collect();
        for (child, share) in children.iter().zip(measure::fair_shares(has[at], &claims)) {
            has[*child] = share;
        }
    }
    has.split_off(groups)
}

/// The cgroups, then the VMs.
fn tree(setup: &Setup, vms: &[usize], most: &[u64]) -> Vec<Node> {
    let group = |own: &crate::engine::CgroupSetup| Node {
        weight: if own.idle { 100 * IDLE } else { u64::from(own.weight) * UNIT },
        most: own.limit.map_or(u64::MAX, |limit| limit.quota * 1000 / limit.period),
        children: Vec::new(),
    };
    let mut nodes: Vec<Node> = setup.cgroups.iter().map(group).collect();
    for (at, own) in setup.cgroups.iter().enumerate() {
        if let Some(above) = own.above.checked_sub(1) {
            nodes[above as usize].children.push(at);
        }
    }
    for (vm, most) in vms.iter().zip(most) {
        let this = &setup.vms[*vm];
        // Beside others in its cgroup a VM weighs 100, and so does each thread of a service.
        let count = if this.service { this.affinity.len() as u64 } else { 1 };
        let leaf = nodes.len();
        nodes.push(Node { weight: 100 * UNIT * count, most: *most, children: Vec::new() });
        nodes[(this.cgroup - 1) as usize].children.push(leaf);
    }
    nodes
}
