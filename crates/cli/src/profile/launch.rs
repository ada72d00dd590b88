//! Starts a command so that it is watched from its first instruction on: a shell stops itself, the
//! watching is set up, the shell goes on and becomes the command.
//!
//! What the command prints goes to standard error, so that standard output holds the profile.

use anyhow::Context;
use instep_core::idset::CpuSet;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a command may take to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(3);

/// Fails with what is missing when the command cannot run, before anything is measured.
fn check(words: &[String], cpus: Option<&CpuSet>) -> anyhow::Result<()> {
    let program = words.first().context("there is no command")?;
    anyhow::ensure!(
        is_there(program),
        "`{program}` is no program that can be run: it is not in PATH, or is not executable"
    );
    anyhow::ensure!(
        cpus.is_none() || is_there("taskset"),
        "--on takes `taskset`, which is not installed (Debian: apt install util-linux)"
    );
    Ok(())
}

/// Whether there is an executable file of this name, in PATH unless the name is a path.
fn is_there(program: &str) -> bool {
    let runs = |path: &Path| {
        path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return runs(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| runs(&dir.join(program)))
}

/// A command that was started; dropping it kills it.
pub(super) struct Launched {
    child: Child,
    asked: Option<Instant>,
    ended: Option<ExitStatus>,
}

impl Launched {
    /// Starts the command up to the point where it becomes itself, confined to `cpus` if given.
    pub(super) fn stopped(words: &[String], cpus: Option<&CpuSet>) -> anyhow::Result<Self> {
        check(words, cpus)?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "kill -STOP $$; exec \"$@\"", "instep"]);
        if let Some(cpus) = cpus {
            command.args(["taskset", "-c", &cpus.to_string()]);
        }
        command.args(words).stdout(Stdio::from(io::stderr()));
        let child = command.spawn().context("cannot start /bin/sh, which starts the command")?;
        let launched = Self { child, asked: None, ended: None };
        let status = waitpid(Some(launched.process()?), WaitOptions::UNTRACED)
            .context("cannot wait for the command to be ready")?;
        anyhow::ensure!(
            status.is_some_and(|(_, status)| status.stopped()),
            "the shell that starts the command ended before it began"
        );
        Ok(launched)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn process(&self) -> anyhow::Result<Pid> {
        let raw = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        raw.context("a process without a number")
    }

    /// Lets it begin.
    pub(super) fn go(&self) -> anyhow::Result<()> {
        kill_process(self.process()?, Signal::CONT).context("cannot let the command begin")
    }

    /// How it ended, if it did.
    pub(super) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().context("cannot wait for the command")?;
        }
        Ok(self.ended)
    }

    /// Whether it was asked to end.
    pub(super) fn was_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Asks it to end; kills it when it was asked long ago.
    pub(super) fn end(&mut self) -> anyhow::Result<()> {
        match self.asked {
            None => {
                self.asked = Some(Instant::now());
                kill_process(self.process()?, Signal::TERM).context("cannot end the command")
            }
            Some(asked) if asked.elapsed() > PATIENCE => {
                self.child.kill().context("cannot kill the command")
            }
            Some(_) => Ok(()),
        }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
