//! Profiles of applications: what their work is bound by, and for whole programs what they run.

use super::Given;
use crate::params::Profile;
use serde::Deserialize;
use std::sync::LazyLock;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!(
            "../../../../scenarios/library/applications/", $name, ".toml"
        )))),*]
    };
}

/// The basic ones come first: their places are known ([`Profile::PLAIN`], [`Profile::SPIN`]).
const FILES: &[(&str, &str)] = files!["basic", "stealing", "npb", "npb-b", "parsec"];

static KNOWN: LazyLock<Result<Vec<Application>, String>> = LazyLock::new(read);

/// A profile and what a whole program of it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Application {
    /// What its work is bound by.
    pub profile: Profile,
    /// In one line.
    pub about: String,
    /// A guest's `load`; nothing where it is a kind of work only.
    pub load: Option<String>,
    /// Which of its numbers were chosen after results had been seen: place and source.
    pub chosen: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "about")]
    _about: String,
    profile: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    about: String,
    like: Option<Given<String>>,
    fetch: Option<Given<u32>>,
    fpu: Option<Given<u32>>,
    l2: Option<Given<u32>>,
    llc: Option<Given<u32>>,
    memory: Option<Given<u32>>,
    misses_ms: Option<Given<u64>>,
    mlp_tenths: Option<Given<u32>>,
    set: Option<Given<String>>,
    mib_s: Option<Given<u64>>,
    load: Option<Given<String>>,
}

/// All profiles, in the order in which simulations number them.
///
/// # Panics
/// Never: the files are built in, and a test reads them.
#[must_use]
pub fn applications() -> Vec<Application> {
    KNOWN.as_ref().expect("the built-in files are read by a test").clone()
}

/// The profile of this name and its number.
#[must_use]
pub fn application(name: &str) -> Option<(usize, &'static Application)> {
    let known = KNOWN.as_ref().ok()?;
    known.iter().enumerate().find(|(_, one)| one.profile.name == name)
}

fn read() -> Result<Vec<Application>, String> {
    let mut all: Vec<Application> = Vec::new();
    for (name, text) in FILES {
        let file: File = toml::from_str(text).map_err(|error| format!("{name}.toml: {error}"))?;
        for entry in file.profile {
            let place = format!("{name}.toml: {}", entry.name);
            let one = one(entry, &all).map_err(|what| format!("{place}: {what}"))?;
            if all.iter().any(|other| other.profile.name == one.profile.name) {
                return Err(format!("{place}: named twice"));
            }
            all.push(one);
        }
    }
    Ok(all)
}

fn one(entry: Entry, known: &[Application]) -> Result<Application, String> {
    let mut profile = match entry.like {
        None => Profile::bound("", [0; 5]),
        Some(like) => {
            let name = like.checked("like")?;
            let found = known.iter().find(|one| one.profile.name == name);
            found.ok_or_else(|| format!("like {name}: there is none"))?.profile.clone()
        }
    };
    profile.name = entry.name;
    let mut chosen = Vec::new();
    let mut note = |place: &str, source: &str| {
        if super::after_results(source) {
            chosen.push(format!("{place}: {source}"));
        }
    };
    let bounds = [
        (entry.fetch, &mut profile.fetch, "fetch"),
        (entry.fpu, &mut profile.fpu, "fpu"),
        (entry.l2, &mut profile.l2, "l2"),
        (entry.llc, &mut profile.llc, "llc"),
        (entry.memory, &mut profile.memory, "memory"),
        (entry.mlp_tenths, &mut profile.mlp_tenths, "mlp_tenths"),
    ];
    for (given, bound, place) in bounds {
        if let Some(given) = given {
            note(place, &given.source);
            *bound = given.checked(place)?;
        }
    }
    if let Some(set) = entry.set {
        note("set", &set.source);
        profile.set_kib = crate::scenario::size(&set.checked("set")?)? / 1024;
    }
    let amounts = [
        (entry.misses_ms, &mut profile.misses_ms, "misses_ms"),
        (entry.mib_s, &mut profile.mib_s, "mib_s"),
    ];
    for (given, amount, place) in amounts {
        if let Some(given) = given {
            note(place, &given.source);
            *amount = given.checked(place)?;
        }
    }
    if let Some(load) = &entry.load {
        note("load", &load.source);
    }
    let load = entry.load.map(|load| load.checked("load")).transpose()?;
    Ok(Application { profile, about: entry.about, load, chosen })
}
