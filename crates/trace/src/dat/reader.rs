//! All CPUs of a trace.dat, merged by time.

use super::cpu::{CpuStream, Shared};
use super::head;
use crate::error::{Fault, TraceError};
use crate::event::Event;
use crate::source::ReadAt;
use crate::stream::{EventStream, Header, Tally};
use crate::threads::{At, Threads};
use crate::tracepoints::{ReaderOptions, Tracepoints};
use instep_core::units::{CpuId, Nanos, Tid};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events that make a batch worth handing out.
const BATCH: usize = 4096;

/// The events of a trace.dat.
pub struct DatStream<S> {
    header: Header,
    shared: Shared<S>,
    cpus: Vec<CpuStream>,
    /// The time of every CPU's next event.
    heads: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// What is known before the first event.
    early: Vec<Event>,
}

impl<S: ReadAt> DatStream<S> {
    /// Opens a trace.dat.
    ///
    /// # Errors
    /// When it is none, describes no scheduling, or its head is damaged.
    pub fn open(source: S, path: &str, options: ReaderOptions) -> Result<Self, TraceError> {
        Self::open_source(source, options).map_err(|fault| fault.of(path))
    }

    fn open_source(source: S, options: ReaderOptions) -> Result<Self, Fault> {
        let head = head::read(&source)?;
        let mut points = Tracepoints::default();
        head.formats.iter().for_each(|format| points.add(format, options));
        if !points.has_switch() {
            return Err(Fault::new(
                "it has no sched_switch, without which nothing can be analysed; record with \
                 `trace-cmd record -e sched -e kvm:kvm_entry`",
            ));
        }
        let mut header = head.header;
        for name in &points.unknown {
            let warning = format!("the layout of {name} is not understood: it is not used");
            header.warnings.push(warning);
        }
        let mut threads = Threads::default();
        let mut early = Vec::new();
        let at = At { time: Nanos(0), cpu: CpuId(0) };
        for (tid, name) in &head.names {
            let mut raw = [0; 16];
            raw.iter_mut().zip(name.bytes().take(15)).for_each(|(to, from)| *to = from);
            threads.named(at, Tid(*tid), &raw, &mut early);
        }
        for (tid, tgid) in &head.tgids {
            if let Ok(tgid) = tgid.trim().parse() {
                threads.member(at, Tid(*tid), Tid(tgid), &mut early);
            }
        }
        let mut shared = Shared {
            source,
            layout: head.layout,
            page_size: head.page_size,
            compression: head.compression,
            tsc: head.tsc,
            points,
            threads,
            tally: Tally::default(),
            held: 0,
        };
        let used = head.cpus.into_iter().filter(|cpu| cpu.size > 0);
        let mut cpus: Vec<CpuStream> = used.map(CpuStream::new).collect();
        let mut heads = BinaryHeap::new();
        for (index, cpu) in cpus.iter_mut().enumerate() {
            heads.extend(cpu.head(&mut shared).map(|time| Reverse((time, index))));
        }
        Ok(DatStream { header, shared, cpus, heads, early })
    }
}

impl<S: ReadAt> EventStream for DatStream<S> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn next_batch(&mut self, batch: &mut Vec<Event>) -> bool {
        batch.clear();
        batch.append(&mut self.early);
        while batch.len() < BATCH {
            let Some(Reverse((_, index))) = self.heads.pop() else { break };
            // Everything up to the next CPU's turn comes from this one.
            let upto = self.heads.peek().map_or(Nanos(u64::MAX), |Reverse((time, _))| *time);
            let cpu = &mut self.cpus[index];
            cpu.give(upto, batch);
            if let Some(time) = cpu.head(&mut self.shared) {
                self.heads.push(Reverse((time, index)));
            }
        }
        !batch.is_empty()
    }

    fn tally(&self) -> &Tally {
        &self.shared.tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_madehost::trace::{MadeEvent, TracepointFields, dat_6};

    #[test]
    fn all_cpus_together_hold_no_more_than_they_may() {
        let threads = ((0, "swapper/0"), (101, "CPU 0/KVM"));
        let moment = |time| MadeEvent {
            time,
            cpu: 0,
            current: (0, 0),
            flags: 0,
            what: TracepointFields::Switch(threads.0, threads.1, 0),
        };
        let moments: Vec<MadeEvent> = (0..2000).map(|at| moment(1000 + at * 1000)).collect();
        let data = dat_6(&moments, &[threads.1]);
        let mut stream =
            DatStream::open(std::io::Cursor::new(data), "made", ReaderOptions::default()).unwrap();
        // As if other CPUs held all that there is room for.
        stream.shared.held = usize::MAX / 2;
        let mut batch = Vec::new();
        while stream.next_batch(&mut batch) {}
        let cut = stream.tally().cut.as_deref().unwrap_or("nothing");
        assert!(cut.contains("take more than 512 MiB"), "{cut}");
    }
}
