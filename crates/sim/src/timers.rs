//! Timers: a fixed number of slots, each armed at most once; the earliest fires first, of equal
//! times the one armed first.
//!
//! A 4-ary heap that knows where each slot lies, so that arming again and cancelling cost
//! O(log n) and nothing is ever allocated after the start. What a slot stands for its owner knows.

/// A slot's number.
pub type Slot = u32;

const NOWHERE: u32 = u32::MAX;
const ARITY: usize = 4;

/// Bits of a slot's number.
const SLOT: u32 = 24;

/// When a slot fires, time in nanoseconds, then the order of arming; and the slot. In one number, so that one
/// comparison puts two in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry(u128);

impl Entry {
    #[inline]
    fn new(at: u64, sequence: u64, slot: Slot) -> Self {
        Self(u128::from(at) << 64 | u128::from(sequence << SLOT | u64::from(slot)))
    }

    #[inline]
    fn at(self) -> u64 {
        (self.0 >> 64) as u64
    }

    #[inline]
    fn slot(self) -> Slot {
        self.0 as Slot & ((1 << SLOT) - 1)
    }
}

/// The armed slots.
#[derive(Clone, Debug)]
pub struct Timers {
    heap: Vec<Entry>,
    /// The first of the heap has fired, and nothing has taken its place so far: what is armed next often can.
    vacant: bool,
    place: Vec<u32>,
    sequence: u64,
}

impl Timers {
    /// `slots` slots, none armed; 16 million at most.
    pub fn new(slots: usize) -> Self {
        assert!(slots <= 1 << SLOT, "a slot's number has {SLOT} bits");
        Self {
            heap: Vec::with_capacity(slots),
            vacant: false,
            place: vec![NOWHERE; slots],
            sequence: 0,
        }
    }

    /// Arms a slot for `at`, instead of what it was armed for.
    #[inline]
    pub fn arm(&mut self, slot: Slot, at: u64) {
        self.sequence += 1;
        let entry = Entry::new(at, self.sequence, slot);
        let place = self.place[slot as usize];
        if place == NOWHERE && std::mem::take(&mut self.vacant) {
            self.down(0, entry);
        } else if place == NOWHERE {
            self.heap.push(entry);
            self.up(self.heap.len() - 1, entry);
        } else {
            self.fill();
            let place = self.place[slot as usize] as usize;
            if entry < self.heap[place] {
                self.up(place, entry);
            } else {
                self.down(place, entry);
            }
        }
    }

    /// Disarms a slot; nothing happens if it is not armed.
    #[inline]
    pub fn cancel(&mut self, slot: Slot) {
        if self.place[slot as usize] != NOWHERE {
            self.fill();
            let place = std::mem::replace(&mut self.place[slot as usize], NOWHERE);
            self.remove(place as usize);
        }
    }

    /// Takes the earliest slot if it is due until `until`, with its time.
    #[inline]
    pub fn pop(&mut self, until: u64) -> Option<(u64, Slot)> {
        self.fill();
        let first = *self.heap.first()?;
        if first.at() > until {
            return None;
        }
        self.place[first.slot() as usize] = NOWHERE;
        self.vacant = true;
        Some((first.at(), first.slot()))
    }

    /// When a slot fires, if it is armed.
    pub fn due(&self, slot: Slot) -> Option<u64> {
        let place = self.place[slot as usize];
        (place != NOWHERE).then(|| self.heap[place as usize].at())
    }

    /// The first of the heap is one that is armed.
    #[inline]
    fn fill(&mut self) {
        if std::mem::take(&mut self.vacant) {
            self.remove(0);
        }
    }

    fn remove(&mut self, place: usize) {
        let Some(last) = self.heap.pop() else { return };
        if place == self.heap.len() {
            return;
        }
        if last < self.heap[place] {
            self.up(place, last);
        } else {
            self.down(place, last);
        }
    }

    #[inline]
    fn up(&mut self, mut place: usize, entry: Entry) {
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.heap[parent] <= entry {
                break;
            }
            self.set(place, self.heap[parent]);
            place = parent;
        }
        self.set(place, entry);
    }

    #[inline]
    fn down(&mut self, mut place: usize, entry: Entry) {
        loop {
            let first = place * ARITY + 1;
            let end = (first + ARITY).min(self.heap.len());
            let Some(children) = self.heap.get(first..end) else { break };
            let least = match children {
                [a, b, c, d] => {
                    let (one, two) = (usize::from(b < a), 2 + usize::from(d < c));
                    one + (two - one) * usize::from(children[two] < children[one])
                }
                _ => match (0..children.len()).min_by_key(|at| children[*at]) {
                    Some(least) => least,
                    None => break,
                },
            };
            let child = children[least];
            if entry <= child {
                break;
            }
            self.set(place, child);
            place = first + least;
        }
        self.set(place, entry);
    }

    #[inline]
    fn set(&mut self, place: usize, entry: Entry) {
        self.heap[place] = entry;
        self.place[entry.slot() as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn of_equal_times_the_one_armed_first_fires_first() {
        let mut timers = Timers::new(3);
        timers.arm(2, 5);
        timers.arm(0, 5);
        timers.arm(1, 5);
        timers.arm(2, 5);
        let order: Vec<_> = std::iter::from_fn(|| timers.pop(9)).collect();
        assert_eq!(order, [(5, 0), (5, 1), (5, 2)]);
    }

    #[test]
    fn nothing_fires_before_its_time_or_after_it_was_cancelled() {
        let mut timers = Timers::new(2);
        timers.arm(0, 5);
        timers.arm(1, 4);
        timers.cancel(1);
        assert_eq!((timers.pop(4), timers.due(0), timers.due(1)), (None, Some(5), None));
        assert_eq!(timers.pop(5), Some((5, 0)));
    }

    proptest! {
        #[test]
        fn slots_fire_as_in_a_sorted_list(
            steps in proptest::collection::vec((0u32..20, 0u64..50, 0u8..4), 1..300),
        ) {
            let mut timers = Timers::new(20);
            let mut model: Vec<(u64, u64, u32)> = Vec::new();
            for (sequence, (slot, at, what)) in steps.into_iter().enumerate() {
                match what {
                    0 => {
                        timers.cancel(slot);
                        model.retain(|armed| armed.2 != slot);
                    }
                    1 => {
                        model.sort_unstable();
                        let expected = model.first().copied().filter(|armed| armed.0 <= at);
                        prop_assert_eq!(timers.pop(at), expected.map(|armed| (armed.0, armed.2)));
                        if expected.is_some() {
                            model.remove(0);
                        }
                    }
                    _ => {
                        timers.arm(slot, at);
                        model.retain(|armed| armed.2 != slot);
                        model.push((at, sequence as u64, slot));
                    }
                }
            }
        }
    }
}
