//! Collects sampled pages and makes ranges of them: the pages around remote accesses, the hottest
//! first, to be brought home before everything else.
//!
//! Neighbours of a hot page are taken along, since programs touch memory in runs and a call moves
//! many pages at about the price of few. It does not know where a page lies: pages at home are
//! passed over when moving.

use crate::apply::ranges::Range;
use crate::apply::sampling::records::{Sample, Served};
use instep_core::units::Bytes;
use std::collections::BTreeMap;

/// Sampled addresses are kept to this unit, the small page of x86.
const PAGE: u64 = 4096;
/// Pages remembered at most; a sample of another page is then passed over.
const MAX_PAGES: usize = 1 << 16;

/// Pages by how often they were sampled, except those served from local memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotPages {
    hits: BTreeMap<u64, u32>,
}

impl HotPages {
    /// Adds a sample. One served from local memory needs no moving; one from a cache may.
    pub fn add(&mut self, sample: &Sample) {
        if sample.served == Served::LocalMemory {
            return;
        }
        let page = sample.address & !(PAGE - 1);
        if let Some(hits) = self.hits.get_mut(&page) {
            *hits = hits.saturating_add(1);
        } else if self.hits.len() < MAX_PAGES {
            self.hits.insert(page, 1);
        }
    }

    /// Pages remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hits.len()
    }

    /// Whether nothing was sampled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hits.is_empty()
    }

    /// The ranges `radius` pages around every sampled page, inside the `mapped` ranges (ascending,
    /// as [`crate::apply::ranges::read`] gives them), merged where they meet, most samples first,
    /// together at most `limit` long but at least one page.
    #[must_use]
    pub fn ranges(&self, mapped: &[Range], radius: u64, limit: Bytes) -> Vec<Range> {
        // (index of the mapping, samples, range)
        let mut merged: Vec<(usize, u64, Range)> = Vec::new();
        for (address, hits) in &self.hits {
            let after = mapped.partition_point(|range| range.start <= *address);
            let Some(index) = after.checked_sub(1) else { continue };
            let inside = &mapped[index];
            if *address >= inside.end || inside.page == 0 {
                continue;
            }
            let reach = radius.saturating_mul(inside.page);
            let page = address - (address - inside.start) % inside.page;
            let start = page.saturating_sub(reach).max(inside.start);
            let end = page.saturating_add(inside.page).saturating_add(reach).min(inside.end);
            match merged.last_mut() {
                Some((of, sum, last)) if *of == index && last.end >= start => {
                    *sum += u64::from(*hits);
                    last.end = last.end.max(end);
                }
                _ => {
                    let by_node = BTreeMap::new();
                    let range = Range { start, end, page: inside.page, by_node };
                    merged.push((index, u64::from(*hits), range));
                }
            }
        }
        merged.sort_by_key(|(_, hits, range)| (std::cmp::Reverse(*hits), range.start));
        let ranges = merged.into_iter().map(|(_, _, range)| range);
        cut(ranges, limit)
    }
}

/// Keeps ranges up to `limit` bytes in all; the last one is cut to whole pages.
fn cut(ranges: impl Iterator<Item = Range>, limit: Bytes) -> Vec<Range> {
    let mut left = limit.0;
    let mut kept: Vec<Range> = Vec::new();
    for mut range in ranges {
        let room = if kept.is_empty() { left.max(range.page) } else { left };
        let length = (range.end - range.start).min(room / range.page * range.page);
        if length == 0 {
            break;
        }
        range.end = range.start + length;
        left = left.saturating_sub(length);
        kept.push(range);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(address: u64, served: Served) -> Sample {
        Sample { pid: 7, tid: 7, address, served }
    }

    fn mapped(start: u64, pages: u64, page: u64) -> Range {
        Range { start, end: start + pages * page, page, by_node: BTreeMap::new() }
    }

    fn hot(addresses: &[u64]) -> HotPages {
        let mut hot = HotPages::default();
        addresses.iter().for_each(|a| hot.add(&sample(*a, Served::RemoteMemory)));
        hot
    }

    fn bounds(ranges: &[Range]) -> Vec<(u64, u64)> {
        ranges.iter().map(|range| (range.start / PAGE, range.end / PAGE)).collect()
    }

    const LARGE: Bytes = Bytes(u64::MAX);

    #[test]
    fn neighbours_come_along_inside_the_mapping_and_hottest_first() {
        let all = [mapped(100 * PAGE, 100, PAGE)];
        let pages = [101 * PAGE + 5, 150 * PAGE, 152 * PAGE, 150 * PAGE + 64, 199 * PAGE];
        let ranges = hot(&pages).ranges(&all, 2, LARGE);
        assert_eq!(bounds(&ranges), [(148, 155), (100, 104), (197, 200)]);
        assert_eq!(bounds(&hot(&pages).ranges(&all, 2, Bytes(8 * PAGE))), [(148, 155), (100, 101)]);
        assert_eq!(hot(&pages).ranges(&all, 2, Bytes(0)).len(), 1, "always one page");
    }

    #[test]
    fn huge_pages_are_taken_whole() {
        const HUGE: u64 = 2 << 20;
        let all = [mapped(HUGE, 10, HUGE)];
        let ranges = hot(&[3 * HUGE + 12345]).ranges(&all, 1, LARGE);
        assert_eq!((ranges[0].start, ranges[0].end, ranges[0].page), (2 * HUGE, 5 * HUGE, HUGE));
    }

    #[test]
    fn mappings_that_touch_are_not_merged() {
        const HUGE: u64 = 2 << 20;
        let all = [mapped(HUGE - PAGE, 1, PAGE), mapped(HUGE, 1, HUGE)];
        let ranges = hot(&[HUGE - PAGE, HUGE]).ranges(&all, 1, LARGE);
        assert_eq!(ranges.iter().map(|range| range.page).collect::<Vec<_>>(), [PAGE, HUGE]);
    }

    #[test]
    fn local_accesses_and_unmapped_addresses_are_not_hot() {
        let mut hot = hot(&[5 * PAGE]);
        hot.add(&sample(110 * PAGE, Served::LocalMemory));
        assert_eq!(hot.len(), 1);
        assert!(hot.ranges(&[mapped(100 * PAGE, 100, PAGE)], 2, LARGE).is_empty());
    }

    #[test]
    fn a_flood_of_pages_is_bounded() {
        let mut hot = HotPages::default();
        for page in 0..(MAX_PAGES as u64 + 100) {
            hot.add(&sample(page * PAGE, Served::Unknown));
        }
        assert_eq!(hot.len(), MAX_PAGES);
    }

    proptest! {
        #[test]
        fn ranges_are_bounded_disjoint_and_inside_mappings(
            addresses in proptest::collection::vec(0u64..400 * PAGE, 0..60),
            gaps in proptest::collection::vec((0u64..30, 1u64..40), 1..8),
            radius in 0u64..10,
            limit in 1u64..500,
        ) {
            let mut all: Vec<Range> = Vec::new();
            for (gap, pages) in gaps {
                let from = all.last().map_or(0, |range| range.end);
                all.push(mapped(from + gap * PAGE, pages, PAGE));
            }
            let mut ranges = hot(&addresses).ranges(&all, radius, Bytes(limit * PAGE));
            let length: u64 = ranges.iter().map(|range| range.end - range.start).sum();
            prop_assert!(length <= limit * PAGE);
            ranges.sort_by_key(|range| range.start);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
            for range in &ranges {
                prop_assert!(all.iter().any(|m| m.start <= range.start && range.end <= m.end));
            }
        }
    }
}
