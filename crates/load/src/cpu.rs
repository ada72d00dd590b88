//! Which CPUs this process may use, and tying a thread to one of them. Needs no `/proc`.

use crate::error::LoadError;

/// Words of a CPU mask: 8192 CPUs, the most that Linux can be built for.
const WORDS: usize = 128;

/// The online CPUs that this process may use, ascending.
///
/// # Errors
/// [`LoadError::System`] if the kernel refuses to tell.
pub fn allowed() -> Result<Vec<usize>, LoadError> {
    let mut mask = [0_u64; WORDS];
    // SAFETY: the mask is valid for writes of its own size. Pid 0 is the calling thread.
    let status = unsafe {
        libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast::<libc::cpu_set_t>())
    };
    if status != 0 {
        return Err(LoadError::last_os("read the CPUs this process may use"));
    }
    let is_set = |cpu: &usize| mask[cpu / 64] & (1 << (cpu % 64)) != 0;
    Ok((0..WORDS * 64).filter(is_set).collect())
}

/// Ties the calling thread to `cpu`.
///
/// # Errors
/// [`LoadError::System`] if the CPU is offline, forbidden or beyond 8191.
pub fn pin(cpu: usize) -> Result<(), LoadError> {
    let mut mask = [0_u64; WORDS];
    if let Some(word) = mask.get_mut(cpu / 64) {
        *word = 1 << (cpu % 64);
    }
    // SAFETY: the mask is valid for reads of its own size. Pid 0 is the calling thread.
    let status = unsafe {
        libc::sched_setaffinity(0, size_of_val(&mask), mask.as_ptr().cast::<libc::cpu_set_t>())
    };
    if status != 0 {
        return Err(LoadError::last_os(format!("tie a thread to CPU {cpu}; try --float")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_that_cpu_only() {
        let cpus = allowed().unwrap();
        assert!(!cpus.is_empty());
        let last = *cpus.last().unwrap();
        std::thread::spawn(move || {
            pin(last).unwrap();
            assert_eq!(allowed().unwrap(), [last]);
        })
        .join()
        .unwrap();
        assert_eq!(allowed().unwrap(), cpus);
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error() {
        for cpu in [8191, 8192, usize::MAX] {
            let error = pin(cpu).unwrap_err().to_string();
            assert!(error.contains(&format!("CPU {cpu}")), "{error}");
        }
    }
}
