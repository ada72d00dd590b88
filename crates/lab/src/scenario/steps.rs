//! Does a scenario's steps one after the other on a running host, and gathers what must hold.

use super::audience::Audience;
use super::check::{self, Check};
use super::evidence::{self, LabObservation};
use super::fetched::Fetched;
use super::kit::Running;
use super::report::{LabReport, LabSample, Seconds, StepReport, as_value, json_lines};
use super::start::{SMALL, start};
use super::{Scenario, Step, domains};
use crate::error::Error;
use crate::host::EmulatedHost;
use crate::stop::Stop;
use instep_core::wording::Count;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time between two looks that wait for something.
const LOOKS: Duration = Duration::from_millis(300);

/// A scenario in progress.
pub(super) struct ScenarioRun<'a> {
    scenario: &'a Scenario,
    fetched: &'a mut Fetched,
    pub(super) report: LabReport,
}

impl<'a> ScenarioRun<'a> {
    pub(super) fn new(
        scenario: &'a Scenario,
        fetched: &'a mut Fetched,
        running: &Running,
        attempts: u32,
    ) -> Self {
        let report = LabReport {
            schema: "instep.lab/1",
            scenario: scenario.name.clone(),
            about: scenario.about.clone(),
            host: scenario.host.clone(),
            clock: scenario.host.clock.into(),
            kernel: running.kernel.clone(),
            kvm: running.kvm,
            accel: running.accel.clone(),
            attempts,
            restarted: Vec::new(),
            earlier: Vec::new(),
            seconds: Seconds::default(),
            steps: Vec::new(),
            observations: BTreeMap::new(),
            samples: Vec::new(),
            loads: BTreeMap::new(),
            checks: Vec::new(),
            held: true,
            files: Vec::new(),
        };
        Self { scenario, fetched, report }
    }

    pub(super) fn all(
        &mut self,
        running: &mut Running,
        stop: &Stop,
        audience: &mut dyn Audience,
    ) -> Result<(), Error> {
        let now = self.scenario.guest.iter().filter(|guest| !guest.later).count();
        let up = running.seconds.host_up;
        let guests = Count::of(now, "guest");
        audience.say(&format!("host up after {up:.1}s; starting {guests}"));
        running.start_guests(self.scenario, stop)?;
        self.report.seconds = running.seconds;
        audience.up(&self.report);
        for (index, step) in self.scenario.step.iter().enumerate() {
            let what = describe(step);
            let first = what.trim().lines().next().unwrap_or_default();
            audience.say(&format!("step {}: {first}", index + 1));
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
                Some(name) => self.observe(name, index, running, stop, audience)?,
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
            let end = Instant::now() + step.within.unwrap_or_default();
            loop {
                let answer = host.run(command, step.limit, stop)?;
                let text = answer.text();
                let checks = checks_of(step, answer.status, &text, &answer.stderr);
                if checks.iter().all(|check| check.held) || Instant::now() >= end {
                    self.put_checks(checks);
                    done.status = Some(answer.status);
                    done.stdout = Some(as_value(&text));
                    done.stderr = answer.stderr;
                    break;
                }
                stop.sleep(LOOKS)?;
            }
        }
        if let Some(path) = &step.fetch {
            done.status = Some(self.fetch(path, host, stop)?);
        }
        change(step, self.scenario, running, stop)
    }

    /// Looks at the guests, again and again where what must hold may take a while.
    fn observe(
        &mut self,
        name: &str,
        index: usize,
        running: &mut Running,
        stop: &Stop,
        audience: &mut dyn Audience,
    ) -> Result<(), Error> {
        let step = &self.scenario.step[index];
        let guests = self.scenario.running_at(index);
        let end = Instant::now() + step.within.unwrap_or_default();
        loop {
            let seen = observe(&mut running.host, self.scenario, stop)?;
            let seconds = running.started.elapsed().as_secs_f64();
            self.report.samples.push(LabSample::of(&seen, seconds));
            let earlier = &self.report.observations;
            let host = &self.scenario.host;
            let found = |hold| check::check(hold, &seen, earlier, &guests, host);
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

    /// Brings a file of the host back; the status of reading it.
    fn fetch(&mut self, path: &str, host: &mut EmulatedHost, stop: &Stop) -> Result<u32, Error> {
        let quoted = path.replace('\'', "'\\''");
        let answer = host.run(&format!("cat '{quoted}'"), SMALL * 5, stop)?;
        let held = answer.status == 0;
        let found = if held {
            format!("{} bytes", answer.stdout.len())
        } else {
            answer.stderr.trim().to_owned()
        };
        self.put_checks(vec![check::result("fetch", path, held, found)]);
        if held {
            let target = self.fetched.save(path, &answer.stdout)?;
            self.report.files.push(target.display().to_string());
        }
        Ok(answer.status)
    }

    fn put_checks(&mut self, checks: Vec<Check>) {
        self.report.held &= checks.iter().all(|check| check.held);
        self.report.checks.extend(checks);
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

/// Whether a command did what it must.
fn checks_of(step: &Step, status: u32, stdout: &str, stderr: &str) -> Vec<Check> {
    let about = describe(step);
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
    checks
}

/// Does a step that changes the host or its guests, or waits.
fn change(
    step: &Step,
    scenario: &Scenario,
    running: &mut Running,
    stop: &Stop,
) -> Result<(), Error> {
    let (script, limit) = if let Some(names) = &step.start {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        return start(running, scenario, &names, stop);
    } else if let Some(name) = step.end.as_ref().filter(|_| scenario.host.is_xen()) {
        (domains::destroy(name), SMALL)
    } else if let Some(name) = &step.end {
        let script = format!(
            "pid=$(cat /run/lab/{name}.pid) || exit 1\nkill -9 $pid\n\
             while [ -d /proc/$pid ]; do sleep 0.1; done"
        );
        (script, SMALL)
    } else if let Some(time) = step.wait {
        // It ends by the same clock as its limit, so a host where it does not is lost: not long to wait for.
        (format!("sleep {}", time.as_secs_f64()), time + SMALL / 3)
    } else if let Some((cpu, on)) =
        step.offline.map(|cpu| (cpu, 0)).or(step.online.map(|cpu| (cpu, 1)))
    {
        (format!("echo {on} >/sys/devices/system/cpu/cpu{cpu}/online"), SMALL)
    } else {
        return Ok(());
    };
    running.host.succeed(&script, limit, stop).map(drop)
}

/// Looks at every guest.
fn observe(
    host: &mut EmulatedHost,
    scenario: &Scenario,
    stop: &Stop,
) -> Result<LabObservation, Error> {
    let text = host.succeed(&evidence::script(&scenario.guest), SMALL, stop)?;
    Ok(evidence::parse(&text, &scenario.host))
}

/// A step in words.
fn describe(step: &Step) -> String {
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
