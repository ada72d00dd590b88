//! Carries a scenario out: boots the host, starts the guests, does the steps, gathers the results.
//!
//! Everything runs inside limits: each command by the host's clock, the whole by this machine's.
//! What cannot be had (a host that does not come up, a guest that dies at boot) is an error; what
//! was asked for and does not hold is a result.

use super::audience::Audience;
use super::check::{self, Check};
use super::evidence::{self, Observation};
use super::report::{Report, Sample, Seconds, StepReport, as_value, json_lines};
use super::{Scenario, Step, guests};
use crate::cache::Cache;
use crate::error::Error;
use crate::host::kernel::{self, HostKernel};
use crate::host::{Host, image, programs};
use crate::image::busybox;
use crate::stop::Stop;
use crate::{guest, workdir};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long guests may take to boot, by the host's clock.
const GUESTS_LIMIT: Duration = Duration::from_secs(240);
/// How long one look or one small change may take, by the host's clock.
const SMALL: Duration = Duration::from_secs(60);

/// The time between two looks that wait for something.
const LOOKS: Duration = Duration::from_millis(300);

/// What a user may choose for every run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A kernel image of the user's own.
    pub kernel: Option<PathBuf>,
    /// The directory below which its modules lie; KVM is built in without one.
    pub modules: Option<PathBuf>,
    /// The `instep` binary that is put into the host.
    pub instep: PathBuf,
    /// The guest workload `instep-load`, when there is one.
    pub load: Option<PathBuf>,
    /// Where consoles and files that are brought back are kept, also after success.
    pub keep: Option<PathBuf>,
}

/// What every host of this machine is made of.
#[derive(Debug)]
pub struct Kit {
    cache: Cache,
    kernel: HostKernel,
    busybox: PathBuf,
    extra: image::Extra,
    /// Holds the unpacked modules of a kernel of the user's own.
    _unpacked: Option<TempDir>,
}

impl Kit {
    /// Finds or fetches it; `say` hears what takes long.
    ///
    /// # Errors
    /// When something can neither be found nor fetched: with the next command.
    pub fn obtain(
        options: &Options,
        stop: &Stop,
        say: &mut dyn FnMut(&str),
    ) -> Result<Self, Error> {
        guest::qemu_present()?;
        let cache = Cache::open()?;
        let busybox = busybox(&cache, stop, say)?;
        let mut unpacked = None;
        let kernel = match &options.kernel {
            Some(image) => {
                let dir = workdir::create("modules")?;
                let own =
                    kernel::own(image, options.modules.as_deref(), dir.path(), &busybox, stop)?;
                unpacked = Some(dir);
                own
            }
            None => kernel::obtain(&cache, stop, say)?,
        };
        let extra = image::Extra {
            programs: vec![(options.instep.clone(), "instep".to_owned())],
            load: options.load.clone(),
        };
        Ok(Self { cache, kernel, busybox, extra, _unpacked: unpacked })
    }

    /// Boots a scenario's host, without its guests.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn boot(&self, scenario: &Scenario, stop: &Stop) -> Result<Running, Error> {
        let mut extra = self.extra.clone();
        let wanting = scenario.guest.iter().find(|guest| guest.load.contains("instep-load"));
        if let (Some(guest), None) = (wanting, &extra.load) {
            let what = format!("guest {} runs instep-load, which is not built", guest.name);
            return Err(Error::missing(what, "run `cargo xtask load`, or give --load FILE"));
        }
        for name in &scenario.programs {
            let file = programs::find(name)?;
            let inside = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            extra.programs.push((file, inside));
        }
        let started = Instant::now();
        let mut host = Host::spawn(&scenario.host, &self.kernel, scenario.limit, |target| {
            image::write(target, &self.cache, &self.kernel, &self.busybox, &extra, stop)
        })?;
        let ready = host.wait_ready(scenario.limit / 2, stop).inspect_err(|error| {
            let place = failures(&self.cache, scenario);
            if !matches!(error, Error::Interrupted) && fs::create_dir_all(&place).is_ok() {
                let _ = host.keep_console(&place);
            }
        })?;
        let seconds = Seconds { host_up: started.elapsed().as_secs_f64(), ..Seconds::default() };
        Ok(Running { host, kernel: ready.release, kvm: ready.kvm, started, seconds })
    }
}

/// A host that is up.
#[derive(Debug)]
pub struct Running {
    /// The host.
    pub host: Host,
    /// Its kernel's release.
    pub kernel: String,
    /// Whether it has a /dev/kvm.
    pub kvm: bool,
    started: Instant,
    seconds: Seconds,
}

impl Running {
    /// Starts those guests of a scenario that are not `later`, side by side.
    ///
    /// # Errors
    /// When there is no KVM in the host, or a guest does not come up.
    pub fn start_guests(&mut self, scenario: &Scenario, stop: &Stop) -> Result<(), Error> {
        let began = Instant::now();
        let names: Vec<&str> =
            scenario.guest.iter().filter(|guest| !guest.later).map(|g| g.name.as_str()).collect();
        start(self, scenario, &names, stop)?;
        self.seconds.guests_up = began.elapsed().as_secs_f64();
        Ok(())
    }
}

/// How often a run is begun at most.
const ATTEMPTS: u32 = 3;

/// Runs a scenario. One that is too slow, or whose kernel fell to a flaw of the emulation, is begun
/// again, and that is said and counted: machines that run labs are busy.
///
/// # Errors
/// When the host or a guest does not come up, or the run is interrupted. The consoles are then in
/// `failures` of the cache.
pub fn run(
    scenario: &Scenario,
    options: &Options,
    stop: &Stop,
    audience: &mut dyn Audience,
) -> Result<Report, Error> {
    let kit = Kit::obtain(options, stop, &mut |said| audience.say(said))?;
    let audience = RefCell::new(audience);
    again(stop, &mut |said| audience.borrow_mut().say(said), |attempt, _| {
        once(&kit, scenario, options, attempt, stop, &mut **audience.borrow_mut())
    })
}

/// Does what may fail by chance up to [`ATTEMPTS`] times; slowness is tried twice only.
///
/// # Errors
/// The last attempt's.
pub fn again<T>(
    stop: &Stop,
    say: &mut dyn FnMut(&str),
    mut attempt: impl FnMut(u32, &mut dyn FnMut(&str)) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut number = 1;
    loop {
        let error = match attempt(number, say) {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        stop.check()?;
        let chance = match &error {
            Error::Slow { .. } => number < 2,
            Error::Panicked { .. } => number < ATTEMPTS,
            _ => false,
        };
        if !chance {
            return Err(error);
        }
        say(&format!("{error}\ntrying once more"));
        number += 1;
    }
}

fn once(
    kit: &Kit,
    scenario: &Scenario,
    options: &Options,
    attempts: u32,
    stop: &Stop,
    audience: &mut dyn Audience,
) -> Result<Report, Error> {
    audience.say(&format!(
        "booting a host of {} CPUs on {} nodes",
        scenario.host.cpus(),
        scenario.host.nodes
    ));
    let mut running = kit.boot(scenario, stop)?;
    let mut doing = Doing::new(scenario, options, &running, attempts);
    let done = doing.all(&mut running, stop, audience);
    let failed = done.is_err() || !doing.report.held;
    let interrupted = matches!(done, Err(Error::Interrupted));
    if (failed && !interrupted) || options.keep.is_some() {
        let place = match &options.keep {
            Some(dir) => dir.clone(),
            None => failures(&kit.cache, scenario),
        };
        let kept = keep(&mut running, scenario, &place, stop);
        doing.report.files.extend(kept.iter().map(|path| path.display().to_string()));
        if let Ok(text) = serde_json::to_string_pretty(&doing.report) {
            let target = place.join("report.json");
            // One more trace of a failure; the report itself goes to the caller.
            let _ = fs::write(target, text);
        }
        if done.is_err() {
            audience.say(&format!("consoles are kept in {}", place.display()));
        }
    }
    done?;
    doing.report.seconds = running.seconds;
    doing.report.seconds.total = running.started.elapsed().as_secs_f64();
    Ok(doing.report)
}

/// Where a failed run's consoles are kept.
fn failures(cache: &Cache, scenario: &Scenario) -> PathBuf {
    cache.path(&format!("failures/{}-{}", scenario.name, std::process::id()))
}

/// A scenario in progress.
struct Doing<'a> {
    scenario: &'a Scenario,
    options: &'a Options,
    report: Report,
}

impl<'a> Doing<'a> {
    fn new(scenario: &'a Scenario, options: &'a Options, running: &Running, attempts: u32) -> Self {
        let report = Report {
            schema: "instep.lab/1",
            scenario: scenario.name.clone(),
            about: scenario.about.clone(),
            host: scenario.host.clone(),
            clock: scenario.host.clock.into(),
            kernel: running.kernel.clone(),
            kvm: running.kvm,
            attempts,
            seconds: Seconds::default(),
            steps: Vec::new(),
            observations: BTreeMap::new(),
            samples: Vec::new(),
            loads: BTreeMap::new(),
            checks: Vec::new(),
            held: true,
            files: Vec::new(),
        };
        Self { scenario, options, report }
    }

    fn all(
        &mut self,
        running: &mut Running,
        stop: &Stop,
        audience: &mut dyn Audience,
    ) -> Result<(), Error> {
        let now = self.scenario.guest.iter().filter(|guest| !guest.later).count();
        let up = running.seconds.host_up;
        audience.say(&format!("host up after {up:.1}s; starting {now} guests"));
        running.start_guests(self.scenario, stop)?;
        self.report.seconds = running.seconds;
        audience.up(&self.report);
        for (index, step) in self.scenario.step.iter().enumerate() {
            let what = told(step);
            audience.say(&format!("step {}: {what}", index + 1));
            audience.begins(step);
            let (began, checks) = (Instant::now(), self.report.checks.len());
            let mut done = StepReport {
                step: what,
                began: running.started.elapsed().as_secs_f64(),
                seconds: 0.0,
                checks: 0,
                status: None,
                stdout: None,
                stderr: String::new(),
            };
            match &step.observe {
                Some(name) => self.observe(name, step, running, stop, audience)?,
                None => self.step(step, &mut done, running, stop)?,
            }
            done.seconds = began.elapsed().as_secs_f64();
            done.checks = self.report.checks.len() - checks;
            self.report.steps.push(done);
            audience.done(step, &self.report);
        }
        self.gather_loads(running, stop)?;
        self.report.held = self.report.checks.iter().all(|check| check.held);
        Ok(())
    }

    fn step(
        &mut self,
        step: &Step,
        done: &mut StepReport,
        running: &mut Running,
        stop: &Stop,
    ) -> Result<(), Error> {
        let host = &mut running.host;
        if let Some(command) = &step.run {
            let answer = host.run(command, step.limit, stop)?;
            let text = answer.text();
            self.check_command(step, answer.status, &text, &answer.stderr);
            done.status = Some(answer.status);
            done.stdout = Some(as_value(&text));
            done.stderr = answer.stderr;
        }
        if let Some(names) = &step.start {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            start(running, self.scenario, &names, stop)?;
        } else if let Some(name) = &step.end {
            let script = format!(
                "pid=$(cat /run/lab/{name}.pid) || exit 1\nkill -9 $pid\n\
                 while [ -d /proc/$pid ]; do sleep 0.1; done"
            );
            host.succeed(&script, SMALL, stop)?;
        } else if let Some(time) = step.wait {
            let script = format!("sleep {}", time.as_secs_f64());
            host.succeed(&script, time * 2 + SMALL, stop)?;
        } else if let Some((cpu, on)) =
            step.offline.map(|cpu| (cpu, 0)).or(step.online.map(|cpu| (cpu, 1)))
        {
            let script = format!("echo {on} >/sys/devices/system/cpu/cpu{cpu}/online");
            host.succeed(&script, SMALL, stop)?;
        } else if let Some(path) = &step.fetch {
            let quoted = path.replace('\'', "'\\''");
            let answer = host.run(&format!("cat '{quoted}'"), SMALL * 5, stop)?;
            done.status = Some(answer.status);
            self.put_checks(vec![check::result(
                "fetch",
                path,
                answer.status == 0,
                if answer.status == 0 {
                    format!("{} bytes", answer.stdout.len())
                } else {
                    answer.stderr.trim().to_owned()
                },
            )]);
            if answer.status == 0 {
                self.save(path, &answer.stdout)?;
            }
        }
        Ok(())
    }

    /// Looks at the guests, again and again where what must hold may take a while.
    fn observe(
        &mut self,
        name: &str,
        step: &Step,
        running: &mut Running,
        stop: &Stop,
        audience: &mut dyn Audience,
    ) -> Result<(), Error> {
        let end = Instant::now() + step.within.unwrap_or_default();
        loop {
            let seen = observe(&mut running.host, self.scenario, stop)?;
            let seconds = running.started.elapsed().as_secs_f64();
            self.report.samples.push(Sample::of(&seen, seconds));
            let earlier = &self.report.observations;
            let found = |hold| check::check(hold, &seen, earlier, &self.scenario.host);
            let checks = step.hold.as_ref().map(found).unwrap_or_default();
            let held = checks.iter().all(|check| check.held);
            audience.looked(&seen, held);
            if held || Instant::now() >= end {
                self.put_checks(checks);
                self.report.observations.insert(name.to_owned(), seen);
                return Ok(());
            }
            stop.sleep(LOOKS)?;
        }
    }

    fn check_command(&mut self, step: &Step, status: u32, stdout: &str, stderr: &str) {
        let about = told(step);
        let mut checks = vec![check::result(
            &format!("status = {}", step.status),
            &about,
            status == step.status,
            match status {
                status if status == step.status => format!("status {status}"),
                status => format!(
                    "status {status}: {}",
                    crate::command::last_lines(if stderr.is_empty() { stdout } else { stderr }, 3)
                ),
            },
        )];
        for text in &step.prints {
            let held = stdout.contains(text) || stderr.contains(text);
            let found = if held { "printed" } else { "not printed" };
            checks.push(check::result(&format!("prints {text:?}"), &about, held, found.to_owned()));
        }
        self.put_checks(checks);
    }

    fn put_checks(&mut self, checks: Vec<Check>) {
        self.report.held &= checks.iter().all(|check| check.held);
        self.report.checks.extend(checks);
    }

    /// Writes a file of the host where the user keeps things, else into the current directory.
    fn save(&mut self, path: &str, bytes: &[u8]) -> Result<(), Error> {
        let name = Path::new(path).file_name().unwrap_or_default();
        let dir = self.options.keep.clone().unwrap_or_else(|| PathBuf::from("."));
        fs::create_dir_all(&dir).map_err(|error| Error::io("make", &dir, error))?;
        let target = dir.join(name);
        fs::write(&target, bytes).map_err(|error| Error::io("write", &target, error))?;
        self.report.files.push(target.display().to_string());
        Ok(())
    }

    fn gather_loads(&mut self, running: &mut Running, stop: &Stop) -> Result<(), Error> {
        for guest in &self.scenario.guest {
            if matches!(guest.load.as_str(), "spin" | "idle") {
                continue;
            }
            let script = format!("cat /run/lab/{}.console", guest.name);
            let answer = running.host.run(&script, SMALL, stop)?;
            self.report.loads.insert(guest.name.clone(), json_lines(&answer.text()));
        }
        Ok(())
    }
}

/// Starts guests side by side, waits until all are up, and moves each to its place.
fn start(
    running: &mut Running,
    scenario: &Scenario,
    names: &[&str],
    stop: &Stop,
) -> Result<(), Error> {
    if names.is_empty() {
        return Ok(());
    }
    if !running.kvm {
        return Err(Error::Guest {
            name: "emulated host".to_owned(),
            what: format!("kernel {} has no /dev/kvm there", running.kernel),
            console: crate::command::last_lines(&running.host.console(), 6),
        });
    }
    let named = |name: &&str| scenario.guest_named(name);
    let plans: Vec<_> = names.iter().filter_map(named).collect();
    for plan in &plans {
        running.host.succeed(&guests::start(plan, &scenario.host), SMALL, stop)?;
    }
    let up = running.host.run(&guests::wait_ready(names), GUESTS_LIMIT, stop)?;
    let console = || crate::command::last_lines(&up.stderr, 8);
    match up.status {
        0 => {}
        guests::PANICKED => {
            return Err(Error::Panicked { name: "a guest".to_owned(), console: console() });
        }
        // Killed at its limit.
        143 => {
            return Err(Error::Slow {
                name: names.join(", "),
                awaited: "instep-guest: ready".to_owned(),
                seconds: running.started.elapsed().as_secs(),
                console: console(),
            });
        }
        _ => {
            return Err(Error::Guest {
                name: names.join(", "),
                what: "did not come up".to_owned(),
                console: console(),
            });
        }
    }
    for plan in &plans {
        if let Some(script) = guests::place(plan, &scenario.host) {
            running.host.succeed(&script, SMALL, stop)?;
        }
    }
    Ok(())
}

/// Looks at every guest.
fn observe(host: &mut Host, scenario: &Scenario, stop: &Stop) -> Result<Observation, Error> {
    let names: Vec<&str> = scenario.guest.iter().map(|guest| guest.name.as_str()).collect();
    let text = host.succeed(&evidence::script(&names), SMALL, stop)?;
    Ok(evidence::parse(&text, &scenario.host))
}

/// Writes the consoles of host and guests into `into`; what cannot be had is left out.
fn keep(running: &mut Running, scenario: &Scenario, into: &Path, stop: &Stop) -> Vec<PathBuf> {
    let mut kept = Vec::new();
    if fs::create_dir_all(into).is_err() {
        return kept;
    }
    kept.extend(running.host.keep_console(into).ok());
    for guest in &scenario.guest {
        let script = format!("cd /run/lab; cat {0}.console {0}.qemu", guest.name);
        let Ok(answer) = running.host.run(&script, Duration::from_secs(5), stop) else { break };
        let target = into.join(format!("guest-{}.txt", guest.name));
        if fs::write(&target, &answer.stdout).is_ok() {
            kept.push(target);
        }
    }
    kept
}

/// A step in words.
fn told(step: &Step) -> String {
    let time = |time: Duration| humantime::format_duration(time).to_string();
    step.run
        .clone()
        .or_else(|| step.observe.as_ref().map(|name| format!("observe {name}")))
        .or_else(|| step.start.as_ref().map(|names| format!("start {}", names.join(", "))))
        .or_else(|| step.end.as_ref().map(|name| format!("end {name}")))
        .or_else(|| step.wait.map(|wait| format!("wait {}", time(wait))))
        .or_else(|| step.offline.map(|cpu| format!("CPU {cpu} offline")))
        .or_else(|| step.online.map(|cpu| format!("CPU {cpu} online")))
        .or_else(|| step.fetch.as_ref().map(|path| format!("fetch {path}")))
        .unwrap_or_default()
}
