//! Every parser survives the files of made hosts and simple damage to them: the functions and
//! seeds of the fuzz targets, without a fuzzer.

#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;
#[expect(unreachable_pub, reason = "public in the fuzz crate, which this file is the root of")]
#[path = "../../../fuzz/src/lib.rs"]
mod targets;

use instep_madehost::{HostSize, Random, random, scratch_dir};

/// Damaged copies of every seed.
const MUTANTS: u64 = 60;

/// A damaged copy: bytes replaced, removed, doubled, or the end cut off.
fn mutated(seed: &[u8], random: &mut Random) -> Vec<u8> {
    const ODD: [&[u8]; 10] =
        [b"\0", b"-", b",", b"18446744073709551616", b"\n", b" ", b"\xff", b":", b"=", b"N9="];
    let mut bytes = seed.to_vec();
    for _ in 0..random.within(1, 4) {
        let at = random.within(0, bytes.len() as u64) as usize;
        let end = (at + random.within(0, 8) as usize).min(bytes.len());
        match random.within(0, 4) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => drop(bytes.splice(at..end, random.pick(&ODD).iter().copied())),
            3 => {
                let part = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, part));
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.next_u64() as u8;
                }
            }
        }
    }
    bytes
}

#[test]
fn no_parser_falls_over_made_files_or_damage_to_them() {
    let mut fed = 0;
    for seed in 0..3 {
        let dir = scratch_dir().unwrap();
        let limits = HostSize { nodes: 2, cores_per_node: 3, vms: 7, vcpus: 3, oddities: true };
        random(seed, limits).write(dir.path()).unwrap();
        let mut random = Random::new(seed);
        for (target, bytes) in seeds::collect(dir.path()).unwrap() {
            targets::run(target, &bytes);
            for _ in 0..MUTANTS {
                targets::run(target, &mutated(&bytes, &mut random));
            }
            fed += 1;
        }
    }
    assert!(fed > 50, "only {fed} seeds");
}

#[test]
fn every_target_has_seeds_and_a_binary() {
    let dir = scratch_dir().unwrap();
    random(1, HostSize::default()).write(dir.path()).unwrap();
    let seeds = seeds::collect(dir.path()).unwrap();
    let manifest = include_str!("../../../fuzz/Cargo.toml");
    for (name, _) in targets::TARGETS {
        assert!(seeds.iter().any(|(target, _)| target == name), "{name} has no seeds");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} has no [[bin]]");
    }
}
