//! What the demo plays on: its guests, its directory, the `instep` binary, and what is printed.
//!
//! Everything said goes to standard output, so that a transcript is complete; progress goes to a
//! terminal only.

use crate::command;
use crate::error::Error;
use crate::guest::Guest;
use crate::spec::GuestSpec;
use crate::stop::Stop;
use crate::workdir;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// How long one `instep` command may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The state directory, relative to the demo's own.
const STATE: &str = "state";

/// The stage; dropping it ends the guests first, then removes the directory.
#[derive(Debug)]
pub(super) struct Stage {
    guests: Vec<Guest>,
    instep: PathBuf,
    cpus: Vec<u32>,
    suffix: String,
    stop: Stop,
    dir: TempDir,
}

/// A progress bar that goes away when dropped.
pub(super) struct Progress(ProgressBar);

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Stage {
    /// An empty stage for the binary at `instep`.
    pub(super) fn open(instep: &Path, stop: Stop) -> anyhow::Result<Self> {
        let instep = instep
            .canonicalize()
            .with_context(|| format!("cannot find the instep binary {}", instep.display()))?;
        let status =
            fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
        let dir = workdir::create("demo")?;
        let suffix =
            if names_are_free() { String::new() } else { format!("-{}", std::process::id()) };
        Ok(Self { guests: Vec::new(), instep, cpus: allowed_cpus(&status), suffix, stop, dir })
    }

    /// The CPUs this process, and so its guests, may use.
    pub(super) fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// The name of a guest; with this process's id when another demo runs.
    pub(super) fn name(&self, letter: char) -> String {
        format!("demo-{letter}{}", self.suffix)
    }

    /// The flag that ends everything.
    pub(super) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// The guests in the order of their start.
    pub(super) fn guests(&self) -> &[Guest] {
        &self.guests
    }

    /// One guest.
    pub(super) fn guest(&self, index: usize) -> &Guest {
        &self.guests[index]
    }

    /// The vCPUs of all guests.
    pub(super) fn vcpus(&self) -> u32 {
        self.guests.iter().map(|guest| guest.spec().vcpus).sum()
    }

    /// Boots guests side by side and says how long each took.
    pub(super) fn boot(&mut self, specs: Vec<GuestSpec>) -> anyhow::Result<()> {
        let first = self.guests.len();
        let what: Vec<String> =
            specs.iter().map(|spec| format!("{} ({} vCPUs)", spec.name, spec.vcpus)).collect();
        let busy = self.progress(&format!("booting {}", what.join(", ")));
        for spec in specs {
            self.guests.push(Guest::spawn(spec)?);
        }
        let times = self.guests[first..]
            .iter()
            .map(|guest| guest.wait_ready(&self.stop))
            .collect::<Result<Vec<Duration>, Error>>()?;
        drop(busy);
        for (guest, time) in self.guests[first..].iter().zip(times) {
            let spec = guest.spec();
            self.say(&format!(
                "{}: {} vCPUs, {} MiB, load {}; up in {:.1}s as process {}",
                spec.name,
                spec.vcpus,
                spec.memory_mib,
                spec.load,
                time.as_secs_f64(),
                guest.pid()
            ))?;
        }
        Ok(())
    }

    /// Echoes and runs `instep` with these arguments and the demo's state directory; its exit
    /// status must be one of `fine`.
    pub(super) fn instep(&self, args: &[&[&str]], fine: &[i32]) -> anyhow::Result<()> {
        let args = [args.concat(), vec!["--state-dir", STATE]].concat();
        self.say(&format!("\n$ instep {}", args.join(" ")))?;
        let mut command = Command::new(&self.instep);
        command.args(&args).current_dir(self.dir.path()).stdin(Stdio::null());
        // It touches the demo's own guests only, so it may run beside the host's instance.
        command.env("INSTEP_INSTANCE", format!("instep-demo-{}", std::process::id()));
        let mut child = command::die_with_parent(&mut command)
            .spawn()
            .with_context(|| format!("cannot start {}", self.instep.display()))?;
        let ended = command::wait(&mut child, LIMIT, &self.stop);
        if !matches!(ended, Ok(Some(_))) {
            let _ = child.kill();
            let _ = child.wait();
        }
        let Some(status) = ended? else {
            anyhow::bail!("`instep {}` took longer than {}s", args.join(" "), LIMIT.as_secs());
        };
        // A signal to the whole group may have ended the command before it was seen here.
        self.stop.check()?;
        match status.code() {
            Some(code) if fine.contains(&code) => Ok(()),
            _ => anyhow::bail!("`instep {}` failed ({status})", args.join(" ")),
        }
    }

    /// Prints a title.
    pub(super) fn title(&self, text: &str) -> anyhow::Result<()> {
        self.say(&format!("\n{text}\n{}", "-".repeat(text.chars().count())))
    }

    /// Prints a line or more.
    pub(super) fn say(&self, text: &str) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()?;
        Ok(())
    }

    /// Something about preparations, on standard error.
    pub(super) fn note(&self, text: &str) {
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Shows on a terminal that work goes on.
    pub(super) fn progress(&self, what: &str) -> Progress {
        if !io::stderr().is_terminal() {
            return Progress(ProgressBar::hidden());
        }
        let bar = ProgressBar::new_spinner().with_message(what.to_owned());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Progress(bar)
    }
}

/// Whether no process on this machine was started with a guest name of the demo's.
fn names_are_free() -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    !processes.flatten().any(|process| {
        fs::read(process.path().join("cmdline")).is_ok_and(|line| {
            line.split(|byte| *byte == 0).any(|arg| arg.starts_with(b"guest=demo-"))
        })
    })
}

/// The CPUs of `Cpus_allowed_list`, such as `0-3,8`; at most 4096 of them.
fn allowed_cpus(status: &str) -> Vec<u32> {
    let list =
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or("");
    let range = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().take(4096).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_cpus_are_ranges_and_single_numbers() {
        assert_eq!(allowed_cpus("Cpus_allowed_list:\t0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(allowed_cpus("Cpus_allowed_list:\t0-4294967295\n").len(), 4096);
        assert!(allowed_cpus("").is_empty());
    }
}
