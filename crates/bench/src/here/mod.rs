//! Runs blocks of cells on the machine it is on: loads a scheduler, starts the work in cgroups of its
//! own, counts, and cleans up.
//!
//! ```text
//! load scheduler -> for each cell: start work -> tell Instep of it -> settle -> count -> trace -> kill
//!        ^                                                                                |
//!        +--- once, when it ended <-------------------------------------------------------+
//! unload -> the default is back
//! ```
//! Guests are not started here: who boots the machine starts them, frozen, and here they are set
//! free for their cells. Everything is bounded in time. It knows nothing of figures: it gives
//! [`BenchCell`]s.

mod counters;
mod groups;
mod sample;
mod scheduler;
mod tracing;
mod work;

pub use groups::sweep;
pub use work::guest_command;

use crate::case::Case;
use crate::cell::{ALONE, BenchCell};
use crate::error::Error;
use crate::plan::{Block, DEFAULT, Job, Times};
use counters::Counters;
use instep_host::Root;
use sample::Modules;
use scheduler::InForce;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use work::Running;

/// The kernel's words about sched_ext.
const SCHED_EXT: &str = "/sys/kernel/sched_ext";
/// By how much a report of a ping may come late.
const LATE: Duration = Duration::from_millis(300);

/// What cells are run with.
pub struct Tools<'a> {
    /// The `instep` program.
    pub instep: PathBuf,
    /// The workload `instep-load`.
    pub load: PathBuf,
    /// Programs that load a scheduler, by its name.
    pub peers: BTreeMap<String, PathBuf>,
    /// A directory for logs and configurations, which exists.
    pub dir: PathBuf,
    /// Which boot of the machine this is.
    pub boot: u32,
    /// Nanoseconds of a unit of instep-load's work.
    pub unit_ns: f64,
    /// Whether to stop.
    pub stop: &'a dyn Fn() -> bool,
}

/// Whether cells can be run on this machine.
///
/// # Errors
/// What it lacks, with what to do.
pub fn ready(needs_sched_ext: bool) -> Result<(), Error> {
    if !rustix::process::geteuid().is_root() {
        let next = "run it as root, or without --here in the lab, which needs no root";
        return Err(Error::lacking("cgroups and schedulers need root", next));
    }
    if needs_sched_ext && !Path::new(SCHED_EXT).exists() {
        let next = "leave --here out: the lab boots a kernel that has it; or name default alone by \
                    --schedulers";
        return Err(Error::lacking("this kernel has no sched_ext", next));
    }
    groups::ready()
}

/// What a unit of instep-load's work takes here, in nanoseconds: the least of a few measurements.
///
/// # Errors
/// It cannot be run.
pub fn unit_ns(load: &Path) -> Result<f64, Error> {
    let once = || {
        let mut command = std::process::Command::new(load);
        command.args(["compute", "--threads", "1", "--float", "--duration", "100ms"]);
        let output = command.output().map_err(|error| Error::io("run", load, error))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        crate::load_line::unit_ns(&text).ok_or_else(|| {
            let what = format!("{} does not say how fast it is", load.display());
            Error::lacking(what, "build it by `cargo xtask load`, or give --load FILE")
        })
    };
    let mut least = once()?;
    for _ in 0..4 {
        least = least.min(once()?);
    }
    Ok(least)
}

/// Runs a block's cells one after the other and hands out each.
///
/// # Errors
/// Work cannot be started on this machine at all. A scheduler that cannot be loaded or falls out is
/// told in the cells.
pub fn run(block: &Block, tools: &Tools<'_>, each: &mut dyn FnMut(BenchCell)) -> Result<(), Error> {
    groups::sweep();
    let mut loads = 0;
    let mut in_force: Option<InForce> = None;
    let mut why_not = String::new();
    for (number, job) in block.jobs.iter().enumerate() {
        if (tools.stop)() {
            break;
        }
        let begun = || BenchCell {
            case: job.case.name.clone(),
            scheduler: job.scheduler.clone(),
            run: block.run,
            boot: tools.boot,
            ..BenchCell::default()
        };
        let mut cell = begun();
        if block.program != DEFAULT && in_force.is_none() && loads < 2 {
            loads += 1;
            match InForce::load(&block.program, tools) {
                Ok(loaded) => in_force = Some(loaded),
                Err(why) => why_not = why,
            }
        }
        if block.program != DEFAULT && in_force.is_none() {
            cell.failed = Some(why_not.clone());
            each(cell);
            continue;
        }
        let tag = format!("r{}-{number}", block.run);
        one(job, block.times, tools, in_force.as_mut(), &tag, &mut cell)?;
        // A busy machine may keep a guest from printing for as long as it is measured.
        let lives =
            !cell.stopped && in_force.as_mut().is_none_or(|loaded| loaded.end_reason().is_none());
        if lives && let Some(why) = cell.failed.take() {
            cell = begun();
            cell.warnings.push(format!("{}: measured a second time: {why}", job.case.name));
            one(job, block.times, tools, in_force.as_mut(), &format!("{tag}-again"), &mut cell)?;
        }
        if let Some(loaded) = &mut in_force
            && let Some(why) = loaded.end_reason()
        {
            cell.rate = None;
            cell.failed = Some(why.clone());
            why_not = why;
            in_force = None;
        }
        each(cell);
    }
    Ok(())
}

/// What was seen while the work was counted.
struct Seen {
    /// CPUs used by each that ran, by window.
    windows: Vec<Vec<f64>>,
    modules: Modules,
    /// When counting began and ended, since the work was started.
    from: Duration,
    until: Duration,
    /// Counters at both, where they can be read.
    counters: Option<(Counters, Counters)>,
}

/// Runs one cell.
fn one(
    job: &Job,
    times: Times,
    tools: &Tools<'_>,
    in_force: Option<&mut InForce>,
    tag: &str,
    cell: &mut BenchCell,
) -> Result<(), Error> {
    let times = times.of(job);
    let mut running = Running::start(job, times, tools, tag)?;
    let pid = in_force.as_deref().map(InForce::pid);
    if let Some(loaded) = in_force {
        cell.ops = loaded.ops.clone();
        // Threads are told to Instep by number, so they must be there.
        wait(Duration::from_millis(200), tools);
        loaded.tell(&running, &job.without, tools)?;
    }
    wait(times.settle.saturating_sub(running.age()), tools);
    let seen = count(&running, times.measure, pid, tools);
    cell.competing_modules = seen.modules.mean();
    if job.trace && running.has_vcpus() && !times.trace.is_zero() {
        measure_stacking(&running, times.trace, tools, cell);
    }
    note_work(job, &mut running, &seen, tools, cell);
    note_shares(job, &seen.windows, cell);
    note_cost(&seen, cell);
    Ok(())
}

/// Counts for so long what everybody uses; `pid` is the process of the scheduler that is loaded.
fn count(running: &Running, measure: Duration, pid: Option<u32>, tools: &Tools<'_>) -> Seen {
    let mut modules = Modules::begin(instep_host::topology::read(&Root::live()).ok().as_ref());
    let before = Counters::read(pid);
    let from = running.age();
    let windows = count_windows(running, measure, &mut modules, tools);
    let after = Counters::read(pid);
    let until = running.age();
    Seen { windows, modules, from, until, counters: before.zip(after) }
}

/// Ends the work, and notes what it says that it did, or why that is not known.
fn note_work(
    job: &Job,
    running: &mut Running,
    seen: &Seen,
    tools: &Tools<'_>,
    cell: &mut BenchCell,
) {
    let once = job.case.work.reports_once();
    if once {
        // Its second report comes late by what its start took.
        wait(LATE, tools);
    }
    let text = running.end();
    let heard = if once { seen.until + LATE } else { seen.until };
    match running.counted(&text, seen.from, heard) {
        Ok(counted) => {
            cell.rate = Some(counted.rate);
            cell.unit = counted.unit;
            cell.seconds = counted.seconds;
            if let Some((p50, p99)) = counted.late_ns.filter(|_| job.case.work.is_ping()) {
                (cell.late_p50_ns, cell.late_p99_ns) = (Some(p50), Some(p99));
            }
        }
        Err(why) => {
            let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("");
            let last: String = last.chars().take(160).collect();
            cell.failed = Some(format!("{why}; it last said: {last}"));
        }
    }
    cell.cpus = mean(&seen.windows);
    if let Some(guest) = running.stopped(&cell.cpus) {
        cell.stopped = true;
        cell.rate = None;
        cell.failed = Some(format!("guest {guest} did nothing at all"));
    }
}

/// Notes by how much parts of the CPU time are off, where that is what the case is about.
fn note_shares(job: &Job, windows: &[Vec<f64>], cell: &mut BenchCell) {
    if job.case.weights && job.scheduler != ALONE {
        cell.share_errors = share_errors(windows, &fair_parts(&job.case));
        cell.share_error = cell.share_errors.iter().copied().reduce(f64::max);
    }
}

/// Notes what the scheduler cost, and how often the host switched.
fn note_cost(seen: &Seen, cell: &mut BenchCell) {
    let Some((before, after)) = &seen.counters else { return };
    let (spent, time) = (after.since(before), seen.until - seen.from);
    cell.bpf_ns_per_switch = spent.bpf_ns_per_switch();
    cell.bpf_ns_per_call = spent.bpf_ns_per_call();
    cell.bpf_cpu = spent.bpf_cpu(time, seen.modules.cpus());
    cell.switches_per_s = Some(spent.switches as f64 / time.as_secs_f64().max(1e-3));
}

/// Whether siblings of the work are stacked: traced where that may be, else sampled.
fn measure_stacking(running: &Running, time: Duration, tools: &Tools<'_>, cell: &mut BenchCell) {
    let vcpus = running.vcpus();
    let why = match tracing::trace(&vcpus, time, tools) {
        Ok(seen) => {
            cell.stacking = seen.map(|(stacking, _)| stacking);
            cell.co_run = seen.map(|(_, co_run)| co_run);
            return;
        }
        Err(why) => why,
    };
    cell.warnings.push(format!("stacking is sampled, for it cannot be traced: {why}"));
    if let Some(work) = running.all.first() {
        let tids: Vec<u32> = vcpus.iter().map(|(_, tid)| *tid).collect();
        cell.stacking = sample::stacking(work.pid, &tids, time);
    }
}

/// Waits, and looks whether to stop.
fn wait(time: Duration, tools: &Tools<'_>) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        if left.is_zero() || (tools.stop)() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}

/// CPUs used by each that runs, in windows of a second: as many as there is time for, and one shorter
/// where there is time for none. How busy cores are is looked at meanwhile.
fn count_windows(
    running: &Running,
    measure: Duration,
    modules: &mut Modules,
    tools: &Tools<'_>,
) -> Vec<Vec<f64>> {
    let (window, whole) = windows_of(measure);
    let mut windows = Vec::new();
    let (begin, mut last, mut at) = (Instant::now(), running.usage(), Instant::now());
    for number in 1..=whole {
        watch(begin + window * number, modules, tools);
        let (usage, now) = (running.usage(), Instant::now());
        let took = (now - at).as_secs_f64().max(1e-6);
        let used = usage.iter().zip(&last).map(|(a, b)| a.saturating_sub(*b) as f64 / 1e6 / took);
        windows.push(used.collect());
        (last, at) = (usage, now);
    }
    watch(begin + measure, modules, tools);
    windows
}

/// Waits, and looks meanwhile at how busy cores are.
fn watch(until: Instant, modules: &mut Modules, tools: &Tools<'_>) {
    let left = |until: Instant| until.saturating_duration_since(Instant::now());
    while let Some(next) = modules.next().filter(|next| *next <= until) {
        wait(left(next), tools);
        if (tools.stop)() {
            return;
        }
        modules.note_busy(sample::busy(), Instant::now());
    }
    wait(left(until), tools);
}

/// How long a window is, and how many there are.
fn windows_of(measure: Duration) -> (Duration, u32) {
    let second = Duration::from_secs(1);
    (measure.min(second), u32::try_from(measure.as_secs()).unwrap_or(u32::MAX).max(1))
}

/// The mean over windows, for each.
fn mean(windows: &[Vec<f64>]) -> Vec<f64> {
    let Some(first) = windows.first() else { return Vec::new() };
    let sum = |i: usize| windows.iter().filter_map(|window| window.get(i)).sum::<f64>();
    (0..first.len()).map(|i| sum(i) / windows.len() as f64).collect()
}

/// The part of all CPU time that is fair for each that runs, the work first.
fn fair_parts(case: &Case) -> Vec<f64> {
    let given = case.given(case.host.cpus());
    let sum: f64 = given.iter().sum();
    given.iter().map(|own| own / sum).collect()
}

/// The worst of |part / fair part - 1| over windows, for each that ran; empty when nothing did.
fn share_errors(windows: &[Vec<f64>], fair: &[f64]) -> Vec<f64> {
    let error = |window: &[f64], one: usize| {
        let used: f64 = window.iter().sum();
        let error = ((window.get(one)? / used) / fair.get(one)? - 1.0).abs();
        Some(error).filter(|error| error.is_finite())
    };
    let worst = |one: usize| windows.iter().filter_map(|w| error(w, one)).reduce(f64::max);
    (0..fair.len()).map_while(worst).collect()
}

/// A small file's text; empty when it cannot be read.
fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_vms_worst_window_is_its_error() {
        let near = |errors: &[f64], want: &[f64]| {
            let all = errors.len() == want.len();
            assert!(
                all && errors.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-9),
                "{errors:?}"
            );
        };
        let windows = [vec![1.0, 1.0], vec![0.8, 1.2], vec![0.0, 0.0]];
        near(&share_errors(&windows, &[0.5, 0.5]), &[0.2, 0.2]);
        near(&share_errors(&[vec![0.5, 1.5]], &[0.25, 0.75]), &[0.0, 0.0]);
        near(&share_errors(&[vec![0.4, 1.6]], &[0.25, 0.75]), &[0.2, 0.2 / 3.0]);
        near(&share_errors(&[vec![0.0]], &[1.0]), &[]);
    }

    #[test]
    fn a_fair_part_is_by_weight_and_no_more_than_can_be_used() {
        let text = "[[case]]\nname = 'a'\nabout = 'x'\nwork = { load = 'x', vcpus = 2 }\n\
                    beside = [{ load = 'x', vcpus = 2, weight = 300 }, { load = 'x', vcpus = 1, weight = 400 }]\n";
        let case = &crate::case::parse(text, Path::new("x")).unwrap()[0];
        let parts = fair_parts(case);
        // 0.25, 0.75 and 1 CPU of 2.
        assert!(
            parts.iter().zip([0.125, 0.375, 0.5]).all(|(a, b)| (a - b).abs() < 1e-4),
            "{parts:?}"
        );
    }

    #[test]
    fn windows_are_of_a_second_whatever_is_left() {
        let ms = Duration::from_millis;
        assert_eq!(windows_of(ms(2500)), (ms(1000), 2));
        assert_eq!(windows_of(ms(1500)), (ms(1000), 1));
        assert_eq!(windows_of(ms(300)), (ms(300), 1));
    }

    #[test]
    fn cpu_time_is_averaged_over_windows() {
        assert_eq!(mean(&[vec![1.0, 0.0], vec![0.5, 1.0]]), [0.75, 0.5]);
        assert!(mean(&[]).is_empty());
    }
}
