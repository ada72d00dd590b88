//! Makes a simulation of a scenario: checks what the words cannot say, and numbers everything.

use super::{
    Fault, Guest, Load, Machine, Scenario, TuningText, cgroups, lives, load, machine, settings,
    stages,
};
use crate::engine::{CgroupSetup, Life, Placement, Setup, VmSetup};
use crate::guest::program::{Op, Program, Workload};
use crate::host::Host;
use crate::library;
use crate::params::{Noise, ONE, Profile};
use crate::sched::{self, Scheduler, TunedValue, Tuning};
use instep_check::mask::Mask;
use instep_core::idset::CpuSet;
use instep_core::policy::PolicyName;
use instep_core::topology::Topology;
use instep_core::units::Bytes;
use instep_scx::instep::VmSettings;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use toml::Spanned;

/// The most VMs, and the most vCPUs and threads in all.
const MAX_VMS: usize = 10_000;
const MAX_TASKS: usize = 100_000;
/// Memory of a host whose scenario names none, bytes for each CPU.
const MEMORY_OF_A_CPU: u64 = 4 << 30;
/// The longest simulation, seconds.
const MAX_SECONDS: u64 = 100_000;

const NO_GUEST: &str = "there is no guest: add a [[guest]] with name, vcpus, memory and load, such as \
                        `load = \"spin\"`";

/// A checked scenario, ready to be simulated any number of times.
#[derive(Clone, Debug)]
pub struct SimulationPlan {
    /// The host's topology.
    pub topology: Topology,
    /// The file it is from, if it is from one that was [loaded](Scenario::load).
    pub topology_file: Option<PathBuf>,
    /// The scheduler's name.
    pub scheduler: String,
    /// Its numbers that differ from the published ones.
    pub tuning: Tuning,
    /// Names of the scenario's numbers that are of another scheduler than was asked for, so not used.
    pub untuned: Vec<String>,
    /// Everything else.
    pub setup: Setup,
}

/// Reads a file that a scenario names.
type Read<'a> = &'a dyn Fn(&str) -> Result<String, String>;

impl SimulationPlan {
    /// The plan of a scenario; `read` gives the text of files that it names.
    ///
    /// # Errors
    /// What is impossible, and where.
    pub fn new(scenario: &Scenario, read: Read<'_>) -> Result<Self, Fault> {
        let name = scenario.scheduler.get_ref();
        let tuning = tuning(scenario)?;
        let scheduler = sched::make(name, &tuning).map_err(|what| {
            let meant = |name: &str| what.starts_with(&format!("tuning: {name} = "));
            let number = scenario.tuning.iter().find(|(name, _)| meant(name));
            Fault::at(number.map_or(scenario.scheduler.span(), |number| number.1.span()), what)
        })?;
        let span = scenario.host.span();
        let wrong = |what: String| Fault::at(span.clone(), format!("host: {what}"));
        let machine = scenario.host.get_ref().machine.as_deref().unwrap_or("generic");
        let numbers = &scenario.host.get_ref().numbers;
        let mut params = library::machine_with(machine, numbers).map_err(wrong)?;
        let topology = topology(scenario.host.get_ref(), machine, read).map_err(wrong)?;
        params.noise.on = scenario.host.get_ref().noise.unwrap_or(params.noise.on);
        let host = Host::new(&topology);
        let mut profiles = Profile::known();
        let (warmup, duration) = times(scenario)?;
        let (mut vms, cgroups) = guests(scenario, warmup + duration, &host, &mut profiles)?;
        let shown = vms.iter().filter(|vm| !vm.service);
        let vcpus: Vec<usize> = shown.map(|vm| vm.affinity.len()).collect();
        scheduler.fits(&host, &vcpus).map_err(|what| Fault::at(scenario.scheduler.span(), what))?;
        settings::check_caps(scenario, &*scheduler)?;
        if !scheduler.keeps_cgroups() && !cgroups::are_flat(&cgroups, &vms) {
            let what = format!(
                "scheduler {name} has no cgroups within others or of several VMs, no quota and no \
                 idle; use instep"
            );
            return Err(Fault::at(scenario.scheduler.span(), what));
        }
        if params.noise.on && params.noise.wait > 0 {
            let root = u32::from(!cgroups.is_empty());
            vms.extend(
                noise(&params.noise, &host, vcpus.len()).map(|vm| VmSetup { cgroup: root, ..vm }),
            );
        }
        let placement = placement(scenario, scheduler.name(), &topology)?;
        let mut setup = Setup {
            placement,
            host,
            params,
            profiles,
            vms,
            cgroups,
            seed: scenario.seed,
            warmup,
            duration,
        };
        if scheduler.bare_metal() {
            setup.vms.iter_mut().for_each(threads_for_vcpus);
        }
        Ok(Self {
            topology,
            topology_file: None,
            scheduler: name.clone(),
            tuning,
            untuned: Vec::new(),
            setup,
        })
    }

    /// A new scheduler of the plan's kind.
    pub fn scheduler(&self) -> Box<dyn Scheduler> {
        sched::make(&self.scheduler, &self.tuning).expect("the plan was made with it")
    }
}

/// The times of warming up and of measuring, nanoseconds.
fn times(scenario: &Scenario) -> Result<(u64, u64), Fault> {
    let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let duration = *scenario.duration.get_ref();
    let seconds = duration.as_secs().saturating_add(scenario.warmup.as_secs());
    if duration.is_zero() || seconds > MAX_SECONDS {
        let what = format!("duration: more than 0s and, with warmup, up to {MAX_SECONDS}s");
        return Err(Fault::at(scenario.duration.span(), what));
    }
    Ok((ns(scenario.warmup), ns(duration)))
}

/// The policy of this name.
pub(super) fn policy(name: &str) -> Result<PolicyName, String> {
    name.parse().map_err(|unknown: instep_core::policy::UnknownPolicy| {
        format!("placement: {}", unknown.to_string().replace("policy", "placement"))
    })
}

/// What places VMs, unless that is left to the scheduler.
fn placement(
    scenario: &Scenario,
    scheduler: &str,
    topology: &Topology,
) -> Result<Option<Placement>, Fault> {
    let period = match &scenario.placement_period {
        None => 60_000_000_000,
        Some(text) => {
            let wrong = |what: String| {
                Fault::at(text.span(), format!("placement_period = {}: {what}", text.get_ref()))
            };
            let time = load::duration(text.get_ref()).map_err(wrong)?;
            let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            if ns < 1_000_000 {
                return Err(wrong("at least 1ms".to_owned()));
            }
            ns
        }
    };
    let Some(name) = &scenario.placement else { return Ok(None) };
    let wrong = |what: String| Fault::at(name.span(), what);
    let policy = policy(name.get_ref()).map_err(wrong)?;
    if policy == PolicyName::None {
        return Ok(None);
    }
    if scheduler == "affinity" {
        let what = "scheduler affinity is a placement: it binds each vCPU to one CPU, once";
        return Err(wrong(format!("placement {policy}: {what}")));
    }
    Ok(Some(Placement { policy, period, topology: Arc::new(topology.clone()) }))
}

/// Without a hypervisor every thread is scheduled by the host; it may use what any vCPU may.
fn threads_for_vcpus(vm: &mut VmSetup) {
    let all = vm.affinity.clone();
    if all.is_empty() {
        // Xen has no threads of its own bound to CPUs: nothing to place.
        return;
    }
    let threads = vm.workload.threads.len().max(1);
    vm.affinity = (0..threads).map(|thread| all[thread % all.len()].clone()).collect();
    vm.workload.float = false;
}

fn tuning(scenario: &Scenario) -> Result<Tuning, Fault> {
    let entry = |(name, value): (&String, &Spanned<TuningText>)| {
        let tuned = match value.get_ref() {
            TuningText::Switch(on) => TunedValue::Switch(*on),
            TuningText::Time(text) => {
                let wrong =
                    |what| Fault::at(value.span(), format!("tuning: {name} = {text}: {what}"));
                let time = load::duration(text).map_err(wrong)?;
                TunedValue::Time(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
            }
        };
        Ok((name.clone(), tuned))
    };
    scenario.tuning.iter().map(entry).collect()
}

fn topology(host: &Machine, machine: &str, read: Read<'_>) -> Result<Topology, String> {
    let shape = [host.nodes, host.sockets, host.cores, host.threads, host.caches, host.distance];
    let none = shape.iter().all(Option::is_none) && host.distances.is_none();
    if let Some(file) = &host.topology {
        if !none || host.memory.is_some() {
            return Err("topology comes from a file or from a shape, not from both".to_owned());
        }
        return machine::parse_topology(&read(file)?).map_err(|what| format!("{file}: {what}"));
    }
    // Nothing said of a real machine: its own shape.
    let mut own;
    let mut host = host;
    if none {
        let shape = library::shape_of(machine)?;
        own = host.clone();
        (own.nodes, own.sockets, own.caches) = (shape.nodes, shape.sockets, shape.caches);
        (own.cores, own.threads, own.distance) = (shape.cores, shape.threads, shape.distance);
        if own.memory.is_none() {
            own.memory = shape.memory.as_deref().map(super::size).transpose()?;
        }
        host = &own;
    }
    let nodes = host.nodes.unwrap_or(1);
    let sockets = host.sockets.unwrap_or(nodes);
    let mut shape = machine::Shape {
        nodes,
        sockets,
        cores: host.cores.ok_or(
            "cores is missing: the cores of each socket, or a machine of the library that has a shape",
        )?,
        threads: host.threads.unwrap_or(1),
        memory: host.memory.unwrap_or_default(),
        llcs: host.caches.unwrap_or(nodes.max(sockets)),
    };
    shape.check()?;
    if host.memory.is_none() {
        shape.memory = MEMORY_OF_A_CPU * shape.cpus().map_or(0, u64::from);
    }
    Ok(shape.topology(&machine::distances(host, nodes)?))
}

/// The guests, then the services, and their cgroups; `end` is the simulation's, nanoseconds.
fn guests(
    scenario: &Scenario,
    end: u64,
    host: &Host,
    profiles: &mut Vec<Profile>,
) -> Result<(Vec<VmSetup>, Vec<CgroupSetup>), Fault> {
    let (mut vms, mut names, mut memory) = (Vec::<VmSetup>::new(), BTreeSet::new(), 0u64);
    let mut paths = Vec::new();
    let (mut tasks, all) = (0usize, host.memory.iter().sum::<u64>());
    let free = left_by_bound(scenario, host)?;
    let services = scenario.service.iter();
    let services = services.map(|one| Spanned::new(one.span(), one.get_ref().as_guest()));
    let entries: Vec<Spanned<Guest>> = scenario.guest.iter().cloned().chain(services).collect();
    for (at, guest) in entries.iter().enumerate() {
        let this = guest.get_ref();
        let service = at >= scenario.guest.len();
        let kind = if service { "service" } else { "guest" };
        let vm = one_guest(this, host, &free, profiles).map_err(|fault| Fault {
            at: fault.at.filter(|at| *at > 0).or(Some(guest.span().start)),
            what: format!("{kind} {}: {}", shown(&this.name), fault.what),
        })?;
        let wrong = |what: String| Fault::at(guest.span(), format!("{kind} {}: {what}", this.name));
        let count = this.count.unwrap_or(1);
        let each = vm.affinity.len().max(vm.workload.threads.len());
        if count == 0 || count as usize > MAX_VMS {
            return Err(wrong(format!("{count} of it; possible are 1 to {MAX_VMS}")));
        }
        memory = memory.saturating_add(this.memory.get_ref().saturating_mul(u64::from(count)));
        if memory > all {
            let (memory, all) = (Bytes(memory), Bytes(all));
            let what = format!("the guests up to here have {memory}, the host {all}");
            return Err(Fault::at(
                if this.memory.span().start > 0 { this.memory.span() } else { guest.span() },
                format!("{kind} {}: {what}", this.name),
            ));
        }
        let lives = lives::of(this, scenario.seed, end).map_err(|fault| Fault {
            what: format!("{kind} {}: {}", this.name, fault.what),
            ..fault
        })?;
        tasks = tasks.saturating_add(each.saturating_mul(lives.len()));
        if tasks > MAX_TASKS || vms.len() + lives.len() > MAX_VMS {
            return Err(wrong(format!("more than {MAX_VMS} VMs or {MAX_TASKS} vCPUs or threads")));
        }
        for (life, number) in lives.into_iter().zip(1u32..) {
            let numbered = |text: &str| match this.count {
                None => text.to_owned(),
                Some(_) => format!("{text}-{number}"),
            };
            let name = numbered(&this.name);
            if !names.insert(name.clone()) {
                return Err(wrong(format!("the name {name} is used twice")));
            }
            let path = this.cgroup.as_ref();
            paths.push(path.map(|path| Spanned::new(path.span(), numbered(path.get_ref()))));
            vms.push(VmSetup { name, service, life, ..vm.clone() });
        }
    }
    if vms.is_empty() {
        return Err(Fault { at: None, what: NO_GUEST.to_owned() });
    }
    let cgroups = cgroups::make(scenario, &mut vms, &paths)?;
    Ok((vms, cgroups))
}

/// A name that may be none, as messages have it.
fn shown(name: &str) -> String {
    if is_name(name) { name.to_owned() } else { format!("{name:?}") }
}

fn is_name(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '-';
    (1..=40).contains(&name.len()) && !name.starts_with('-') && name.chars().all(letter)
}

fn one_guest(
    guest: &Guest,
    host: &Host,
    free: &[u64],
    profiles: &mut Vec<Profile>,
) -> Result<VmSetup, Fault> {
    let name = &guest.name;
    if !is_name(name) {
        let what = "a name has 1 to 40 letters, digits and dashes".to_owned();
        return Err(Fault { at: None, what });
    }
    let vcpus = *guest.vcpus.get_ref();
    if vcpus == 0 || vcpus > 4096 {
        let what = format!("{vcpus} vCPUs; possible are 1 to 4096");
        return Err(Fault::at(guest.vcpus.span(), what));
    }
    let weight = *guest.weight.get_ref();
    if weight == 0 || weight > 10_000 {
        return Err(Fault::at(guest.weight.span(), format!("weight {weight}: it is 1 to 10000")));
    }
    if *guest.memory.get_ref() == 0 {
        return Err(Fault::at(guest.memory.span(), "it has no memory"));
    }
    let workload = workload(guest, vcpus, profiles)?;
    Ok(VmSetup {
        name: name.clone(),
        weight,
        cap: settings::cap(guest, vcpus)?,
        own: settings::of(guest, host)?,
        affinity: affinity(guest, vcpus, host)?,
        memory: memory(guest, host, free),
        bytes: *guest.memory.get_ref(),
        parts: parts(guest, vcpus)?,
        workload,
        hidden: false,
        service: false,
        cgroup: 0,
        life: Life::WHOLE,
    })
}

/// The host's own threads: those bound to a CPU each, and those that roam.
fn noise(noise: &Noise, host: &Host, monitors: usize) -> [VmSetup; 2] {
    let threads = |name: &str, work: u64, affinity: Vec<(Mask, Mask)>| VmSetup {
        name: name.to_owned(),
        weight: 100,
        cap: 0,
        own: VmSettings::default(),
        parts: Vec::new(),
        memory: vec![0; host.memory.len()],
        bytes: 0,
        workload: Workload {
            programs: vec![Program {
                ops: vec![
                    Op::Sleep { ns: noise.wait, spread: 90 },
                    Op::Work { ns: work, spread: 90 },
                    Op::Jump { to: 0 },
                ],
                profile: Profile::PLAIN,
            }],
            threads: (0..affinity.len()).map(|number| (0, number as u32)).collect(),
            unit: "nothing",
            ..Workload::default()
        },
        affinity,
        hidden: true,
        service: false,
        cgroup: 0,
        life: Life::WHOLE,
    };
    let cpus = host.cpus();
    let all = || Mask::all(cpus);
    let bound_cpus = if noise.bound > 0 { cpus } else { 0 };
    let bound = (0..bound_cpus).map(|cpu| (Mask::of(cpus, [cpu]), all())).collect();
    let roaming = (0..monitors).map(|_| (all(), all())).collect();
    [threads("bound", noise.bound, bound), threads("roaming", noise.roaming, roaming)]
}

fn parts(guest: &Guest, vcpus: u32) -> Result<Vec<u32>, Fault> {
    let Some(parts) = &guest.parts else { return Ok(Vec::new()) };
    let sound = |part: &u32| (1..=1_000_000).contains(part);
    if parts.get_ref().len() != vcpus as usize || !parts.get_ref().iter().all(sound) {
        let what = format!("parts: {vcpus} numbers from 1 to 1000000 are needed");
        return Err(Fault::at(parts.span(), what));
    }
    Ok(parts.get_ref().clone())
}

/// The number of the guest's profile, and what a program of the library runs where nothing else is
/// said.
fn profile(
    guest: &Guest,
    profiles: &mut Vec<Profile>,
) -> Result<(Option<usize>, Option<String>), Fault> {
    let Some(given) = &guest.profile else { return Ok((None, None)) };
    let wrong = |what: String| Fault::at(given.span(), format!("profile {what}"));
    if let Some(name) = given.get_ref().as_str() {
        let (number, found) = library::application(name).ok_or_else(|| wrong(known(name)))?;
        return Ok((Some(number), found.load.clone()));
    }
    let own: super::OwnProfile =
        given.get_ref().clone().try_into().map_err(|error: toml::de::Error| {
            wrong(format!("is a name or a table: {}", error.message()))
        })?;
    let bounds = [own.fetch, own.fpu, own.l2, own.llc, own.memory];
    let sum = bounds.iter().fold(0u32, |sum, bound| sum.saturating_add(*bound));
    let mlp_tenths = own.mlp_tenths.unwrap_or(10);
    let most = own.mib_s.max(own.misses_ms);
    if sum > 1000 || most > 1_000_000 || !(10..=1000).contains(&mlp_tenths) {
        let what = "its parts are thousandths, 1000 in all at most; mib_s and misses_ms up to 1000000; \
                    mlp_tenths 10 to 1000";
        return Err(wrong(format!("of its own: {what}")));
    }
    profiles.push(Profile {
        set_kib: own.set.unwrap_or(0) / 1024,
        mib_s: own.mib_s,
        misses_ms: own.misses_ms,
        mlp_tenths,
        ..Profile::bound(&guest.name, bounds)
    });
    Ok((Some(profiles.len() - 1), None))
}

/// What names a library has, for one that it has not.
fn known(name: &str) -> String {
    let names: Vec<String> =
        library::applications().into_iter().map(|one| one.profile.name).collect();
    format!("{name}: known are {}", names.join(", "))
}

fn workload(guest: &Guest, vcpus: u32, profiles: &mut Vec<Profile>) -> Result<Workload, Fault> {
    let mut workload = Workload { unit: "nothing", ..Workload::default() };
    let (profile, own) = profile(guest, profiles)?;
    let (loads, span) = match (&guest.load, own) {
        (Some(given), _) => match given.get_ref() {
            Load::One(load) => (vec![load.clone()], given.span()),
            Load::Several(loads) => (loads.clone(), given.span()),
        },
        (None, Some(own)) if guest.stage.is_empty() => (vec![own], 0..0),
        (None, _) => (Vec::new(), 0..0),
    };
    if loads.is_empty() && guest.load.is_some() {
        return Err(Fault::at(span, "load: an empty list; `idle` is what does nothing"));
    }
    for load in &loads {
        load::add(&mut workload, load, vcpus, profile)
            .map_err(|what| Fault::at(span.clone(), format!("load: {what}")))?;
        workload.measure_first();
    }
    stages::add(&mut workload, &guest.stage, profile.unwrap_or(Profile::PLAIN))?;
    workload.measure_first();
    Ok(workload)
}

/// Bytes of each node that guests bound to it (`start.memory_node`) leave.
fn left_by_bound(scenario: &Scenario, host: &Host) -> Result<Vec<u64>, Fault> {
    let mut free = host.memory.clone();
    for guest in &scenario.guest {
        let this = guest.get_ref();
        let Some(node) = &this.start.memory_node else { continue };
        let wrong = |what: String| {
            let at = if node.span().start > 0 { node.span() } else { guest.span() };
            Fault::at(at, format!("guest {}: start.memory_node: {what}", this.name))
        };
        let home = host.node_index(*node.get_ref());
        let home = home.ok_or_else(|| wrong(format!("the host has no node {}", node.get_ref())))?;
        let (each, count) = (*this.memory.get_ref(), this.count.unwrap_or(1));
        let bytes = each.saturating_mul(u64::from(count));
        if bytes > free[home] {
            let there = Bytes(host.memory[home]);
            let before = match host.memory[home] - free[home] {
                0 => String::new(),
                taken => format!(", guests before it {} of them", Bytes(taken)),
            };
            let times = if count == 1 { String::new() } else { format!("{count} times ") };
            let node = node.get_ref();
            return Err(wrong(format!(
                "node {node} has {there}{before}, it {times}{}",
                Bytes(each)
            )));
        }
        free[home] -= bytes;
    }
    Ok(free)
}

/// Part of the memory on each node in 1024ths: all on one, or by what those leave free.
fn memory(guest: &Guest, host: &Host, free: &[u64]) -> Vec<u32> {
    let home = guest.start.memory_node.as_ref().and_then(|node| host.node_index(*node.get_ref()));
    if let Some(home) = home {
        return (0..free.len()).map(|at| if at == home { ONE as u32 } else { 0 }).collect();
    }
    let all: u128 = free.iter().map(|bytes| u128::from(*bytes)).sum();
    let part = |bytes: &u64| (u128::from(*bytes) * u128::from(ONE) / all.max(1)) as u32;
    free.iter().map(part).collect()
}

/// What each vCPU may and should use.
fn affinity(guest: &Guest, vcpus: u32, host: &Host) -> Result<Vec<(Mask, Mask)>, Fault> {
    let cpus = host.cpus();
    let mut preferred = Mask::all(cpus);
    if let Some(nodes) = &guest.prefer_nodes {
        preferred = Mask::none(cpus);
        for node in nodes.get_ref() {
            let what = || format!("prefer_nodes: the host has no node {node}");
            let at = host.node_index(*node).ok_or_else(|| Fault::at(nodes.span(), what()))?;
            host.nodes[at].iter().for_each(|cpu| preferred.set(cpu));
        }
    }
    let mut allowed = vec![Mask::all(cpus); vcpus as usize];
    if let Some(text) = &guest.allowed {
        let mask = list(text, host)?;
        allowed.fill(mask);
    }
    if let Some(lists) = &guest.start.cpus {
        let wrong = |what: String| Err(Fault::at(lists.span(), format!("start.cpus: {what}")));
        if !guest.start.pinned {
            return wrong("simulated only with pinned = true".to_owned());
        }
        if lists.get_ref().len() != vcpus as usize {
            return wrong(format!("{vcpus} lists of CPUs are needed"));
        }
        for (mask, list) in allowed.iter_mut().zip(lists.get_ref()) {
            let mut own = Mask::none(cpus);
            for cpu in list {
                match host.index(*cpu) {
                    Some(index) => own.set(index),
                    None => return wrong(format!("the host has no CPU {cpu}")),
                }
            }
            mask.keep(&own);
            if mask.is_empty() {
                return wrong("a vCPU may use no CPU".to_owned());
            }
        }
    } else if guest.start.pinned {
        return Err(Fault { at: None, what: "start.pinned needs start.cpus".to_owned() });
    }
    Ok(allowed.into_iter().map(|allowed| (allowed, preferred.clone())).collect())
}

/// A list such as `0-3,8` of CPUs that the host has.
fn list(text: &Spanned<String>, host: &Host) -> Result<Mask, Fault> {
    let wrong = |what: String| Fault::at(text.span(), format!("allowed: {what}"));
    let set = CpuSet::parse_list(text.get_ref())
        .map_err(|_| wrong(format!("`{}` is no list such as 0-3,8", text.get_ref())))?;
    let mut mask = Mask::none(host.cpus());
    for cpu in set.iter() {
        let index = host.index(cpu.0).ok_or_else(|| wrong(format!("the host has no CPU {cpu}")))?;
        mask.set(index);
    }
    if mask.is_empty() { Err(wrong("it names no CPU".to_owned())) } else { Ok(mask) }
}
