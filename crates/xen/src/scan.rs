//! One look at a Xen host: what several commands printed, put together by domain.
//!
//! Commands run one after another, and domains come and go between them. A domain that not all of them list is left
//! out of this scan, with a warning. So is one whose rows cannot be read, as a domain's name may look like rows of
//! other domains. A domain that is left out need not be gone ([`XenScan::may_miss`]).

use crate::error::Error;
use crate::source::{Query, Source};
use crate::text::{XlTable, config, cpupools, info, list, node_memory, sched, uptime, vcpu_list};
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::snapshot::GuestNode;
use instep_core::topology::Topology;
use instep_core::units::{Bytes, CpuId, Nanos, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Instant;

/// A domain, told from a later one of the same number by its UUID. One that was restarted has the UUID and another
/// number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DomainKey {
    /// Its number.
    pub id: u32,
    /// Its UUID.
    pub uuid: String,
}

impl fmt::Display for DomainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "domain {}", self.id)
    }
}

/// One vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuFacts {
    /// The guest's CPU number.
    pub index: u32,
    /// The CPU it runs on or ran on last; `None` for one that its guest has not started.
    pub cpu: Option<CpuId>,
    /// CPU time since the domain was made, to a tenth of a second.
    pub time: Nanos,
    /// Hard affinity, offline CPUs included.
    pub hard: CpuSet,
    /// Soft affinity, offline CPUs included; all where it holds none.
    pub soft: CpuSet,
}

/// One domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainFacts {
    /// Which it is.
    pub key: DomainKey,
    /// Its name.
    pub name: String,
    /// `pv`, `hvm` or `pvh`, where its configuration is known.
    pub kind: Option<String>,
    /// Whether it is paused.
    pub is_paused: bool,
    /// Whether it has been shut down, has crashed or is being destroyed.
    pub is_ending: bool,
    /// Of one that is ending: whether it is suspended only, and may come back.
    pub is_suspended: bool,
    /// All vCPUs that it may have, ascending; see [`DomainFacts::used_vcpus`].
    pub vcpus: Vec<VcpuFacts>,
    /// Those that it was made with, where its configuration is known.
    pub available: BTreeSet<u32>,
    /// Node affinity.
    pub nodes: NodeSet,
    /// CPUs of its CPU pool, where they are known.
    pub pool: Option<CpuSet>,
    /// Its weight and cap; `None` where its scheduler has none.
    pub share: Option<sched::Share>,
    /// Memory by node, where that is known.
    pub memory: Option<BTreeMap<NodeId, Bytes>>,
    /// How long it runs, where that is known.
    pub uptime: Option<Nanos>,
    /// The guest's own nodes.
    pub guest_nodes: Vec<GuestNode>,
}

impl DomainFacts {
    /// The vCPUs that count: those that its guest has started, and those that it was made with and will start.
    pub fn used_vcpus(&self) -> impl Iterator<Item = &VcpuFacts> {
        let is_used =
            |vcpu: &&VcpuFacts| vcpu.cpu.is_some() || self.available.contains(&vcpu.index);
        self.vcpus.iter().filter(is_used)
    }

    /// The vCPU of this index.
    pub fn vcpu(&self, index: u32) -> Option<&VcpuFacts> {
        self.vcpus.iter().find(|vcpu| vcpu.index == index)
    }
}

/// One look.
#[derive(Clone, Debug)]
pub struct XenScan {
    /// When affinities and times were read.
    pub at: ScanTime,
    /// The host.
    pub info: info::Info,
    /// Domains, ascending by number, dom0 included.
    pub domains: Vec<DomainFacts>,
    /// UUIDs that `xl list` names, where rows of domains or vCPUs could not be read; else none. A domain of one of them
    /// may be there although it is not among `domains`.
    pub named: BTreeSet<String>,
    /// What was wrong or is not known, one sentence each.
    pub warnings: Vec<String>,
}

/// A time on this machine's clock, or what a copy tells of it.
#[derive(Clone, Copy, Debug)]
pub enum ScanTime {
    /// On this machine.
    Live(Instant),
    /// Since the boot of the copied host's dom0; `None` where the copy does not tell.
    Copied(Option<Nanos>),
}

/// What a look asks for beside affinities and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Nothing more: for the begin of a window.
    Times,
    /// Pools, weights, configurations and, of a copy, memory by node.
    Full,
    /// The same with memory by node on this machine, too: Xen walks the page lists of all domains for that, and writes
    /// a table to its log.
    WithMemory,
}

/// Domains together larger than this are not walked for their memory by node: the walk holds a lock of each for about
/// a tenth of a second for 32 GiB (an assumption).
const MOST_MEMORY_MIB: u64 = 256 << 10;

/// Looks at a host.
///
/// # Errors
/// The host, its domains or its vCPUs cannot be read. What else cannot be is a warning.
pub fn scan(source: &Source, depth: Depth) -> Result<XenScan, Error> {
    let info = info::parse(&source.read(Query::Info)?)?;
    let list = source.read(Query::List)?;
    let XlTable { mut rows, unread: mut warnings } = list::parse(&list)?;
    let at = match source.uptime() {
        _ if source.is_live() => ScanTime::Live(Instant::now()),
        uptime => ScanTime::Copied(uptime),
    };
    let vcpus = vcpu_list::parse(&source.read(Query::VcpuList)?)?;
    warnings.extend(vcpus.unread);
    let (vcpus, incomplete) = by_domain(&info.all_cpus(), vcpus.rows, &mut rows);
    let is_whole = warnings.is_empty() && incomplete.is_empty();
    let named = if is_whole { BTreeSet::new() } else { list::uuids(&list) };
    warnings.extend(incomplete);
    let extra = match depth {
        Depth::Times => Extra::default(),
        _ => Extra::read(source, &info, (depth, &rows), &mut warnings),
    };
    let domains = join(&info, rows, vcpus, &extra, &mut warnings);
    Ok(XenScan { at, info, domains, named, warnings })
}

/// What is good to know and no reason to fail.
#[derive(Default)]
struct Extra {
    pools: BTreeMap<String, CpuSet>,
    shares: BTreeMap<u32, sched::Share>,
    configs: BTreeMap<u32, config::Config>,
    uptimes: BTreeMap<u32, Nanos>,
    memory: node_memory::ByDomain,
}

impl Extra {
    fn read(
        source: &Source,
        info: &info::Info,
        (depth, rows): (Depth, &[list::Domain]),
        warnings: &mut Vec<String>,
    ) -> Self {
        let mut ask = Asking { source, warnings };
        let shares = match info.scheduler.as_str() {
            "credit" => ask.about(Query::Credit, "weights and caps are not known", sched::parse),
            "credit2" => ask.about(Query::Credit2, "weights and caps are not known", sched::parse),
            _ => BTreeMap::new(),
        };
        let no_pools = "CPU pools are not known, so that no domain is placed";
        Self {
            shares,
            pools: ask.about(Query::CpuPools, no_pools, cpupools::parse),
            configs: ask.about(Query::Configs, "guests' NUMA nodes are not known", config::parse),
            uptimes: ask.about(
                Query::Uptime,
                "it is not known since when domains run",
                uptime::parse,
            ),
            memory: ask.memory(info, depth, rows),
        }
    }
}

struct Asking<'a> {
    source: &'a Source,
    warnings: &'a mut Vec<String>,
}

impl Asking<'_> {
    /// What a command tells, or nothing with a warning that says what follows from that.
    fn about<T: Default>(
        &mut self,
        query: Query,
        lacks: &str,
        parse: impl Fn(&str) -> Result<XlTable<T>, Error>,
    ) -> T {
        let table = self.source.read(query).and_then(|text| parse(&text));
        let table = table.unwrap_or_else(|error| XlTable {
            rows: T::default(),
            unread: vec![format!("{lacks}: {error}")],
        });
        self.warnings.extend(table.unread);
        table.rows
    }

    fn memory(
        &mut self,
        info: &info::Info,
        depth: Depth,
        rows: &[list::Domain],
    ) -> node_memory::ByDomain {
        let total: u64 = rows.iter().map(|row| row.memory_mib).fold(0, u64::saturating_add);
        if let (1, Some(node)) = (info.nodes.len(), info.nodes.keys().next()) {
            let all = |row: &list::Domain| {
                (row.id, [(NodeId(*node), Bytes::from_mib(row.memory_mib))].into())
            };
            return rows.iter().map(all).collect();
        }
        if self.source.is_live() {
            if depth != Depth::WithMemory {
                return node_memory::ByDomain::new();
            }
            if total > MOST_MEMORY_MIB {
                self.warnings.push(format!(
                    "it is not known on which nodes memory lies: domains have {} together, and Xen would walk \
                     all of it",
                    Bytes::from_mib(total)
                ));
                return node_memory::ByDomain::new();
            }
            return match self.source.log_with_memory() {
                Ok(log) => node_memory::parse(&log),
                Err(error) => {
                    let what = "it is not known on which nodes memory lies";
                    self.warnings.push(format!("{what}: {error}"));
                    node_memory::ByDomain::new()
                }
            };
        }
        let parse = |text: &str| Ok(XlTable { rows: node_memory::parse(text), unread: Vec::new() });
        self.about(Query::Log, "it is not known on which nodes memory lies", parse)
    }
}

/// vCPUs by domain and index.
type Vcpus = BTreeMap<u32, BTreeMap<u32, VcpuFacts>>;

/// The vCPUs of each domain. A domain whose vCPUs are not all there, or there twice, is taken out of `rows`, and a
/// sentence tells so: `xl` prints all vCPUs that a domain may have, from 0 on, and tells how many are online.
fn by_domain(
    all: &CpuSet,
    vcpus: Vec<vcpu_list::VcpuRow>,
    rows: &mut Vec<list::Domain>,
) -> (Vcpus, Vec<String>) {
    let mut found = Vcpus::new();
    let mut twice = BTreeSet::new();
    for vcpu in vcpus {
        let (hard, mut soft) = (vcpu.hard.of(all), vcpu.soft.of(all));
        // No CPU to prefer means as little as all (has_soft_affinity, xen/common/sched/private.h, 4.17), and `xl` can
        // set all only.
        if soft.is_empty() {
            soft.clone_from(all);
        }
        let facts = VcpuFacts { index: vcpu.index, cpu: vcpu.cpu, time: vcpu.time, hard, soft };
        if found.entry(vcpu.domain).or_default().insert(vcpu.index, facts).is_some() {
            twice.insert(vcpu.domain);
        }
    }
    let mut told = Vec::new();
    rows.retain(|row| {
        let Some(vcpus) = found.get(&row.id).filter(|_| !row.is_ending()) else { return true };
        let is_whole = (0u32..).zip(vcpus.keys()).all(|(index, key)| index == *key)
            && vcpus.len() >= row.vcpus as usize
            && !twice.contains(&row.id);
        if !is_whole {
            let (id, name) = (row.id, &row.name);
            told.push(format!(
                "domain {id} ({name}) has other rows in `xl vcpu-list` than vCPUs: left out"
            ));
        }
        is_whole
    });
    (found, told)
}

/// The domains that all commands know.
fn join(
    info: &info::Info,
    rows: Vec<list::Domain>,
    mut vcpus: Vcpus,
    extra: &Extra,
    warnings: &mut Vec<String>,
) -> Vec<DomainFacts> {
    let nodes: NodeSet = (0..info.node_count.min(1024)).map(NodeId).collect();
    let mut domains = Vec::with_capacity(rows.len());
    for row in rows {
        let is_ending = row.is_ending();
        let vcpus = vcpus.remove(&row.id);
        if vcpus.is_none() && !is_ending {
            warnings.push(format!(
                "domain {} ({}) went away while the host was read: left out",
                row.id, row.name
            ));
            continue;
        }
        let config = extra.configs.get(&row.id).cloned().unwrap_or_default();
        let pool = row.pool.as_ref().and_then(|pool| extra.pools.get(pool)).cloned();
        domains.push(DomainFacts {
            key: DomainKey { id: row.id, uuid: row.uuid.clone().unwrap_or_default() },
            kind: Some(config.kind).filter(|kind| !kind.is_empty()),
            is_paused: row.state.as_bytes().get(2) == Some(&b'p'),
            is_ending,
            is_suspended: row.is_suspended(),
            vcpus: vcpus.unwrap_or_default().into_values().collect(),
            available: config.available,
            nodes: row.nodes.as_ref().map(|mask| mask.of(&nodes)).unwrap_or_default(),
            pool,
            share: extra.shares.get(&row.id).copied(),
            memory: extra.memory.get(&row.id).cloned(),
            uptime: extra.uptimes.get(&row.id).copied(),
            guest_nodes: config.guest_nodes,
            name: row.name,
        });
    }
    domains
}

impl XenScan {
    /// The domain of this key.
    pub fn domain(&self, key: &DomainKey) -> Option<&DomainFacts> {
        self.domains.iter().find(|domain| domain.key == *key)
    }

    /// Whether this look does not know a domain that may be there. `xl list` prints the UUID of each domain, also in
    /// a row that cannot be read: a domain whose UUID is nowhere has ended.
    pub fn may_miss(&self, key: &DomainKey) -> bool {
        self.named.contains(&key.uuid) && self.domain(key).is_none()
    }

    /// The domain of this number.
    pub fn by_id(&self, id: u32) -> Option<&DomainFacts> {
        self.domains.iter().find(|domain| domain.key.id == id)
    }

    /// The host's topology.
    ///
    /// # Errors
    /// It has no CPU.
    pub fn topology(&self) -> Result<Topology, Error> {
        self.info.topology()
    }
}
