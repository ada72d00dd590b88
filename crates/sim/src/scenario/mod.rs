//! A scenario: a host, its guests and a hypervisor scheduler, as TOML.
//!
//! ```toml
//! about = "two guests of four vCPUs on four CPUs"
//! scheduler = "cfs"
//! duration = "10s"
//! [host]
//! cores = 4
//! memory = "8GiB"
//! [[guest]]
//! name = "a"
//! vcpus = 4
//! memory = "1GiB"
//! load = "instep-load barrier --kind spin --phase 1ms"
//! ```
//! `host` and `guest` use the words of the lab's scenarios where they mean the same. This file knows
//! the words and where each stands; [`build`] makes a simulation of them.

pub mod build;
pub mod cgroups;
mod lives;
pub mod load;
pub mod machine;
pub(crate) mod places;
pub mod settings;
mod stages;
pub mod sweep;

use crate::error::Error;
use instep_core::units::Bytes;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;
use toml::Spanned;

pub use stages::Stage;

/// A scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it shows, in one line; empty when not given.
    #[serde(default)]
    pub about: String,
    /// The seed; 1 when not given.
    #[serde(default = "one")]
    pub seed: u64,
    /// How long is measured, in simulated time.
    #[serde(deserialize_with = "length")]
    pub duration: Spanned<Duration>,
    /// How long it runs before; 1s when not given.
    #[serde(default = "a_second", deserialize_with = "warmup")]
    pub warmup: Duration,
    /// The hypervisor's scheduler.
    pub scheduler: Spanned<String>,
    /// Times and switches of the scheduler that differ from what was published.
    #[serde(default)]
    pub tuning: BTreeMap<String, Spanned<TuningText>>,
    /// What places VMs above the scheduler: none, bind, spread, bnn or instep; none when not given.
    pub placement: Option<Spanned<String>>,
    /// Time between two decisions of placement; 60s when not given.
    pub placement_period: Option<Spanned<String>>,
    /// The host.
    pub host: Spanned<Machine>,
    /// The guests.
    #[serde(default)]
    pub guest: Vec<Spanned<Guest>>,
    /// Processes of the host that are no VM.
    #[serde(default)]
    pub service: Vec<Spanned<cgroups::Service>>,
    /// Settings of cgroups.
    #[serde(default)]
    pub cgroup: Vec<Spanned<cgroups::CgroupSettings>>,
}

/// A value of a scheduler as a scenario has it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a time such as \"3ms\", or true or false")]
pub enum TuningText {
    /// A time with its unit.
    Time(String),
    /// Whether a rule is followed.
    Switch(bool),
}

/// The host: a shape in the lab's words, or a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What `instep topology --json` printed, relative to the scenario; instead of a shape.
    pub topology: Option<String>,
    /// NUMA nodes; 1 when not given.
    pub nodes: Option<u32>,
    /// Sockets; as many as nodes when not given.
    pub sockets: Option<u32>,
    /// Cores of each socket.
    pub cores: Option<u32>,
    /// Threads of each core; 1 when not given.
    pub threads: Option<u32>,
    /// Last-level caches of the host; one for each node or socket, whichever are more, when not
    /// given.
    pub caches: Option<u32>,
    /// Memory of the host; 4 GiB for each CPU when not given.
    #[serde(default, deserialize_with = "optional_size")]
    pub memory: Option<u64>,
    /// The distance between any two nodes; 20 when not given.
    pub distance: Option<u32>,
    /// The distances row by row, instead.
    pub distances: Option<Vec<Vec<u32>>>,
    /// Whose costs and contention; `generic` when not given.
    pub machine: Option<String>,
    /// Numbers of that machine that are others here, by their places in its file.
    #[serde(default)]
    pub numbers: toml::Table,
    /// Whether the host's own threads run, too; as the machine says when not given.
    pub noise: Option<bool>,
    /// The lab's clock, `real` or `counted`: simulated time is neither, and nothing depends on it here.
    pub clock: Option<String>,
}

/// A guest, or several alike.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// Its name: letters, digits and dashes.
    pub name: String,
    /// How many there are of it, named `name-1` and so on.
    pub count: Option<u32>,
    /// Its vCPUs.
    pub vcpus: Spanned<u32>,
    /// Its memory; 1 GiB when not given.
    #[serde(default = "gibibyte", deserialize_with = "spanned_size")]
    pub memory: Spanned<u64>,
    /// `cpu.weight` (1 to 10000); 100 when not given.
    #[serde(default = "hundred")]
    pub weight: Spanned<u32>,
    /// Per cent of one CPU that all its vCPUs together may use under the schedulers of Xen, as `xl sched-credit --cap`;
    /// no cap when not given.
    pub cap: Option<Spanned<u32>>,
    /// When its siblings run together under `instep`: auto, never, relaxed, strict.
    pub cosched: Option<Spanned<String>>,
    /// How promptly `instep` serves it at wake-ups: normal, prompt.
    pub latency: Option<Spanned<String>>,
    /// Its allocation period under `instep`, 1ms to 1s; 24ms when not given.
    pub period: Option<Spanned<String>>,
    /// The node where `instep` takes it to be at home, as long as no placement says otherwise.
    pub home_node: Option<Spanned<u32>>,
    /// Parts of its vCPUs in its time, for schedulers that give parts; equal when not given.
    pub parts: Option<Spanned<Vec<u32>>>,
    /// What it runs: see [`load`]. Several run side by side.
    #[serde(default)]
    pub load: Option<Spanned<Load>>,
    /// Stages of a pipeline that it runs, instead or besides.
    #[serde(default)]
    pub stage: Vec<Spanned<Stage>>,
    /// Profile of its work: a name of the library, or a table of its own ([`OwnProfile`]); by its
    /// load when not given.
    pub profile: Option<Spanned<toml::Value>>,
    /// CPUs that every vCPU may use (hard affinity), as a list such as `16-31`; all when not given.
    pub allowed: Option<Spanned<String>>,
    /// Nodes that its vCPUs should use (Xen's node affinity).
    pub prefer_nodes: Option<Spanned<Vec<u32>>>,
    /// Where it starts.
    #[serde(default)]
    pub start: Start,
    /// The cgroup that it lies in, such as `machine.slice/vm-a`; one of its own name in the root when not given. With
    /// `count` the VM's number is added.
    pub cgroup: Option<Spanned<String>>,
    /// When it comes, simulated time since the start, warming up included; at the start when not given.
    pub from: Option<Spanned<String>>,
    /// When it goes.
    pub until: Option<Spanned<String>>,
    /// With `count`: so often in a minute the oldest of them goes and another comes.
    pub churn_per_minute: Option<Spanned<u32>>,
}

/// A profile that a scenario describes itself: thousandths of the time alone in which the work is
/// bound by each resource, its working set in the LLC and the bandwidth that it takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OwnProfile {
    /// Instruction fetch and decode.
    pub fetch: u32,
    /// Floating-point unit.
    pub fpu: u32,
    /// Second-level cache.
    pub l2: u32,
    /// Last-level cache.
    pub llc: u32,
    /// Latency of local memory: it waits for misses.
    pub memory: u32,
    /// Lines that it takes from memory in a millisecond of its time alone, prefetched ones too; beside `memory`.
    pub misses_ms: u64,
    /// How many of them overlap, in tenths.
    pub mlp_tenths: Option<u32>,
    /// Working set in the LLC of each thread.
    #[serde(deserialize_with = "optional_size")]
    pub set: Option<u64>,
    /// MiB/s that each thread takes of memory when undisturbed.
    pub mib_s: u64,
}

/// What a guest runs: one load or several.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Load {
    /// One.
    One(String),
    /// Side by side.
    Several(Vec<String>),
}

/// Where a guest starts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The node that holds its memory; spread over all when not given.
    pub memory_node: Option<Spanned<u32>>,
    /// The CPUs that each vCPU may use, in the order of vCPUs.
    pub cpus: Option<Spanned<Vec<Vec<u32>>>>,
    /// Whether vCPUs stay bound to these CPUs. Without it `cpus` is not simulated, and refused.
    #[serde(default)]
    pub pinned: bool,
}

/// Something wrong in a scenario's text, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Byte offset, if it has a place.
    pub at: Option<usize>,
    /// What is wrong.
    pub what: String,
}

impl Fault {
    /// What is wrong at this place.
    pub fn at(span: Range<usize>, what: impl Into<String>) -> Self {
        Self { at: Some(span.start), what: what.into() }
    }

    /// The line of the fault in `text`, from 1; 0 when it has no place.
    pub fn line(&self, text: &str) -> usize {
        let before = |at: usize| text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n');
        self.at.map_or(0, |at| before(at).count() + 1)
    }
}

impl Scenario {
    /// Reads a scenario's text, whatever it says.
    ///
    /// # Errors
    /// Where it is no TOML, or has unknown or missing words.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        toml::from_str(text).map_err(|error| Fault {
            at: error.span().map(|span| span.start),
            what: error.message().to_owned(),
        })
    }

    /// Reads a scenario and makes a simulation of it.
    ///
    /// # Errors
    /// When it cannot be read or simulated: file, line and reason.
    pub fn load(path: &Path, overrides: &Overrides) -> Result<build::SimulationPlan, Error> {
        let text = bounded(path, MAX_FILE)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::plan(path, &text, overrides)
    }

    /// Makes a simulation of the text of this file, or of a changed one.
    ///
    /// # Errors
    /// When it cannot be simulated: line and reason.
    pub fn plan(
        path: &Path,
        text: &str,
        overrides: &Overrides,
    ) -> Result<build::SimulationPlan, Error> {
        let wrong = |fault: Fault| Error::Scenario {
            path: path.to_owned(),
            line: fault.line(text),
            what: fault.what,
        };
        let mut scenario = Self::parse(text).map_err(wrong)?;
        let mut untuned = Vec::new();
        if let Some(seed) = overrides.seed {
            scenario.seed = seed;
        }
        if let Some(name) = &overrides.scheduler {
            crate::sched::make(name, &Default::default()).map_err(Error::Asked)?;
            if scenario.scheduler.get_ref() != name {
                untuned = std::mem::take(&mut scenario.tuning).into_keys().collect();
            }
            scenario.scheduler = Spanned::new(scenario.scheduler.span(), name.clone());
        }
        if let Some(name) = &overrides.placement {
            build::policy(name).map_err(Error::Asked)?;
            scenario.placement = Some(Spanned::new(scenario.scheduler.span(), name.clone()));
        }
        let beside = |name: &str| path.parent().unwrap_or(Path::new("")).join(name);
        let read = |name: &str| {
            let file = beside(name);
            bounded(&file, MAX_TOPOLOGY).map_err(|error| format!("{}: {error}", file.display()))
        };
        let plan = build::SimulationPlan::new(&scenario, &read).map_err(wrong)?;
        let topology_file = scenario.host.get_ref().topology.as_deref().map(beside);
        Ok(build::SimulationPlan { topology_file, untuned, ..plan })
    }
}

/// What a command line says instead of the scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The seed.
    pub seed: Option<u64>,
    /// The scheduler's name; another than the scenario's comes with its published numbers.
    pub scheduler: Option<String>,
    /// What places VMs.
    pub placement: Option<String>,
}

/// The most that is read of a scenario, bytes, and of a topology: `instep topology --json` prints some
/// 200 bytes a CPU.
const MAX_FILE: u64 = 1 << 20;
const MAX_TOPOLOGY: u64 = 16 << 20;

/// The text of a file of so many bytes at most.
fn bounded(path: &Path, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it is larger than {} MiB", most >> 20)));
    }
    let no_text =
        || io::Error::other("it is no text in UTF-8, as TOML and JSON are; name another file");
    String::from_utf8(bytes).map_err(|_| no_text())
}

fn one() -> u64 {
    1
}

fn gibibyte() -> Spanned<u64> {
    Spanned::new(0..0, 1 << 30)
}

fn hundred() -> Spanned<u32> {
    Spanned::new(0..0, 100)
}

fn a_second() -> Duration {
    Duration::from_secs(1)
}

fn warmup<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    time("warmup", &String::deserialize(from)?).map_err(serde::de::Error::custom)
}

/// Of a stage ([`Stage`]).
fn work<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    time("work", &String::deserialize(from)?).map_err(serde::de::Error::custom)
}

fn length<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Spanned<Duration>, D::Error> {
    let text = Spanned::<String>::deserialize(from)?;
    let time = time("duration", text.get_ref()).map_err(serde::de::Error::custom)?;
    Ok(Spanned::new(text.span(), time))
}

fn time(key: &str, text: &str) -> Result<Duration, String> {
    load::duration(text).map_err(|what| format!("{key} = {text:?}: {what}"))
}

/// The most memory that a host or a guest has: 1 EiB.
const MAX_SIZE: u64 = 1 << 60;

/// A size with its unit, in bytes.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size such as 128MiB or 2GiB");
    let Bytes(size) = text.parse().map_err(|_| wrong())?;
    if size > MAX_SIZE {
        return Err(format!("`{text}`: more than 1EiB"));
    }
    Ok(size)
}

fn optional_size<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(from)?;
    size(&text).map(Some).map_err(serde::de::Error::custom)
}

fn spanned_size<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Spanned<u64>, D::Error> {
    let text = Spanned::<String>::deserialize(from)?;
    let bytes = size(text.get_ref()).map_err(serde::de::Error::custom)?;
    Ok(Spanned::new(text.span(), bytes))
}
