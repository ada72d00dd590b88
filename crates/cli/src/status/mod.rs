//! `instep status`: every VM, its vCPUs, where they run, waits, memory by node, conflicts.
//!
//! It reads counters at the two ends of a window, and so measures no co-run, stacking or skew: those need each event
//! (`instep top` and `instep analyze`, by `instep_core::measure`). The lengths of waits that it shows are the kernel scheduler's own.

mod dispatch;
mod held;
mod text;
mod xen;

use crate::args::StatusArgs;
use crate::observe::{Observed, observe, seen_state_dir};
use crate::text::{indented, wrapped};
use crate::{Outcome, print, print_json};
use dispatch::DispatchJson;
use held::{PlacedJson, RunJson};
use instep_agent::config::Config;
use instep_agent::dispatch::table;
use instep_agent::observe::facts_of;
use instep_agent::published::seen;
use instep_agent::view::{self, ConflictView};
use instep_agent::vm_settings::{Chosen, VmSettings};
use instep_core::conflict;
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::snapshot::{Snapshot, Vm};
use instep_core::units::{Bytes, CpuId, Nanos, NodeId, Tid, VmId};
use instep_host::discover::Trust;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// `instep.status/1`.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Status")]
pub(crate) struct StatusJson<'a> {
    #[schemars(extend("const" = "instep.status/1"))]
    schema: &'static str,
    /// What runs the VMs: `kvm`, for all of a Linux host, or `xen`.
    hypervisor: &'static str,
    window_ns: u64,
    /// Sum over cores of the product of their CPUs' utilisations; null but on Xen.
    competing_modules: Option<f64>,
    /// The run that places VMs now; null when none uses the state directory, and for a copy.
    run: Option<RunJson>,
    /// Who schedules threads on this host; null for a copy.
    dispatch: Option<DispatchJson>,
    vms: Vec<VmJson<'a>>,
    conflicts: Vec<ConflictJson<'a>>,
    warnings: &'a [String],
}

/// A conflict, and whether its VM counts: one that does not is no finding.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "StatusConflict")]
struct ConflictJson<'a> {
    #[serde(flatten)]
    conflict: ConflictView<'a>,
    counts: bool,
}

/// One VM. One that is not placed says why in `left_alone`; one whose vCPU threads cannot be told has no
/// vCPUs.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "StatusVm")]
struct VmJson<'a> {
    id: &'a str,
    name: &'a str,
    /// The monitor's process, or the number of a domain of Xen.
    pid: VmId,
    uuid: Option<&'a str>,
    vmm: Option<String>,
    manager: Option<String>,
    accel: Option<String>,
    identified_by: Option<String>,
    cgroup: Option<&'a str>,
    home_node: Option<NodeId>,
    /// What it has from Instep; null when nothing.
    placed: Option<PlacedJson>,
    /// CPUs that it may use at most (`cpu.max` and the like); null without a quota.
    quota_cpus: Option<f64>,
    /// Whether that quota holds for other processes, too: it is of a cgroup above the VM's own, or of one that the VM shares.
    quota_is_shared: bool,
    /// The file with that quota; of those for single vCPUs the first one.
    quota_file: Option<String>,
    /// CPUs that its quota kept from it in the window; null where its vCPUs cannot be told.
    throttled_cpus: Option<f64>,
    vcpus: Vec<VcpuJson<'a>>,
    memory_bytes_by_node: BTreeMap<NodeId, Bytes>,
    /// The nodes that a domain of Xen takes memory from; null elsewhere.
    node_affinity: Option<&'a NodeSet>,
    /// What its definition says of it, and the configuration that `--config` names.
    settings: &'a [Chosen],
    left_alone: Option<&'a str>,
}

#[derive(JsonSchema, Serialize)]
#[schemars(rename = "StatusVcpu")]
struct VcpuJson<'a> {
    index: u32,
    tid: Tid,
    cpu: Option<CpuId>,
    allowed: &'a CpuSet,
    /// What it could use before Instep changed that; null when Instep did not.
    was: Option<&'a CpuSet>,
    /// What it prefers of what it may use, its soft affinity; null but on Xen.
    prefers: Option<&'a CpuSet>,
    /// Fraction of the window in which it ran.
    used: f64,
    /// Fraction of the window in which it was runnable and did not run.
    steal: f64,
}

pub(crate) fn command(args: &StatusArgs) -> anyhow::Result<Outcome> {
    let configured = args.config.as_deref().map(Config::load).transpose()?.unwrap_or_default();
    let trust = configured.trust();
    let mut config = Config::default();
    config.discover.vm_settings = configured.discover.vm_settings;
    config.memory.home = args.memory;
    if let Some(window) = args.host.window {
        config.window = window;
    }
    let is_live = args.host.root.is_none();
    let state = is_live.then(|| seen_state_dir(args.host.state_dir.as_deref()));
    let mut observed = observe(&args.host, &config, None)?;
    let mut conflicts = Conflicts::of(&observed, &trust);
    // The run has a configuration of its own.
    let seen_run = observed.seen.clone().or_else(|| seen(state.as_ref()?.path()));
    if let Some(run) = &seen_run {
        let counted = run.counted();
        conflicts.refused.retain(|vm, _| !counted.contains(vm));
    }
    let settings = all_settings(&observed, &configured);
    for vm in &mut observed.snapshot.opaque {
        if let Some(why) = conflicts.refused.get(&vm.id) {
            vm.why.clone_from(why);
        }
    }
    let of_dispatch = state.as_ref().filter(|_| observed.xen.is_none());
    let dispatch = of_dispatch.map(|state| dispatch::read_dispatch(state.path(), seen_run));
    if let Some(dispatch) = &dispatch {
        dispatch.take_held(&mut observed.snapshot);
    }
    let run = state.as_ref().and_then(held::run_of);
    if args.json {
        print_json(&json(&observed, (&conflicts, &settings), dispatch, run))?;
    } else {
        let width = crate::text::width();
        let home = |vm: &Vm| home_node(&observed.snapshot, vm, dispatch.as_ref());
        print(&text::draw(&observed, (&conflicts, &settings), &home, (width, args.vcpus)))?;
        if let Some(run) = run {
            let line = run.drawn(SystemTime::now());
            print(&format!("\n{}", indented(&wrapped(&line, width), 0)))?;
        }
        if let Some(dispatch) = dispatch {
            print(&dispatch.drawn(width))?;
        }
    }
    observed.report_warnings(args.json);
    Ok(if conflicts.count() == 0 { Outcome::Fine } else { Outcome::Finding })
}

/// The settings of each VM whose vCPUs are known, and where each was said.
type AllSettings = BTreeMap<VmId, Vec<Chosen>>;

fn all_settings(observed: &Observed, config: &Config) -> AllSettings {
    let all = table::with_configured(&observed.scan.vms, &config.dispatch);
    all.map(|(vm, set)| (VmId(vm.pid), VmSettings::of(vm, set).chosen)).collect()
}

/// Conflicts, and the VMs that do not count: a user who starts such a process must not cause a finding.
struct Conflicts {
    all: Vec<conflict::Conflict>,
    /// Why each of these VMs does not count.
    refused: BTreeMap<VmId, String>,
}

impl Conflicts {
    fn of(observed: &Observed, trust: &Trust) -> Self {
        let scan = &observed.scan;
        let vms = scan.vms.iter().map(|vm| (vm.pid, &vm.owner));
        let owners = vms.chain(scan.opaque.iter().map(|vm| (vm.pid, &vm.owner)));
        let refused = |(pid, owner)| Some((VmId(pid), trust.refusal(owner)?));
        let mut refused: BTreeMap<VmId, String> = owners.filter_map(refused).collect();
        for vm in &scan.vms {
            if let Some(why) = VmSettings::of(vm, None).why_ignored() {
                refused.entry(VmId(vm.pid)).or_insert(why);
            }
        }
        Self { all: conflict::find(&observed.snapshot), refused }
    }

    fn counts(&self, vm: VmId) -> bool {
        !self.refused.contains_key(&vm)
    }

    /// Those of VMs that count.
    fn count(&self) -> usize {
        self.all.iter().filter(|conflict| self.counts(conflict.vm)).count()
    }
}

/// The node a VM lives on: the one its vCPUs are confined to, else the one that Instep's kernel
/// scheduler keeps it on, else the one that holds more than half of its memory, else none.
fn home_node(snapshot: &Snapshot, vm: &Vm, dispatch: Option<&DispatchJson>) -> Option<NodeId> {
    let nodes = snapshot.topology.nodes_of(&vm.allowed());
    if nodes.len() == 1 {
        return nodes.first();
    }
    if let Some(kept) = dispatch.and_then(|dispatch| dispatch.home_of(&vm.name)) {
        return Some(kept);
    }
    let total = vm.memory_total().0;
    vm.memory.iter().find(|(_, bytes)| bytes.0 > total / 2).map(|(node, _)| *node)
}

/// `part` of `whole` between 0 and 1: two clocks read one after the other may differ a little.
fn fraction(part: Nanos, whole: Nanos) -> f64 {
    if whole.0 == 0 { 0.0 } else { (part.0 as f64 / whole.0 as f64).min(1.0) }
}

fn json<'a>(
    observed: &'a Observed,
    (conflicts, settings): (&'a Conflicts, &'a AllSettings),
    dispatch: Option<DispatchJson>,
    run: Option<RunJson>,
) -> StatusJson<'a> {
    let snapshot = &observed.snapshot;
    let shown = |vm: &'a Vm| VmJson {
        left_alone: conflicts.refused.get(&vm.id).map(String::as_str),
        settings: settings.get(&vm.id).map_or(&[], Vec::as_slice),
        ..vm_json(observed, vm, home_node(snapshot, vm, dispatch.as_ref()))
    };
    let mut vms: Vec<VmJson<'a>> = snapshot.vms.iter().map(shown).collect();
    vms.extend(snapshot.opaque.iter().map(|vm| VmJson {
        id: &vm.name,
        name: &vm.name,
        pid: vm.id,
        uuid: None,
        vmm: None,
        manager: None,
        accel: None,
        identified_by: None,
        cgroup: None,
        home_node: None,
        placed: None,
        quota_cpus: None,
        quota_is_shared: false,
        quota_file: None,
        throttled_cpus: None,
        vcpus: Vec::new(),
        memory_bytes_by_node: BTreeMap::new(),
        node_affinity: None,
        settings: &[],
        left_alone: Some(&vm.why),
    }));
    vms.sort_by_key(|vm| vm.pid);
    StatusJson {
        schema: "instep.status/1",
        hypervisor: if observed.xen.is_some() { "xen" } else { "kvm" },
        window_ns: snapshot.window.0,
        competing_modules: observed.xen.as_ref().map(|xen| xen.competing as f64 / 1e6),
        run,
        dispatch,
        vms,
        conflicts: view::conflicts(snapshot, &conflicts.all)
            .into_iter()
            .zip(&conflicts.all)
            .map(|(view, it)| ConflictJson { conflict: view, counts: conflicts.counts(it.vm) })
            .collect(),
        warnings: &observed.warnings,
    }
}

fn vm_json<'a>(observed: &'a Observed, vm: &'a Vm, home_node: Option<NodeId>) -> VmJson<'a> {
    let snapshot = &observed.snapshot;
    let facts = facts_of(&observed.scan, vm);
    let domain = observed.xen.as_ref().and_then(|xen| xen.scan.by_id(vm.id.0));
    VmJson {
        id: &vm.name,
        name: &vm.name,
        pid: vm.id,
        uuid: vm.uuid.as_deref(),
        vmm: match domain {
            Some(domain) => domain.kind.as_ref().map(|kind| format!("xen-{kind}")),
            None => facts.map(|facts| facts.vmm.to_string()),
        },
        manager: facts.and_then(|facts| facts.manager.map(|m| m.to_string())),
        accel: facts.map(|facts| facts.accel.to_string()),
        identified_by: facts.map(|facts| facts.identified_by.to_string()),
        cgroup: facts.and_then(|facts| facts.cgroup.as_deref()),
        home_node,
        placed: held::placed(observed, vm),
        quota_cpus: vm.quota.map(|quota| quota.0 as f64 / 1000.0),
        quota_is_shared: facts.is_some_and(|facts| facts.quota.is_shared),
        quota_file: facts.and_then(|facts| Some(facts.quota.file.as_ref()?.display().to_string())),
        throttled_cpus: Some(vm.throttled.milli_of(snapshot.window).0 as f64 / 1000.0),
        vcpus: vm
            .vcpus
            .iter()
            .map(|vcpu| VcpuJson {
                index: vcpu.index,
                tid: vcpu.tid,
                cpu: vcpu.cpu,
                allowed: &vcpu.allowed,
                was: held::was(vcpu),
                prefers: vm.soft.as_ref().and_then(|soft| soft.vcpus.get(&vcpu.index)),
                used: fraction(vcpu.busy, snapshot.window),
                steal: fraction(vcpu.steal, snapshot.window),
            })
            .collect(),
        memory_bytes_by_node: vm.memory.clone(),
        node_affinity: vm.soft.as_ref().map(|soft| &soft.nodes),
        settings: &[],
        left_alone: None,
    }
}
