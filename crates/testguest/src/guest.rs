//! A running guest, which never outlives its owner.
//!
//! ```text
//! spawn ──> booting ──READY on the console──> running
//!              │ exit, limit, stop                │ drop, life limit, owner dies
//!              └──────────> killed, reaped, directory removed <──────────┘
//! ```
//! Its QEMU is a [`Process`], which says what ends it.

use crate::spec::GuestSpec;
use instep_lab::command::{self, read_lossy};
use instep_lab::host::emulator::{INSTALL_QEMU, QEMU};
use instep_lab::image::READY;
use instep_lab::process::Process;
use instep_lab::qmp::Qmp;
use instep_lab::stop::TICK;
use instep_lab::{Error, Stop, workdir};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A running guest; dropping it ends it.
#[derive(Debug)]
pub struct Guest {
    spec: GuestSpec,
    process: Process,
    started: Instant,
    dir: TempDir,
}

/// One heartbeat of a guest's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Guest time since boot, in hundredths of a second.
    pub uptime_centis: u64,
    /// Units of work done since boot, by all workers.
    pub work: u64,
    /// Units done since the heartbeat before.
    pub rate: u64,
}

impl Guest {
    /// Starts a guest and waits until its load runs. One that is too slow to boot is tried once
    /// more, and that is said on standard error: machines that run tests are busy.
    ///
    /// # Errors
    /// When QEMU cannot be started, ends, or twice is not ready within its boot limit.
    pub fn start(spec: GuestSpec) -> Result<Self, Error> {
        let guest = Self::spawn(spec.clone())?;
        match guest.wait_ready(&Stop::never()) {
            Ok(_) => return Ok(guest),
            Err(error @ Error::Slow { .. }) => eprintln!("{error}\ntrying once more"),
            Err(error) => return Err(error),
        }
        drop(guest);
        let guest = Self::spawn(spec)?;
        guest.wait_ready(&Stop::never())?;
        Ok(guest)
    }

    /// Starts QEMU and returns at once, so that several guests boot side by side.
    ///
    /// # Errors
    /// When the guest's directory cannot be made or QEMU cannot be started.
    pub fn spawn(spec: GuestSpec) -> Result<Self, Error> {
        let dir = workdir::create(&spec.name)?;
        let said = dir.path().join("qemu.log");
        let log = File::create(&said).map_err(|error| Error::io("make", &said, error))?;
        let mut qemu = Command::new(QEMU);
        qemu.args(spec.arguments(&dir.path().join("console")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let process = Process::spawn(&mut qemu, spec.life_limit, INSTALL_QEMU)?;
        Ok(Self { spec, process, started: Instant::now(), dir })
    }

    /// Waits until the guest's load runs and says how long it took since the start.
    ///
    /// # Errors
    /// When QEMU ends, the boot limit passes or `stop` is raised.
    pub fn wait_ready(&self, stop: &Stop) -> Result<Duration, Error> {
        self.wait_for(READY, self.started + self.spec.boot_limit, stop)?;
        Ok(self.started.elapsed())
    }

    /// Waits until `needle` is on the console.
    ///
    /// # Errors
    /// When QEMU ends, the deadline passes or `stop` is raised.
    pub fn wait_for(&self, needle: &str, deadline: Instant, stop: &Stop) -> Result<(), Error> {
        loop {
            if self.console().contains(needle) {
                return Ok(());
            }
            stop.check()?;
            if let Some(how) = self.ended() {
                return Err(self.failed(format!("QEMU ended ({how}) before `{needle}`")));
            }
            if Instant::now() >= deadline {
                return Err(Error::Slow {
                    name: self.named(),
                    awaited: needle.to_owned(),
                    seconds: self.started.elapsed().as_secs(),
                    console: self.last_words(),
                });
            }
            std::thread::sleep(TICK);
        }
    }

    /// The specification it was started by.
    pub fn spec(&self) -> &GuestSpec {
        &self.spec
    }

    /// What it is called in messages.
    pub fn named(&self) -> String {
        format!("guest {}", self.spec.name)
    }

    /// The process id of its QEMU.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its temporary directory; a good place for a QMP socket is elsewhere, since the
    /// specification names it before this directory exists.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What it has printed so far.
    pub fn console(&self) -> String {
        read_lossy(&self.dir.path().join("console"))
    }

    /// Its heartbeats so far.
    pub fn beats(&self) -> Vec<Beat> {
        parse_beats(&self.console())
    }

    /// A QMP session over the socket of its specification.
    ///
    /// # Errors
    /// When it has no socket, or the socket does not answer.
    pub fn qmp(&self) -> Result<Qmp, Error> {
        let Some(socket) = &self.spec.qmp else {
            return Err(self.failed("it was started without a QMP socket".to_owned()));
        };
        Qmp::connect(socket)
    }

    /// The thread id of each vCPU, by its index, as QEMU tells it.
    ///
    /// # Errors
    /// When it has no QMP socket, or QEMU does not answer.
    pub fn vcpu_threads(&self) -> Result<Vec<(u32, u32)>, Error> {
        let answer = self.qmp()?.execute("query-cpus-fast", json!({}))?;
        parse_cpus(&answer).ok_or_else(|| self.failed("query-cpus-fast: no list".to_owned()))
    }

    /// How QEMU ended, if it did.
    pub fn ended(&self) -> Option<String> {
        self.process.ended().map(|status| status.to_string())
    }

    fn failed(&self, what: String) -> Error {
        Error::Guest { name: self.named(), what, console: self.last_words() }
    }

    /// The end of the console and of what QEMU said.
    fn last_words(&self) -> String {
        let qemu = read_lossy(&self.dir.path().join("qemu.log"));
        command::last_lines(&format!("{}\n{qemu}", self.console()), 6)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(socket) = &self.spec.qmp {
            let _ = fs::remove_file(socket);
        }
    }
}

/// (index, thread id) of each vCPU in an answer to `query-cpus-fast`, by index.
fn parse_cpus(answer: &Value) -> Option<Vec<(u32, u32)>> {
    let number = |cpu: &Value, key: &str| cpu.get(key)?.as_u64()?.try_into().ok();
    let mut cpus = answer
        .as_array()?
        .iter()
        .map(|cpu| Some((number(cpu, "cpu-index")?, number(cpu, "thread-id")?)))
        .collect::<Option<Vec<(u32, u32)>>>()?;
    cpus.sort_unstable();
    Some(cpus)
}

/// The heartbeats in a console's text; lines that are cut or mixed up are left out.
fn parse_beats(console: &str) -> Vec<Beat> {
    let complete = console.rsplit_once('\n').map_or("", |(lines, _)| lines);
    complete.lines().filter_map(parse_beat).collect()
}

fn parse_beat(line: &str) -> Option<Beat> {
    let mut words = line.trim().strip_prefix("instep-guest: beat ")?.split(' ');
    let (seconds, centis) = words.next()?.strip_prefix("up=")?.split_once('.')?;
    let (seconds, centis): (u64, u64) = (seconds.parse().ok()?, centis.parse().ok()?);
    Some(Beat {
        uptime_centis: seconds.checked_mul(100)?.checked_add(centis)?,
        work: words.next()?.strip_prefix("work=")?.parse().ok()?,
        rate: words.next()?.strip_prefix("rate=")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beats_are_read_and_broken_lines_left_out() {
        let console = "[ 0.1] Linux\r\ninstep-guest: ready cpus=2\r\n\
                       instep-guest: beat up=2.05 work=12 rate=12\r\n\
                       instep-guest: beat up=3.1 [ 3.2] rcu\r\n\
                       instep-guest: beat up=4.15 work=30 rate=18\r\ninstep-guest: beat up=5.1";
        let beats = parse_beats(console);
        assert_eq!(beats.len(), 2);
        assert_eq!(beats[1], Beat { uptime_centis: 415, work: 30, rate: 18 });
    }

    #[test]
    fn numbers_out_of_range_are_no_beat() {
        let huge = "instep-guest: beat up=99999999999999999999.0 work=1 rate=1\n";
        assert!(parse_beats(huge).is_empty());
        let overflow = format!("instep-guest: beat up={}.00 work=1 rate=1\n", u64::MAX);
        assert!(parse_beats(&overflow).is_empty());
    }

    #[test]
    fn vcpus_are_listed_by_index() {
        let answer = json!([
            {"cpu-index": 1, "thread-id": 11, "qom-path": "/b"},
            {"cpu-index": 0, "thread-id": 10, "qom-path": "/a"}
        ]);
        assert_eq!(parse_cpus(&answer), Some(vec![(0, 10), (1, 11)]));
    }

    #[test]
    fn an_answer_of_another_shape_is_refused() {
        assert_eq!(parse_cpus(&json!({})), None);
        assert_eq!(parse_cpus(&json!([{"cpu-index": -1, "thread-id": 3}])), None);
    }
}
