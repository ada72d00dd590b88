//! Whether the machine below has CPUs for the emulated ones: what the emulator's threads ran and waited.
//!
//! It does not know what else ran, nor of time that a hypervisor took from this machine.

use instep_host::discover::proc_text;
use std::fs;

/// What a process's threads ran and waited so far, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waited {
    run: u64,
    wait: u64,
}

impl Waited {
    /// Reads `schedstat` of all threads; nothing of a process that is gone.
    pub(super) fn read(pid: u32) -> Self {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let texts = threads.filter_map(|thread| fs::read(thread.path().join("schedstat")).ok());
        texts.filter_map(|text| proc_text::schedstat(&text)).fold(
            Self::default(),
            |sum, (run, wait)| Self {
                run: sum.run.saturating_add(run.0),
                wait: sum.wait.saturating_add(wait.0),
            },
        )
    }

    /// The part of the time since then in which they wanted to run and waited, 0 to 1.
    pub(super) fn since(self, before: Self) -> Option<f64> {
        let (run, wait) =
            (self.run.saturating_sub(before.run), self.wait.saturating_sub(before.wait));
        let all = run.saturating_add(wait);
        (all > 0).then(|| wait as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_a_part_of_wanting_to_run() {
        let (then, now) = (Waited { run: 100, wait: 50 }, Waited { run: 400, wait: 150 });
        assert_eq!(now.since(then), Some(0.25));
        assert_eq!(then.since(then), None);
        assert_eq!(then.since(now), None, "counters that went back say nothing");
    }

    #[test]
    fn this_process_has_run_and_one_that_is_gone_has_not() {
        assert!(Waited::read(std::process::id()).run > 0);
        assert_eq!(Waited::read(0), Waited::default());
    }
}
