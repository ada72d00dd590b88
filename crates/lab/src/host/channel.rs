//! The channel to an emulated host: commands in, exit status and output back.
//!
//! A virtio port is a stream of bytes both ways. The host's `init.sh` speaks first:
//! ```text
//! ready UPTIME KVM RELEASE\n               KVM is yes or no
//! ```
//! Then, one command at a time:
//! ```text
//! run ID SECONDS BASE64\n              ->  a shell script, killed after SECONDS (status 143)
//! <-  alive ID\n                          every 5 s while it runs
//! <-  end ID STATUS OUT ERR\n OUT bytes of standard output, ERR bytes of standard error
//! ```
//! The other end is `channel.sh`: it passes on 48 MiB of standard output and 8 MiB of standard error,
//! and makes it a failure (status 125, told on standard error) when there was more.
//! A host that does not even say that it lives is one whose emulated CPUs stand still.
//! An answer with an older ID belongs to a command that was given up and is dropped. What comes
//! from the host is bounded and never trusted to be well formed.

use crate::error::Error;
use crate::stop::{Stop, TICK};
use data_encoding::BASE64;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The most that one command may answer.
const MAX_ANSWER: usize = 64 << 20;
/// The most that a line may have.
const MAX_LINE: usize = 4096;

/// What a command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its exit status; 143 when it ran into its limit, 125 when not all output is passed on.
    pub status: u32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error, bytes that are not UTF-8 replaced.
    pub stderr: String,
}

impl Answer {
    /// Standard output as text, bytes that are not UTF-8 replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// What the host said when it was up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Its uptime in hundredths of a second, by its own clock.
    pub uptime_centis: u64,
    /// Whether it has a /dev/kvm.
    pub kvm: bool,
    /// Its kernel's release.
    pub release: String,
}

/// Why the channel gave nothing.
#[derive(Debug)]
pub enum Silence {
    /// The time was over.
    Late,
    /// It stopped saying that it lives, this long ago.
    Dead(Duration),
    /// The other side is gone.
    Closed,
    /// What came is not the protocol.
    Broken(String),
    /// A stop was asked for.
    Interrupted,
}

/// One end of the channel.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    buffer: Vec<u8>,
    last: u64,
    /// How long it may say nothing while a command runs.
    patience: Duration,
    /// When it last said something, while a command runs.
    heard: Option<Instant>,
}

impl Channel {
    /// Takes over a connected socket, of a host that is dead when it is silent for `patience` while a
    /// command runs.
    ///
    /// # Errors
    /// When the socket cannot be set up.
    pub fn new(stream: UnixStream, patience: Duration) -> Result<Self, Error> {
        let setup = stream
            .set_read_timeout(Some(TICK))
            .and_then(|()| stream.set_write_timeout(Some(Duration::from_secs(30))));
        setup.map_err(|error| Error::io("set up", "the port's socket", error))?;
        Ok(Self { stream, buffer: Vec::new(), last: 0, patience, heard: None })
    }

    /// Waits for the host's first line.
    ///
    /// # Errors
    /// See [`Silence`].
    pub fn ready(&mut self, deadline: Instant, stop: &Stop) -> Result<Ready, Silence> {
        let line = self.line(deadline, stop)?;
        parse_ready(&line).ok_or(Silence::Broken(line))
    }

    /// Runs a shell script, which the host kills after `limit`, and waits until `deadline`.
    ///
    /// # Errors
    /// See [`Silence`].
    pub fn run(
        &mut self,
        script: &str,
        limit: Duration,
        deadline: Instant,
        stop: &Stop,
    ) -> Result<Answer, Silence> {
        // After a command that found it dead, none waits for it again.
        if self.heard.is_none_or(|at| at.elapsed() < self.patience) {
            self.heard = Some(Instant::now());
        }
        let answer = self.answer(script, limit, deadline, stop);
        if !matches!(answer, Err(Silence::Dead(_))) {
            self.heard = None;
        }
        answer
    }

    fn answer(
        &mut self,
        script: &str,
        limit: Duration,
        deadline: Instant,
        stop: &Stop,
    ) -> Result<Answer, Silence> {
        self.last += 1;
        let line = format!(
            "run {} {} {}\n",
            self.last,
            limit.as_secs().max(1),
            BASE64.encode(script.as_bytes())
        );
        self.stream.write_all(line.as_bytes()).map_err(|_| Silence::Closed)?;
        loop {
            let line = self.line(deadline, stop)?;
            if line.strip_prefix("alive ").is_some_and(|id| id.parse::<u64>().is_ok()) {
                continue;
            }
            let Some(end) = parse_end(&line) else { return Err(Silence::Broken(line)) };
            let stdout = self.bytes(end.stdout, deadline, stop)?;
            let stderr = self.bytes(end.stderr, deadline, stop)?;
            if end.id == self.last {
                let stderr = String::from_utf8_lossy(&stderr).into_owned();
                return Ok(Answer { status: end.status, stdout, stderr });
            }
        }
    }

    fn line(&mut self, deadline: Instant, stop: &Stop) -> Result<String, Silence> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if self.buffer.len() > MAX_LINE {
                return Err(Silence::Broken("a line without end".to_owned()));
            }
            self.more(deadline, stop)?;
        }
    }

    fn bytes(&mut self, count: usize, deadline: Instant, stop: &Stop) -> Result<Vec<u8>, Silence> {
        while self.buffer.len() < count {
            self.more(deadline, stop)?;
        }
        Ok(self.buffer.drain(..count).collect())
    }

    /// Reads what is there, at least a byte.
    fn more(&mut self, deadline: Instant, stop: &Stop) -> Result<(), Silence> {
        let mut chunk = [0u8; 1 << 16];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(Silence::Closed),
                Ok(count) => {
                    self.buffer.extend_from_slice(&chunk[..count]);
                    self.heard = self.heard.map(|_| Instant::now());
                    return Ok(());
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return Err(Silence::Closed),
                },
            }
            if stop.raised() {
                return Err(Silence::Interrupted);
            }
            if Instant::now() >= deadline {
                return Err(Silence::Late);
            }
            let silent = self.heard.map(|at| at.elapsed());
            if let Some(silent) = silent.filter(|silent| *silent >= self.patience) {
                return Err(Silence::Dead(silent));
            }
        }
    }
}

/// The header of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    id: u64,
    status: u32,
    stdout: usize,
    stderr: usize,
}

fn parse_end(line: &str) -> Option<End> {
    let mut words = line.split(' ');
    (words.next()? == "end").then_some(())?;
    let end = End {
        id: words.next()?.parse().ok()?,
        status: words.next()?.parse().ok()?,
        stdout: words.next()?.parse().ok()?,
        stderr: words.next()?.parse().ok()?,
    };
    let total = end.stdout.checked_add(end.stderr)?;
    (words.next().is_none() && total <= MAX_ANSWER).then_some(end)
}

fn parse_ready(line: &str) -> Option<Ready> {
    let mut words = line.split(' ');
    (words.next()? == "ready").then_some(())?;
    let (seconds, centis) = words.next()?.split_once('.')?;
    let (seconds, centis): (u64, u64) = (seconds.parse().ok()?, centis.parse().ok()?);
    let uptime_centis = seconds.checked_mul(100)?.checked_add(centis)?;
    let kvm = words.next()? == "yes";
    Some(Ready { uptime_centis, kvm, release: words.next()?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, Signal, kill_process_group};
    use std::os::unix::process::CommandExt as _;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    /// A channel whose other end says `said` and then closes.
    fn hearing(said: &'static [u8]) -> (Channel, std::thread::JoinHandle<String>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let other = std::thread::spawn(move || {
            theirs.write_all(said).unwrap();
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            let mut heard = String::new();
            theirs.read_to_string(&mut heard).unwrap();
            heard
        });
        (Channel::new(ours, PATIENCE).unwrap(), other)
    }

    #[test]
    fn a_command_is_sent_in_one_line_and_its_answer_read() {
        let (mut channel, other) = hearing(b"ready 4.25 yes 7.2.13\nend 1 3 5 2\nhi\n\x00\nno");
        let ready = channel.ready(soon(), &Stop::never()).unwrap();
        assert_eq!((ready.uptime_centis, ready.kvm, ready.release.as_str()), (425, true, "7.2.13"));
        let answer = channel.run("a\nb", Duration::from_secs(9), soon(), &Stop::never()).unwrap();
        assert_eq!((answer.status, answer.stdout.as_slice()), (3, b"hi\n\x00\n".as_slice()));
        assert_eq!(answer.stderr, "no");
        drop(channel);
        assert_eq!(other.join().unwrap(), "run 1 9 YQpi\n");
    }

    #[test]
    fn an_answer_to_a_command_given_up_is_dropped() {
        let (mut channel, _other) = hearing(b"end 0 0 2 0\nxxend 1 0 1 0\ny");
        let answer = channel.run("x", Duration::from_secs(9), soon(), &Stop::never()).unwrap();
        assert_eq!(answer.stdout, b"y");
    }

    #[test]
    fn a_host_that_talks_rubbish_or_too_much_is_an_error() {
        for said in [
            b"end 1 0 99999999999 0\n".as_slice(),
            b"end 1 0 18446744073709551615 18446744073709551615\n",
            b"end 1 0 1\n",
            b"hello\n",
        ] {
            let (mut channel, _other) = hearing(said);
            let result = channel.run("x", Duration::from_secs(9), soon(), &Stop::never());
            assert!(matches!(result, Err(Silence::Broken(_))), "{said:?}");
        }
        let (mut channel, _other) = hearing(b"end 1 0 9 0\nshort");
        let result = channel.run("x", Duration::from_secs(9), soon(), &Stop::never());
        assert!(matches!(result, Err(Silence::Closed)));
    }

    /// A host's end of the channel, run by this machine's shell; killed when dropped.
    struct Served {
        shell: std::process::Child,
        _dir: tempfile::TempDir,
    }

    impl Served {
        /// To the shell and what it started but for commands, which have groups of their own.
        fn signal(&self, signal: Signal) {
            let group = Pid::from_child(&self.shell);
            kill_process_group(group, signal).unwrap();
        }
    }

    impl Drop for Served {
        fn drop(&mut self) {
            self.signal(Signal::KILL);
            let _ = self.shell.wait();
        }
    }

    fn served(most: &str, patience: Duration) -> (Channel, Served) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(format!("exec 3<&0\n{}", super::super::image::CHANNEL));
        shell.env("lab_dir", dir.path()).env("lab_most", most).env("lab_beat", "0.1");
        let child =
            shell.process_group(0).stdin(std::os::fd::OwnedFd::from(theirs)).spawn().unwrap();
        (Channel::new(ours, patience).unwrap(), Served { shell: child, _dir: dir })
    }

    #[test]
    fn what_a_background_job_prints_does_not_break_the_channel() {
        let (mut channel, _served) = served("1000000", PATIENCE);
        let mut run = |script: &str| {
            let answer = channel.run(script, Duration::from_secs(60), soon(), &Stop::never());
            answer.unwrap_or_else(|silence| panic!("{script}: {silence:?}"))
        };
        let job = run("for i in $(seq 60); do seq 3000; done & echo begun; exit 3");
        assert_eq!(job.status, 3);
        assert!(job.text().contains("begun"));
        for _ in 0..30 {
            let answer = run("echo out; echo err >&2");
            assert_eq!((answer.text().as_str(), answer.stderr.as_str()), ("out\n", "err\n"));
        }
    }

    #[test]
    fn too_much_output_fails_the_command_and_not_the_channel() {
        let (mut channel, _served) = served("100", PATIENCE);
        let mut run = |script: &str| {
            channel.run(script, Duration::from_secs(60), soon(), &Stop::never()).unwrap()
        };
        let much = run("seq 1000; echo why >&2");
        assert_eq!((much.status, much.stdout.len()), (125, 100));
        assert!(much.stderr.starts_with("why\n") && much.stderr.contains("of 3893 bytes"));
        assert_eq!(run("echo fine").text(), "fine\n");
    }

    #[test]
    fn host_that_makes_progress_is_alive_and_a_silent_one_dead() {
        if !instep_madehost::skip::may_take_long() {
            return;
        }
        let (mut channel, served) = served("100", Duration::from_secs(3));
        let stop = Stop::never();
        let answer = channel.run("sleep 5; echo done", Duration::from_secs(60), soon(), &stop);
        assert_eq!(answer.unwrap().text(), "done\n");
        // As all CPUs of an emulated host may.
        served.signal(Signal::STOP);
        let limit = Duration::from_secs(60);
        let silence = channel.run("true", limit, soon(), &stop);
        let Err(Silence::Dead(silent)) = silence else { panic!("{silence:?}") };
        assert!(silent >= Duration::from_secs(3));
        let again = Instant::now();
        assert!(matches!(channel.run("true", limit, soon(), &stop), Err(Silence::Dead(_))));
        assert!(again.elapsed() < Duration::from_secs(2), "nobody waits for the dead");
    }

    #[test]
    fn a_silent_host_is_late() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(ours, PATIENCE).unwrap();
        assert!(matches!(channel.ready(Instant::now(), &Stop::never()), Err(Silence::Late)));
    }
}
