//! Decodes what the kernel writes for a sampled clock event with context switches: samples, switches,
//! losses (include/uapi/linux/perf_event.h, 6.18).
//!
//! Records stand in the byte order of the host. A damaged one ends the decoding, for nothing tells
//! where the next begins; what was decoded before is kept.

use crate::records::{
    LOST as RECORD_LOST, LOST_SAMPLES as RECORD_LOST_SAMPLES, Record, SAMPLE as RECORD_SAMPLE,
    u32_at, u64_at, walk,
};
use instep_core::units::Nanos;

/// `sample_type` that [`decode`] expects, with `sample_id_all`: address, thread, time, CPU.
pub const SAMPLE_TYPE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 7;

const RECORD_EXIT: u32 = 4;
const RECORD_SWITCH: u32 = 14;
const MISC_SWITCH_OUT: u16 = 1 << 13;
const MISC_SWITCH_OUT_PREEMPT: u16 = 1 << 14;
/// Thread, time and CPU, which end every record that is no sample.
const TRAILER: usize = 24;

/// Something that happened to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadEvent {
    /// When, on the clock of the event.
    pub at: Nanos,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The CPU it is on.
    pub cpu: u32,
    /// What.
    pub what: ThreadEventKind,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadEventKind {
    /// It began to run.
    In,
    /// It stopped although it could run on.
    Preempted,
    /// It stopped to wait for something.
    Blocked,
    /// It ended: the kernel takes its event away before it stops to run.
    Ended,
    /// It was found running at this address, at user level.
    At(u64),
    /// It was found running in the kernel, or in a guest.
    Kernel,
}

/// What a buffer held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Events in the order of the buffer.
    pub events: Vec<ThreadEvent>,
    /// Records the kernel had no room for.
    pub lost: u64,
    /// Offset of a damaged record, at which decoding ended.
    pub damaged_at: Option<usize>,
}

/// Decodes a run of whole records.
pub fn decode(bytes: &[u8]) -> Decoded {
    let mut decoded = Decoded::default();
    let damaged_at = walk(bytes, |record| take(record, &mut decoded));
    decoded.damaged_at = damaged_at;
    decoded
}

/// Decodes one record; `None` when it is damaged.
fn take(record: &Record<'_>, decoded: &mut Decoded) -> Option<()> {
    let (misc, body) = (record.misc, record.body);
    match record.kind {
        RECORD_SAMPLE => {
            let address = u64_at(body, 0)?;
            let user = record.is_of_user();
            let what = if user { ThreadEventKind::At(address) } else { ThreadEventKind::Kernel };
            decoded.events.push(event(body.get(8..)?, what)?);
        }
        RECORD_SWITCH => {
            let what = match (misc & MISC_SWITCH_OUT != 0, misc & MISC_SWITCH_OUT_PREEMPT != 0) {
                (false, _) => ThreadEventKind::In,
                (true, true) => ThreadEventKind::Preempted,
                (true, false) => ThreadEventKind::Blocked,
            };
            decoded.events.push(event(body, what)?);
        }
        RECORD_EXIT => {
            let (pid, tid, at) = (u32_at(body, 0)?, u32_at(body, 8)?, Nanos(u64_at(body, 16)?));
            let cpu = u32_at(body, 24 + 16)?;
            decoded.events.push(ThreadEvent { at, pid, tid, cpu, what: ThreadEventKind::Ended });
        }
        RECORD_LOST => decoded.lost = decoded.lost.saturating_add(u64_at(body, 8)?),
        RECORD_LOST_SAMPLES => decoded.lost = decoded.lost.saturating_add(u64_at(body, 0)?),
        _ => {}
    }
    Some(())
}

/// The event of whom and when that `bytes` begin with.
fn event(bytes: &[u8], what: ThreadEventKind) -> Option<ThreadEvent> {
    bytes.get(..TRAILER)?;
    let (pid, tid, cpu) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?, u32_at(bytes, 16)?);
    Some(ThreadEvent { pid, tid, at: Nanos(u64_at(bytes, 8)?), cpu, what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::MISC_USER;
    use proptest::prelude::*;

    fn record_of(record_type: u32, misc: u16, words: &[u64]) -> Vec<u8> {
        let mut bytes = record_type.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend((8 + 8 * words.len() as u16).to_ne_bytes());
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    /// Process 7, thread 8.
    const WHO: u64 = if cfg!(target_endian = "little") { 8 << 32 | 7 } else { 7 << 32 | 8 };

    #[test]
    fn switches_and_samples_are_distinguished() {
        let mut bytes = record_of(RECORD_SWITCH, 0, &[WHO, 100, 0]);
        bytes.extend(record_of(RECORD_SAMPLE, MISC_USER, &[0xabc, WHO, 110, 0]));
        bytes.extend(record_of(RECORD_SAMPLE, 1, &[0xabc, WHO, 115, 0]));
        bytes.extend(record_of(RECORD_SWITCH, MISC_SWITCH_OUT, &[WHO, 120, 0]));
        let preempted = MISC_SWITCH_OUT | MISC_SWITCH_OUT_PREEMPT;
        bytes.extend(record_of(RECORD_SWITCH, preempted, &[WHO, 130, 0]));
        // Process 7 and its parent, thread 8 and its parent; then who, when and where again.
        let low_first = cfg!(target_endian = "little");
        let pair = |first: u64| if low_first { 1 << 32 | first } else { first << 32 | 1 };
        bytes.extend(record_of(RECORD_EXIT, 0, &[pair(7), pair(8), 135, WHO, 135, 0]));
        bytes.extend(record_of(RECORD_LOST, 0, &[1, 5, WHO, 140, 0]));
        bytes.extend(record_of(77, 0, &[1]));
        let decoded = decode(&bytes);
        let what: Vec<(u64, ThreadEventKind)> =
            decoded.events.iter().map(|e| (e.at.0, e.what)).collect();
        let expected = [
            (100, ThreadEventKind::In),
            (110, ThreadEventKind::At(0xabc)),
            (115, ThreadEventKind::Kernel),
            (120, ThreadEventKind::Blocked),
            (130, ThreadEventKind::Preempted),
            (135, ThreadEventKind::Ended),
        ];
        assert_eq!(what, expected);
        assert!(decoded.events.iter().all(|event| (event.pid, event.tid) == (7, 8)));
        assert_eq!((decoded.lost, decoded.damaged_at), (5, None));
    }

    #[test]
    fn a_cut_record_ends_the_decoding() {
        let mut bytes = record_of(RECORD_SWITCH, 0, &[WHO, 100, 0]);
        let whole = bytes.len();
        bytes.extend(record_of(RECORD_SWITCH, 0, &[WHO, 100, 0]));
        for end in whole + 1..bytes.len() {
            let decoded = decode(&bytes[..end]);
            assert_eq!((decoded.events.len(), decoded.damaged_at), (1, Some(whole)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode(&bytes);
        }
    }
}
