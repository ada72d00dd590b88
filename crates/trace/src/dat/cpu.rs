//! One CPU's data of a trace.dat: page after page, plain or out of compressed chunks, to events.

use super::chunks::Compression;
use super::options::{CpuData, Tsc};
use super::pages::{Missed, Next, Page};
use crate::bytes::u32_at;
use crate::error::Fault;
use crate::event::{Event, Fact};
use crate::source::{ReadAt, read_full};
use crate::stream::Tally;
use crate::threads::{At, Threads};
use crate::tracepoints::{Read, Tracepoints};
use crate::tracing_data::PageLayout;
use instep_core::units::{CpuId, Nanos};

/// Plain pages are read by so many bytes.
const BLOCK: usize = 64 << 10;
/// trace-cmd's chunks are some pages.
const MAX_CHUNK: u32 = 16 << 20;
/// What all CPUs together may hold of the file and of events out of it: 512 CPUs with pages of 64 KiB, ten a
/// chunk, have 340 MB.
const MAX_HELD: usize = 512 << 20;

/// What all CPUs of a trace share.
pub(super) struct Shared<S> {
    pub(super) source: S,
    pub(super) layout: PageLayout,
    pub(super) page_size: usize,
    pub(super) compression: Compression,
    pub(super) tsc: Option<Tsc>,
    pub(super) points: Tracepoints,
    pub(super) threads: Threads,
    pub(super) tally: Tally,
    /// Bytes that all CPUs hold.
    pub(super) held: usize,
}

/// One CPU's place in the file and its decoded events.
pub(super) struct CpuStream {
    cpu: CpuId,
    at: u64,
    end: u64,
    /// Compressed chunks that follow; `None` before their number was read.
    chunks: Option<u32>,
    block: Vec<u8>,
    block_at: usize,
    events: Vec<Event>,
    next: usize,
    last: Nanos,
    /// Bytes that it holds, as far as counted in [`Shared::held`].
    held: usize,
}

impl CpuStream {
    pub(super) fn new(data: CpuData) -> Self {
        CpuStream {
            cpu: CpuId(data.cpu),
            at: data.at,
            end: data.at.saturating_add(data.size),
            chunks: None,
            block: Vec::new(),
            block_at: 0,
            events: Vec::new(),
            next: 0,
            last: Nanos(0),
            held: 0,
        }
    }

    /// The time of the next event; reads on when there is none left. `None` at the end.
    pub(super) fn head<S: ReadAt>(&mut self, shared: &mut Shared<S>) -> Option<Nanos> {
        loop {
            if let Some(event) = self.events.get(self.next) {
                return Some(event.time);
            }
            self.events.clear();
            self.next = 0;
            match self.page(shared) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(fault) => {
                    shared.tally.cut(format!("CPU {}: {}", self.cpu, fault.0));
                    (self.block, self.events) = (Vec::new(), Vec::new());
                    self.account(shared);
                    return None;
                }
            }
        }
    }

    /// Gives the decoded events up to this time.
    pub(super) fn give(&mut self, upto: Nanos, out: &mut Vec<Event>) {
        let ready = &self.events[self.next..];
        let count = ready.partition_point(|event| event.time <= upto);
        out.extend_from_slice(&ready[..count]);
        self.next += count;
    }

    /// Decodes the next page; false at the end.
    fn page<S: ReadAt>(&mut self, shared: &mut Shared<S>) -> Result<bool, Fault> {
        if self.block_at >= self.block.len() {
            if !self.next_block(shared)? {
                return Ok(false);
            }
            self.bounded(shared)?;
        }
        let block = std::mem::take(&mut self.block);
        let end = (self.block_at + shared.page_size).min(block.len());
        let page = &block[self.block_at..end];
        let Some((place, missed)) = Page::begin(page, &shared.layout) else {
            let cpu = self.cpu;
            shared.tally.damage(|| format!("a page of CPU {cpu} whose head makes no sense"));
            self.block_at = end;
            self.block = block;
            return Ok(true);
        };
        self.records(page, place, missed, shared);
        self.block_at = end;
        self.block = block;
        self.bounded(shared)?;
        Ok(true)
    }

    fn account<S>(&mut self, shared: &mut Shared<S>) {
        let now = self.block.capacity() + self.events.capacity() * size_of::<Event>();
        shared.held = shared.held.saturating_sub(self.held).saturating_add(now);
        self.held = now;
    }

    /// Refuses to hold more than all CPUs may.
    fn bounded<S>(&mut self, shared: &mut Shared<S>) -> Result<(), Fault> {
        self.account(shared);
        match shared.held > MAX_HELD {
            true => Err(Fault::new("all CPUs' pages together take more than 512 MiB")),
            false => Ok(()),
        }
    }

    fn records<S>(&mut self, page: &[u8], mut place: Page, missed: Missed, shared: &mut Shared<S>) {
        let lost = match missed {
            Missed::Nothing => None,
            Missed::Unknown => {
                shared.tally.lost_places += 1;
                Some(0)
            }
            Missed::Events(events) => {
                shared.tally.lost = shared.tally.lost.saturating_add(events);
                Some(events)
            }
        };
        if let Some(events) = lost {
            let at = self.moment(place.time, shared);
            self.events.push(at.event(Fact::Lost { events }));
        }
        loop {
            match place.next(page) {
                Next::Record(from, to) => {
                    shared.tally.records += 1;
                    let at = self.moment(place.time, shared);
                    let raw = &page[from..to];
                    match shared.points.read(raw, at, &mut shared.threads, &mut self.events) {
                        Read::Used => shared.tally.used += 1,
                        Read::Unused => {}
                        Read::Damaged => {
                            shared.tally.damage(|| format!("a record at {} ns", at.time.0));
                        }
                    }
                }
                Next::End => return,
                Next::Broken => {
                    let cpu = self.cpu;
                    shared.tally.damage(|| format!("the rest of a page of CPU {cpu}"));
                    return;
                }
            }
        }
    }

    /// A time stamp as nanoseconds that never run backwards on this CPU.
    #[inline]
    fn moment<S>(&mut self, stamp: u64, shared: &mut Shared<S>) -> At {
        let mut time = Nanos(match shared.tsc {
            Some(tsc) => {
                let product = u128::from(stamp) * u128::from(tsc.multiplier);
                (product >> tsc.shift.min(127)) as u64
            }
            None => stamp,
        });
        if time < self.last {
            shared.tally.late += 1;
            shared.tally.latest = shared.tally.latest.max(self.last.since(time));
            time = self.last;
        }
        self.last = time;
        At { time, cpu: self.cpu }
    }

    /// Reads the next pages into `block`; false at the end.
    fn next_block<S: ReadAt>(&mut self, shared: &Shared<S>) -> Result<bool, Fault> {
        self.block_at = 0;
        if shared.compression != Compression::None {
            return self.next_chunk(shared);
        }
        if self.at >= self.end {
            return Ok(false);
        }
        let pages = (BLOCK / shared.page_size).max(1) * shared.page_size;
        let wanted = (self.end - self.at).min(pages as u64) as usize;
        self.block.resize(wanted, 0);
        let got = read_full(&shared.source, &mut self.block, self.at)?;
        self.block.truncate(got);
        self.at = self.at.saturating_add(got as u64);
        if got == 0 {
            self.at = self.end;
            return Err(Fault::new("its data are cut off"));
        }
        Ok(true)
    }

    fn next_chunk<S: ReadAt>(&mut self, shared: &Shared<S>) -> Result<bool, Fault> {
        let left = match self.chunks {
            Some(left) => left,
            None => {
                let count = self.number(shared)?;
                self.chunks = Some(count);
                count
            }
        };
        if left == 0 {
            return Ok(false);
        }
        self.chunks = Some(left - 1);
        let (packed, size) = (self.number(shared)?, self.number(shared)?);
        // The number of chunks ends the data: trace-cmd 3.1 does not count it in their size.
        if size > MAX_CHUNK || packed > MAX_CHUNK {
            return Err(Fault::new("a compressed chunk has an absurd size"));
        }
        let mut data = vec![0; packed as usize];
        let got = read_full(&shared.source, &mut data, self.at)?;
        self.at = self.at.saturating_add(u64::from(packed));
        if got < data.len() {
            return Err(Fault::new("a compressed chunk is cut off"));
        }
        self.block = shared.compression.inflate(&data, size as usize)?;
        Ok(!self.block.is_empty())
    }

    fn number<S: ReadAt>(&mut self, shared: &Shared<S>) -> Result<u32, Fault> {
        let mut bytes = [0; 4];
        let got = read_full(&shared.source, &mut bytes, self.at)?;
        self.at = self.at.saturating_add(4);
        u32_at(&bytes[..got], 0).ok_or_else(|| Fault::new("its compressed data are cut off"))
    }
}
