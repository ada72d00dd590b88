//! `instep lab`: scenarios on real kernels in an emulated host; the work is the crate `lab`'s.

mod shell;

use crate::args::{LabCommand, LabHostArgs, LabListArgs, LabRunArgs};
use crate::pending::ensure_apart;
use crate::scenario_file::{Reader, all_built_in, built_in, hinted};
use crate::text::{indented, plural, printable, ranges, terminal_width, width, wrapped};
use crate::{Outcome, Stamped, print, print_json, tell, writable};
use anyhow::Context as _;
use indicatif::ProgressBar;
use instep_cli::programs;
use instep_lab::cache::Cache;
use instep_lab::scenario::Scenario;
use instep_lab::scenario::report::LabReport;
use instep_lab::scenario::run::{LabOptions, run};
use instep_lab::{Error, Stop, doctor, page};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What `lab clean` removes of the cache.
const CLEANED: [&str; 9] =
    ["kernels", "xen", "emulators", "images", "failures", "tools", "kvm", "peers", "demo.html"];

pub(crate) fn command(command: LabCommand) -> anyhow::Result<Outcome> {
    match command {
        LabCommand::Run(args) => run_scenario(&args),
        LabCommand::Shell(args) => shell::command(&args),
        LabCommand::List(args) => list(&args),
        LabCommand::Doctor(args) => doctor(args.json),
        LabCommand::Clean => clean(),
        LabCommand::Anchor => anchor(),
    }
}

/// Holds what keeps a kernel's code as it is until this process is ended; says what it lacks of it, and that it
/// holds the rest.
fn anchor() -> anyhow::Result<Outcome> {
    let lacks = instep_lab::host::anchor::hold();
    let lacks: String = lacks.iter().map(|error| format!("{error}\n")).collect();
    print(&format!("{lacks}held\n"))?;
    loop {
        std::thread::park();
    }
}

/// What the options of every emulated host ask for.
pub(crate) fn options(args: &LabHostArgs, keep: Option<PathBuf>) -> anyhow::Result<LabOptions> {
    let (instep, laboratory) = (programs::find_instep()?, programs::own_path()?);
    let load = args.load.clone().or_else(|| built_load(&laboratory));
    let (kernel, modules) = (args.kernel.clone(), args.modules.clone());
    Ok(LabOptions { kernel, modules, load, instep, laboratory, keep, accel: args.accel })
}

/// The static `instep-load` beside this program, or where `cargo xtask load` puts it.
pub(crate) fn built_load(own: &Path) -> Option<PathBuf> {
    let beside = own.with_file_name("instep-load");
    let target = own.parent()?.parent()?;
    let built = target.join("x86_64-unknown-linux-gnu/release/instep-load");
    [built, beside].into_iter().find(|path| is_static(path))
}

fn is_static(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|bytes| instep_lab::image::is_static_elf(&bytes))
}

fn run_scenario(args: &LabRunArgs) -> anyhow::Result<Outcome> {
    let scenario = load(&args.file)?;
    anyhow::ensure!(
        !scenario.step.is_empty(),
        "{} has no [[step]], so nothing would be shown: is it cut? (`instep lab shell FILE` boots it)",
        args.file.display()
    );
    if let Some(page) = &args.html {
        // A run is not lost to a directory that is not there.
        ensure_apart(&[&args.file], &[page])?;
        writable(page)?;
    }
    if let Some(dir) = &args.keep {
        std::fs::create_dir_all(dir).with_context(|| {
            format!("--keep {}: cannot make this directory; name another", dir.display())
        })?;
        writable(&dir.join("report.json"))?;
    }
    let stop = Stop::on_signals()?;
    let progress = Progress::start();
    let options = options(&args.host, args.keep.clone())?;
    let report = match run(&scenario, &options, &stop, &mut |said: &str| progress.say(said)) {
        Ok(report) => report,
        Err(Error::Interrupted) => return Ok(interrupted(progress)),
        Err(error) => return Err(error.into()),
    };
    drop(progress);
    if let Some(path) = &args.html {
        std::fs::write(path, page::draw(&report, &page::Words::default()))
            .with_context(|| format!("cannot write the page {}", path.display()))?;
    }
    if args.json {
        print_json(&Stamped::new(&report, None))?;
    } else {
        print(&drawn(&report, width()))?;
    }
    Ok(if report.held { Outcome::Fine } else { Outcome::Finding })
}

/// Reads a scenario, by file or built-in name. The error for a file that is no scenario says what the file may be.
fn load(file: &Path) -> anyhow::Result<Scenario> {
    match built_in(file, Reader::Lab) {
        Some(text) => Scenario::parse(text, &file.to_string_lossy()).map_err(anyhow::Error::msg),
        None => Scenario::load(file).map_err(|error| hinted(error.into(), file, Reader::Lab)),
    }
}

/// Said last: the spinner clears its line when it ends.
fn interrupted(progress: Progress) -> Outcome {
    drop(progress);
    tell("interrupted: everything is ended and removed");
    Outcome::Finding
}

/// Text in lines of this width, each with its end. What scenarios, hosts and guests say shall not
/// steer the terminal.
fn folded(text: &str, width: usize) -> String {
    indented(&wrapped(&plain(text), width), 0)
}

/// Text on one line without what steers a terminal.
fn plain(text: &str) -> String {
    printable(&text.replace('\n', " "))
}

/// A report for people.
fn drawn(report: &LabReport, width: usize) -> String {
    let seconds = &report.seconds;
    let mut text = folded(&format!("{}: {}", report.scenario, report.about), width);
    text.push_str(&folded(
        &format!(
            "kernel {}; host up after {:.1}s, guests {:.1}s later, {:.1}s in all",
            report.kernel, seconds.host_up, seconds.guests_up, seconds.total
        ),
        width,
    ));
    let accel = format!("by {}: {}", report.accel.name(), report.accel.why);
    text.push_str(&folded(&accel, width));
    let clock = &report.clock;
    let kind = format!("{:?}", clock.kind).to_lowercase();
    let worth = format!("clock {kind}: shows {}; not {}", clock.shows, clock.does_not_show);
    text.push_str(&folded(&worth, width));
    if report.attempts > 1 {
        let line = format!(
            "begun {} times: before, it was too slow, or the host or a guest died",
            report.attempts
        );
        text.push_str(&folded(&line, width));
    }
    if !report.restarted.is_empty() {
        let names = report.restarted.join(", ");
        let line = format!("hung or died at boot under emulation, started again: {names}");
        text.push_str(&folded(&line, width));
    }
    for (name, seen) in &report.observations {
        text.push_str(&format!("\n{}:\n", plain(name)));
        for guest in &seen.guests {
            let mut on: Vec<u32> = guest.vcpus().map(|vcpu| vcpu.cpu).collect();
            on.sort_unstable();
            let memory: Vec<String> =
                guest.memory_bytes_by_node.iter().map(|bytes| (bytes >> 20).to_string()).collect();
            let line = format!(
                "{}: may use nodes {}, on CPUs {}; MiB by node {}, {:.0}% local",
                guest.name,
                ranges(&guest.nodes),
                ranges(&on),
                memory.join(" + "),
                guest.locality * 100.0
            );
            text.push_str(&indented(&wrapped(&plain(&line), width.saturating_sub(2)), 2));
        }
    }
    text.push('\n');
    for check in &report.checks {
        let mark = if check.held { "held  " } else { "FAILED" };
        let line = format!("{mark} {} ({}): {}", check.what, check.about.trim(), check.found);
        text.push_str(&folded(&line, width));
    }
    for file in &report.files {
        text.push_str(&format!("kept: {}\n", plain(file)));
    }
    let failed = report.checks.iter().filter(|check| !check.held).count();
    let all = report.checks.len();
    text.push_str(&match failed {
        0 => format!("{all} of {} held\n", plural(all, "check")),
        _ => format!("{failed} of {} FAILED\n", plural(all, "check")),
    });
    text
}

/// What `lab list --json` prints: schema instep.lab.list/1.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "LabList")]
pub(crate) struct LabListJson<'a> {
    #[schemars(extend("const" = "instep.lab.list/1"))]
    schema: &'static str,
    scenarios: Vec<ListedScenario<'a>>,
}

#[derive(JsonSchema, Serialize)]
struct ListedScenario<'a> {
    file: &'a Path,
    name: &'a str,
    about: &'a str,
    nodes: u32,
    cpus: u32,
    guests: usize,
}

/// What `lab doctor --json` prints: schema instep.lab.doctor/1.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "LabDoctor")]
pub(crate) struct LabDoctorJson<'a> {
    #[schemars(extend("const" = "instep.lab.doctor/1"))]
    schema: &'static str,
    /// Whether the lab can run.
    fine: bool,
    findings: &'a [doctor::DoctorFinding],
}

fn list(args: &LabListArgs) -> anyhow::Result<Outcome> {
    let built_in = |(name, text): &(&str, &str)| {
        (Path::new(name).to_owned(), Scenario::parse(text, name).map_err(anyhow::Error::msg))
    };
    let of_file = |path: PathBuf| (path.clone(), Scenario::load(&path).map_err(Into::into));
    let found: Vec<(PathBuf, anyhow::Result<Scenario>)> = match &args.dir {
        Some(dir) => scenarios(dir)?.into_iter().map(of_file).collect(),
        None => all_built_in(Reader::Lab).iter().map(built_in).collect(),
    };
    let columns = terminal_width();
    let mut outcome = Outcome::Fine;
    let mut json = Vec::new();
    let mut text = String::new();
    for (path, scenario) in &found {
        match scenario {
            Ok(scenario) => {
                let host = &scenario.host;
                let shape = format!(
                    "{}, {}, {}",
                    plural(host.nodes as usize, "node"),
                    plural(host.cpus() as usize, "CPU"),
                    plural(scenario.guest.len(), "guest")
                );
                let line = format!("{}: {} ({shape})", path.display(), scenario.about);
                text.push_str(&entry(&line, columns));
                json.push(ListedScenario {
                    file: path,
                    name: &scenario.name,
                    about: &scenario.about,
                    nodes: host.nodes,
                    cpus: host.cpus(),
                    guests: scenario.guest.len(),
                });
            }
            Err(error) => {
                outcome = Outcome::Finding;
                tell(&error.to_string());
            }
        }
    }
    if args.json {
        print_json(&LabListJson { schema: "instep.lab.list/1", scenarios: json })?;
    } else if let (Some(dir), true) = (&args.dir, found.is_empty()) {
        print(&format!("No scenario (*.toml) in {}.\n", dir.display()))?;
    } else {
        print(&text)?;
    }
    Ok(outcome)
}

/// An entry of a list: on a terminal in its width, further lines under the first; else one line, for
/// programs that read lines.
fn entry(text: &str, columns: Option<usize>) -> String {
    let text = plain(text);
    let Some(columns) = columns else { return format!("{text}\n") };
    let mut lines = wrapped(&text, columns - 4).into_iter();
    let first = lines.next().unwrap_or_default();
    format!("{first}\n") + &indented(&lines.collect::<Vec<_>>(), 4)
}

fn scenarios(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).map_err(|error| {
        anyhow::anyhow!(
            "cannot list {}: {error}; name a directory of scenarios: instep lab list DIR",
            dir.display()
        )
    })?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    found.sort();
    Ok(found)
}

fn doctor(json: bool) -> anyhow::Result<Outcome> {
    let load = built_load(&programs::own_path()?);
    let findings = doctor::examine(load.as_deref(), &Stop::on_signals()?);
    let fine = doctor::can_run(&findings);
    if json {
        print_json(&LabDoctorJson { schema: "instep.lab.doctor/1", fine, findings: &findings })?;
    } else {
        let mut text = String::new();
        for finding in &findings {
            let mark = match (finding.fine, finding.needed) {
                (true, _) => "fine    ",
                (false, true) => "MISSING ",
                (false, false) => "optional",
            };
            let next = finding.next.as_ref().map(|next| format!("; {next}")).unwrap_or_default();
            let line = format!("{mark} {}: {}{next}", finding.need, finding.found);
            text.push_str(&folded(&line, width()));
        }
        text.push_str(if fine {
            "The lab can run: instep lab run hello\n"
        } else {
            "The lab cannot run yet.\n"
        });
        print(&text)?;
    }
    Ok(if fine { Outcome::Fine } else { Outcome::Finding })
}

fn clean() -> anyhow::Result<Outcome> {
    let cache = Cache::open()?;
    let stop = Stop::on_signals()?;
    let mut waits = || tell("waiting for labs that use the cache; Ctrl-C gives up");
    let _unused = cache.unused(&stop, &mut waits)?;
    let _lock = cache.lock("kernels", &stop)?;
    let mut bytes = 0;
    for entry in CLEANED {
        bytes += cache.remove(entry)?;
    }
    print(&format!("{} MiB removed from {}\n", bytes >> 20, cache.path("").display()))?;
    Ok(Outcome::Fine)
}

/// What is being done, on standard error: a spinner on a terminal, nothing elsewhere but what is to
/// stay (and what the log is asked for).
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn start() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }

    /// One line is progress; several are more, and stay.
    pub(crate) fn say(&self, said: &str) {
        let lines = said.lines().map(printable);
        if said.lines().count() > 1 {
            self.0.suspend(|| lines.for_each(|line| eprintln!("{line}")));
        } else if self.0.is_hidden() {
            tracing::info!("{said}");
        } else {
            self.0.set_message(lines.collect::<String>());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_lab::host::accel::Accel;
    use instep_lab::host::machine::Clock;
    use instep_lab::scenario::evidence::LabObservation;
    use instep_lab::scenario::report::Seconds;

    #[test]
    fn an_entry_keeps_to_the_terminal_and_is_one_line_elsewhere() {
        let said = "scenarios/lab/misplaced.toml: two\nguests, each with its memory on the other";
        let drawn = entry(said, Some(40));
        assert!(drawn.lines().count() > 1 && drawn.lines().all(|line| line.len() <= 40), "{drawn}");
        assert!(drawn.lines().skip(1).all(|line| line.starts_with("    ")), "{drawn}");
        assert_eq!(entry(said, None), said.replace('\n', " ") + "\n");
    }

    const SCENARIO: &str = "about = 'x'\n[host]\ncores = 1\nmemory = '512MiB'\n";

    #[test]
    fn a_report_cannot_steer_the_terminal() {
        let nasty = || "a\x1b]0;b\x07\x1b[2J\nc".to_owned();
        let report = LabReport {
            schema: "instep.lab/1",
            scenario: "x".to_owned(),
            about: nasty(),
            host: Scenario::parse(SCENARIO, "x").unwrap().host,
            clock: Clock::Real.into(),
            kernel: nasty(),
            kvm: true,
            accel: Accel::software("KVM dies"),
            attempts: 1,
            restarted: Vec::new(),
            earlier: Vec::new(),
            seconds: Seconds::default(),
            steps: Vec::new(),
            observations: [(nasty(), LabObservation::default())].into(),
            samples: Vec::new(),
            loads: [].into(),
            checks: Vec::new(),
            held: true,
            files: vec![nasty()],
        };
        let text = drawn(&report, 80);
        assert!(text.contains("a?]0;b??[2J c:\n"), "{text:?}");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
}
