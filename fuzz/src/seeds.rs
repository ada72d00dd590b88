//! Where the fuzz targets' seeds come from: files of a made host by name, and a few texts that no
//! host has as a file. Included by xtask and by the plain test.

use std::fs;
use std::io;
use std::path::Path;

/// Targets and the files of /proc and /sys that they read, by the end of the path.
const FILES: &[(&str, &[&str])] = &[
    ("id_lists", &["/online", "shared_cpu_list", "cpuset.cpus.effective", "cpulist"]),
    (
        "topology_files",
        &["shared_cpu_map", "/level", "/type", "/core_id", "/distance", "node0/meminfo"],
    ),
];

const JOURNAL: &[u8] = br#"{"schema":"instep.journal/1","boot_id":"b",
"holder":{"instance":{"pid":1,"start":2}},"threads":[{"vm":"a","kind":{"vcpu":0},
"thread":{"pid":7,"pid_start":1,"tid":9,"tid_start":2},
"original":"0-7","unpinned":true,"since":3,"set":"2","pending":"2-3"}]}"#;

/// Texts for targets that read no file of /proc or /sys.
const TEXTS: &[(&str, &[&[u8]])] = &[
    (
        "memory_ranges",
        &[
            b"7f0000020000 bind:1 anon=3 dirty=3 active=0 N0=1 N1=2 kernelpagesize_kB=4\n\0\
              7f0000020000-7f0008020000 rw-p 00000000 00:00 0\n",
            b"7f0040000000 default file=/r huge dirty=3 N1=3 kernelpagesize_kB=2048\n\0\
              7f0040000000-7f0040800000 rw-s 00000000 00:2e 41 /r\n",
        ],
    ),
    ("journal", &[JOURNAL]),
    (
        "samples",
        &[
            include_bytes!("../../crates/host/src/apply/sampling/fixtures/page-faults.bin"),
            b"\x02\0\0\0\0\0\x18\0\x01\0\0\0\0\0\0\0\x0a\0\0\0\0\0\0\0",
        ],
    ),
    ("sampling_source", &[b"event=0xcd,umask=0x1,ldlat=3", b"config:0-7,32-35"]),
    (
        "topology_build",
        &[
            // Two CPUs of one core, one node with both.
            &[
                2, 0, 1, 0, 1, 3, 0, 0, 0, 1, 3, 0, 0, 0, 1, 3, 0, 0, 0, 1, 3, 0, 0, 0, 0, //
                1, 1, 0, 1, 3, 0, 0, 0, 1, 3, 0, 0, 0, 1, 3, 0, 0, 0, 1, 3, 0, 0, 0, 0, //
                1, 0, 3, 0, 0, 0, 16, 1, 10,
            ],
            &[23],
        ],
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
    for (target, texts) in TEXTS {
        seeds.extend(texts.iter().map(|text| (*target, text.to_vec())));
    }
    walk(tree, &mut seeds)?;
    Ok(seeds)
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
