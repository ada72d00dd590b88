//! The work of a cell: processes started in control groups of their own, or guests set free for the
//! time of the cell.

use super::groups::Group;
use super::{Tools, read};
use crate::case::{GuestKind, Work};
use crate::error::Error;
use crate::load_line::{self, AT, Counted, DONE};
use crate::plan::{Job, Times};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often instep-load tells its work.
const REPORT: Duration = Duration::from_millis(200);
/// In guests, where every byte that is printed costs.
const GUEST_REPORT: Duration = Duration::from_millis(500);
/// Beyond a cell's own time, work ends by itself after this, should nobody end it.
const SPARE: Duration = Duration::from_secs(60);
/// Where the lab keeps what its guests say, and their processes.
const LAB: &str = "/run/lab";
/// The most that is read of what work said.
const MAX_SAID: u64 = 16 << 20;

/// One that runs.
#[derive(Debug)]
pub(super) struct One {
    /// What it is called: unique among all cells.
    pub(super) name: String,
    /// Its process, or its guest's.
    pub(super) pid: u32,
    pub(super) kind: GuestKind,
    pub(super) weight: u32,
    /// What else Instep is told.
    pub(super) settings: BTreeMap<String, String>,
    group: Group,
    child: Option<Child>,
    /// What it says, and how long that was before.
    said: PathBuf,
    skip: u64,
}

/// All that runs in a cell, the measured work first.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) all: Vec<One>,
    work: Work,
    began: Instant,
    began_uptime: f64,
}

impl Running {
    /// Starts what a cell wants, what runs beside first, so that the work never runs alone.
    pub(super) fn start(
        job: &Job,
        times: Times,
        tools: &Tools<'_>,
        tag: &str,
    ) -> Result<Self, Error> {
        let began = Instant::now();
        let mut running =
            Self { all: Vec::new(), work: job.case.work.clone(), began, began_uptime: uptime() };
        let mut guests = job.case.guests().into_iter();
        let plans: Vec<(String, &Work, Option<String>)> = job
            .case
            .all()
            .map(|(name, work)| {
                let guest = (work.kind == GuestKind::Kvm).then(|| guests.next()).flatten();
                (format!("{tag}-{name}"), work, guest.map(|(guest, _)| guest))
            })
            .collect();
        let count = if job.alone { 1 } else { plans.len() };
        for (name, work, guest) in plans.into_iter().take(count).rev() {
            let one = match guest {
                Some(guest) => free(&guest, work)?,
                None if job.alone => spawn(&name, work, Group::alone(&name, work)?, times, tools)?,
                None => spawn(&name, work, Group::make(&name, work, &job.case)?, times, tools)?,
            };
            running.all.insert(0, one);
        }
        (running.began, running.began_uptime) = (Instant::now(), uptime());
        Ok(running)
    }

    /// How long the work has run.
    pub(super) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// CPU time of each so far, in microseconds.
    pub(super) fn usage(&self) -> Vec<u64> {
        self.all.iter().map(|one| one.group.usage_us()).collect()
    }

    /// The guest that used no CPU time at all, by what each used: even an idle one has a clock.
    pub(super) fn stopped(&self, cpus: &[f64]) -> Option<String> {
        let mut guests = self.all.iter().zip(cpus).filter(|(one, _)| one.kind == GuestKind::Kvm);
        guests.find(|(_, used)| **used <= 0.0).map(|(one, _)| one.name.clone())
    }

    /// Whether the measured work is a VM.
    pub(super) fn has_vcpus(&self) -> bool {
        self.work.kind != GuestKind::Host
    }

    /// The threads of the measured work that are vCPUs, by number.
    pub(super) fn vcpus(&self) -> Vec<(u32, u32)> {
        let Some(one) = self.all.first() else { return Vec::new() };
        let entries = fs::read_dir(format!("/proc/{}/task", one.pid)).into_iter().flatten();
        let tids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        let mut tids: Vec<u32> = tids.collect();
        tids.sort_unstable();
        if one.kind == GuestKind::Kvm {
            let comm = |tid: &u32| read(format!("/proc/{}/task/{tid}/comm", one.pid));
            let index = |tid: &u32| {
                let name = comm(tid);
                name.strip_prefix("CPU ")?.split('/').next()?.parse().ok()
            };
            return tids.iter().filter_map(|tid| Some((index(tid)?, *tid))).collect();
        }
        // The first thread of instep-load only reports; its workers are the vCPUs.
        if self.work.is_instep_load() && tids.len() == self.work.vcpus as usize + 1 {
            tids.retain(|tid| *tid != one.pid);
        }
        (0..).zip(tids).collect()
    }

    /// Ends everything; what the measured work said.
    pub(super) fn end(&mut self) -> String {
        self.all.iter().for_each(|one| one.group.end());
        for one in &mut self.all {
            if let Some(child) = &mut one.child {
                // The group is dead by now; waiting only takes the body away.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        self.all.first().map_or_else(String::new, |one| tail(&one.said, one.skip))
    }

    /// The rate that its words tell, between these times since its start.
    pub(super) fn counted(
        &self,
        said: &str,
        from: Duration,
        until: Duration,
    ) -> Result<Counted, String> {
        let guest = self.work.kind == GuestKind::Kvm;
        let unit = self.work.per.as_deref().unwrap_or("runs");
        match (self.work.is_instep_load(), guest) {
            // Up to what came before tracing, whenever the first line was.
            (true, true) => load_line::after_pause(said, from, until.saturating_sub(GUEST_REPORT)),
            (true, false) => load_line::between(said, from, until),
            (false, true) => {
                let first = said.lines().find_map(|l| l.strip_prefix(DONE)?.trim().parse().ok());
                let from = first.unwrap_or(0.0) + from.as_secs_f64();
                load_line::repeated(said, unit, from, f64::MAX)
            }
            (false, false) => {
                let at = |time: Duration| self.began_uptime + time.as_secs_f64();
                load_line::repeated(said, unit, at(from), at(until))
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sets a guest free that the lab has started and frozen.
fn free(guest: &str, work: &Work) -> Result<One, Error> {
    let at = |ending: &str| Path::new(LAB).join(format!("{guest}.{ending}"));
    let pid = read(at("pid")).trim().parse().map_err(|_| {
        Error::lacking(
            format!("guest {guest} does not run here"),
            "leave --here out: it needs the lab",
        )
    })?;
    let said = at("console");
    let skip = fs::metadata(&said).map_or(0, |meta| meta.len());
    let group = Group::of_guest(guest);
    group.freeze(false)?;
    let name = guest.to_owned();
    let (kind, weight, settings) = settings_of(work);
    Ok(One { name, pid, kind, weight, settings, group, child: None, said, skip })
}

/// Starts a process in a group of its own.
fn spawn(
    name: &str,
    work: &Work,
    group: Group,
    times: Times,
    tools: &Tools<'_>,
) -> Result<One, Error> {
    let said = tools.dir.join(format!("{name}.out"));
    let out = File::create(&said).map_err(|error| Error::io("make", &said, error))?;
    let errors = out.try_clone().map_err(|error| Error::io("write", &said, error))?;
    let enter = group.procs().map(|procs| format!("echo $$ >'{}' || exit 1\n", procs.display()));
    let script = enter.collect::<String>() + &command(work, times, tools);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).stdin(Stdio::null()).stdout(out).stderr(errors);
    let child = shell.spawn().map_err(|error| Error::io("run", "sh", error))?;
    let (name, pid) = (name.to_owned(), child.id());
    let (kind, weight, settings) = settings_of(work);
    Ok(One { name, pid, kind, weight, settings, group, child: Some(child), said, skip: 0 })
}

/// What schedulers are told of it.
fn settings_of(work: &Work) -> (GuestKind, u32, BTreeMap<String, String>) {
    (work.kind, work.weight, work.settings.clone())
}

/// The shell's words that run a process: instep-load in its place, other programs again and again.
fn command(work: &Work, times: Times, tools: &Tools<'_>) -> String {
    let life = times.settle + times.measure + times.trace + SPARE;
    if work.is_instep_load() {
        let mode = work.load.trim_start().trim_start_matches("instep-load");
        let report = if work.reports_once() { times.measure } else { REPORT };
        let first = work.realtime.map_or_else(String::new, |at| format!("chrt -f {at} "));
        return format!(
            "exec {first}'{}'{mode} --threads {} --float --unit-ns {} --duration {}ms --report {}ms",
            tools.load.display(),
            work.vcpus,
            tools.unit_ns,
            life.as_millis(),
            report.as_millis()
        );
    }
    again(&work.load, (uptime() + life.as_secs_f64()) as u64)
}

/// A shell loop that runs a program until the machine has been up for so many seconds, and says
/// each time when that was.
fn again(load: &str, until: u64) -> String {
    format!(
        "up=0\nwhile [ ${{up%.*}} -lt {until} ]; do\n{load} >/dev/null 2>&1\n\
         read -r up rest </proc/uptime\necho \"{DONE} $up\"\ndone"
    )
}

/// The command that a guest runs for this work, as long as it lives.
pub fn guest_command(work: &Work) -> String {
    if work.is_instep_load() {
        let report = GUEST_REPORT.as_millis();
        let (take, late) = match work.is_ping() {
            true => ("p=${l#*\\\"p50\\\":}; q=${l#*\\\"p99\\\":}\n", " ${p%%,*} ${q%%,*}"),
            false => ("", ""),
        };
        format!(
            "{} --threads {} --duration 0 --report {report}ms | while read -r l; do\n\
             t=${{l#*\\\"t_ns\\\":}}; w=${{l#*\\\"work\\\":}}; u=${{l#*\\\"work_unit\\\":\\\"}}\n\
             {take}echo \"{AT} ${{t%%,*}} ${{w%%,*}} ${{u%%\\\"*}}{late}\"\ndone",
            work.load, work.vcpus
        )
    } else {
        again(&work.load, 1 << 30)
    }
}

/// Seconds since the machine was booted.
fn uptime() -> f64 {
    let text = read("/proc/uptime");
    text.split_whitespace().next().and_then(|up| up.parse().ok()).unwrap_or(0.0)
}

/// What a file has from here on, as far as it is not too much.
fn tail(path: &Path, skip: u64) -> String {
    let mut bytes = Vec::new();
    if let Ok(mut file) = File::open(path)
        && file.seek(SeekFrom::Start(skip)).is_ok()
    {
        // What could not be read is missing in what was counted, which then fails.
        let _ = file.take(MAX_SAID).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
impl One {
    /// One of no process.
    pub(super) fn made(
        name: &str,
        (kind, weight): (GuestKind, u32),
        settings: BTreeMap<String, String>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            pid: 4711,
            kind,
            weight,
            settings,
            group: Group::of_guest("none"),
            child: None,
            said: PathBuf::new(),
            skip: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(load: &str) -> Work {
        let text = format!("load = '{load}'\nvcpus = 2\n");
        toml::from_str(&text).unwrap()
    }

    fn tools() -> Tools<'static> {
        Tools {
            instep: "/i".into(),
            load: "/l/instep-load".into(),
            peers: [].into(),
            dir: "/d".into(),
            boot: 0,
            unit_ns: 94.5,
            stop: &|| false,
        }
    }

    const TIMES: Times = Times {
        settle: Duration::from_secs(1),
        measure: Duration::from_secs(2),
        trace: Duration::from_secs(1),
    };

    #[test]
    fn instep_load_replaces_the_shell_and_gets_threads_and_time() {
        let line = command(&work("instep-load barrier --kind spin"), TIMES, &tools());
        assert_eq!(
            line,
            "exec '/l/instep-load' barrier --kind spin --threads 2 --float --unit-ns 94.5 \
             --duration 64000ms --report 200ms"
        );
        let first = Work { realtime: Some(9), ..work("instep-load ping") };
        let line = command(&first, TIMES, &tools());
        assert!(line.starts_with("exec chrt -f 9 '/l/instep-load' ping --threads"), "{line}");
        assert!(line.ends_with("--report 2000ms"), "{line}");
    }

    #[test]
    fn another_program_is_run_again_until_its_time_is_over() {
        let loop_of = again("true", uptime() as u64 + 1);
        let ran = Command::new("sh").args(["-c", &loop_of]).output().unwrap();
        let text = String::from_utf8(ran.stdout).unwrap();
        assert!(load_line::repeated(&text, "runs", 0.0, f64::MAX).unwrap().rate > 1.0, "{text}");
    }

    /// The guest's own words, with a shell of this machine.
    #[test]
    fn guest_says_no_more_than_time_work_unit_and_how_late_it_woke() {
        let line = "{\"schema\":\"instep.load/1\",\"total\":false,\"t_ns\":4711,\
                    \"work_unit\":\"phases\",\"work\":42,\"rate_per_s\":1.0,\
                    \"late_ns\":{\"count\":9,\"p50\":5,\"p90\":6,\"p99\":7,\"max\":8}}";
        let said = |load: &str| {
            let script = guest_command(&work(load));
            let script = format!("instep-load() {{ echo '{line}'; }}\n{script}");
            let ran = Command::new("bash").args(["-c", &script]).output().unwrap();
            String::from_utf8(ran.stdout).unwrap()
        };
        assert_eq!(said("instep-load compute"), format!("{AT} 4711 42 phases\n"));
        assert_eq!(said("instep-load ping"), format!("{AT} 4711 42 phases 5 7\n"));
    }

    #[test]
    fn lines_read_before_are_not_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "before after").unwrap();
        assert_eq!(tail(&path, 7), "after");
        assert_eq!(tail(&dir.path().join("none"), 0), "");
    }

    #[test]
    fn guest_without_any_cpu_time_has_stopped_and_process_may_sleep() {
        let one = |name: &str, kind| One::made(name, (kind, 100), BTreeMap::new());
        let running = Running {
            all: vec![
                one("sleeps", GuestKind::Process),
                one("a", GuestKind::Kvm),
                one("b", GuestKind::Kvm),
            ],
            work: work("true"),
            began: Instant::now(),
            began_uptime: 0.0,
        };
        assert_eq!(running.stopped(&[0.0, 0.002, 1.9]), None);
        assert_eq!(running.stopped(&[1.0, 1.0, 0.0]).as_deref(), Some("b"));
    }
}
