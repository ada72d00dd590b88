//! perf's records to events: the interpreter that file and pipe share.
//!
//! Knows no file; a record comes as its type, its flags and its body. What is compressed is
//! inflated here and comes back as records.

use super::attr::{Layout, Layouts};
use super::features::{Features, TRACING_DATA};
use super::inflate::Inflater;
use crate::bytes::{Cursor, u16_at, u32_at, u64_at};
use crate::error::Fault;
use crate::event::{Event, Fact, MAX_CPUS};
use crate::order::Window;
use crate::stream::Tally;
use crate::threads::{At, Threads};
use crate::tracepoints::{Read, ReaderOptions, Tracepoints};
use instep_core::units::{CpuId, Nanos, Tid};

const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const LOST_SAMPLES: u32 = 13;
const HEADER_ATTR: u32 = 64;
pub(super) const HEADER_TRACING_DATA: u32 = 66;
const FINISHED_ROUND: u32 = 68;
pub(super) const AUXTRACE: u32 = 71;
const HEADER_FEATURE: u32 = 80;
const COMPRESSED: u32 = 81;
const COMPRESSED2: u32 = 83;

/// A record's head: type, flags, size with the head.
pub(super) const HEAD: usize = 8;

/// What was learned and gathered from the records so far.
pub(super) struct Records {
    pub(super) layouts: Layouts,
    pub(super) features: Features,
    points: Tracepoints,
    options: ReaderOptions,
    threads: Threads,
    pub(super) window: Window,
    pub(super) tally: Tally,
    inflater: Option<Inflater>,
    /// An incomplete record at the end of what was inflated last.
    carry: Vec<u8>,
    /// Whether the compressed stream was damaged: nothing behind that can be read.
    inflate_ended: bool,
    /// The last sample of every CPU.
    last: Vec<Last>,
    /// How many rounds perf ended, and the events since.
    rounds: u64,
    in_round: u64,
}

/// A CPU's last sample. Most samples are of the thread that the one before was of.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    time: Nanos,
    thread: Option<(u32, u32)>,
}

/// Complete events that are handed out before more is read.
const ENOUGH: usize = 1 << 16;

/// How much of some bytes was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// All whole records, up to here; what follows is the beginning of one.
    Upto(usize),
    /// Whole records up to here, and enough events came of them: what follows is still to be read.
    Enough(usize),
    /// A record head of no sense at this offset: the rest cannot be read.
    Broken(usize),
    /// A record of this type at the first offset is followed by data of its own, from the second
    /// offset on: the reader must pass as many bytes as the third says.
    Trailed { kind: u32, data: usize, size: u64 },
}

impl Records {
    pub(super) fn new(options: ReaderOptions) -> Self {
        Records {
            layouts: Layouts::default(),
            features: Features::default(),
            points: Tracepoints::default(),
            options,
            threads: Threads::default(),
            window: Window::default(),
            tally: Tally::default(),
            inflater: None,
            carry: Vec::new(),
            inflate_ended: false,
            last: Vec::new(),
            rounds: 0,
            in_round: 0,
        }
    }

    /// Takes over the tracepoint formats once they are known; false while they are not.
    pub(super) fn learn_formats(&mut self) -> bool {
        if let Some(formats) = self.features.formats.take() {
            formats.iter().for_each(|format| self.points.add(format, self.options));
        }
        self.points.has_switch()
    }

    /// Tracepoints whose formats lack what is needed.
    pub(super) fn unknown_formats(&self) -> &[String] {
        &self.points.unknown
    }

    /// Reads the records in `data` until its end or until enough events are complete.
    pub(super) fn parse(&mut self, data: &[u8], out: &mut Vec<Event>) -> Parsed {
        let mut at = 0;
        while let Some(head) = data.get(at..at + HEAD) {
            let kind = u32_at(head, 0).unwrap_or(0);
            let size = usize::from(u16_at(head, 6).unwrap_or(0));
            if size < HEAD {
                return Parsed::Broken(at);
            }
            let Some(body) = data.get(at + HEAD..at + size) else { break };
            if let Some(size) = trailing(kind, body) {
                return Parsed::Trailed { kind, data: at + HEAD + body.len(), size };
            }
            if kind == COMPRESSED || kind == COMPRESSED2 {
                self.inflate(kind, body, out);
            } else {
                self.record(kind, body, out);
            }
            at += size;
            if out.len() >= ENOUGH {
                return Parsed::Enough(at);
            }
        }
        Parsed::Upto(at)
    }

    fn record(&mut self, kind: u32, body: &[u8], out: &mut Vec<Event>) {
        match kind {
            SAMPLE => self.sample(body, out),
            COMM | FORK | EXIT => {
                self.task_or_damage(kind, body);
                self.window.bound(out, &mut self.tally);
            }
            LOST => self.lost(u64_at(body, 8), body, out),
            LOST_SAMPLES => self.lost(u64_at(body, 0), body, out),
            FINISHED_ROUND => {
                (self.rounds, self.in_round) = (self.rounds + 1, 0);
                self.window.round(out, &mut self.tally);
            }
            HEADER_ATTR => self.attr(body),
            HEADER_FEATURE => self.feature(body),
            // Others of the kernel's, as of mappings: only that they came, for `unended`.
            kind if kind < HEADER_ATTR => {
                let time = self.layouts.of_others().and_then(|layout| layout.trailer(body).time);
                self.in_round += u64::from(time.is_some_and(|time| time > 0));
            }
            _ => {}
        }
    }

    #[inline]
    fn sample(&mut self, body: &[u8], out: &mut Vec<Event>) {
        self.tally.records += 1;
        let sample = self.layouts.of_sample(body).and_then(|layout| layout.sample(body));
        let Some(sample) = sample.filter(|sample| sample.cpu < MAX_CPUS) else {
            self.tally.damage(|| format!("a sample of {} bytes", body.len()));
            return;
        };
        let at = At { time: Nanos(sample.time), cpu: CpuId(sample.cpu) };
        self.window.saw(at.time);
        if self.last.len() <= sample.cpu as usize {
            self.last.resize(sample.cpu as usize + 1, Last::default());
        }
        let last = &mut self.last[sample.cpu as usize];
        if at.time < last.time {
            self.tally.reordered += 1;
        } else {
            last.time = at.time;
        }
        let pending = self.window.pending();
        let thread = sample.pid.zip(sample.tid);
        if thread != last.thread
            && let Some((pid, tid)) = thread
        {
            last.thread = thread;
            self.threads.member(at, Tid(tid), Tid(pid), pending);
        }
        if sample.raw.is_empty() {
            return;
        }
        self.in_round += 1;
        match self.points.read(sample.raw, at, &mut self.threads, pending) {
            Read::Used => self.tally.used += 1,
            Read::Unused => {}
            Read::Damaged => {
                let length = sample.raw.len();
                self.tally.damage(|| format!("a raw record of {length} bytes at {} ns", at.time.0));
            }
        }
        self.window.bound(out, &mut self.tally);
    }

    fn task_or_damage(&mut self, kind: u32, body: &[u8]) {
        if self.task(kind, body).is_none() {
            self.tally.damage(|| format!("a record of type {kind} of {} bytes", body.len()));
        }
    }

    /// A name, a fork or an exit.
    fn task(&mut self, kind: u32, body: &[u8]) -> Option<()> {
        let trailer = self.layouts.of_others().map(|layout| layout.trailer(body));
        let trailer = trailer.unwrap_or_default();
        let cpu = trailer.cpu.filter(|cpu| *cpu < MAX_CPUS).unwrap_or(0);
        let at = |time: u64| At { time: Nanos(time), cpu: CpuId(cpu) };
        let told = if kind == COMM { trailer.time } else { u64_at(body, 16) };
        self.window.saw(Nanos(told.unwrap_or(0)));
        let pending = self.window.pending();
        if kind == COMM {
            let (pid, tid) = (Tid(u32_at(body, 0)?), Tid(u32_at(body, 4)?));
            let name = body.get(8..body.len() - trailer.size.min(body.len()))?;
            let mut raw = [0; 16];
            let text = name.iter().take(15).take_while(|byte| **byte != 0);
            raw.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
            let at = at(trailer.time.unwrap_or(0));
            self.in_round += u64::from(at.time.0 > 0);
            self.threads.member(at, tid, pid, pending);
            self.threads.named(at, tid, &raw, pending);
            return Some(());
        }
        let (pid, tid) = (Tid(u32_at(body, 0)?), Tid(u32_at(body, 8)?));
        let (parent, at) = (Tid(u32_at(body, 12)?), at(u64_at(body, 16)?));
        self.in_round += u64::from(at.time.0 > 0);
        if kind == FORK {
            self.threads.forked(at, parent, tid, pending);
            self.threads.member(at, tid, pid, pending);
        } else {
            pending.push(at.event(Fact::Exit { tid }));
        }
        Some(())
    }

    fn lost(&mut self, events: Option<u64>, body: &[u8], out: &mut Vec<Event>) {
        let trailer = self.layouts.of_others().map(|layout| layout.trailer(body));
        let trailer = trailer.unwrap_or_default();
        match events {
            Some(events) => self.tally.lost = self.tally.lost.saturating_add(events),
            None => self.tally.lost_places += 1,
        }
        let (Some(time), Some(cpu)) = (trailer.time, trailer.cpu) else { return };
        self.in_round += u64::from(time > 0);
        let at = At { time: Nanos(time), cpu: CpuId(cpu.min(MAX_CPUS - 1)) };
        let fact = Fact::Lost { events: events.unwrap_or(0) };
        self.window.saw(at.time);
        self.window.pending().push(at.event(fact));
        self.window.bound(out, &mut self.tally);
    }

    /// An event's attributes within a pipe: the attributes in their own size, then numbers.
    fn attr(&mut self, body: &[u8]) {
        let size = u32_at(body, 4).unwrap_or(0) as usize;
        let (attr, ids) = body.split_at_checked(size).unwrap_or((body, &[]));
        let (ids, _) = ids.as_chunks::<8>();
        if let Err(fault) = self.add_attr(attr, ids.iter().map(|id| u64::from_le_bytes(*id))) {
            self.tally.damage(|| fault.0);
        }
    }

    pub(super) fn add_attr(
        &mut self,
        attr: &[u8],
        ids: impl Iterator<Item = u64>,
    ) -> Result<Layout, Fault> {
        self.layouts.add(attr, ids)
    }

    fn feature(&mut self, body: &[u8]) {
        let Some((bit, data)) = u64_at(body, 0).zip(body.get(8..)) else { return };
        // A pipe has the formats as a record of their own.
        if let Some(bit) = u32::try_from(bit).ok().filter(|bit| *bit != TRACING_DATA)
            && let Err(fault) = self.features.add(bit, data)
        {
            self.tally.damage(|| fault.0);
        }
    }

    fn inflate(&mut self, kind: u32, body: &[u8], out: &mut Vec<Event>) {
        // One stream goes on from record to record: behind damage nothing of it can be read.
        if self.inflate_ended {
            return;
        }
        let mut payload = body;
        if kind == COMPRESSED2 {
            let mut cursor = Cursor::new(body, "a compressed record");
            match cursor.size().and_then(|size| cursor.take(size)) {
                Ok(data) => payload = data,
                Err(fault) => return self.tally.damage(|| fault.0),
            }
        }
        let inflater = match self.inflater.take().map_or_else(Inflater::new, Ok) {
            Ok(inflater) => inflater,
            Err(fault) => return self.tally.cut(fault.0),
        };
        let mut inflater = inflater;
        let (mut carry, mut ended) = (std::mem::take(&mut self.carry), false);
        let fed = inflater.feed(payload, |piece| {
            carry.extend_from_slice(piece);
            match self.parse_inflated(&carry, out) {
                Some(used) => {
                    carry.drain(..used);
                    true
                }
                None => {
                    ended = true;
                    false
                }
            }
        });
        if let Err(fault) = fed {
            self.tally.cut(fault.0);
            ended = true;
        }
        self.inflate_ended = ended;
        self.carry = if ended { Vec::new() } else { carry };
        self.inflater = Some(inflater);
    }

    /// Reads whole records out of inflated data: never compressed ones again, nor ones with data
    /// behind them. `None` when that is what stands there.
    fn parse_inflated(&mut self, data: &[u8], out: &mut Vec<Event>) -> Option<usize> {
        let mut at = 0;
        while let Some(head) = data.get(at..at + HEAD) {
            let kind = u32_at(head, 0)?;
            let size = usize::from(u16_at(head, 6)?);
            if size < HEAD || kind == COMPRESSED || kind == COMPRESSED2 {
                self.tally.cut("what a compressed record holds makes no sense");
                return None;
            }
            let Some(body) = data.get(at + HEAD..at + size) else { break };
            self.record(kind, body, out);
            at += size;
        }
        Some(at)
    }

    /// Why a pipe that ends here is not whole, as far as that can be told. Whenever perf has emptied its
    /// buffers it ends a round, the last time too; what may follow has no time of its own: counts of
    /// losses, threads that were there before, samples of what is no tracepoint.
    pub(super) fn unended(&self) -> Option<String> {
        match (self.rounds, self.in_round) {
            (0, _) => Some("perf ended no round of events in it".to_owned()),
            (_, 0) => None,
            (_, events) => {
                Some(format!("it ends {events} events into a round that perf did not end"))
            }
        }
    }

    /// Everything was read: gives what is left.
    pub(super) fn finish(&mut self, out: &mut Vec<Event>) {
        if !self.carry.is_empty() {
            let left = self.carry.len();
            self.tally.cut(format!("the last compressed record ends {left} bytes into another"));
        }
        self.window.finish(out, &mut self.tally);
    }
}

/// How many bytes of data follow a record of this type.
fn trailing(kind: u32, body: &[u8]) -> Option<u64> {
    match kind {
        HEADER_TRACING_DATA => Some(u64::from(u32_at(body, 0).unwrap_or(0))),
        AUXTRACE => Some(u64_at(body, 0).unwrap_or(0)),
        _ => None,
    }
}
