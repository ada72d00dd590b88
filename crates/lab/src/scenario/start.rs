//! Starts the guests of a scenario, and again those that hang at boot.

use super::kit::Running;
use super::{GuestPlan, Scenario, guests};
use crate::error::Error;
use crate::image::READY;
use crate::stop::Stop;
use std::time::{Duration, Instant};

/// How long guests may take to boot, by the host's clock.
const BOOT_LIMIT: Duration = Duration::from_secs(60);
const BOOT_LIMIT_EACH: Duration = Duration::from_secs(20);

/// How often a guest is started that hangs at boot, which emulation lets happen now and then.
const STARTS: u32 = 3;

/// How long one look or one small change may take, by the host's clock.
pub(super) const SMALL: Duration = Duration::from_secs(60);

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

/// The first guest that died of what looks like a flaw of the emulation, which is then why the run failed.
pub(crate) fn fallen(running: &mut Running, names: &[&str], stop: &Stop) -> Option<Error> {
    let told = running.host.run(&guests::ended(names), SMALL, stop).ok()?.text();
    let mut ended = told.lines().filter_map(|line| line.split_once(' '));
    let (name, how) = ended.find_map(|(name, status)| Some((name, guests::died(status)?)))?;
    Some(Error::Died { name: format!("guest {name}"), how, kept: None, console: String::new() })
}

/// Starts guests side by side, waits until all are up, and moves each to its place.
pub(super) fn start(
    running: &mut Running,
    scenario: &Scenario,
    names: &[&str],
    stop: &Stop,
) -> Result<(), Error> {
    if names.is_empty() {
        return Ok(());
    }
    let named = |name: &&str| scenario.guest_named(name);
    let plans: Vec<_> = names.iter().filter_map(named).collect();
    let by_kvm = !scenario.host.is_xen() && plans.iter().any(|plan| !plan.process);
    if !running.kvm && by_kvm {
        return Err(Error::NoKvm {
            kernel: running.kernel.clone(),
            console: crate::command::last_lines(&running.host.console(), 6),
        });
    }
    if by_kvm {
        running.host.succeed(&guests::kernel(), SMALL, stop)?;
    }
    for plan in plans.iter().filter(|plan| !guests::is_sealed(plan, &scenario.host)) {
        running.host.succeed(&guests::start(plan, &scenario.host), SMALL, stop)?;
    }
    for starts_left in (0..STARTS).rev() {
        let late = await_guests(running, names, stop)?;
        if late.is_empty() {
            break;
        }
        // A process that is not up has its own reason.
        let hung = |plan: &&&GuestPlan| !plan.process && late.lines().any(|name| name == plan.name);
        let again: Vec<_> = plans.iter().filter(hung).collect();
        if again.is_empty() || starts_left == 0 {
            return Err(Error::Slow {
                name: guests_named(names),
                awaited: READY.to_owned(),
                seconds: running.started.elapsed().as_secs(),
                console: String::new(),
            });
        }
        for plan in again {
            running.host.succeed(&guests::end(&plan.name, &scenario.host), SMALL, stop)?;
            running.host.succeed(&guests::start(plan, &scenario.host), SMALL, stop)?;
            running.restarted.push(plan.name.clone());
        }
    }
    for plan in &plans {
        if let Some(script) = guests::place(plan, &scenario.host) {
            running.host.succeed(&script, SMALL, stop)?;
        }
    }
    Ok(())
}

/// Waits until guests are up; the names of those that are not by then, a line each.
fn await_guests(running: &mut Running, names: &[&str], stop: &Stop) -> Result<String, Error> {
    let limit = BOOT_LIMIT + BOOT_LIMIT_EACH * u32::try_from(names.len()).unwrap_or(u32::MAX);
    let up = running.host.run(&guests::wait_ready(names), limit, stop)?;
    let console = || crate::command::last_lines(&up.stderr, 8);
    match up.status {
        0 => Ok(String::new()),
        guests::PANICKED => {
            let how = crate::host::PANICKED.to_owned();
            Err(Error::Died { name: "a guest".to_owned(), how, kept: None, console: console() })
        }
        // Killed at its limit.
        143 => running.host.succeed(&guests::not_up(names), SMALL, stop),
        _ => {
            let console = console();
            let what = "did not come up".to_owned();
            let name = guests_named(names);
            // Where it fell the caller boots again.
            Err(fallen(running, names, stop).unwrap_or(Error::Guest { name, what, console }))
        }
    }
}

fn guests_named(names: &[&str]) -> String {
    let word = if names.len() == 1 { "guest" } else { "guests" };
    format!("{word} {}", names.join(", "))
}
