//! From two looks to a snapshot: how much CPU time each vCPU used in between.
//!
//! `xl` tells CPU times to a tenth of a second, so that windows below some seconds tell little; and it does not tell
//! how long a vCPU waited, so that `steal` is 0. Placement knows load, but not who lacks CPU time.

use crate::scan::{DomainFacts, DomainKey, ScanTime, VcpuFacts, XenScan};
use instep_core::idset::CpuSet;
use instep_core::snapshot::{OpaqueVm, Snapshot, Vcpu, Vm};
use instep_core::soft::SoftAffinity;
use instep_core::topology::Topology;
use instep_core::units::{Milli, Nanos, NodeId, Tid, VmId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The usual weight of a domain (csched2_dom, XEN_SCHED default, 4.17); that of a cgroup is 100.
const USUAL_WEIGHT: u64 = 256;
/// The shortest window.
const LEAST_WINDOW: Nanos = Nanos(1_000_000);

/// What Instep changed of a domain, as the journal tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// The hard affinity of vCPUs that have theirs from Instep.
    pub hard: BTreeMap<u32, CpuSet>,
    /// The soft affinity of vCPUs that have theirs from Instep.
    pub soft: BTreeMap<u32, CpuSet>,
    /// The node affinity, where it is from Instep.
    pub nodes: Option<instep_core::idset::NodeSet>,
}

/// The number by which an action names a vCPU: it stands for no thread.
pub fn vcpu_number(domain: u32, vcpu: u32) -> Tid {
    Tid(domain.saturating_mul(1 << 13).saturating_add(vcpu))
}

/// The window between two looks, where both clocks are known; `elapsed` overrides them.
pub fn window(before: &XenScan, now: &XenScan, elapsed: Option<Nanos>) -> Option<Nanos> {
    let known = match (before.at, now.at) {
        (ScanTime::Live(before), ScanTime::Live(now)) => {
            Some(Nanos(now.saturating_duration_since(before).as_nanos() as u64))
        }
        (ScanTime::Copied(Some(before)), ScanTime::Copied(Some(now))) if now > before => {
            Some(now.since(before))
        }
        _ => None,
    };
    elapsed.or(known).map(|window| window.max(LEAST_WINDOW))
}

/// The host at the later look. Loads are those since `before`, whose window is given with it, or averages since each
/// domain started. `changed` tells what Instep changed of a domain.
pub fn snapshot(
    topology: &Arc<Topology>,
    before: Option<(&XenScan, Nanos)>,
    now: &XenScan,
    changed: impl Fn(&DomainKey) -> Before,
) -> Snapshot {
    let window = before.map_or(Nanos::SECOND, |(_, window)| window);
    let mut vms = Vec::new();
    let mut opaque = Vec::new();
    let mut names = BTreeSet::new();
    for domain in &now.domains {
        let busy = Busy::of_domain(domain, before);
        let mut name = domain.name.clone();
        if !names.insert(name.clone()) {
            name = format!("{name}#{}", domain.key.id);
            names.insert(name.clone());
        }
        match pool_of(topology, domain) {
            Err(why) => opaque.push(OpaqueVm {
                id: VmId(domain.key.id),
                name,
                vcpus: u32::try_from(domain.used_vcpus().count()).unwrap_or(u32::MAX),
                busy: Nanos(
                    domain.vcpus.iter().map(|vcpu| busy.of(vcpu).0).fold(0, u64::saturating_add),
                ),
                why,
            }),
            Ok(pool) => vms.push(vm(topology, (&busy, &pool), name, changed(&domain.key))),
        }
    }
    Snapshot {
        at: match now.at {
            ScanTime::Copied(at) => at.unwrap_or_default(),
            ScanTime::Live(_) => window,
        },
        window,
        topology: Arc::clone(topology),
        isolated: CpuSet::new(),
        other_busy: Nanos(0),
        vms,
        opaque,
    }
}

/// *Competing modules* of the window (systems.md 1), in millionths of a module. Xen tells where a vCPU was at the look
/// only: its time counts as if it had been there all the window. 0 without cores of several CPUs.
pub fn competing_modules(
    topology: &Topology,
    before: Option<(&XenScan, Nanos)>,
    now: &XenScan,
) -> u64 {
    let window = before.map_or(Nanos::SECOND, |(_, window)| window);
    let last = topology.cpus().last().map_or(0, |cpu| cpu.id.0 as usize);
    let mut by_cpu = vec![0u64; last + 1];
    for domain in &now.domains {
        let busy = Busy::of_domain(domain, before);
        for vcpu in &domain.vcpus {
            let cpu = vcpu.cpu.and_then(|cpu| by_cpu.get_mut(cpu.0 as usize));
            cpu.into_iter()
                .for_each(|sum| *sum = sum.saturating_add(busy.of(vcpu).0).min(window.0));
        }
    }
    let cores = topology.cores().iter().map(|core| core.iter().map(|cpu| cpu.0 as usize));
    instep_core::measure::competing_modules(&by_cpu, window.0, cores)
}

/// The online CPUs of the pool that a domain is placed in.
///
/// # Errors
/// It is not placed; the sentence says why.
fn pool_of(topology: &Topology, domain: &DomainFacts) -> Result<CpuSet, String> {
    let why = if domain.key.id == 0 {
        "it is the control domain, whose vCPUs serve all others"
    } else if domain.is_ending {
        "it has been shut down or is being destroyed"
    } else if domain.used_vcpus().next().is_none() {
        "it has no vCPU that runs"
    } else {
        let pool = domain.pool.as_ref().map(|pool| pool.and(&topology.all_cpus()));
        match pool.filter(|pool| !pool.is_empty()) {
            Some(pool) => return Ok(pool),
            None => "it is not known which CPUs its CPU pool has (see `xl cpupool-list -c`)",
        }
    };
    Err(why.to_owned())
}

/// How much of the window vCPUs of a domain used.
struct Busy<'a> {
    window: Nanos,
    domain: &'a DomainFacts,
    /// Of two looks, the domain in the first, if it was there; `None` with one look only, or where the first could not
    /// read it.
    since: Option<Option<&'a DomainFacts>>,
}

impl<'a> Busy<'a> {
    fn of_domain(domain: &'a DomainFacts, before: Option<(&'a XenScan, Nanos)>) -> Self {
        let since = before.and_then(|(before, _)| {
            let earlier = before.domain(&domain.key);
            (!before.may_miss(&domain.key)).then_some(earlier)
        });
        Self { window: before.map_or(Nanos::SECOND, |(_, window)| window), domain, since }
    }

    fn of(&self, vcpu: &VcpuFacts) -> Nanos {
        match self.since {
            Some(earlier) => {
                let before = earlier.and_then(|domain| domain.vcpu(vcpu.index));
                // A domain that is new in the window has used all of its time in it.
                let before = before.map_or(Nanos(0), |vcpu| vcpu.time);
                Nanos(vcpu.time.since(before).0.min(self.window.0))
            }
            None => {
                let Some(uptime) = self.domain.uptime.filter(|uptime| uptime.0 > 0) else {
                    return Nanos(0);
                };
                let part =
                    u128::from(vcpu.time.0) * u128::from(self.window.0) / u128::from(uptime.0);
                Nanos(u64::try_from(part).unwrap_or(u64::MAX).min(self.window.0))
            }
        }
    }
}

fn vm(topology: &Topology, (busy, pool): (&Busy<'_>, &CpuSet), name: String, before: Before) -> Vm {
    let domain = busy.domain;
    let online = topology.all_cpus();
    // A hard affinity of all CPUs is one of all CPUs of the pool.
    let usable = |set: &CpuSet| {
        let set = set.and(pool);
        if set.is_empty() { pool.clone() } else { set }
    };
    let vcpu = |vcpu: &VcpuFacts| {
        let allowed = usable(&vcpu.hard);
        Vcpu {
            index: vcpu.index,
            tid: vcpu_number(domain.key.id, vcpu.index),
            start_ticks: 0,
            cpu: vcpu.cpu.filter(|cpu| online.contains(*cpu)),
            initial: before.hard.get(&vcpu.index).map_or_else(|| allowed.clone(), &usable),
            allowed,
            busy: busy.of(vcpu),
            steal: Nanos(0),
        }
    };
    let vcpus: Vec<Vcpu> = domain.used_vcpus().map(vcpu).collect();
    let soft: BTreeMap<u32, CpuSet> =
        domain.used_vcpus().map(|vcpu| (vcpu.index, vcpu.soft.clone())).collect();
    let first =
        |(index, now): (&u32, &CpuSet)| (*index, before.soft.get(index).unwrap_or(now).clone());
    let known = |node: &NodeId| topology.node(*node).is_some();
    let given = vcpus.iter().filter(|vcpu| vcpu.initial != vcpu.allowed);
    let given = given.fold(CpuSet::new(), |all, vcpu| all.or(&vcpu.allowed));
    Vm {
        uuid: Some(domain.key.uuid.clone()),
        placed: topology.nodes_of(&given),
        memory: domain
            .memory
            .clone()
            .unwrap_or_default()
            .into_iter()
            .filter(|(node, _)| known(node))
            .collect(),
        // Xen does not move the memory of a domain that runs.
        memory_bound: Some(instep_core::idset::NodeSet::new()),
        soft: Some(SoftAffinity {
            initial_vcpus: soft.iter().map(first).collect(),
            vcpus: soft,
            initial_nodes: before.nodes.clone().unwrap_or_else(|| domain.nodes.clone()),
            nodes: domain.nodes.clone(),
        }),
        guest_nodes: domain.guest_nodes.clone(),
        weight: domain.share.map_or(100, |share| {
            let weight = u64::from(share.weight) * 100 / USUAL_WEIGHT;
            u32::try_from(weight.clamp(1, 10_000)).unwrap_or(10_000)
        }),
        quota: domain
            .share
            .filter(|share| share.cap > 0)
            .map(|share| Milli(u64::from(share.cap) * 10)),
        ..Vm::new(VmId(domain.key.id), name, vcpus, pool.clone())
    }
}
