//! An emulated host of any topology, in which KVM runs real guests: its kernel, its image, its
//! machine and the channel to it.
//!
//! ```text
//! spawn ──> booting ──`ready` on the port──> up ──run──> up
//!              │ exit, limit, stop            │ drop, life limit, owner dies
//!              └──────> killed, reaped, directory removed <──────┘
//! ```
//! It knows nothing of scenarios and of what the commands do.

pub mod accel;
pub mod anchor;
pub mod busy;
pub mod channel;
pub mod emulator;
pub mod image;
pub mod kernel;
pub mod lean;
pub mod machine;
pub mod programs;
pub mod size;
pub mod xen;

use crate::command::{self, read_lossy};
use crate::error::Error;
use crate::process::Process;
use crate::qmp::Qmp;
use crate::stop::Stop;
use crate::workdir;
use accel::AccelKind;
use channel::{Answer, Channel, Ready, Silence};
use emulator::{Emulator, INSTALL_QEMU};
use kernel::HostKernel;
use machine::{Clock, Files, HostMachine};
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How much longer than a command's own limit its answer is waited for: the limit is by the
/// emulated clock, which a busy machine slows down, and counting slows down much more.
fn grace(clock: Clock) -> u32 {
    match clock {
        Clock::Real => 3,
        Clock::Counted => 30,
    }
}

/// What errors call it.
pub const EMULATED: &str = "emulated host";
/// What a kernel says on its console when it is lost.
pub const PANIC: &str = "Kernel panic - not syncing";
/// What the first program says before it gives up: a kernel without virtio is no flaw of the emulation.
const NO_PORT: &str = "instep-lab: no virtio port";
/// Characters of what comes after it on its line, the reason, that are told.
const REASON: usize = 120;
/// A panic in words.
pub const PANICKED: &str = "its kernel panicked";

/// The file that tells where the CPUs of a host that does not answer are.
pub const REGISTERS: &str = "registers.txt";

/// The socket in its directory by which QEMU itself is asked.
const QMP: &str = "qmp";

/// How long QEMU may take to end once its port is closed.
const ENDS: Duration = Duration::from_secs(5);

/// By its own clock, how long a host that lives may say nothing while a command runs: four times as long
/// as it means to.
const SILENT: Duration = Duration::from_secs(20);

/// By its own clock, how long a host may take to boot, which takes 10 s; it may hang.
const BOOTS: Duration = Duration::from_secs(60);

/// A running emulated host; dropping it ends it.
#[derive(Debug)]
pub struct EmulatedHost {
    // Fields are dropped in order: QEMU ends before its directory goes.
    process: Process,
    channel: Channel,
    started: Instant,
    life: Duration,
    grace: u32,
    dir: TempDir,
}

impl EmulatedHost {
    /// Starts an emulated host whose initramfs is written by `image` to the path it is given.
    /// It ends when it has lived for `life`.
    ///
    /// # Errors
    /// When the image cannot be written, QEMU cannot be started, or `stop` is raised.
    pub fn spawn(
        (machine, accel): (&HostMachine, AccelKind),
        emulator: &Emulator,
        kernel: &HostKernel,
        life: Duration,
        stop: &Stop,
        image: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let dir = workdir::create("host")?;
        let at = |name: &str| dir.path().join(name);
        let (initrd, console, port, qmp) = (at("initrd.cpio"), at("console"), at("port"), at(QMP));
        image(&initrd)?;
        let xen = kernel.xen.as_ref().map(|xen| xen.hypervisor.as_path());
        let kernel = &kernel.image;
        let files =
            Files { xen, kernel, initrd: &initrd, console: &console, port: &port, qmp: &qmp };
        files.check()?;
        let said = at("qemu.log");
        let log = File::create(&said).map_err(|error| Error::io("make", &said, error))?;
        let mut qemu = emulator.command();
        qemu.args(machine.arguments(&files, accel))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let started = Instant::now();
        let process = Process::spawn(&mut qemu, life, INSTALL_QEMU)?;
        let grace = grace(machine.clock);
        let channel = Channel::new(connect(&port, &process, &dir, stop)?, SILENT * grace)?;
        Ok(Self { process, channel, started, life, grace, dir })
    }

    /// Waits until it is up; returns what it said.
    ///
    /// # Errors
    /// When QEMU ends, the limit passes or `stop` is raised.
    pub fn wait_ready(&mut self, limit: Duration, stop: &Stop) -> Result<Ready, Error> {
        let limit = limit.min(BOOTS * self.grace);
        let ready = self.channel.ready(self.started + limit, stop);
        ready.map_err(|silence| self.explain(silence, "ready"))
    }

    /// Runs a shell script in it, whatever its exit status. `limit` is by the host's clock.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn run(&mut self, script: &str, limit: Duration, stop: &Stop) -> Result<Answer, Error> {
        let deadline = Instant::now() + limit * self.grace + Duration::from_secs(30);
        let answer = self.channel.run(script, limit, deadline, stop);
        answer.map_err(|silence| {
            let first = script.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
            self.explain(silence, first)
        })
    }

    /// Runs a script that must succeed and gives its standard output.
    ///
    /// # Errors
    /// As [`EmulatedHost::run`], and when it fails: with its last lines.
    pub fn succeed(&mut self, script: &str, limit: Duration, stop: &Stop) -> Result<String, Error> {
        let answer = self.run(script, limit, stop)?;
        if answer.status == 0 {
            return Ok(answer.text());
        }
        let said = if answer.stderr.trim().is_empty() { answer.text() } else { answer.stderr };
        Err(Error::Command {
            command: script.lines().next().unwrap_or("").to_owned(),
            why: format!(
                "failed in the host (status {}): {}",
                answer.status,
                command::last_lines(&said, 6)
            ),
        })
    }

    /// How long it has lived.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// The process id of its QEMU.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its temporary directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What it has printed so far.
    pub fn console(&self) -> String {
        read_lossy(&self.dir.path().join("console"))
    }

    /// Keeps its console and QEMU's messages as a file in `into`, for a failure's sake.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep_console(&self, into: &Path) -> Result<PathBuf, Error> {
        let said = qemu_said(self.dir.path());
        kept(into.join("console.txt"), &format!("{}\n--- qemu ---\n{said}", self.console()))
    }

    /// Keeps its CPUs' registers as QEMU tells them, as a file in `into`: a host that does not answer says
    /// nothing itself.
    ///
    /// # Errors
    /// When QEMU does not answer either, or the file cannot be written.
    pub fn keep_registers(&self, into: &Path) -> Result<PathBuf, Error> {
        let registers = Qmp::connect(&self.dir.path().join(QMP))?.monitor("info registers -a")?;
        kept(into.join(REGISTERS), &registers)
    }

    fn explain(&self, silence: Silence, awaited: &str) -> Error {
        let name = EMULATED.to_owned();
        // Before its last words are read.
        let is_closed = matches!(silence, Silence::Closed);
        let ended = is_closed.then(|| self.process.ends_within(ENDS)).flatten();
        let console = last_words(self.dir.path());
        let what = match silence {
            Silence::Interrupted => return Error::Interrupted,
            Silence::Late => {
                let seconds = self.started.elapsed().as_secs();
                return Error::Slow { name, awaited: awaited.to_owned(), seconds, console };
            }
            Silence::Dead(silent) => {
                let how =
                    format!("has printed nothing for {} s: its CPUs do not run", silent.as_secs());
                return Error::Died { name, how, kept: None, console };
            }
            Silence::Closed => {
                if let Some(how) = died(&self.console(), ended) {
                    return Error::Died { name, how, kept: None, console };
                }
                match ended {
                    Some(_) if self.age() >= self.life => format!(
                        "its limit of {} passed before `{awaited}`; raise the scenario's `limit`",
                        humantime::format_duration(self.life)
                    ),
                    Some(how) => format!("QEMU ended ({how}) before `{awaited}`"),
                    None => format!("its port was closed before `{awaited}`"),
                }
            }
            Silence::Broken(said) => format!("said `{said}` instead of answering `{awaited}`"),
        };
        Error::Guest { name, what, console }
    }
}

/// How a host died of what nobody asked for, as far as can be told from its console and from how QEMU
/// ended: QEMU that was killed was out of time or memory, and one that failed said why.
fn died(console: &str, ended: Option<ExitStatus>) -> Option<String> {
    if let Some((_, reason)) = console.split_once(PANIC) {
        let reason: String =
            reason.lines().next().unwrap_or_default().chars().take(REASON).collect();
        return Some(format!("{PANICKED}{}", reason.trim_end()));
    }
    ended.filter(|_| !console.contains(NO_PORT)).and_then(fell)
}

/// How a machine fell, by how its QEMU ended, if nobody ended it.
pub fn fell(ended: ExitStatus) -> Option<String> {
    match ended.signal() {
        None if ended.success() => Some("its machine reset itself or was powered off".to_owned()),
        Some(libc::SIGSEGV | libc::SIGABRT | libc::SIGBUS | libc::SIGILL) => {
            Some(format!("QEMU crashed ({ended})"))
        }
        _ => None,
    }
}

fn kept(target: PathBuf, text: &str) -> Result<PathBuf, Error> {
    let written = std::fs::write(&target, text);
    written.map_err(|error| Error::io("write", &target, error)).map(|()| target)
}

/// Connects to the port, which QEMU makes soon after its start.
fn connect(
    port: &Path,
    process: &Process,
    dir: &TempDir,
    stop: &Stop,
) -> Result<UnixStream, Error> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match UnixStream::connect(port) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() >= end => {
                return Err(Error::io("connect to", port, error));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
        if let Some(status) = process.ended() {
            let (name, console) = (EMULATED.to_owned(), last_words(dir.path()));
            return Err(match fell(status) {
                Some(how) => Error::Died { name, how, kept: None, console },
                None => Error::Guest { name, what: format!("QEMU ended ({status})"), console },
            });
        }
        stop.check()?;
    }
}

fn last_words(dir: &Path) -> String {
    let console = read_lossy(&dir.join("console"));
    command::last_lines(&format!("{console}\n{}", qemu_said(dir)), 8)
}

/// What QEMU said, without its list of what the emulated CPU model lacks.
fn qemu_said(dir: &Path) -> String {
    let all = read_lossy(&dir.join("qemu.log"));
    let lines = all.lines().filter(|line| {
        !line.contains("TCG doesn't support requested feature")
            && !line.contains("doesn't support hyperthreading")
            && !line.contains("try enabling topoext")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashed_host_is_distinguished_from_a_stopped_one() {
        let ended = |raw| Some(ExitStatus::from_raw(raw));
        let died_of = |console, raw| died(console, ended(raw)).unwrap();
        let panicked = died("[1.0] Kernel panic - not syncing: x\r\n[1.1] CPU: 0", None);
        assert_eq!(panicked.as_deref(), Some("its kernel panicked: x"));
        assert_eq!(died_of("", 0), "its machine reset itself or was powered off");
        assert_eq!(died_of("", libc::SIGSEGV), "QEMU crashed (signal: 11 (SIGSEGV))");
        let no_port = "instep-lab: no virtio port named x";
        for (console, how) in
            [("", None), ("", ended(libc::SIGKILL)), ("", ended(1 << 8)), (no_port, ended(0))]
        {
            assert_eq!(died(console, how), None, "{how:?}");
        }
    }
}
