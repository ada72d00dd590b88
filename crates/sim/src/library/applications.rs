//! Profiles of applications: what their work is bound by, and for whole programs what they run.

use super::{Given, whole};
use crate::params::Profile;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use toml::{Table, Value};

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

/// One of its profiles; a number of no known name is refused by [`Profile`].
#[derive(Deserialize)]
struct Entry {
    name: String,
    about: String,
    like: Option<Given<String>>,
    load: Option<Given<String>>,
    #[serde(flatten)]
    numbers: BTreeMap<String, Given<Value>>,
}

/// All profiles, in the order in which simulations number them.
///
/// # Panics
/// Never: the files are built in, and a test reads them.
pub fn applications() -> Vec<Application> {
    KNOWN.as_ref().expect("the built-in files are read by a test").clone()
}

/// The profile of this name and its number.
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
    let base = match entry.like {
        None => Profile::bound("", [0; 5]),
        Some(like) => {
            let name = like.checked("like")?;
            let found = known.iter().find(|one| one.profile.name == name);
            found.ok_or_else(|| format!("like {name}: there is none"))?.profile.clone()
        }
    };
    let mut profile = Table::try_from(base).map_err(|error| error.to_string())?;
    profile.insert("name".to_owned(), entry.name.into());
    let load = entry.load.iter().map(|load| ("load", load.source.as_str()));
    let numbers = entry.numbers.iter().map(|(word, given)| (word.as_str(), given.source.as_str()));
    let after_results = numbers.chain(load).filter(|(_, source)| super::after_results(source));
    let chosen = after_results.map(|(place, source)| format!("{place}: {source}")).collect();
    for (word, given) in entry.numbers {
        let (word, number) = match (word.as_str(), given.checked(&word)?) {
            ("set", Value::String(size)) => {
                ("set_kib".to_owned(), whole(crate::scenario::size(&size)? / 1024)?)
            }
            (_, number) => (word, number),
        };
        profile.insert(word, number);
    }
    let profile = profile.try_into().map_err(|error| error.to_string())?;
    let load = entry.load.map(|load| load.checked("load")).transpose()?;
    Ok(Application { profile, about: entry.about, load, chosen })
}
