//! Facts of the online CPUs, from /sys/devices/system/cpu and, where a kernel or a copy lacks
//! the topology directories, from /proc/cpuinfo.

use super::parse::{self, CacheType, CpuinfoEntry};
use super::source::Source;
use crate::error::Error;
use instep_core::idset::CpuSet;
use instep_core::topology::{CoreKind, CpuFacts};
use instep_core::units::CpuId;
use std::collections::BTreeMap;

const DIR: &str = "sys/devices/system/cpu";
/// Cache directories looked at for each CPU; no processor has more than five.
const MAX_CACHES: u32 = 16;

/// Facts of the online CPUs, ascending.
pub(super) fn read(source: &mut Source<'_>) -> Result<Vec<CpuFacts>, Error> {
    let online = online(source)?;
    let mut cpus: Vec<CpuFacts> = online.iter().map(|cpu| facts(source, cpu.0)).collect();
    from_cpuinfo(source, &mut cpus);
    let kinds = kinds(source, &cpus);
    cpus.iter_mut().for_each(|cpu| cpu.kind = kinds.get(&cpu.id).copied());
    Ok(cpus)
}

/// The online CPUs: the `online` list (those of them that have a directory, if any has), else (before 2.6.26) every cpuN whose own `online` file
/// does not say 0, else what /proc/cpuinfo lists.
fn online(source: &mut Source<'_>) -> Result<CpuSet, Error> {
    let Some(found) = source.numbered(DIR, "cpu") else {
        return Err(source.unusable("cannot be listed".to_owned()));
    };
    let found: CpuSet = found.into_iter().map(CpuId).collect();
    let online = match source.value(&format!("{DIR}/online"), parse::list::<CpuId>) {
        // A small copy may hold the lists only.
        Some(listed) if found.is_empty() => {
            source.warn(format!("{DIR}: no directories of CPUs {listed}; their cores are unknown"));
            listed
        }
        Some(listed) => {
            let absent = listed.minus(&found);
            if !absent.is_empty() {
                source.warn(format!("{DIR}/online: names CPUs {absent}, which are not there"));
            }
            listed.and(&found)
        }
        None => {
            let flag = |cpu: &CpuId| {
                source.value(&format!("{DIR}/cpu{cpu}/online"), parse::flag).unwrap_or(true)
            };
            found.iter().filter(flag).collect()
        }
    };
    if !online.is_empty() {
        return Ok(online);
    }
    let online: CpuSet = cpuinfo(source).keys().map(|id| CpuId(*id)).collect();
    if online.is_empty() {
        return Err(source.unusable("lists no online CPU".to_owned()));
    }
    source.warn(format!("{DIR}: lists no online CPU; CPUs {online} taken from proc/cpuinfo"));
    Ok(online)
}

fn facts(source: &mut Source<'_>, id: u32) -> CpuFacts {
    let dir = format!("{DIR}/cpu{id}/topology");
    let package = source.value(&format!("{dir}/physical_package_id"), parse::number);
    let siblings = ["core_cpus", "thread_siblings"];
    let siblings = siblings.map(|name| format!("{dir}/{name}"));
    let mut facts = CpuFacts {
        id,
        package: package.and_then(|package| u32::try_from(package).ok()),
        thread_siblings: siblings.iter().find_map(|path| shared(source, path, "", "_list")),
        ..CpuFacts::default()
    };
    caches(source, &mut facts);
    facts
}

/// A set of CPUs from the mask in `path` + `mask`, or where that is missing the list in `path` +
/// `list`. The mask first: every kernel has it, and where the two differ (seen on the caches of
/// an Opteron 6276 and on a host with offline CPUs) it was the mask that told the truth.
fn shared(source: &mut Source<'_>, path: &str, mask: &str, list: &str) -> Option<CpuSet> {
    source
        .value(&format!("{path}{mask}"), parse::mask)
        .or_else(|| source.value(&format!("{path}{list}"), parse::list))
}

/// Fills in who shares the L1i, the L2 and the cache of the highest level, if that is at least
/// the second: an L1 as the last level means that the table ends early.
fn caches(source: &mut Source<'_>, facts: &mut CpuFacts) {
    let mut last_level = 1;
    for index in 0..MAX_CACHES {
        let dir = format!("{DIR}/cpu{}/cache/index{index}", facts.id);
        let Some(level) = source.value(&format!("{dir}/level"), parse::number) else { break };
        let Some(kind) = source.value(&format!("{dir}/type"), parse::cache_type) else { continue };
        let fetches = level == 1 && kind != CacheType::Data;
        let holds_data = level >= 2 && kind != CacheType::Instruction;
        if !fetches && !holds_data {
            continue;
        }
        let set = shared(source, &format!("{dir}/shared_cpu"), "_map", "_list");
        if fetches {
            facts.l1i = set;
            continue;
        }
        if level == 2 {
            facts.l2.clone_from(&set);
        }
        if level > last_level {
            (last_level, facts.llc) = (level, set);
        }
    }
}

fn cpuinfo(source: &mut Source<'_>) -> BTreeMap<u32, CpuinfoEntry> {
    let entries = source.value("proc/cpuinfo", |text| Ok(parse::cpuinfo(text)));
    entries.unwrap_or_default().into_iter().map(|entry| (entry.processor, entry)).collect()
}

/// Gives CPUs without a topology directory the package and threads that /proc/cpuinfo tells.
fn from_cpuinfo(source: &mut Source<'_>, cpus: &mut [CpuFacts]) {
    let silent = |cpu: &CpuFacts| cpu.package.is_none() && cpu.thread_siblings.is_none();
    if !cpus.iter().any(silent) {
        return;
    }
    let entries = cpuinfo(source);
    let mut cores = BTreeMap::<(u32, u32), CpuSet>::new();
    for (id, entry) in &entries {
        if let Some(core) = core_of(entry) {
            cores.entry(core).or_default().insert(CpuId(*id));
        }
    }
    let mut told = CpuSet::new();
    for cpu in cpus.iter_mut().filter(|cpu| silent(cpu)) {
        let Some(entry) = entries.get(&cpu.id) else { continue };
        cpu.package = entry.package;
        cpu.thread_siblings = core_of(entry).and_then(|core| cores.get(&core).cloned());
        if !silent(cpu) {
            told.insert(CpuId(cpu.id));
        }
    }
    if !told.is_empty() {
        source.warn(format!(
            "{DIR}: no topology of CPUs {told}; packages and threads are those of proc/cpuinfo"
        ));
    }
}

/// Package and core number, where they tell threads: a package with as many cores as CPUs has
/// none, and there some AMD processors use a core number twice.
fn core_of(entry: &CpuinfoEntry) -> Option<(u32, u32)> {
    let threaded = entry.siblings.zip(entry.cores).is_none_or(|(cpus, cores)| cpus > cores);
    if threaded { entry.package.zip(entry.core) } else { None }
}

/// The kind of core of each CPU on a hybrid host, from the surest source there is: the CPU lists
/// of Intel's two PMUs (or of `cpu/types`), Arm's capacities, Intel's base frequencies.
fn kinds(source: &mut Source<'_>, cpus: &[CpuFacts]) -> BTreeMap<u32, CoreKind> {
    let mut kinds = BTreeMap::new();
    for (kind, path) in kind_lists(source) {
        let listed = source.value(&path, parse::list::<CpuId>).unwrap_or_default();
        kinds.extend(listed.iter().map(|cpu| (cpu.0, kind)));
    }
    if kinds.is_empty() {
        kinds = by_number(source, cpus, "cpu_capacity", |capacity, most| 2 * capacity <= most);
    }
    if kinds.is_empty() && l2_sharing_differs(cpus) {
        kinds =
            by_number(source, cpus, "cpufreq/base_frequency", |frequency, most| frequency < most);
    }
    kinds
}

fn kind_lists(source: &mut Source<'_>) -> Vec<(CoreKind, String)> {
    let pmu = |kind, name| (kind, format!("sys/devices/{name}/cpus"));
    let mut lists = vec![
        pmu(CoreKind::Performance, "cpu_core"),
        pmu(CoreKind::Efficient, "cpu_atom"),
        pmu(CoreKind::Efficient, "cpu_lowpower"),
    ];
    for name in source.names(&format!("{DIR}/types")).unwrap_or_default() {
        let kind = match name.as_str() {
            name if name.starts_with("intel_core") => CoreKind::Performance,
            name if name.starts_with("intel_atom") => CoreKind::Efficient,
            _ => continue,
        };
        lists.push((kind, format!("{DIR}/types/{name}/cpulist")));
    }
    lists
}

/// On hybrid Intel processors E-cores share an L2 and P-cores do not. Elsewhere base frequencies
/// may differ between equal cores (Speed Select), so they say nothing.
fn l2_sharing_differs(cpus: &[CpuFacts]) -> bool {
    let size = |cpu: &CpuFacts| cpu.l2.as_ref().map(CpuSet::len);
    cpus.first().is_some_and(|first| cpus.iter().any(|cpu| size(cpu) != size(first)))
}

/// Kinds by a number that every CPU has in the file `name`: efficient where `small(number,
/// largest number)`. Nothing unless all CPUs have the file and some are small.
fn by_number(
    source: &mut Source<'_>,
    cpus: &[CpuFacts],
    name: &str,
    small: impl Fn(i64, i64) -> bool,
) -> BTreeMap<u32, CoreKind> {
    let mut numbers = Vec::new();
    for cpu in cpus {
        let number = source.value(&format!("{DIR}/cpu{}/{name}", cpu.id), parse::number);
        let Some(number @ 0..=0xffff_ffff) = number else { return BTreeMap::new() };
        numbers.push((cpu.id, number));
    }
    let most = numbers.iter().map(|(_, number)| *number).max().unwrap_or(0);
    let kind =
        |number| if small(number, most) { CoreKind::Efficient } else { CoreKind::Performance };
    let kinds: BTreeMap<_, _> =
        numbers.into_iter().map(|(id, number)| (id, kind(number))).collect();
    if kinds.values().any(|kind| *kind == CoreKind::Efficient) { kinds } else { BTreeMap::new() }
}
