//! What a run tells everybody after each cycle: the host's CPUs, the VMs on them, and what was decided on each, with the
//! reason.
//!
//! One file that everybody may read (schema `instep.host/1`), for `instep serve`. Lists of CPUs are texts such as
//! `0-3,8`, amounts thousandths of a CPU.

use crate::dispatch::in_force::InForce;
use crate::metrics::{MOST_VMS, locality};
use crate::observe::Observation;
use crate::published::RunState;
use crate::record::{ActionRecord, DONE, LeftAloneRecord, Record};
use crate::view::{ActionView, ConflictView, VerdictView};
use instep_core::idset::CpuSet;
use instep_core::snapshot::{Snapshot, Vcpu, Vm};
use instep_core::units::{Bytes, CpuId, Milli, Nanos, NodeId, Tid, VmId};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// A host after a cycle.
#[derive(Debug, JsonSchema, Serialize)]
pub struct PublishedHost<'a> {
    #[schemars(extend("const" = "instep.host/1"))]
    schema: &'static str,
    version: &'static str,
    #[serde(flatten)]
    run: &'a RunState,
    /// The time over which loads were measured.
    window_ns: Nanos,
    /// CPUs that everything that is no vCPU of the VMs below used.
    others_milli: Milli,
    /// Which kernel scheduler is in force and why; null where none was asked for.
    scheduler: Option<PublishedScheduler<'a>>,
    nodes: Vec<PublishedNode>,
    vms: Vec<PublishedVm<'a>>,
    left_alone: &'a [LeftAloneRecord<'a>],
    conflicts: &'a [ConflictView<'a>],
    warnings: &'a [String],
}

#[derive(Debug, JsonSchema, Serialize)]
struct PublishedScheduler<'a> {
    instep: bool,
    why: &'a str,
}

#[derive(Debug, JsonSchema, Serialize)]
struct PublishedNode {
    id: NodeId,
    memory_bytes: Bytes,
    /// Its last-level caches, their cores, the CPUs of these.
    llcs: Vec<Vec<Vec<CpuId>>>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct PublishedVm<'a> {
    name: &'a str,
    uuid: Option<&'a str>,
    pid: VmId,
    used_milli: Milli,
    steal_milli: Milli,
    throttled_milli: Milli,
    quota_milli: Option<Milli>,
    /// In thousandths, in the cycle; null where it is not known.
    co_run_milli: Option<u64>,
    /// The part of its memory on its home nodes, in thousandths.
    locality_milli: Option<u64>,
    memory_bytes_by_node: &'a BTreeMap<NodeId, Bytes>,
    /// Whether the policy takes charge of it, and what it decided.
    selected: bool,
    home_nodes: Vec<NodeId>,
    why: &'a str,
    vcpus: Vec<PublishedVcpu<'a>>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct PublishedVcpu<'a> {
    index: u32,
    tid: Tid,
    /// Where it ran last.
    cpu: Option<CpuId>,
    used_milli: Milli,
    steal_milli: Milli,
    /// CPUs that it may use now, after the cycle.
    cpus: String,
    /// What it might use before Instep; null where that is the same.
    was: Option<String>,
    /// CPUs that it was to have and has not, and what stood in the way.
    planned: Option<(String, &'a str)>,
}

impl<'a> PublishedHost<'a> {
    /// The host as the cycle left it; co-run of VMs by their names.
    pub(crate) fn of(
        observation: &'a Observation,
        record: &'a Record<'a>,
        run: &'a RunState,
        (in_force, co_run): (Option<&'a InForce>, &BTreeMap<String, u64>),
    ) -> Self {
        let snapshot = &observation.snapshot;
        let verdicts: BTreeMap<&str, &VerdictView<'_>> =
            record.vms.iter().map(|verdict| (verdict.name, verdict)).collect();
        let mut actions: BTreeMap<&str, Vec<&ActionRecord<'_>>> = BTreeMap::new();
        for action in &record.actions {
            actions.entry(action.action.vm()).or_default().push(action);
        }
        let vm = |vm: &'a Vm| {
            let actions = actions.get(vm.name.as_str()).map_or(&[][..], Vec::as_slice);
            let verdict = verdicts.get(vm.name.as_str()).copied();
            let co_run = co_run.get(vm.name.as_str()).copied();
            published_vm((vm, co_run), snapshot.window, verdict, actions)
        };
        Self {
            schema: "instep.host/1",
            version: env!("CARGO_PKG_VERSION"),
            run,
            window_ns: snapshot.window,
            others_milli: snapshot.fixed_busy().milli_of(snapshot.window),
            scheduler: in_force
                .map(|InForce { instep, why, .. }| PublishedScheduler { instep: *instep, why }),
            nodes: nodes(snapshot),
            vms: snapshot.vms.iter().take(MOST_VMS).map(vm).collect(),
            left_alone: &record.left_alone,
            conflicts: &record.conflicts,
            warnings: record.warnings,
        }
    }
}

fn nodes(snapshot: &Snapshot) -> Vec<PublishedNode> {
    let topology = &snapshot.topology;
    let cores_of = |llc: &CpuSet| {
        let cores = topology.cores().iter().filter(|core| core.is_subset(llc));
        cores.map(|core| core.iter().collect()).collect()
    };
    let node = |node: &instep_core::topology::Node| PublishedNode {
        id: node.id,
        memory_bytes: node.memory,
        llcs: {
            let llcs = topology.llcs().iter().filter(|llc| llc.is_subset(&node.cpus));
            llcs.map(cores_of).collect()
        },
    };
    topology.nodes().iter().map(node).collect()
}

fn published_vm<'a>(
    (vm, co_run): (&'a Vm, Option<u64>),
    window: Nanos,
    verdict: Option<&'a VerdictView<'a>>,
    actions: &[&'a ActionRecord<'a>],
) -> PublishedVm<'a> {
    let home_nodes: Vec<NodeId> =
        verdict.map(|it| it.home_nodes.iter().collect()).unwrap_or_default();
    PublishedVm {
        name: &vm.name,
        uuid: vm.uuid.as_deref(),
        pid: vm.id,
        used_milli: vm.busy().milli_of(window),
        steal_milli: vm.steal().milli_of(window),
        throttled_milli: vm.throttled.milli_of(window),
        quota_milli: vm.quota,
        co_run_milli: co_run,
        locality_milli: locality(vm, &home_nodes).map(|part| (part * 1000.0) as u64),
        memory_bytes_by_node: &vm.memory,
        selected: verdict.is_some_and(|verdict| verdict.selected),
        home_nodes,
        why: verdict.map_or("", |verdict| &verdict.why),
        vcpus: vm.vcpus.iter().map(|vcpu| published_vcpu(vcpu, window, actions)).collect(),
    }
}

fn published_vcpu<'a>(
    vcpu: &Vcpu,
    window: Nanos,
    actions: &[&'a ActionRecord<'a>],
) -> PublishedVcpu<'a> {
    let change = actions.iter().find_map(|record| match &record.action {
        ActionView::VcpuAffinity { tid, cpus, .. } if *tid == vcpu.tid => {
            Some((*cpus, record.outcome.as_str()))
        }
        _ => None,
    });
    let (now, planned) = match change {
        Some((cpus, DONE)) => (cpus, None),
        Some((cpus, outcome)) => (&vcpu.allowed, Some((cpus.to_string(), outcome))),
        None => (&vcpu.allowed, None),
    };
    PublishedVcpu {
        index: vcpu.index,
        tid: vcpu.tid,
        cpu: vcpu.cpu,
        used_milli: vcpu.busy.milli_of(window),
        steal_milli: vcpu.steal.milli_of(window),
        cpus: now.to_string(),
        was: (vcpu.initial != *now).then(|| vcpu.initial.to_string()),
        planned,
    }
}
