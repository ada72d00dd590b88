//! Where the parts of a sample lie, by the attributes of the event that it belongs to.
//!
//! A sample's parts follow each other in a fixed order; which are there the event's `sample_type`
//! says. Those behind the raw record of the tracepoint are not looked at.

use crate::bytes::{Cursor, u32_at, u64_at};
use crate::error::Fault;
use std::collections::HashMap;

const IP: u64 = 1 << 0;
const TID: u64 = 1 << 1;
const TIME: u64 = 1 << 2;
const ADDR: u64 = 1 << 3;
const READ: u64 = 1 << 4;
const CALLCHAIN: u64 = 1 << 5;
const ID: u64 = 1 << 6;
const CPU: u64 = 1 << 7;
const PERIOD: u64 = 1 << 8;
const STREAM_ID: u64 = 1 << 9;
const RAW: u64 = 1 << 10;
const IDENTIFIER: u64 = 1 << 16;

/// The events of one `perf record` are as many as its options name times the CPUs.
const MAX_IDS: usize = 1 << 20;
const MAX_ATTRS: usize = 1 << 16;

/// Where the parts of an event's samples lie, from the start of the sample's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    sample_type: u64,
    read_format: u64,
    /// Whether other records end with the parts of a sample that identify it.
    sample_id_all: bool,
    /// Whether it is a tracepoint with its raw record.
    pub(crate) is_tracepoint: bool,
    tid: Option<usize>,
    time: Option<usize>,
    cpu: Option<usize>,
    /// Where READ, CALLCHAIN and RAW begin.
    tail: usize,
}

/// What a sample says, its raw record borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample<'a> {
    pub(crate) pid: Option<u32>,
    pub(crate) tid: Option<u32>,
    pub(crate) time: u64,
    pub(crate) cpu: u32,
    pub(crate) raw: &'a [u8],
}

/// What the end of a record that is no sample says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) time: Option<u64>,
    pub(crate) cpu: Option<u32>,
    /// Bytes that it takes.
    pub(crate) size: usize,
}

impl Layout {
    /// From a `perf_event_attr`, whole or as much of it as an older perf wrote.
    pub(crate) fn of(attr: &[u8]) -> Result<Layout, Fault> {
        let mut cursor = Cursor::new(attr, "the attributes of an event");
        let (kind, _size) = (cursor.u32()?, cursor.u32()?);
        let (_config, _period) = (cursor.u64()?, cursor.u64()?);
        let (sample_type, read_format, flags) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        let mut at = 0;
        let mut place = |bit: u64| {
            let here = (sample_type & bit != 0).then_some(at);
            at += if here.is_some() { 8 } else { 0 };
            here
        };
        place(IDENTIFIER);
        place(IP);
        let (tid, time) = (place(TID), place(TIME));
        place(ADDR);
        place(ID);
        place(STREAM_ID);
        let cpu = place(CPU);
        place(PERIOD);
        Ok(Layout {
            sample_type,
            read_format,
            sample_id_all: flags & (1 << 18) != 0,
            is_tracepoint: kind == 2 && sample_type & RAW != 0,
            tid,
            time,
            cpu,
            tail: at,
        })
    }

    /// What this event's samples lack for an analysis.
    pub(crate) fn lacks(&self) -> Option<&'static str> {
        match (self.time, self.cpu) {
            (None, _) => Some("times"),
            (_, None) => Some("CPU numbers"),
            _ => None,
        }
    }

    /// Reads a sample's body; `None` when it is shorter than it should be.
    #[inline]
    pub(crate) fn sample<'a>(&self, body: &'a [u8]) -> Option<Sample<'a>> {
        let (pid, tid) = match self.tid {
            Some(at) => (u32_at(body, at), Some(u32_at(body, at + 4)?)),
            None => (None, None),
        };
        let time = u64_at(body, self.time?)?;
        let cpu = u32_at(body, self.cpu?)?;
        let raw = if self.is_tracepoint { self.raw(body)? } else { &[] };
        Some(Sample { pid, tid, time, cpu, raw })
    }

    #[inline]
    fn raw<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        let mut at = self.tail;
        if self.sample_type & READ != 0 {
            at = at.checked_add(self.read_size(body, at)?)?;
        }
        if self.sample_type & CALLCHAIN != 0 {
            let calls = usize::try_from(u64_at(body, at)?).ok()?;
            at = calls.checked_add(1)?.checked_mul(8)?.checked_add(at)?;
        }
        let size = u32_at(body, at)? as usize;
        let start = at.checked_add(4)?;
        body.get(start..start.checked_add(size)?)
    }

    /// Size of the counter values at `at`.
    fn read_size(&self, body: &[u8], at: usize) -> Option<usize> {
        const TIMES: u64 = 1 | 2;
        let times = (self.read_format & TIMES).count_ones() as usize;
        let extra = (self.read_format & (4 | 16)).count_ones() as usize;
        let words = if self.read_format & 8 == 0 {
            1 + times + extra
        } else {
            let values = usize::try_from(u64_at(body, at)?).ok()?;
            values.checked_mul(1 + extra)?.checked_add(1 + times)?
        };
        words.checked_mul(8)
    }

    /// Reads what stands at the end of a record that is no sample.
    pub(crate) fn trailer(&self, body: &[u8]) -> Trailer {
        if !self.sample_id_all {
            return Trailer::default();
        }
        let order = [TID, TIME, ID, STREAM_ID, CPU, IDENTIFIER];
        let size = order.iter().filter(|bit| self.sample_type & **bit != 0).count() * 8;
        let Some(mut at) = body.len().checked_sub(size) else { return Trailer::default() };
        let mut trailer = Trailer { size, ..Trailer::default() };
        for bit in order.iter().filter(|bit| self.sample_type & **bit != 0) {
            match *bit {
                TIME => trailer.time = u64_at(body, at),
                CPU => trailer.cpu = u32_at(body, at),
                _ => {}
            }
            at += 8;
        }
        trailer
    }

    /// Whether samples of both are told apart by their first eight bytes.
    fn has_identifier(&self) -> bool {
        self.sample_type & IDENTIFIER != 0
    }
}

/// The layouts of all events of a trace, and which event a sample belongs to.
#[derive(Debug, Default)]
pub(crate) struct Layouts {
    /// Each once.
    list: Vec<Layout>,
    by_id: HashMap<u64, u32>,
    /// The same for small numbers, which perf gives.
    dense: Vec<u32>,
}

impl Layouts {
    /// Learns an event's attributes and the numbers of its counters.
    pub(crate) fn add(
        &mut self,
        attr: &[u8],
        ids: impl Iterator<Item = u64>,
    ) -> Result<Layout, Fault> {
        let layout = Layout::of(attr)?;
        let known = self.list.iter().position(|known| *known == layout);
        let index = known.unwrap_or(self.list.len());
        if index >= MAX_ATTRS {
            return Err(Fault::new(format!("more than {MAX_ATTRS} events")));
        }
        if known.is_none() {
            self.list.push(layout);
        }
        for id in ids {
            if self.by_id.len() >= MAX_IDS {
                return Err(Fault::new(format!("more than {MAX_IDS} counters")));
            }
            self.by_id.insert(id, index as u32);
            if let Some(place) = usize::try_from(id).ok().filter(|id| *id < MAX_IDS) {
                if self.dense.len() <= place {
                    self.dense.resize(place + 1, u32::MAX);
                }
                self.dense[place] = index as u32;
            }
        }
        Ok(layout)
    }

    /// The layout of the sample with this body.
    #[inline]
    pub(crate) fn of_sample(&self, body: &[u8]) -> Option<&Layout> {
        let [first, rest @ ..] = self.list.as_slice() else { return None };
        if rest.is_empty() || !first.has_identifier() {
            return self.list.iter().find(|layout| layout.is_tracepoint).or(Some(first));
        }
        let id = u64_at(body, 0)?;
        let dense = usize::try_from(id).ok().and_then(|id| self.dense.get(id));
        let index = match dense {
            Some(index) => *index,
            None => *self.by_id.get(&id)?,
        };
        self.list.get(index as usize)
    }

    /// The layout by which records that are no samples end.
    pub(crate) fn of_others(&self) -> Option<&Layout> {
        self.list.first()
    }

    /// Every layout.
    pub(crate) fn all(&self) -> &[Layout] {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(sample_type: u64) -> Vec<u8> {
        let mut attr = Vec::new();
        attr.extend(2u32.to_le_bytes());
        attr.extend(64u32.to_le_bytes());
        for word in [310, 1, sample_type, 0, 1 << 18] {
            attr.extend(u64::to_le_bytes(word));
        }
        attr
    }

    fn body(words: &[u64], raw: &[u8]) -> Vec<u8> {
        let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        body.extend((raw.len() as u32).to_le_bytes());
        body.extend(raw);
        body
    }

    #[test]
    fn call_chains_before_the_raw_record_are_passed() {
        let layout = Layout::of(&attr(TID | TIME | CPU | CALLCHAIN | RAW)).unwrap();
        let body = body(&[(7 << 32) | 6, 99, 3, 2, 0xdead, 0xbeef], b"raw!");
        let sample = layout.sample(&body).unwrap();
        assert_eq!((sample.pid, sample.tid, sample.time, sample.cpu), (Some(6), Some(7), 99, 3));
        assert_eq!(sample.raw, b"raw!");
        for length in 0..body.len() {
            assert_eq!(layout.sample(&body[..length]), None);
        }
    }

    #[test]
    fn a_call_chain_of_absurd_length_is_no_sample() {
        let layout = Layout::of(&attr(TID | TIME | CPU | CALLCHAIN | RAW)).unwrap();
        assert_eq!(layout.sample(&body(&[1, 2, 3, u64::MAX], b"")), None);
    }

    #[test]
    fn samples_of_different_events_are_distinguished() {
        let mut layouts = Layouts::default();
        let common = IDENTIFIER | TID | TIME | CPU;
        layouts.add(&attr(common), [1].into_iter()).unwrap();
        layouts.add(&attr(common | RAW), [2, u64::MAX].into_iter()).unwrap();
        let tracepoint = |id| layouts.of_sample(&body(&[id], b"")).map(|l| l.is_tracepoint);
        assert_eq!((tracepoint(1), tracepoint(2)), (Some(false), Some(true)));
        assert_eq!((tracepoint(u64::MAX), tracepoint(3)), (Some(true), None));
    }

    #[test]
    fn other_records_end_with_their_time_and_cpu() {
        let layout = Layout::of(&attr(TID | TIME | CPU | RAW | IDENTIFIER)).unwrap();
        let record: Vec<u8> = [5u64, 77, 42, 3, 9].iter().flat_map(|w| w.to_le_bytes()).collect();
        let trailer = Trailer { time: Some(42), cpu: Some(3), size: 32 };
        assert_eq!(layout.trailer(&record), trailer);
        assert_eq!(layout.trailer(&record[..16]), Trailer::default());
    }
}
