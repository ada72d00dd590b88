//! Cgroups of a scenario: `[[cgroup]]`, where guests and services lie, and `[[service]]`, processes of the host.
//!
//! A guest or service lies in the cgroup of its `cgroup`, or else in one of its own name in the root. Cgroups that a path
//! goes through are made. Which scheduler keeps them is not known here.

use super::{Fault, Guest, Load, Scenario, Start, hundred, load};
use crate::engine::{CgroupSetup, VmSetup};
use instep_scx::instep::{Cgroup, CpuLimit};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use toml::Spanned;

/// What is set for a cgroup.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CgroupSettings {
    /// Where it is, such as `machine.slice/vm-a`.
    pub path: Spanned<String>,
    /// `cpu.weight` (1 to 10000); 100 when not given.
    pub weight: Option<Spanned<u32>>,
    /// `cpu.idle`.
    #[serde(default)]
    pub idle: bool,
    /// `cpu.max`: CPU time for each period.
    pub quota: Option<Spanned<String>>,
    /// Its period; 100ms when not given.
    pub period: Option<Spanned<String>>,
    /// `cpu.max.burst`: what it may save.
    pub burst: Option<Spanned<String>>,
}

/// Processes of the host that are no VM.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Its name: letters, digits and dashes.
    pub name: String,
    /// How many there are of it, named `name-1` and so on.
    pub count: Option<u32>,
    /// Its threads.
    pub threads: Spanned<u32>,
    /// `cpu.weight` of its cgroup; 100 when not given.
    #[serde(default = "hundred")]
    pub weight: Spanned<u32>,
    /// Its cgroup.
    pub cgroup: Option<Spanned<String>>,
    /// What it runs, as of a guest.
    #[serde(default)]
    pub load: Option<Spanned<Load>>,
    /// Profile of its work, as of a guest.
    pub profile: Option<Spanned<toml::Value>>,
    /// CPUs that its threads may use.
    pub allowed: Option<Spanned<String>>,
}

impl Service {
    /// As a guest whose vCPUs are the service's threads.
    pub(super) fn as_guest(&self) -> Guest {
        Guest {
            name: self.name.clone(),
            count: self.count,
            vcpus: self.threads.clone(),
            // Its memory is nowhere looked at.
            memory: Spanned::new(0..0, 1),
            weight: self.weight.clone(),
            cap: None,
            cosched: None,
            latency: None,
            period: None,
            home_node: None,
            parts: None,
            load: self.load.clone(),
            stage: Vec::new(),
            profile: self.profile.clone(),
            allowed: self.allowed.clone(),
            prefer_nodes: None,
            start: Start::default(),
            cgroup: self.cgroup.clone(),
            from: None,
            until: None,
            churn_per_minute: None,
        }
    }
}

/// The deepest cgroup, levels below the root.
const LEVELS: usize = 16;

/// The number of the root (struct shim_group).
const ROOT: u32 = 1;

/// What VMs and services lie in.
struct Tree<'a> {
    settings: BTreeMap<&'a str, &'a Spanned<CgroupSettings>>,
    /// Index of each path in `made`.
    known: BTreeMap<String, usize>,
    made: Vec<CgroupSetup>,
    /// How many guests and services lie in it.
    holds: Vec<u32>,
}

/// Makes the cgroups of a scenario, none where it says nothing of them, and puts the VMs there. `paths` is the cgroup of
/// each VM and service of `vms`, and where that stands.
///
/// # Errors
/// Where settings are impossible, and why.
pub(super) fn make(
    scenario: &Scenario,
    vms: &mut [VmSetup],
    paths: &[Option<Spanned<String>>],
) -> Result<Vec<CgroupSetup>, Fault> {
    let said = paths.iter().any(Option::is_some) || vms.iter().any(|vm| vm.service);
    if scenario.cgroup.is_empty() && !said {
        return Ok(Vec::new());
    }
    let mut tree = Tree::new(scenario)?;
    for (vm, path) in vms.iter_mut().zip(paths) {
        let (span, text) = match path {
            Some(path) => (path.span(), path.get_ref().clone()),
            None => (0..0, vm.name.clone()),
        };
        let kind = if vm.service { "service" } else { "guest" };
        let wrong =
            |what: String| Fault::at(span.clone(), format!("{kind} {}: cgroup: {what}", vm.name));
        check_path(&text).map_err(wrong)?;
        let at = tree.make(&text)?;
        tree.holds[at] += 1;
        let given = vm.weight != 100;
        let set =
            tree.settings.get(text.as_str()).is_some_and(|own| own.get_ref().weight.is_some());
        if given && (set || tree.holds[at] > 1) {
            let why = if set { "[[cgroup]] says its weight" } else { "it holds others, too" };
            return Err(wrong(format!("{text} has weight {} here, and {why}", vm.weight)));
        }
        if given {
            tree.made[at].weight = vm.weight;
        }
        vm.cgroup = at as u32 + ROOT;
    }
    for own in tree.settings.values() {
        let path = own.get_ref().path.get_ref();
        if !tree.known.contains_key(path) {
            let what = format!("cgroup {path}: no guest and no service lies in it");
            return Err(Fault::at(own.get_ref().path.span(), what));
        }
    }
    if tree.made.len() > Cgroup::most() as usize {
        return Err(Fault { at: None, what: format!("more than {} cgroups", Cgroup::most()) });
    }
    for vm in vms.iter_mut() {
        vm.weight = tree.made[(vm.cgroup - ROOT) as usize].weight;
    }
    Ok(tree.made)
}

fn check_path(path: &str) -> Result<(), String> {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-._@".contains(c);
    let sound = |part: &str| !part.is_empty() && part.len() <= 60 && part.chars().all(letter);
    if path.split('/').count() > LEVELS || !path.split('/').all(sound) {
        return Err(format!("{path:?} is no path such as machine.slice/vm-a"));
    }
    Ok(())
}

impl<'a> Tree<'a> {
    fn new(scenario: &'a Scenario) -> Result<Self, Fault> {
        let mut settings = BTreeMap::new();
        for own in &scenario.cgroup {
            let path = &own.get_ref().path;
            let wrong = |what: String| Fault::at(path.span(), format!("cgroup: {what}"));
            check_path(path.get_ref()).map_err(wrong)?;
            if settings.insert(path.get_ref().as_str(), own).is_some() {
                return Err(wrong(format!("{} is there twice", path.get_ref())));
            }
        }
        let root =
            CgroupSetup { path: String::new(), above: 0, weight: 100, idle: false, limit: None };
        Ok(Self {
            settings,
            known: BTreeMap::from([(String::new(), 0)]),
            made: vec![root],
            holds: vec![0],
        })
    }

    /// The index of the cgroup at this path, which is made with those above it where there is none.
    fn make(&mut self, path: &str) -> Result<usize, Fault> {
        if let Some(at) = self.known.get(path) {
            return Ok(*at);
        }
        let above = self.make(path.rsplit_once('/').map_or("", |(above, _)| above))?;
        let mut made = CgroupSetup {
            path: path.to_owned(),
            above: above as u32 + ROOT,
            weight: 100,
            idle: false,
            limit: None,
        };
        if let Some(own) = self.settings.get(path) {
            set(&mut made, own.get_ref())?;
        }
        self.known.insert(path.to_owned(), self.made.len());
        self.made.push(made);
        self.holds.push(0);
        Ok(self.made.len() - 1)
    }
}

fn set(cgroup: &mut CgroupSetup, own: &CgroupSettings) -> Result<(), Fault> {
    let path = &cgroup.path;
    let wrong = |span: std::ops::Range<usize>, what: String| {
        Fault::at(span, format!("cgroup {path}: {what}"))
    };
    if let Some(weight) = &own.weight {
        let given = *weight.get_ref();
        if own.idle || !(1..=10_000).contains(&given) {
            let what = if own.idle { "with idle = true" } else { "it is 1 to 10000" };
            return Err(wrong(weight.span(), format!("weight {given}: {what}")));
        }
        cgroup.weight = given;
    }
    cgroup.idle = own.idle;
    let time = |given: &Option<Spanned<String>>, least: u64, most: u64| {
        let Some(text) = given else { return Ok(None) };
        let ns = load::duration(text.get_ref()).map_err(|what| wrong(text.span(), what))?;
        let ns = u64::try_from(ns.as_nanos()).unwrap_or(u64::MAX);
        if !(least..=most).contains(&ns) {
            let [least, most] = [least, most].map(|ns| ns / 1_000_000);
            let what = format!("{} is not between {least}ms and {most}ms", text.get_ref());
            return Err(wrong(text.span(), what));
        }
        Ok(Some(ns))
    };
    const MS: u64 = 1_000_000;
    // As the kernel has it (min_cfs_quota_period, max_cfs_quota_period).
    let period = time(&own.period, MS, 1000 * MS)?;
    let quota = time(&own.quota, MS, 1 << 44)?;
    let burst = time(&own.burst, 0, 1 << 44)?;
    let Some(quota) = quota else {
        let Some(text) = own.period.as_ref().or(own.burst.as_ref()) else { return Ok(()) };
        return Err(wrong(text.span(), "period and burst need a quota".to_owned()));
    };
    let (period, burst) = (period.unwrap_or(100 * MS), burst.unwrap_or(0));
    if burst > quota {
        return Err(wrong(own.path.span(), "burst is more than quota".to_owned()));
    }
    cgroup.limit = Some(CpuLimit { quota, period, burst });
    Ok(())
}

/// Whether a scheduler that knows VMs and their weights alone keeps these.
pub(super) fn are_flat(cgroups: &[CgroupSetup], vms: &[VmSetup]) -> bool {
    let own: BTreeSet<u32> = vms.iter().map(|vm| vm.cgroup).collect();
    let alone = cgroups.is_empty() || own.len() == vms.len();
    alone && cgroups.iter().all(|one| one.above <= ROOT && !one.idle && one.limit.is_none())
}
