//! A case: one piece of work that is measured, and what runs beside it, as TOML.
//! scenarios/example/bench.toml explains each word.

use crate::error::Error;
use crate::quota::Quota;
use crate::share::{self, Wanting};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The most that runs beside the work.
const MAX_BESIDE: u32 = 16;

/// What Instep may be told of a VM besides its weight, and a period.
const COSCHED: [&str; 3] = ["auto", "never", "relaxed"];
const LATENCY: [&str; 2] = ["normal", "prompt"];

/// What a file of cases holds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    host: Shape,
    #[serde(default)]
    case: Vec<Case>,
}

/// The CPUs that a case wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shape {
    /// Cores.
    pub cores: u32,
    /// Hardware threads of each.
    pub threads: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self { cores: 2, threads: 1 }
    }
}

impl Shape {
    /// All CPUs.
    pub fn cpus(self) -> u32 {
        self.cores.saturating_mul(self.threads)
    }
}

/// One case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Letters, digits and dashes.
    pub name: String,
    /// What it shows, in one line.
    pub about: String,
    /// The CPUs it wants; the file's.
    #[serde(default)]
    pub host: Shape,
    /// Part of `--quick`.
    #[serde(default)]
    pub quick: bool,
    /// Worth running with mechanisms off in turn.
    #[serde(default)]
    pub ablate: bool,
    /// Everybody wants all CPUs it can get: CPU time is held against the weights.
    #[serde(default)]
    pub weights: bool,
    /// What is measured.
    pub work: Work,
    /// What runs beside it.
    #[serde(default)]
    pub beside: Vec<Work>,
    /// Slices by name. Without any the cgroups lie side by side; with some, each lies in one of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub slices: BTreeMap<String, Slice>,
}

/// A cgroup that holds others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Slice {
    /// Its `cpu.weight`.
    pub weight: u32,
    /// Its CPU limit; none by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
}

impl Default for Slice {
    fn default() -> Self {
        Self { weight: 100, quota: None }
    }
}

/// CPUs of a limit.
fn limit(quota: Option<Quota>) -> f64 {
    quota.map_or(f64::INFINITY, Quota::cpus)
}

/// What is wrong with a weight.
fn check_weight(weight: u32) -> Result<(), String> {
    if weight == 0 || weight > 10_000 {
        return Err(format!("weight {weight}; possible are 1 to 10000"));
    }
    Ok(())
}

/// How work is run.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum GuestKind {
    /// A plain process in a cgroup, as a VM: its threads are the vCPUs.
    #[default]
    Process,
    /// A real KVM guest.
    Kvm,
    /// A process in a cgroup that belongs to no VM.
    Host,
}

/// Something that runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// The command: instep-load, or another program, which is run again and again.
    pub load: String,
    /// Its vCPUs; threads of a process.
    pub vcpus: u32,
    /// `cpu.weight` of its cgroup.
    #[serde(default = "hundred")]
    pub weight: u32,
    /// Its CPU limit; none by default. The work alone has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// The slice in which its cgroup lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// How many of these run.
    #[serde(default = "one")]
    pub count: u32,
    /// How it is run.
    #[serde(default)]
    pub kind: GuestKind,
    /// The part of a CPU that each vCPU wants, above 0 and up to 1.
    #[serde(default = "whole")]
    pub demand: f64,
    /// What is counted when the load is not instep-load: `runs`, for one.
    pub per: Option<String>,
    /// Programs of this machine that a guest's load needs.
    #[serde(default)]
    pub programs: Vec<String>,
    /// What Instep is told of it besides its weight, as in `[dispatch.vm.NAME]`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// The real-time priority of a host process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub realtime: Option<u8>,
}

impl Work {
    /// Whether instep-load runs, whose lines tell the rate.
    pub fn is_instep_load(&self) -> bool {
        self.load.split_whitespace().next() == Some("instep-load")
    }

    /// The program of this machine that runs it, besides instep-load.
    pub fn program(&self) -> Option<&str> {
        match self.realtime {
            Some(_) => Some("chrt"),
            None if self.is_instep_load() => None,
            None => self.load.split_whitespace().next(),
        }
    }

    /// Whether it measures how late it wakes.
    pub fn is_ping(&self) -> bool {
        self.is_instep_load() && self.load.split_whitespace().nth(1) == Some("ping")
    }

    /// Whether it is a ping that reports once in a measurement, over all of it; guests report twice a second.
    pub fn reports_once(&self) -> bool {
        self.is_ping() && self.kind != GuestKind::Kvm
    }

    /// Whether alone it does the same as the other, so that one measurement tells of both: all but what
    /// says how it shares.
    pub fn is_same_alone(&self, other: &Work) -> bool {
        (&self.load, self.vcpus, self.kind, &self.per, &self.programs)
            == (&other.load, other.vcpus, other.kind, &other.per, &other.programs)
    }

    /// What it competes with for CPU time.
    pub fn wanting(&self) -> Wanting {
        Wanting { weight: f64::from(self.weight), wants: self.wants().min(limit(self.quota)) }
    }

    /// The CPUs that it could use without a limit.
    fn wants(&self) -> f64 {
        f64::from(self.vcpus) * self.demand
    }

    fn check(&self) -> Result<(), String> {
        if self.load.trim().is_empty() || self.load.len() > 1000 || self.load.contains('\n') {
            return Err("load: one line of 1 to 1000 bytes is needed".to_owned());
        }
        if self.vcpus == 0 || self.vcpus > 64 {
            return Err(format!("{} vcpus; possible are 1 to 64", self.vcpus));
        }
        check_weight(self.weight)?;
        if self.kind == GuestKind::Kvm && (self.quota.is_some() || self.slice.is_some()) {
            return Err("quota and slice go with kind = \"process\" or \"host\"".to_owned());
        }
        if self.count == 0 || self.count > MAX_BESIDE {
            return Err(format!("count {}; possible are 1 to {MAX_BESIDE}", self.count));
        }
        if !(self.demand > 0.0 && self.demand <= 1.0) {
            return Err(format!("demand {}; it must be above 0 and at most 1", self.demand));
        }
        if self.kind != GuestKind::Kvm && !self.programs.is_empty() {
            return Err("programs go with kind = \"kvm\"; others use the host's".to_owned());
        }
        if self.kind != GuestKind::Process && !self.settings.is_empty() {
            return Err("settings go with kind = \"process\"".to_owned());
        }
        if self.realtime.is_some_and(|priority| {
            self.kind != GuestKind::Host || !self.is_instep_load() || !(1..=99).contains(&priority)
        }) {
            return Err("realtime: 1 to 99, of kind = \"host\" and instep-load".to_owned());
        }
        self.settings.iter().try_for_each(|(key, value)| setting(key, value))?;
        for word in ["--threads", "--duration", "--report", "--unit-ns", "--float"] {
            let given = |w: &str| w == word || w.starts_with(&format!("{word}="));
            if self.is_instep_load() && self.load.split_whitespace().any(given) {
                return Err(format!("load: {word} is given by the benchmark itself"));
            }
        }
        Ok(())
    }
}

impl Case {
    /// The fair share of the work's speed alone, on so many CPUs.
    pub fn share(&self, cpus: u32) -> f64 {
        let alone = self.work.wants().min(f64::from(cpus));
        self.given(cpus)[0] / alone
    }

    /// The CPUs that are fair for each that runs, in the order of [`Case::all`].
    pub fn given(&self, cpus: u32) -> Vec<f64> {
        let cpus = f64::from(cpus);
        if self.slices.is_empty() {
            return share::given(
                &self.all().map(|(_, work)| work.wanting()).collect::<Vec<_>>(),
                cpus,
            );
        }
        let slice =
            |name: &Option<String>| self.slices.keys().position(|own| Some(own) == name.as_ref());
        let all =
            self.all().map(|(_, work)| (work.wanting(), slice(&work.slice).unwrap_or_default()));
        let slices = self.slices.values();
        let slices =
            slices.map(|slice| Wanting { weight: slice.weight.into(), wants: limit(slice.quota) });
        share::given_in_slices(&all.collect::<Vec<_>>(), &slices.collect::<Vec<_>>(), cpus)
    }

    /// Everything that runs, the measured work first, each once for every of its count, with a name.
    pub fn all(&self) -> impl Iterator<Item = (String, &Work)> {
        let beside = self.beside.iter().flat_map(|work| (0..work.count).map(move |_| work));
        let beside = beside.enumerate().map(|(i, work)| (format!("beside-{}", i + 1), work));
        std::iter::once(("work".to_owned(), &self.work)).chain(beside)
    }

    /// Whether the work alone is the same as another case's, on the same CPUs.
    pub fn is_same_alone(&self, other: &Case) -> bool {
        self.host == other.host && self.work.is_same_alone(&other.work)
    }

    /// Its real guests, each once for every of its count, by a name that is the same wherever the
    /// same guest is wanted, so that cases can share guests that boot once.
    pub fn guests(&self) -> Vec<(String, &Work)> {
        let mut named: Vec<(String, &Work)> = Vec::new();
        for (_, work) in self.all().filter(|(_, work)| work.kind == GuestKind::Kvm) {
            let base = format!("g{:08x}", fingerprint(work));
            let same = named.iter().filter(|(name, _)| name.starts_with(&base)).count();
            named.push((format!("{base}-{}", same + 1), work));
        }
        named
    }

    /// Whether any of it is a real guest.
    pub fn has_guests(&self) -> bool {
        self.all().any(|(_, work)| work.kind == GuestKind::Kvm)
    }

    /// Whether it can be run.
    ///
    /// # Errors
    /// In words what is impossible.
    pub fn check(&self) -> Result<(), String> {
        let letter = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if self.name.is_empty() || self.name.len() > 40 || !self.name.chars().all(letter) {
            return Err("a name has 1 to 40 letters, digits and dashes".to_owned());
        }
        if self.host.cpus() == 0 || self.host.cores > 64 || self.host.cpus() > 64 {
            return Err("host: possible are 1 to 64 CPUs".to_owned());
        }
        if self.work.count != 1 {
            return Err("work: count is for what runs beside".to_owned());
        }
        for (name, slice) in &self.slices {
            if name.is_empty() || name.len() > 40 || !name.chars().all(letter) {
                return Err(format!("slice {name}: a name has 1 to 40 letters, digits and dashes"));
            }
            check_weight(slice.weight).map_err(|what| format!("slice {name}: {what}"))?;
        }
        let known = |work: &Work| match &work.slice {
            Some(name) => self.slices.contains_key(name),
            None => self.slices.is_empty(),
        };
        if !self.all().all(|(_, work)| known(work)) {
            return Err(
                "slice: all or none that run lie in one, and `slices` has its name".to_owned()
            );
        }
        self.work.check().map_err(|what| format!("work: {what}"))?;
        for (index, work) in self.beside.iter().enumerate() {
            work.check().map_err(|what| format!("beside {}: {what}", index + 1))?;
        }
        if self.all().count() > MAX_BESIDE as usize + 1 {
            return Err(format!("more than {MAX_BESIDE} run beside the work"));
        }
        Ok(())
    }
}

/// A number for what a guest runs (FNV-1a).
fn fingerprint(work: &Work) -> u32 {
    let text = format!("{} {} {} {:?}", work.load, work.vcpus, work.weight, work.programs);
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The cases of a file's text; `path` is for messages.
///
/// # Errors
/// What is wrong, with the file, and the line or the case.
pub fn parse(text: &str, path: &Path) -> Result<Vec<Case>, Error> {
    let wrong = |what: String| Error::Cases { path: path.to_owned(), what };
    let file: File =
        toml::from_str(text).map_err(|error| wrong(error.to_string().trim_end().to_owned()))?;
    let mut cases = file.case;
    if cases.is_empty() {
        return Err(wrong("there is no [[case]] in it".to_owned()));
    }
    for case in &mut cases {
        case.host = file.host;
        case.check().map_err(|what| wrong(format!("case {}: {what}", case.name)))?;
    }
    unique(&cases).map_err(|name| wrong(format!("case {name} is there twice")))?;
    Ok(cases)
}

/// Whether no name is there twice; the first that is.
///
/// # Errors
/// That name.
pub fn unique(cases: &[Case]) -> Result<(), String> {
    let mut names = BTreeSet::new();
    cases
        .iter()
        .find(|case| !names.insert(&case.name))
        .map_or(Ok(()), |case| Err(case.name.clone()))
}

/// Whether Instep can be told this of a VM.
fn setting(key: &str, value: &str) -> Result<(), String> {
    let one_of = |words: &[&str]| match words.contains(&value) {
        true => Ok(()),
        false => Err(format!("settings: {key}: {value}; possible are {}", words.join(", "))),
    };
    match key {
        "cosched" => one_of(&COSCHED),
        "latency" => one_of(&LATENCY),
        "period" => match humantime::parse_duration(value).map(|period| period.as_millis()) {
            Ok(1..=1000) => Ok(()),
            _ => Err(format!("settings: period: {value}; possible are 1ms to 1s")),
        },
        _ => Err(format!("settings: {key}; possible are cosched, latency, period")),
    }
}

fn hundred() -> u32 {
    100
}

fn one() -> u32 {
    1
}

fn whole() -> f64 {
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: &str = "[[case]]\nname = 'a'\nabout = 'x'\n\
                        work = { load = 'instep-load compute', vcpus = 2 }\n";

    fn read(text: &str) -> Result<Vec<Case>, String> {
        parse(text, Path::new("c.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_case_knows_its_share_and_all_that_runs() {
        let text = format!("{CASE}beside = [{{ load = 'x', vcpus = 2, count = 3 }}]\n");
        let case = &read(&text).unwrap()[0];
        let names: Vec<String> = case.all().map(|(name, _)| name).collect();
        assert_eq!(names, ["work", "beside-1", "beside-2", "beside-3"]);
        assert!((case.share(2) - 0.25).abs() < 1e-5);
        assert!((case.share(8) - 1.0).abs() < 1e-5);
    }

    #[test]
    fn same_guest_has_one_name_in_all_cases_and_two_of_it_have_two() {
        let guest = "{ load = 'instep-load compute', vcpus = 2, kind = 'kvm'";
        let text = |name: &str, count: u32| {
            format!(
                "[[case]]\nname = '{name}'\nabout = 'x'\nwork = {guest} }}\n\
                 beside = [{guest}, count = {count} }}]\n"
            )
        };
        let cases = read(&[text("a", 1), text("b", 2)].concat()).unwrap();
        let names =
            |case: &Case| case.guests().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let (a, b) = (names(&cases[0]), names(&cases[1]));
        assert_eq!((a.len(), b.len()), (2, 3));
        assert_eq!(a, b[..2]);
        assert!(a[0] != a[1] && a[0].len() <= 20);
    }

    #[test]
    fn the_hosts_shape_is_of_every_case_of_a_file() {
        let text = format!("[host]\ncores = 2\nthreads = 2\n{CASE}");
        assert_eq!(read(&text).unwrap()[0].host.cpus(), 4);
        assert_eq!(read(CASE).unwrap()[0].host, Shape::default());
    }

    #[test]
    fn what_is_wrong_is_named_with_file_and_place() {
        let swap = |from: &str, to: &str| CASE.replace(from, to);
        for (text, said) in [
            (String::new(), "no [[case]]"),
            (format!("{CASE}colour = 1\n"), "line 5"),
            (format!("{CASE}{CASE}"), "case a is there twice"),
            (swap("'a'", "'a b'"), "letters, digits and dashes"),
            (swap("vcpus = 2", "vcpus = 0"), "case a: work: 0 vcpus"),
            (swap("vcpus = 2", "vcpus = 2, realtime = 9"), "realtime: 1 to 99, of kind"),
            (swap("vcpus = 2", "vcpus = 2, kind = 'host', realtime = 100"), "realtime: 1 to 99"),
            (
                swap("vcpus = 2", "vcpus = 2, settings = { weight = '1' }"),
                "settings: weight; possible",
            ),
            (
                swap("vcpus = 2", "vcpus = 2, kind = 'kvm', settings = { period = '1ms' }"),
                "settings go",
            ),
            (
                swap("vcpus = 2", "vcpus = 2, settings = { cosched = 'gang' }"),
                "cosched: gang; possible",
            ),
            (
                swap("vcpus = 2", "vcpus = 2, settings = { period = '5' }"),
                "period: 5; possible are 1ms",
            ),
            (swap("vcpus = 2", "vcpus = 2, weight = 0"), "weight 0; possible are 1 to 10000"),
            (swap("vcpus = 2", "vcpus = 2, quota = '0ms'"), "quota `0ms`; it must be CPU time"),
            (
                swap("vcpus = 2", "vcpus = 2, kind = 'kvm', quota = '9ms'"),
                "quota and slice go with",
            ),
            (swap("vcpus = 2", "vcpus = 2, slice = 'a'"), "slice: all or none"),
            (format!("{CASE}slices = {{ a = {{}} }}\n"), "slice: all or none"),
            (format!("{CASE}slices = {{ 'a/b' = {{}} }}\n"), "slice a/b: a name has"),
            (format!("{CASE}slices = {{ a = {{ weight = 0 }} }}\n"), "slice a: weight 0"),
            (swap("vcpus = 2", "vcpus = 2, demand = 2.0"), "demand 2"),
            (swap("vcpus = 2", "vcpus = 2, demand = nan"), "demand NaN"),
            (swap("vcpus = 2", "vcpus = 2, kind = 'xen'"), "unknown variant"),
            (swap("compute'", "compute --threads 3'"), "--threads is given by the benchmark"),
            (format!("[host]\ncores = 4000000000\nthreads = 1\n{CASE}"), "1 to 64 CPUs"),
            (format!("{CASE}beside = [{{ load = '', vcpus = 1 }}]\n"), "beside 1: load"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.starts_with("c.toml: ") && error.contains(said), "{said}: {error}");
        }
    }
}
