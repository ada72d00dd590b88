//! Machines: costs, contention and, for a real one, its shape.

use super::{Given, nanoseconds};
use crate::params::{Contention, Costs, GuestTick, HaltPolling, MemoryTimes, Noise, Params};
use serde::Deserialize;
use toml::{Table, Value};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!(
            "../../../../scenarios/library/machines/", $name, ".toml"
        )))),*]
    };
}

const FILES: &[(&str, &str)] = files![
    "generic",
    "ideal",
    "kvm-4",
    "kvm-16",
    "lab",
    "opteron-6376",
    "xen-6",
    "xeon-4-node",
    "xeon-ple"
];

/// How many machines may be like each other in a row.
const DEEPEST: usize = 4;

/// Names of all machines.
pub fn machine_names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// A machine's shape, as far as it has one: the words of a scenario's host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// NUMA nodes.
    pub nodes: Option<u32>,
    /// Sockets.
    pub sockets: Option<u32>,
    /// Cores of each socket.
    pub cores: Option<u32>,
    /// Threads of each core.
    pub threads: Option<u32>,
    /// Last-level caches of the host.
    pub caches: Option<u32>,
    /// The distance between any two nodes.
    pub distance: Option<u32>,
    /// Memory of the host, such as `64GiB`.
    pub memory: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "about")]
    _about: String,
    #[serde(rename = "like")]
    _like: Option<String>,
    #[serde(default)]
    host: HostPart,
    xen: ReleasePart,
    linux: ReleasePart,
    costs: CostsPart,
    polling: PollingPart,
    spinning: SpinningPart,
    noise: NoisePart,
    contention: ContentionPart,
    memory: MemoryPart,
    guest: GuestPart,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostPart {
    nodes: Option<Given<u32>>,
    sockets: Option<Given<u32>>,
    cores: Option<Given<u32>>,
    threads: Option<Given<u32>>,
    caches: Option<Given<u32>>,
    distance: Option<Given<u32>>,
    memory: Option<Given<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleasePart {
    release: Given<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CostsPart {
    context_switch: Given<String>,
    migrate_llc: Given<String>,
    migrate_far: Given<String>,
    idle_exit: Given<String>,
    ipi_exit: Given<String>,
    halt: Given<String>,
    resume: Given<String>,
    futex: Given<String>,
    line: Given<String>,
    tick: Given<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PollingPart {
    max: Given<String>,
    start: Given<String>,
    grow: Given<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SpinningPart {
    ple_window: Given<String>,
    ple_user: Given<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoisePart {
    on: Given<bool>,
    bound: Given<String>,
    roaming: Given<String>,
    wait: Given<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ContentionPart {
    fetch: Given<u64>,
    fpu: Given<u64>,
    l2: Given<u64>,
    any: Given<u64>,
    llc: Given<String>,
    llc_miss: Given<u64>,
    node_mib_s: Given<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryPart {
    latency: Given<String>,
    remote: Given<String>,
    service: Given<String>,
    in_flight_tenths: Given<u64>,
    link_mib_s: Given<u64>,
    warmth: Given<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GuestPart {
    virtualisation: Given<u64>,
    tick: Given<String>,
    tick_cost: Given<String>,
}

/// The numbers of a machine.
///
/// # Errors
/// When there is none of this name.
pub fn machine(name: &str) -> Result<Params, String> {
    machine_with(name, &Table::new())
}

/// The numbers of a machine, with others in some places: parts of its file, such as `costs`, with words
/// such as `futex` and what each is instead.
///
/// # Errors
/// When there is none of this name, or it has no such number.
pub fn machine_with(name: &str, numbers: &Table) -> Result<Params, String> {
    let mut table = table(name, DEEPEST)?;
    let no = |place: &str| {
        format!("numbers: {place}: a machine has no such number; see scenarios/library/machines")
    };
    for (part, words) in numbers {
        for (word, value) in words.as_table().ok_or_else(|| no(part))? {
            let given = table.get_mut(part).and_then(|part| part.get_mut(word)?.get_mut("is"));
            let given = given.filter(|_| part != "host");
            *given.ok_or_else(|| no(&format!("{part}.{word}")))? = value.clone();
        }
    }
    params(name, file(name, table)?).map_err(|what| format!("machine {name}: {what}"))
}

/// The shape of a machine.
///
/// # Errors
/// When there is none of this name.
pub fn shape_of(name: &str) -> Result<Shape, String> {
    let host = read(name)?.host;
    let number = |given: Option<Given<u32>>| given.map(|given| given.is);
    Ok(Shape {
        nodes: number(host.nodes),
        sockets: number(host.sockets),
        cores: number(host.cores),
        threads: number(host.threads),
        caches: number(host.caches),
        distance: number(host.distance),
        memory: host.memory.map(|given| given.is),
    })
}

/// Numbers of a machine that were chosen after results had been seen, in order of place: place and
/// source.
///
/// # Errors
/// When there is none of this name.
pub fn chosen(name: &str) -> Result<Vec<(String, String)>, String> {
    let mut all = Vec::new();
    for (part, values) in table(name, DEEPEST)? {
        for (word, given) in values.as_table().into_iter().flatten() {
            let source = given.get("source").and_then(Value::as_str).unwrap_or_default();
            if super::after_results(source) {
                all.push((format!("{part}.{word}"), source.to_owned()));
            }
        }
    }
    all.sort();
    Ok(all)
}

/// Numbers of a machine that are assumed, in order of place: place, value and source. Those of its shape
/// do not count.
///
/// # Errors
/// When there is none of this name.
#[cfg(test)]
pub fn assumed(name: &str) -> Result<Vec<(String, Value, String)>, String> {
    let mut all = Vec::new();
    for (part, values) in table(name, DEEPEST)?.into_iter().filter(|(part, _)| part != "host") {
        for (word, given) in values.as_table().into_iter().flatten() {
            let source = given.get("source").and_then(Value::as_str).unwrap_or_default();
            if source.to_lowercase().contains("assumed") {
                all.push((format!("{part}.{word}"), given["is"].clone(), source.to_owned()));
            }
        }
    }
    Ok(all)
}

fn read(name: &str) -> Result<File, String> {
    file(name, table(name, DEEPEST)?)
}

fn file(name: &str, table: Table) -> Result<File, String> {
    Value::Table(table).try_into().map_err(|error| format!("machine {name}: {error}"))
}

/// The file's table over that of what it is like; a shape is nobody else's.
fn table(name: &str, deepest: usize) -> Result<Table, String> {
    let known = || machine_names().collect::<Vec<_>>().join(", ");
    let unknown = || format!("machine {name}: known are {}", known());
    let text = FILES.iter().find(|file| file.0 == name).ok_or_else(unknown)?.1;
    let own: Table = toml::from_str(text).map_err(|error| format!("machine {name}: {error}"))?;
    let Some(like) = own.get("like").and_then(Value::as_str) else { return Ok(own) };
    if deepest == 0 {
        return Err(format!("machine {name}: it is like {like}, which is like too many others"));
    }
    let mut whole = table(like, deepest - 1)?;
    whole.remove("host");
    for (part, values) in own {
        match (whole.get_mut(&part), values) {
            (Some(Value::Table(known)), Value::Table(values)) => known.extend(values),
            (_, values) => {
                whole.insert(part, values);
            }
        }
    }
    Ok(whole)
}

fn params(name: &str, file: File) -> Result<Params, String> {
    let time = |given: Given<String>, place: &str| nanoseconds(&given.checked(place)?);
    let (costs, polling, noise) = (file.costs, file.polling, file.noise);
    let (spinning, contention, memory) = (file.spinning, file.contention, file.memory);
    let guest = file.guest;
    let llc = contention.llc.checked("contention.llc")?;
    Ok(Params {
        machine: name.to_owned(),
        xen: file.xen.release.checked("xen.release")?.parse()?,
        linux: file.linux.release.checked("linux.release")?.parse()?,
        costs: Costs {
            context_switch: time(costs.context_switch, "costs.context_switch")?,
            migrate_llc: time(costs.migrate_llc, "costs.migrate_llc")?,
            migrate_far: time(costs.migrate_far, "costs.migrate_far")?,
            idle_exit: time(costs.idle_exit, "costs.idle_exit")?,
            ipi_exit: time(costs.ipi_exit, "costs.ipi_exit")?,
            halt: time(costs.halt, "costs.halt")?,
            resume: time(costs.resume, "costs.resume")?,
            futex: time(costs.futex, "costs.futex")?,
            line: time(costs.line, "costs.line")?,
            tick: time(costs.tick, "costs.tick")?,
        },
        polling: HaltPolling {
            max: time(polling.max, "polling.max")?,
            start: time(polling.start, "polling.start")?,
            grow: polling.grow.checked("polling.grow")?,
        },
        ple_window: time(spinning.ple_window, "spinning.ple_window")?,
        ple_user: spinning.ple_user.checked("spinning.ple_user")?,
        noise: Noise {
            on: noise.on.checked("noise.on")?,
            bound: time(noise.bound, "noise.bound")?,
            roaming: time(noise.roaming, "noise.roaming")?,
            wait: time(noise.wait, "noise.wait")?,
        },
        contention: Contention {
            fetch: contention.fetch.checked("contention.fetch")?,
            fpu: contention.fpu.checked("contention.fpu")?,
            l2: contention.l2.checked("contention.l2")?,
            any: contention.any.checked("contention.any")?,
            llc_kib: crate::scenario::size(&llc)? / 1024,
            llc_miss: contention.llc_miss.checked("contention.llc_miss")?,
            node_mib_s: contention.node_mib_s.checked("contention.node_mib_s")?,
        },
        memory: MemoryTimes {
            latency: time(memory.latency, "memory.latency")?,
            remote: time(memory.remote, "memory.remote")?,
            service: time(memory.service, "memory.service")?,
            in_flight_tenths: memory.in_flight_tenths.checked("memory.in_flight_tenths")?,
            link_mib_s: memory.link_mib_s.checked("memory.link_mib_s")?,
            warmth: memory.warmth.checked("memory.warmth")?,
        },
        virtualisation: guest.virtualisation.checked("guest.virtualisation")?,
        guest_tick: GuestTick {
            period: time(guest.tick, "guest.tick")?,
            cost: time(guest.tick_cost, "guest.tick_cost")?,
        },
    })
}
