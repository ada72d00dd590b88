//! Events out of a page of the kernel's ring buffer.
//!
//! A page has a time stamp, the number of bytes in use with two flags, and events. An event's
//! first word holds its kind or length (5 bits) and the time since the one before (27 bits):
//!
//! ```text
//! 0        length in the next word      1-28  length in words
//! 29       padding: the rest of the page, or a discarded event
//! 30       time extend: the next word are the upper bits of the difference
//! 31       time stamp: the next word are the upper bits of the time
//! ```

use crate::bytes::{u32_at, u64_at};
use crate::tracing_data::PageLayout;

/// Flags in the number of bytes in use.
const MISSED: u64 = 1 << 31;
const MISSED_COUNTED: u64 = 1 << 30;
/// A time stamp event has 59 bits; the upper ones are those of the page.
const STAMP_BITS: u32 = 59;

/// A place in a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    at: usize,
    end: usize,
    pub(crate) time: u64,
}

/// Events that were lost before a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    Nothing,
    Unknown,
    Events(u64),
}

/// What stands next in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A record of a tracepoint: from, to.
    Record(usize, usize),
    End,
    /// No event can begin like this; the rest of the page cannot be read.
    Broken,
}

impl Page {
    /// At the first event; `None` when the page's head makes no sense.
    pub(crate) fn begin(page: &[u8], layout: &PageLayout) -> Option<(Page, Missed)> {
        let time = u64_at(page, layout.time)?;
        let used = match layout.commit_size {
            8 => u64_at(page, layout.commit)?,
            _ => u64::from(u32_at(page, layout.commit)?),
        };
        let length = usize::try_from(used & (MISSED_COUNTED - 1)).ok()?;
        let end = layout.data.checked_add(length).filter(|end| *end <= page.len())?;
        let missed = match (used & MISSED != 0, used & MISSED_COUNTED != 0) {
            (false, _) => Missed::Nothing,
            (true, true) => u64_at(page, end).map_or(Missed::Unknown, Missed::Events),
            (true, false) => Missed::Unknown,
        };
        Some((Page { at: layout.data, end, time }, missed))
    }

    /// The next record and, in `time`, when it was written.
    pub(crate) fn next(&mut self, page: &[u8]) -> Next {
        let page = &page[..self.end.min(page.len())];
        while self.at < self.end {
            let Some(word) = u32_at(page, self.at) else { return Next::Broken };
            let (kind, delta) = (word & 31, u64::from(word >> 5));
            let second = u32_at(page, self.at + 4);
            match kind {
                1..=28 => {
                    self.time = self.time.wrapping_add(delta);
                    return self.record(page, self.at + 4, kind as usize * 4);
                }
                0 => {
                    let length = second.and_then(|length| (length as usize).checked_sub(4));
                    let Some(length) = length else { return Next::Broken };
                    self.time = self.time.wrapping_add(delta);
                    return self.record(page, self.at + 8, length);
                }
                29 if delta == 0 => return Next::End,
                29 => {
                    let Some(length) = second else { return Next::Broken };
                    self.time = self.time.wrapping_add(delta);
                    self.at = self.at.saturating_add(4).saturating_add(length as usize);
                }
                30 => {
                    let Some(upper) = second else { return Next::Broken };
                    self.time = self.time.wrapping_add((u64::from(upper) << 27) | delta);
                    self.at += 8;
                }
                _ => {
                    let Some(upper) = second else { return Next::Broken };
                    self.time = whole((u64::from(upper) << 27) | delta, self.time);
                    self.at += 8;
                }
            }
        }
        Next::End
    }

    fn record(&mut self, page: &[u8], from: usize, length: usize) -> Next {
        let Some(to) = from.checked_add(length).filter(|to| *to <= page.len()) else {
            return Next::Broken;
        };
        self.at = to.next_multiple_of(4);
        Next::Record(from, to)
    }
}

/// A time stamp with the upper bits that its event has no room for, from the time before.
fn whole(stamp: u64, before: u64) -> u64 {
    let low = (1 << STAMP_BITS) - 1;
    let whole = (before & !low) | (stamp & low);
    if whole < before && before & !low != 0 { whole.wrapping_add(1 << STAMP_BITS) } else { whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: PageLayout = PageLayout { time: 0, commit: 8, commit_size: 8, data: 16 };

    fn page(flags: u64, words: &[u32]) -> Vec<u8> {
        let mut page = 1000u64.to_le_bytes().to_vec();
        page.extend(((words.len() as u64 * 4) | flags).to_le_bytes());
        page.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        page
    }

    fn records(page: &[u8]) -> Vec<(u64, usize)> {
        let (mut place, _) = Page::begin(page, &LAYOUT).unwrap();
        let mut found = Vec::new();
        while let Next::Record(from, to) = place.next(page) {
            found.push((place.time, to - from));
        }
        found
    }

    #[test]
    fn times_are_summed_extended_and_set() {
        let event = |delta: u32| (delta << 5) | 1;
        let words = [
            event(5),
            0, // one word, at 1005
            (7 << 5) | 30,
            1, // extended by 1 << 27 | 7
            event(0),
            0,
            (9 << 5) | 31,
            2, // set to 2 << 27 | 9
            event(1),
            0,
            3 << 5,
            12,
            0,
            0, // length in the next word: 8 bytes
            (4 << 5) | 29,
            4, // a discarded event
            event(0),
            0,
            29,
            0, // padding to the end
            event(1),
            0,
        ];
        let extended = 1005 + (1 << 27) + 7;
        let set = (2 << 27) + 9;
        assert_eq!(
            records(&page(0, &words)),
            [(1005, 4), (extended, 4), (set + 1, 4), (set + 4, 8), (set + 8, 4)]
        );
    }

    #[test]
    fn what_was_missed_before_a_page_is_reported() {
        let mut data = page(MISSED | MISSED_COUNTED, &[29, 0]);
        data.extend(42u64.to_le_bytes());
        assert_eq!(Page::begin(&data, &LAYOUT).unwrap().1, Missed::Events(42));
        assert_eq!(Page::begin(&page(MISSED, &[]), &LAYOUT).unwrap().1, Missed::Unknown);
    }

    #[test]
    fn a_page_that_claims_more_than_it_has_is_refused() {
        let mut data = page(0, &[0]);
        data[8] = 200;
        assert_eq!(Page::begin(&data, &LAYOUT), None);
        assert_eq!(Page::begin(&data[..12], &LAYOUT), None);
    }

    #[test]
    fn records_beyond_the_end_are_broken() {
        for words in [&[28u32, 0][..], &[0, 2], &[0, 500], &[30], &[0]] {
            let data = page(0, words);
            let (mut place, _) = Page::begin(&data, &LAYOUT).unwrap();
            assert_eq!(place.next(&data), Next::Broken, "{words:?}");
        }
    }
}
