//! What to say beside the error of a command that could not use a scenario's file: which command
//! reads that file, a recording too, or which scenarios have a name like it.
//!
//! It does not know what scenarios mean: it asks the commands' readers.

use instep_lab::scenario::Scenario as LabScenario;
use instep_sim::scenario::{Overrides, Scenario as SimScenario};
use instep_trace::{Kind, START};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Files larger than this are no scenarios, and are not tried.
const MAX_FILE: u64 = 1 << 20;

/// From this likeness on (Jaro, 0 to 1, as clap takes for misspelt options) a name is near.
const NEAR: f64 = 0.7;

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

impl Reader {
    /// The directory of its scenarios in Instep's sources.
    fn dir(self) -> &'static str {
        match self {
            Reader::Lab => "scenarios/lab",
            Reader::Sim => "scenarios/sim",
        }
    }
}

/// The error, with what the user may have meant by `file` where that can be told.
pub(crate) fn hinted(error: anyhow::Error, file: &Path, reader: Reader) -> anyhow::Error {
    let hint = if file.is_dir() {
        Some(format!("give the path of a scenario in it: {}/NAME.toml", file.display()))
    } else if file.try_exists().unwrap_or(true) {
        other_reader(file, reader)
    } else {
        Some(near(file, reader))
    };
    match hint {
        Some(hint) => anyhow::anyhow!("{}; {hint}", crate::told(&error)),
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
    read.is_ok() && Kind::of(&start).is_some()
}

/// Where scenarios with a name like this one are, or where it was looked for.
fn near(file: &Path, reader: Reader) -> String {
    let beside = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dirs = beside.into_iter().chain([Path::new(reader.dir())]);
    let found: Vec<PathBuf> = dirs.flat_map(scenarios_in).collect();
    let names = nearest(file, &found);
    if !names.is_empty() {
        return format!("did you mean {}?", names.join(" or "));
    }
    if Path::new(reader.dir()).is_dir() {
        return format!("there are scenarios in {}", reader.dir());
    }
    let here = std::env::current_dir().map_or_else(|_| ".".to_owned(), |d| d.display().to_string());
    format!("this directory, {here}, has no {}: give the path of a scenario", reader.dir())
}

fn scenarios_in(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_toml = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "toml");
    entries.map(|entry| entry.path()).filter(is_toml).collect()
}

/// The files whose names are most like that of `wanted`, the most like first.
fn nearest(wanted: &Path, found: &[PathBuf]) -> Vec<String> {
    let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let wanted = stem(wanted);
    let mut near: Vec<(f64, String)> = found
        .iter()
        .map(|path| (strsim::jaro(&wanted, &stem(path)), path.display().to_string()))
        .filter(|(likeness, _)| *likeness > NEAR)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    near.dedup();
    let exact = near.first().is_some_and(|(likeness, _)| *likeness == 1.0);
    near.into_iter().take(if exact { 1 } else { NAMES }).map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likest_names_are_said_and_an_exact_one_alone() {
        let found: Vec<PathBuf> =
            ["s/hello.toml", "s/help.toml", "s/pinned.toml"].iter().map(PathBuf::from).collect();
        assert_eq!(nearest(Path::new("helo.toml"), &found), ["s/hello.toml", "s/help.toml"]);
        assert_eq!(nearest(Path::new("hello"), &found), ["s/hello.toml"]);
        assert_eq!(nearest(Path::new("zzz"), &found), [] as [String; 0]);
    }
}
