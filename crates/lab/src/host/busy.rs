//! Whether the machine below has CPUs for the emulated ones: what the emulator's threads ran and waited, and how much
//! other work there is before a lab begins.
//!
//! It does not know what that work is, nor of time that a hypervisor took from this machine.

use std::time::Duration;
use std::{fs, thread};

/// How often the threads that can run are counted, and the time between.
const LOOKS: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(50);
/// The part of this machine's CPUs that other work may want.
const MUCH: f64 = 0.25;

/// How much work this machine has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OtherWork {
    /// Threads that ran or waited for a CPU, the mean of a second, without the one that counted.
    pub runnable: f64,
    /// The load average of a minute.
    pub load: f64,
}

impl OtherWork {
    /// Measures it for a second; nothing where `/proc/loadavg` cannot be read.
    pub fn measure() -> Option<Self> {
        let mut sum = 0.0;
        let mut load = 0.0;
        for _ in 0..LOOKS {
            let now = Self::parse(&fs::read_to_string("/proc/loadavg").ok()?)?;
            sum += now.runnable;
            load = now.load;
            thread::sleep(BETWEEN);
        }
        Some(Self { runnable: sum / f64::from(LOOKS), load })
    }

    /// Reads `0.08 0.07 0.05 3/107 9901`: load averages, runnable threads of all, the last process.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let load = words.next()?.parse().ok()?;
        let (runnable, _) = words.nth(2)?.split_once('/')?;
        let runnable: u32 = runnable.parse().ok()?;
        Some(Self { runnable: f64::from(runnable.saturating_sub(1)), load })
    }

    /// What to say before a lab begins on a machine of so many CPUs that is not quiet.
    pub fn warning(self, cpus: usize) -> Option<String> {
        (self.runnable > MUCH * cpus as f64).then(|| {
            format!(
                "this machine was not quiet before the first cell: {:.1} threads of other work wanted its {cpus} \
                 CPUs (load average {:.1}): figures are diluted; end other work and measure again",
                self.runnable, self.load
            )
        })
    }
}

/// What a process's threads ran and waited so far, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuWait {
    run: u64,
    wait: u64,
}

impl CpuWait {
    /// Reads `schedstat` of all threads; nothing of a process that is gone.
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
    fn runnable_threads_of_others_are_counted_and_warned_of() {
        let read = OtherWork::parse("8.61 11.30 7.18 6/412 9901\n").unwrap();
        assert_eq!(read, OtherWork { runnable: 5.0, load: 8.61 });
        let warning = read.warning(2).unwrap();
        assert!(warning.contains("5.0 threads") && warning.contains("average 8.6"), "{warning}");
        assert_eq!(OtherWork { runnable: 0.4, load: 3.0 }.warning(2), None, "that was before");
        assert_eq!((OtherWork::parse(""), OtherWork::parse("1 2 3 x 4")), (None, None));
    }

    #[test]
    fn spinning_thread_is_other_work() {
        let stop = std::sync::atomic::AtomicBool::new(false);
        let measured = thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let measured = OtherWork::measure();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            measured
        });
        assert!(measured.unwrap().runnable > 0.5, "{measured:?}");
    }

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
