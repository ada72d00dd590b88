//! A damaged copy of a host never brings the observer or a policy down: files cut, garbled,
//! removed or turned into directories give warnings, errors or a poorer picture.

use instep_core::decision::{Action, Decision};
use instep_core::policy::{self, PolicyName, PolicySettings};
use instep_core::snapshot::Snapshot;
use instep_host::Root;
use instep_host::discover::{ScanOptions, Scanner, snapshot};
use instep_host::topology;
use instep_madehost::{HostSize, Random, random, scratch_dir};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// All plain files below `dir`, in a fixed order.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(dir).into_iter().flatten().flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            files(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

fn damage(path: &Path, random: &mut Random) {
    const GARBAGE: [&[u8]; 6] =
        [b"", b"\xff\xfe\0", b"-1\n", b"0-4294967295\n", b"99999999999999999999\n", b"a b c (d\n"];
    // What was damaged before may be gone or a directory.
    let Ok(bytes) = fs::read(path) else { return };
    let done = match random.within(0, 4) {
        0 => fs::remove_file(path),
        1 => fs::remove_file(path).and_then(|()| fs::create_dir(path)),
        2 => fs::write(path, random.pick(&GARBAGE)),
        3 => fs::write(path, &bytes[..bytes.len() / 2]),
        _ => {
            let mut bytes = bytes;
            if !bytes.is_empty() {
                let at = random.within(0, bytes.len() as u64 - 1) as usize;
                bytes[at] = random.next_u64() as u8;
            }
            fs::write(path, bytes)
        }
    };
    done.expect("a scratch directory can be written");
}

fn check(decision: &Decision, snapshot: &Snapshot, case: &str) {
    assert_eq!(decision.vms.len(), snapshot.vms.len(), "{case}");
    for action in &decision.actions {
        match action {
            Action::SetVcpuAffinity { cpus, .. } | Action::SetEmulatorAffinity { cpus, .. } => {
                assert!(!cpus.is_empty(), "{case}");
                assert!(cpus.is_subset(&snapshot.topology.all_cpus()), "{case}");
            }
            Action::SetSoftAffinity { .. } => panic!("{case}: a Linux host has no soft affinity"),
            Action::MoveMemory { to, .. } => assert!(!to.is_empty(), "{case}"),
        }
    }
}

#[test]
fn damage_to_a_copy_brings_nothing_down() {
    let (mut decided, mut refused) = (0, 0);
    for seed in 0..40 {
        let mut dice = Random::new(1000 + seed);
        let limits = HostSize { nodes: 3, cores_per_node: 4, vms: 6, vcpus: 4, oddities: true };
        let dir = scratch_dir().unwrap();
        random(seed, limits).write(dir.path()).unwrap();
        let mut all = Vec::new();
        files(dir.path(), &mut all);
        for _ in 0..1 + all.len() / 20 {
            let file: &PathBuf = dice.pick(&all);
            damage(file, &mut dice);
        }
        let root = Root::at(dir.path());
        let scan = Scanner::new(root.clone(), ScanOptions::once()).scan().unwrap();
        match topology::read(&root) {
            Ok(topology) => {
                let seen = snapshot(&Arc::new(topology), None, &scan, None);
                for policy in PolicyName::ALL {
                    let settings = PolicySettings {
                        policy,
                        mend_conflicts: true,
                        ..PolicySettings::default()
                    };
                    let case = format!("seed {seed}, {policy}");
                    check(&policy::decide(&seen, &settings), &seen, &case);
                }
                decided += 1;
            }
            Err(error) => {
                assert!(error.to_string().contains("sys"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(decided > refused, "{decided} decided, {refused} refused");
}
