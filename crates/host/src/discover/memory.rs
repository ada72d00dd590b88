//! Where the memory of VMs lies, at a bounded cost.
//!
//! The cgroup's memory.numa_stat is cheap and is read in every scan when the cgroup holds just
//! the VM and the VM has no hugetlb pages (which it does not count). numa_maps makes the kernel
//! walk the page tables of the whole guest, so on the running machine its reads are timed and
//! rationed: the oldest figures first, none again before `ration` times its last cost has passed,
//! and no more than the budget of a scan. One walk cannot be interrupted between two mappings;
//! a bound in time is checked between them.

use super::cgroup::{Hierarchies, Membership};
use super::facts::{MemoryFacts, MemorySource};
use super::files::Reader;
use super::guest::GuestArguments;
use super::process::MAX_STATUS;
use super::{guest_memory, numa_maps, numa_stat, proc_text};
use crate::apply::ranges::parse_maps;
use crate::root::Root;
use instep_core::idset::NodeSet;
use instep_core::units::{Bytes, Nanos, NodeId};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often policies are read again for a VM whose figures come from its cgroup.
const POLICY_AGE: Nanos = Nanos::from_secs(600);
/// How many scans the answer to "does the cgroup hold just this VM?" is kept.
const ALONE_SCANS: u64 = 16;

/// Bounds on the reading of memory figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Whether memory is looked at.
    pub enabled: bool,
    /// Time for numa_maps in one scan of the running machine. A VM whose read takes longer still
    /// gets its turn, alone in its scan. Not applied to copies, which cost nothing but a read.
    pub budget: Duration,
    /// A VM's numa_maps is read again only after this many times its last cost.
    pub ration: u32,
    /// A single numa_maps is cut after this time (running machine only).
    pub max_time: Duration,
    /// A single numa_maps is cut after this many bytes.
    pub max_bytes: usize,
}

impl Default for MemoryOptions {
    /// For the loop: 20 ms in a scan, 1/1000 of a CPU for one VM, 250 ms and 16 MiB for one file.
    fn default() -> Self {
        Self {
            enabled: true,
            budget: Duration::from_millis(20),
            ration: 1000,
            max_time: Duration::from_millis(250),
            max_bytes: 16 << 20,
        }
    }
}

/// What is remembered of a VM's memory from scan to scan.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    facts: Option<MemoryFacts>,
    /// Policies by the last numa_maps.
    bound: Option<NodeSet>,
    preferred: Option<NodeSet>,
    /// When numa_maps was last tried and what that cost.
    tried: Option<(Nanos, Duration)>,
    hugetlb: Option<bool>,
    alone: Option<(u64, bool)>,
    /// By guest node, as of the last numa_maps; empty when the nodes cannot be told apart.
    nodes: Vec<BTreeMap<NodeId, Bytes>>,
}

impl State {
    /// The newest figures.
    pub(super) fn facts(&self) -> Option<MemoryFacts> {
        self.facts.clone()
    }

    /// Resident memory of each guest node by host node; empty when that is not known.
    pub(super) fn by_guest_node(&self) -> &[BTreeMap<NodeId, Bytes>] {
        &self.nodes
    }

    /// When numa_maps was last read, for the order of reads; never comes first.
    pub(super) fn last(&self) -> Option<Nanos> {
        self.tried.map(|(at, _)| at)
    }

    /// What the next read of numa_maps is expected to cost.
    pub(super) fn expected(&self) -> Duration {
        self.tried.map_or(Duration::ZERO, |(_, cost)| cost)
    }

    /// Reads the cgroup's figures where they count. `scan` numbers the scans.
    pub(super) fn read_cgroup(&mut self, of: &Source<'_>, reader: &mut Reader, scan: u64) {
        let Some((dir, unified)) = of.hierarchies.memory_dir(of.membership) else { return };
        if self.hugetlb(of.process, reader) {
            return;
        }
        let alone = match self.alone {
            Some((then, alone)) if scan.saturating_sub(then) < ALONE_SCANS => alone,
            _ => {
                let alone = !of.shared && holds_only(&dir, of.pid, of.managed, reader);
                self.alone = Some((scan, alone));
                alone
            }
        };
        if !alone {
            return;
        }
        let Some(text) = reader.text(&dir.join("memory.numa_stat"), 256 << 10) else { return };
        if let Some(by_node) = numa_stat::parse(&text, if unified { 1 } else { of.page }) {
            self.facts = Some(MemoryFacts {
                by_node,
                source: MemorySource::CgroupNumaStat,
                taken_at: of.at,
                bound: self.bound.clone(),
                preferred: self.preferred.clone(),
                truncated: false,
            });
        }
    }

    fn hugetlb(&mut self, process: &Path, reader: &mut Reader) -> bool {
        *self.hugetlb.get_or_insert_with(|| {
            let status = reader.read(&process.join("status"), MAX_STATUS).ok();
            status.and_then(proc_text::hugetlb_kb).is_some_and(|kb| kb != 0)
        })
    }

    /// Whether numa_maps is worth reading now.
    pub(super) fn due(&self, at: Nanos, options: &MemoryOptions) -> bool {
        let Some((then, cost)) = self.tried else { return true };
        let age = at.since(then);
        let rest = cost.as_nanos().saturating_mul(u128::from(options.ration));
        // The cgroup does not tell guest nodes apart.
        let by_cgroup = self.nodes.is_empty()
            && self.facts.as_ref().is_some_and(|f| f.source == MemorySource::CgroupNumaStat);
        u128::from(age.0) >= rest && (!by_cgroup || age >= POLICY_AGE)
    }

    /// Reads numa_maps; gives warnings, or the error when it cannot be read at all.
    pub(super) fn read_maps(
        &mut self,
        of: &Source<'_>,
        root: &Root,
        options: &MemoryOptions,
        reader: &mut Reader,
    ) -> io::Result<Vec<String>> {
        let begun = Instant::now();
        let max_time = root.is_live().then_some(options.max_time);
        let path = of.process.join("numa_maps");
        let opened = reader.open(&path);
        let read = opened.and_then(|file| bounded(file, options.max_bytes, max_time));
        self.tried = Some((of.at, begun.elapsed()));
        let (bytes, cut) = read?;
        let maps = numa_maps::parse(&bytes, &path.display().to_string(), cut);
        self.hugetlb = Some(maps.hugetlb);
        self.bound = maps.bound;
        self.preferred = maps.preferred;
        match &mut self.facts {
            Some(facts) if facts.source == MemorySource::CgroupNumaStat && !maps.hugetlb => {
                facts.bound = self.bound.clone();
                facts.preferred = self.preferred.clone();
            }
            _ if maps.by_node.is_empty() => {}
            facts => {
                *facts = Some(MemoryFacts {
                    by_node: maps.by_node,
                    source: MemorySource::NumaMaps,
                    taken_at: of.at,
                    bound: self.bound.clone(),
                    preferred: self.preferred.clone(),
                    truncated: maps.truncated,
                });
            }
        }
        let mut warnings = maps.warnings;
        self.nodes = if cut { Vec::new() } else { guest_nodes(of, &bytes, options, reader) };
        if cut {
            warnings.push(format!(
                "{} was cut after {} bytes and {} ms; the VM's memory is known in part",
                path.display(),
                bytes.len(),
                begun.elapsed().as_millis()
            ));
        }
        Ok(warnings)
    }
}

/// Whose memory is read and from where.
pub(super) struct Source<'a> {
    pub(super) pid: u32,
    pub(super) process: &'a Path,
    /// What its command line says.
    pub(super) guest: &'a GuestArguments,
    pub(super) membership: &'a Membership,
    pub(super) hierarchies: &'a Hierarchies,
    /// Whether the cgroup is one that libvirt or Proxmox makes for a single VM.
    pub(super) managed: bool,
    /// Whether another VM is known to be in the same cgroup. Then its list of processes, which
    /// the kernel makes anew for every reader, need not be read once for every VM.
    pub(super) shared: bool,
    pub(super) at: Nanos,
    /// Base page size in bytes.
    pub(super) page: u64,
}

/// Resident memory of each guest node; empty unless all of them can be told.
fn guest_nodes(
    of: &Source<'_>,
    numa_maps: &[u8],
    options: &MemoryOptions,
    reader: &mut Reader,
) -> Vec<BTreeMap<NodeId, Bytes>> {
    let guest = of.guest;
    if guest.node_backends.len() < 2 {
        return Vec::new();
    }
    let path = of.process.join("maps");
    let Ok(maps) = reader.read(&path, options.max_bytes) else { return Vec::new() };
    let (maps, _) = parse_maps(&path, &String::from_utf8_lossy(maps));
    let told = guest_memory::resident(numa_maps, &maps, &guest.backends);
    let of_node = |place: &usize| told.get(*place).cloned().flatten();
    guest.node_backends.iter().map(of_node).collect::<Option<_>>().unwrap_or_default()
}

/// The bytes of a file and whether it was cut by a bound.
fn bounded(mut file: File, max: usize, time: Option<Duration>) -> io::Result<(Vec<u8>, bool)> {
    let begun = Instant::now();
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 << 10];
    loop {
        if bytes.len() >= max || time.is_some_and(|time| begun.elapsed() > time) {
            return Ok((bytes, true));
        }
        let room = chunk.len().min(max - bytes.len());
        match file.read(&mut chunk[..room]) {
            Ok(0) => return Ok((bytes, false)),
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether `pid` is the only process in the cgroup `dir` and those below it. In a copy that lacks
/// cgroup.procs a cgroup made for one VM (`managed`) is believed to hold one.
fn holds_only(dir: &Path, pid: u32, managed: bool, reader: &mut Reader) -> bool {
    let mut seen = false;
    let mut places = vec![(dir.to_owned(), 0)];
    let mut looked = 0;
    while let Some((place, depth)) = places.pop() {
        looked += 1;
        if looked > 64 {
            return false;
        }
        match reader.read(&place.join("cgroup.procs"), 4096) {
            Ok(bytes) => {
                for line in bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
                    if proc_text::u64_of(line) != Some(u64::from(pid)) {
                        return false;
                    }
                    seen = true;
                }
            }
            // Threaded cgroups (libvirt's vcpuN) have no processes of their own.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound && managed => seen = true,
            Err(_) => return false,
        }
        if depth < 3 {
            let below = std::fs::read_dir(&place).into_iter().flatten().flatten();
            let dirs = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            let others = dirs.filter(|entry| !is_thread_group(&entry.file_name()));
            places.extend(others.map(|entry| (entry.path(), depth + 1)));
        }
    }
    seen
}

/// libvirt's groups for single threads of a VM, one for each vCPU.
fn is_thread_group(name: &std::ffi::OsStr) -> bool {
    let name = name.to_str().unwrap_or_default();
    ["vcpu", "iothread"].iter().any(|head| {
        name.strip_prefix(head)
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    })
}
