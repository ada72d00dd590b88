//! Decodes what the kernel writes into a sampling buffer: samples with thread, address and data
//! source, lost and throttled ones (include/uapi/linux/perf_event.h, 6.18).
//!
//! The buffer's records stand in the byte order of the host. A damaged one ends the decoding, for
//! nothing tells where the next begins; what was decoded before is kept.

use crate::records::{
    HEADER, LOST as RECORD_LOST, LOST_SAMPLES as RECORD_LOST_SAMPLES, Record,
    SAMPLE as RECORD_SAMPLE, u32_at, u64_at, walk,
};
use std::collections::BTreeMap;

/// `sample_type` that [`decode`] expects: thread, address, data source, in this order.
pub const SAMPLE_TYPE: u64 = TID | ADDR | DATA_SRC;
const TID: u64 = 1 << 1;
const ADDR: u64 = 1 << 3;
const DATA_SRC: u64 = 1 << 15;

const RECORD_THROTTLE: u32 = 5;
const RECORD_UNTHROTTLE: u32 = 6;

/// Where the CPU says that the data came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Memory of the CPU's own node.
    LocalMemory,
    /// Memory of another node.
    RemoteMemory,
    /// A cache, or the CPU does not tell: where the page lies is to be asked.
    Unknown,
}

/// One access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The address in the process.
    pub address: u64,
    /// Where the data came from.
    pub served: Served,
}

/// What a buffer held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Accesses of user level with an address.
    pub samples: Vec<Sample>,
    /// Samples without a usable address: of the kernel, of a guest, or not of memory.
    pub unusable: u64,
    /// Samples the kernel had no room for.
    pub lost: u64,
    /// How often the kernel paused sampling because there was too much of it.
    pub throttled: u64,
    /// Records of other types, by type.
    pub other: BTreeMap<u32, u64>,
    /// Offset of a damaged record, at which decoding ended.
    pub damaged_at: Option<usize>,
}

/// The header of a record: its type, its `misc` bits and its whole length.
#[must_use]
pub fn header(record_type: u32, misc: u16, length: u16) -> [u8; 8] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&record_type.to_ne_bytes());
    bytes[4..6].copy_from_slice(&misc.to_ne_bytes());
    bytes[6..].copy_from_slice(&length.to_ne_bytes());
    bytes
}

/// Decodes a run of whole records. Never more samples than a thirty-second of the bytes.
#[must_use]
pub fn decode(bytes: &[u8]) -> Decoded {
    let mut decoded = Decoded::default();
    let damaged_at = walk(bytes, |record| take(record, &mut decoded));
    decoded.damaged_at = damaged_at;
    decoded
}

/// Decodes one record; `None` when it is damaged.
fn take(record: &Record<'_>, decoded: &mut Decoded) -> Option<()> {
    let body = record.body;
    match record.kind {
        RECORD_SAMPLE => {
            let sample = Sample {
                pid: u32_at(body, 0)?,
                tid: u32_at(body, 4)?,
                address: u64_at(body, 8)?,
                served: served(u64_at(body, 16)?),
            };
            // The upper half of the address space is the kernel's.
            if record.is_of_user() && sample.address != 0 && sample.address >> 63 == 0 {
                decoded.samples.push(sample);
            } else {
                decoded.unusable += 1;
            }
        }
        RECORD_LOST => decoded.lost = decoded.lost.saturating_add(u64_at(body, 8)?),
        RECORD_LOST_SAMPLES => decoded.lost = decoded.lost.saturating_add(u64_at(body, 0)?),
        RECORD_THROTTLE => decoded.throttled += 1,
        RECORD_UNTHROTTLE => {}
        other => *decoded.other.entry(other).or_default() += 1,
    }
    Some(())
}

/// Reads a `perf_mem_data_src`: bits 5-18 the levels of old kernels, 33-36 the level of newer ones,
/// 37 whether it was another node's.
fn served(source: u64) -> Served {
    const LOCAL_RAM: u64 = 0x80 << 5;
    const REMOTE_RAM: u64 = 0x300 << 5;
    const LEVEL_RAM: u64 = 0xd;
    let level_is_ram = source >> 33 & 0xf == LEVEL_RAM;
    let remote = source >> 37 & 1 == 1;
    if source & REMOTE_RAM != 0 || level_is_ram && remote {
        Served::RemoteMemory
    } else if source & LOCAL_RAM != 0 || level_is_ram {
        Served::LocalMemory
    } else {
        Served::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::MISC_USER;
    use proptest::prelude::*;

    /// Recorded by `records_a_fixture_when_asked` in sampler.rs: page faults of a process on
    /// Linux 6.18, x86-64.
    const RECORDED: &[u8] = include_bytes!("fixtures/page-faults.bin");

    fn sample(misc: u16, address: u64, source: u64) -> Vec<u8> {
        let mut bytes = header(RECORD_SAMPLE, misc, 32).to_vec();
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend(8u32.to_ne_bytes());
        bytes.extend(address.to_ne_bytes());
        bytes.extend(source.to_ne_bytes());
        bytes
    }

    fn counted(record_type: u32, words: &[u64]) -> Vec<u8> {
        let mut bytes = header(record_type, 0, 8 + 8 * words.len() as u16).to_vec();
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn recorded_samples_are_decoded_to_the_last_byte() {
        let decoded = decode(RECORDED);
        assert_eq!((decoded.damaged_at, decoded.lost, decoded.other.len()), (None, 0, 0));
        assert!(decoded.samples.len() >= 32, "{}", decoded.samples.len());
        let first = decoded.samples[0];
        assert!(decoded.samples.iter().all(|s| s.pid == first.pid && s.address >> 47 == 0));
    }

    #[test]
    fn a_recording_cut_anywhere_keeps_what_came_before() {
        let whole = decode(RECORDED);
        for cut in 0..RECORDED.len().min(1000) {
            let part = decode(&RECORDED[..cut]);
            assert_eq!(part.damaged_at.is_some(), cut % 32 != 0, "records of 32 bytes");
            assert_eq!(part.samples, whole.samples[..part.samples.len()]);
        }
    }

    #[test]
    fn the_data_source_tells_remote_from_local_memory() {
        let level = |bits: u64| bits << 5;
        let newer = |number: u64, remote: u64| number << 33 | remote << 37;
        let table = [
            (level(0x2 | 0x80), Served::LocalMemory),
            (level(0x2 | 0x100), Served::RemoteMemory),
            (level(0x2 | 0x200), Served::RemoteMemory),
            (level(0x2 | 0x8), Served::Unknown),
            (newer(0xd, 0), Served::LocalMemory),
            (newer(0xd, 1), Served::RemoteMemory),
            (newer(0x3, 1), Served::Unknown),
            (0, Served::Unknown),
        ];
        for (source, expected) in table {
            assert_eq!(served(source), expected, "{source:#x}");
        }
    }

    /// `perf_mem_data_src` by its fields and their widths, lowest bits first (perf_event_open(2)):
    /// op, lvl, snoop, lock, dtlb, lvl_num, remote, snoopx, blk, hops.
    fn data_src(fields: [u64; 10]) -> u64 {
        let widths = [5, 14, 5, 2, 7, 4, 1, 2, 3, 3];
        let (mut source, mut shift) = (0, 0);
        for (field, width) in fields.into_iter().zip(widths) {
            assert!(field < 1 << width);
            source |= field << shift;
            shift += width;
        }
        source
    }

    const LOAD: u64 = 0x2;
    const HIT: u64 = 0x2;
    /// The instruction's address is exact, as both PEBS and IBS say.
    const EXACT_USER: u16 = 1 << 14 | MISC_USER;

    fn check(samples: &[(u16, u64, u64, Served)]) {
        let bytes: Vec<u8> =
            samples.iter().flat_map(|(misc, at, from, _)| sample(*misc, *at, *from)).collect();
        let decoded = decode(&bytes);
        assert_eq!((decoded.damaged_at, decoded.unusable, decoded.lost), (None, 0, 0));
        let found: Vec<_> = decoded.samples.iter().map(|s| (s.address, s.served)).collect();
        let made: Vec<_> = samples.iter().map(|(_, at, _, served)| (*at, *served)).collect();
        assert_eq!(found, made);
    }

    #[test]
    fn loads_as_pebs_tells_them_are_decoded_by_where_they_were_served() {
        // TLB: hit in level 1 or 2. Both the levels of old kernels and the newer ones are filled.
        let tlb = 0x2 | 0x8 | 0x10;
        let l1 = data_src([LOAD, HIT | 0x8, 0x2, 0x1, tlb, 0x1, 0, 0, 0, 0]);
        let l3_hit_modified = data_src([LOAD, HIT | 0x40, 0x10, 0x1, tlb, 0x3, 0, 0, 0, 0]);
        let other_cache = data_src([LOAD, HIT | 0x400, 0x10, 0x1, tlb, 0xb, 1, 0, 0, 0]);
        let local = data_src([LOAD, HIT | 0x80, 0x4, 0x2, tlb, 0xd, 0, 0, 0, 0]);
        let remote = data_src([LOAD, HIT | 0x100, 0x8, 0x1, tlb, 0xd, 1, 0, 0, 0]);
        assert_eq!(remote, 0x3a_6940_2042, "by hand");
        check(&[
            (EXACT_USER, 0x7f12_3456_7000, l1, Served::Unknown),
            (EXACT_USER, 0x7f12_3456_8008, l3_hit_modified, Served::Unknown),
            (EXACT_USER, 0x7f12_3456_9010, other_cache, Served::Unknown),
            (EXACT_USER, 0x7f12_3456_a018, local, Served::LocalMemory),
            (EXACT_USER, 0x7f12_3456_b020, remote, Served::RemoteMemory),
        ]);
    }

    #[test]
    fn operations_as_ibs_tells_them_are_decoded_and_those_without_an_address_counted() {
        // Levels by number only; no snoop, lock or block known; hops tell how far.
        let na = |level, remote, hops| {
            data_src([LOAD, 0x1, 0x1, 0x1, 0x2 | 0x8, level, remote, 0, 1, hops])
        };
        let store = data_src([0x4, HIT | 0x8, 0x1, 0x2, 0x4 | 0x10, 0x1, 0, 0, 1, 0]);
        check(&[
            (EXACT_USER, 0x5555_0000_1000, na(0xd, 0, 0), Served::LocalMemory),
            (EXACT_USER, 0x5555_0000_2000, na(0xd, 1, 3), Served::RemoteMemory),
            (EXACT_USER, 0x5555_0000_3000, na(0xb, 1, 2), Served::Unknown),
            (EXACT_USER, 0x5555_0000_4000, na(0x3, 0, 0), Served::Unknown),
            (EXACT_USER, 0x5555_0000_5000, store, Served::Unknown),
            (MISC_USER, 0x5555_0000_6000, na(0xd, 1, 1), Served::RemoteMemory),
        ]);
        // An operation that touches no memory has no address; a guest's (5) is not the process's.
        let mut bytes = sample(EXACT_USER, 0, data_src([0x1, 0x1, 0x1, 0x1, 0x1, 0xf, 0, 0, 1, 0]));
        bytes.extend(sample(1 << 14 | 5, 0x5555_0000_1000, na(0xd, 1, 1)));
        assert_eq!((decode(&bytes).samples.len(), decode(&bytes).unusable), (0, 2));
    }

    #[test]
    fn samples_of_the_kernel_or_a_guest_are_counted_and_not_used() {
        let mut bytes = sample(MISC_USER, 0x7000, 0);
        for (misc, address) in [(1, 0x7000), (4, 0x7000), (5, 0x7000), (2, 0), (2, 1 << 63)] {
            bytes.extend(sample(misc, address, 0));
        }
        let decoded = decode(&bytes);
        assert_eq!((decoded.samples.len(), decoded.unusable), (1, 5));
    }

    #[test]
    fn losses_and_throttling_are_counted() {
        let mut bytes = counted(RECORD_LOST, &[1, 10]);
        bytes.extend(counted(RECORD_LOST_SAMPLES, &[5]));
        bytes.extend(counted(RECORD_THROTTLE, &[0, 0, 0]));
        bytes.extend(counted(RECORD_UNTHROTTLE, &[0, 0, 0]));
        bytes.extend(counted(99, &[]));
        let decoded = decode(&bytes);
        assert_eq!((decoded.lost, decoded.throttled), (15, 1));
        assert_eq!((decoded.other[&99], decoded.damaged_at), (1, None));
    }

    #[test]
    fn impossible_lengths_end_the_decoding_where_they_stand() {
        for length in [0u16, 4, 12, 8000] {
            let mut bytes = sample(MISC_USER, 0x7000, 0);
            bytes.extend(header(RECORD_SAMPLE, 2, length));
            let decoded = decode(&bytes);
            assert_eq!((decoded.samples.len(), decoded.damaged_at), (1, Some(32)), "{length}");
        }
        // A sample too short for its fields.
        assert_eq!(decode(&counted(RECORD_SAMPLE, &[1])).damaged_at, Some(0));
    }

    proptest! {
        #[test]
        fn garbage_is_bounded_and_never_panics(
            noise in proptest::collection::vec(any::<u8>(), 0..600),
            at in 0usize..1000,
            cut in 0usize..64,
        ) {
            let at = at.min(RECORDED.len());
            let mut bytes = RECORDED[..at].to_vec();
            bytes.extend(&noise);
            bytes.extend(&RECORDED[at.saturating_add(cut).min(RECORDED.len())..]);
            let decoded = decode(&bytes);
            prop_assert!(decoded.samples.len() <= bytes.len() / 32);
            prop_assert!(decoded.damaged_at.is_none_or(|offset| offset < bytes.len()));
        }
    }
}
