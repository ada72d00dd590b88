//! Busy waiting of threads by counted spin hints (PAUSE) of Intel processors: it shows the waiting of a
//! guest, whose code is not read.
//!
//! The event has not been tried on hardware; counting itself is tested with software events.

use crate::error::Error;
use crate::root::Root;
use instep_core::units::{Milli, Tid};
use perf_event::events::Raw;
use perf_event::{Builder, Counter};
use std::io;

/// Models of Intel's family 6 that count the hint, and the cycles that one takes. Models by
/// tools/perf/pmu-events/arch/x86/mapfile.csv of Linux. Skylake of clients takes as many as 140 (Intel 64 and
/// IA-32 Architectures Optimization Reference Manual). Skylake of servers does, too, but its successors of the
/// same model number take as few as 40 (`tma_slow_pause` of the same tables): the part is a lower bound.
const CYCLES_OF_HINT: [(&[u32], u64); 2] =
    [(&[0x4e, 0x5e, 0x8e, 0x9e, 0xa5, 0xa6], 140), (&[0x55], 40)];
/// `PERF_TYPE_RAW` (include/uapi/linux/perf_event.h), and ROB_MISC_EVENTS.PAUSE_INST: code 0xcc, unit mask 0x40.
const HINT: (u32, u64) = (4, 0x40cc);
/// `PERF_TYPE_HARDWARE` and `PERF_COUNT_HW_CPU_CYCLES`.
const CYCLES: (u32, u64) = (0, 0);

/// Counters of spin hints and of cycles of threads that run already, at user level; of guests' vCPUs,
/// what the guest does at any level, and nothing of the host. A hint that makes the guest exit
/// (pause-loop exiting) is not counted.
pub struct SpinHints {
    cycles_of_hint: u64,
    threads: Vec<[Counter; 2]>,
}

impl std::fmt::Debug for SpinHints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SpinHints {{ {} threads }}", self.threads.len())
    }
}

impl SpinHints {
    /// Counts from now on, of threads that are `guests`' vCPUs or not; `None` where this machine cannot count
    /// the hint. Threads that have ended are left out.
    ///
    /// # Errors
    /// The kernel refuses the events.
    pub fn of_threads(root: &Root, tids: &[Tid], guests: bool) -> Result<Option<Self>, Error> {
        let has_counters = root.read_opt("sys/bus/event_source/devices/cpu/type")?.is_some();
        let cycles_of_hint = cycles_of_hint(&root.read("proc/cpuinfo")?).filter(|_| has_counters);
        let Some(cycles_of_hint) = cycles_of_hint else { return Ok(None) };
        let open = |tid: &Tid| match open(*tid, [HINT, CYCLES], guests) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
            opened => Some(opened),
        };
        let threads: io::Result<_> = tids.iter().filter_map(open).collect();
        let threads = threads.map_err(|error| Error::system("cannot count spin hints", error))?;
        Ok(Some(Self { cycles_of_hint, threads }))
    }

    /// The part of the threads' cycles that went by in spin hints since.
    pub fn part(&mut self) -> Option<Milli> {
        let (mut hints, mut cycles) = (0u64, 0u64);
        for [hint, cycle] in &mut self.threads {
            if let (Some(more_hints), Some(more_cycles)) = (read(hint), read(cycle)) {
                hints = hints.saturating_add(more_hints);
                cycles = cycles.saturating_add(more_cycles);
            }
        }
        part(hints, cycles, self.cycles_of_hint)
    }
}

/// Cycles of one hint on the first processor of /proc/cpuinfo; none where it cannot be counted.
fn cycles_of_hint(cpuinfo: &str) -> Option<u64> {
    let value = |key: &str| {
        let mut pairs = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        pairs.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
    };
    let model: u32 = value("model")?.parse().ok()?;
    let is_known = value("vendor_id") == Some("GenuineIntel") && value("cpu family") == Some("6");
    let (_, cycles) = CYCLES_OF_HINT.iter().find(|(models, _)| models.contains(&model))?;
    is_known.then_some(*cycles)
}

/// The part of the cycles that went by in so many hints; none without cycles. What a loop does between two
/// hints is not in it.
fn part(hints: u64, cycles: u64, cycles_of_hint: u64) -> Option<Milli> {
    let spent = u128::from(hints) * u128::from(cycles_of_hint) * 1000;
    let part = spent.checked_div(cycles.into())?;
    Some(Milli(u64::try_from(part).unwrap_or(1000).min(1000)))
}

/// Counts these events, type and configuration, of one thread.
fn open(tid: Tid, words: [(u32, u64); 2], is_guest: bool) -> io::Result<[Counter; 2]> {
    let pid =
        libc::pid_t::try_from(tid.0).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let counter = |(kind, config): (u32, u64)| {
        let mut builder = Builder::new(Raw::new(config));
        builder.attrs_mut().type_ = kind;
        builder.observe_pid(pid).any_cpu().enabled(true);
        if is_guest {
            builder.include_kernel().exclude_host(true);
        }
        builder.build()
    };
    Ok([counter(words[0])?, counter(words[1])?])
}

/// What was counted, scaled up where counters took turns.
fn read(counter: &mut Counter) -> Option<u64> {
    let read = counter.read_count_and_time().ok()?;
    let scaled = u128::from(read.count) * u128::from(read.time_enabled);
    u64::try_from(scaled.checked_div(read.time_running.into())?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spin_hints_are_a_part_of_the_cycles() {
        assert_eq!(part(1_000_000, 280_000_000, 140), Some(Milli(500)));
        assert_eq!(part(0, 1_000, 140), Some(Milli(0)));
        assert_eq!(part(3_000_000, 280_000_000, 140), Some(Milli(1000)), "no more than all");
        assert_eq!((part(5, 0, 40), part(u64::MAX, 1, 40)), (None, Some(Milli(1000))));
    }

    #[test]
    fn cpuinfo_tells_the_cycles_of_a_hint() {
        let of = |vendor: &str, family: u32, model: &str| {
            cycles_of_hint(&format!(
                "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n\
                 model name\t: x\n"
            ))
        };
        assert_eq!(of("GenuineIntel", 6, "85"), Some(40));
        assert_eq!(of("GenuineIntel", 6, "94"), Some(140));
        assert_eq!((of("GenuineIntel", 6, "1"), of("GenuineIntel", 6, "fish")), (None, None));
        assert_eq!((of("GenuineIntel", 15, "94"), of("AuthenticAMD", 6, "94")), (None, None));
    }

    #[test]
    fn a_machine_without_counters_counts_no_hints() {
        let dir = instep_madehost::scratch_dir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        let intel = "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 85\n";
        std::fs::write(dir.path().join("proc/cpuinfo"), intel).unwrap();
        assert!(SpinHints::of_threads(&Root::at(dir.path()), &[Tid(1)], false).unwrap().is_none());
    }

    #[test]
    fn what_a_thread_does_is_counted() {
        // PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK: nanoseconds of CPU time.
        let own = Tid(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
        let mut counters = match open(own, [(1, 1); 2], false) {
            Ok(counters) => counters,
            Err(error) => return instep_madehost::skip::note(&format!("perf events: {error}")),
        };
        let begin = std::time::Instant::now();
        while counters.iter_mut().any(|counter| read(counter).is_none_or(|ns| ns < 1_000_000)) {
            assert!(begin.elapsed().as_secs() < 60, "{:?}", counters.each_mut().map(read));
        }
    }

    proptest! {
        #[test]
        fn any_cpuinfo_is_read_without_panic(text: String) {
            let _ = cycles_of_hint(&text);
        }
    }
}
