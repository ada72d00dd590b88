//! The demo's last act: what the kernel scheduler is worth, measured while it is watched.
//!
//! ```text
//! boot ─> guests boot ─> each alone ─> both, default ─> instep run ─> both, Instep ─> SIGTERM ─> proof
//!   │ no sched_ext                                         │ does not load
//!   └───────────────> left out, with the reason <──────────┘
//! ```
//! It has a host of its own (`host.toml`): two CPUs, so that two guests must share them, and as many as
//! small machines have real ones. When the emulator dies, this act alone is begun again. It uses the
//! command line of `instep` only and knows nothing of how its scheduler decides.

mod measure;

use super::narrator::Narrator;
use crate::error::Error;
use crate::host::busy::CpuWait;
use crate::page::{Phase, Speeds};
use crate::scenario::audience::Audience as _;
use crate::scenario::check::{self, Check};
use crate::scenario::evidence::{self, LabObservation};
use crate::scenario::run::{self, Kit, LabOptions, Running};
use crate::scenario::start;
use crate::scenario::{Hold, Scenario, guests};
use crate::stop::Stop;
use measure::{Count, Course};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const HOST: &str = include_str!("host.toml");

pub(super) const TITLE: &str = "What the kernel scheduler is worth";
pub(super) const CAPTION: &str = "Placement says where vCPUs may run; which of them runs next is the \
    kernel's to say. On another host two KVM guests of two vCPUs share two CPUs. In the one \
    named spins two threads meet at a barrier every 100 us, and the one that is there first spins until \
    the other comes. The one named computes only computes. Each guest's fair share is half of the CPUs: \
    a fair-share speed of 1 is half of what the guest does when it has both CPUs for itself.";

/// What each guest does, by its place in `host.toml`.
const LOADS: [&str; 2] =
    ["two threads at a spinning barrier every 100 us", "two threads that only compute"];
/// The guest whose speed this is about.
const SPINS: usize = 0;
/// The schedulers as they are called.
const DEFAULT: &str = "default scheduler";
const INSTEP: &str = "Instep";

/// How many times as fast the spinning guest must be at least: far below what is usual, so that what
/// else the machine has to do cannot fail the demo.
const FASTER: f64 = 1.2;

/// The part of the time in which emulated CPUs wait for this machine's from which on nothing is judged.
const TOO_BUSY: f64 = 0.15;

/// The part of the CPUs that each guest has a right to.
const FAIR: f64 = 0.5;
/// How long one guest is measured alone, and both under each scheduler.
const ALONE: Duration = Duration::from_secs(3);
const TOGETHER: Duration = Duration::from_secs(9);
/// After a change, the time between looks for news of a guest's load, and how long they may take to come.
const SETTLE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two looks.
const LOOKS: Duration = Duration::from_secs(1);
/// One line of news in so many looks.
const TOLD: usize = 3;
/// How long one small command may take, and loading or ending the scheduler, by the host's clock.
const SMALL: Duration = Duration::from_secs(60);

/// Starts Instep as a user does and waits until its scheduler is loaded; else prints its last words.
const LOAD: &str = r#"
instep run --dispatch kernel >/tmp/run.log 2>&1 &
echo $! >/tmp/run.pid
k=0
until [ "$(cat /sys/kernel/sched_ext/state)" = enabled ]; do
    [ -d /proc/$(cat /tmp/run.pid) ] && [ $k -lt 250 ] || { tail -n 3 /tmp/run.log; exit 9; }
    sleep 0.2; k=$((k + 1))
done"#;

/// Ends it as a user does.
const END: &str = r#"
kill -TERM $(cat /tmp/run.pid)
while [ -d /proc/$(cat /tmp/run.pid) ]; do sleep 0.1; done
cat /sys/kernel/sched_ext/state"#;

/// What came of it.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The speeds, or why there are none.
    pub(super) speeds: Result<Speeds, String>,
    /// What had to hold.
    pub(super) checks: Vec<Check>,
    /// How long it took, by this machine's clock.
    pub(super) seconds: f64,
}

impl Outcome {
    fn left_out(why: &str, began: Instant) -> Self {
        let why = why.trim().trim_end_matches('.').to_owned();
        Self { speeds: Err(why), checks: Vec::new(), seconds: began.elapsed().as_secs_f64() }
    }
}

/// Plays it; `lacks` says why this `instep` has no kernel scheduler, if it has none.
///
/// # Errors
/// As of a scenario: the host or a guest fails, or it is interrupted.
pub(super) fn run(
    options: &LabOptions,
    lacks: Option<&str>,
    stop: &Stop,
    teller: &mut Narrator<'_>,
) -> Result<Outcome, Error> {
    let began = Instant::now();
    teller.title(super::MOMENTS.len() + 1, TITLE, CAPTION);
    let lacks = lacks.or_else(|| {
        options.load.is_none().then_some("instep-load is not built; run `cargo xtask load`")
    });
    let outcome = match lacks {
        Some(why) => Outcome::left_out(why, began),
        None => played(options, began, stop, teller)?,
    };
    match &outcome.speeds {
        Ok(speeds) => teller.speeds(speeds),
        Err(why) => teller.wrapped(&format!("\nLeft out: {why}."), ""),
    }
    teller.checked(&outcome.checks);
    Ok(outcome)
}

fn played(
    options: &LabOptions,
    began: Instant,
    stop: &Stop,
    teller: &mut Narrator<'_>,
) -> Result<Outcome, Error> {
    let scenario = Scenario::parse(HOST, "demo-speed")
        .map_err(|what| Error::Scenario { path: "host.toml".into(), what })?;
    let teller = RefCell::new(teller);
    let kit = Kit::obtain(options, stop, &mut |said| teller.borrow_mut().say(said))?;
    run::again(stop, &mut |said| teller.borrow_mut().say(said), |_, _| {
        let mut teller = teller.borrow_mut();
        teller.say("booting a host of two CPUs");
        let boots = kit.boot_for(&scenario, scenario.limit, None, stop, &mut |said| {
            teller.say(said);
        });
        let mut stage =
            Stage { running: boots?, scenario: scenario.clone(), stop, teller: *teller };
        let done = stage.act(began);
        match done {
            Err(Error::Guest { .. } | Error::Slow { .. }) => {
                let names: Vec<&str> =
                    scenario.guest.iter().map(|guest| guest.name.as_str()).collect();
                let fallen = start::fallen(&mut stage.running, &names, stop);
                let place = kit.keep_consoles(&mut stage.running, &scenario, stop);
                stage.teller.say(&format!("the consoles are kept in {}", place.display()));
                fallen.map_or(done, Err)
            }
            done => done,
        }
    })
}

/// The host while the act is played on it.
struct Stage<'a, 'b> {
    running: Running,
    scenario: Scenario,
    stop: &'a Stop,
    teller: &'a mut Narrator<'b>,
}

impl Stage<'_, '_> {
    fn act(&mut self, began: Instant) -> Result<Outcome, Error> {
        if self.ask("[ -e /sys/kernel/sched_ext ]; echo $?")?.trim() != "0" {
            let why = format!("Linux {} has no sched_ext", self.running.kernel);
            return Ok(Outcome::left_out(&why, began));
        }
        self.guests()?;
        let waited = CpuWait::read(self.running.host.pid());
        let fair = self.alone()?;
        self.freeze(&[false, false])?;
        let before = self.observe()?;
        self.teller.line("\nBoth, under the kernel's default scheduler:");
        (0..fair.len()).try_for_each(|guest| self.await_second_line(guest))?;
        let start = Instant::now();
        let default = self.together(DEFAULT, &fair, start)?;
        if let Some(why) = self.load()? {
            return Ok(Outcome::left_out(&why, began));
        }
        (0..fair.len()).try_for_each(|guest| self.await_second_line(guest))?;
        let instep = self.together(INSTEP, &fair, start)?;
        let diluted = CpuWait::read(self.running.host.pid()).since(waited).unwrap_or(0.0);
        let stayed = self.in_force()?;
        let ended = self.end()?;
        let names: Vec<String> = self.scenario.guest.iter().map(|g| g.name.clone()).collect();
        let loads = LOADS.map(str::to_owned).to_vec();
        let speeds = Speeds { guests: names, loads, phases: vec![default, instep], diluted };
        let mut checks = vec![in_force(stayed), ended];
        checks.extend(faster(&speeds));
        checks.extend(self.as_before(before)?);
        Ok(Outcome { speeds: Ok(speeds), checks, seconds: began.elapsed().as_secs_f64() })
    }

    /// Runs a script that must succeed.
    fn ask(&mut self, script: &str) -> Result<String, Error> {
        self.running.host.succeed(script, SMALL, self.stop)
    }

    /// Starts both guests; each is frozen once it is up.
    fn guests(&mut self) -> Result<(), Error> {
        let unit = self.ask(
            "for k in 1 2 3; do instep-load compute --threads 1 --float --duration 100ms; done | \
             sed 's/.*\"unit_ns\":\\([0-9.]*\\).*/\\1/' | sort -n | head -n 1",
        )?;
        for guest in &mut self.scenario.guest {
            guest.load = guest.load.replace("UNIT_NS", unit.trim());
        }
        self.teller.say("two guests boot");
        let names: Vec<&str> = self.scenario.guest.iter().map(|g| g.name.as_str()).collect();
        let freeze = guests::freeze_when_up(&names);
        self.running.host.succeed(&freeze, SMALL, self.stop)?;
        self.running.start_guests(&self.scenario, self.stop)?;
        let seconds = self.running.up_after();
        self.teller.line(&format!("\nThe host and its guests were up after {seconds:.0}s."));
        self.ask(
            "cd /sys/fs/cgroup/lab; for g in spins computes; do \
             until grep -q 1 $g/cgroup.freeze; do sleep 0.1; done; done",
        )?;
        Ok(())
    }

    /// Freezes the guests for which `frozen` is true and lets the others run.
    fn freeze(&mut self, frozen: &[bool]) -> Result<(), Error> {
        let mut script = String::from("cd /sys/fs/cgroup/lab\n");
        for (guest, frozen) in self.scenario.guest.iter().zip(frozen) {
            script.push_str(&format!("echo {} >{}/cgroup.freeze\n", u8::from(*frozen), guest.name));
        }
        self.ask(&script).map(drop)
    }

    /// Measures each guest with both CPUs for itself; the rate that is a speed of 1 of each.
    fn alone(&mut self) -> Result<Vec<f64>, Error> {
        let mut fair = Vec::new();
        for guest in 0..self.scenario.guest.len() {
            let name = self.scenario.guest[guest].name.clone();
            self.teller.say(&format!("{name} alone"));
            let frozen: Vec<bool> =
                (0..self.scenario.guest.len()).map(|other| other != guest).collect();
            self.freeze(&frozen)?;
            self.await_second_line(guest)?;
            let before = self.count(guest)?;
            self.stop.sleep(ALONE)?;
            let now = self.count(guest)?;
            let rate = now.rate_since(before).filter(|rate| *rate > 0.0);
            let rate = rate.ok_or_else(|| silent(&name))?;
            self.teller
                .line(&format!("{name} with both CPUs for itself: {rate:.0} {}", unit(guest)));
            fair.push(rate * FAIR);
        }
        Ok(fair)
    }

    /// What a guest's load said last of its work; `None` when it has said nothing yet.
    fn last_said(&mut self, guest: usize) -> Result<Option<Count>, Error> {
        let name = &self.scenario.guest[guest].name;
        let script = format!("tail -n 3 /run/lab/{name}.console");
        Ok(Count::last(&self.ask(&script)?))
    }

    /// What a guest's load has done by now.
    fn count(&mut self, guest: usize) -> Result<Count, Error> {
        let said = self.last_said(guest)?;
        said.ok_or_else(|| silent(&self.scenario.guest[guest].name))
    }

    /// What all guests' loads have done by now.
    fn counts(&mut self) -> Result<Vec<Count>, Error> {
        (0..self.scenario.guest.len()).map(|guest| self.count(guest)).collect()
    }

    /// Waits until what a guest's load says is of the time after a change: its second line from here on.
    fn await_second_line(&mut self, guest: usize) -> Result<(), Error> {
        let end = Instant::now() + PATIENCE;
        let mut last = self.last_said(guest)?;
        for _ in 0..2 {
            let before = last;
            while last == before {
                if Instant::now() > end {
                    return Err(silent(&self.scenario.guest[guest].name));
                }
                self.stop.sleep(SETTLE)?;
                last = self.last_said(guest)?;
            }
        }
        Ok(())
    }

    /// Reads both guests' speeds for a while.
    fn together(&mut self, scheduler: &str, fair: &[f64], start: Instant) -> Result<Phase, Error> {
        let mut course = Course::new(fair, self.counts()?);
        let end = Instant::now() + TOGETHER;
        while Instant::now() < end {
            self.stop.sleep(LOOKS)?;
            let now = self.counts()?;
            course.add_sample(start.elapsed().as_secs_f64(), &now);
            let told = course.looks.len().is_multiple_of(TOLD);
            self.teller.speed(&self.scenario.guest, course.looks.last(), told);
        }
        let names = || self.scenario.guest.iter().map(|guest| guest.name.as_str());
        let mean =
            course.mean().ok_or_else(|| silent(&names().collect::<Vec<_>>().join(" or ")))?;
        Ok(Phase { scheduler: scheduler.to_owned(), mean, looks: course.looks })
    }

    /// Has Instep load its scheduler; why that cannot be.
    fn load(&mut self) -> Result<Option<String>, Error> {
        self.teller.line("\n# instep run --dispatch kernel");
        let began = Instant::now();
        let answer = self.running.host.run(LOAD, SMALL, self.stop)?;
        if answer.status != 0 {
            let said =
                crate::command::last_lines(&format!("{}{}", answer.text(), answer.stderr), 3);
            return Ok(Some(format!("Instep's scheduler does not load here: {}", said.trim())));
        }
        let seconds = began.elapsed().as_secs_f64();
        self.teller.line(&format!("Both, under Instep's scheduler, loaded after {seconds:.0}s:"));
        Ok(None)
    }

    /// Whether Instep's scheduler is in force, by the kernel and by Instep.
    fn in_force(&mut self) -> Result<bool, Error> {
        let said = self.ask("cat /sys/kernel/sched_ext/state; instep status --json; :")?;
        let (state, status) = said.split_once('\n').unwrap_or_default();
        let status: serde_json::Value = serde_json::from_str(status).unwrap_or_default();
        Ok(state == "enabled" && status["dispatch"]["instep"] == true)
    }

    /// Ends Instep; whether the default scheduler is back.
    fn end(&mut self) -> Result<Check, Error> {
        self.teller.line("\n# kill -TERM $(pidof instep)");
        let state = self.ask(END)?.trim().to_owned();
        Ok(check::result("default_scheduler_back", "host", state == "disabled", state))
    }

    fn observe(&mut self) -> Result<LabObservation, Error> {
        let said = self.ask(&evidence::script(&self.scenario.guest))?;
        Ok(evidence::parse(&said, &self.scenario.host))
    }

    /// Whether every thread may use the CPUs again that it might use before.
    fn as_before(&mut self, before: LabObservation) -> Result<Vec<Check>, Error> {
        let now = self.observe()?;
        let hold = Hold { affinities_as: Some("before".to_owned()), ..Hold::default() };
        let earlier = BTreeMap::from([("before".to_owned(), before)]);
        let guests: Vec<_> = self.scenario.guest.iter().collect();
        Ok(check::check(&hold, &now, &earlier, &guests, &self.scenario.host))
    }
}

/// What a guest's work is counted in.
fn unit(guest: usize) -> &'static str {
    if guest == SPINS { "barriers a second" } else { "units of work a second" }
}

/// A guest whose load printed nothing new: another try may do.
fn silent(name: &str) -> Error {
    Error::Slow {
        name: format!("guest {name}"),
        awaited: "line about its work".to_owned(),
        seconds: PATIENCE.as_secs(),
        console: String::new(),
    }
}

fn in_force(stayed: bool) -> Check {
    let found = if stayed { "it is" } else { "it is not any more" };
    check::result("instep_scheduler_in_force", "host", stayed, found.to_owned())
}

/// Whether the spinning guest was faster under Instep; `None` where this machine was too busy to tell.
fn faster(speeds: &Speeds) -> Option<Check> {
    if speeds.diluted > TOO_BUSY {
        return None;
    }
    let factor = speeds.factor(SPINS);
    let what = format!("times_as_fast_at_least = {FASTER}");
    // Nothing in all the time is as slow as can be.
    let held = factor.is_none_or(|factor| factor >= FASTER);
    let found =
        factor.map_or("it stood still before".to_owned(), |factor| format!("{factor:.1} times"));
    Some(check::result(&what, &speeds.guests[SPINS], held, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_act_s_host_is_a_scenario_of_two_guests_on_two_cpus() {
        let scenario = Scenario::parse(HOST, "x").unwrap();
        assert_eq!(scenario.host.cpus(), 2);
        let names: Vec<&str> = scenario.guest.iter().map(|guest| guest.name.as_str()).collect();
        assert_eq!(names, ["spins", "computes"]);
        assert_eq!(scenario.guest.len(), LOADS.len());
        for guest in &scenario.guest {
            assert!(guest.vcpus == 2 && guest.load.contains("--unit-ns UNIT_NS "), "{guest:?}");
        }
    }

    #[test]
    fn a_guest_that_is_hardly_faster_fails_the_demo() {
        let phase =
            |speed| Phase { scheduler: String::new(), mean: vec![speed], looks: Vec::new() };
        let of = |before, after, diluted| {
            let phases = vec![phase(before), phase(after)];
            let (guests, loads) = (vec!["a".to_owned()], vec![String::new()]);
            faster(&Speeds { guests, loads, phases, diluted }).map(|check| check.held)
        };
        assert_eq!((of(0.3, 0.9, 0.0), of(0.0, 0.9, 0.0)), (Some(true), Some(true)));
        assert_eq!((of(0.9, 0.9, 0.0), of(0.9, 1.0, 0.1)), (Some(false), Some(false)));
        assert_eq!(of(0.9, 0.9, 0.2), None, "a busy machine is not judged");
    }
}
