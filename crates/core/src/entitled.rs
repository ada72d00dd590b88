//! What each VM and each cgroup is entitled to, by `cpu.weight` at every level of the tree of cgroups.
//!
//! A cgroup divides its CPU time among its children that want some, by weight, and what one of them leaves goes to its
//! siblings before it goes to anybody else: weighted max-min fairness at each level, as the kernel's own group scheduling
//! has it on average (`kernel/sched/fair.c`, `calc_group_shares`, Linux 6.12). With
//!
//! ```text
//! share(c) = min(demand(c), limit(c), weight(c) * level),   level such that the shares of all children fill what their parent has
//! ```
//!
//! a *leaf* (a VM, or the threads of one cgroup that belong to no VM) is entitled to what it would have if it alone
//! wanted everything while all others want what they want now. That is no less than its share now, and its share is this
//! where it lacks CPU time. So a scheduler that knows no tree comes to the same shares when it takes what leaves are entitled to
//! for their weights.

mod demand;

pub use demand::{DemandTracker, SeenGroup, SeenVm};

use std::collections::BTreeMap;

/// A cgroup.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Its number, unique and not 0.
    pub id: u64,
    /// That of the cgroup above it, 0 for the root.
    pub parent: u64,
    /// As `cpu.weight`, above 0.
    pub weight: f64,
    /// How many threads of its own that belong to no VM wanted a CPU at a time, on average.
    pub wants: f64,
    /// CPUs that it may use at most, with all that lies below it (`cpu.max`); infinite where it has no limit.
    pub most: f64,
}

impl Group {
    /// [`Self::most`] of a limit in thousandths of a CPU, 0 for none.
    #[must_use]
    pub fn limit(thousandths: u64) -> f64 {
        if thousandths == 0 { f64::INFINITY } else { thousandths as f64 / 1000.0 }
    }
}

/// A VM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EntitledVm {
    /// The cgroup that it lies in.
    pub group: u64,
    /// Its weight against what else lies there.
    pub weight: f64,
    /// CPUs that it wanted, on average.
    pub wants: f64,
    /// CPUs that it can use at most.
    pub most: f64,
}

/// What they are entitled to, in CPUs, in the order in which they were given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entitled {
    /// Each cgroup's own threads together.
    pub groups: Vec<f64>,
    /// Each VM.
    pub vms: Vec<f64>,
}

/// What they are entitled to as weights for a scheduler that knows no tree, thousandths of a CPU, at least 1 each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Each thread of each cgroup that belongs to no VM: no more than a CPU, as it can use no more.
    pub threads: Vec<u32>,
    /// Each VM.
    pub vms: Vec<u32>,
    /// What the threads that want a CPU weigh on average.
    pub mean: u32,
}

/// Threads below a limit weigh this many times that at most. With exactly the limit they would wait for others now and then, and what is
/// left of it when its period ends is lost; with more than they can use the threads of the host would weigh too much together.
const ROOM: f64 = 1.25;

/// [`entitled`] as weights.
#[must_use]
pub fn weights(cpus: f64, groups: &[Group], vms: &[EntitledVm]) -> Weights {
    let has = entitled(cpus, groups, vms);
    let weight = |cpus: f64| (cpus * 1000.0).round().max(1.0) as u32;
    let by_id: BTreeMap<u64, &Group> = groups.iter().map(|group| (group.id, group)).collect();
    // A circle, which no kernel makes, ends after as many levels as there are cgroups.
    let limit = |group: &Group| {
        let above = |below: &&Group| by_id.get(&below.parent).copied();
        let levels = std::iter::successors(Some(group), above).take(groups.len());
        levels.map(|level| level.most).fold(f64::INFINITY, f64::min)
    };
    let of_thread = |(group, own): (&Group, &f64)| {
        (own.min(ROOM * limit(group)) / group.wants.max(1.0)).min(1.0)
    };
    let threads: Vec<f64> = groups.iter().zip(&has.groups).map(of_thread).collect();
    let wants: f64 = groups.iter().map(|group| group.wants.max(0.0)).sum();
    let weighed: f64 =
        groups.iter().zip(&threads).map(|(group, own)| group.wants.max(0.0) * own).sum();
    Weights {
        mean: if wants > 0.0 { weight(weighed / wants) } else { 1000 },
        threads: threads.into_iter().map(weight).collect(),
        vms: has.vms.into_iter().map(weight).collect(),
    }
}

/// A weight of 100 for each thread that a cgroup has beside children, as each counts in the kernel like a cgroup of this weight.
const THREAD: f64 = 100.0;

/// What these cgroups and VMs are entitled to on `cpus` CPUs. A cgroup whose parent is not given lies in the root, and so does a
/// VM whose cgroup is not.
#[must_use]
pub fn entitled(cpus: f64, groups: &[Group], vms: &[EntitledVm]) -> Entitled {
    let mut tree = Tree::of(cpus, groups, vms);
    let order = tree.downwards();
    tree.sum(&order);
    let has = tree.divided(&order);
    let first = 1 + groups.len();
    let own = |at: usize| has[first + at];
    Entitled {
        groups: (0..groups.len()).map(own).collect(),
        vms: (groups.len()..groups.len() + vms.len()).map(own).collect(),
    }
}

#[derive(Clone, Debug)]
struct Node {
    weight: f64,
    wants: f64,
    /// CPUs that it may have at most.
    most: f64,
    /// CPUs that it takes from others at most.
    limit: f64,
    /// That of the one above it, 0 for the root itself.
    above: usize,
    children: Vec<usize>,
}

/// The root, then the cgroups, then a leaf for each cgroup's own threads, then one for each VM.
struct Tree {
    nodes: Vec<Node>,
    cpus: f64,
}

impl Tree {
    fn of(cpus: f64, groups: &[Group], vms: &[EntitledVm]) -> Self {
        let node = |weight: f64, wants: f64, most: f64| {
            // Not a number, or no weight: as the least that the kernel knows.
            let [weight, wants, most] =
                [weight, wants, most].map(|x| if x > 0.0 { x } else { 0.0 });
            Node {
                weight: weight.max(1e-3),
                wants: wants.min(cpus),
                most: most.min(cpus),
                limit: cpus,
                above: 0,
                children: Vec::new(),
            }
        };
        let mut nodes = vec![node(THREAD, 0.0, cpus)];
        nodes.extend(
            groups.iter().map(|group| Node { limit: group.most, ..node(group.weight, 0.0, cpus) }),
        );
        nodes.extend(groups.iter().map(|g| node(THREAD * g.wants.max(1.0), g.wants, cpus)));
        nodes.extend(vms.iter().map(|vm| node(vm.weight, vm.wants, vm.most)));
        let at: BTreeMap<u64, usize> =
            groups.iter().zip(1..).map(|(group, at)| (group.id, at)).collect();
        let mut tree = Self { nodes, cpus };
        for (group, own) in groups.iter().zip(1..) {
            // A circle, which no kernel makes, is cut.
            let above = at.get(&group.parent).copied().filter(|above| !tree.is_below(*above, own));
            tree.put(own, above.unwrap_or(0));
            tree.put(own + groups.len(), own);
        }
        for (vm, leaf) in vms.iter().zip(1 + 2 * groups.len()..) {
            tree.put(leaf, at.get(&vm.group).copied().unwrap_or(0));
        }
        tree.share_limits(1 + 2 * groups.len());
        tree
    }

    /// VMs that share a limit are entitled to a part of it each: else chance divides it. One that has a limit to itself is entitled to
    /// what it would have without: the limit holds it back, and a gang uses it up before its period ends.
    fn share_limits(&mut self, first_vm: usize) {
        let mut vms = vec![0; self.nodes.len()];
        for leaf in first_vm..self.nodes.len() {
            let mut node = self.nodes[leaf].above;
            while node != 0 {
                vms[node] += 1;
                node = self.nodes[node].above;
            }
        }
        for (node, _) in self.nodes.iter_mut().zip(vms).filter(|(_, vms)| *vms > 1) {
            node.most = node.limit.min(node.most);
        }
    }

    fn put(&mut self, node: usize, above: usize) {
        self.nodes[node].above = above;
        self.nodes[above].children.push(node);
    }

    /// Whether this node is `other` or below it.
    fn is_below(&self, mut node: usize, other: usize) -> bool {
        while node != other && node != 0 {
            node = self.nodes[node].above;
        }
        node == other
    }

    /// All nodes, each after the one above it.
    fn downwards(&self) -> Vec<usize> {
        let mut order = vec![0];
        let mut at = 0;
        while let Some(node) = order.get(at) {
            order.extend(&self.nodes[*node].children);
            at += 1;
        }
        order
    }

    /// Sums up what each node wants.
    fn sum(&mut self, order: &[usize]) {
        for node in order.iter().rev() {
            let children = &self.nodes[*node].children;
            if !children.is_empty() {
                let wants: f64 = children.iter().map(|child| self.nodes[*child].wants).sum();
                self.nodes[*node].wants = wants.min(self.cpus).min(self.nodes[*node].limit);
            }
        }
    }

    /// What each node could have.
    fn divided(&self, order: &[usize]) -> Vec<f64> {
        let mut has = vec![self.cpus; self.nodes.len()];
        for node in order {
            let children = &self.nodes[*node].children;
            let shares = Division::of(children.iter().map(|child| &self.nodes[*child]));
            for child in children {
                has[*child] = shares.alone(&self.nodes[*child], has[*node]);
            }
        }
        has
    }
}

/// Siblings in the order of `wants / weight`: the level at which each has all that it wants.
struct Division {
    /// Level, what those before want together, and what those from here on weigh.
    steps: Vec<(f64, f64, f64)>,
}

impl Division {
    fn of<'a>(siblings: impl Iterator<Item = &'a Node>) -> Self {
        let mut all: Vec<(f64, f64, f64)> = siblings
            .filter(|node| node.wants > 0.0)
            .map(|n| (n.wants / n.weight, n.wants, n.weight))
            .collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut weight: f64 = all.iter().map(|(_, _, weight)| weight).sum();
        let mut filled = 0.0;
        let mut steps: Vec<_> = all
            .into_iter()
            .map(|(level, wants, own)| {
                let step = (level, filled, weight);
                (filled, weight) = (filled + wants, weight - own);
                step
            })
            .collect();
        steps.push((f64::INFINITY, filled, 0.0));
        Self { steps }
    }

    /// What `node`, one of the siblings, has of `cpus` if it wants all that it can use.
    fn alone(&self, node: &Node, cpus: f64) -> f64 {
        let level = node.wants / node.weight;
        // What the others have at a level, and this one, which wants without end.
        let used = |at: f64, filled: f64, weight: f64| {
            let own = if level < at { node.wants } else { node.weight * at };
            let others = filled + weight * at - if node.wants > 0.0 { own } else { 0.0 };
            others + node.weight * at
        };
        let last = self.steps.len() - 1;
        let step = self.steps[..last]
            .partition_point(|(at, filled, weight)| used(*at, *filled, *weight) < cpus);
        let (_, mut filled, mut weight) = self.steps[step];
        // Between two steps, of which the first is behind: this one, if it is filled, weighs on.
        if node.wants > 0.0 {
            if level < self.steps[step].0 {
                filled -= node.wants;
                weight += node.weight;
            }
        } else {
            weight += node.weight;
        }
        (node.weight * (cpus - filled).max(0.0) / weight).min(node.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn group(id: u64, parent: u64, weight: f64, wants: f64) -> Group {
        Group { id, parent, weight, wants, most: f64::INFINITY }
    }

    fn vm(group: u64, wants: f64, most: f64) -> EntitledVm {
        EntitledVm { group, weight: 100.0, wants, most }
    }

    fn near(got: f64, wanted: f64) -> bool {
        (got - wanted).abs() < 1e-6 * wanted.abs().max(1.0)
    }

    #[test]
    fn siblings_divide_by_weight_and_slices_first() {
        // machine.slice with VMs of weight 100 and 300, system.slice with one service, each slice of weight 100.
        let groups = [
            group(1, 0, 100.0, 0.0),
            group(2, 1, 100.0, 0.0),
            group(3, 1, 100.0, 0.0),
            group(4, 2, 100.0, 0.0),
            group(5, 2, 300.0, 0.0),
            group(6, 3, 50.0, 8.0),
        ];
        let vms = [vm(4, 8.0, 8.0), vm(5, 8.0, 8.0)];
        let all = entitled(8.0, &groups, &vms);
        assert!(near(all.vms[0], 1.0) && near(all.vms[1], 3.0), "{all:?}");
        assert!(near(all.groups[5], 4.0), "{all:?}");
    }

    #[test]
    fn what_a_vm_leaves_goes_to_its_sibling_first() {
        let groups = [
            group(2, 1, 100.0, 0.0),
            group(3, 1, 100.0, 4.0),
            group(4, 2, 100.0, 0.0),
            group(5, 2, 100.0, 0.0),
        ];
        let all = entitled(4.0, &groups, &[vm(4, 0.5, 4.0), vm(5, 4.0, 4.0)]);
        assert!(near(all.groups[1], 2.0) && near(all.vms[1], 1.5), "{all:?}");
        // If it wanted all, it would have half of what both have.
        assert!(near(all.vms[0], 1.0), "{all:?}");
    }

    #[test]
    fn idle_vm_is_entitled_to_what_it_would_have() {
        let groups = [group(2, 0, 100.0, 0.0), group(3, 0, 100.0, 0.0), group(4, 0, 300.0, 4.0)];
        let all = entitled(4.0, &groups, &[vm(2, 0.0, 2.0), vm(3, 0.0, 0.5)]);
        assert!(near(all.vms[0], 1.0) && near(all.vms[1], 0.5), "{all:?}");
        assert!(near(all.groups[2], 4.0), "{all:?}");
    }

    #[test]
    fn limit_is_divided_among_those_below_it_and_rest_is_the_others() {
        let groups = [
            Group { most: 1.5, ..group(2, 0, 100.0, 0.0) },
            group(3, 2, 100.0, 0.0),
            group(4, 2, 200.0, 0.0),
            group(5, 0, 100.0, 8.0),
        ];
        let all = entitled(8.0, &groups, &[vm(3, 2.0, 2.0), vm(4, 2.0, 2.0)]);
        assert!(near(all.vms[0], 0.5) && near(all.vms[1], 1.0), "{all:?}");
        assert!(near(all.groups[3], 6.5), "{all:?}");
        // One that has it to itself is held back by it alone, and others count on what it leaves.
        let all = entitled(8.0, &groups, &[vm(3, 2.0, 2.0)]);
        assert!(near(all.vms[0], 2.0) && near(all.groups[3], 6.5), "{all:?}");
    }

    #[test]
    fn vms_of_one_cgroup_divide_by_their_own_weights() {
        let groups = [group(2, 0, 100.0, 0.0), group(3, 0, 100.0, 0.0)];
        let heavy = EntitledVm { weight: 300.0, ..vm(2, 4.0, 4.0) };
        let all = entitled(4.0, &groups, &[heavy, vm(2, 4.0, 4.0), vm(3, 4.0, 4.0)]);
        assert!(near(all.vms[0], 1.5) && near(all.vms[1], 0.5) && near(all.vms[2], 2.0), "{all:?}");
        let outside = EntitledVm { group: 0, ..heavy };
        let all = entitled(4.0, &groups, &[outside, vm(3, 4.0, 4.0)]);
        assert!(near(all.vms[0], 3.0) && near(all.vms[1], 1.0), "{all:?}");
    }

    #[test]
    fn weights_of_threads_are_their_part_and_a_cpu_at_most() {
        let groups = [group(2, 0, 100.0, 4.0), group(3, 0, 300.0, 0.1), group(4, 0, 100.0, 0.0)];
        let all = weights(2.0, &groups, &[vm(4, 2.0, 2.0)]);
        // The second wants a tenth, so that the first and the VM divide the rest; it could have three fifths of two CPUs.
        assert_eq!((all.threads[0], all.threads[1], all.vms[0]), (238, 1000, 950), "{all:?}");
        assert_eq!(all.mean, 256, "(4 * 237.5 + 0.1 * 1000) / 4.1");
        assert_eq!(weights(2.0, &[], &[]).mean, 1000);
    }

    #[test]
    fn threads_below_a_limit_weigh_a_quarter_more_than_it() {
        // The limit is that of the slice above them.
        let slice = Group { most: 0.5, ..group(2, 0, 100.0, 0.0) };
        let groups = [slice, group(3, 2, 100.0, 1.0), group(4, 0, 100.0, 4.0)];
        let all = weights(2.0, &groups, &[]);
        assert_eq!((all.threads[1], all.threads[2]), (625, 375), "{all:?}");
    }

    #[test]
    fn circles_unknown_parents_and_no_numbers_are_survived() {
        let odd =
            [group(2, 3, 100.0, 1.0), group(3, 2, 0.0, f64::NAN), group(4, 99, f64::NAN, 1.0)];
        let all = entitled(4.0, &odd, &[vm(77, 1.0, f64::NAN)]);
        assert!(all.groups.iter().chain(&all.vms).all(|x| x.is_finite() && *x >= 0.0), "{all:?}");
    }

    /// The same by its definition: this leaf wants all, and CPU time is handed out from the root down.
    fn by_definition(cpus: f64, groups: &[Group], vms: &[EntitledVm], leaf: usize) -> f64 {
        let mut tree = Tree::of(cpus, groups, vms);
        let at = 1 + groups.len() + leaf;
        // Others above it are as unlimited as it is; what it can use is looked at in the end.
        tree.nodes[at].wants = cpus;
        tree.sum(&tree.downwards());
        let mut has = cpus;
        let mut node = 0;
        while node != at {
            let holds = |child: &&usize| tree.is_below(at, **child);
            let next = *tree.nodes[node].children.iter().find(holds).unwrap();
            let children: Vec<&Node> =
                tree.nodes[node].children.iter().map(|c| &tree.nodes[*c]).collect();
            let wants = |child: &Node, own: bool| if own { f64::INFINITY } else { child.wants };
            let (mut low, mut high) = (0.0, 2.0 * cpus / 1e-3);
            for _ in 0..200 {
                let level = (low + high) / 2.0;
                let used: f64 = tree.nodes[node]
                    .children
                    .iter()
                    .zip(&children)
                    .map(|(id, child)| wants(child, *id == next).min(child.weight * level))
                    .sum();
                if used < cpus.min(has) { low = level } else { high = level }
            }
            has = (tree.nodes[next].weight * low).min(tree.nodes[next].most);
            node = next;
        }
        has.min(tree.nodes[at].most)
    }

    proptest! {
        #[test]
        fn it_is_what_the_definition_says(
            parents in prop::collection::vec((0u64..6, 1u32..1000, 0u32..9, 1u32..30), 1..12),
            vms in prop::collection::vec((0u64..12, 0u32..16, 1u32..16), 0..8),
        ) {
            let groups: Vec<Group> = parents
                .iter()
                .zip(1..)
                .map(|((above, weight, wants, most), id)| Group {
                    most: if *most < 20 { f64::from(*most) / 2.0 } else { f64::INFINITY },
                    ..group(id, (*above).min(id - 1), f64::from(*weight), f64::from(*wants) / 2.0)
                })
                .collect();
            let vms: Vec<EntitledVm> =
                vms.iter().map(|(at, wants, most)| vm(*at, f64::from((*wants).min(*most)), f64::from(*most))).collect();
            let all = entitled(8.0, &groups, &vms);
            for (leaf, got) in all.groups.iter().chain(&all.vms).enumerate() {
                let wanted = by_definition(8.0, &groups, &vms, leaf);
                prop_assert!((got - wanted).abs() < 1e-3, "leaf {leaf}: {got} and not {wanted}");
            }
        }

        #[test]
        fn vm_that_lacks_time_fills_the_host_with_the_others(
            weights in prop::collection::vec((1u32..1000, 0u32..30), 2..20),
        ) {
            let groups: Vec<Group> = weights
                .iter()
                .zip(1..)
                .map(|((weight, wants), id)| group(id, 0, f64::from(*weight), f64::from(*wants) / 4.0))
                .collect();
            let wanted: f64 = groups.iter().map(|group| group.wants).sum();
            prop_assume!(wanted > 8.0);
            let all = entitled(8.0, &groups, &[]);
            let used: f64 = groups.iter().zip(&all.groups).map(|(group, has)| group.wants.min(*has)).sum();
            prop_assert!((used - 8.0).abs() < 1e-6, "{used}");
        }
    }
}
