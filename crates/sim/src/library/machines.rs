//! Machines: costs, contention and, for a real one, its shape.

use super::{Given, nanoseconds, whole};
use crate::params::{
    Contention, Costs, GuestTick, HaltPolling, LinuxRelease, MemoryTimes, Noise, Params, XenRelease,
};
use serde::Deserialize;
use std::collections::BTreeMap;
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
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

/// A machine's file without the sources ([`without_sources`]).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    host: Shape,
    xen: Scheduler<XenRelease>,
    linux: Scheduler<LinuxRelease>,
    costs: Costs,
    polling: HaltPolling,
    spinning: Spinning,
    noise: Noise,
    contention: Contention,
    memory: MemoryTimes,
    guest: GuestPart,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scheduler<Release> {
    release: Release,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spinning {
    ple_window: u64,
    ple_user: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GuestPart {
    virtualisation: u64,
    tick: u64,
    tick_cost: u64,
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
            let given = given.ok_or_else(|| no(&format!("{part}.{word}")))?;
            let is_count = |value: &Value| value.as_integer().is_some_and(|number| number >= 0);
            if !given.same_type(value) || given.is_integer() && !is_count(value) {
                return Err(format!(
                    "machine {name}: {part}.{word} is to be {}, not {value}",
                    described(given)
                ));
            }
            *given = value.clone();
        }
    }
    let file = file(name, table)?;
    Ok(Params {
        machine: name.to_owned(),
        xen: file.xen.release,
        linux: file.linux.release,
        costs: file.costs,
        polling: file.polling,
        ple_window: file.spinning.ple_window,
        ple_user: file.spinning.ple_user,
        noise: file.noise,
        contention: file.contention,
        memory: file.memory,
        virtualisation: file.guest.virtualisation,
        guest_tick: GuestTick { period: file.guest.tick, cost: file.guest.tick_cost },
    })
}

/// What stands in the place of this value, in words, with it as an example.
fn described(value: &Value) -> String {
    let kind = match value {
        Value::Boolean(_) => "true or false",
        Value::Integer(_) => "a whole number that is not negative",
        Value::Float(_) => "a number",
        _ => "text",
    };
    format!("{kind}, such as {value}")
}

/// The shape of a machine.
///
/// # Errors
/// When there is none of this name.
pub fn shape_of(name: &str) -> Result<Shape, String> {
    Ok(file(name, table(name, DEEPEST)?)?.host)
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

fn file(name: &str, table: Table) -> Result<File, String> {
    let wrong = |what: String| format!("machine {name}: {what}");
    let plain = Value::Table(without_sources(table).map_err(wrong)?);
    plain.try_into().map_err(|error: toml::de::Error| wrong(error.to_string()))
}

/// The numbers alone, each of which must have named its source: times in nanoseconds, the size of a cache in KiB.
fn without_sources(table: Table) -> Result<Table, String> {
    let parts = table.into_iter().filter(|(part, _)| !["about", "like"].contains(&part.as_str()));
    let plain = |(part, words): (String, Value)| {
        let words: BTreeMap<String, Given<Value>> =
            words.try_into().map_err(|error| format!("{part}: {error}"))?;
        let number = |(word, given): (String, Given<Value>)| {
            let given = given.checked(&format!("{part}.{word}"))?;
            let number = match (part.as_str(), given.as_str()) {
                ("host" | "xen" | "linux", _) | (_, None) => given,
                ("contention", Some(text)) => whole(crate::scenario::size(text)? / 1024)?,
                (_, Some(text)) => whole(nanoseconds(text)?)?,
            };
            Ok((word, number))
        };
        let words = words.into_iter().map(number).collect::<Result<Table, String>>()?;
        Ok((part, Value::Table(words)))
    };
    parts.map(plain).collect()
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
