//! `instep bench` in the lab: boots an emulated host for each shape that cases want, and one with the
//! guests of those that have any, and has it run block after block, taking each cell as it comes.
//!
//! An emulated kernel that dies (loading a scheduler patches its code, which QEMU does not always
//! survive) costs the cell it was in: the host boots anew, the work alone is measured again, for
//! speeds are compared within a boot only, and the rest of the block follows.

use super::cells;
use super::pace::Pace;
use super::{BenchOrder, FinishedCells};
use crate::args::LabHostArgs;
use crate::lab::{self, Progress};
use instep_bench::case::{Case, GuestKind, Shape};
use instep_bench::cell::{self, ALONE, BenchCell};
use instep_bench::cells_file::Boot;
use instep_bench::here::guest_command;
use instep_bench::plan::{self, Block, Job};
use instep_lab::host::busy::CpuWait;
use instep_lab::host::machine::{Clock, HostMachine, Hypervisor};
use instep_lab::host::programs;
use instep_lab::scenario::guests;
use instep_lab::scenario::run::{Kit, Running};
use instep_lab::scenario::{GuestPlan, Scenario, Start};
use instep_lab::{Error, Stop};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// How often a host is booted for one group of cases, at most.
const BOOTS: u32 = 6;
/// A cell in which the host was lost so often is given up.
const LOSSES: u32 = 2;
/// How long a host may take to come up with its guests.
const UP: Duration = Duration::from_secs(600);
/// Memory of a host and of each of its guests, in MiB.
const HOST_MIB: u64 = 1280;
const GUEST_MIB: u64 = 112;
/// What a cell takes beside its own times, at most, by the host's clock.
const CELL: Duration = Duration::from_secs(45);
/// What loading and unloading takes, at most.
const LOAD: Duration = Duration::from_secs(180);
/// What booting takes, and each guest, for estimates.
const BOOT: Duration = Duration::from_secs(12);
const GUEST: Duration = Duration::from_secs(9);

pub(super) fn run(
    wanted: &mut BenchOrder,
    host: &LabHostArgs,
    resume: Option<&Path>,
    stop: &Stop,
    progress: &Progress,
) -> anyhow::Result<FinishedCells> {
    let programs = programs(wanted);
    anyhow::ensure!(!wanted.cases.is_empty(), "no case is left that can run here");
    let options = lab::options(host, None)?;
    if options.load.is_none() {
        let next = "run `cargo xtask load`, or give --load FILE";
        return Err(Error::missing("instep-load is not built", next).into());
    }
    let mut finished = FinishedCells::begin(wanted.order(&options), resume)?;
    let done = finished.kept.done();
    let mut groups = groups(wanted, &programs);
    groups.iter_mut().for_each(|group| group.resume(&done));
    groups.retain(|group| !group.blocks.is_empty());
    if groups.is_empty() {
        return Ok(finished);
    }
    let cells = groups.iter().map(Group::cells).sum();
    let all = groups.iter().map(Group::about).sum();
    let mut pace = Pace::begin(cells, groups.len(), all, finished.keeper.is_some());
    let kit = Kit::obtain(&options, stop, &mut |said| progress.say(said))?;
    for group in groups {
        let mut bench =
            Bench { kit: &kit, group, wanted, stop, progress, pace: &mut pace, boot: 0 };
        match bench.all(&mut finished) {
            Ok(()) => {}
            // What was measured before is not lost.
            Err(error) if matches!(error.downcast_ref(), Some(Error::Interrupted)) => break,
            Err(error) if finished.kept.cells.is_empty() => return Err(error),
            Err(error) => finished.warnings.push(format!("the lab ended early: {error:#}")),
        }
    }
    Ok(finished)
}

/// Cases that run on one host.
struct Group {
    scenario: Scenario,
    /// What is left to run.
    blocks: Vec<Block>,
    /// Whether some of it was run before, in another boot.
    begun: bool,
}

/// Those of each shape, apart whether they have guests: guests take long to boot and should not have
/// to again when loading a scheduler kills the host.
fn groups(wanted: &BenchOrder, programs: &[String]) -> Vec<Group> {
    let kinds: BTreeSet<(Shape, bool)> =
        wanted.cases.iter().map(|case| (case.host, case.has_guests())).collect();
    let group = |(shape, guests): (Shape, bool)| {
        let is_of = |case: &&Case| case.host == shape && case.has_guests() == guests;
        let cases: Vec<Case> = wanted.cases.iter().filter(is_of).cloned().collect();
        let scenario = scenario(shape, wanted.clock, &cases, programs);
        let present = wanted.present();
        let mut blocks = plan::blocks(&cases, shape, &present, wanted.runs, wanted.times);
        if wanted.recorded {
            let jobs = blocks.iter_mut().flat_map(|block| &mut block.jobs);
            jobs.for_each(|job| job.trace = !job.alone);
        }
        Group { scenario, blocks, begun: false }
    };
    kinds.into_iter().map(group).collect()
}

impl Group {
    /// Leaves out what is done: cells, and the work alone of runs that nothing is left of.
    fn resume(&mut self, done: &BTreeSet<(String, String, u32)>) {
        let is_done = |job: &Job, run: u32| {
            done.contains(&(job.case.name.clone(), job.scheduler.clone(), run))
        };
        for block in &mut self.blocks {
            let before = block.jobs.len();
            let run = block.run;
            block.jobs.retain(|job| job.alone || !is_done(job, run));
            self.begun |= block.jobs.len() < before;
        }
        let left: Vec<(u32, Job)> = self.left().map(|(run, job)| (run, job.clone())).collect();
        for block in &mut self.blocks {
            let run = block.run;
            let of = |job: &Job| {
                left.iter().any(|(of, other)| *of == run && other.case.is_same_alone(&job.case))
            };
            block.jobs.retain(|job| !job.alone || of(job));
        }
        self.blocks.retain(|block| !block.jobs.is_empty());
    }

    /// Cells that are left, without the work alone, and their run.
    fn left(&self) -> impl Iterator<Item = (u32, &Job)> {
        self.blocks.iter().flat_map(|block| {
            block.jobs.iter().filter(|job| !job.alone).map(move |job| (block.run, job))
        })
    }

    fn cells(&self) -> usize {
        self.blocks.iter().map(|block| block.jobs.len()).sum()
    }

    fn boots(&self) -> Duration {
        BOOT + GUEST * self.scenario.guest.len() as u32
    }

    /// About how long it takes.
    fn about(&self) -> Duration {
        self.boots() + self.blocks.iter().map(Block::about).sum::<Duration>()
    }
}

/// The programs of this machine that cases need, those left out that are not found, with the cases.
fn programs(wanted: &mut BenchOrder) -> Vec<String> {
    let mut all = BTreeSet::new();
    let mut missing: BTreeMap<String, String> = BTreeMap::new();
    for case in &wanted.cases {
        for (_, work) in case.all() {
            let own = work.program().filter(|_| work.kind != GuestKind::Kvm).map(str::to_owned);
            for name in own.into_iter().chain(work.programs.iter().cloned()) {
                // Busybox has the rest.
                match programs::find(&name) {
                    Ok(_) if work.kind == GuestKind::Kvm => {}
                    Ok(_) => {
                        all.insert(name);
                    }
                    Err(error) => {
                        missing.insert(case.name.clone(), error.to_string());
                    }
                }
            }
        }
    }
    wanted.cases.retain(|case| !missing.contains_key(&case.name));
    let told = missing.iter().map(|(case, why)| format!("{case} is left out: {why}"));
    wanted.warnings.extend(told);
    all.extend(wanted.peers.values().map(|path| path.display().to_string()));
    all.into_iter().collect()
}

/// The host of a shape, with the guests of its cases.
fn scenario(shape: Shape, clock: Clock, cases: &[Case], programs: &[String]) -> Scenario {
    let mut guests: BTreeMap<String, GuestPlan> = BTreeMap::new();
    for case in cases {
        for (name, work) in case.guests() {
            let plan = GuestPlan {
                name: name.clone(),
                vcpus: work.vcpus,
                memory_mib: GUEST_MIB,
                touch_mib: 0,
                weight: Some(work.weight),
                load: guest_command(work),
                programs: work.programs.clone(),
                process: false,
                hugepages: false,
                later: false,
                start: Start::default(),
            };
            guests.insert(name, plan);
        }
    }
    let memory_mib = HOST_MIB + guests.len() as u64 * (GUEST_MIB + 48);
    Scenario {
        name: "bench".to_owned(),
        about: "schedulers side by side".to_owned(),
        host: HostMachine {
            nodes: 1,
            sockets: None,
            cores: shape.cores,
            threads: shape.threads,
            memory_mib,
            distance: None,
            distances: None,
            hypervisor: Hypervisor::Kvm,
            scheduler: None,
            numa_balancing: false,
            clock,
        },
        programs: programs.to_vec(),
        limit: UP,
        guest: guests.into_values().collect(),
        step: Vec::new(),
    }
}

/// All blocks of one group.
struct Bench<'a> {
    kit: &'a Kit,
    group: Group,
    wanted: &'a BenchOrder,
    stop: &'a Stop,
    progress: &'a Progress,
    pace: &'a mut Pace,
    /// The number of the boot that is up.
    boot: u32,
}

impl Bench<'_> {
    fn all(&mut self, finished: &mut FinishedCells) -> anyhow::Result<()> {
        let mut boots = 0;
        let mut running = None;
        let mut losses: BTreeMap<(String, String, u32), u32> = BTreeMap::new();
        while !self.group.blocks.is_empty() {
            self.stop.check()?;
            let mut host = match running.take() {
                Some(host) => host,
                None if boots >= BOOTS => anyhow::bail!("the emulated host was lost {boots} times"),
                None => {
                    boots += 1;
                    self.boot(boots, finished)?
                }
            };
            // Booting may have changed what is left.
            let Some(block) = self.group.blocks.first().cloned() else { break };
            self.pace.block(
                &format!(
                    "run {} under {}, {} cells",
                    block.run + 1,
                    block.program,
                    block.jobs.len()
                ),
                self.progress,
            );
            match self.block(&block, &mut host, finished) {
                Ok(()) => {
                    self.group.blocks.remove(0);
                    running = Some(host);
                }
                Err(error) if matches!(error.downcast_ref(), Some(Error::Interrupted)) => {
                    return Err(error);
                }
                Err(error) => self.lost(&error, host, &mut losses, finished)?,
            }
        }
        Ok(())
    }

    /// The host is gone: keeps what it said, and gives up the cell it was in if that was not the first
    /// time. What is left goes on with another boot.
    fn lost(
        &mut self,
        error: &anyhow::Error,
        mut host: Running,
        losses: &mut BTreeMap<(String, String, u32), u32>,
        finished: &mut FinishedCells,
    ) -> anyhow::Result<()> {
        let place = self.kit.keep_consoles(&mut host, &self.group.scenario, self.stop);
        let first = error.to_string();
        let first = first.lines().next().unwrap_or_default();
        let first = first.strip_suffix("; it last said:").unwrap_or(first).to_owned();
        self.progress
            .say(&format!("{first}; the consoles are in {}\nbooting it again", place.display()));
        self.group.begun = true;
        let Some(block) = self.group.blocks.first_mut() else { return Ok(()) };
        let Some(job) = block.jobs.first().cloned() else { return Ok(()) };
        finished.warnings.push(format!(
            "the emulated host was lost in run {} under {}, in or before {} ({first}); it was booted again",
            block.run + 1,
            job.scheduler,
            job.case.name
        ));
        let lost =
            losses.entry((job.case.name.clone(), job.scheduler.clone(), block.run)).or_default();
        *lost += 1;
        if *lost >= LOSSES {
            block.jobs.remove(0);
            let cell = BenchCell {
                case: job.case.name,
                scheduler: job.scheduler,
                run: block.run,
                boot: self.boot,
                failed: Some(format!("the emulated host was lost {lost} times in it: {first}")),
                ..BenchCell::default()
            };
            finished.finished(cell)?;
        }
        if block.jobs.is_empty() {
            self.group.blocks.remove(0);
        }
        Ok(())
    }

    /// Boots the host and its guests; each guest is frozen once it is up. In the middle, the work of
    /// what is left is measured alone first.
    fn boot(&mut self, number: u32, finished: &mut FinishedCells) -> anyhow::Result<Running> {
        let scenario = &self.group.scenario;
        let guests = scenario.guest.len();
        self.progress
            .say(&format!("booting a host of {} CPUs with {guests} guests", scenario.host.cpus()));
        let life = (self.group.about() * 6).max(Duration::from_secs(3600));
        let up = |attempt: u32, say: &mut dyn FnMut(&str)| {
            if attempt > 1 {
                say("booting it again");
            }
            let mut running = self.kit.boot_for(scenario, life, None, self.stop, say)?;
            if guests > 0 {
                running.host.succeed(&freezer(scenario), Duration::from_secs(30), self.stop)?;
                running.start_guests(scenario, self.stop)?;
            }
            Ok(running)
        };
        let mut say = |said: &str| self.progress.say(said);
        let mut running = instep_lab::scenario::run::again(self.stop, &mut say, up)?;
        if !running.restarted().is_empty() {
            let names = running.restarted().join(", ");
            finished.warnings.push(format!("hung or died at boot, started again: {names}"));
        }
        self.boot = finished.booted(Boot {
            kernel: running.kernel.clone(),
            machine: format!(
                "an emulated host by {} ({}), {} clock",
                running.accel.name(),
                running.accel.why,
                match scenario.host.clock {
                    Clock::Real => "real",
                    Clock::Counted => "counted",
                }
            ),
            does_not_show: scenario.host.clock.does_not_show().to_owned(),
            booted: true,
            ..Boot::default()
        })?;
        if number == 1 {
            self.pace.done(self.group.boots());
        }
        if self.group.begun
            && let Some(block) = self.group.blocks.first()
        {
            let left: Vec<&Job> = self.group.left().map(|(_, job)| job).collect();
            let before = Block {
                program: plan::DEFAULT.to_owned(),
                jobs: plan::alone(&left),
                ..block.clone()
            };
            let run = block.run;
            // It stands for the work alone of this run.
            for block in self.group.blocks.iter_mut().filter(|block| block.run == run) {
                block.jobs.retain(|job| !job.alone);
            }
            self.group.blocks.retain(|block| !block.jobs.is_empty());
            self.block(&before, &mut running, finished)?;
        }
        Ok(running)
    }

    /// Has the host run a block and takes each cell as it comes; those that came are taken off the
    /// group's first block.
    fn block(
        &mut self,
        block: &Block,
        host: &mut Running,
        finished: &mut FinishedCells,
    ) -> anyhow::Result<()> {
        let inside = |path: &std::path::PathBuf| {
            std::path::Path::new("/usr/bin").join(path.file_name().unwrap_or_default())
        };
        let peers = self.wanted.peers.iter().map(|(name, path)| (name.clone(), inside(path)));
        let order = cells::Order { block: block.clone(), peers: peers.collect(), boot: self.boot };
        let most = |job: &Job| block.times.about(job) + CELL;
        let all: Duration = block.jobs.iter().map(most).sum::<Duration>() + LOAD;
        host.host.succeed(&cells::begin(&order, all)?, Duration::from_secs(60), self.stop)?;
        let mut came_here = 0;
        let mut limit = LOAD + CELL;
        let mut before = CpuWait::read(host.host.pid());
        let status = loop {
            let line = host.host.succeed(cells::NEXT, limit, self.stop)?;
            if let Some(status) = cells::ended(&line).map(str::to_owned) {
                break status;
            }
            let (cells, bad) = cell::parse_lines(&line);
            anyhow::ensure!(
                bad == 0,
                "the host printed a line that is no cell: {}",
                line.trim_end()
            );
            let now = CpuWait::read(host.host.pid());
            let diluted = now.since(std::mem::replace(&mut before, now));
            for cell in cells {
                let Some(job) = block.jobs.get(came_here) else { break };
                // The others of this boot would lack it, too.
                anyhow::ensure!(!cell.stopped, "{}", cell.failed.unwrap_or_default());
                came_here += 1;
                let cell = BenchCell { diluted, ..cell };
                self.pace.cell(&cell, block.times.about(job), self.progress);
                self.take_off(block, &cell);
                finished.finished(cell)?;
            }
            // The next one may have to load its scheduler anew.
            limit = block.jobs.get(came_here).map_or(CELL, most) + LOAD;
        };
        let said = host.host.succeed(cells::END, Duration::from_secs(30), self.stop)?;
        if status != "0" || came_here < block.jobs.len() {
            let last = said.trim().lines().last().unwrap_or("it said nothing").to_owned();
            let text =
                format!("a block under {} ended with status {status}: {last}", block.program);
            finished.warnings.push(text);
        }
        for job in block.jobs.iter().skip(came_here).filter(|job| job.scheduler != ALONE) {
            finished.finished(BenchCell {
                case: job.case.name.clone(),
                scheduler: job.scheduler.clone(),
                run: block.run,
                boot: self.boot,
                failed: Some("its block ended before".to_owned()),
                ..BenchCell::default()
            })?;
        }
        Ok(())
    }

    /// Takes a finished cell off what is left.
    fn take_off(&mut self, block: &Block, cell: &BenchCell) {
        let of = |own: &&mut Block| own.run == block.run && own.program == block.program;
        if let Some(own) = self.group.blocks.iter_mut().find(of) {
            own.jobs.retain(|job| job.case.name != cell.case || job.scheduler != cell.scheduler);
        }
    }
}

/// The script that freezes each guest once it is up: none runs outside its cells.
fn freezer(scenario: &Scenario) -> String {
    let names: Vec<&str> = scenario.guest.iter().map(|guest| guest.name.as_str()).collect();
    guests::freeze_when_up(&names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_bench::builtin;
    use instep_bench::plan::{Scheduler, Times};

    fn wanted(cases: &[Case], runs: u32) -> BenchOrder {
        let ms = Duration::from_millis;
        BenchOrder {
            cases: cases.to_vec(),
            schedulers: vec![Scheduler::of("default", &[]).unwrap()],
            peers: BTreeMap::new(),
            absent: BTreeMap::new(),
            runs,
            times: Times { settle: ms(1), measure: ms(1), trace: ms(1) },
            recorded: false,
            clock: Clock::Real,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn cases_share_the_guests_that_they_have_in_common() {
        let cases = builtin::chosen(builtin::cases().unwrap(), &["kvm-*-50".to_owned()], false);
        let cases = cases.unwrap();
        let host = scenario(Shape::default(), Clock::Real, &cases, &[]);
        let each: usize = cases.iter().map(|case| case.guests().len()).sum();
        assert!(host.guest.len() < each && host.guest.len() > cases.len(), "{}", host.guest.len());
        assert!(host.host.memory_mib > HOST_MIB && host.host.check().is_ok());
        let words = freezer(&host);
        assert!(host.guest.iter().all(|guest| words.contains(&guest.name)), "{words}");
        // What the lab itself demands of guests holds.
        assert!(host.guest.iter().all(|guest| guest.name.len() <= 20));
    }

    #[test]
    fn only_cases_with_guests_wait_for_guests_to_boot() {
        let cases = builtin::cases().unwrap();
        let groups = groups(&wanted(&cases, 1), &[]);
        let guests: Vec<bool> = groups.iter().map(|g| !g.scenario.guest.is_empty()).collect();
        assert_eq!(guests.iter().filter(|guests| **guests).count(), 1);
        let of: usize = groups.iter().map(|group| group.left().count()).sum();
        assert_eq!(of, cases.len());
    }

    #[test]
    fn finished_cells_are_not_run_again() {
        let cases = ["compute-50", "compute-25", "lock-mutex-50"].map(str::to_owned);
        let cases = builtin::chosen(builtin::cases().unwrap(), &cases, false).unwrap();
        let mut group = groups(&wanted(&cases, 2), &[]).remove(0);
        // In each run two works alone and three cells.
        assert_eq!((group.cells(), group.begun), (10, false));
        let done = |case: &str, run: u32| (case.to_owned(), "default".to_owned(), run);
        group.resume(&[done("compute-50", 0), done("compute-25", 0), done("compute-50", 1)].into());
        let left: Vec<String> = group
            .blocks
            .iter()
            .flat_map(|b| {
                b.jobs.iter().map(|j| format!("{} {} {}", b.run, j.case.name, j.scheduler))
            })
            .collect();
        // The work alone of compute-50 is that of compute-25.
        let mut sorted = left.clone();
        sorted.sort();
        assert_eq!(
            sorted,
            [
                "0 lock-mutex-50 alone",
                "0 lock-mutex-50 default",
                "1 compute-25 default",
                "1 compute-50 alone",
                "1 lock-mutex-50 alone",
                "1 lock-mutex-50 default",
            ]
        );
        assert!(group.begun, "another boot measures the work alone first");
    }
}
