//! Finds those who cannot all have one of their own: Hall's test, by a maximum matching of
//! claimants (vCPUs) to what they may use (cores or CPUs).
//!
//! Augmenting paths by breadth-first search; what a failed search has visited is closed and never
//! visited again, so failures cost O(claims) together. It knows nothing of loads.

use crate::idset::IdSet;
use crate::units::Id;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// Claimants that together may use fewer items than they are.
pub(crate) struct Tight<T> {
    /// Positions among the claimants, ascending.
    pub(crate) claimants: Vec<usize>,
    /// All that they may use.
    pub(crate) items: IdSet<T>,
}

/// What came of matching.
pub(crate) struct Matching<T> {
    /// The groups that have too little, disjoint, in order of the first claimant. Empty when
    /// everyone can have an item.
    pub(crate) tight: Vec<Tight<T>>,
    /// Items that are given to someone.
    pub(crate) taken: IdSet<T>,
    /// Claimants outside of `tight` that were not given any, as they find one in any case.
    pub(crate) easy: usize,
}

/// Matches claimants to what each may use. Who may use nothing at all is left out.
pub(crate) fn match_up<T: Id>(claims: &[&IdSet<T>]) -> Matching<T> {
    let mut order: Vec<(usize, usize)> = (0..claims.len())
        .map(|claimant| (claims[claimant].len(), claimant))
        .filter(|(items, _)| *items > 0)
        .collect();
    order.sort_by_key(|(items, claimant)| (Reverse(*items), *claimant));
    // Who may use as many as there are claimants finds one after all the others did.
    let mut easy = 0;
    while order.get(easy).is_some_and(|(items, _)| *items >= order.len() - easy) {
        easy += 1;
    }
    let mut hard: Vec<usize> = order[easy..].iter().map(|(_, claimant)| *claimant).collect();
    hard.sort_unstable();
    let has = vec![None; claims.len()];
    let mut search = Search { claims, has, owner: BTreeMap::new(), closed: IdSet::new() };
    let mut tight: Vec<Tight<T>> = Vec::new();
    for claimant in hard {
        if let Some(mut found) = search.give(claimant) {
            let joined = |old: &mut Tight<T>| old.items.intersects(&found.items);
            for old in tight.extract_if(.., joined).collect::<Vec<_>>() {
                found.claimants.extend(old.claimants);
                found.items = found.items.or(&old.items);
            }
            found.claimants.sort_unstable();
            tight.push(found);
        }
    }
    tight.sort_by(|a, b| a.claimants.cmp(&b.claimants));
    Matching { tight, taken: search.owner.into_keys().collect(), easy }
}

/// A matching under way.
struct Search<'a, T> {
    claims: &'a [&'a IdSet<T>],
    /// The item of each claimant.
    has: Vec<Option<T>>,
    /// Who has an item.
    owner: BTreeMap<T, usize>,
    /// Items that failed searches came upon: none of them can be had.
    closed: IdSet<T>,
}

impl<T: Id> Search<'_, T> {
    /// Gives the claimant an item, others changing theirs where needed; otherwise the group that
    /// has too little, with all that any of them may use.
    fn give(&mut self, claimant: usize) -> Option<Tight<T>> {
        let mut seen = self.closed.clone();
        let mut reached: BTreeMap<T, usize> = BTreeMap::new();
        let mut visited = vec![claimant];
        let mut queue = VecDeque::from([claimant]);
        while let Some(from) = queue.pop_front() {
            let new = self.claims[from].minus(&seen);
            seen = seen.or(&new);
            for item in new.iter() {
                reached.insert(item, from);
                let Some(owner) = self.owner.get(&item) else {
                    self.pass_on(item, &reached);
                    return None;
                };
                visited.push(*owner);
                queue.push_back(*owner);
            }
        }
        self.closed = seen;
        let items = visited.iter().fold(IdSet::new(), |all, one| all.or(self.claims[*one]));
        Some(Tight { claimants: visited, items })
    }

    /// Gives a free item to who reached it, that one's former item to who reached that, and so on
    /// back to the claimant that had none.
    fn pass_on(&mut self, free: T, reached: &BTreeMap<T, usize>) {
        let mut item = Some(free);
        while let Some(given) = item
            && let Some(&to) = reached.get(&given)
        {
            self.owner.insert(given, to);
            item = self.has[to].replace(given);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idset::CpuSet;
    use crate::units::CpuId;
    use proptest::prelude::*;

    fn matched(lists: &[&str]) -> Vec<(Vec<usize>, String)> {
        let sets: Vec<CpuSet> =
            lists.iter().map(|list| CpuSet::parse_list(list).unwrap()).collect();
        let tight = match_up(&sets.iter().collect::<Vec<_>>()).tight;
        tight.into_iter().map(|tight| (tight.claimants, tight.items.to_string())).collect()
    }

    #[test]
    fn all_that_change_items_have_one() {
        assert_eq!(matched(&["0-1", "0", "1-2", "2-3"]), []);
        assert_eq!(matched(&["0", "1", "0-1,9"]), []);
        assert_eq!(matched(&["", ""]), []);
    }

    #[test]
    fn short_groups_are_found_apart_and_joined_where_they_meet() {
        let two = [(vec![0, 1], "0".to_string()), (vec![2, 4], "5".to_string())];
        assert_eq!(matched(&["0", "0", "5", "6", "5"]), two);
        assert_eq!(matched(&["0", "0", "0-1", "1"]), [(vec![0, 1, 2, 3], "0-1".to_string())]);
    }

    proptest! {
        /// Hall's theorem, by all subsets.
        #[test]
        fn group_is_found_where_and_only_where_some_subset_has_too_little(
            masks in proptest::collection::vec(1u32..64, 1..7),
        ) {
            let set = |mask: &u32| (0..6).filter(|bit| mask >> bit & 1 == 1).map(CpuId).collect();
            let sets: Vec<CpuSet> = masks.iter().map(set).collect();
            let union = |chosen: &[usize]| {
                chosen.iter().fold(CpuSet::new(), |all, one| all.or(&sets[*one])).len()
            };
            let lacking = (1u32..1 << sets.len()).any(|subset| {
                let chosen: Vec<usize> =
                    (0..sets.len()).filter(|k| subset >> k & 1 == 1).collect();
                union(&chosen) < chosen.len()
            });
            let matching = match_up(&sets.iter().collect::<Vec<_>>());
            prop_assert_eq!(!matching.tight.is_empty(), lacking);
            for tight in &matching.tight {
                prop_assert!(union(&tight.claimants) < tight.claimants.len());
                prop_assert_eq!(union(&tight.claimants), tight.items.len());
            }
        }
    }
}
