//! Several cycles on a made host, with what they change carried out on it.

use super::*;
use crate::config::dispatch::DispatchConfig;
use crate::observe::{Observer, thread_key};
use instep_core::idset::NodeSet;
use instep_core::units::{Bytes, CpuId, Milli, Nanos};
use instep_host::Root;
use instep_host::apply::journal::Entry;
use instep_host::apply::{Journal, ThreadKind};
use instep_host::discover::ScanOptions;
use instep_madehost::{HostSpec, MadeHost, VcpuSpec, VmSpec, Vmm};

/// Whom the kernel scheduler keeps at home.
const NOBODY: Option<Keeps<'_>> = None;
const ALL: Option<Keeps<'_>> = Some(&|_| true);

/// A made host under the loop.
struct Run {
    dir: tempfile::TempDir,
    made: MadeHost,
    observer: Observer,
    journal: Journal,
    soft: SoftHomes,
    config: Config,
    count: u64,
}

/// What one cycle did.
struct Cycle {
    decision: Decision,
    told: Vec<(String, NodeId)>,
}

impl Run {
    fn of(vms: Vec<VmSpec>) -> Self {
        let dir = instep_madehost::scratch_dir().unwrap();
        let mut made = MadeHost::new(HostSpec::new(2, 4));
        made.noise = false;
        vms.into_iter().for_each(|vm| _ = made.push(vm));
        made.write(dir.path()).unwrap();
        let mut observer = Observer::new(Root::at(dir.path()), ScanOptions::once()).unwrap();
        observer.begin().unwrap();
        let (soft, config) = (SoftHomes::default(), Config::default());
        Self { dir, made, observer, journal: Journal::new().unwrap(), soft, config, count: 0 }
    }

    /// A second passes; one cycle, carried out.
    fn cycle(&mut self, keeps: Option<Keeps<'_>>) -> Cycle {
        self.count += 1;
        self.made.uptime = Nanos(self.made.uptime.0 + Nanos::SECOND.0);
        self.made.write(self.dir.path()).unwrap();
        let seen = self.observer.observe(Some(&self.journal), None).unwrap();
        let Decided { decision, new_homes, soft } =
            self.soft.decide(&seen, (&self.config, self.count), keeps);
        self.soft = soft;
        for action in &decision.actions {
            self.carry_out(&seen, action);
        }
        let name = |home: NewHome| (seen.snapshot.vm(home.vm.id).unwrap().name.clone(), home.node);
        let told = new_homes.into_iter().map(name).collect();
        self.observer.remember_decision(seen, &decision);
        Cycle { decision, told }
    }

    fn carry_out(&mut self, seen: &Observation, action: &Action) {
        let vm = seen.snapshot.vm(action.vm()).unwrap();
        let made = self.made.vms.iter_mut().find(|made| made.pid == vm.id.0).unwrap();
        let (kind, thread, found, cpus) = match action {
            Action::SetVcpuAffinity { vcpu, tid, cpus, .. } => {
                made.vcpus[*vcpu as usize].affinity = Some(cpus.clone());
                let one = &vm.vcpus[*vcpu as usize];
                (ThreadKind::Vcpu(*vcpu), thread_key(vm, *tid, one.start_ticks), &one.allowed, cpus)
            }
            Action::SetEmulatorAffinity { tid, cpus, .. } => {
                made.emulator_affinity = Some(cpus.clone());
                let one = vm.emulators.iter().find(|one| one.tid == *tid).unwrap();
                (ThreadKind::Emulator, thread_key(vm, *tid, one.start_ticks), &one.allowed, cpus)
            }
            Action::SetSoftAffinity { .. } | Action::MoveMemory { .. } => return,
        };
        let tid = thread.tid;
        let empty = CpuSet::new;
        let entry = self.journal.entries.entry((vm.id.0, tid)).or_insert_with(|| Entry {
            vm: vm.name.clone(),
            kind,
            thread,
            original: found.clone(),
            unpinned: true,
            since: 0,
            set: empty(),
            asked: empty(),
            pending: empty(),
        });
        entry.set = cpus.clone();
    }

    /// What each vCPU of a VM may use now; `*` for every CPU.
    fn has(&self, vm: usize) -> String {
        let all: CpuSet = (0..8).map(CpuId).collect();
        let has = |vcpu: &VcpuSpec| match vcpu.affinity.as_ref().filter(|cpus| **cpus != all) {
            Some(cpus) => cpus.to_string(),
            None => "*".to_owned(),
        };
        self.made.vms[vm].vcpus.iter().map(has).collect::<Vec<_>>().join(" ")
    }
}

impl Cycle {
    /// Changes of vCPUs.
    fn bound(&self) -> usize {
        let vcpu = |action: &&Action| matches!(action, Action::SetVcpuAffinity { .. });
        self.decision.actions.iter().filter(vcpu).count()
    }

    fn homes(&self) -> Vec<NodeSet> {
        self.decision.vms.iter().map(|verdict| verdict.home.clone()).collect()
    }
}

/// Two vCPUs that are busy, all memory on this node.
fn vm(name: &str, node: u32) -> VmSpec {
    VmSpec::new(name, Vmm::QemuKvm, 2, NodeId(node), Bytes::from_mib(512)).load(Milli(600))
}

fn on(nodes: &[u32]) -> Vec<NodeSet> {
    nodes.iter().map(|node| NodeSet::one(NodeId(*node))).collect()
}

#[test]
fn soft_home_is_passed_on_once_and_binds_no_vcpu() {
    let mut run = Run::of(vec![vm("a", 1), vm("b", 0)]);
    let first = run.cycle(ALL);
    assert_eq!(first.told, [("a".to_owned(), NodeId(1)), ("b".to_owned(), NodeId(0))]);
    for cycle in [first].into_iter().chain((0..4).map(|_| run.cycle(ALL))) {
        assert_eq!((cycle.bound(), cycle.homes()), (0, on(&[1, 0])));
        let why = cycle.decision.vms[0].why.to_string();
        assert!(why.contains("node 1") && !why.contains("a core for each vCPU"), "{why}");
    }
    let later = run.cycle(ALL);
    assert!(later.told.is_empty() && later.decision.actions.is_empty(), "{:?}", later.decision);
    assert_eq!([run.has(0), run.has(1)], ["* *", "* *"]);
}

#[test]
fn policies_see_vcpus_with_what_they_gave_them_and_change_nothing() {
    let mut run = Run::of(vec![vm("a", 1), vm("b", 0)]);
    run.cycle(ALL);
    // They go on as before: what rests loses its cores.
    run.made.uptime = Nanos(run.made.uptime.0 + Nanos::SECOND.0);
    run.made.write(run.dir.path()).unwrap();
    let observed = run.observer.observe(Some(&run.journal), Some(Nanos::SECOND)).unwrap();
    let seen = run.soft.seen(&observed, &|_| true);
    let allowed = |snapshot: &Snapshot| {
        let vcpus = snapshot.vms.iter().flat_map(|vm| &vm.vcpus);
        vcpus.map(|vcpu| vcpu.allowed.to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(allowed(&observed.snapshot), "0-7 0-7 0-7 0-7");
    assert_eq!(allowed(&seen), "4 5 0 1", "a core each");
    let again = decide(&seen, &run.config, 2).actions;
    assert!(again.is_empty(), "{again:?}");
}

#[test]
fn emulator_threads_and_memory_are_brought_home_as_ever() {
    let kinds = |keeps| {
        let mut run = Run::of(vec![vm("a", 1).memory_on(NodeId(0), Bytes::from_mib(200))]);
        let actions = run.cycle(keeps).decision.actions;
        let other = actions.into_iter().filter(|a| !matches!(a, Action::SetVcpuAffinity { .. }));
        other.collect::<Vec<_>>()
    };
    let soft = kinds(ALL);
    assert!(soft.iter().any(|action| matches!(action, Action::MoveMemory { .. })), "{soft:?}");
    assert_eq!(soft, kinds(NOBODY));
}

#[test]
fn vms_are_bound_while_the_scheduler_is_out() {
    let mut run = Run::of(vec![vm("a", 1), vm("b", 0)]);
    run.cycle(ALL);
    let fell_out = run.cycle(NOBODY);
    assert_eq!((fell_out.bound(), fell_out.homes()), (4, on(&[1, 0])));
    assert_eq!(run.has(0), "4 5", "a core each, as while nothing keeps it at home");
    assert_eq!(run.cycle(NOBODY).bound(), 0);

    let back = run.cycle(ALL);
    assert_eq!((back.bound(), back.homes(), back.told.len()), (4, on(&[1, 0]), 2));
    assert!(back.decision.actions.iter().any(|action| {
        action.why().to_string() == "the kernel scheduler keeps it on node 1 while that has room"
    }));
    assert_eq!([run.has(0), run.has(1)], ["* *", "* *"]);
    let later = run.cycle(ALL);
    assert_eq!((later.bound(), later.told.len(), later.homes()), (0, 0, on(&[1, 0])));
}

#[test]
fn without_the_mechanism_nothing_is_soft() {
    let without = DispatchConfig { without: vec!["home".to_owned()], ..DispatchConfig::default() };
    assert!(!without.keeps_homes() && DispatchConfig::default().keeps_homes());
}

#[test]
fn what_an_operator_bound_is_bound_inside_that_as_ever() {
    let within: CpuSet = (2..8).map(CpuId).collect();
    let mut limited = vm("limited", 1).pinned(&within);
    limited.emulator_affinity = Some(within.clone());
    let mut fenced = vm("fenced", 1);
    fenced.cpuset = Some(within);
    let vms = vec![limited, fenced, vm("free", 0)];
    let actions = |keeps| {
        let mut run = Run::of(vms.clone());
        let cycle = run.cycle(keeps);
        (cycle.told, [0, 1, 2].map(|vm| run.has(vm)))
    };
    let ((told, soft), (none, bound)) = (actions(ALL), actions(NOBODY));
    assert_eq!((told, none), (vec![("free".to_owned(), NodeId(0))], vec![]));
    assert_eq!((&soft[..2], soft[2].as_str()), (&bound[..2], "* *"));
    assert!(bound.iter().all(|cpus| !cpus.contains('*')), "{bound:?}");
}

#[test]
fn a_vm_that_an_operator_pins_later_is_left_alone() {
    let mut run = Run::of(vec![vm("a", 1)]);
    run.cycle(ALL);
    run.made.vms[0].vcpus[0].affinity = Some(CpuSet::one(CpuId(2)));
    let cycle = run.cycle(ALL);
    assert!(!cycle.decision.vms[0].selected, "{:?}", cycle.decision.vms);
    assert_eq!((cycle.bound(), run.has(0)), (0, "2 *".into()));
}

#[test]
fn a_vm_larger_than_a_node_is_bound_to_its_nodes() {
    let mut made = HostSpec::new(3, 4);
    made.memory_per_node = Bytes::from_mib(4096);
    let big = VmSpec::new("big", Vmm::QemuKvm, 6, NodeId(0), Bytes::from_mib(1024));
    let big = big.load(Milli(900)).memory_on(NodeId(1), Bytes::from_mib(1024));
    let mut run = Run::of(vec![]);
    run.made.host = made;
    run.made.push(big);
    // So that what it used before is no load of others in the first window.
    run.made.write(run.dir.path()).unwrap();
    run.observer.begin().unwrap();
    let cycle = run.cycle(ALL);
    assert_eq!((cycle.told.len(), cycle.decision.vms[0].home.len()), (0, 2));
    assert_eq!(cycle.bound(), 6);
}

#[test]
fn a_vm_that_the_scheduler_has_no_room_for_is_bound() {
    let mut run = Run::of(vec![vm("a", 1), vm("b", 0)]);
    run.cycle(ALL);
    let a = VmId(run.made.vms[0].pid);
    let some: Keeps<'_> = &|vm| vm.id == a;
    let cycle = run.cycle(Some(some));
    assert_eq!((cycle.bound(), cycle.told.len()), (2, 0));
    assert_eq!([run.has(0), run.has(1)], ["* *", "0 1"]);
}

#[test]
fn a_vcpu_that_is_plugged_in_beside_a_bound_monitor_is_freed() {
    let mut run = Run::of(vec![vm("a", 1)]);
    run.cycle(ALL);
    run.cycle(ALL);
    let given = run.made.vms[0].emulator_affinity.clone();
    assert!(given.is_some(), "its monitor's threads are at home");
    let started = Some(Nanos(run.made.uptime.0 + Nanos::SECOND.0 / 2));
    let fresh = VcpuSpec { load: Milli(600), affinity: given, started, ..VcpuSpec::default() };
    run.made.vms[0].vcpus.push(fresh);
    let cycle = run.cycle(ALL);
    assert_eq!((cycle.bound(), run.has(0)), (1, "* * *".into()));
    assert_eq!((run.cycle(ALL).bound(), cycle.told.len()), (0, 0));
}

#[test]
fn conflicts_are_those_of_what_vcpus_really_have() {
    let mut preferring = vm("a", 1);
    preferring.policy = instep_madehost::MemPolicy::Prefer(NodeId(1));
    let mut run = Run::of(vec![preferring]);
    run.cycle(ALL);
    assert_eq!(run.cycle(ALL).decision.conflicts.len(), 1, "it may use other CPUs, too");
    run.cycle(NOBODY);
    assert!(run.cycle(NOBODY).decision.conflicts.is_empty());
}
