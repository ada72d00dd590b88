//! Puts a sched_ext scheduler in force, notices when it falls out, and takes it out again.

use super::work::{One, Running};
use super::{SCHED_EXT, Tools, counters, read};
use crate::case::GuestKind;
use crate::error::Error;
use crate::plan::INSTEP;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long loading may take: an emulated machine verifies slowly.
const LOAD_LIMIT: Duration = Duration::from_secs(90);
/// How long one may take to go when asked.
const END_LIMIT: Duration = Duration::from_secs(20);

/// What the kernel says of all CPUs when it throws a scheduler out, in Instep's state directory.
const EXIT_DUMP: &str = "dispatch-exit.txt";

/// A scheduler's process.
#[derive(Debug)]
pub(super) struct InForce {
    child: Child,
    /// What the kernel calls it.
    pub(super) ops: Option<String>,
    log: PathBuf,
    /// Instep's configuration; none for others.
    config: Option<PathBuf>,
}

impl InForce {
    /// Starts a program and waits until its scheduler is in force.
    ///
    /// # Errors
    /// In words why it is not.
    pub(super) fn load(name: &str, tools: &Tools<'_>) -> Result<Self, String> {
        let now = state();
        if now != "disabled" {
            return Err(format!("sched_ext is {now} already: end the scheduler that is loaded"));
        }
        counters::enable();
        let log = tools.dir.join(format!("{name}.log"));
        let made = |path: &Path| {
            File::create(path).map_err(|error| format!("cannot make {}: {error}", path.display()))
        };
        let (out, errors) = (made(&log)?, File::options().append(true).open(&log));
        let errors = errors.map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        let mut config = None;
        let mut command = if name == INSTEP {
            let file = tools.dir.join("instep.toml");
            let text = configuration(&[], &[]);
            fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
            let mut command = Command::new(&tools.instep);
            // Placing waits: its cycle, once a minute by default, shall not fall into one cell only.
            command.args(["run", "--dispatch", "kernel", "--window", "3600s"]);
            command.args(["--interval", "3600s", "--config"]).arg(&file);
            let state = tools.dir.join("state");
            // That of an earlier one.
            let _ = fs::remove_file(state.join(EXIT_DUMP));
            command.arg("--state-dir").arg(state);
            config = Some(file);
            command
        } else {
            let path = tools.peers.get(name).ok_or_else(|| format!("no program for {name}"))?;
            Command::new(path)
        };
        command.stdin(Stdio::null()).stdout(out).stderr(errors);
        let child = command.spawn().map_err(|error| format!("cannot start {name}: {error}"))?;
        let mut loaded = Self { child, ops: None, log, config };
        let end = Instant::now() + LOAD_LIMIT;
        while state() != "enabled" {
            if let Ok(Some(status)) = loaded.child.try_wait() {
                return Err(format!("it ended ({status}): {}", loaded.last_words()));
            }
            if Instant::now() > end || (tools.stop)() {
                return Err(format!(
                    "it was not in force after {}s: {}",
                    LOAD_LIMIT.as_secs(),
                    loaded.last_words()
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let ops = read(Path::new(SCHED_EXT).join("root/ops"));
        loaded.ops = Some(ops.trim().to_owned()).filter(|ops| !ops.is_empty());
        Ok(loaded)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells Instep which processes are VMs, their weights, and what is off; others are not told.
    pub(super) fn tell(
        &mut self,
        running: &Running,
        without: &[String],
        tools: &Tools<'_>,
    ) -> Result<(), Error> {
        let Some(path) = &self.config else { return Ok(()) };
        let part = tools.dir.join("instep.toml.part");
        let written = fs::write(&part, configuration(&running.all, without));
        written.and_then(|()| fs::rename(&part, path)).map_err(|e| Error::io("write", path, e))?;
        self.signal(Signal::HUP);
        Ok(())
    }

    /// Why it is no longer in force; `None` while it is.
    pub(super) fn end_reason(&mut self) -> Option<String> {
        let now = state();
        if now == "enabled" && matches!(self.child.try_wait(), Ok(None)) {
            return None;
        }
        let dump = self.log.with_file_name("state").join(EXIT_DUMP);
        let waits = longest_waits(&read(&dump))
            .map_or_else(String::new, |waits| format!("; waited longest: {waits}"));
        Some(format!("the scheduler ended (sched_ext is {now}): {}{waits}", self.last_words()))
    }

    /// The last lines of what it said.
    fn last_words(&self) -> String {
        last_words(&read(&self.log))
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // One that has ended needs no signal.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for InForce {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Schedulers of the scx project end in order on SIGINT; Instep on both.
            self.signal(Signal::INT);
        }
        let end = Instant::now() + END_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        while state() != "disabled" && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// sched_ext's state in the kernel's word.
fn state() -> String {
    read(Path::new(SCHED_EXT).join("state")).trim().to_owned()
}

/// Instep's configuration: VMs by name and process with what it is told of them, and the mechanisms that are
/// off.
fn configuration(all: &[One], without: &[String]) -> String {
    let names: Vec<String> = without.iter().map(|name| format!("{name:?}")).collect();
    let mut text = format!("[dispatch]\nmode = \"kernel\"\nwithout = [{}]\n", names.join(", "));
    for One { name, pid, weight, settings, .. } in
        all.iter().filter(|one| one.kind == GuestKind::Process)
    {
        let _ = writeln!(text, "[dispatch.vm.{name}]\nweight = {weight}");
        for (key, value) in settings {
            let _ = writeln!(text, "{key} = {value:?}");
        }
        let _ = writeln!(text, "[[dispatch.process]]\nname = \"{name}\"\npid = {pid}");
    }
    text
}

/// The last three lines with anything in them, in one, at most 400 characters.
fn last_words(text: &str) -> String {
    let mut lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let lines = lines.split_off(lines.len().saturating_sub(3));
    let joined = lines.join(" / ");
    let count = joined.chars().count();
    let cut: String = joined.chars().skip(count.saturating_sub(400)).collect();
    if cut.is_empty() { "it said nothing".to_owned() } else { cut }
}

/// The threads of such a dump (scx_dump_task, kernel/sched/ext.c: ` R comm[pid] -20012ms`, since Linux 7.1 with
/// the cgroup of its scheduler before the time) that were runnable for longest, five at most, and since when.
fn longest_waits(dump: &str) -> Option<String> {
    let task = |line: &str| -> Option<(i64, String)> {
        let (before, since) = line.trim_end().rsplit_once(' ')?;
        let since: i64 = since.strip_suffix("ms")?.parse().ok()?;
        let name = before.get(..=before.rfind(']')?)?.trim();
        Some((since, format!("{name} {since}ms")))
    };
    let mut tasks: Vec<(i64, String)> = dump.lines().filter_map(task).collect();
    tasks.sort();
    tasks.truncate(5);
    let names: Vec<String> = tasks.into_iter().map(|(_, name)| name).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instep_gets_processes_weights_settings_and_what_is_off() {
        let settings = [("cosched".to_owned(), "relaxed".to_owned())].into();
        let work = One::made("r0-1-work", (GuestKind::Process, 300), settings);
        let guest = One::made("guest", (GuestKind::Kvm, 100), [].into());
        let text = configuration(&[work, guest], &["gang".to_owned()]);
        let value: toml::Value = toml::from_str(&text).unwrap();
        let dispatch = &value["dispatch"];
        assert_eq!(dispatch["without"][0].as_str(), Some("gang"));
        assert_eq!(dispatch["vm"]["r0-1-work"]["weight"].as_integer(), Some(300));
        assert_eq!(dispatch["vm"]["r0-1-work"]["cosched"].as_str(), Some("relaxed"));
        assert_eq!(dispatch["process"][0]["pid"].as_integer(), Some(4711));
        assert_eq!(
            dispatch["process"].as_array().unwrap().len(),
            1,
            "guests are found by themselves"
        );
    }

    #[test]
    fn longest_wait_is_read_from_the_kernels_dump() {
        let dump = "CPU 0   : nr_run=3 flags=0x1 cpu_rel=0\n          curr=x[7] class=ext\n\n  \
                    R kworker/u8:2[47] -20012ms\n      scx_state/flags=3/0x1\n *R a b[9] +0ms\n";
        let waits = longest_waits(dump).unwrap();
        assert_eq!(waits, "R kworker/u8:2[47] -20012ms, *R a b[9] 0ms");
        let of_7_2 = " *R compute-1[450] *root -19556ms\n      scx_state/flags=4/0x5\n";
        assert_eq!(longest_waits(of_7_2).unwrap(), "*R compute-1[450] -19556ms");
        assert_eq!(longest_waits("nothing 12ms\n"), None);
    }

    #[test]
    fn last_words_are_few() {
        assert_eq!(last_words("a\n\nb\nc\nd\n"), "b / c / d");
        assert_eq!(last_words(""), "it said nothing");
        assert!(last_words(&"x".repeat(5000)).len() == 400);
    }
}
