//! Pages of a running kernel's ring buffers (tracefs, `per_cpu/cpuN/trace_pipe_raw`) to events, by
//! the layouts that tracefs itself prints. Times must count nanoseconds.

use crate::bytes::text;
use crate::dat::pages::{Missed, Next, Page};
use crate::event::{Event, Fact};
use crate::format;
use crate::threads::{At, Threads};
use crate::tracepoints::{Read, ReaderOptions, Tracepoints};
use crate::tracing_data::{PageLayout, page_layout};
use instep_core::units::{CpuId, Nanos};

/// What pages are read with, and what was counted.
#[derive(Debug)]
pub struct Pages {
    layout: PageLayout,
    points: Tracepoints,
    threads: Threads,
    lost: u64,
    damaged: u64,
}

impl Pages {
    /// By `events/header_page` and the `format` files of the tracepoints that are recorded.
    ///
    /// # Errors
    /// A layout that is not understood, in words.
    pub fn new(header_page: &[u8], formats: &[Vec<u8>]) -> Result<Self, String> {
        let layout = page_layout(&text(header_page)).map_err(|fault| fault.0)?;
        let mut points = Tracepoints::default();
        for contents in formats {
            if let Some(format) = format::parse(&text(contents)) {
                points.add(&format, ReaderOptions::default());
            }
        }
        if !points.has_switch() {
            return Err("the layout of sched_switch is not understood".to_owned());
        }
        Ok(Pages { layout, points, threads: Threads::default(), lost: 0, damaged: 0 })
    }

    /// Appends the events of one page of this CPU.
    pub fn read(&mut self, cpu: CpuId, page: &[u8], out: &mut Vec<Event>) {
        let Some((mut place, missed)) = Page::begin(page, &self.layout) else {
            self.damaged += 1;
            return;
        };
        let lost = match missed {
            Missed::Nothing => None,
            Missed::Unknown => Some(0),
            Missed::Events(events) => Some(events),
        };
        if let Some(events) = lost {
            self.lost = self.lost.saturating_add(events);
            let at = At { time: Nanos(place.time), cpu };
            out.push(at.event(Fact::Lost { events }));
        }
        loop {
            match place.next(page) {
                Next::Record(from, to) => {
                    let at = At { time: Nanos(place.time), cpu };
                    let read = self.points.read(&page[from..to], at, &mut self.threads, out);
                    self.damaged += u64::from(read == Read::Damaged);
                }
                Next::End => return,
                Next::Broken => {
                    self.damaged += 1;
                    return;
                }
            }
        }
    }

    /// Events that the kernel says it lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Records and pages that made no sense.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::SplitMix64;
    use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

    const HEADER: &[u8] = b"\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
        \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
        \tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n";

    #[test]
    fn a_page_of_any_bytes_is_survived() {
        let switch = b"name: sched_switch\nID: 3\n\
            field:char prev_comm[16];offset:8;size:16;\nfield:pid_t prev_pid;offset:24;size:4;\n\
            field:long prev_state;offset:32;size:8;\nfield:char next_comm[16];offset:40;size:16;\n\
            field:pid_t next_pid;offset:56;size:4;\n";
        let mut pages = Pages::new(HEADER, &[switch.to_vec()]).unwrap();
        let mut out = Vec::new();
        for seed in 0..2000 {
            let mut page = [0; 256];
            SplitMix64::seed_from_u64(seed).fill_bytes(&mut page);
            pages.read(CpuId(0), &page, &mut out);
        }
        assert!(pages.damaged() > 0);
    }

    #[test]
    fn without_sched_switch_nothing_can_be_read() {
        let error = Pages::new(HEADER, &[]).unwrap_err();
        assert!(error.contains("sched_switch"), "{error}");
    }
}
