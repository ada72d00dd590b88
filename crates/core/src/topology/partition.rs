//! Ways to divide the CPUs into groups, and how two such ways combine. Knows only positions
//! `0..n`, not what they stand for.

use std::collections::BTreeMap;

/// A division of the positions `0..n` into groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    /// For every position the lowest position of its group.
    label: Vec<usize>,
}

impl Partition {
    /// Positions with equal keys together.
    pub(super) fn by_key<K: Ord>(keys: impl IntoIterator<Item = K>) -> Self {
        let mut first = BTreeMap::new();
        let label = keys.into_iter().enumerate().map(|(at, key)| *first.entry(key).or_insert(at));
        Self { label: label.collect() }
    }

    /// The finest division that has both positions of every pair together.
    pub(super) fn by_pairs(n: usize, pairs: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut parent: Vec<usize> = (0..n).collect();
        for (a, b) in pairs {
            let (a, b) = (root(&mut parent, a), root(&mut parent, b));
            parent[a.max(b)] = a.min(b);
        }
        Self { label: (0..n).map(|at| root(&mut parent, at)).collect() }
    }

    /// What names the group of `at`: equal for all of the group.
    pub(super) fn label(&self, at: usize) -> usize {
        self.label[at]
    }

    /// The finest division of which both are refinements: groups that touch become one.
    pub(super) fn join(&self, other: &Self) -> Self {
        let both = [self, other];
        let pairs = both.iter().flat_map(|p| p.label.iter().copied().enumerate());
        Self::by_pairs(self.label.len(), pairs)
    }

    /// The coarsest division that refines both: together only who is together in each.
    pub(super) fn meet(&self, other: &Self) -> Self {
        Self::by_key(self.label.iter().zip(&other.label))
    }

    /// The members of every group, groups in order of their lowest member.
    pub(super) fn groups(&self) -> Vec<Vec<usize>> {
        let mut groups = BTreeMap::<usize, Vec<usize>>::new();
        for (at, label) in self.label.iter().enumerate() {
            groups.entry(*label).or_default().push(at);
        }
        groups.into_values().collect()
    }

    /// Positions whose group is not the same in the two, ascending.
    pub(super) fn differences(&self, other: &Self) -> Vec<usize> {
        let meet = self.meet(other);
        let size = |p: &Self| {
            let mut size = vec![0usize; p.label.len()];
            p.label.iter().for_each(|label| size[*label] += 1);
            size
        };
        let (mine, theirs, common) = (size(self), size(other), size(&meet));
        (0..self.label.len())
            .filter(|at| {
                let common = common[meet.label[*at]];
                common != mine[self.label[*at]] || common != theirs[other.label[*at]]
            })
            .collect()
    }
}

fn root(parent: &mut [usize], mut at: usize) -> usize {
    while parent[at] != at {
        parent[at] = parent[parent[at]];
        at = parent[at];
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts() -> impl Strategy<Value = (Partition, Partition)> {
        let keys = || proptest::collection::vec(0u8..6, 12);
        (keys(), keys()).prop_map(|(a, b)| (Partition::by_key(a), Partition::by_key(b)))
    }

    #[test]
    fn groups_come_in_order_of_their_lowest_member() {
        let part = Partition::by_key(["x", "y", "x", "z"]);
        assert_eq!(part.groups(), [vec![0, 2], vec![1], vec![3]]);
        assert_eq!(part.join(&Partition::by_key([0, 1, 2, 1])).groups(), [vec![0, 2], vec![1, 3]]);
    }

    proptest! {
        #[test]
        fn meet_and_join_are_a_lattice((a, b) in parts()) {
            prop_assert_eq!(a.meet(&b), b.meet(&a));
            prop_assert_eq!(a.join(&b), b.join(&a));
            prop_assert_eq!(a.meet(&a.join(&b)), a.clone());
            prop_assert_eq!(a.join(&a.meet(&b)), a.clone());
            prop_assert_eq!(a.differences(&b).is_empty(), a == b);
        }
    }
}
