//! Every state of every vCPU as a trace for ui.perfetto.dev: a track per vCPU, grouped by VM, with
//! a slice per run and per wait for a CPU.
//!
//! Writes the few messages of Perfetto's protobuf schema that this takes by hand (field numbers:
//! protos/perfetto/trace/{trace_packet,track_event/track_event,track_event/track_descriptor}.proto)
//! as it goes, in constant memory.

use crate::analysis::discover::FoundVm;
use crate::analysis::{SchedState, Sink};
use instep_core::units::Nanos;
use std::io::{self, Write};

/// One writer is one sequence.
const SEQUENCE: u64 = 1;
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;

/// Writes a Perfetto trace.
pub struct PerfettoWriter<W> {
    out: W,
    /// The first error; nothing is written after it.
    error: Option<io::Error>,
    vms: Vec<u64>,
}

impl<W: Write> PerfettoWriter<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Self {
        PerfettoWriter { out, error: None, vms: Vec::new() }
    }

    /// Ends the trace and gives back what it was written to.
    ///
    /// # Errors
    /// The first error that `out` gave.
    pub fn finish(mut self) -> io::Result<W> {
        match self.error {
            Some(error) => Err(error),
            None => self.out.flush().map(|()| self.out),
        }
    }

    /// Writes one packet of the trace.
    fn packet(&mut self, packet: &Message) {
        let mut trace = Message::default();
        trace.bytes(1, &packet.0);
        if self.error.is_none()
            && let Err(error) = self.out.write_all(&trace.0)
        {
            self.error = Some(error);
        }
    }

    fn track(&mut self, uuid: u64, parent: Option<u64>, name: &str) {
        let mut descriptor = Message::default();
        descriptor.number(1, uuid);
        descriptor.bytes(2, name.as_bytes());
        if let Some(parent) = parent {
            descriptor.number(5, parent);
        }
        let mut packet = Message::default();
        packet.number(10, SEQUENCE);
        packet.bytes(60, &descriptor.0);
        self.packet(&packet);
    }

    fn event(&mut self, time: Nanos, uuid: u64, kind: u64, name: Option<&str>) {
        let mut event = Message::default();
        event.number(9, kind);
        event.number(11, uuid);
        if let Some(name) = name {
            event.bytes(22, b"vcpu");
            event.bytes(23, name.as_bytes());
        }
        let mut packet = Message::default();
        packet.number(8, time.0);
        packet.number(10, SEQUENCE);
        packet.bytes(11, &event.0);
        self.packet(&packet);
    }
}

impl<W: Write> Sink for PerfettoWriter<W> {
    fn begin(&mut self, vms: &[FoundVm], _begin: Nanos) {
        let mut next = 1;
        for vm in vms {
            self.track(next, None, &vm.name);
            self.vms.push(next);
            for (place, (index, tid)) in vm.vcpus.iter().enumerate() {
                let name = format!("vCPU {index} ({tid})");
                self.track(next + 1 + place as u64, Some(next), &name);
            }
            next += 1 + vm.vcpus.len() as u64;
        }
    }

    fn span(&mut self, vm: usize, vcpu: usize, place: SchedState, since: Nanos, until: Nanos) {
        let name = match place {
            SchedState::Running(cpu) => format!("runs on CPU {cpu}"),
            SchedState::Waiting(cpu) => format!("waits for CPU {cpu}"),
            SchedState::Waking => "waking".to_owned(),
            SchedState::Blocked | SchedState::Unknown => return,
        };
        let Some(first) = self.vms.get(vm) else { return };
        let uuid = first + 1 + vcpu as u64;
        self.event(since, uuid, SLICE_BEGIN, Some(&name));
        self.event(until, uuid, SLICE_END, None);
    }
}

/// A protobuf message.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.varint((field << 3) | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::units::CpuId;

    #[test]
    fn numbers_and_bytes_are_encoded_as_protobuf_does() {
        let mut message = Message::default();
        message.number(1, 300);
        message.bytes(60, b"ab");
        assert_eq!(message.0, [0x08, 0xac, 0x02, 0xe2, 0x03, 0x02, b'a', b'b']);
    }

    #[test]
    fn a_span_is_a_begin_and_an_end_on_the_vcpus_track() {
        let mut out = Vec::new();
        let mut writer = PerfettoWriter::new(&mut out);
        let vm = FoundVm { name: "a".to_owned(), pid: None, vcpus: vec![(0, 11), (1, 12)] };
        writer.begin(&[vm], Nanos(0));
        writer.span(0, 1, SchedState::Blocked, Nanos(0), Nanos(5));
        writer.span(0, 1, SchedState::Running(CpuId(2)), Nanos(5), Nanos(9));
        writer.finish().unwrap();
        let text = String::from_utf8_lossy(&out);
        assert!(text.contains("vCPU 1 (12)") && text.contains("runs on CPU 2"), "{text}");
        // Three tracks, a begin and an end.
        let mut packets = 0;
        let mut rest = out.as_slice();
        while let [0x0a, length, tail @ ..] = rest {
            rest = &tail[usize::from(*length)..];
            packets += 1;
        }
        assert_eq!((packets, rest.len()), (5, 0));
    }
}
