//! Where the fuzz targets' seeds come from: files of a made host by name, and a few texts that no
//! host has as a file. Included by xtask and by the plain test.

#[path = "texts.rs"]
mod texts;

use instep_madehost::trace::{self, MadeEvent, TracepointFields};
use std::fs;
use std::io;
use std::path::Path;

/// Targets and the files of /proc and /sys that they read, by the end of the path.
const FILES: &[(&str, &[&str])] = &[
    ("cgroup_files", &["/cgroup"]),
    ("cgroup_values", &["cpu.max", "cpu.stat", "cpu.weight", "cpu.shares", "cpu.cfs_quota_us"]),
    ("command_lines", &["/cmdline"]),
    ("id_lists", &["/online", "shared_cpu_list", "cpuset.cpus.effective", "cpulist"]),
    ("memory_ranges", &["/numa_maps", "/maps", "proc/meminfo"]),
    ("mounts", &["/mounts"]),
    ("numa_maps", &["/numa_maps"]),
    ("numa_stat", &["memory.numa_stat"]),
    ("proc_files", &["/schedstat", "/status", "/stat", "/uptime"]),
    ("thread_names", &["/comm"]),
    (
        "topology_files",
        &["shared_cpu_map", "/level", "/type", "/core_id", "/distance", "node0/meminfo"],
    ),
];

/// At most this many seeds of one target.
const MAX_SEEDS: usize = 40;

/// Every seed below `tree`, the root of a made host, with its target; no two of a target equal.
///
/// # Errors
/// When the tree cannot be read.
pub(crate) fn collect(tree: &Path) -> io::Result<Vec<(&'static str, Vec<u8>)>> {
    let mut seeds: Vec<(&'static str, Vec<u8>)> = Vec::new();
    for (target, texts) in texts::TEXTS {
        seeds.extend(texts.iter().map(|text| (*target, text.to_vec())));
    }
    seeds.extend(traces());
    walk(tree, &mut seeds)?;
    Ok(seeds)
}

/// Small made traces of every format.
fn traces() -> Vec<(&'static str, Vec<u8>)> {
    let vcpu = (11, "CPU 0/KVM");
    let idle = (0, "swapper/0");
    let moment = |time, current, what| MadeEvent { time, cpu: 0, current, flags: 0, what };
    let events = [
        moment(1000, (0, 0), TracepointFields::Waking(vcpu, 0)),
        moment(1100, (0, 0), TracepointFields::Wakeup(vcpu, 0)),
        moment(1200, (0, 0), TracepointFields::Switch(idle, vcpu, 0)),
        moment(1300, (11, 10), TracepointFields::Entry(0)),
        moment(200_000_000, (11, 10), TracepointFields::Migrate(vcpu, 0, 1)),
        moment(300_000_000, (11, 10), TracepointFields::Switch(vcpu, idle, 1)),
    ];
    // Base 5, four records: to thread 7 from 3, a wake-up of it, its name, the end of a round.
    let block = b"\x05\x04\x11\x02\x03\x07\x93\x04\x07\x00\x1b\x02\x07\x09CPU 0/KVM\x1e\x00";
    // A page with one event of one word at time 1000.
    let mut page = 1000u64.to_le_bytes().to_vec();
    page.extend([8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0]);
    vec![
        ("moments", stored(texts::MOMENT)),
        ("recording", block.to_vec()),
        ("ring_pages", page),
        ("perf_data", trace::perf_file(&events, 4)),
        ("perf_data", trace::perf_pipe(&events, 4, None)),
        ("trace_dat", trace::dat_6(&events, &[vcpu])),
        ("trace_dat", trace::dat_7(&events, &[vcpu], "none", None)),
        ("perf_data", trace::perf_pipe(&events, 4, Some(&stored))),
        ("trace_dat", trace::dat_7(&events, &[vcpu], "zstd", Some(&stored))),
    ]
}

/// A frame of zstd that holds `data` as it is, so that a fuzzer changes what is inside.
fn stored(data: &[u8]) -> Vec<u8> {
    // One segment, whose length is told in 4 bytes (RFC 8878, 3.1.1).
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    frame.extend((data.len() as u32).to_le_bytes());
    let mut blocks = data.chunks(0x1_0000).peekable();
    while let Some(block) = blocks.next() {
        // Bit 0: the last one; bits 1 and 2: as it is; then the length.
        let header = (block.len() as u32) << 3 | u32::from(blocks.peek().is_none());
        frame.extend(&header.to_le_bytes()[..3]);
        frame.extend(block);
    }
    frame
}

fn walk(dir: &Path, seeds: &mut Vec<(&'static str, Vec<u8>)>) -> io::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(dir)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            walk(&path, seeds)?;
        } else if kind.is_file() {
            let name = path.to_string_lossy();
            for (target, ends) in FILES {
                if ends.iter().any(|end| name.ends_with(end)) {
                    add(seeds, target, fs::read(&path)?);
                }
            }
        }
    }
    Ok(())
}

fn add(seeds: &mut Vec<(&'static str, Vec<u8>)>, target: &'static str, bytes: Vec<u8>) {
    let mut same = seeds.iter().filter(|(name, _)| *name == target);
    if same.clone().count() < MAX_SEEDS && !same.any(|(_, known)| *known == bytes) {
        seeds.push((target, bytes));
    }
}
