//! Whether the machine below has CPUs for the emulated ones: what the emulator's threads ran and waited.
//!
//! It does not know what else ran, nor of time that a hypervisor took from this machine.

use std::fs;

/// What a process's threads ran and waited so far, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuWait {
    run: u64,
    wait: u64,
}

impl CpuWait {
    /// Reads `schedstat` of all threads; nothing of a process that is gone.
    #[must_use]
    pub fn read(pid: u32) -> Self {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let texts =
            threads.filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok());
        texts.filter_map(|text| parse(&text)).fold(Self::default(), |sum, one| Self {
            run: sum.run.saturating_add(one.run),
            wait: sum.wait.saturating_add(one.wait),
        })
    }

    /// The part of the time since then in which they wanted to run and waited, 0 to 1.
    #[must_use]
    pub fn since(self, before: Self) -> Option<f64> {
        let (run, wait) =
            (self.run.saturating_sub(before.run), self.wait.saturating_sub(before.wait));
        let all = run.saturating_add(wait);
        (all > 0).then(|| wait as f64 / all as f64)
    }
}

/// Reads a thread's `schedstat`: nanoseconds that it ran, that it waited, and a number of slices.
fn parse(text: &str) -> Option<CpuWait> {
    let mut words = text.split_ascii_whitespace().map(str::parse);
    Some(CpuWait { run: words.next()?.ok()?, wait: words.next()?.ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_a_part_of_wanting_to_run() {
        let (then, now) = (CpuWait { run: 100, wait: 50 }, CpuWait { run: 400, wait: 150 });
        assert_eq!(now.since(then), Some(0.25));
        assert_eq!(then.since(then), None);
        assert_eq!(then.since(now), None, "counters that went back say nothing");
    }

    #[test]
    fn a_schedstat_line_that_is_cut_is_left_out() {
        assert_eq!(parse("7 8 9\n"), Some(CpuWait { run: 7, wait: 8 }));
        assert_eq!((parse("7"), parse("x 8 9"), parse("")), (None, None, None));
    }

    #[test]
    fn this_process_has_run_and_one_that_is_gone_has_not() {
        assert!(CpuWait::read(std::process::id()).run > 0);
        assert_eq!(CpuWait::read(0), CpuWait::default());
    }
}
