//! `instep advise`: where a VM that has not started yet should start.
//!
//! All VMs that run keep what they have; what was advised in the last minute counts as if it ran.

pub(crate) mod numad;

use crate::args::{AdviseArgs, HostArgs};
use crate::hypervisor::refuse_xen;
use crate::observe::{observe, root, state_dir};
use crate::{Outcome, print, print_json};
use anyhow::Context as _;
use instep_agent::config::Config;
use instep_core::idset::CpuSet;
use instep_core::policy::{Advice, advise};
use instep_core::snapshot::{Snapshot, Vcpu, Vm};
use instep_core::units::{Bytes, Nanos, NodeId, Tid, VmId};
use instep_host::Root;
use instep_host::apply::{Advised, AdvisedRoom, room};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Demand of each vCPU of a VM that has not started, in thousandths of a CPU: nothing is known of it.
const DEMAND: u64 = 500;

/// What is to start.
pub(crate) struct Request<'a> {
    pub(crate) vcpus: u32,
    pub(crate) memory: Bytes,
    /// Addresses of PCI devices.
    pub(crate) devices: &'a [String],
}

/// `instep.advice/1`.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Advice")]
pub(crate) struct AdviceJson<'a> {
    #[schemars(extend("const" = "instep.advice/1"))]
    schema: &'static str,
    nodes: String,
    cpus: String,
    why: String,
    /// The node of each device, where the firmware tells it.
    devices: BTreeMap<&'a str, Option<NodeId>>,
    /// VMs that were advised in the last minute and counted as if they ran.
    reserved: usize,
    virsh: Vec<String>,
    virt_install: Vec<String>,
    qemu: Vec<String>,
    warnings: &'a [String],
}

/// Advice, and what it was made of.
pub(crate) struct Given {
    pub(crate) advice: Advice,
    devices: Vec<Option<NodeId>>,
    reserved: usize,
    warnings: Vec<String>,
}

pub(crate) fn command(args: &AdviseArgs) -> anyhow::Result<Outcome> {
    let memory = args.memory;
    let request = Request { vcpus: args.vcpus, memory, devices: &args.devices };
    let given = give(&args.host, &request)?;
    let Advice { nodes, cpus, why } = &given.advice;
    let options = Options::of(&request, &given.advice);
    if args.json {
        let devices = args.devices.iter().map(String::as_str).zip(given.devices.iter().copied());
        print_json(&AdviceJson {
            schema: "instep.advice/1",
            nodes: nodes.to_string(),
            cpus: cpus.to_string(),
            why: why.to_string(),
            devices: devices.collect(),
            reserved: given.reserved,
            virsh: options.virsh,
            virt_install: options.virt_install,
            qemu: options.qemu,
            warnings: &given.warnings,
        })?;
        return Ok(Outcome::Fine);
    }
    let Options { virsh, virt_install, qemu } = options;
    print(&format!(
        "nodes {nodes}, CPUs {cpus}\n{why}\n\nvirt-install  {}\nvirsh         {}\nqemu          {}\n",
        virt_install.join(" "),
        virsh.join("\n              "),
        qemu.join(" "),
    ))?;
    given.warnings.iter().for_each(|warning| crate::tell(&format!("warning: {warning}")));
    Ok(Outcome::Fine)
}

/// Advises, and keeps room for what was advised. Of a copy room is kept only where a state directory is named.
pub(crate) fn give(host: &HostArgs, request: &Request) -> anyhow::Result<Given> {
    let instead = "`xl create` places domains itself (libxl's NUMA placement)";
    refuse_xen(host.hypervisor, host.root.as_deref(), "advise", instead)?;
    let mut config = Config::default();
    config.window = host.window.unwrap_or(config.window);
    let root = root(host.root.as_deref())?;
    let node = |address: &String| device_node(&root, address);
    let devices: Vec<Option<NodeId>> =
        request.devices.iter().map(node).collect::<Result<_, _>>()?;
    let observed = observe(host, &config, None)?;
    let (mut snapshot, mut warnings) = (observed.snapshot, observed.warnings);
    let kept = (root.is_live() || host.state_dir.is_some())
        .then(|| Ok(AdvisedRoom::open(&state_dir(host.state_dir.as_deref())?)?));
    let kept: Option<AdvisedRoom> = kept.and_then(|kept: anyhow::Result<_>| {
        kept.map_err(|error| warnings.push(format!("no room is kept: {error}"))).ok()
    });
    let reserved = kept.as_ref().map_or(&[][..], |kept| &kept.advised);
    let last = snapshot.vms.iter().map(|vm| vm.id.0).max().unwrap_or(0);
    let ids = (last + 1..).map(VmId);
    for (id, advised) in ids.zip(reserved) {
        snapshot.vms.push(advised_vm(&snapshot, id, advised));
    }
    let mut new = vm_to_start(&snapshot, VmId(u32::MAX), request.vcpus);
    new.devices = devices.iter().flatten().copied().collect();
    // It lies nowhere yet, and needs room all the same.
    new.memory = BTreeMap::from([(NodeId(u32::MAX), request.memory)]);
    if let Some(warning) = keep_to_room(&root, &mut new, &snapshot, request.memory, reserved)? {
        warnings.push(warning);
    }
    snapshot.vms.push(new);
    let advice = advise(snapshot).map_err(|why| anyhow::anyhow!("no place for it: {why}"))?;
    let count = reserved.len();
    if let Some(kept) = kept {
        let Advice { nodes, cpus, .. } = advice.clone();
        kept.keep(request.vcpus, request.memory, nodes, cpus)?;
    }
    Ok(Given { advice, devices, reserved: count, warnings })
}

/// Leaves a VM the nodes that have room for its memory, if one alone has; else says that none has.
fn keep_to_room(
    root: &Root,
    vm: &mut Vm,
    snapshot: &Snapshot,
    memory: Bytes,
    reserved: &[Advised],
) -> anyhow::Result<Option<String>> {
    let nodes = snapshot.topology.nodes().iter().filter(|node| !node.cpus.is_empty());
    let all = nodes.map(|node| node.id).collect();
    let Ok(rooms) = room::read(root, &all, None) else {
        return Ok(Some("the free memory of nodes is not known".to_owned()));
    };
    let left = |room: &room::Room| {
        let own = reserved.iter().filter(|one| one.nodes.contains(room.node));
        let taken = own.map(|one| one.memory.0 / one.nodes.len().max(1) as u64);
        Bytes(room.for_page(4096).saturating_sub(taken.fold(0, u64::saturating_add)))
    };
    let with_room = rooms.iter().filter(|room| left(room) >= memory).map(|room| room.node);
    let with_room = with_room.collect();
    let cpus = snapshot.topology.cpus_of(&with_room);
    if !cpus.is_empty() {
        vm.cpuset = cpus;
        return Ok(None);
    }
    let sum = rooms.iter().map(|room| left(room).0).fold(0, u64::saturating_add);
    anyhow::ensure!(
        sum >= memory.0,
        "the host has no room for {memory}: {} are free, room for advice of the last minute not counted",
        Bytes(sum)
    );
    Ok(Some(format!("no node alone has {memory} free")))
}

/// A VM of which only the number of its vCPUs is known.
fn vm_to_start(snapshot: &Snapshot, id: VmId, vcpus: u32) -> Vm {
    let all = snapshot.topology.all_cpus();
    let busy = Nanos(snapshot.window.0 / 1000 * DEMAND);
    let vcpu = |index| Vcpu { busy, ..Vcpu::new(index, Tid(0), all.clone()) };
    Vm::new(id, "", (0..vcpus).map(vcpu).collect(), all.clone())
}

/// A VM that was advised, as if it ran where it was told to.
fn advised_vm(snapshot: &Snapshot, id: VmId, advised: &Advised) -> Vm {
    let mut vm = vm_to_start(snapshot, id, advised.vcpus);
    let cpus: CpuSet = advised.cpus.and(&snapshot.topology.all_cpus());
    if !cpus.is_empty() {
        vm.vcpus.iter_mut().for_each(|vcpu| vcpu.allowed = cpus.clone());
    }
    let part = Bytes(advised.memory.0 / advised.nodes.len().max(1) as u64);
    vm.memory = advised.nodes.iter().map(|node| (node, part)).collect();
    vm
}

/// The node of the PCI device at an address (`0000:3b:00.0`, or `3b:00.0`); `None` where the firmware tells
/// none.
fn device_node(root: &Root, address: &str) -> anyhow::Result<Option<NodeId>> {
    let whole = if address.matches(':').count() == 1 { "0000:" } else { "" };
    let whole = format!("{whole}{address}").to_ascii_lowercase();
    let parts: Vec<&str> = whole.split([':', '.']).collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let hex = parts.iter().all(|part| part.chars().all(|c| c.is_ascii_hexdigit()));
    anyhow::ensure!(
        lengths == [4, 2, 2, 1] && hex,
        "{address:?} is no address of a PCI device; such look like 0000:3b:00.0 (lspci -D)"
    );
    let file = format!("sys/bus/pci/devices/{whole}/numa_node");
    let text = root.read(&file).with_context(|| format!("there is no PCI device {whole}"))?;
    Ok(text.trim().parse().ok().map(NodeId))
}

/// The forms in which the advice is printed for other programs.
struct Options {
    virsh: Vec<String>,
    virt_install: Vec<String>,
    qemu: Vec<String>,
}

impl Options {
    fn of(request: &Request, advice: &Advice) -> Self {
        let Request { vcpus, memory, .. } = request;
        let Advice { nodes, cpus, .. } = advice;
        let mib = memory.0.div_ceil(1 << 20);
        let pin = |vcpu| format!("virsh vcpupin DOMAIN {vcpu} {cpus} --config");
        let mut virsh = vec![
            format!("virsh numatune DOMAIN --mode preferred --nodeset {nodes} --config"),
            format!("virsh emulatorpin DOMAIN {cpus} --config"),
        ];
        // One node is preferred; several need a mode that takes several.
        let mode = if nodes.len() == 1 { "preferred" } else { "interleave" };
        virsh[0] = virsh[0].replace("preferred", mode);
        virsh.extend((0..*vcpus).map(pin));
        let words = |text: String| text.split(' ').map(str::to_owned).collect();
        let virt_install = words(format!(
            "--vcpus {vcpus},cpuset={cpus} --memory {mib} --numatune {nodes},memory.mode={mode}"
        ));
        let qemu = words(format!(
            "taskset -c {cpus} qemu-system-x86_64 -smp {vcpus} -m {mib} -object \
             memory-backend-ram,id=ram,size={mib}M,policy={mode},host-nodes={nodes} -machine memory-backend=ram"
        ));
        Self { virsh, virt_install, qemu }
    }
}
