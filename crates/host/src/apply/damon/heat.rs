//! Orders memory by how much each part of it is used.
//!
//! A region tells in how many looks one page of it was found in use, so accesses x bytes estimate the memory
//! in use. A part's heat is that for each byte: what is to come home first saves most for each byte moved.

use super::Region;
use crate::apply::ranges::Range;

/// Parts begin and end at multiples of this: a transparent huge page of x86 moves whole when any part of it
/// moves, and is used as one.
const BLOCK: u64 = 2 << 20;

/// A part of a range, and its heat: accesses for each byte, in thousandths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The part. Its pages by node are not known.
    pub range: Range,
    /// Its heat; 0 when nothing of it was seen in use.
    pub heat: u64,
}

/// Cuts `ranges` where heat changes, at multiples of 2 MiB or of their larger pages. The parts are those of the
/// ranges, all of them, in the order of heat and then of address. `regions` ascend and are apart from each other.
pub fn hottest_first(ranges: &[Range], regions: &[Region]) -> Vec<Part> {
    let mut parts: Vec<Part> = ranges.iter().flat_map(|range| parts_of(range, regions)).collect();
    parts.sort_by_key(|part| (std::cmp::Reverse(part.heat), part.range.start));
    parts
}

fn parts_of(range: &Range, regions: &[Region]) -> Vec<Part> {
    let first = regions.partition_point(|region| region.end <= range.start);
    let inside = &regions[first..regions.partition_point(|region| region.start < range.end)];
    let block = BLOCK.max(range.page);
    let mut cuts = vec![range.start, range.end];
    for edge in inside.iter().flat_map(|region| [region.start, region.end]) {
        let below = edge / block * block;
        let above = if below == edge { edge } else { below.saturating_add(block) };
        cuts.extend([below, above].into_iter().filter(|at| range.start < *at && *at < range.end));
    }
    cuts.sort_unstable();
    cuts.dedup();
    let mut parts: Vec<Part> = Vec::new();
    for cut in cuts.windows(2) {
        let (start, end) = (cut[0], cut[1]);
        let heat = heat_of(inside, start, end);
        match parts.last_mut() {
            Some(last) if last.heat == heat => last.range.end = end,
            _ => {
                let range = Range { start, end, page: range.page, by_node: Default::default() };
                parts.push(Part { range, heat });
            }
        }
    }
    parts
}

/// Accesses x bytes of the regions between `start` and `end`, for each byte there, in thousandths.
fn heat_of(regions: &[Region], start: u64, end: u64) -> u64 {
    let first = regions.partition_point(|region| region.end <= start);
    let regions = regions[first..].iter().take_while(|region| region.start < end);
    let used = regions.fold(0u128, |sum, region| {
        let bytes = region.end.min(end) - region.start.max(start);
        sum + u128::from(bytes) * u128::from(region.accesses) * 1000
    });
    u64::try_from(used.div_ceil(u128::from(end - start))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn range(start: u64, end: u64, page: u64) -> Range {
        Range { start, end, page, by_node: [(instep_core::units::NodeId(0), 1)].into() }
    }

    fn region(start: u64, end: u64, accesses: u32) -> Region {
        Region { start, end, accesses }
    }

    fn shown(parts: &[Part]) -> Vec<(u64, u64, u64)> {
        let of = |part: &Part| (part.range.start / MIB, part.range.end / MIB, part.heat);
        parts.iter().map(of).collect()
    }

    #[test]
    fn used_memory_is_first_and_the_rest_in_order_of_address() {
        let memory = [range(100 * MIB, 196 * MIB, 4096), range(0, 20 * MIB, 4096)];
        let regions = [
            region(110 * MIB, 120 * MIB, 0),
            region(140 * MIB, 144 * MIB, 18),
            region(150 * MIB, 154 * MIB, 20),
            region(154 * MIB, 196 * MIB, 0),
        ];
        let parts = hottest_first(&memory, &regions);
        let expected = [
            (150, 154, 20_000),
            (140, 144, 18_000),
            (0, 20, 0),
            (100, 140, 0),
            (144, 150, 0),
            (154, 196, 0),
        ];
        assert_eq!(shown(&parts), expected);
    }

    #[test]
    fn huge_page_is_not_cut_and_has_the_heat_of_all_of_it() {
        let parts =
            hottest_first(&[range(0, 8 * MIB, 4096)], &[region(3 * MIB, 4 * MIB + 4096, 10)]);
        assert_eq!(shown(&parts), [(2, 4, 5000), (4, 6, 20), (0, 2, 0), (6, 8, 0)]);
        let whole = hottest_first(&[range(0, 3 << 30, 1 << 30)], &[region(MIB, 2 * MIB, 10)]);
        assert_eq!(shown(&whole), [(0, 1024, 10), (1024, 3072, 0)]);
    }

    #[test]
    fn least_use_of_a_large_part_is_not_rounded_to_none() {
        let parts = hottest_first(&[range(0, 1 << 30, 1 << 30)], &[region(0, 4096, 1)]);
        assert_eq!(parts[0].heat, 1);
    }

    proptest! {
        #[test]
        fn parts_are_all_of_the_ranges_and_nothing_twice(
            sizes in proptest::collection::vec((0u64..5000, 1u64..5000), 1..6),
            edges in proptest::collection::vec((0u64..4000, 1u64..4000, 0u32..21), 0..20),
        ) {
            let (mut at, mut memory) = (0, Vec::new());
            for (gap, pages) in sizes {
                at += gap * 4096;
                memory.push(range(at, at + pages * 4096, 4096));
                at += pages * 4096;
            }
            let (mut at, mut regions) = (0, Vec::new());
            for (gap, pages, accesses) in edges {
                at += gap * 4096;
                regions.push(region(at, at + pages * 4096, accesses));
                at += pages * 4096;
            }
            let mut parts = hottest_first(&memory, &regions);
            prop_assert!(parts.windows(2).all(|two| two[0].heat >= two[1].heat));
            parts.sort_by_key(|part| part.range.start);
            prop_assert!(parts.windows(2).all(|two| two[0].range.end <= two[1].range.start));
            for range in &memory {
                let own = parts.iter().filter(|p| range.start <= p.range.start && p.range.end <= range.end);
                prop_assert_eq!(own.map(|p| p.range.end - p.range.start).sum::<u64>(), range.end - range.start);
            }
        }
    }
}
