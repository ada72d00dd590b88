//! The guardian's side: what it waits for, and how it puts back what its agent left behind.
//!
//! ```text
//! no journal, or one kept, and no monitor of DAMON -> ends
//! the agent's, which is not gone yet -------------> waits, however long
//! a living instance's ----------------------------> ends: that one restored
//! abandoned, the lock is free --------------------> restores, ends
//! abandoned, the agent has the lock --------------> waits, however long
//! abandoned, somebody else has it, or nobody knows who -> waits for 10 s, tells the way out, fails
//! ```

use super::left::{HostJournal, Restored};
use super::lock::worded;
use super::{DONE, GOING, NAME, PAUSES, READY};
use crate::error::Error;
use crate::published;
use instep_host::apply::{Holder, InstanceLock, StateDir};
use rustix::process::setsid;
use signal_hook::consts::{SIGABRT, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What ends or changes a run, and reaches its guardian, too, where it is sent to a whole service: SIGABRT is what
/// systemd's watchdog sends.
const DEAF: [i32; 5] = [SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGABRT];

/// The guardian's side: waits for the end of the agent, process `agent`, and puts back what that has
/// left behind. `None` when there was nothing to do, or a new instance has done it.
///
/// # Errors
/// It cannot wait, or what was left behind can be neither read nor put back.
pub fn stand(
    state: &StateDir,
    agent: u32,
    left: &impl HostJournal,
) -> Result<Option<Restored>, Error> {
    // Neither is necessary: a name is for people, and a session of its own has who leads one.
    let _ = rustix::thread::set_name(NAME);
    let _ = setsid();
    for signal in DEAF {
        signal_hook::flag::register(signal, Arc::default()).map_err(Error::Signals)?;
    }
    if wait().map_err(Error::Guard)? {
        return Ok(None);
    }
    Duty { state, agent, left, patience: GOING }.fulfil(|| state.lock())
}

/// Waits for the agent's end; whether it said that there is nothing left to do.
fn wait() -> io::Result<bool> {
    let mut out = io::stdout().lock();
    // An agent that hears nothing any more has ended already, which its own pipe tells.
    let _ = out.write_all(READY).and_then(|()| out.flush());
    let mut word = Vec::new();
    io::stdin().lock().read_to_end(&mut word)?;
    Ok(word == DONE)
}

/// What a guardian has to do once its agent's pipe is closed.
struct Duty<'a, L> {
    state: &'a StateDir,
    agent: u32,
    left: &'a L,
    /// How long it waits for others than the agent.
    patience: Duration,
}

impl<L: HostJournal> Duty<'_, L> {
    /// Restores what the agent left behind, by the lock that `take` gives.
    fn fulfil(
        &self,
        take: impl FnMut() -> Result<InstanceLock, instep_host::Error>,
    ) -> Result<Option<Restored>, Error> {
        self.restore(take).map_err(|source| Error::Left {
            state: self.state.path().to_owned(),
            source: Box::new(source),
        })
    }

    /// The agent's pipe is closed a moment before its locks are free and it is gone, or long before when
    /// the kernel cannot end it yet; it changes nothing any more.
    fn restore(
        &self,
        mut take: impl FnMut() -> Result<InstanceLock, instep_host::Error>,
    ) -> Result<Option<Restored>, Error> {
        let [mut pause, longest] = PAUSES;
        let mut in_the_way = None;
        loop {
            let Some(left) = self.left.read_record(self.state)? else { return Ok(None) };
            let is_agents = |pid| pid == self.agent;
            if left.is_abandoned {
                match take() {
                    Ok(lock) => {
                        let left = self.left.read_record(self.state)?;
                        if !left.is_some_and(|left| left.is_abandoned) {
                            return Ok(None);
                        }
                        published::forget(self.state.path());
                        return self.left.put_back(lock).map(Some);
                    }
                    Err(instep_host::Error::Taken { pid: Some(pid), .. }) if is_agents(pid) => {}
                    // A new instance with this directory restores; one with another does not.
                    Err(error @ instep_host::Error::Taken { .. }) => {
                        let since: &mut Instant = in_the_way.get_or_insert_with(Instant::now);
                        if since.elapsed() >= self.patience {
                            return Err(worded(error).into());
                        }
                    }
                    Err(error) => return Err(error.into()),
                }
            } else if !matches!(left.holder, Holder::Instance { pid, .. } if is_agents(pid)) {
                return Ok(None);
            }
            std::thread::sleep(pause);
            pause = longest.min(pause * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::left::Threads;
    use super::super::testing::{by_process, left_by};
    use super::*;
    use instep_core::units::Tid;
    use instep_host::Root;
    use instep_host::apply::{Journal, thread};
    use std::process::Command;
    use std::sync::LazyLock;

    /// The first process did not start that late: this one ended.
    fn left_by_a_dead_one() -> (tempfile::TempDir, StateDir) {
        left_by(&by_process(1, u64::MAX))
    }

    fn start_of(pid: u32) -> u64 {
        thread::key_of(&Root::live(), pid, Tid(pid)).unwrap().pid_start
    }

    fn duty(state: &StateDir, patience: Duration) -> Duty<'_, Threads> {
        static LIVE: LazyLock<Threads> = LazyLock::new(Threads::live);
        Duty { state, agent: 7, left: &*LIVE, patience }
    }

    fn taken(pid: Option<u32>) -> Result<InstanceLock, instep_host::Error> {
        Err(instep_host::Error::Taken { pid })
    }

    #[test]
    fn nothing_is_restored_where_nothing_was_changed() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let nothing = |state: &StateDir| {
            let done = duty(state, Duration::ZERO).fulfil(|| panic!("there is no need for a lock"));
            assert!(done.unwrap().is_none());
        };
        let state = StateDir::at(dir.path().join("none"));
        nothing(&state);
        assert!(!state.path().exists(), "nothing is made to look for it");
        let own = std::process::id();
        for holder in ["\"kept\"".to_owned(), by_process(own, start_of(own))] {
            nothing(&left_by(&holder).1);
        }
    }

    #[test]
    fn damons_monitor_is_removed_without_a_journal_after_its_run() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let state = StateDir::at(dir.path().join("s"));
        let record = |pid: u32, start: u64| {
            let boot = instep_host::apply::Instance::this().unwrap().boot_id;
            let holder = format!(r#"{{"boot_id":"{boot}","pid":{pid},"start":{start}}}"#);
            let text = format!(r#"{{"schema":"instep.damon/1","holder":{holder},"target":4711}}"#);
            std::fs::write(state.path().join("damon.json"), text).unwrap();
        };
        drop(state.lock().unwrap());
        let own = std::process::id();
        record(own, start_of(own));
        let living = duty(&state, Duration::ZERO).fulfil(|| panic!("another instance lives"));
        assert!(living.unwrap().is_none() && !crate::guard::is_settled(&state, &Threads::live()));
        // The first process did not start that late.
        record(1, u64::MAX);
        // A host without monitors.
        let root = dir.path().join("root");
        let files = root.join("sys/kernel/mm/damon/admin/kdamonds");
        std::fs::create_dir_all(&files).unwrap();
        std::fs::write(files.join("nr_kdamonds"), "0\n").unwrap();
        let threads = Threads::at(Root::at(&root));
        let duty = Duty { left: &threads, ..duty(&state, Duration::ZERO) };
        let report = duty.fulfil(|| state.lock()).unwrap().unwrap();
        assert_eq!(report.told, ["DAMON's monitor was gone"]);
    }

    #[test]
    fn unknown_holder_of_the_lock_is_waited_for() {
        let (_dir, state) = left_by_a_dead_one();
        let mut times = 0;
        let report = duty(&state, Duration::from_secs(60)).fulfil(|| {
            times += 1;
            if times < 4 { taken(None) } else { state.lock() }
        });
        let report = report.unwrap();
        assert!(report.is_some_and(|report| report.is_complete) && times == 4);
        assert_eq!(Journal::load(&state).unwrap(), None);
    }

    #[test]
    fn change_kept_by_another_instance_is_reported_with_a_remedy() {
        let (_dir, state) = left_by_a_dead_one();
        for pid in [None, Some(std::process::id())] {
            let error = duty(&state, Duration::from_millis(20)).fulfil(|| taken(pid)).unwrap_err();
            assert!(error.is_failed_work());
            let way_out = format!("`instep restore --state-dir {}`", state.path().display());
            let said = error.to_string();
            assert!(said.contains(&way_out) && said.contains("already runs"), "{said}");
        }
        assert!(Journal::load(&state).unwrap().is_some());
    }

    #[test]
    fn an_agent_that_is_long_in_going_is_waited_for() {
        let mut agent = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = agent.id();
        let (_dir, state) = left_by(&by_process(pid, start_of(pid)));
        let (began, time) = (Instant::now(), Duration::from_millis(100));
        let kill = std::thread::spawn(move || {
            std::thread::sleep(time);
            agent.kill().unwrap();
            agent
        });
        let mut times = 0;
        let duty = Duty { agent: pid, ..duty(&state, Duration::ZERO) };
        let report = duty.fulfil(|| {
            times += 1;
            if times < 3 { taken(Some(pid)) } else { state.lock() }
        });
        assert!(report.unwrap().is_some() && times == 3 && began.elapsed() >= time);
        kill.join().unwrap().wait().unwrap();
    }
}
