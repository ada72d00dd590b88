//! Writes /sys/devices/system/cpu and /sys/devices/system/node of a made host.
//!
//! Shapes as of Linux 6.18: a CPU that is offline keeps its directory and loses `topology` and
//! `cache`; sets name online CPUs only.

use crate::host::{HostSpec, Place};
use crate::tree::Tree;
use instep_core::idset::CpuSet;
use instep_core::topology::CoreKind;
use instep_core::units::{CpuId, Id};
use std::fmt::Write;
use std::io;

/// Highest number of bits a kernel mask is printed with, at least.
const NR_CPUS: u32 = 64;

/// Writes both trees below `sys`.
pub(crate) fn write(host: &HostSpec, sys: &Tree) -> io::Result<()> {
    let online = host.online_places();
    write_cpus(host, &online, &sys.sub("devices/system/cpu")?)?;
    write_nodes(host, &sys.sub("devices/system/node")?)?;
    write_kinds(&online, sys)
}

fn write_cpus(host: &HostSpec, online: &[Place], dir: &Tree) -> io::Result<()> {
    let present = host.present();
    dir.line("online", host.online())?;
    dir.line("offline", present.and(&host.offline))?;
    dir.line("present", &present)?;
    dir.line("possible", &present)?;
    dir.line("kernel_max", present.len().max(NR_CPUS as usize) - 1)?;
    let masks = Masks::new(&present);
    for cpu in present.iter() {
        let cpu_dir = dir.child(&format!("cpu{cpu}"))?;
        let place = online.iter().find(|place| place.cpu == cpu);
        if cpu != CpuId(0) {
            cpu_dir.line("online", u8::from(place.is_some()))?;
        }
        if let Some(place) = place {
            let node = place.node;
            cpu_dir.link(&format!("node{node}"), &format!("../../node/node{node}"))?;
            write_topology(host, online, place, &masks, &cpu_dir.child("topology")?)?;
            write_caches(host, online, place, &masks, &cpu_dir.child("cache")?)?;
        }
    }
    Ok(())
}

fn write_topology(
    host: &HostSpec,
    online: &[Place],
    place: &Place,
    masks: &Masks,
    dir: &Tree,
) -> io::Result<()> {
    let per_package = host.nodes * host.cores_per_node / host.packages.max(1);
    let within = place.core % per_package.max(1);
    let core_id = if host.modules { within * host.threads_per_core + place.thread } else { within };
    dir.line("core_id", core_id)?;
    dir.line("physical_package_id", place.package)?;
    dir.line("die_id", 0)?;
    let own = |other: &Place| other.cpu == place.cpu;
    let core = |other: &Place| if host.modules { own(other) } else { other.core == place.core };
    let package = |other: &Place| other.package == place.package;
    let l2 = |other: &Place| other.l2 == place.l2;
    let shares_l2 = host.cores_per_l2 > 1 || place.kind == Some(CoreKind::Efficient);
    dir.line("cluster_id", if shares_l2 { place.l2 } else { 65535 })?;
    masks.pair(dir, "core_cpus", &set(online, core))?;
    masks.pair(dir, "thread_siblings", &set(online, core))?;
    masks.pair(
        dir,
        "cluster_cpus",
        &if shares_l2 { set(online, l2) } else { set(online, core) },
    )?;
    for name in ["die_cpus", "package_cpus", "core_siblings"] {
        masks.pair(dir, name, &set(online, package))?;
    }
    Ok(())
}

fn write_caches(
    host: &HostSpec,
    online: &[Place],
    place: &Place,
    masks: &Masks,
    dir: &Tree,
) -> io::Result<()> {
    let own = set(online, |other| other.cpu == place.cpu);
    let core = set(online, |other| other.core == place.core);
    let l2 = set(online, |other| other.l2 == place.l2);
    let llc = set(online, |other| other.llc == place.llc);
    let l1d = if host.modules { &own } else { &core };
    let mut caches = vec![
        (1, "Data", "32K", place.cpu.raw(), l1d),
        (1, "Instruction", "32K", place.core, &core),
        (2, "Unified", "1024K", place.l2, &l2),
    ];
    if host.llcs_per_node > 0 {
        caches.push((3, "Unified", "32768K", place.llc, &llc));
    }
    for (index, (level, kind, size, id, cpus)) in caches.into_iter().enumerate() {
        let cache = dir.child(&format!("index{index}"))?;
        cache.line("level", level)?;
        cache.line("type", kind)?;
        cache.line("size", size)?;
        cache.line("id", id)?;
        cache.line("coherency_line_size", 64)?;
        cache.line("ways_of_associativity", 16)?;
        masks.one(&cache, "shared_cpu_list", "shared_cpu_map", cpus)?;
    }
    Ok(())
}

fn write_nodes(host: &HostSpec, dir: &Tree) -> io::Result<()> {
    let ids = host.node_ids();
    let all: instep_core::idset::NodeSet = ids.iter().copied().collect();
    for name in ["online", "possible", "has_memory", "has_normal_memory"] {
        dir.line(name, &all)?;
    }
    dir.line("has_cpu", host.nodes_with_cpus())?;
    let masks = Masks::new(&host.present());
    for (id, distances) in ids.into_iter().zip(host.distance_rows()) {
        let node = dir.child(&format!("node{id}"))?;
        let cpus = host.cpus_of(id);
        masks.one(&node, "cpulist", "cpumap", &cpus)?;
        for cpu in cpus.iter() {
            node.link(&format!("cpu{cpu}"), &format!("../../cpu/cpu{cpu}"))?;
        }
        let distances: Vec<String> = distances.iter().map(u32::to_string).collect();
        node.line("distance", distances.join(" "))?;
        node.file("meminfo", meminfo(id.0, host.memory_per_node.0 / 1024))?;
    }
    Ok(())
}

fn meminfo(node: u32, total: u64) -> String {
    let mut text = String::new();
    let fields = [
        ("MemTotal:", total),
        ("MemFree:", total / 2),
        ("MemUsed:", total - total / 2),
        ("SwapCached:", 0),
        ("Active:", total / 8),
        ("Inactive:", total / 8),
        ("AnonPages:", total / 4),
        ("Shmem:", 0),
    ];
    for (name, kib) in fields {
        let _ = writeln!(text, "Node {node} {name:<15} {kib:>8} kB");
    }
    for name in ["HugePages_Total:", "HugePages_Free:", "HugePages_Surp:"] {
        let _ = writeln!(text, "Node {node} {name:<15} {:>5}", 0);
    }
    text
}

fn write_kinds(online: &[Place], sys: &Tree) -> io::Result<()> {
    for (kind, name) in
        [(CoreKind::Performance, "devices/cpu_core"), (CoreKind::Efficient, "devices/cpu_atom")]
    {
        let cpus = set(online, |place| place.kind == Some(kind));
        if !cpus.is_empty() {
            sys.sub(name)?.line("cpus", &cpus)?;
        }
    }
    Ok(())
}

fn set(online: &[Place], wanted: impl Fn(&Place) -> bool) -> CpuSet {
    online.iter().filter(|place| wanted(place)).map(|place| place.cpu).collect()
}

/// Prints sets as the kernel's hexadecimal masks of a fixed width.
struct Masks {
    bits: u32,
}

impl Masks {
    fn new(present: &CpuSet) -> Self {
        Self { bits: present.iter().last().map_or(1, |cpu| cpu.raw() + 1) }
    }

    /// `NAME_list` and `NAME`, as in `topology`.
    fn pair(&self, dir: &Tree, name: &str, cpus: &CpuSet) -> io::Result<()> {
        self.one(dir, &format!("{name}_list"), name, cpus)
    }

    fn one(&self, dir: &Tree, list: &str, mask: &str, cpus: &CpuSet) -> io::Result<()> {
        dir.line(list, cpus)?;
        dir.line(mask, mask_of(cpus.iter().map(Id::raw), self.bits))
    }
}

/// `%*pb` of the kernel: groups of 32 bits in hexadecimal, the highest first, all but the
/// highest eight digits wide.
pub(crate) fn mask_of(ids: impl Iterator<Item = u32>, bits: u32) -> String {
    let bits = bits.max(1);
    let mut words = vec![0u32; bits.div_ceil(32) as usize];
    for id in ids {
        if let Some(word) = words.get_mut((id / 32) as usize) {
            *word |= 1 << (id % 32);
        }
    }
    let mut text = String::new();
    let top_digits = match bits % 32 {
        0 => 8,
        rest => rest.div_ceil(4) as usize,
    };
    for (index, word) in words.iter().rev().enumerate() {
        let _ = if index == 0 {
            write!(text, "{word:0top_digits$x}")
        } else {
            write!(text, ",{word:08x}")
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_as_wide_as_the_host() {
        assert_eq!(mask_of([0, 1].into_iter(), 2), "3");
        assert_eq!(mask_of([0].into_iter(), 6), "01");
        assert_eq!(mask_of([33].into_iter(), 40), "02,00000000");
        assert_eq!(mask_of([63].into_iter(), 64), "80000000,00000000");
    }
}
