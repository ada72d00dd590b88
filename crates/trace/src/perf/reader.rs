//! Pulls perf.data through a buffer of fixed size: from a file by offsets, from a pipe as it
//! comes.

use super::head::{FILE_HEAD, FileHead, PIPE_HEAD};
use super::records::{HEAD, HEADER_TRACING_DATA, Parsed, Records};
use super::{MAGIC, MAGIC_SWAPPED};
use crate::bytes::u64_at;
use crate::error::{Fault, TraceError};
use crate::event::Event;
use crate::source::{Part, ReadAt, read_up_to};
use crate::stream::{EventStream, Header, Tally};
use crate::tracepoints::ReaderOptions;
use std::io::{self, Read};

/// Larger than the largest record (64 KiB).
const BUFFER: usize = 1 << 20;
const SMALL: usize = 128 << 10;
/// Tracepoint formats within a pipe.
const MAX_FORMATS: u64 = 64 << 20;
/// Events that make a batch worth handing out.
const BATCH: usize = 4096;

/// The events of a perf.data.
pub struct PerfStream<'a> {
    source: Box<dyn Read + 'a>,
    records: Records,
    header: Header,
    /// What was read and not yet parsed lies in `buffer[start..end]`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes to pass before the next record.
    skip: u64,
    /// Bytes of records that a file promised and that are not read yet.
    promised: Option<u64>,
    is_done: bool,
    /// Whether the buffer may hold whole records that were not looked at yet.
    has_unparsed: bool,
    /// Events that came while the head of a pipe was read.
    early: Vec<Event>,
}

impl<'a> PerfStream<'a> {
    /// Opens what can be read at any place: a file, or what a pipe wrote to a file.
    ///
    /// # Errors
    /// When it is no perf.data, describes no scheduling, or is damaged before the first record.
    pub fn open(
        source: impl ReadAt + 'a,
        path: &str,
        options: ReaderOptions,
    ) -> Result<Self, TraceError> {
        Self::open_source(source, options).map_err(|fault| fault.of(path))
    }

    fn open_source(source: impl ReadAt + 'a, options: ReaderOptions) -> Result<Self, Fault> {
        let start = read_up_to(&source, 0, FILE_HEAD)?;
        check_magic(&start)?;
        let size = source.size()?;
        if u64_at(&start, 8) == Some(PIPE_HEAD) {
            return Self::pipe_after_head(Part::new(source, PIPE_HEAD, size), options, size);
        }
        let head = FileHead::parse(&start)?;
        if head.data.size == 0 {
            return Err(Fault::new(
                "its recording was not ended properly (the size of its records is 0), so the \
                 formats that follow them are missing; record again and let perf end by itself or \
                 by SIGINT",
            ));
        }
        let mut records = Records::new(options);
        head.read(&source, &mut records)?;
        let end = head.data.at.saturating_add(head.data.size);
        let part = Part::new(source, head.data.at, end);
        let mut stream = Self::new(Box::new(part), records, head.data.size);
        stream.promised = Some(head.data.size);
        stream.ready("perf.data (file)")?;
        Ok(stream)
    }

    /// Reads a pipe: what `perf record -o -` writes.
    ///
    /// # Errors
    /// As [`PerfStream::open`].
    pub fn pipe(
        mut source: impl Read + 'a,
        path: &str,
        options: ReaderOptions,
    ) -> Result<Self, TraceError> {
        let mut head = Vec::new();
        source
            .by_ref()
            .take(PIPE_HEAD)
            .read_to_end(&mut head)
            .map_err(Fault::from)
            .and_then(|_| check_magic(&head))
            .and_then(|()| match u64_at(&head, 8) {
                Some(PIPE_HEAD) => Self::pipe_after_head(source, options, u64::MAX),
                Some(_) => Err(Fault::new(
                    "it is a perf.data file; name the file instead of reading it from a pipe",
                )),
                None => Err(Fault::new(format!(
                    "it is cut off: it ends at byte {} of its head of {PIPE_HEAD}; record anew",
                    head.len()
                ))),
            })
            .map_err(|fault| fault.of(path))
    }

    fn pipe_after_head(
        source: impl Read + 'a,
        options: ReaderOptions,
        size: u64,
    ) -> Result<Self, Fault> {
        let mut stream = Self::new(Box::new(source), Records::new(options), size);
        // Attributes, features and formats come before the first sample.
        let mut early = Vec::new();
        while stream.records.tally.records == 0 && stream.step(&mut early) {}
        stream.early = early;
        stream.ready("perf.data (pipe)")?;
        Ok(stream)
    }

    /// `size`: bytes that will come, as far as known.
    fn new(source: Box<dyn Read + 'a>, records: Records, size: u64) -> Self {
        let buffer = size.clamp(SMALL as u64, BUFFER as u64) as usize;
        PerfStream {
            source,
            records,
            header: Header::default(),
            buffer: vec![0; buffer],
            start: 0,
            end: 0,
            skip: 0,
            promised: None,
            is_done: false,
            has_unparsed: false,
            early: Vec::new(),
        }
    }

    /// Everything before the records is read: is it enough?
    fn ready(&mut self, format: &str) -> Result<(), Fault> {
        if let (Some(why), 0) = (&self.records.tally.cut, self.records.tally.records) {
            return Err(Fault::new(format!(
                "it is cut off before its first event: {why}; copy it again whole, or record anew"
            )));
        }
        if !self.records.learn_formats() {
            return Err(Fault::new(
                "it has no sched_switch, without which nothing can be analysed: other events were \
                 recorded, or it is cut off before; record with `perf sched record -a` or `perf \
                 record -a -e \
                 sched:sched_switch,sched:sched_wakeup,sched:sched_waking,sched:sched_migrate_task,kvm:kvm_entry`",
            ));
        }
        let lacking = self.records.layouts.all().iter().filter(|layout| layout.is_tracepoint);
        if let Some(what) = lacking.filter_map(|layout| layout.lacks()).next() {
            return Err(Fault::new(format!(
                "its samples have no {what}; record the whole host, with `perf record -a`"
            )));
        }
        self.header = self.records.features.header(format);
        for name in self.records.unknown_formats() {
            let warning = format!("the layout of {name} is not understood: it is not used");
            self.header.warnings.push(warning);
        }
        Ok(())
    }

    /// Reads and parses one buffer; false when nothing more can be.
    fn step(&mut self, out: &mut Vec<Event>) -> bool {
        match self.fill() {
            Ok(true) => {}
            Ok(false) => return self.end(out),
            Err(error) => {
                self.records.tally.cut(format!("it cannot be read further: {error}"));
                return self.end(out);
            }
        }
        let data = std::mem::take(&mut self.buffer);
        let parsed = self.records.parse(&data[self.start..self.end], out);
        self.buffer = data;
        match parsed {
            Parsed::Upto(used) => self.start += used,
            Parsed::Enough(used) => {
                self.start += used;
                self.has_unparsed = true;
            }
            Parsed::Broken(at) => {
                self.records.tally.cut(format!(
                    "a record of a size below {HEAD} bytes, {} bytes before the end of the buffer",
                    self.end - self.start - at
                ));
                return self.end(out);
            }
            Parsed::Trailed { kind, data, size } => {
                self.start += data;
                if kind == HEADER_TRACING_DATA {
                    if let Err(fault) = self.formats(size) {
                        self.records.tally.cut(fault.0);
                        return self.end(out);
                    }
                } else {
                    self.skip = size;
                }
            }
        }
        true
    }

    /// Makes more bytes available; false at the end.
    fn fill(&mut self) -> io::Result<bool> {
        if std::mem::take(&mut self.has_unparsed) {
            return Ok(true);
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let mut has_more = self.pass();
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(has_more),
                Ok(count) => {
                    self.end += count;
                    has_more = true;
                    self.pass();
                    if let Some(promised) = &mut self.promised {
                        *promised = promised.saturating_sub(count as u64);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            // A pipe's slow writer is not waited for: what is there is given.
            let enough = self.promised.is_none() || self.end == self.buffer.len();
            if self.skip == 0 && enough {
                return Ok(has_more);
            }
        }
    }

    /// Passes what shall be skipped, as far as it is there; whether that was anything.
    fn pass(&mut self) -> bool {
        let passed = self.skip.min(self.end as u64);
        self.buffer.copy_within(passed as usize..self.end, 0);
        self.end -= passed as usize;
        self.skip -= passed;
        passed > 0
    }

    /// Reads the formats that follow within a pipe.
    fn formats(&mut self, size: u64) -> Result<(), Fault> {
        if size > MAX_FORMATS {
            return Err(Fault::new("the formats of its tracepoints are absurdly large"));
        }
        let size = size as usize;
        let here = size.min(self.end - self.start);
        let mut data = self.buffer[self.start..self.start + here].to_vec();
        self.start += here;
        let mut rest = self.source.by_ref().take((size - here) as u64);
        rest.read_to_end(&mut data)?;
        if data.len() < size {
            self.records.tally.cut(format!(
                "it ends {} of {size} bytes into the formats of its tracepoints",
                data.len()
            ));
        }
        self.records.features.add(super::features::TRACING_DATA, &data)?;
        self.records.learn_formats();
        self.has_unparsed = true;
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<Event>) -> bool {
        if !self.is_done {
            self.is_done = true;
            let tally = &mut self.records.tally;
            let left = self.end - self.start;
            if self.promised.is_some_and(|promised| promised > 0) || self.skip > 0 {
                tally.cut("it is shorter than its head says");
            } else if left > 0 {
                tally.cut(format!("it ends {left} bytes into a record"));
            }
            self.records.finish(out);
            if let Some(why) = self.records.unended().filter(|_| self.promised.is_none()) {
                self.records.tally.cut(why);
            }
        }
        false
    }
}

fn check_magic(start: &[u8]) -> Result<(), Fault> {
    if start.starts_with(MAGIC_SWAPPED) {
        return Err(Fault::new("it was recorded on a big-endian machine, which is not read"));
    }
    if start.starts_with(MAGIC) { Ok(()) } else { Err(Fault::new("no perf.data")) }
}

impl EventStream for PerfStream<'_> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn next_batch(&mut self, batch: &mut Vec<Event>) -> bool {
        batch.clear();
        batch.append(&mut self.early);
        while !self.is_done && batch.len() < BATCH {
            if !self.step(batch) {
                break;
            }
        }
        !batch.is_empty()
    }

    fn tally(&self) -> &Tally {
        &self.records.tally
    }
}
