//! The head of a trace.dat, of either version: what there is and where it lies.

use super::chunks::Compression;
use super::options::{Buffer, CpuData, Options, Tsc};
use super::sections::{Section, id};
use crate::bytes::Cursor;
use crate::error::Fault;
use crate::event::MAX_CPUS;
use crate::format::Format;
use crate::source::{ReadAt, read_up_to};
use crate::stream::Header;
use crate::tracing_data::{self, PageLayout};

/// The description of tracepoints takes some MB; kernel symbols some more.
const MAX_HEAD: u64 = 256 << 20;

/// Everything but the events.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) header: Header,
    pub(super) formats: Vec<Format>,
    pub(super) layout: PageLayout,
    /// Names and processes of threads, which the recorder saved at its end.
    pub(super) names: Vec<(u32, String)>,
    pub(super) tgids: Vec<(u32, String)>,
    pub(super) tsc: Option<Tsc>,
    pub(super) page_size: usize,
    pub(super) cpus: Vec<CpuData>,
    /// How the CPUs' data are compressed.
    pub(super) compression: Compression,
}

/// Reads the head.
pub(super) fn read(source: &dyn ReadAt) -> Result<Head, Fault> {
    let start = read_up_to(source, 0, 4096)?;
    let mut cursor = Cursor::new(&start, "its head");
    let preamble = tracing_data::preamble(&mut cursor)?;
    let head = match preamble.version {
        6 => version_6(source, preamble.page_size)?,
        7 => version_7(source, &mut cursor, preamble.page_size)?,
        other => {
            return Err(Fault::new(format!(
                "version {other} of trace.dat is unknown (6 and 7 are read)"
            )));
        }
    };
    let is_absurd = |data: &CpuData| data.cpu >= MAX_CPUS;
    if head.cpus.len() > MAX_CPUS as usize || head.cpus.iter().any(is_absurd) {
        return Err(Fault::new("it has CPUs of absurd numbers"));
    }
    Ok(head)
}

/// One part after the other, then where every CPU's data lie.
fn version_6(source: &dyn ReadAt, page_size: u32) -> Result<Head, Fault> {
    let data = read_up_to(source, 0, MAX_HEAD.min(data_start(source)?))?;
    let mut cursor = Cursor::new(&data, "its head");
    tracing_data::preamble(&mut cursor)?;
    let layout = tracing_data::header_info(&mut cursor)?;
    tracing_data::skip_ftrace_formats(&mut cursor)?;
    let formats = tracing_data::event_formats(&mut cursor)?;
    tracing_data::skip_symbols(&mut cursor)?;
    let size = cursor.size()?;
    let names = tracing_data::saved_names(cursor.take(size)?);
    let count = cursor.u32()?;
    let mut options = Options::default();
    let mut tag = cursor.take(10)?;
    if tag == b"options  \0" {
        options.read(&mut cursor, 6)?;
        tag = cursor.take(10)?;
    }
    if tag != b"flyrecord\0" {
        return Err(Fault::new(
            "it holds text (latency format), not events; record with `trace-cmd record -e sched`",
        ));
    }
    let mut cpus = Vec::new();
    for cpu in 0..count {
        cpus.push(CpuData { cpu, at: cursor.u64()?, size: cursor.u64()? });
    }
    let header = header("trace.dat version 6".to_owned(), &options, count);
    let (tsc, page_size) = (options.tsc, page_size as usize);
    let (tgids, compression) = (Vec::new(), Compression::None);
    Ok(Head { header, formats, layout, names, tgids, tsc, page_size, cpus, compression })
}

/// The head of version 6 has no size; it ends before the data, which no head exceeds.
fn data_start(source: &dyn ReadAt) -> Result<u64, Fault> {
    Ok(source.size()?)
}

fn version_7(source: &dyn ReadAt, cursor: &mut Cursor<'_>, page: u32) -> Result<Head, Fault> {
    let (name, _version) = (cursor.string()?, cursor.string()?);
    let compression = Compression::named(&name)?;
    let mut options = Options::default();
    let mut at = cursor.u64()?;
    let mut last = 0;
    while at != 0 {
        // Each lies behind the one before: a circle would not end.
        if at <= last {
            return Err(Fault::new("its lists of options lead back to themselves"));
        }
        last = at;
        let section = Section::at(source, at)?;
        let data = section.contents(source, id::OPTIONS, compression)?;
        at = options.read(&mut Cursor::new(&data, "its options"), 7)?;
    }
    let contents = |wanted: u16| -> Result<Option<Vec<u8>>, Fault> {
        let at = options.section(wanted);
        at.map(|at| Section::at(source, at)?.contents(source, wanted, compression)).transpose()
    };
    let layout = match contents(id::HEADER_INFO)? {
        Some(data) => tracing_data::header_info(&mut Cursor::new(&data, "its header info"))?,
        None => PageLayout::default(),
    };
    let formats = contents(id::EVENT_FORMATS)?
        .ok_or_else(|| Fault::new("it does not describe its tracepoints"))?;
    let formats = tracing_data::event_formats(&mut Cursor::new(&formats, "its tracepoints"))?;
    let lines = |wanted| -> Result<Vec<(u32, String)>, Fault> {
        let Some(data) = contents(wanted)? else { return Ok(Vec::new()) };
        let mut cursor = Cursor::new(&data, "its names of threads");
        let size = cursor.size()?;
        Ok(tracing_data::saved_names(cursor.take(size)?))
    };
    let (names, tgids) = (lines(id::COMMAND_LINES)?, lines(id::SAVED_TGIDS)?);
    let used = options.buffers.iter().find(|buffer| buffer.cpus.iter().any(|cpu| cpu.size > 0));
    let none = Buffer { at: 0, name: String::new(), page_size: page, cpus: Vec::new() };
    let used = used.cloned().unwrap_or(none);
    let count = options.cpus.unwrap_or(used.cpus.len() as u32);
    let mut header = header(format!("trace.dat version 7, {name}"), &options, count);
    for other in options.buffers.iter().filter(|buffer| buffer.at != used.at) {
        if other.cpus.iter().any(|cpu| cpu.size > 0) {
            header.warnings.push(format!("trace instance `{}` is not read", other.name));
        }
    }
    let packed = used.at != 0 && Section::at(source, used.at)?.is_compressed;
    let compression = if packed { compression } else { Compression::None };
    let page_size = used.page_size as usize;
    if !(1024..=1 << 20).contains(&page_size) {
        return Err(Fault::new(format!(
            "the page size of its buffers is {page_size}, possible are 1024 to 1048576"
        )));
    }
    let (tsc, cpus) = (options.tsc, used.cpus);
    Ok(Head { header, formats, layout, names, tgids, tsc, page_size, cpus, compression })
}

fn header(format: String, options: &Options, cpus: u32) -> Header {
    let mut uname = options.uname.iter().flat_map(|uname| uname.split_whitespace()).skip(1);
    let mut header = Header {
        format,
        hostname: uname.next().map(str::to_owned),
        release: uname.next().map(str::to_owned),
        cpus: Some(cpus),
        guests: options.guests.clone(),
        ..Header::default()
    };
    let clock = options.clock.as_deref().unwrap_or("local");
    if options.tsc.is_none() && matches!(clock, "counter" | "uptime" | "x86-tsc" | "ppc-tb") {
        header.warnings.push(format!(
            "its clock `{clock}` does not count nanoseconds: every time below is in its own unit"
        ));
    }
    if options.dropped > 0 {
        header.warnings.push(format!(
            "the ring buffers dropped {} events while it was recorded; record with larger ones \
             (trace-cmd record -b)",
            options.dropped
        ));
    }
    header
}
