//! The built-in scenarios of `sim` and `lab`, and what to say beside the error of a command that could not use a
//! scenario's file: which command reads that file, a recording too, or which scenarios have a name like it.
//!
//! It does not know what scenarios mean: it asks the commands' readers.

use instep_lab::scenario::Scenario as LabScenario;
use instep_sim::scenario::{Overrides, Scenario as SimScenario};
use instep_trace::{START, TraceFormat};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Files larger than this are no scenarios, and are not tried.
const MAX_FILE: u64 = 1 << 20;

/// From this likeness on (Jaro, 0 to 1) a name is near. From 0.7 on, as clap takes for misspelt options, names of four letters are like
/// many.
const NEAR: f64 = 0.8;

/// How many near names are said.
const NAMES: usize = 3;

/// Which command was to read the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// `instep lab`.
    Lab,
    /// `instep sim`.
    Sim,
}

include!(concat!(env!("OUT_DIR"), "/scenarios.rs"));

/// Name and text of each built-in scenario of a command.
pub(crate) fn all_built_in(reader: Reader) -> &'static [(&'static str, &'static str)] {
    match reader {
        Reader::Lab => LAB,
        Reader::Sim => SIM,
    }
}

/// The text of the built-in scenario of this name, unless there is a file of this name.
pub(crate) fn built_in(name: &Path, reader: Reader) -> Option<&'static str> {
    let (_, text) = all_built_in(reader).iter().find(|(known, _)| name == *known)?;
    (!name.exists()).then_some(text)
}

/// The error, with what the user may have meant by `file` where that can be told.
pub(crate) fn hinted(error: anyhow::Error, file: &Path, reader: Reader) -> anyhow::Error {
    let hint = if file.is_dir() {
        Some(format!("give the path of a scenario in it: {}/NAME.toml", file.display()))
    } else if file.try_exists().unwrap_or(true) {
        other_reader(file, reader)
    } else if built_in(file, reader).is_some() {
        None
    } else {
        Some(near(file, reader))
    };
    match hint {
        Some(hint) => anyhow::anyhow!("{}; {hint}", crate::error_text(&error)),
        None => error,
    }
}

/// Which other command reads this file.
fn other_reader(file: &Path, reader: Reader) -> Option<String> {
    let meta = fs::metadata(file).ok().filter(fs::Metadata::is_file)?;
    let shown = file.display();
    if is_trace(file) {
        return Some(format!("it is a recording: instep analyze {shown}"));
    }
    if meta.len() > MAX_FILE {
        return None;
    }
    if reader != Reader::Lab && LabScenario::load(file).is_ok() {
        return Some(format!("it is a scenario of the lab: instep lab run {shown}"));
    }
    if reader != Reader::Sim && SimScenario::load(file, &Overrides::default()).is_ok() {
        return Some(format!("it is a scenario of the simulator: instep sim {shown}"));
    }
    let name = file.file_stem()?.to_str()?;
    let is_experiment = fs::read_to_string(file).is_ok_and(|text| text.contains("\n[[row]]"))
        && instep_sim::reproduce::find(name).is_ok();
    is_experiment.then(|| format!("it is a published experiment: instep reproduce {name}"))
}

fn is_trace(file: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(file).and_then(|file| file.take(START).read_to_end(&mut start));
    read.is_ok() && TraceFormat::of(&start).is_some()
}

/// Where scenarios with a name like this one are.
fn near(file: &Path, reader: Reader) -> String {
    let other = if reader == Reader::Lab { Reader::Sim } else { Reader::Lab };
    if built_in(file, other).is_some() {
        let name = file.display();
        return match other {
            Reader::Lab => format!("it is a scenario of the lab: instep lab run {name}"),
            Reader::Sim => format!("it is a scenario of the simulator: instep sim {name}"),
        };
    }
    let beside = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    let found: Vec<String> = beside.into_iter().flat_map(scenarios_in).collect();
    let is_beside = |name: &str| found.iter().any(|file| stem(Path::new(file)) == name);
    let names = all_built_in(reader).iter().map(|(name, _)| *name).filter(|name| !is_beside(name));
    let all: Vec<&str> = found.iter().map(String::as_str).chain(names).collect();
    suggestion(file, &all)
}

fn scenarios_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_toml = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "toml");
    entries
        .map(|entry| entry.path())
        .filter(is_toml)
        .map(|path| path.display().to_string())
        .collect()
}

/// Which of these files and built-in names may be meant by a file that is not there, or which there are.
pub(crate) fn suggestion(file: &Path, known: &[&str]) -> String {
    match nearest(&stem(file), known.iter().copied()) {
        Some(names) => format!("did you mean {names}?"),
        None => format!("built in are {}", known.join(", ")),
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// What is wrong with a name, and which known ones may be meant.
pub(crate) fn hinted_name<'a>(
    error: impl Display,
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> anyhow::Error {
    match nearest(name, known.into_iter()) {
        Some(names) => anyhow::anyhow!("{error}; did you mean {names}?"),
        None => anyhow::anyhow!("{error}"),
    }
}

/// The files and names that are most like this name, the most like first.
pub(crate) fn nearest<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut near: Vec<(f64, &str)> = known
        .map(|name| (strsim::jaro(wanted, &stem(Path::new(name))), name))
        .filter(|(likeness, _)| *likeness > NEAR)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    let exact = near.first().is_some_and(|(likeness, _)| *likeness == 1.0);
    let names: Vec<&str> =
        near.iter().take(if exact { 1 } else { NAMES }).map(|near| near.1).collect();
    (!names.is_empty()).then(|| names.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_names_are_suggested_and_an_exact_one_alone() {
        let near = |wanted| nearest(wanted, ["s/hello.toml", "help", "pinned"].into_iter());
        assert_eq!(near("helo").as_deref(), Some("s/hello.toml or help"));
        assert_eq!(near("hello").as_deref(), Some("s/hello.toml"));
        assert_eq!(near("zzz"), None);
    }

    #[test]
    fn built_in_scenarios_can_be_read_by_their_command() {
        for (name, text) in LAB {
            LabScenario::parse(text, name).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        for (name, text) in SIM {
            SimScenario::plan(Path::new(name), text, &Overrides::default())
                .unwrap_or_else(|error| panic!("{error}"));
        }
        assert!(LAB.len() > 20 && SIM.len() > 5, "{} {}", LAB.len(), SIM.len());
    }

    #[test]
    fn file_wins_over_built_in_scenario_of_its_name() {
        assert!(built_in(Path::new("spinning"), Reader::Sim).is_some());
        assert_eq!(built_in(Path::new("spinning"), Reader::Lab), None);
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("spinning");
        fs::write(&own, "").unwrap();
        assert_eq!(built_in(&own, Reader::Sim), None);
    }
}
