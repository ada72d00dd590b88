//! `instep bench`: which cases and schedulers, where they run, and how the report is shown. Knows
//! nothing of how a cell is run or a figure made: the crate `bench` does.

pub(crate) mod agree;
pub(crate) mod cells;
mod emulated;
mod here;
mod pace;
mod peers;

use crate::args::BenchArgs;
use crate::lab::Progress;
use crate::pending::ensure_apart;
use crate::scenario_file::hinted_name;
use crate::{Outcome, Stamped, print, print_json, tell, writable};
use anyhow::Context as _;
use instep_bench::case::{Case, GuestKind};
use instep_bench::cell::BenchCell;
use instep_bench::cells_file::{self, Boot, Keeper, Kept, Order};
use instep_bench::plan::{DEFAULT, INSTEP, Scheduler, SchedulerKind, Times, WITHOUT};
use instep_bench::report::{BenchReport, SCHEMA};
use instep_bench::{builtin, page, table};
use instep_cli::programs::LABORATORY;
use instep_kernel::settings::MECHANISMS;
use instep_lab::Stop;
use instep_lab::host::busy::OtherWork;
use instep_lab::host::machine::Clock;
use instep_lab::scenario::run::LabOptions;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Who takes part when nobody is named.
const USUAL: [&str; 4] = ["default", "instep", "scx_cosmos", "scx_bpfland"];
/// The most that is read of an earlier report.
const MAX_REPORT: u64 = 64 << 20;

/// What is to be run.
#[derive(Debug)]
struct BenchOrder {
    cases: Vec<Case>,
    schedulers: Vec<Scheduler>,
    /// Programs of those that are no part of the kernel or Instep.
    peers: BTreeMap<String, PathBuf>,
    /// Those that cannot take part, and why.
    absent: BTreeMap<String, String>,
    runs: u32,
    times: Times,
    /// Whether scheduling is recorded at the end of every cell, not of the first run's only.
    recorded: bool,
    /// The emulated host's.
    clock: Clock,
    warnings: Vec<String>,
}

/// What came of it.
#[derive(Debug, Default)]
struct FinishedCells {
    kept: Kept,
    keeper: Option<Keeper>,
    warnings: Vec<String>,
}

impl FinishedCells {
    /// Goes on where a file ends, if one is named.
    fn begin(order: Order, resume: Option<&Path>) -> anyhow::Result<Self> {
        let mut finished = Self::default();
        if let Some(path) = resume {
            finished.kept = Kept::read(path)?;
            finished.kept.fits(&order, path)?;
            finished.keeper = Some(Keeper::open(path, &order)?);
        }
        finished.kept.ordered(order);
        Ok(finished)
    }

    /// A machine came up; its number.
    fn booted(&mut self, machine: Boot) -> anyhow::Result<u32> {
        let boot = self.kept.next_boot();
        let machine = Boot { boot, ..machine };
        if let Some(keeper) = &mut self.keeper {
            keeper.boot(&machine)?;
        }
        self.kept.boots.push(machine);
        Ok(boot)
    }

    /// A cell is finished.
    fn finished(&mut self, cell: BenchCell) -> anyhow::Result<()> {
        if let Some(keeper) = &mut self.keeper {
            keeper.cell(&cell)?;
        }
        self.kept.put(cell);
        Ok(())
    }

    /// The figures of all that is finished.
    fn report(self, warnings: &[String]) -> anyhow::Result<BenchReport> {
        let mut report = self.kept.report().context("nothing was to be run")?;
        let first = [warnings, &self.warnings].concat();
        report.warnings.splice(0..0, first);
        report.warnings.dedup();
        Ok(report)
    }
}

pub(crate) fn command(args: &BenchArgs) -> anyhow::Result<Outcome> {
    let read = args.from.iter().chain(&args.cases).chain(&args.resume).map(PathBuf::as_path);
    ensure_apart(&read.collect::<Vec<_>>(), args.html.as_deref().as_slice())?;
    if !args.from.is_empty() {
        return show(args, &earlier(&args.from)?);
    }
    let cases = cases(args)?;
    if args.list {
        return list(args, &cases);
    }
    if let Some(file) = &args.html {
        // Minutes of work are not lost to a directory that is not there.
        writable(file)?;
    }
    let mut wanted = wanted(args, cases)?;
    wanted.warnings.splice(0..0, other_work());
    // Before the minutes that this takes; the report has them, too.
    wanted.warnings.iter().for_each(|line| tell(line));
    let stop = Stop::on_signals()?;
    let outcome = show(args, &measured(wanted, args, &stop)?)?;
    if stop.raised() {
        tell("interrupted: the figures are of the cells that were finished");
        return Ok(Outcome::Finding);
    }
    Ok(outcome)
}

/// What to say of this machine's other work, before any of its own.
fn other_work() -> Option<String> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    OtherWork::measure()?.warning(cpus)
}

/// The cases that are asked for.
fn cases(args: &BenchArgs) -> anyhow::Result<Vec<Case>> {
    let all = builtin::with_files(&args.cases)?;
    let names: Vec<String> = all.iter().map(|case| case.name.clone()).collect();
    let known = || names.iter().map(String::as_str);
    for pattern in &args.case {
        builtin::chosen(all.clone(), std::slice::from_ref(pattern), false)
            .map_err(|error| hinted_name(error, pattern, known()))?;
    }
    let mut cases = builtin::chosen(all, &args.case, args.quick)?;
    if args.ablation {
        cases.retain(|case| case.ablate);
        anyhow::ensure!(!cases.is_empty(), "none of these cases is marked for --ablation");
    }
    Ok(cases)
}

/// What is to be run of these cases; which peers can be had is not known yet.
fn wanted(args: &BenchArgs, cases: Vec<Case>) -> anyhow::Result<BenchOrder> {
    let mut schedulers = schedulers(args)?;
    let warnings = if args.quick && args.schedulers.is_empty() {
        let has_program = |name: &str| {
            args.peers.iter().any(|(own, _)| own == name) || peers::built(name).is_some()
        };
        leave_out_unbuilt(&mut schedulers, has_program)
    } else {
        Vec::new()
    };
    Ok(BenchOrder {
        cases,
        schedulers,
        peers: BTreeMap::new(),
        absent: BTreeMap::new(),
        runs: args.runs.unwrap_or(if args.quick { 2 } else { 3 }),
        times: times(args),
        recorded: false,
        clock: Clock::Real,
        warnings,
    })
}

/// Takes out peers that have no program yet, as building them takes minutes; a line says how to have them
/// built. Only for peers that the user has not asked for by name.
fn leave_out_unbuilt(
    schedulers: &mut Vec<Scheduler>,
    has_program: impl Fn(&str) -> bool,
) -> Vec<String> {
    let all = named(schedulers);
    let is_unbuilt = |s: &Scheduler| s.kind == SchedulerKind::Peer && !has_program(&s.name);
    let (unbuilt, present): (Vec<_>, Vec<_>) = schedulers.drain(..).partition(is_unbuilt);
    *schedulers = present;
    if unbuilt.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "left out, as not built: {}; `instep bench --quick --schedulers {all}` builds them first, which \
         takes some minutes once",
        named(&unbuilt)
    )]
}

fn named(schedulers: &[Scheduler]) -> String {
    schedulers.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(",")
}

/// The schedulers that are asked for, each once: by name, then those that are programs of the user's.
fn schedulers(args: &BenchArgs) -> anyhow::Result<Vec<Scheduler>> {
    let mut schedulers = Vec::new();
    for name in &names(args) {
        let known = MECHANISMS.iter().map(|name| format!("instep-without-{name}"));
        let known: Vec<String> = known.collect();
        let scheduler = Scheduler::of(name, &MECHANISMS)
            .map_err(|error| hinted_name(error, name, known.iter().map(String::as_str)))?;
        if !schedulers.contains(&scheduler) {
            schedulers.push(scheduler);
        }
    }
    for (name, path) in &args.peers {
        anyhow::ensure!(path.is_file(), "--peer {name}: there is no file {}", path.display());
        let peer = Scheduler { name: name.clone(), kind: SchedulerKind::Peer };
        anyhow::ensure!(
            Scheduler::of(name, &MECHANISMS)? == peer,
            "--peer {name}: this name is taken; give the program another one"
        );
        if !schedulers.contains(&peer) {
            schedulers.push(peer);
        }
    }
    Ok(schedulers)
}

/// Runs all of it, with progress shown, here or in an emulated host.
fn measured(mut wanted: BenchOrder, args: &BenchArgs, stop: &Stop) -> anyhow::Result<BenchReport> {
    let progress = Progress::start();
    if args.here {
        here::check(&mut wanted)?;
    }
    find_peers(&mut wanted, args, stop, &progress)?;
    let ran = if args.here {
        here::run(&wanted, args, stop, &progress)
    } else {
        emulated::run(&mut wanted, &args.host, args.resume.as_deref(), stop, &progress)
    };
    drop(progress);
    ran?.report(&wanted.warnings)
}

/// The schedulers that are asked for, by name.
fn names(args: &BenchArgs) -> Vec<String> {
    if !args.schedulers.is_empty() {
        return args.schedulers.clone();
    }
    if args.ablation {
        let without = MECHANISMS.iter().map(|mechanism| format!("{WITHOUT}{mechanism}"));
        return [DEFAULT, INSTEP].map(str::to_owned).into_iter().chain(without).collect();
    }
    USUAL.map(str::to_owned).to_vec()
}

fn times(args: &BenchArgs) -> Times {
    let ms = Duration::from_millis;
    let (settle, measure) = (args.settle.unwrap_or(ms(800)), args.measure.unwrap_or(ms(1200)));
    Times { settle, measure, trace: ms(400) }
}

/// Finds or builds the programs of peers; one that cannot be had takes no part, and that is told.
fn find_peers(
    wanted: &mut BenchOrder,
    args: &BenchArgs,
    stop: &Stop,
    progress: &Progress,
) -> anyhow::Result<()> {
    let is_peer = |scheduler: &&Scheduler| scheduler.kind == SchedulerKind::Peer;
    let names: Vec<String> =
        wanted.schedulers.iter().filter(is_peer).map(|peer| peer.name.clone()).collect();
    for name in names {
        if let Some((_, path)) = args.peers.iter().find(|(given, _)| *given == name) {
            wanted.peers.insert(name, path.clone());
            continue;
        }
        match peers::program(&name, stop, progress) {
            Ok(path) => {
                wanted.peers.insert(name, path);
            }
            Err(instep_lab::Error::Interrupted) => anyhow::bail!("interrupted"),
            Err(error) => {
                wanted.absent.insert(name, error.to_string());
            }
        }
    }
    Ok(())
}

impl BenchOrder {
    /// What is to be run, with what tells builds of the programs apart.
    fn order(&self, options: &LabOptions) -> Order {
        let of = |path: &Path| {
            let meta = fs::metadata(path).ok()?;
            let time = meta.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
            Some(format!("{} bytes, {} s", meta.len(), time.as_secs()))
        };
        let peers = self.peers.iter().map(|(name, path)| (name.as_str(), path.as_path()));
        let builds = peers
            .chain([(INSTEP, options.instep.as_path()), (LABORATORY, &options.laboratory)])
            .filter_map(|(name, path)| Some((name.to_owned(), of(path)?)))
            .collect();
        Order {
            schema: cells_file::SCHEMA.to_owned(),
            cases: self.cases.clone(),
            schedulers: self.schedulers.clone(),
            absent: self.absent.clone(),
            runs: self.runs,
            times: self.times,
            builds,
        }
    }

    /// Those that can take part.
    fn present(&self) -> Vec<Scheduler> {
        let present = |s: &&Scheduler| !self.absent.contains_key(&s.name);
        self.schedulers.iter().filter(present).cloned().collect()
    }
}

/// What earlier runs printed, put together.
fn earlier(files: &[PathBuf]) -> anyhow::Result<BenchReport> {
    let read = |path: &Path| -> anyhow::Result<BenchReport> {
        let size =
            fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
        anyhow::ensure!(size <= MAX_REPORT, "{} is too large for a report", path.display());
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        if let Some(report) = Kept::parse(&text).and_then(Kept::report) {
            return Ok(report);
        }
        let report: BenchReport = serde_json::from_str(&text).with_context(|| {
            format!(
                "{} is neither output of bench --json nor cells kept by --resume",
                path.display()
            )
        })?;
        anyhow::ensure!(
            report.schema == SCHEMA,
            "{}: its schema is {:?}, not {SCHEMA}",
            path.display(),
            report.schema
        );
        Ok(report)
    };
    let mut all = read(&files[0])?;
    for path in &files[1..] {
        all.add(read(path)?);
    }
    Ok(all)
}

fn show(args: &BenchArgs, report: &BenchReport) -> anyhow::Result<Outcome> {
    if let Some(file) = &args.html {
        fs::write(file, page::page(report))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if args.json {
        print_json(&Stamped::new(report, None))?
    } else {
        print(&table::table(report))?
    }
    Ok(if report.is_complete() { Outcome::Fine } else { Outcome::Finding })
}

/// What `bench --list --json` prints: schema instep.bench.list/1.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "BenchList")]
pub(crate) struct BenchListJson<'a> {
    #[schemars(extend("const" = "instep.bench.list/1"))]
    schema: &'static str,
    cases: Vec<ListedCase<'a>>,
}

#[derive(JsonSchema, Serialize)]
struct ListedCase<'a> {
    name: &'a str,
    about: &'a str,
    cpus: u32,
    /// The part of the host that the work is entitled to.
    share: f64,
    quick: bool,
    ablate: bool,
    kind: GuestKind,
    load: &'a str,
}

impl<'a> ListedCase<'a> {
    fn of(case: &'a Case) -> Self {
        let cpus = case.host.cpus();
        let Case { name, about, quick, ablate, work, .. } = case;
        let share = case.share(cpus);
        Self {
            name,
            about,
            cpus,
            share,
            quick: *quick,
            ablate: *ablate,
            kind: work.kind,
            load: &work.load,
        }
    }
}

fn list(args: &BenchArgs, cases: &[Case]) -> anyhow::Result<Outcome> {
    if args.json {
        let cases = cases.iter().map(ListedCase::of).collect();
        print_json(&BenchListJson { schema: "instep.bench.list/1", cases })?;
        return Ok(Outcome::Fine);
    }
    let mut text = String::new();
    for case in cases {
        let mark = if case.quick { "quick" } else { "" };
        text.push_str(&format!("{:22} {mark:5} {}\n", case.name, case.about));
    }
    print(&text)?;
    Ok(Outcome::Fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> BenchOrder {
        let ms = Duration::from_millis;
        BenchOrder {
            cases: builtin::chosen(builtin::cases().unwrap(), &["compute-50".to_owned()], false)
                .unwrap(),
            schedulers: USUAL.map(|name| Scheduler::of(name, &MECHANISMS).unwrap()).to_vec(),
            peers: BTreeMap::new(),
            absent: [("scx_bpfland".to_owned(), "no clang".to_owned())].into(),
            runs: 2,
            times: Times { settle: ms(1), measure: ms(1), trace: ms(1) },
            recorded: false,
            clock: Clock::Real,
            warnings: Vec::new(),
        }
    }

    fn report(wanted: &BenchOrder, cells: Vec<BenchCell>) -> BenchReport {
        let mut finished =
            FinishedCells::begin(wanted.order(&LabOptions::default()), None).unwrap();
        cells.into_iter().for_each(|cell| finished.finished(cell).unwrap());
        finished.report(&wanted.warnings).unwrap()
    }

    fn cell(scheduler: &str, rate: Option<f64>) -> BenchCell {
        let failed = rate.is_none().then(|| "the scheduler ended".to_owned());
        let (case, scheduler) = ("compute-50".to_owned(), scheduler.to_owned());
        BenchCell { case, scheduler, rate, failed, ..BenchCell::default() }
    }

    #[test]
    fn unbuilt_peer_is_left_out_with_line_that_says_how_to_build_it() {
        let mut schedulers = wanted().schedulers;
        let lines = leave_out_unbuilt(&mut schedulers, |name| name == "scx_bpfland");
        assert_eq!(named(&schedulers), "default,instep,scx_bpfland");
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("not built: scx_cosmos;") && lines[0].contains(&USUAL.join(",")));
        assert_eq!(leave_out_unbuilt(&mut schedulers, |_| true), Vec::<String>::new());
    }

    #[test]
    fn scheduler_that_did_not_take_part_is_reported_with_reason() {
        let cells = vec![
            cell("alone", Some(10.0)),
            cell("default", Some(5.0)),
            cell("instep", Some(5.0)),
            BenchCell { run: 1, ..cell("instep", None) },
            cell("scx_cosmos", None),
        ];
        let report = report(&wanted(), cells);
        let why =
            |name: &str| report.schedulers.iter().find(|s| s.name == name).unwrap().why_not.clone();
        assert_eq!((why("default"), why("instep")), (None, None));
        assert_eq!(why("scx_cosmos").as_deref(), Some("the scheduler ended"));
        assert_eq!(why("scx_bpfland").as_deref(), Some("no clang"));
        assert!(!report.is_complete());
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["schema"], "instep.bench/1");
        assert_eq!(value["cases"][0]["results"]["default"]["fair_share_speed"]["median"], 1.0);
    }

    #[test]
    fn earlier_reports_are_put_together_and_what_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.json");
        let report = report(&wanted(), vec![cell("alone", Some(1.0))]);
        fs::write(&file, serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(earlier(&[file.clone(), file.clone()]).unwrap().cases.len(), 1);
        let kept = dir.path().join("a.cells");
        let mut finished =
            FinishedCells::begin(wanted().order(&LabOptions::default()), Some(&kept)).unwrap();
        finished.finished(cell("alone", Some(2.0))).unwrap();
        let from_kept = earlier(std::slice::from_ref(&kept)).unwrap();
        assert_eq!(from_kept.cases[0].alone.as_ref().unwrap().median, 2.0);
        fs::write(&file, "{}").unwrap();
        let error = earlier(std::slice::from_ref(&file)).unwrap_err();
        assert!(
            format!("{error:#}")
                .contains("a.json is neither output of bench --json nor cells kept by --resume"),
            "{error:#}"
        );
    }
}
