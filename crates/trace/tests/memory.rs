//! An analysis of a long trace takes no more memory than that of a short one.
#![cfg(test)]

use instep_core::units::{CpuId, Nanos, Tid};
use instep_trace::analysis::{AnalysisSettings, analyze};
use instep_trace::event::{Comm, Context, Event, Fact, Left};
use instep_trace::rec::{End, Head, Writer};
use std::fs;
use std::io::{self, Read};

/// A recording of so many blocks that is made while it is read, of four vCPUs that take turns.
struct Endless {
    blocks: u64,
    made: Vec<u8>,
    at: usize,
    block: u64,
}

const EVENTS: u64 = 20_000;

impl Endless {
    fn new(blocks: u64) -> Self {
        let writer = Writer::begin(Vec::new(), &Head::default(), false).unwrap();
        // Every block is cut out of a recording of its own: an empty one is head and end.
        let empty = writer.finish(&End::default()).unwrap();
        let mut head = Writer::begin(Vec::new(), &Head::default(), false).unwrap();
        for tid in 0..4 {
            let name = Comm::new(format!("CPU {tid}/KVM").as_bytes());
            let (time, cpu) = (Nanos(1), CpuId(0));
            for fact in [
                Fact::Named { tid: Tid(11 + tid), name },
                Fact::Member { tid: Tid(11 + tid), tgid: Tid(10) },
            ] {
                head.event(&Event { time, cpu, fact }).unwrap();
            }
        }
        let made = head.finish(&End::default()).unwrap();
        let end = made.len() - end_of(&empty);
        Endless { blocks, made: made[..end].to_vec(), at: 0, block: 0 }
    }

    fn next_block(&mut self) {
        let mut writer = Writer::begin(Vec::new(), &Head::default(), false).unwrap();
        let head = writer.size() as usize;
        for number in 0..EVENTS / 2 {
            let time = Nanos(1_000 + (self.block * EVENTS + number * 2) * 500);
            let cpu = CpuId((number % 2) as u32);
            let pair = 11 + cpu.0 * 2;
            let (prev, next) =
                (Tid(pair + (number / 2 % 2) as u32), Tid(pair + ((number / 2 + 1) % 2) as u32));
            let waking =
                Fact::Waking { tid: next, target: cpu, waker: prev, context: Context::Thread };
            writer.event(&Event { time, cpu, fact: waking }).unwrap();
            let time = Nanos(time.0 + 200);
            let switch = Fact::Switch { prev, next, left: Left::Asleep };
            writer.event(&Event { time, cpu, fact: switch }).unwrap();
        }
        writer.round();
        writer.flush().unwrap();
        let end = writer.size() as usize;
        let bytes = writer.finish(&End::default()).unwrap();
        self.block += 1;
        let last = self.block == self.blocks;
        self.made = bytes[head..if last { bytes.len() } else { end }].to_vec();
        self.at = 0;
    }
}

/// Bytes of the end of a recording without events.
fn end_of(empty: &[u8]) -> usize {
    let head = Writer::begin(Vec::new(), &Head::default(), false).unwrap().size() as usize;
    empty.len() - head
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.made.len() {
            if self.block == self.blocks {
                return Ok(0);
            }
            self.next_block();
        }
        let count = buffer.len().min(self.made.len() - self.at);
        buffer[..count].copy_from_slice(&self.made[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// The most memory that this process ever had, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn analysed(blocks: u64) -> u64 {
    let mut stream =
        instep_trace::open_stream(Endless::new(blocks), "made", Default::default()).unwrap();
    let report = analyze(stream.as_mut(), &AnalysisSettings::default());
    assert_eq!(report.events, blocks * EVENTS);
    let vcpus: Vec<_> = report.vms.iter().flat_map(|vm| &vm.vcpus).collect();
    assert_eq!(vcpus.len(), 4);
    peak()
}

#[test]
fn eight_times_the_trace_takes_no_more_memory() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    // Longer than what is held back until the VMs are known.
    let short = analysed(30);
    let long = analysed(240);
    assert!(long < short + 16 * 1024, "{short} KiB for a short trace, {long} KiB for a long one");
    assert!(long < 256 * 1024, "{long} KiB");
}
