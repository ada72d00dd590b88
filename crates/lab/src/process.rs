//! A long-running child process that never outlives its owner.
//!
//! Three things end it: dropping the [`Process`], the limit of its life (a watchdog thread), and
//! the death of the thread that started it (PR_SET_PDEATHSIG; so keep that thread). It is known by
//! its id only, and signalled only while that id cannot belong to another process.

use crate::command;
use crate::error::Error;
use crate::stop::TICK;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// A running process; dropping it ends it.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    child: Arc<Mutex<Child>>,
    /// Its closing tells the watchdog that the process ended.
    _life: mpsc::Sender<()>,
}

impl Process {
    /// Starts `command` in a process group of its own (Ctrl-C on the terminal is for the owner,
    /// who ends the process in order) and kills it when it has lived for `limit`.
    ///
    /// # Errors
    /// When it cannot be started; [`Error::Missing`] with `install` when there is no such program.
    pub fn spawn(command: &mut Command, limit: Duration, install: &str) -> Result<Self, Error> {
        let program = command.get_program().to_string_lossy().into_owned();
        command.process_group(0);
        let child =
            command::die_with_parent(command).spawn().map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => Error::missing(format!("no {program} found"), install),
                _ => Error::Command {
                    command: program.clone(),
                    why: format!("cannot be started: {error}"),
                },
            })?;
        let pid = child.id();
        let child = Arc::new(Mutex::new(child));
        let life = watch(Arc::clone(&child), limit);
        Ok(Self { pid, child, _life: life })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, if it did.
    pub fn ended(&self) -> Option<ExitStatus> {
        lock(&self.child).try_wait().ok().flatten()
    }

    /// As [`Process::ended`], waiting for the end for so long at most.
    pub fn ends_within(&self, limit: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            let ended = self.ended();
            if ended.is_some() || Instant::now() >= end {
                return ended;
            }
            std::thread::sleep(TICK);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        end(&self.child);
    }
}

/// Kills and reaps; does nothing to a process that was reaped before.
fn end(child: &Mutex<Child>) {
    let mut child = lock(child);
    let _ = child.kill();
    let _ = child.wait();
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    // A panic elsewhere does not make the child less of a process to end.
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the child after `limit`, unless the sender is dropped first.
fn watch(child: Arc<Mutex<Child>>, limit: Duration) -> mpsc::Sender<()> {
    let (life, ended) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            end(&child);
        }
    });
    life
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn sleeper(limit: Duration) -> Process {
        Process::spawn(Command::new("sleep").arg("60"), limit, "install sleep").unwrap()
    }

    #[test]
    fn a_dropped_process_is_killed_and_reaped() {
        let process = sleeper(Duration::from_secs(60));
        let path = format!("/proc/{}", process.pid());
        assert!(Path::new(&path).exists() && process.ended().is_none());
        drop(process);
        assert!(!Path::new(&path).exists());
    }

    #[test]
    fn one_that_lives_too_long_is_ended() {
        let process = sleeper(Duration::from_millis(50));
        let end = Instant::now() + Duration::from_secs(30);
        while process.ended().is_none() {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_missing() {
        let mut command = Command::new("no-such-program-of-instep");
        let error = Process::spawn(&mut command, Duration::from_secs(1), "do this").unwrap_err();
        assert_eq!(error.to_string(), "no no-such-program-of-instep found; do this");
    }
}
