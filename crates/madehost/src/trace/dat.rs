//! Made trace.dat of versions 6 and 7: pages of ring buffers by CPU.

use super::{Compress, MadeEvent, by_cpu, event_formats, header_info, preamble};

const PAGE: usize = 4096;
const PAGE_HEAD: usize = 16;

/// The pages of one CPU. Differences of time beyond 27 bits are written as time extends.
fn pages(events: &[&MadeEvent]) -> Vec<u8> {
    let mut out = Vec::new();
    let (mut page, mut begin, mut last) = (Vec::new(), 0, 0);
    let close = |page: &mut Vec<u8>, begin: u64, out: &mut Vec<u8>| {
        out.extend(begin.to_le_bytes());
        out.extend((page.len() as u64).to_le_bytes());
        page.resize(PAGE - PAGE_HEAD, 0);
        out.append(page);
    };
    for event in events {
        let mut raw = event.raw();
        raw.resize(raw.len().next_multiple_of(4), 0);
        if page.len() + raw.len() + 12 > PAGE - PAGE_HEAD {
            close(&mut page, begin, &mut out);
        }
        if page.is_empty() {
            (begin, last) = (event.time, event.time);
        }
        let mut delta = event.time - last;
        if delta >= 1 << 27 {
            page.extend((((delta as u32) << 5) | 30).to_le_bytes());
            page.extend(((delta >> 27) as u32).to_le_bytes());
            delta = 0;
        }
        page.extend((((delta as u32) << 5) | (raw.len() as u32 / 4)).to_le_bytes());
        page.extend(raw);
        last = event.time;
    }
    if !page.is_empty() {
        close(&mut page, begin, &mut out);
    }
    out
}

fn command_lines(names: &[(u32, &str)]) -> Vec<u8> {
    let text: String = names.iter().map(|(tid, name)| format!("{tid} {name}\n")).collect();
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text.as_bytes());
    out
}

/// Version 6: one part after the other, data uncompressed.
#[must_use]
pub fn dat_6(events: &[MadeEvent], names: &[(u32, &str)]) -> Vec<u8> {
    let data: Vec<Vec<u8>> = by_cpu(events).iter().map(|events| pages(events)).collect();
    let mut out = preamble("6");
    out.extend(header_info());
    out.extend(0u32.to_le_bytes());
    out.extend(event_formats());
    out.extend([0; 8]);
    out.extend(command_lines(names));
    out.extend((data.len() as u32).to_le_bytes());
    out.extend(b"options  \0");
    out.extend(option(5, b"Linux made 6.1.0 x86_64\0"));
    out.extend([0, 0]);
    out.extend(b"flyrecord\0");
    let mut at = (out.len() + data.len() * 16).next_multiple_of(PAGE);
    let first = at;
    for data in &data {
        out.extend((at as u64).to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        at += data.len();
    }
    out.resize(first, 0);
    data.iter().for_each(|data| out.extend(data));
    out
}

fn option(id: u16, data: &[u8]) -> Vec<u8> {
    let mut out = id.to_le_bytes().to_vec();
    out.extend((data.len() as u32).to_le_bytes());
    out.extend(data);
    out
}

fn section(id: u16, contents: &[u8], compress: Option<Compress<'_>>) -> Vec<u8> {
    let mut body = contents.to_vec();
    if let Some(compress) = compress {
        let packed = compress(contents);
        body = (packed.len() as u32).to_le_bytes().to_vec();
        body.extend((contents.len() as u32).to_le_bytes());
        body.extend(packed);
    }
    let mut out = id.to_le_bytes().to_vec();
    out.extend(u16::from(compress.is_some()).to_le_bytes());
    out.extend(0u32.to_le_bytes());
    out.extend((body.len() as u64).to_le_bytes());
    out.extend(body);
    out
}

/// Two pages a chunk, as trace-cmd writes them.
fn chunks(data: &[u8], compress: Compress<'_>) -> Vec<u8> {
    let chunks = data.chunks(2 * PAGE);
    let mut out = (chunks.len() as u32).to_le_bytes().to_vec();
    for chunk in chunks {
        let packed = compress(chunk);
        out.extend((packed.len() as u32).to_le_bytes());
        out.extend((chunk.len() as u32).to_le_bytes());
        out.extend(packed);
    }
    out
}

/// Version 7: sections, with the name of a compression and what does it, or `none`.
#[must_use]
pub fn dat_7(
    events: &[MadeEvent],
    names: &[(u32, &str)],
    compression: &str,
    compress: Option<Compress<'_>>,
) -> Vec<u8> {
    let mut out = preamble("7");
    out.extend(compression.as_bytes());
    out.extend(b"\x001\0");
    let lead = out.len();
    out.extend(0u64.to_le_bytes());
    let mut options = option(5, b"Linux made 6.1.0 x86_64\0");
    options.extend(option(4, b"local [global] mono\0"));
    for (id, data) in [(16, header_info()), (18, event_formats()), (21, command_lines(names))] {
        options.extend(option(id, &(out.len() as u64).to_le_bytes()));
        out.extend(section(id, &data, compress));
    }
    let data = by_cpu(events);
    let mut buffer = (out.len() as u64).to_le_bytes().to_vec();
    buffer.extend(b"\0global\0");
    buffer.extend((PAGE as u32).to_le_bytes());
    buffer.extend((data.len() as u32).to_le_bytes());
    // The section's own head; its data are found by the option.
    let mut head = section(3, &[], None);
    head[2] = u8::from(compress.is_some());
    out.extend(head);
    for (cpu, events) in data.iter().enumerate() {
        out.resize(out.len().next_multiple_of(PAGE), 0);
        let pages = pages(events);
        let data = compress.map_or_else(|| pages.clone(), |compress| chunks(&pages, compress));
        buffer.extend((cpu as u32).to_le_bytes());
        buffer.extend((out.len() as u64).to_le_bytes());
        buffer.extend((data.len() as u64).to_le_bytes());
        out.extend(data);
    }
    options.extend(option(3, &buffer));
    options.extend(option(0, &0u64.to_le_bytes()));
    let at = out.len() as u64;
    out[lead..lead + 8].copy_from_slice(&at.to_le_bytes());
    out.extend(section(0, &options, compress));
    out
}
