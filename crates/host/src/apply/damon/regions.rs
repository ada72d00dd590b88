//! Regions of a process's memory as DAMON tells them.

/// A region that DAMON watches as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub start: u64,
    /// Behind the last byte; above `start`.
    pub end: u64,
    /// In how many looks of the last aggregation it was found in use.
    pub accesses: u32,
}

/// Reads regions, one a line: `START END ACCESSES`, as the files of `tried_regions` have them. They come back
/// ascending and apart from each other; where two overlap, the second is cut. Also how many lines are no region.
pub fn parse_regions(text: &str) -> (Vec<Region>, usize) {
    let mut bad = 0;
    let mut regions: Vec<Region> = text
        .lines()
        .filter_map(|line| {
            let region = region(line);
            bad += usize::from(region.is_none());
            region
        })
        .collect();
    regions.sort_by_key(|region| (region.start, region.end));
    let mut behind = 0;
    regions.retain_mut(|region| {
        region.start = region.start.max(behind);
        behind = behind.max(region.end);
        region.start < region.end
    });
    (regions, bad)
}

fn region(line: &str) -> Option<Region> {
    let mut words = line.split_ascii_whitespace();
    let start = words.next()?.parse().ok()?;
    let end = words.next()?.parse().ok()?;
    let accesses = words.next()?.parse().ok()?;
    (start < end && words.next().is_none()).then_some(Region { start, end, accesses })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_sorted_and_apart_and_bad_lines_are_counted() {
        let text = "8192 12288 20\n0 4096 3\n4096 9000 1\nfish\n5 5 1\n1 2 3 4\n-1 2 3\n";
        let (regions, bad) = parse_regions(text);
        let shown: Vec<_> = regions.iter().map(|r| (r.start, r.end, r.accesses)).collect();
        assert_eq!(shown, [(0, 4096, 3), (4096, 9000, 1), (9000, 12288, 20)]);
        assert_eq!(bad, 4);
        assert_eq!(parse_regions(""), (Vec::new(), 0));
    }
}
