//! Reads a recording from its front to its back, out of a file or a pipe.
//!
//! What is damaged is passed over up to the next block that can be one, and counted; since events are
//! missing there, a loss stands in their place, which the recorder did not have.

use super::block::{BlockKind, FILE_HEAD, FRAME, Frame, MAGIC, MARKER, MAX_BLOCK, VERSION};
use super::decode::{Decoder, Item};
use super::head::{End, Head};
use crate::bytes::u16_at;
use crate::error::{Fault, TraceError};
use crate::event::{Event, Fact};
use crate::order::{Latest, Window};
use crate::stream::{Counter, EventStream, Header, Tally, Throttled};
use crate::tracepoints::ReaderOptions;
use instep_core::units::{CpuId, Nanos};
use std::io::Read;

/// A file with more damaged blocks is given up: each costs a checksum over what it claims to be.
const MAX_DAMAGED: u64 = 1000;
const CHUNK: usize = 64 << 10;

/// The events of a recording.
pub struct RecStream<R> {
    input: Input<R>,
    header: Header,
    end: Option<End>,
    options: ReaderOptions,
    window: Window,
    latest: Latest,
    tally: Tally,
    /// Records as the writer counts them.
    seen: u64,
    last: Nanos,
    is_done: bool,
}

impl<R: Read> RecStream<R> {
    /// Opens a recording; `path` is for messages.
    ///
    /// # Errors
    /// When it is none, is of a later version, or its head is missing or damaged.
    pub fn open(source: R, path: &str, options: ReaderOptions) -> Result<Self, TraceError> {
        Self::open_source(source, options).map_err(|fault| fault.of(path))
    }

    fn open_source(source: R, options: ReaderOptions) -> Result<Self, Fault> {
        let mut input = Input { source, buffer: Vec::new(), at: 0 };
        let start = input.peek(FILE_HEAD)?;
        if !start.starts_with(MAGIC) {
            return Err(Fault::new("no recording of Instep"));
        }
        let Some(version) = u16_at(start, 8).filter(|_| start.len() == FILE_HEAD) else {
            return Err(Fault::new("it is cut off in its first bytes"));
        };
        if version == 0 || version > VERSION {
            return Err(Fault::new(format!(
                "it is a recording of version {version}; this Instep reads up to {VERSION}: use \
                 the one that recorded it"
            )));
        }
        input.pass(FILE_HEAD);
        let (kind, contents) = match input.block()? {
            Block::Whole(kind, contents) => (kind, contents),
            Block::Damaged(fault) => return Err(Fault::new(format!("its head: {}", fault.0))),
            Block::Cut | Block::Nothing => return Err(Fault::new("it is cut off in its head")),
        };
        if kind != BlockKind::Head {
            return Err(Fault::new("it does not begin with its head"));
        }
        let head = Head::parse(&contents)?;
        Ok(RecStream {
            input,
            header: head.header(version),
            end: None,
            options,
            window: Window::default(),
            latest: Latest::default(),
            tally: Tally::default(),
            seen: 0,
            last: Nanos(0),
            is_done: false,
        })
    }

    /// Reads one block; false at the end.
    fn block(&mut self, out: &mut Vec<Event>) -> Result<bool, Fault> {
        match self.input.block()? {
            Block::Whole(BlockKind::Events, contents) => self.events(&contents, out),
            Block::Whole(BlockKind::End, contents) => {
                let end = End::parse(&contents)?;
                let missing = end.records.saturating_sub(self.seen);
                if missing > 0 && self.tally.damaged == 0 {
                    self.tally.damage(|| format!("{missing} records are missing"));
                }
                self.end = Some(end);
                return Ok(false);
            }
            Block::Whole(BlockKind::Head | BlockKind::Other, _) => {}
            Block::Damaged(fault) => self.lost_block(fault, out),
            Block::Cut => return Err(Fault::new("its last block is cut off")),
            Block::Nothing => {
                return Err(Fault::new(
                    "it has no end: it was cut off, or the recorder killed, between two blocks",
                ));
            }
        }
        if self.tally.damaged > MAX_DAMAGED {
            return Err(Fault::new("too much of it is damaged"));
        }
        Ok(true)
    }

    fn lost_block(&mut self, fault: Fault, out: &mut Vec<Event>) {
        self.tally.damage(|| fault.0);
        let fact = Fact::Lost { events: 0 };
        self.window.pending().push(Event { time: self.last, cpu: CpuId(0), fact });
        self.window.bound(out, &mut self.tally);
    }

    fn events(&mut self, contents: &[u8], out: &mut Vec<Event>) {
        let mut decoder = match Decoder::new(contents) {
            Ok(decoder) => decoder,
            Err(fault) => return self.lost_block(fault, out),
        };
        while let Some(item) = decoder.next() {
            match item {
                Ok(Item::Event(event)) => self.event(event, out),
                Ok(Item::Round) => self.window.round(out, &mut self.tally),
                Ok(Item::Passed) => {}
                Err(fault) => return self.lost_block(fault, out),
            }
            self.seen += 1;
        }
    }

    #[inline]
    fn event(&mut self, event: Event, out: &mut Vec<Event>) {
        self.last = self.last.max(event.time);
        match event.fact {
            Fact::Named { .. } | Fact::Member { .. } => {}
            Fact::Lost { events } => {
                self.tally.lost = self.tally.lost.saturating_add(events);
                self.tally.lost_places += u64::from(events == 0);
            }
            _ => {
                self.tally.records += 1;
                self.tally.used += 1;
                self.tally.reordered += u64::from(self.latest.is_behind(&event));
            }
        }
        if matches!(event.fact, Fact::KvmExit { .. }) && !self.options.exits {
            return;
        }
        self.window.pending().push(event);
        self.window.saw(event.time);
        self.window.bound(out, &mut self.tally);
    }
}

impl<R: Read> EventStream for RecStream<R> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn next_batch(&mut self, batch: &mut Vec<Event>) -> bool {
        batch.clear();
        while batch.is_empty() && !self.is_done {
            match self.block(batch) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(fault) => self.tally.cut(fault.0),
            }
            self.is_done = true;
            self.window.finish(batch, &mut self.tally);
        }
        !batch.is_empty()
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn counters(&self) -> &[Counter] {
        self.end.as_ref().map_or(&[], |end| &end.counters)
    }

    fn throttled(&self) -> &[Throttled] {
        self.end.as_ref().map_or(&[], |end| &end.throttled)
    }
}

/// What stands next in the file.
enum Block {
    Whole(BlockKind, Vec<u8>),
    /// Something else; the input is past it as far as is known.
    Damaged(Fault),
    /// A block that goes beyond the end.
    Cut,
    Nothing,
}

/// Bytes that were read ahead.
struct Input<R> {
    source: R,
    buffer: Vec<u8>,
    at: usize,
}

impl<R: Read> Input<R> {
    /// Up to so many of the next bytes: fewer only at the end.
    fn peek(&mut self, count: usize) -> Result<&[u8], Fault> {
        if self.buffer.len() - self.at < count {
            self.buffer.drain(..self.at);
            self.at = 0;
            while self.buffer.len() < count {
                let (have, more) = (self.buffer.len(), CHUNK.max(count - self.buffer.len()));
                self.buffer.resize(have + more, 0);
                let read = self.source.read(&mut self.buffer[have..]);
                let got = match read {
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {
                        self.buffer.truncate(have);
                        continue;
                    }
                    read => read.inspect_err(|_| self.buffer.truncate(have))?,
                };
                self.buffer.truncate(have + got);
                if got == 0 {
                    break;
                }
            }
        }
        let end = (self.at + count).min(self.buffer.len());
        Ok(&self.buffer[self.at..end])
    }

    fn pass(&mut self, count: usize) {
        self.at = (self.at + count).min(self.buffer.len());
    }

    fn block(&mut self) -> Result<Block, Fault> {
        let start = self.peek(FRAME)?;
        if start.is_empty() {
            return Ok(Block::Nothing);
        }
        if start.len() < FRAME {
            self.pass(FRAME);
            return Ok(Block::Cut);
        }
        let Some(frame) = Frame::read(start) else {
            return self.resume("no block begins where one should");
        };
        let whole = FRAME + frame.stored;
        let block = self.peek(whole)?;
        if block.len() < whole {
            // Its length may be what is damaged.
            return self.resume_or_cut();
        }
        match frame.contents(block) {
            Ok(contents) => {
                self.pass(whole);
                Ok(Block::Whole(frame.kind, contents))
            }
            Err(fault) => self.resume(&fault.0),
        }
    }

    /// Goes to the next marker.
    fn resume(&mut self, why: &str) -> Result<Block, Fault> {
        self.pass(1);
        loop {
            let ahead = self.peek(CHUNK)?;
            if let Some(found) = ahead.windows(MARKER.len()).position(|four| four == MARKER) {
                self.pass(found);
                return Ok(Block::Damaged(Fault::new(why)));
            }
            let (length, is_end) = (ahead.len(), ahead.len() < CHUNK);
            if is_end {
                self.pass(length);
                return Ok(Block::Damaged(Fault::new(why)));
            }
            self.pass(length - (MARKER.len() - 1));
        }
    }

    /// At a block that goes beyond the end: whole blocks may follow it if its length is wrong.
    fn resume_or_cut(&mut self) -> Result<Block, Fault> {
        let rest = self.peek(FRAME + MAX_BLOCK)?;
        let mut after = rest.windows(FRAME).enumerate().skip(1);
        let whole = after.find(|(at, bytes)| {
            bytes.starts_with(MARKER)
                && Frame::read(bytes).is_some_and(|frame| rest.len() - at >= FRAME + frame.stored)
        });
        if whole.is_some() {
            return self.resume("a block is longer than the file");
        }
        let length = rest.len();
        self.pass(length);
        Ok(Block::Cut)
    }
}

#[cfg(test)]
mod tests {
    use super::super::writer::Writer;
    use super::*;
    use instep_core::units::Tid;

    fn exit(time: u64, cpu: u32) -> Event {
        Event { time: Nanos(time), cpu: CpuId(cpu), fact: Fact::Exit { tid: Tid(time as u32) } }
    }

    /// A recording of blocks of two events each.
    fn made(blocks: u64) -> Vec<u8> {
        let head = Head { hostname: Some("h".to_owned()), ..Head::default() };
        let mut writer = Writer::begin(Vec::new(), &head, false).unwrap();
        for block in 0..blocks {
            writer.event(&exit(block * 10 + 5, 1)).unwrap();
            writer.event(&exit(block * 10 + 1, 0)).unwrap();
            writer.round();
            writer.flush().unwrap();
        }
        writer.finish(&End { ended: "test".to_owned(), ..End::default() }).unwrap()
    }

    fn read(bytes: &[u8]) -> (Vec<u64>, Tally) {
        let mut stream = RecStream::open(bytes, "made", ReaderOptions::default()).unwrap();
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        while stream.next_batch(&mut batch) {
            let exits = batch.iter().filter(|event| matches!(event.fact, Fact::Exit { .. }));
            all.extend(exits.map(|event| event.time.0));
        }
        (all, stream.tally().clone())
    }

    #[test]
    fn events_come_in_order_of_time_whatever_their_order_in_a_round() {
        let (times, tally) = read(&made(3));
        assert_eq!(times, [1, 5, 11, 15, 21, 25]);
        assert_eq!((tally.records, tally.warnings(&Header::default())), (6, vec![]));
    }

    #[test]
    fn a_damaged_block_costs_itself_only() {
        let whole = made(5);
        let marks: Vec<usize> =
            (0..whole.len()).filter(|at| whole[*at..].starts_with(MARKER)).collect();
        // The head, five of events, the end.
        assert_eq!(marks.len(), 7);
        for at in marks[2]..marks[3] {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            let (times, tally) = read(&changed);
            assert_eq!(times, [1, 5, 21, 25, 31, 35, 41, 45], "byte {at}");
            assert_eq!((tally.damaged, tally.lost_places, &tally.cut), (1, 0, &None), "byte {at}");
        }
    }

    #[test]
    fn a_later_version_names_itself() {
        let mut bytes = made(1);
        bytes[8] = 9;
        let error = RecStream::open(&bytes[..], "x", ReaderOptions::default()).err().unwrap();
        assert!(error.to_string().contains("x: it is a recording of version 9"), "{error}");
    }

    #[test]
    fn hostile_markers_cost_a_bounded_time() {
        let mut bytes = made(1);
        bytes.truncate(bytes.len() - 30);
        let mut frame = [0; FRAME];
        frame[..4].copy_from_slice(MARKER);
        frame[4] = 2;
        frame[10] = 0x0f;
        (0..20_000).for_each(|_| bytes.extend(frame));
        let (_, tally) = read(&bytes);
        assert!(tally.cut.is_some() && tally.damaged <= MAX_DAMAGED + 1, "{tally:?}");
    }
}
