//! Watches threads through /proc: CPU time and run-queue wait by `schedstat` in every look, context
//! switches by `status` in some.
//!
//! What it can show: CPU time to a scheduler tick (a running thread's `schedstat` lags by up to one:
//! kernel/sched/core.c and fs/proc/base.c, 6.18), so single intervals are blurred and sums are not.
//! A thread that ends between two looks takes what it did since the last one with it; `seen` says
//! how much was missed where the whole is known. It does not know why a thread blocked.

use crate::discover::proc_text::{self, HostTicks};
use crate::error::Error;
use crate::root::Root;
use crate::system;
use instep_core::profile::{Interval, ThreadSum, Watched};
use instep_core::units::{Nanos, Tid};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Looks between two readings of `status`, which takes several times as long as `schedstat`.
const STATUS_LOOKS: usize = 8;
/// The most threads that are remembered; more are not watched, and that is told.
const MAX_THREADS: usize = 100_000;
/// The most intervals that are kept: 3 hours of 24 ms.
const MAX_INTERVALS: usize = 450_000;
/// The most that is read of one file.
const MAX_READ: u64 = 64 << 10;

/// Which threads are watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All descendants of this process, without itself.
    Descendants(u32),
    /// All threads of this process.
    Process(u32),
    /// These threads of this process.
    Threads(u32, Vec<Tid>),
}

/// A watching in progress.
#[derive(Debug)]
pub struct ThreadWatch {
    root: Root,
    target: Target,
    /// When the last look was, on the monotonic clock.
    last: Option<Nanos>,
    looks: usize,
    threads: BTreeMap<(u32, u32), Known>,
    /// What is left of threads that ended.
    ended: Vec<ThreadSum>,
    intervals: Vec<Interval>,
    /// Processes known to descend from the one that was named, and those known not to.
    family: BTreeSet<u32>,
    strangers: BTreeSet<u32>,
    switches: (u64, u64),
    /// CPU time of the whole machine at the first look, and at the last that asked.
    machine: Option<(HostTicks, HostTicks)>,
    overflow: bool,
    buffer: Vec<u8>,
}

/// A thread as last seen.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    run: Nanos,
    wait: Nanos,
    switches: (u64, u64),
    sum: ThreadSum,
    look: usize,
}

/// What one look saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchSample {
    /// Threads that are there.
    pub threads: usize,
    /// What was added; `None` for the first look.
    pub interval: Option<Interval>,
}

impl ThreadWatch {
    /// A watching of `target` on the running host. What threads did before the first look does not
    /// count; what threads that appear later did, does.
    pub fn new(target: Target) -> Self {
        Self::at(Root::live(), target)
    }

    fn at(root: Root, target: Target) -> Self {
        Self {
            root,
            target,
            last: None,
            looks: 0,
            threads: BTreeMap::new(),
            ended: Vec::new(),
            intervals: Vec::new(),
            family: BTreeSet::new(),
            strangers: BTreeSet::new(),
            switches: (0, 0),
            machine: None,
            overflow: false,
            buffer: Vec::new(),
        }
    }

    /// Looks at every thread; the time since the look before becomes an interval. No thread is left
    /// when `threads` is 0.
    pub fn take_sample(&mut self) -> WatchSample {
        let now = system::clocks().0;
        self.look_at(now, self.looks.is_multiple_of(STATUS_LOOKS))
    }

    /// The last look, which reads the counts of context switches, too.
    pub fn end(&mut self) -> WatchSample {
        let now = system::clocks().0;
        self.look_at(now, true)
    }

    fn look_at(&mut self, now: Nanos, count_switches: bool) -> WatchSample {
        let first = self.last.is_none();
        let at = self.intervals.len();
        let (mut run, mut wait) = (0u64, 0u64);
        self.looks += 1;
        for (pid, tid) in self.listed() {
            let dir = self.root.join(format!("proc/{pid}/task/{tid}"));
            let Some((now_run, now_wait)) = self.schedstat(&dir) else { continue };
            let mut known = self.threads.get(&(pid, tid)).copied();
            // Counters that go back are another thread's of the same number.
            if known.is_some_and(|known| now_run < known.run) {
                self.ended.extend(self.threads.remove(&(pid, tid)).map(|known| known.sum));
                known = None;
            }
            if known.is_none() && self.threads.len() + self.ended.len() >= MAX_THREADS {
                self.overflow = true;
                continue;
            }
            let is_new = known.is_none();
            let mut known = known.unwrap_or_else(|| Known {
                sum: ThreadSum { seen: (at, at), ..ThreadSum::default() },
                ..Known::default()
            });
            if is_new && first {
                (known.run, known.wait) = (now_run, now_wait);
            }
            let ran = now_run.since(known.run);
            run = run.saturating_add(ran.0);
            wait = wait.saturating_add(now_wait.since(known.wait).0);
            (known.run, known.wait) = (now_run, now_wait);
            known.sum.run = Nanos(known.sum.run.0.saturating_add(ran.0));
            known.sum.seen.1 = at;
            known.look = self.looks;
            if count_switches && let Some(counts) = self.counts(&dir) {
                if !(is_new && first) {
                    self.switches.0 += counts.0.saturating_sub(known.switches.0);
                    self.switches.1 += counts.1.saturating_sub(known.switches.1);
                }
                known.switches = counts;
            }
            self.threads.insert((pid, tid), known);
        }
        self.drop_ended();
        if (first || count_switches)
            && let Some(ticks) = self.host_ticks()
        {
            self.machine = Some((self.machine.map_or(ticks, |(begin, _)| begin), ticks));
        }
        let interval = self.last.map(|last| now.since(last)).filter(|length| length.0 > 0);
        let interval =
            interval.map(|length| Interval { length, run: Nanos(run), wait: Nanos(wait) });
        self.last = Some(now);
        if self.intervals.len() < MAX_INTERVALS {
            self.intervals.extend(interval);
        } else {
            self.overflow = true;
        }
        WatchSample { threads: self.threads.len(), interval }
    }

    fn drop_ended(&mut self) {
        let looks = self.looks;
        let gone = self.threads.extract_if(.., |_, known| known.look != looks);
        self.ended.extend(gone.map(|(_, known)| known.sum));
    }

    /// What was seen until now, of an application that may use `cpus` CPUs.
    pub fn watched(&self, cpus: u32) -> Watched {
        let alive = self.threads.values().map(|known| known.sum);
        let per_second = system::sysconf(libc::_SC_CLK_TCK, 100);
        let since = |of: fn(HostTicks) -> u64| {
            let (begin, end) = self.machine?;
            Some(proc_text::ticks_to_nanos(of(end).saturating_sub(of(begin)), per_second))
        };
        Watched {
            cpus: cpus.max(1),
            intervals: self.intervals.clone(),
            threads: self.ended.iter().copied().chain(alive).collect(),
            workers: match &self.target {
                Target::Threads(_, tids) => u32::try_from(tids.len()).ok(),
                _ => None,
            },
            voluntary: self.switches.0,
            involuntary: self.switches.1,
            others: since(|ticks| ticks.busy).map(|busy| busy.since(self.run())),
            stolen: since(|ticks| ticks.stolen).unwrap_or_default(),
            ..Watched::default()
        }
    }

    /// Whether there were more threads or intervals than are kept.
    pub fn overflowed(&self) -> bool {
        self.overflow
    }

    /// Process and thread ids to look at.
    fn listed(&mut self) -> Vec<(u32, u32)> {
        let processes: Vec<u32> = match &self.target {
            Target::Threads(pid, tids) => {
                return tids.iter().map(|tid| (*pid, tid.0)).collect();
            }
            Target::Process(pid) => vec![*pid],
            Target::Descendants(of) => self.descendants(*of),
        };
        let mut threads = Vec::new();
        for pid in processes {
            let tasks = self.root.join(format!("proc/{pid}/task"));
            threads.extend(numbers(&tasks).into_iter().take(MAX_THREADS).map(|tid| (pid, tid)));
        }
        threads
    }

    /// Descendants by their parents' ids; each process is asked once for its parent. One that lost
    /// its parent stays known.
    fn descendants(&mut self, of: u32) -> Vec<u32> {
        let alive = numbers(&self.root.join("proc"));
        let mut parents = BTreeMap::new();
        for pid in &alive {
            if *pid == of || self.family.contains(pid) || self.strangers.contains(pid) {
                continue;
            }
            let path = self.root.join(format!("proc/{pid}/stat"));
            let stat = read(&path, &mut self.buffer).and_then(proc_text::stat);
            parents.extend(stat.map(|stat| (*pid, stat.ppid)));
        }
        // Children of children: as deep as there are new processes at most.
        loop {
            let known = |pid: u32| pid == of || self.family.contains(&pid);
            let born: Vec<u32> =
                parents.iter().filter(|(_, ppid)| known(**ppid)).map(|(pid, _)| *pid).collect();
            if born.is_empty() {
                break;
            }
            for pid in born {
                parents.remove(&pid);
                self.family.insert(pid);
            }
        }
        self.strangers.extend(parents.into_keys());
        // A number that is free again may be anyone's next.
        let alive: BTreeSet<u32> = alive.into_iter().collect();
        self.family.retain(|pid| alive.contains(pid));
        self.strangers.retain(|pid| alive.contains(pid));
        self.family.iter().copied().collect()
    }

    fn run(&self) -> Nanos {
        Nanos(self.intervals.iter().map(|interval| interval.run.0).sum())
    }

    /// CPU time of the whole machine since it started.
    fn host_ticks(&mut self) -> Option<HostTicks> {
        let path = self.root.join("proc/stat");
        read(&path, &mut self.buffer).and_then(proc_text::host_ticks)
    }

    fn schedstat(&mut self, dir: &Path) -> Option<(Nanos, Nanos)> {
        read(&dir.join("schedstat"), &mut self.buffer).and_then(proc_text::schedstat)
    }

    fn counts(&mut self, dir: &Path) -> Option<(u64, u64)> {
        read(&dir.join("status"), &mut self.buffer).and_then(proc_text::context_switches)
    }
}

/// How often a thread has blocked and been preempted since its start, under `root`; `None` when it is
/// gone or does not tell.
pub fn switches(root: &Root, pid: u32, tid: Tid) -> Option<(u64, u64)> {
    let path = root.join(format!("proc/{pid}/task/{tid}/status"));
    read(&path, &mut Vec::new()).and_then(proc_text::context_switches)
}

/// Which counters `/proc` has: whether the kernel counts run-queue time at all.
///
/// # Errors
/// A kernel without CONFIG_SCHED_INFO, with what to use instead.
pub fn check(root: &Root) -> Result<(), Error> {
    let mut buffer = Vec::new();
    let path: PathBuf = root.join("proc/self/schedstat");
    // The third number counts how often it ran; the first is zero until the first tick.
    if read(&path, &mut buffer).is_some_and(|text| text.iter().any(|b| matches!(b, b'1'..=b'9'))) {
        return Ok(());
    }
    Err(Error::Unusable {
        what: format!("{} counts nothing: this kernel keeps no schedstat", path.display()),
        next: "profile on a kernel with CONFIG_SCHED_INFO (every distribution's has it)".to_owned(),
    })
}

fn read<'a>(path: &Path, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    buffer.clear();
    let file = File::open(path).ok()?;
    file.take(MAX_READ).read_to_end(buffer).ok()?;
    Some(buffer)
}

/// The names in a directory that are numbers, ascending.
fn numbers(dir: &Path) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut numbers: Vec<u32> = names.collect();
    numbers.sort_unstable();
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    /// A made thread: /proc/PID/task/TID of `root`.
    fn thread(root: &Path, pid: u32, ppid: u32, tid: u32, run: u64, voluntary: u64) {
        let dir = root.join(format!("proc/{pid}/task/{tid}"));
        fs::create_dir_all(&dir).unwrap();
        let stat = format!("{pid} (a b) S {ppid} {}\n", "1 ".repeat(48));
        fs::write(root.join(format!("proc/{pid}/stat")), stat).unwrap();
        fs::write(dir.join("schedstat"), format!("{run} {} 7\n", run / 10)).unwrap();
        let status = format!(
            "Name:\tx\nvoluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t3\n"
        );
        fs::write(dir.join("status"), status).unwrap();
    }

    #[test]
    fn only_time_after_the_first_scan_counts() {
        let dir = instep_madehost::scratch_dir().unwrap();
        thread(dir.path(), 10, 1, 10, 1000, 50);
        let mut watch = ThreadWatch::at(Root::at(dir.path()), Target::Process(10));
        assert_eq!(watch.look_at(Nanos(100), true).interval, None);
        thread(dir.path(), 10, 1, 10, 1600, 52);
        thread(dir.path(), 10, 1, 11, 300, 5);
        let look = watch.look_at(Nanos(1100), true);
        let expected = Interval { length: Nanos(1000), run: Nanos(900), wait: Nanos(90) };
        assert_eq!(look, WatchSample { threads: 2, interval: Some(expected) });
        let watched = watch.watched(4);
        assert_eq!((watched.voluntary, watched.involuntary), (7, 3));
        assert_eq!(watched.workers(), 2);
    }

    #[test]
    fn what_the_machine_did_beside_it_is_of_others() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let mut watch = ThreadWatch::at(Root::at(dir.path()), Target::Process(10));
        let mut look = |at: u64, machine: u64, run: u64| {
            thread(dir.path(), 10, 1, 10, run, 0);
            let line = format!("cpu  {machine} 0 0 500 0 0 0 {} 0 0\n", machine / 10);
            fs::write(dir.path().join("proc/stat"), line).unwrap();
            watch.look_at(Nanos(at), true);
        };
        let tick = Nanos::SECOND.0 / system::sysconf(libc::_SC_CLK_TCK, 100);
        look(1, 1000, 7 * tick);
        look(2, 1100, 37 * tick);
        let watched = watch.watched(1);
        assert_eq!((watched.others, watched.stolen), (Some(Nanos(80 * tick)), Nanos(10 * tick)));
    }

    #[test]
    fn a_thread_of_the_same_number_begins_anew() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let mut watch = ThreadWatch::at(Root::at(dir.path()), Target::Process(10));
        watch.look_at(Nanos(1), true);
        thread(dir.path(), 10, 1, 10, 1000, 50);
        watch.look_at(Nanos(2), true);
        thread(dir.path(), 10, 1, 10, 200, 1);
        watch.look_at(Nanos(3), true);
        assert_eq!(watch.watched(1).run(), Nanos(1200));
        assert_eq!(watch.watched(1).threads.len(), 2);
        fs::remove_dir_all(dir.path().join("proc/10")).unwrap();
        assert_eq!(watch.look_at(Nanos(4), true).threads, 0);
    }

    #[test]
    fn children_of_children_are_family_and_others_are_not() {
        let dir = instep_madehost::scratch_dir().unwrap();
        for (pid, ppid) in [(5, 1), (20, 7), (8, 20), (9, 8), (30, 5), (7, 1)] {
            thread(dir.path(), pid, ppid, pid, 100, 0);
        }
        let mut watch = ThreadWatch::at(Root::at(dir.path()), Target::Descendants(7));
        assert_eq!(watch.look_at(Nanos(1), true).threads, 3);
        // 9 loses its parent and stays; 30 stays a stranger.
        fs::remove_dir_all(dir.path().join("proc/8")).unwrap();
        thread(dir.path(), 9, 1, 9, 100, 0);
        assert_eq!(watch.look_at(Nanos(2), true).threads, 2);
    }

    #[test]
    fn damaged_files_are_no_threads() {
        let dir = instep_madehost::scratch_dir().unwrap();
        thread(dir.path(), 10, 1, 10, 1000, 50);
        fs::write(dir.path().join("proc/10/task/10/schedstat"), "1 x").unwrap();
        let mut watch = ThreadWatch::at(Root::at(dir.path()), Target::Process(10));
        assert_eq!(watch.look_at(Nanos(1), true).threads, 0);
        assert!(check(&Root::at(dir.path())).unwrap_err().to_string().contains("schedstat"));
    }

    #[test]
    fn a_real_process_that_computes_is_seen_to() {
        let script = "while :; do :; done";
        let mut child =
            Command::new("sh").args(["-c", script]).stdin(Stdio::null()).spawn().unwrap();
        let mut watch = ThreadWatch::new(Target::Process(child.id()));
        watch.take_sample();
        let end = Instant::now() + Duration::from_secs(30);
        // On a busy machine it takes a while to get some CPU time.
        while watch.watched(1).run() < Nanos(50_000_000) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            watch.take_sample();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(watch.watched(1).run() >= Nanos(50_000_000), "{:?}", watch.watched(1));
        assert_eq!(watch.take_sample().threads, 0);
    }
}
