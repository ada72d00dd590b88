//! What the kernel scheduler knows of the VMs: from what a scan found and what was configured to
//! entries of its table. Pure but for [`process`], which lists a process's threads.

use super::weights::{self, Place};
use crate::config::dispatch::{DispatchConfig, VmConfig};
use crate::observe::VmKey;
use crate::vm_settings::VmSettings;
use instep_core::units::{NodeId, Tid};
use instep_host::Root;
use instep_host::apply::thread;
use instep_host::discover::{Scan, VmFacts, shared_name};
use instep_kernel::settings::DEFAULT_PERIOD;
use instep_kernel::table::{Placed, ThreadId};
use instep_kernel::{Cosched, VmEntry};
use std::collections::{BTreeMap, BTreeSet};

/// The name of each VM in the settings: its own. A process that does not count may claim the same one, so that
/// both are called by it and their process (`web@4711`); the settings of `web` are then still for the one of
/// these VMs that has it.
fn names_in_settings<'a>(vms: &'a [VmFacts], config: &DispatchConfig) -> Vec<&'a str> {
    let claimed: Vec<&str> = vms.iter().map(|vm| shared_name(vm.pid, &vm.name)).collect();
    let mut claims: BTreeMap<&str, usize> = BTreeMap::new();
    claimed.iter().for_each(|name| *claims.entry(name).or_default() += 1);
    let name = |(vm, claimed): (&'a VmFacts, &&'a str)| {
        let is_set = config.vm.contains_key(&vm.name);
        if claims[claimed] == 1 && !is_set { *claimed } else { &vm.name }
    };
    vms.iter().zip(&claimed).map(name).collect()
}

/// What the configuration says of each VM.
pub fn with_configured<'a>(
    vms: &'a [VmFacts],
    config: &'a DispatchConfig,
) -> impl Iterator<Item = (&'a VmFacts, Option<&'a VmConfig>)> {
    let names = names_in_settings(vms, config).into_iter();
    vms.iter().zip(names.map(|name| config.vm.get(name)))
}

/// The entry of a VM that was found. Threads whose start is not known are left to the host's. A VM that is to be
/// ignored keeps its share, and is neither at home nor a gang.
fn entry(facts: &VmFacts, home: Option<NodeId>, config: Option<&VmConfig>) -> VmEntry {
    let id = |tid: Tid, start_ticks: u64| ThreadId { tid, start_ticks };
    let vcpus = facts.vcpus.iter().map(|vcpu| id(vcpu.tid, vcpu.start_ticks)).collect();
    let helpers = facts.emulators.iter().map(|thread| id(thread.tid, thread.start_ticks));
    let settings = VmSettings::of(facts, config);
    let mut entry = VmEntry::new(&facts.name, vcpus);
    entry.helpers = helpers.collect();
    entry.home = home.filter(|_| !settings.is_ignored());
    let place = facts.cgroup.as_deref().map(|path| weights::place(&Root::live(), path, facts.pid));
    let mut entry = at(place.unwrap_or_default(), entry);
    entry = configured(entry, facts.weight, Some(&settings.values));
    if settings.is_ignored() {
        entry.cosched = Cosched::Never;
    }
    entry
}

/// The same in this cgroup.
fn at(Place { group, alone, path }: Place, entry: VmEntry) -> VmEntry {
    VmEntry { group, alone, cgroup: path, ..entry }
}

fn configured(mut entry: VmEntry, weight: u32, config: Option<&VmConfig>) -> VmEntry {
    entry.weight = weight;
    if let Some(config) = config {
        entry.weight = config.weight.unwrap_or(weight);
        entry.own_weight = config.weight;
        entry.period = config.period.unwrap_or(DEFAULT_PERIOD);
        entry.cosched = config.cosched.unwrap_or_default();
        entry.latency = config.latency.unwrap_or_default();
    }
    entry
}

/// All entries: VMs with their homes, then processes that are treated as VMs; and warnings
/// on processes that are not there. A process that is a VM already is not one again.
#[must_use]
pub fn entries(
    vms: &[VmFacts],
    homes: &BTreeMap<VmKey, NodeId>,
    config: &DispatchConfig,
) -> (Vec<VmEntry>, Vec<String>) {
    let mut warnings = Vec::new();
    let found = |(vm, set)| entry(vm, homes.get(&VmKey::from(vm)).copied(), set);
    let mut all: Vec<VmEntry> = with_configured(vms, config).map(found).collect();
    for given in &config.process {
        if let Some(vm) = vms.iter().find(|vm| vm.pid == given.pid) {
            if vm.name != given.name {
                let (pid, name) = (given.pid, &vm.name);
                warnings.push(format!("process {pid} is the VM {name}, and keeps that name"));
            }
            continue;
        }
        if all.iter().any(|entry| entry.name == given.name) {
            warnings.push(format!(
                "process {} is not treated as the VM {}: another VM has that name; give it a name of its \
                 own",
                given.pid, given.name
            ));
            continue;
        }
        match process(given.pid) {
            Some(vcpus) => {
                let theirs = |other: &&VmEntry| {
                    other.vcpus.iter().chain(&other.helpers).any(|thread| vcpus.contains(thread))
                };
                if let Some(other) = all.iter().find(theirs) {
                    warnings.push(format!(
                        "process {} is not treated as the VM {}: its threads are those of the VM {}; \
                         give each process once, by its process id",
                        given.pid, given.name, other.name
                    ));
                    continue;
                }
                let place = weights::place_of_process(&Root::live(), given.pid);
                let entry = at(place, VmEntry::new(&given.name, vcpus));
                all.push(configured(entry, 100, config.vm.get(&given.name)));
            }
            None => warnings.push(format!(
                "there is no process {} to be treated as the VM {}",
                given.pid, given.name
            )),
        }
    }
    (all, warnings)
}

/// All entries of what a scan found, with warnings also on settings without a VM.
#[must_use]
pub fn all_entries(
    scan: &Scan,
    homes: &BTreeMap<VmKey, NodeId>,
    config: &DispatchConfig,
) -> (Vec<VmEntry>, Vec<String>) {
    let (entries, mut warnings) = entries(&scan.vms, homes, config);
    let opaque: Vec<&str> = scan.opaque.iter().map(|vm| vm.name.as_str()).collect();
    let names = names_in_settings(&scan.vms, config).into_iter();
    let known = names.chain(entries.iter().map(|entry| entry.name.as_str())).collect();
    warnings.extend(unused(config, &known, &opaque));
    (entries, warnings)
}

/// Settings of VMs that are for none of these, one sentence each. A VM may come later; a process that is
/// to be one and is not there has a warning of its own. `known` are the names that have an entry,
/// `opaque` those of VMs whose vCPU threads are not known.
fn unused(config: &DispatchConfig, known: &BTreeSet<&str>, opaque: &[&str]) -> Vec<String> {
    let named = |name: &str| config.process.iter().any(|given| given.name == name);
    let left = config.vm.keys().filter(|name| !known.contains(name.as_str()) && !named(name));
    let why = |name: &String| {
        if opaque.contains(&name.as_str()) {
            return "which of its threads run vCPUs is not known (`instep status` says why)"
                .to_owned();
        }
        // VMs that share a name are called by it and their process.
        let alike =
            |of: &&str| of.strip_prefix(name.as_str()).is_some_and(|id| id.starts_with('@'));
        match known.iter().copied().any(|of| alike(&of)) {
            true => format!("several VMs share that name: write [dispatch.vm.\"{name}@PID\"]"),
            false => "no VM has that name now (`instep status` lists the names)".to_owned(),
        }
    };
    left.map(|name| format!("[dispatch.vm.{name}] has no effect: {}", why(name))).collect()
}

/// The VMs of a scan whose entries were not taken into the table.
#[must_use]
pub fn refused(vms: &[VmFacts], taken: &[Placed]) -> BTreeSet<VmKey> {
    let taken: BTreeSet<&str> = taken.iter().map(|placed| placed.entry.name.as_str()).collect();
    vms.iter().filter(|vm| !taken.contains(vm.name.as_str())).map(VmKey::from).collect()
}

/// The vCPU threads of all entries, each with the name of its VM.
pub fn vcpus(entries: &[VmEntry]) -> impl Iterator<Item = (&str, Tid)> {
    entries.iter().flat_map(|VmEntry { name, vcpus, .. }| {
        vcpus.iter().map(move |vcpu| (name.as_str(), vcpu.tid))
    })
}

/// The threads of a live process; `None` when there is none.
fn process(pid: u32) -> Option<Vec<ThreadId>> {
    let root = Root::live();
    let listed = std::fs::read_dir(root.join(format!("proc/{pid}/task"))).ok()?;
    let tids = listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let id = |tid: u32| {
        let key = thread::key_of(&root, pid, Tid(tid)).ok()?;
        Some(ThreadId { tid: key.tid, start_ticks: key.tid_start })
    };
    let mut all: Vec<ThreadId> = tids.filter_map(id).collect();
    all.sort_unstable();
    (!all.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::dispatch::ProcessVm;
    use instep_core::units::{Bytes, Nanos};
    use instep_host::discover::{ScanOptions, Scanner};
    use instep_kernel::VmTable;
    use instep_kernel::table::{LIMITS, TableLimits};
    use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm};

    fn vm(name: &str, vcpus: u32) -> VmSpec {
        VmSpec::new(name, Vmm::QemuKvm, vcpus, NodeId(1), Bytes::from_mib(64))
    }

    fn found(made: &MadeHost) -> Vec<VmFacts> {
        let dir = instep_madehost::scratch_dir().unwrap();
        made.write(dir.path()).unwrap();
        Scanner::new(Root::at(dir.path()), ScanOptions::once()).scan().unwrap().vms
    }

    #[test]
    fn home_follows_a_vm_and_not_its_name() {
        let mut made = MadeHost::new(HostSpec::new(2, 4));
        made.push(vm("a", 2));
        let alone = found(&made);
        let homes = [(VmKey::from(&alone[0]), NodeId(1))].into();
        let told = |made: &MadeHost| {
            let all = entries(&found(made), &homes, &DispatchConfig::default()).0;
            all.into_iter().map(|vm| (vm.name, vm.home)).collect::<Vec<_>>()
        };
        assert_eq!(told(&made), [("a".to_owned(), Some(NodeId(1)))]);
        // Both are called by their processes now.
        made.push(vm("a", 2));
        let names = [0, 1].map(|vm: usize| format!("a@{}", made.vms[vm].pid));
        let [first, second] = names;
        assert_eq!(told(&made), [(first, Some(NodeId(1))), (second, None)]);
        // Started again, with the same name and process id.
        made.vms.truncate(1);
        made.vms[0].started = Nanos(made.vms[0].started.0 + Nanos::SECOND.0);
        assert_eq!(told(&made), [("a".to_owned(), None)]);
    }

    #[test]
    fn vm_without_room_is_reported_by_process() {
        let mut made = MadeHost::new(HostSpec::new(2, 4));
        made.push(vm("small", 2));
        made.push(vm("large", 3));
        let found = found(&made);
        let entries = entries(&found, &BTreeMap::new(), &DispatchConfig::default()).0;
        let limits = TableLimits { vcpus: 2, ..LIMITS };
        let table = VmTable::default().renumbered(entries, limits).0;
        assert_eq!(refused(&found, &table.vms), BTreeSet::from([VmKey::from(&found[1])]));
        assert_eq!(refused(&found, &[]).len(), 2);
    }

    #[test]
    fn a_process_is_a_vm_of_its_threads() {
        let own = std::process::id();
        let process = vec![
            ProcessVm { name: "own".into(), pid: own },
            ProcessVm { name: "gone".into(), pid: u32::MAX - 1 },
        ];
        let config = DispatchConfig { process, ..DispatchConfig::default() };
        let (all, warnings) = entries(&[], &BTreeMap::new(), &config);
        assert!(warnings.len() == 1 && warnings[0].contains("the VM gone"), "{warnings:?}");
        assert_eq!((all.len(), all[0].name.as_str(), all[0].weight), (1, "own", 100));
        assert!(all[0].vcpus.iter().any(|id| id.tid == Tid(own) && id.start_ticks > 0));
    }

    #[test]
    fn setting_without_a_vm_is_reported_with_its_remedy() {
        let mut made = MadeHost::new(HostSpec::new(2, 4));
        for name in ["db", "web", "web"] {
            made.push(vm(name, 2));
        }
        let dir = instep_madehost::scratch_dir().unwrap();
        made.write(dir.path()).unwrap();
        let scan = Scanner::new(Root::at(dir.path()), ScanOptions::once()).scan().unwrap();
        let names = ["db", "web", "weB", "job"].map(|name| (name.to_owned(), VmConfig::default()));
        let process = vec![ProcessVm { name: "job".into(), pid: u32::MAX - 1 }];
        let config = DispatchConfig { vm: names.into(), process, ..DispatchConfig::default() };
        let (entries, warnings) = all_entries(&scan, &BTreeMap::new(), &config);
        assert_eq!((entries.len(), warnings.len()), (3, 3), "{warnings:?}");
        assert!(warnings[0].contains("process"), "{warnings:?}");
        assert!(warnings[1].starts_with("[dispatch.vm.weB] has no effect: no VM has that name"));
        assert!(warnings[2].ends_with("write [dispatch.vm.\"web@PID\"]"), "{warnings:?}");
        let first = format!("web@{}", made.vms[1].pid);
        assert!(entries.iter().any(|entry| entry.name == first), "so it is called");
        let known = entries.iter().map(|entry| entry.name.as_str()).collect();
        let opaque = unused(&config, &known, &["web", "weB"]);
        assert!(opaque.iter().all(|said| said.contains("which of its threads")), "{opaque:?}");
    }

    #[test]
    fn settings_stay_with_a_vm_whose_name_another_process_claims() {
        let mut made = MadeHost::new(HostSpec::new(2, 4));
        for _ in 0..2 {
            made.push(vm("web", 2));
        }
        let dir = instep_madehost::scratch_dir().unwrap();
        made.write(dir.path()).unwrap();
        let mut scan = Scanner::new(Root::at(dir.path()), ScanOptions::once()).scan().unwrap();
        let settings = VmConfig { weight: Some(700), ..VmConfig::default() };
        let vm = [("web".to_owned(), settings)].into();
        let config = DispatchConfig { vm, ..DispatchConfig::default() };
        let weights = |scan: &Scan| {
            let (entries, warnings) = all_entries(scan, &BTreeMap::new(), &config);
            (entries.iter().map(|entry| entry.weight).collect::<Vec<_>>(), warnings.len())
        };
        assert_eq!(weights(&scan), (vec![100, 100], 1), "which of them is not known");
        // The other one's owner does not count.
        scan.vms.truncate(1);
        assert!(scan.vms[0].name.starts_with("web@"));
        assert_eq!(weights(&scan), (vec![700], 0));
    }

    #[test]
    fn a_process_that_cannot_be_a_vm_of_its_own_is_reported() {
        let mut made = MadeHost::new(HostSpec::new(2, 4));
        made.push(vm("web", 2));
        let (own, taken) = (std::process::id(), made.vms[0].pid);
        let named = |name: &str, pid| ProcessVm { name: name.into(), pid };
        let process = vec![
            named("job", own),
            named("job", own),
            named("web", own),
            named("x", taken),
            named("web", taken),
        ];
        let config = DispatchConfig { process, ..DispatchConfig::default() };
        let (all, warnings) = entries(&found(&made), &BTreeMap::new(), &config);
        let names: Vec<&str> = all.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!((names, warnings.len()), (vec!["web", "job"], 3), "{warnings:?}");
        assert!(warnings[0].contains("the VM job: another VM has that name"), "{warnings:?}");
        assert!(warnings[1].contains("the VM web: another VM has that name"), "{warnings:?}");
        assert!(warnings[2].ends_with("is the VM web, and keeps that name"), "{warnings:?}");
    }

    #[test]
    fn every_vcpu_is_looked_at_with_name_of_its_vm_and_no_helper() {
        let ids = |tids: &[u32]| -> Vec<ThreadId> {
            tids.iter().map(|tid| ThreadId { tid: Tid(*tid), start_ticks: 1 }).collect()
        };
        let mut first = VmEntry::new("a", ids(&[1, 2]));
        first.helpers = ids(&[9]);
        let entries = [first, VmEntry::new("b", ids(&[3]))];
        let all: Vec<_> = vcpus(&entries).collect();
        assert_eq!(all, [("a", Tid(1)), ("a", Tid(2)), ("b", Tid(3))]);
    }

    #[test]
    fn what_is_configured_wins_over_the_cgroup() {
        let entry = VmEntry::new("a", Vec::new());
        assert_eq!(configured(entry.clone(), 300, None).weight, 300);
        let own = VmConfig { weight: Some(50), ..VmConfig::default() };
        assert_eq!(configured(entry.clone(), 300, Some(&own)).weight, 50);
        let other = VmConfig::default();
        assert_eq!(configured(entry, 300, Some(&other)).weight, 300);
    }
}
