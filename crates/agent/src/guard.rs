//! The guardian of a run: a process that puts every affinity back when the agent is killed.
//!
//! ```text
//! agent                             guardian
//! start --------- spawns ---------> its own session, deaf to signals
//!       <-------- "ready" --------- waits
//! cycles
//! release ------- "done" ---------> ends
//! killed -------- end of file ----> the journal is abandoned -> lock -> restore -> ends
//! ```
//! The agent alone holds the write end of the pipe that the guardian waits on, so that the kernel
//! closes it whatever ends the agent. The guardian is the same program started anew: it shares no
//! lock, no thread and no link to the kernel scheduler with the agent.
//!
//! It does not heed SIGTERM, SIGINT and SIGHUP, for which the agent restores itself: systemd sends
//! SIGTERM to what is left of a service as soon as its main process was killed, which is when the
//! guardian is needed. What kills both leaves the rest to `instep restore` and the next run.

use crate::error::Error;
use crate::run::{Sink, lock};
use instep_host::apply::{Applier, Holder, Journal, RestoreReport, StateDir};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, getppid, setsid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the kernel calls a guardian, so that neither `ps -C instep` nor a name's signal means it.
const NAME: &std::ffi::CStr = c"instep-guard";
/// The guardian's word that it stands.
const READY: &[u8] = b"ready\n";
/// The agent's word that there is nothing left to do.
const DONE: &[u8] = b"done\n";
/// How long the agent waits for the guardian to stand: a busy machine loads it slowly.
const START: Duration = Duration::from_secs(10);
/// How long the agent waits for it to end.
const END: Duration = Duration::from_secs(2);
/// How long a killed agent may take to be gone, and a guardian to put things back.
const GOING: Duration = Duration::from_secs(10);

/// The agent's side. Dropping it is no word: the guardian then looks for something to put back.
#[derive(Debug)]
pub(crate) struct Guard {
    command: Option<Command>,
    standing: Option<Standing>,
}

#[derive(Debug)]
struct Standing {
    child: Child,
    word: ChildStdin,
}

impl Guard {
    /// Starts a guardian by this command, none without one; says so where it cannot.
    pub(crate) fn start(command: Option<Command>, sink: &mut dyn Sink) -> Self {
        let mut guard = Self { command, standing: None };
        guard.begin(sink);
        guard
    }

    fn begin(&mut self, sink: &mut dyn Sink) {
        let Some(command) = &mut self.command else { return };
        match Standing::start(command) {
            Ok(standing) => self.standing = Some(standing),
            Err(error) => sink.notice(&format!(
                "there is no guardian ({error}): if this process is killed, affinities stay as they \
                 are until `instep restore` or the next `instep run`"
            )),
        }
    }

    /// Starts another one where it was killed.
    pub(crate) fn look(&mut self, sink: &mut dyn Sink) {
        let ended = |standing: &mut Standing| standing.child.try_wait().ok().flatten();
        if let Some(status) = self.standing.as_mut().and_then(ended) {
            sink.notice(&format!("the guardian ended ({status}); another one is started"));
            self.standing = None;
            self.begin(sink);
        }
    }

    /// Everything is as it should be: the guardian ends.
    pub(crate) fn release(self) {
        let Some(Standing { mut child, mut word }) = self.standing else { return };
        // One that is gone needs no word.
        let _ = word.write_all(DONE);
        drop(word);
        let end = Instant::now() + END;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Standing {
    fn start(command: &mut Command) -> io::Result<Self> {
        // Of the agent's own descriptors it keeps the one that messages go to.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir("/");
        let mut child = command.spawn()?;
        let (Some(word), Some(mut ready)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("it has no pipes"));
        };
        let mut said = vec![0; READY.len()];
        let heard = readable(&ready, START).and_then(|()| ready.read_exact(&mut said));
        match heard {
            Ok(()) if said == READY => Ok(Self { child, word }),
            heard => {
                // Whatever it is, it is no guardian.
                let _ = child.kill();
                let status = child.wait()?;
                Err(heard
                    .err()
                    .filter(|error| error.kind() == io::ErrorKind::TimedOut)
                    .unwrap_or(io::Error::other(format!("it ended before it was ready: {status}"))))
            }
        }
    }
}

/// Waits until something can be read.
fn readable(from: &impl std::os::fd::AsFd, limit: Duration) -> io::Result<()> {
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    let mut fds = [PollFd::new(from, PollFlags::IN)];
    match rustix::io::retry_on_intr(|| poll(&mut fds, Some(&limit)))? {
        0 => Err(io::Error::new(io::ErrorKind::TimedOut, "it is not ready after 10s")),
        _ => Ok(()),
    }
}

/// The guardian's side: waits for its parent's end, and puts back what that has left behind.
/// `None` when there was nothing to do, or another instance does it.
///
/// # Errors
/// It cannot wait, or what is recorded can be neither read nor put back.
pub fn stand(state: &StateDir) -> Result<Option<RestoreReport>, Error> {
    let agent = getppid().map(Pid::as_raw_nonzero).and_then(|pid| u32::try_from(pid.get()).ok());
    // Neither is necessary: a name is for people, and a session of its own has who leads one.
    let _ = rustix::thread::set_name(NAME);
    let _ = setsid();
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::default()).map_err(Error::Signals)?;
    }
    if wait().map_err(Error::Guard)? {
        return Ok(None);
    }
    clean_up(state, agent)
}

/// Waits for the agent's end; whether it said that there is nothing left to do.
fn wait() -> io::Result<bool> {
    let mut out = io::stdout().lock();
    out.write_all(READY).and_then(|()| out.flush())?;
    let mut word = Vec::new();
    io::stdin().lock().read_to_end(&mut word)?;
    Ok(word == DONE)
}

/// Restores what the agent left behind, once it is gone.
fn clean_up(state: &StateDir, agent: Option<u32>) -> Result<Option<RestoreReport>, Error> {
    let end = Instant::now() + GOING;
    loop {
        // The pipe is closed a moment before the locks are free and the process has ended.
        let Some(journal) = Journal::load(state)? else { return Ok(None) };
        let is_going = |pid: Option<u32>| pid == agent && Instant::now() < end;
        if journal.is_abandoned()? {
            match lock(state) {
                Ok(lock) => {
                    let mut applier = Applier::open(lock)?;
                    let ours = applier.journal().is_abandoned()?;
                    return if ours { Ok(Some(applier.restore()?)) } else { Ok(None) };
                }
                Err(Error::Host(instep_host::Error::Taken { pid, .. })) if !is_going(pid) => {
                    return Ok(None);
                }
                Err(Error::Host(instep_host::Error::Taken { .. })) => {}
                Err(error) => return Err(error),
            }
        } else if !matches!(journal.holder, Holder::Instance { pid, .. } if is_going(Some(pid))) {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a guardian holds the lock that could not be had: it will be free in a moment.
pub(crate) fn holds(error: &instep_host::Error) -> bool {
    let instep_host::Error::Taken { pid: Some(pid), .. } = error else { return false };
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.strip_suffix(b"\n") == Some(NAME.to_bytes())
}

/// Takes a lock, waiting while it is a guardian that has it.
pub(crate) fn after_guardians<T>(
    mut take: impl FnMut() -> Result<T, instep_host::Error>,
) -> Result<T, instep_host::Error> {
    let end = Instant::now() + GOING;
    loop {
        match take() {
            Err(error) if holds(&error) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            taken => return taken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use std::path::Path;

    #[derive(Default)]
    struct Heard(Vec<String>);

    impl Sink for Heard {
        fn record(&mut self, _: &Record<'_>) -> io::Result<()> {
            Ok(())
        }
        fn notice(&mut self, text: &str) {
            self.0.push(text.to_owned());
        }
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    /// A guardian that writes down what it hears; what it heard.
    fn hearing(end: impl FnOnce(Guard)) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("heard");
        let script = format!("echo ready; cat >{0}.part; mv {0}.part {0}", file.display());
        let mut heard = Heard::default();
        let guard = Guard::start(Some(shell(&script)), &mut heard);
        assert!(guard.standing.is_some(), "{:?}", heard.0);
        end(guard);
        let limit = Instant::now() + Duration::from_secs(20);
        while !Path::new(&file).exists() {
            assert!(Instant::now() < limit, "the guardian does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::read_to_string(file).unwrap()
    }

    #[test]
    fn only_an_agent_that_ends_in_order_says_that_all_is_done() {
        assert_eq!(hearing(Guard::release).as_bytes(), DONE);
        assert_eq!(hearing(drop), "");
        let panics = |guard| {
            std::thread::spawn(move || {
                let _guard: Guard = guard;
                panic!("as the agent might");
            })
            .join()
            .unwrap_err();
        };
        assert_eq!(hearing(panics), "");
    }

    #[test]
    fn that_there_is_no_guardian_is_told_and_harms_nothing() {
        for (command, why) in [
            (Command::new("/no/such/program"), "No such file"),
            (shell("exit 3"), "ended before it was ready: exit status: 3"),
            (shell("echo what"), "ended before it was ready"),
        ] {
            let mut heard = Heard::default();
            let mut guard = Guard::start(Some(command), &mut heard);
            assert!(heard.0.len() == 1 && heard.0[0].contains(why), "{:?}", heard.0);
            assert!(heard.0[0].contains("instep restore"), "{:?}", heard.0);
            guard.look(&mut heard);
            guard.release();
            assert_eq!(heard.0.len(), 1);
        }
    }

    #[test]
    fn a_lock_that_a_guardian_holds_is_waited_for() {
        let taken = |pid| instep_host::Error::Taken { pid, user: None };
        assert!(!holds(&taken(None)) && !holds(&taken(Some(std::process::id()))));
        std::thread::spawn(move || {
            rustix::thread::set_name(NAME).unwrap();
            // /proc/PID/comm is that of the first thread, which a test is not.
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            let mut times = 0;
            let done = after_guardians(|| {
                times += 1;
                if times < 3 { Err(taken(u32::try_from(tid).ok())) } else { Ok(times) }
            });
            assert_eq!(done.unwrap(), 3);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn nothing_is_restored_where_nothing_was_changed() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path().join("none"));
        assert!(clean_up(&state, None).unwrap().is_none());
        assert!(!state.path().exists(), "nothing is made to look for it");
    }
}
