//! The description of the ring buffer and of every tracepoint that trace.dat (up to version 6)
//! and perf.data (feature TRACING_DATA) begin with in the same form: magic, version, byte order,
//! header_page, header_event, formats, kernel symbols, printk formats, saved names.
//!
//! Version 7 of trace.dat cuts the same parts into sections ([`crate::dat`]).

use crate::bytes::{Cursor, text};
use crate::error::Fault;
use crate::format::{self, Format};

/// What every file of this family begins with.
pub(crate) const MAGIC: &[u8; 10] = b"\x17\x08\x44tracing";

/// Which tracepoints' formats are kept: what is read from none is not worth the memory.
pub(crate) fn is_wanted(system: &str) -> bool {
    matches!(system, "sched" | "kvm" | "task")
}

/// The beginning of such a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) version: u32,
    pub(crate) page_size: u32,
}

/// Reads magic, version, byte order, size of long and page size.
pub(crate) fn preamble(cursor: &mut Cursor<'_>) -> Result<Preamble, Fault> {
    if cursor.take(MAGIC.len())? != MAGIC {
        return Err(Fault::new("not a trace of trace-cmd's family"));
    }
    let version = cursor.string()?;
    // perf writes "0.6" for what trace-cmd calls 6.
    let number = version.rsplit('.').next().and_then(|text| text.parse().ok());
    let number = number.ok_or_else(|| Fault::new(format!("its version `{version}` is unknown")))?;
    let (order, _long) = (cursor.take(1)?[0], cursor.take(1)?[0]);
    if order != 0 {
        return Err(Fault::new("it was recorded on a big-endian machine, which is not read"));
    }
    let page_size = cursor.u32()?;
    if !(1024..=1 << 20).contains(&page_size) || !page_size.is_power_of_two() {
        return Err(Fault::new(format!("its page size {page_size} cannot be")));
    }
    Ok(Preamble { version: number, page_size })
}

/// Where a page of the ring buffer has what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageLayout {
    /// Offset of the time stamp of eight bytes.
    pub(crate) time: usize,
    /// Offset of the number of bytes in use, whose upper bits are flags.
    pub(crate) commit: usize,
    /// Size of that number.
    pub(crate) commit_size: usize,
    /// Offset of the first event.
    pub(crate) data: usize,
}

impl Default for PageLayout {
    /// That of a 64-bit kernel.
    fn default() -> Self {
        PageLayout { time: 0, commit: 8, commit_size: 8, data: 16 }
    }
}

/// Reads `header_page` and `header_event` with their names and sizes.
pub(crate) fn header_info(cursor: &mut Cursor<'_>) -> Result<PageLayout, Fault> {
    let mut layout = PageLayout::default();
    for expected in ["header_page", "header_event"] {
        let name = cursor.string()?;
        if name != expected {
            return Err(Fault::new(format!("`{expected}` is not where it should be")));
        }
        let size = cursor.size()?;
        let contents = cursor.take(size)?;
        if expected == "header_page" {
            layout = page_layout(&text(contents))?;
        }
    }
    Ok(layout)
}

pub(crate) fn page_layout(text: &str) -> Result<PageLayout, Fault> {
    let mut layout = PageLayout::default();
    for field in text.lines().filter_map(|line| format::field(line.trim())) {
        match field.name.as_str() {
            "timestamp" if field.size == 8 => layout.time = field.offset,
            "commit" if matches!(field.size, 4 | 8) => {
                (layout.commit, layout.commit_size) = (field.offset, field.size);
            }
            "data" => layout.data = field.offset,
            _ => {}
        }
    }
    let inside =
        layout.time + 8 <= layout.data && layout.commit + layout.commit_size <= layout.data;
    if !inside || layout.data > 256 {
        return Err(Fault::new("its header_page describes no page"));
    }
    Ok(layout)
}

/// Passes the formats of ftrace's own events.
pub(crate) fn skip_ftrace_formats(cursor: &mut Cursor<'_>) -> Result<(), Fault> {
    for _ in 0..cursor.u32()? {
        let size = cursor.size()?;
        cursor.take(size)?;
    }
    Ok(())
}

/// Reads the formats of all systems and keeps those that [`is_wanted`].
pub(crate) fn event_formats(cursor: &mut Cursor<'_>) -> Result<Vec<Format>, Fault> {
    let mut formats = Vec::new();
    for _ in 0..cursor.u32()? {
        let system = cursor.string()?;
        for _ in 0..cursor.u32()? {
            let size = cursor.size()?;
            let contents = cursor.take(size)?;
            if is_wanted(&system) && formats.len() < 4096 {
                formats.extend(format::parse(&text(contents)));
            }
        }
    }
    Ok(formats)
}

/// Passes the kernel's symbols and printk formats.
pub(crate) fn skip_symbols(cursor: &mut Cursor<'_>) -> Result<(), Fault> {
    for _ in 0..2 {
        let size = cursor.u32()? as usize;
        cursor.take(size)?;
    }
    Ok(())
}

/// Saved names, one `PID NAME` a line.
pub(crate) fn saved_names(contents: &[u8]) -> Vec<(u32, String)> {
    let text = text(contents);
    let line = |line: &str| {
        let (pid, name) = line.trim_start().split_once(' ')?;
        Some((pid.parse().ok()?, name.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// What perf.data's feature holds.
pub(crate) fn perf_feature(data: &[u8]) -> Result<Vec<Format>, Fault> {
    let mut cursor = Cursor::new(data, "the description of its tracepoints");
    preamble(&mut cursor)?;
    header_info(&mut cursor)?;
    skip_ftrace_formats(&mut cursor)?;
    event_formats(&mut cursor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_header_that_overlaps_its_data_is_refused() {
        let good = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
            \tfield: local_t commit;\toffset:8;\tsize:4;\tsigned:1;\n\
            \tfield: char data;\toffset:12;\tsize:4084;\tsigned:1;\n";
        let layout = PageLayout { time: 0, commit: 8, commit_size: 4, data: 12 };
        assert_eq!(page_layout(good), Ok(layout));
        assert!(page_layout("field: char data; offset:4; size:4;").is_err());
    }

    #[test]
    fn names_are_read_with_their_blanks() {
        assert_eq!(
            saved_names(b"12 CPU 0/KVM\nx\n 7 a\n"),
            [(12, "CPU 0/KVM".to_owned()), (7, "a".to_owned())]
        );
    }
}
