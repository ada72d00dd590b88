//! The options of a trace.dat: where sections lie, and facts of the host.
//!
//! Each is a number, a size and so many bytes; unknown ones are passed.

use super::sections::id;
use crate::bytes::{Cursor, text, u32_at, u64_at};
use crate::error::Fault;
use crate::stream::TracedGuest;

/// The contents of the options.
#[derive(Debug, Default)]
pub(super) struct Options {
    /// Offsets of sections by their id (version 7).
    pub(super) sections: Vec<(u16, u64)>,
    pub(super) buffers: Vec<Buffer>,
    pub(super) clock: Option<String>,
    pub(super) uname: Option<String>,
    pub(super) cpus: Option<u32>,
    pub(super) tsc: Option<Tsc>,
    pub(super) guests: Vec<TracedGuest>,
    /// Events that the ring buffers' own statistics call overwritten or dropped.
    pub(super) dropped: u64,
}

/// How a processor's time stamps become nanoseconds: times `multiplier`, shifted right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tsc {
    pub(super) multiplier: u32,
    pub(super) shift: u32,
}

/// The data of one trace instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Buffer {
    /// Where its section begins.
    pub(super) at: u64,
    /// Its name; empty for the top one.
    pub(super) name: String,
    pub(super) page_size: u32,
    pub(super) cpus: Vec<CpuData>,
}

/// Where one CPU's data lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuData {
    pub(super) cpu: u32,
    pub(super) at: u64,
    pub(super) size: u64,
}

impl Options {
    /// Reads options up to the last; gives where the next ones lie (version 7) or 0.
    pub(super) fn read(&mut self, cursor: &mut Cursor<'_>, version: u32) -> Result<u64, Fault> {
        loop {
            let number = cursor.u16()?;
            if number == id::OPTIONS && version < 7 {
                return Ok(0);
            }
            let size = cursor.u32()? as usize;
            let data = cursor.take(size)?;
            if number == id::OPTIONS {
                return Ok(u64_at(data, 0).unwrap_or(0));
            }
            self.one(number, data, version)?;
        }
    }

    fn one(&mut self, number: u16, data: &[u8], version: u32) -> Result<(), Fault> {
        match number {
            id::CPU_STATISTICS => self.dropped = self.dropped.saturating_add(dropped(&text(data))),
            id::BUFFER if version >= 7 && self.buffers.len() < 4096 => {
                self.buffers.push(buffer(data)?);
            }
            id::CLOCK => self.clock = chosen(&text(data)),
            id::UNAME => self.uname = Some(text(data)),
            id::CPU_COUNT => self.cpus = u32_at(data, 0),
            id::GUEST if self.guests.len() < 4096 => self.guests.push(guest(data)?),
            id::TSC_TO_NANOS => {
                let numbers = u32_at(data, 0).zip(u32_at(data, 4));
                self.tsc = numbers.map(|(multiplier, shift)| Tsc { multiplier, shift });
            }
            id::HEADER_INFO..=id::COMMAND_LINES | id::SAVED_TGIDS if version >= 7 => {
                if let Some(at) = u64_at(data, 0).filter(|_| self.sections.len() < 64) {
                    self.sections.push((number, at));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Where the section of this kind lies.
    pub(super) fn section(&self, wanted: u16) -> Option<u64> {
        self.sections.iter().find(|(id, _)| *id == wanted).map(|(_, at)| *at)
    }
}

fn buffer(data: &[u8]) -> Result<Buffer, Fault> {
    let mut cursor = Cursor::new(data, "the description of a buffer");
    let at = cursor.u64()?;
    let (name, _clock) = (cursor.string()?, cursor.string()?);
    let (page_size, count) = (cursor.u32()?, cursor.u32()?);
    let mut cpus = Vec::new();
    for _ in 0..count {
        cpus.push(CpuData { cpu: cursor.u32()?, at: cursor.u64()?, size: cursor.u64()? });
    }
    Ok(Buffer { at, name, page_size, cpus })
}

fn guest(data: &[u8]) -> Result<TracedGuest, Fault> {
    let mut cursor = Cursor::new(data, "the description of a guest");
    let name = cursor.string()?;
    let (_trace, count) = (cursor.u64()?, cursor.u32()?);
    let mut vcpus = Vec::new();
    for _ in 0..count {
        vcpus.push((cursor.u32()?, cursor.u32()?));
    }
    Ok(TracedGuest { name, vcpus, ..TracedGuest::default() })
}

/// The clock in brackets, of `local [global] counter ...`.
fn chosen(clocks: &str) -> Option<String> {
    let (_, rest) = clocks.split_once('[')?;
    rest.split_once(']').map(|(clock, _)| clock.to_owned())
}

/// `overrun: N` and `dropped events: N` of a CPU's statistics.
fn dropped(statistics: &str) -> u64 {
    let number = |line: &str| {
        let line = line.trim();
        let rest = line.strip_prefix("overrun:").or(line.strip_prefix("dropped events:"));
        rest.and_then(|number| number.trim().parse::<u64>().ok())
    };
    statistics.lines().filter_map(number).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_ring_buffers_dropped_is_summed() {
        assert_eq!(dropped("CPU: 0\noverrun: 3\ncommit overrun: 9\ndropped events: 2\n"), 5);
    }

    #[test]
    fn the_clock_in_brackets_is_the_one() {
        assert_eq!(chosen("local [global] mono\n").as_deref(), Some("global"));
        assert_eq!(chosen("local"), None);
    }

    #[test]
    fn options_end_and_lead_on() {
        let mut data = vec![8, 0, 4, 0, 0, 0, 4, 0, 0, 0];
        data.extend([0, 0, 8, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0]);
        let mut options = Options::default();
        let next = options.read(&mut Cursor::new(&data, "options"), 7).unwrap();
        assert_eq!((next, options.cpus), (99, Some(4)));
        assert!(options.read(&mut Cursor::new(&data[..9], "options"), 7).is_err());
    }

    #[test]
    fn a_guest_names_the_threads_of_its_vcpus() {
        let mut data = b"alpha\0".to_vec();
        data.extend(7u64.to_le_bytes());
        for word in [2u32, 0, 158, 1, 161] {
            data.extend(word.to_le_bytes());
        }
        let expected = TracedGuest {
            name: "alpha".to_owned(),
            vcpus: vec![(0, 158), (1, 161)],
            ..TracedGuest::default()
        };
        assert_eq!(guest(&data), Ok(expected));
        data.truncate(data.len() - 1);
        assert!(guest(&data).is_err());
    }
}
