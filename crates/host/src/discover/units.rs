//! The units of /proc: how long a tick is and how large a page.
//!
//! This machine tells by sysconf(3). A copy may hold `proc/self/auxv`, the vector in which the kernel tells
//! each process both (getauxval(3)); one that does not is of a host with the usual values.

use super::files::Reader;
use crate::root::Root;
use crate::system;

/// `AT_PAGESZ` and `AT_CLKTCK` (include/uapi/linux/auxvec.h).
const PAGE: u64 = 6;
const TICKS: u64 = 17;
/// The most that is read; the kernel gives some two dozen pairs.
const MAX_VECTOR: usize = 4096;

/// The units of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Units {
    /// Ticks in a second, never zero.
    pub(super) ticks_per_second: u64,
    /// Bytes of a base page.
    pub(super) page: u64,
}

impl Units {
    /// Those of the host under `root`.
    pub(super) fn of(root: &Root, reader: &mut Reader) -> Self {
        let usual = Self { ticks_per_second: 100, page: 4096 };
        if root.is_live() {
            return Self {
                ticks_per_second: system::sysconf(libc::_SC_CLK_TCK, usual.ticks_per_second),
                page: system::sysconf(libc::_SC_PAGESIZE, usual.page),
            };
        }
        let Ok(vector) = reader.read(&root.join("proc/self/auxv"), MAX_VECTOR) else {
            return usual;
        };
        let page = value(vector, PAGE).filter(|page| page.is_power_of_two() && *page <= 1 << 20);
        let ticks = value(vector, TICKS).filter(|ticks| (1..=1_000_000).contains(ticks));
        Self {
            ticks_per_second: ticks.unwrap_or(usual.ticks_per_second),
            page: page.unwrap_or(usual.page),
        }
    }
}

/// The vector without the rest, which tells where the process lies in memory.
pub(crate) fn reduced(vector: &[u8]) -> Vec<u8> {
    let pair = |key| Some([key, value(vector, key)?]);
    let pairs = [pair(PAGE), pair(TICKS), Some([0, 0])].into_iter().flatten().flatten();
    pairs.flat_map(u64::to_ne_bytes).collect()
}

/// The value of a key in pairs of 64-bit numbers.
fn value(vector: &[u8], key: u64) -> Option<u64> {
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_ne_bytes);
    let mut pairs = vector.chunks_exact(16).map(|pair| pair.split_at(8));
    let found = pairs.find(|(name, _)| number(name) == Some(key));
    found.and_then(|(_, value)| number(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vector: Option<&[u64]>) -> (u64, u64) {
        let copy = instep_madehost::scratch_dir().unwrap();
        if let Some(vector) = vector {
            std::fs::create_dir_all(copy.path().join("proc/self")).unwrap();
            let bytes: Vec<u8> = vector.iter().flat_map(|word| word.to_ne_bytes()).collect();
            std::fs::write(copy.path().join("proc/self/auxv"), bytes).unwrap();
        }
        let root = Root::at(copy.path());
        let units = Units::of(&root, &mut Reader::new(&root));
        (units.ticks_per_second, units.page)
    }

    #[test]
    fn copy_tells_the_units_of_its_host() {
        assert_eq!(of(Some(&[33, 0xdead, 6, 65536, 17, 1024, 0, 0])), (1024, 65536));
        for usual in [None, Some(&[][..]), Some(&[6]), Some(&[6, 0, 17, 0]), Some(&[6, 4097])] {
            assert_eq!(of(usual), (100, 4096), "{usual:?}");
        }
    }

    #[test]
    fn units_of_this_machine_are_in_its_vector_and_nothing_else_is_kept() {
        let live = Units::of(&Root::live(), &mut Reader::new(&Root::live()));
        let kept = reduced(&std::fs::read("/proc/self/auxv").unwrap());
        assert_eq!(kept.len(), 3 * 16);
        assert_eq!(value(&kept, PAGE), Some(live.page));
        assert_eq!(value(&kept, TICKS), Some(live.ticks_per_second));
    }
}
