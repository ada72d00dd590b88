//! In which order cells run: which schedulers, in blocks that one load of a scheduler serves, with
//! an order that rotates from run to run.
//!
//! Loading a scheduler takes seconds and, under emulation, is the riskiest moment of a run, so all
//! cases run under one load. Drift (a machine that gets warmer or busier) would then favour
//! whoever comes first: each run begins with another scheduler. The work alone is measured in
//! every run beside the default's block, once for all cases that have the same work.

use crate::case::{Case, GuestKind, Shape};
use crate::cell::ALONE;
use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The kernel's own scheduler.
pub const DEFAULT: &str = "default";
/// Ours.
pub const INSTEP: &str = "instep";
/// Ours without a mechanism: this and its name.
pub const WITHOUT: &str = "instep-without-";

/// A scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduler {
    /// What it is called.
    pub name: String,
    /// What it is.
    pub kind: SchedulerKind,
}

/// How a scheduler is put in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SchedulerKind {
    /// It is when no other is.
    Default,
    /// `instep run --dispatch kernel`, without these mechanisms.
    Instep {
        /// Names of mechanisms that are off.
        without: Vec<String>,
    },
    /// A program that loads it and runs as long as it is in force.
    Peer,
}

impl Scheduler {
    /// The scheduler of a name: `default`, `instep`, `instep-without-MECHANISM`, else a peer's.
    ///
    /// # Errors
    /// A mechanism that is none; a name that is no program's.
    pub fn of(name: &str, mechanisms: &[&str]) -> Result<Self, Error> {
        let unknown = |what: String, next: String| Err(Error::Unknown { what, next });
        let kind = match (name, name.strip_prefix(WITHOUT)) {
            (DEFAULT, _) => SchedulerKind::Default,
            (INSTEP, _) => SchedulerKind::Instep { without: Vec::new() },
            (_, Some(mechanism)) if mechanisms.contains(&mechanism) => {
                SchedulerKind::Instep { without: vec![mechanism.to_owned()] }
            }
            (_, Some(mechanism)) => {
                let known = format!("known are {}", mechanisms.join(", "));
                return unknown(format!("Instep has no mechanism `{mechanism}`"), known);
            }
            _ => {
                let letter = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                let plain = name.chars().all(letter) && !name.starts_with('-');
                if name.is_empty() || name.len() > 40 || !plain || name == ALONE {
                    let next = "name default, instep, instep-without-MECHANISM, or a package of \
                                the crates registry such as scx_cosmos";
                    return unknown(format!("`{name}` is no scheduler's name"), next.to_owned());
                }
                SchedulerKind::Peer
            }
        };
        Ok(Self { name: name.to_owned(), kind })
    }

    /// What it needs loaded: schedulers of one program need only one load.
    fn program(&self) -> &str {
        match self.kind {
            SchedulerKind::Default => DEFAULT,
            SchedulerKind::Instep { .. } => INSTEP,
            SchedulerKind::Peer => &self.name,
        }
    }
}

/// How long things take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// From the start of the work to the begin of counting.
    pub settle: Duration,
    /// For how long it is counted.
    pub measure: Duration,
    /// For how long scheduling is traced after that, in the first run.
    pub trace: Duration,
}

/// Counting takes no less where windows of a second matter, and with guests, which tell of their work
/// twice a second only.
const LONG: Duration = Duration::from_secs(2);
/// And where a hundredth of all wake-ups does.
const WAKES: Duration = Duration::from_millis(1500);
/// The work alone needs no longer to settle: no scheduler has to find out about it.
const SETTLE_ALONE: Duration = Duration::from_millis(400);
/// What a cell and a load take beside their own times, for estimates: seen in the lab.
const CELL: Duration = Duration::from_millis(250);
const LOAD: Duration = Duration::from_secs(3);

impl Times {
    /// Those of one cell.
    #[must_use]
    pub fn of(self, job: &Job) -> Self {
        let ping = job.case.work.is_ping();
        let windows = job.case.weights && !job.alone;
        let least = match job.case.work.kind {
            GuestKind::Kvm => LONG,
            _ if windows => LONG,
            _ if ping => WAKES,
            _ => Duration::ZERO,
        };
        let measure = self.measure.max(least);
        let settle = if job.alone { self.settle.min(SETTLE_ALONE) } else { self.settle };
        // A ping's latencies are of whole reports: its second one is counted.
        let settle = if job.case.work.reports_once() { settle.max(measure) } else { settle };
        Self { settle, measure, trace: if job.trace { self.trace } else { Duration::ZERO } }
    }

    /// About how long a cell takes.
    pub fn about(self, job: &Job) -> Duration {
        let times = self.of(job);
        times.settle + times.measure + times.trace + CELL
    }
}

/// One cell to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The case.
    pub case: Case,
    /// Under which scheduler; [`ALONE`] for the work alone.
    pub scheduler: String,
    /// Mechanisms of Instep that are off.
    pub without: Vec<String>,
    /// Whether scheduling is traced at the end.
    pub trace: bool,
    /// Nothing beside, and the default scheduler.
    pub alone: bool,
}

/// Cells that need one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// What is loaded: [`DEFAULT`] (nothing), [`INSTEP`], or a peer's program.
    pub program: String,
    /// The CPUs that its cases want.
    pub host: Shape,
    /// Which run, from 0.
    pub run: u32,
    /// Its cells, in order.
    pub jobs: Vec<Job>,
    /// How long things take.
    pub times: Times,
}

impl Block {
    /// About how long it takes on a machine that is not busy otherwise.
    pub fn about(&self) -> Duration {
        let load = if self.program == DEFAULT { Duration::ZERO } else { LOAD };
        self.jobs.iter().map(|job| self.times.about(job)).sum::<Duration>() + load
    }
}

/// Everything to run on hosts of one shape, run by run.
pub fn blocks(
    cases: &[Case],
    host: Shape,
    schedulers: &[Scheduler],
    runs: u32,
    times: Times,
) -> Vec<Block> {
    let cases: Vec<&Case> = cases.iter().filter(|case| case.host == host).collect();
    let mut programs: Vec<&str> = Vec::new();
    // The work alone is measured whoever takes part.
    for program in std::iter::once(DEFAULT).chain(schedulers.iter().map(Scheduler::program)) {
        if !programs.contains(&program) {
            programs.push(program);
        }
    }
    let block = |run: u32, program: &str| Block {
        program: program.to_owned(),
        host,
        run,
        jobs: cases
            .iter()
            .enumerate()
            .flat_map(|(place, case)| {
                let first = !cases[..place].iter().any(|before| before.is_same_alone(case));
                jobs(case, program, schedulers, run, first)
            })
            .collect(),
        times,
    };
    let of_run = |run: u32| {
        let turned = rotated(&programs, run as usize);
        turned.into_iter().map(move |program| block(run, program)).collect::<Vec<_>>()
    };
    (0..runs).flat_map(of_run).filter(|block| !block.jobs.is_empty()).collect()
}

/// The work of these jobs' cases alone, once each: for a machine that was booted in the middle.
pub fn alone(jobs: &[&Job]) -> Vec<Job> {
    let mut alone: Vec<Job> = Vec::new();
    for job in jobs {
        if !alone.iter().any(|known| known.case.is_same_alone(&job.case)) {
            alone.push(Job {
                case: job.case.clone(),
                scheduler: ALONE.to_owned(),
                without: Vec::new(),
                trace: false,
                alone: true,
            });
        }
    }
    alone
}

/// The cells of a case that one program serves; which is first rotates, too.
fn jobs(case: &Case, program: &str, schedulers: &[Scheduler], run: u32, first: bool) -> Vec<Job> {
    let job = |scheduler: &str, without: &[String], alone: bool| Job {
        case: case.clone(),
        scheduler: scheduler.to_owned(),
        without: without.to_vec(),
        trace: run == 0 && !alone,
        alone,
    };
    let mut jobs = Vec::new();
    if program == DEFAULT && first {
        jobs.push(job(ALONE, &[], true));
    }
    for scheduler in schedulers.iter().filter(|scheduler| scheduler.program() == program) {
        match &scheduler.kind {
            SchedulerKind::Instep { without } if !without.is_empty() && !case.ablate => {}
            SchedulerKind::Instep { without } => jobs.push(job(&scheduler.name, without, false)),
            _ => jobs.push(job(&scheduler.name, &[], false)),
        }
    }
    rotated(&jobs, run as usize)
}

/// The items, beginning with another one each time.
fn rotated<T: Clone>(items: &[T], by: usize) -> Vec<T> {
    let mut items = items.to_vec();
    if !items.is_empty() {
        let by = by % items.len();
        items.rotate_left(by);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const TIMES: Times = Times {
        settle: Duration::from_secs(1),
        measure: Duration::from_secs(2),
        trace: Duration::from_secs(1),
    };

    fn cases() -> Vec<Case> {
        let case = |name: &str, ablate: bool| {
            format!(
                "[[case]]\nname = '{name}'\nabout = 'x'\nablate = {ablate}\n\
                 work = {{ load = 'x {name}', vcpus = 1 }}\n"
            )
        };
        let text = [case("a", true), case("b", false)].concat();
        crate::case::parse(&text, Path::new("x")).unwrap()
    }

    fn schedulers(names: &[&str]) -> Vec<Scheduler> {
        names.iter().map(|name| Scheduler::of(name, &["gang"]).unwrap()).collect()
    }

    fn order(blocks: &[Block], run: u32) -> Vec<&str> {
        blocks.iter().filter(|block| block.run == run).map(|block| block.program.as_str()).collect()
    }

    #[test]
    fn each_run_starts_with_another_scheduler_and_runs_every_cell() {
        let schedulers = schedulers(&["default", "instep", "scx_a"]);
        let blocks = blocks(&cases(), Shape::default(), &schedulers, 3, TIMES);
        assert_eq!(order(&blocks, 0), ["default", "instep", "scx_a"]);
        assert_eq!(order(&blocks, 1), ["instep", "scx_a", "default"]);
        assert_eq!(order(&blocks, 2), ["scx_a", "default", "instep"]);
        for name in ["alone", "default", "instep", "scx_a"] {
            let count = |run| {
                let of_run = blocks.iter().filter(|block| block.run == run);
                of_run.flat_map(|block| &block.jobs).filter(|job| job.scheduler == name).count()
            };
            assert_eq!([count(0), count(1), count(2)], [2, 2, 2], "{name}");
        }
        let traced = |block: &Block| block.jobs.iter().any(|job| job.trace);
        assert!(blocks.iter().all(|block| traced(block) == (block.run == 0)));
    }

    #[test]
    fn variants_of_instep_run_only_on_cases_that_ask_for_them() {
        let schedulers = schedulers(&["instep", "instep-without-gang"]);
        let blocks = blocks(&cases(), Shape::default(), &schedulers, 2, TIMES);
        // Alone is measured although the default takes no part.
        assert_eq!(order(&blocks, 0), ["default", "instep"]);
        let jobs = |run: u32| {
            let block = blocks.iter().find(|b| b.program == INSTEP && b.run == run).unwrap();
            block
                .jobs
                .iter()
                .map(|j| format!("{} {}", j.case.name, j.scheduler))
                .collect::<Vec<_>>()
        };
        assert_eq!(jobs(0), ["a instep", "a instep-without-gang", "b instep"]);
        assert_eq!(jobs(1), ["a instep-without-gang", "a instep", "b instep"]);
    }

    #[test]
    fn the_same_work_is_measured_alone_once_a_run() {
        let mut cases = cases();
        cases[1].work = cases[0].work.clone();
        cases[1].work.weight = 500;
        let blocks = blocks(&cases, Shape::default(), &schedulers(&["default"]), 2, TIMES);
        let alone: Vec<&str> = blocks
            .iter()
            .flat_map(|block| &block.jobs)
            .filter(|job| job.alone)
            .map(|job| job.case.name.as_str())
            .collect();
        assert_eq!(alone, ["a", "a"]);
        let jobs: Vec<&Job> = blocks[0].jobs.iter().collect();
        assert_eq!(super::alone(&jobs).len(), 1);
    }

    #[test]
    fn times_are_longer_where_windows_and_tails_matter_and_shorter_alone() {
        let blocks =
            blocks(&cases(), Shape::default(), &schedulers(&["default", "scx_a"]), 1, TIMES);
        let ms = Duration::from_millis;
        let times = Times { settle: ms(1000), measure: ms(1200), trace: ms(500) };
        let job = |change: fn(&mut Job)| {
            let mut job = blocks[0].jobs.iter().find(|job| !job.alone).unwrap().clone();
            change(&mut job);
            let Times { settle, measure, trace } = times.of(&job);
            [settle, measure, trace].map(|time| time.as_millis())
        };
        assert_eq!(job(|_| {}), [1000, 1200, 500]);
        assert_eq!(job(|job| job.case.weights = true), [1000, 2000, 500]);
        assert_eq!(
            job(|job| job.case.work.load = "instep-load ping".to_owned()),
            [1500, 1500, 500]
        );
        assert_eq!(job(|job| job.case.work.kind = GuestKind::Kvm), [1000, 2000, 500]);
        assert_eq!(job(|job| (job.alone, job.trace) = (true, false)), [400, 1200, 0]);
        // Two cells, and what loading takes.
        let about: Vec<Duration> = blocks.iter().map(Block::about).collect();
        assert!(about[1] > 2 * (TIMES.settle + TIMES.measure) + LOAD, "{about:?}");
    }

    #[test]
    fn a_host_of_another_shape_has_no_cells_here() {
        let host = Shape { cores: 8, threads: 2 };
        assert!(blocks(&cases(), host, &schedulers(&["default"]), 1, TIMES).is_empty());
    }

    #[test]
    fn names_that_are_no_schedulers_are_refused() {
        for name in ["", "alone", "a b", "../x", "-x", "instep-without-luck"] {
            assert!(Scheduler::of(name, &["gang"]).is_err(), "{name}");
        }
        let error = Scheduler::of("instep-without-luck", &["gang", "pull"]).unwrap_err();
        assert!(error.to_string().contains("known are gang, pull"), "{error}");
    }
}
