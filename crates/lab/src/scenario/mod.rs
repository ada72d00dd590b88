//! A scenario: an emulated host, its guests, what is done and what must hold, as TOML.
//!
//! ```toml
//! about = "two guests, each with its memory on the other's node"
//! [host]
//! nodes = 2
//! cores = 2            # of each socket; as many sockets as nodes
//! threads = 2
//! memory = "2GiB"
//! [[guest]]
//! name = "a"
//! vcpus = 2
//! memory = "128MiB"
//! touch = "64MiB"      # written to before the load starts
//! load = "spin"        # or idle, or a shell command in the guest
//! start = { memory_node = 0, cpus = [[4], [5]], pinned = false }
//! [[step]]
//! run = "instep run --once"
//! [[step]]
//! observe = "after"
//! hold = { vcpus_on_home_node = true, memory_home_at_least = 0.9 }
//! ```
//! Steps run in order. The words are meant to serve the simulator, too: `host`, `guest` and `hold`
//! say nothing of QEMU. This file knows the words; [`run`] carries them out.

pub mod audience;
pub mod check;
mod domains;
pub mod evidence;
mod fetched;
pub mod guests;
pub mod hold;
mod kit;
pub mod report;
pub mod run;
pub(crate) mod start;
mod steps;

use crate::error::Error;
use crate::host::machine::{Clock, HostMachine};
use crate::host::size;
pub use hold::Hold;
use instep_core::expected;
use instep_core::wording::Count;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Duration;

/// The most that is read of a scenario's file.
const MAX_FILE: u64 = 1 << 20;

/// The most guests of a scenario.
const MAX_GUESTS: usize = 32;

/// A scenario.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The file's name without `.toml`.
    #[serde(skip)]
    pub name: String,
    /// What it shows, in one line.
    pub about: String,
    /// The host.
    pub host: HostMachine,
    /// Programs of this machine that the host needs, with their libraries (`perf`, a path).
    #[serde(default)]
    pub programs: Vec<String>,
    /// How long the whole may take, by this machine's clock; 15m when not given.
    #[serde(default = "fifteen_minutes", deserialize_with = "time")]
    pub limit: Duration,
    /// The guests.
    #[serde(default)]
    pub guest: Vec<GuestPlan>,
    /// What is done, in order.
    #[serde(default)]
    pub step: Vec<Step>,
}

/// A guest.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestPlan {
    /// Its name: letters, digits and dashes.
    pub name: String,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Its memory in MiB; 96 is enough for the kernel.
    #[serde(rename = "memory", deserialize_with = "size::mib")]
    pub memory_mib: u64,
    /// MiB it writes to before its load starts.
    #[serde(default, rename = "touch", deserialize_with = "size::mib")]
    pub touch_mib: u64,
    /// `cpu.weight` of a cgroup of its own (1 to 10000); none without it.
    pub weight: Option<u32>,
    /// `spin` (an endless loop on each vCPU), `idle`, or a shell command, such as one of
    /// `instep-load`.
    #[serde(default = "idle")]
    pub load: String,
    /// Programs of this machine that its load needs, with their libraries (`stress-ng`, a path).
    #[serde(default)]
    pub programs: Vec<String>,
    /// Whether its load runs as a process of the host in a cgroup of its own, without KVM. It has no
    /// vCPU threads, and `vcpus` is how many threads its load has.
    #[serde(default)]
    pub process: bool,
    /// Whether its memory is in huge pages of 2 MiB, which are reserved first.
    #[serde(default)]
    pub hugepages: bool,
    /// Whether a step starts it, instead of the scenario's beginning.
    #[serde(default)]
    pub later: bool,
    /// Where its memory and its vCPUs start.
    #[serde(default)]
    pub start: Start,
}

/// Where a guest starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The node on which it boots and first touches its memory; any when not given.
    pub memory_node: Option<u32>,
    /// The CPUs to which each vCPU is moved when it has booted, in the order of vCPUs.
    pub cpus: Option<Vec<Vec<u32>>>,
    /// Whether it stays bound to these CPUs, as by an operator's hand; else all CPUs are allowed
    /// again once it was moved.
    #[serde(default)]
    pub pinned: bool,
}

/// One step: exactly one of `run`, `observe`, `start`, `end`, `wait`, `offline`, `online` and
/// `fetch`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// A shell command on the host.
    pub run: Option<String>,
    /// Looks at every guest, and keeps what it sees by this name.
    pub observe: Option<String>,
    /// Starts a guest that is `later`, or several side by side, and waits until they are up.
    #[serde(default, deserialize_with = "one_or_more")]
    pub start: Option<Vec<String>>,
    /// Kills a guest's QEMU.
    pub end: Option<String>,
    /// Waits, by the host's clock.
    #[serde(default, deserialize_with = "optional_time")]
    pub wait: Option<Duration>,
    /// Takes a CPU offline.
    pub offline: Option<u32>,
    /// Brings it back.
    pub online: Option<u32>,
    /// A file of the host to bring back (up to 48 MiB), under its own name.
    pub fetch: Option<String>,

    /// With `run`: the exit status it must have; 0 when not given.
    #[serde(default)]
    pub status: u32,
    /// With `run`: how long it may take by the host's clock; 60s when not given.
    #[serde(default = "a_minute", deserialize_with = "time")]
    pub limit: Duration,
    /// With `run`: texts that it must print.
    #[serde(default)]
    pub prints: Vec<String>,
    /// With `observe`: what must hold.
    pub hold: Option<Hold>,
    /// With `hold` or `run`: looks or runs again and again until it holds or does as it must, but no
    /// longer than this, by this machine's clock.
    #[serde(default, deserialize_with = "optional_time")]
    pub within: Option<Duration>,
}

impl Scenario {
    /// Reads and checks a scenario.
    ///
    /// # Errors
    /// When the file cannot be read or is no scenario: with the file and the place.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = read(path).map_err(|error| Error::io("read", path, error))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Self::parse(&text, &name).map_err(|what| Error::Scenario { path: path.to_owned(), what })
    }

    /// Parses and checks a scenario's text.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(text: &str, name: &str) -> Result<Self, String> {
        let mut scenario: Scenario =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        scenario.name = name.to_owned();
        scenario.check()?;
        Ok(scenario)
    }

    /// The guest of this name.
    pub fn guest_named(&self, name: &str) -> Option<&GuestPlan> {
        self.guest.iter().find(|guest| guest.name == name)
    }

    /// The guests that run when the step of this index (from 0) begins: those that were started and
    /// that no step has ended.
    pub fn running_at(&self, index: usize) -> Vec<&GuestPlan> {
        let before = &self.step[..index.min(self.step.len())];
        let runs = |guest: &&GuestPlan| {
            before.iter().fold(!guest.later, |runs, step| {
                let started = step.start.iter().flatten().any(|name| *name == guest.name);
                (runs || started) && step.end.as_ref() != Some(&guest.name)
            })
        };
        self.guest.iter().filter(runs).collect()
    }

    fn check(&self) -> Result<(), String> {
        self.host.check()?;
        if self.guest.len() > MAX_GUESTS {
            return Err(format!("{} guests; possible are {MAX_GUESTS}", self.guest.len()));
        }
        let mut names = BTreeSet::new();
        for guest in &self.guest {
            guest.check(&self.host)?;
            if !names.insert(guest.name.as_str()) {
                return Err(format!("guest {}: the name is used twice", guest.name));
            }
        }
        let (mut seen, mut fetch) = (BTreeSet::new(), BTreeSet::new());
        for (index, step) in self.step.iter().enumerate() {
            let wrong = |what: String| format!("step {}: {what}", index + 1);
            step.check(self, &seen).map_err(wrong)?;
            if let Some(name) = step.observe.as_deref().filter(|name| !seen.insert(*name)) {
                return Err(wrong(format!("two observations are named {name}")));
            }
            if let Some(path) = &step.fetch {
                let name = fetched::name(path).map_err(wrong)?;
                if !fetch.insert(name) {
                    return Err(wrong(format!("two files named {name} are fetched")));
                }
            }
        }
        if self.host.is_xen() { domains::check(self) } else { Ok(()) }
    }
}

/// The bytes of a guest's load, which goes by its kernel's command line, in base64: of that Linux takes
/// 2048 (COMMAND_LINE_SIZE), and the rest has less than 400.
const LONGEST_LOAD: usize = 1200;

impl GuestPlan {
    fn check(&self, host: &HostMachine) -> Result<(), String> {
        let wrong = |what: String| Err(format!("guest {}: {what}", self.name));
        let letter = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if self.name.is_empty()
            || self.name.len() > 20
            || self.name.starts_with('-')
            || !self.name.chars().all(letter)
        {
            return wrong("a name has 1 to 20 letters, digits and dashes".to_owned());
        }
        if self.vcpus == 0 || self.vcpus > 64 {
            return wrong(format!("{} vCPUs; possible are 1 to 64", self.vcpus));
        }
        if self.memory_mib < 96 || self.memory_mib > host.memory_mib {
            return wrong(format!(
                "{} MiB of memory; possible are 96 to the host's {}",
                self.memory_mib, host.memory_mib
            ));
        }
        if self.touch_mib + 64 > self.memory_mib {
            return wrong(format!("it cannot touch {} MiB", self.touch_mib));
        }
        if self.load.len() > LONGEST_LOAD && !self.process {
            let most = "most is 1200, as the kernel's command line holds it";
            return wrong(format!("a load of {} bytes; the {most}", self.load.len()));
        }
        if self.weight.is_some_and(|weight| weight == 0 || weight > 10_000) {
            return wrong("a weight is 1 to 10000".to_owned());
        }
        if !self.process && host.clock == Clock::Counted {
            let what = "KVM guests do not come up under counted time: `process = true`";
            return wrong(format!("{what}, or `clock = \"real\"`"));
        }
        if self.process {
            if self.hugepages || self.start != Start::default() || self.touch_mib > 0 {
                return wrong("a process has no hugepages, touch or start".to_owned());
            }
            if matches!(self.load.as_str(), "spin" | "idle") {
                return wrong(format!("`{}` is a load of guests, not of a process", self.load));
            }
            if !self.programs.is_empty() {
                return wrong("a process uses the host's programs".to_owned());
            }
        }
        if let Some(node) = self.start.memory_node.filter(|node| *node >= host.nodes) {
            return wrong(format!("start.memory_node: the host has no node {node}"));
        }
        if let Some(cpus) = &self.start.cpus {
            if cpus.len() != self.vcpus as usize || cpus.iter().any(Vec::is_empty) {
                let needed = Count(self.vcpus.into(), "list");
                return wrong(format!("start.cpus: {needed} of CPUs needed"));
            }
            if let Some(cpu) = cpus.iter().flatten().find(|cpu| **cpu >= host.cpus()) {
                return wrong(format!("start.cpus: the host has no CPU {cpu}"));
            }
        } else if self.start.pinned {
            return wrong("start.pinned needs start.cpus".to_owned());
        }
        Ok(())
    }
}

impl Step {
    fn check(&self, scenario: &Scenario, seen: &BTreeSet<&str>) -> Result<(), String> {
        let kinds = [
            self.run.is_some(),
            self.observe.is_some(),
            self.start.is_some(),
            self.end.is_some(),
            self.wait.is_some(),
            self.offline.is_some(),
            self.online.is_some(),
            self.fetch.is_some(),
        ];
        if kinds.iter().filter(|is| **is).count() != 1 {
            return Err(
                "exactly one of run, observe, start, end, wait, offline, online and fetch \
                        is needed"
                    .to_owned(),
            );
        }
        if self.start.as_ref().is_some_and(Vec::is_empty) {
            return Err("start: no guest is named".to_owned());
        }
        for name in self.start.iter().flatten().chain(&self.end) {
            let guest = scenario.guest_named(name).ok_or(format!("there is no guest {name}"))?;
            if self.start.is_some() && !guest.later {
                return Err(format!("guest {name} is not `later`: it runs from the beginning"));
            }
        }
        if let Some(cpu) = self.offline.or(self.online)
            && (cpu == 0 || cpu >= scenario.host.cpus())
        {
            return Err(format!("CPU {cpu} cannot be taken offline"));
        }
        if self.run.is_none() && (self.status != 0 || !self.prints.is_empty()) {
            return Err("`status` and `prints` go with `run`".to_owned());
        }
        match &self.hold {
            None if self.within.is_some() && self.run.is_none() => {
                Err("`within` goes with `hold` or `run`".to_owned())
            }
            None => Ok(()),
            Some(_) if self.observe.is_none() => Err("`hold` goes with `observe`".to_owned()),
            Some(hold) => hold.check(scenario, seen),
        }
    }
}

/// A file's text; what is larger than a scenario can be is not read to its end.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    // One byte more tells a file that is too large from one that just fits.
    File::open(path)?.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::other("larger than 1MiB: this is no scenario"));
    }
    Ok(text)
}

fn idle() -> String {
    "idle".to_owned()
}

fn fifteen_minutes() -> Duration {
    Duration::from_secs(900)
}

fn a_minute() -> Duration {
    Duration::from_secs(60)
}

/// A name, or a list of them.
fn one_or_more<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Names {
        One(String),
        More(Vec<String>),
    }
    Ok(Some(match Names::deserialize(from)? {
        Names::One(name) => vec![name],
        Names::More(names) => names,
    }))
}

fn time<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = expected::text(from, "a time such as \"60s\" or \"5m\"")?;
    let wrong = |why| serde::de::Error::custom(format!("`{text}` is no time such as 60s: {why}"));
    let parsed = humantime::parse_duration(&text).map_err(wrong)?;
    if parsed.is_zero() || parsed > Duration::from_secs(24 * 3600) {
        return Err(serde::de::Error::custom("a time is more than 0s and at most 24h"));
    }
    Ok(parsed)
}

fn optional_time<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    time(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "about = 'x'\n[host]\nnodes = 2\ncores = 2\nmemory = '1GiB'\n";
    const GUEST: &str = "[[guest]]\nname = 'a'\nvcpus = 2\nmemory = '128MiB'\n";

    fn error(rest: &str) -> String {
        Scenario::parse(&format!("{HOST}{rest}"), "x").unwrap_err()
    }

    #[test]
    fn the_words_of_a_scenario_are_read() {
        let text = format!(
            "{HOST}{GUEST}touch = '32MiB'\nstart = {{ memory_node = 1, cpus = [[0], [1]] }}\n\
             [[step]]\nobserve = 'before'\n[[step]]\nrun = 'instep status'\nlimit = '90s'\n\
             [[step]]\nwait = '2s'\n[[step]]\nobserve = 'after'\n\
             hold = {{ affinities_as = 'before', home = {{ a = 1 }} }}\n"
        );
        let scenario = Scenario::parse(&text, "x").unwrap();
        assert_eq!(scenario.guest[0].start.cpus, Some(vec![vec![0], vec![1]]));
        assert_eq!(scenario.step[1].limit, Duration::from_secs(90));
        assert_eq!(scenario.step[2].wait, Some(Duration::from_secs(2)));
        assert_eq!(scenario.step[3].hold.as_ref().unwrap().home["a"], 1);
    }

    #[test]
    fn example_has_only_words_of_a_scenario() {
        let text = include_str!("../../../../scenarios/example/lab.toml");
        let scenario: Scenario = toml::from_str(text).unwrap();
        assert_eq!((scenario.guest.len(), scenario.step.len()), (1, 2));
    }

    #[test]
    fn a_guest_runs_from_its_start_to_the_step_that_ends_it() {
        let later = GUEST.replace("'a'", "'b'");
        let text = format!(
            "{HOST}{GUEST}{later}later = true\n[[step]]\nwait = '1s'\n[[step]]\nstart = 'b'\n\
             [[step]]\nend = 'a'\n[[step]]\nobserve = 'x'\n"
        );
        let scenario = Scenario::parse(&text, "x").unwrap();
        let at = |index| -> Vec<&str> {
            scenario.running_at(index).iter().map(|guest| guest.name.as_str()).collect()
        };
        assert_eq!((at(0), at(1)), (vec!["a"], vec!["a"]));
        assert_eq!((at(2), at(3), at(99)), (vec!["a", "b"], vec!["b"], vec!["b"]));
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let error = Scenario::load(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read /dev/zero") && error.contains("1MiB"), "{error}");
    }

    #[test]
    fn a_word_that_is_not_known_is_refused_with_its_line() {
        let said = error("[[step]]\nrum = 'x'\n");
        assert!(said.contains("rum") && said.contains("line 7"), "{said}");
    }

    #[test]
    fn what_does_not_fit_together_is_refused_by_name() {
        let step = format!("{GUEST}[[step]]\n");
        for (rest, word) in [
            (format!("{GUEST}{GUEST}"), "used twice"),
            (GUEST.replace("'a'", "'a b'"), "a name has"),
            (GUEST.replace("128", "8"), "8 MiB"),
            (format!("{GUEST}touch = '100MiB'\n"), "cannot touch"),
            (format!("{GUEST}start = {{ memory_node = 2 }}\n"), "no node 2"),
            (format!("{GUEST}start = {{ cpus = [[0]] }}\n"), "2 lists"),
            (format!("{GUEST}start = {{ cpus = [[0], [9]] }}\n"), "no CPU 9"),
            (format!("{GUEST}start = {{ pinned = true }}\n"), "needs start.cpus"),
            (format!("{step}run = 'x'\nwait = '1s'\n"), "exactly one"),
            (step.clone(), "step 1: exactly one"),
            (format!("{step}end = 'b'\n"), "no guest b"),
            (format!("{step}start = 'a'\n"), "not `later`"),
            (format!("{step}offline = 0\n"), "CPU 0"),
            (format!("{step}wait = '0s'\n"), "more than 0s"),
            (format!("{step}wait = 5\n"), "expected a time such as \"60s\""),
            (format!("{step}wait = 'soon'\n"), "`soon` is no time such as 60s"),
            (GUEST.replace("'128MiB'", "128"), "expected a size such as \"128MiB\""),
            (format!("{step}observe = 'x'\nhold = {{ affinities_as = 'y' }}\n"), "observed as y"),
            (format!("{step}observe = 'x'\nhold = {{ memory_home_at_least = 2.0 }}\n"), "0 to 1"),
            (format!("{step}observe = 'x'\nwithin = '9s'\n"), "goes with `hold`"),
            (format!("{step}observe = 'x'\nprints = ['y']\n"), "go with `run`"),
            (format!("{step}observe = 'x'\n[[step]]\nobserve = 'x'\n"), "two observations"),
            (format!("{GUEST}load = '{}'\n", "x".repeat(1201)), "most is 1200"),
            (format!("{step}start = []\n"), "no guest is named"),
            (format!("{step}fetch = '/tmp/.bashrc'\n"), "begins with a dot"),
            (format!("{step}fetch = '/tmp/..'\n"), "names no file"),
            (format!("{step}fetch = '/report.json'\n"), "name of the lab's own"),
            (format!("{step}fetch = '/guest-a.txt'\n"), "name of the lab's own"),
            (format!("{step}fetch = '/a/x'\n[[step]]\nfetch = '/b/x'\n"), "two files named x"),
            (
                format!("{step}observe = 'x'\nhold = {{ cpu_share = {{ b = [0, 1] }} }}\n"),
                "no guest b",
            ),
            (
                format!("{step}observe = 'x'\nhold = {{ work_share = {{ a = [1, 0] }} }}\n"),
                "a = [1",
            ),
            (format!("{step}observe = 'x'\nhold = {{ since = 'y' }}\n"), "observed as y"),
            (format!("{GUEST}process = true\n"), "not of a process"),
            (format!("{GUEST}process = true\ntouch = '8MiB'\nload = 'x'\n"), "no hugepages"),
        ] {
            let said = error(&rest);
            assert!(said.contains(word), "{rest}: {said}");
        }
        let counted = HOST.replace("[host]\n", "[host]\nclock = 'counted'\n");
        let said = Scenario::parse(&format!("{counted}{GUEST}"), "x").unwrap_err();
        assert!(said.contains("guest a: KVM guests do not come up under counted time"), "{said}");
    }
}
