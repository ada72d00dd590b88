//! From thread ids to small values, quickly: a table of pages, for thread ids are dense.

use instep_core::units::Tid;

/// Linux gives no thread id from here on (`PID_MAX_LIMIT` of 64-bit kernels).
const LIMIT: u32 = 1 << 22;
const PAGE: usize = 4096;

/// A value per thread. Thread ids that Linux never gives have none.
#[derive(Clone, Debug, Default)]
pub(crate) struct TidMap {
    pages: Vec<Option<Box<[u32; PAGE]>>>,
}

impl TidMap {
    /// The value of a thread.
    #[inline]
    pub(crate) fn get(&self, tid: Tid) -> Option<usize> {
        let page = self.pages.get(tid.0 as usize / PAGE)?.as_ref()?;
        (page[tid.0 as usize % PAGE] as usize).checked_sub(1)
    }

    /// Gives a thread a value below 2^32 - 1; false for a thread id that cannot be.
    pub(crate) fn set(&mut self, tid: Tid, value: usize) -> bool {
        let Some(stored) = u32::try_from(value).ok().and_then(|value| value.checked_add(1)) else {
            return false;
        };
        if tid.0 >= LIMIT {
            return false;
        }
        let at = tid.0 as usize / PAGE;
        if self.pages.len() <= at {
            self.pages.resize_with(at + 1, || None);
        }
        self.pages[at].get_or_insert_with(|| Box::new([0; PAGE]))[tid.0 as usize % PAGE] = stored;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_found_and_nothing_else() {
        let mut map = TidMap::default();
        assert!(map.set(Tid(0), 7) && map.set(Tid(4_194_303), 0));
        assert_eq!((map.get(Tid(0)), map.get(Tid(4_194_303))), (Some(7), Some(0)));
        assert_eq!((map.get(Tid(1)), map.get(Tid(u32::MAX))), (None, None));
        assert!(!map.set(Tid(u32::MAX), 1));
    }
}
