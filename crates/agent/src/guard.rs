//! The guardian of a run: a process that puts every affinity back when the agent is killed.
//!
//! ```text
//! agent                             guardian
//! start --------- spawns ---------> its own session, deaf to signals
//!       <-------- "ready" --------- waits
//! cycles
//! all put back -- "done" ---------> ends
//! killed, or not - end of file ---> once the agent is gone: lock -> restore -> ends
//! ```
//! The agent alone holds the write end of the pipe that the guardian waits on, so that the kernel
//! closes it whatever ends the agent. The guardian is the same program started anew: it shares no
//! lock, no thread and no link to the kernel scheduler with the agent.
//!
//! It does not heed SIGTERM, SIGINT, SIGHUP and SIGUSR1, which the agent sees to itself: systemd sends
//! SIGTERM to what is left of a service as soon as its main process was killed, which is when the
//! guardian is needed. Nor does it heed SIGABRT, which systemd's watchdog sends to a whole service. What kills both leaves the rest to `instep restore` and the next run.

mod duty;
mod left;
mod lock;
#[cfg(test)]
mod testing;

use crate::sink::Sink;
pub use duty::stand;
use instep_host::apply::{Holder, StateDir};
pub use left::{HostJournal, Recorded, Restored, Threads};
pub(crate) use lock::after_guardians;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt::Display;
use std::io::{self, Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// A guardian's name for the kernel and, as its first argument, for everybody else: what goes by the
/// whole name (`pkill -x instep`, `killall instep`) means the agent alone. Plain `pkill instep` means both,
/// and so does a `pidof` that looks at the program file, too (procps', BusyBox's).
pub const NAME: &std::ffi::CStr = c"instep-guard";
/// The guardian's word that it stands.
const READY: &[u8] = b"ready\n";
/// The agent's word that there is nothing left to do.
const DONE: &[u8] = b"done\n";
/// How long the agent waits for the guardian to stand: a busy machine loads it slowly.
const START: Duration = Duration::from_secs(10);
/// How long the agent waits for it to end.
const END: Duration = Duration::from_secs(2);
/// How long a guardian may take to put things back, and how long a second one waits for it.
const GOING: Duration = Duration::from_secs(10);
/// The pause between two looks at what is waited for: the first one, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];
/// How many times as long as a start took in vain the next one is put off: the loop has other work.
const REST: u32 = 10;

/// The agent's side. Dropping it is no word: the guardian then looks for something to put back.
#[derive(Debug)]
pub(crate) struct Guard {
    command: Option<Command>,
    standing: Option<Standing>,
    /// Whether it was said that none stands.
    missed: bool,
    /// When one may be started.
    next: Instant,
}

#[derive(Debug)]
struct Standing {
    child: Child,
    word: ChildStdin,
}

impl Guard {
    /// Starts a guardian by this command, none without one; says so where it cannot.
    pub(crate) fn start(command: Option<Command>, sink: &mut dyn Sink) -> Self {
        let mut guard = Self { command, standing: None, missed: false, next: Instant::now() };
        guard.begin(sink);
        guard
    }

    fn begin(&mut self, sink: &mut dyn Sink) {
        let began = Instant::now();
        let Some(command) = self.command.as_mut().filter(|_| began >= self.next) else { return };
        match Standing::start(command) {
            Ok(standing) => {
                self.standing = Some(standing);
                if std::mem::take(&mut self.missed) {
                    sink.notice("a guardian runs again");
                }
            }
            Err(error) => {
                self.next = Instant::now() + began.elapsed() * REST;
                if !std::mem::replace(&mut self.missed, true) {
                    sink.notice(&missing(&error));
                }
            }
        }
    }

    /// Starts one where none stands: it was killed, or could not be started before.
    pub(crate) fn ensure_running(&mut self, sink: &mut dyn Sink) {
        let ended = |standing: &mut Standing| standing.child.try_wait().ok().flatten();
        if let Some(status) = self.standing.as_mut().and_then(ended) {
            sink.notice(&format!("the guardian ended ({status}); another one is started"));
            self.standing = None;
        }
        if self.standing.is_none() {
            self.begin(sink);
        }
    }

    /// The run ends. So does the guardian if nothing is left to put back; otherwise it hears no word.
    pub(crate) fn leave(self, state: &StateDir, left: &impl HostJournal) {
        if is_settled(state, left) {
            self.release();
        }
    }

    fn release(self) {
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

/// Whether nothing is recorded that anybody would have to put back. What cannot be read is not
/// settled: the guardian tells of it.
pub(crate) fn is_settled(state: &StateDir, left: &impl HostJournal) -> bool {
    left.read_record(state).is_ok_and(|left| left.is_none_or(|left| left.holder == Holder::Kept))
}

/// That there is no guardian, and what follows from it.
#[must_use]
pub fn missing(why: &dyn Display) -> String {
    format!(
        "there is no guardian ({why}): if this process is killed, affinities stay as they are until \
         `instep restore` or the next `instep run`"
    )
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

#[cfg(test)]
mod tests {
    use super::testing::{by_process, left_by};
    use super::*;
    use crate::testing::Heard;
    use std::path::Path;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    /// A guardian that writes down what it hears; what it heard.
    fn hearing(end: impl FnOnce(Guard)) -> String {
        let dir = instep_madehost::scratch_dir().unwrap();
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
    fn agent_with_changes_in_force_sends_no_all_clear() {
        let said = |holder: &str| {
            let (_dir, state) = left_by(holder);
            hearing(|guard| guard.leave(&state, &Threads::live()))
        };
        assert_eq!(said(&by_process(std::process::id(), 1)), "");
        assert_eq!(said("\"kept\"").as_bytes(), DONE);
        let (dir, state) = left_by("\"kept\"");
        let journal = dir.path().join("journal.json");
        std::fs::write(&journal, "{").unwrap();
        assert_eq!(
            hearing(|guard| guard.leave(&state, &Threads::live())),
            "",
            "who knows what is in it"
        );
        std::fs::remove_file(journal).unwrap();
        assert_eq!(hearing(|guard| guard.leave(&state, &Threads::live())).as_bytes(), DONE);
    }

    #[test]
    fn failed_guardian_is_started_again_and_reported_once() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let may = dir.path().join("may");
        let script = format!("test -e {} && echo ready && cat", may.display());
        let mut heard = Heard::default();
        let mut guard = Guard::start(Some(shell(&script)), &mut heard);
        let until = |guard: &mut Guard, heard: &mut Heard, stands: bool| {
            let limit = Instant::now() + Duration::from_secs(20);
            for looks in 0.. {
                guard.ensure_running(heard);
                if guard.standing.is_some() == stands && (stands || looks == 50) {
                    return;
                }
                assert!(Instant::now() < limit, "{:?}", heard.0);
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        until(&mut guard, &mut heard, false);
        assert_eq!(heard.0.len(), 1, "{:?}", heard.0);
        std::fs::write(may, "").unwrap();
        until(&mut guard, &mut heard, true);
        guard.ensure_running(&mut heard);
        assert!(heard.0.len() == 2 && heard.0[1].contains("runs again"), "{:?}", heard.0);
        guard.release();
    }

    #[test]
    fn missing_guardian_is_reported_and_harms_nothing() {
        for (command, why) in [
            (Command::new("/no/such/program"), "No such file"),
            (shell("exit 3"), "ended before it was ready: exit status: 3"),
            (shell("echo what"), "ended before it was ready"),
        ] {
            let mut heard = Heard::default();
            let mut guard = Guard::start(Some(command), &mut heard);
            assert!(heard.0.len() == 1 && heard.0[0].contains(why), "{:?}", heard.0);
            assert!(heard.0[0].contains("instep restore"), "{:?}", heard.0);
            guard.ensure_running(&mut heard);
            guard.release();
            assert_eq!(heard.0.len(), 1);
        }
    }
}
