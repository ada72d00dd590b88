//! Carries a scenario out: boots the host, starts the guests, has the steps done, and keeps the
//! consoles of what failed.
//!
//! Everything runs inside limits: each command by the host's clock, the whole by this machine's.
//! What cannot be had (a host that does not come up, a guest that dies at boot) is an error; what
//! was asked for and does not hold is a result.

use super::Scenario;
use super::audience::Audience;
use super::fetched::Fetched;
pub use super::kit::{Kit, LabOptions, Running};
use super::report::LabReport;
use super::start::fallen;
use super::steps::ScenarioRun;
use crate::error::Error;
use crate::host::{EMULATED, REGISTERS};
use crate::stop::Stop;
use instep_core::wording::Count;
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

impl Kit {
    /// Keeps the consoles of host and guests after a failure, in a directory that is returned.
    pub fn keep_consoles(
        &self,
        running: &mut Running,
        scenario: &Scenario,
        stop: &Stop,
    ) -> PathBuf {
        let place = self.place(scenario, None);
        keep(running, scenario, &place, stop);
        place
    }
}

/// How often a run is begun at most.
const ATTEMPTS: u32 = 3;

/// Runs a scenario. One that is too slow, or whose host or guest fell to a flaw of the emulation, is begun
/// again, and that is said and counted: machines that run labs are busy.
///
/// # Errors
/// When the host or a guest does not come up, or the run is interrupted. The consoles are then in
/// `failures` of the cache.
pub fn run(
    scenario: &Scenario,
    options: &LabOptions,
    stop: &Stop,
    audience: &mut dyn Audience,
) -> Result<LabReport, Error> {
    let mut fetched = Fetched::new(scenario, options.keep.as_deref())?;
    let say = &mut |said: &str| audience.say(said);
    let kit = Kit::obtain_for(scenario.host.hypervisor, options, stop, say)?;
    let keep = options.keep.as_deref();
    let audience = RefCell::new(audience);
    let mut earlier = Vec::new();
    again(stop, &mut |said| audience.borrow_mut().say(said), |attempt, _| {
        let mut audience = audience.borrow_mut();
        let mut done = once(&kit, scenario, (keep, &mut fetched), attempt, stop, &mut **audience);
        match &mut done {
            Ok(report) => report.earlier = std::mem::take(&mut earlier),
            Err(why) => earlier.extend(why.to_string().lines().next().map(str::to_owned)),
        }
        done
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
            Error::Died { .. } => number < ATTEMPTS,
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
    (kept, fetched): (Option<&Path>, &mut Fetched),
    attempts: u32,
    stop: &Stop,
    audience: &mut dyn Audience,
) -> Result<LabReport, Error> {
    audience.say(&format!(
        "booting a host of {} on {}",
        Count(scenario.host.cpus().into(), "CPU"),
        Count(scenario.host.nodes.into(), "node")
    ));
    // Of this attempt, or none.
    let _ = fs::remove_file(kit.place(scenario, kept).join(REGISTERS));
    let mut say = |said: &str| audience.say(said);
    let mut running = kit.boot_for(scenario, scenario.limit, kept, stop, &mut say)?;
    let mut doing = ScenarioRun::new(scenario, fetched, &running, attempts);
    let mut done = doing.all(&mut running, stop, audience);
    if !doing.report.held || matches!(done, Err(Error::Guest { .. } | Error::Slow { .. })) {
        let names: Vec<&str> = scenario.guest.iter().map(|guest| guest.name.as_str()).collect();
        done = fallen(&mut running, &names, stop).map_or(done, Err);
    }
    let failed = done.is_err() || !doing.report.held;
    let interrupted = matches!(done, Err(Error::Interrupted));
    // As far as it has come, also for the report that is kept.
    doing.report.seconds = running.seconds;
    doing.report.seconds.total = running.started.elapsed().as_secs_f64();
    doing.report.restarted.clone_from(&running.restarted);
    if (failed && !interrupted) || kept.is_some() {
        let place = kit.place(scenario, kept);
        let consoles = keep(&mut running, scenario, &place, stop);
        done = done.map_err(|error| {
            let console = console_of(&consoles, &error).unwrap_or(&place).clone();
            error.kept_in(&console)
        });
        doing.report.files.extend(consoles.iter().map(|path| path.display().to_string()));
        if let Ok(text) = serde_json::to_string_pretty(&doing.report) {
            let target = place.join("report.json");
            // One more trace of a failure; the report itself goes to the caller.
            let _ = fs::write(target, text);
        }
        if done.is_err() {
            audience.say(&format!("consoles and report.json are kept in\n{}", place.display()));
        }
    }
    done?;
    Ok(doing.report)
}

/// The console, among those that were kept, of the machine that an error names.
fn console_of<'a>(consoles: &'a [PathBuf], error: &Error) -> Option<&'a PathBuf> {
    let Error::Died { name, .. } = error else { return None };
    let guest = name.strip_prefix("guest ").map(|guest| format!("guest-{guest}.txt"));
    let file = guest.or_else(|| (name == EMULATED).then(|| "console.txt".to_owned()))?;
    consoles.iter().find(|path| path.ends_with(&file))
}

/// Writes the consoles of host and guests into `into`; what cannot be had is left out.
fn keep(running: &mut Running, scenario: &Scenario, into: &Path, stop: &Stop) -> Vec<PathBuf> {
    let mut kept = Vec::new();
    if fs::create_dir_all(into).is_err() {
        return kept;
    }
    kept.extend(running.host.keep_console(into).ok());
    // Its console has the gravest words only.
    match running.host.run("dmesg | tail -n 200", Duration::from_secs(5), stop) {
        Ok(answer) => {
            let target = into.join("dmesg.txt");
            kept.extend(fs::write(&target, &answer.stdout).is_ok().then_some(target));
        }
        Err(error) => {
            let silent = matches!(error, Error::Slow { .. } | Error::Died { .. });
            kept.extend(silent.then(|| running.host.keep_registers(into).ok()).flatten());
            return kept;
        }
    }
    for guest in &scenario.guest {
        let script =
            format!("cd /run/lab; cat {0}.hung {0}.console {0}.qemu {0}.ended", guest.name);
        let Ok(answer) = running.host.run(&script, Duration::from_secs(5), stop) else { break };
        let target = into.join(format!("guest-{}.txt", guest.name));
        if fs::write(&target, &answer.stdout).is_ok() {
            kept.push(target);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::super::kit::{HOST_STARTS, until_up};
    use super::*;

    fn died() -> Error {
        let (name, how) = ("emulated host".to_owned(), "its kernel panicked".to_owned());
        Error::Died { name, how, kept: None, console: "last words".to_owned() }
    }

    #[test]
    fn host_that_dies_while_booting_is_booted_again_and_counted() {
        let mut boots = [Ok("up"), Err(died()), Err(died())].into_iter().rev();
        let mut said = Vec::new();
        let up = until_up(&Stop::never(), &mut |text| said.push(text.to_owned()), || {
            boots.next().unwrap()
        });
        assert_eq!(up.unwrap(), ("up", 2));
        assert_eq!(said.len(), 2);
        assert!(said[0].contains("panicked") && said[0].ends_with("booting it once more"));
    }

    #[test]
    fn host_that_dies_each_time_is_given_up() {
        let mut boots = 0;
        let failed = again(&Stop::never(), &mut |_| {}, |_, say| {
            until_up(&Stop::never(), say, || {
                boots += 1;
                Err::<(), _>(died())
            })
        });
        let error = failed.unwrap_err().to_string();
        assert_eq!(boots, HOST_STARTS, "{error}");
        assert!(error.contains("at each of 4 boots") && error.contains("last words"), "{error}");
    }

    #[test]
    fn console_of_a_death_is_that_of_the_machine_that_died() {
        let kept = ["d/console.txt", "d/dmesg.txt", "d/guest-a.txt"].map(PathBuf::from);
        let of = |name: &str| {
            let (how, console) = ("x".to_owned(), String::new());
            let error = Error::Died { name: name.to_owned(), how, kept: None, console };
            console_of(&kept, &error).map(|path| path.display().to_string())
        };
        assert_eq!(of("emulated host").as_deref(), Some("d/console.txt"));
        assert_eq!(of("guest a").as_deref(), Some("d/guest-a.txt"));
        assert_eq!((of("guest b"), of("a guest")), (None, None));
    }

    #[test]
    fn what_is_no_death_is_not_booted_again() {
        let mut boots = 0;
        let failed = until_up(&Stop::never(), &mut |_| {}, || {
            boots += 1;
            Err::<(), _>(Error::Interrupted)
        });
        assert!(matches!(failed, Err(Error::Interrupted)) && boots == 1);
    }
}
