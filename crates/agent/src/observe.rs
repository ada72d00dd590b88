//! From scans to snapshots: remembers the scan before and the topology, and adds what the host
//! itself does not know - original affinities and where each VM was placed.
//!
//! It decides nothing and touches nothing.

use crate::noise::Noise;
pub use crate::vm_key::VmKey;
use crate::vm_settings::VmSettings;
use instep_core::decision::{Decision, Verdict};
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::snapshot::{OpaqueVm, Snapshot, Vm, wanted};
use instep_core::topology::Topology;
use instep_core::units::{Nanos, Tid, VmId};
use instep_host::apply::{AffinityNow, Journal, ThreadKey};
use instep_host::discover::{
    Scan, ScanOptions, Scanner, Trust, VmFacts, is_called, load_warnings, shares, snapshot,
};
use instep_host::{Error, Root};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// The scanner of a host, shared by all that look at it: each VM is identified once, and its QMP socket, which serves one client,
/// is asked once.
pub(crate) type SharedScanner = Rc<RefCell<Scanner>>;

/// Looks at one host again and again.
#[derive(Debug)]
pub struct Observer {
    root: Root,
    scanner: SharedScanner,
    topology: Arc<Topology>,
    /// What the kernel said is online when `topology` was read.
    online: [Option<String>; 2],
    before: Option<Scan>,
    /// Warnings of a look that nobody was shown; some are given once only.
    untold: Vec<String>,
    /// Where each VM was placed in the cycle before.
    homes: BTreeMap<VmKey, NodeSet>,
    noise: Noise,
}

/// One look: the snapshot, and the scan it was made from.
#[derive(Debug)]
pub struct Observation {
    /// What policies see.
    pub snapshot: Snapshot,
    /// What was found, with everything policies need not know.
    pub scan: Scan,
}

impl Observation {
    /// What tells this VM of the snapshot from others for as long as it runs.
    pub(crate) fn key_of(&self, vm: VmId) -> Option<VmKey> {
        self.snapshot.vm(vm).map(VmKey::from)
    }
}

impl Observer {
    /// An observer of the host under `root`.
    ///
    /// # Errors
    /// When there is no topology to read there.
    pub fn new(root: Root, options: ScanOptions) -> Result<Self, Error> {
        let topology = Arc::new(instep_host::topology::read(&root)?);
        let online = online(&root);
        Ok(Self {
            scanner: Rc::new(RefCell::new(Scanner::new(root.clone(), options))),
            root,
            topology,
            online,
            before: None,
            untold: Vec::new(),
            homes: BTreeMap::new(),
            noise: Noise::default(),
        })
    }

    /// The host's topology as last read.
    #[must_use]
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// What later looks may do.
    pub fn set_options(&mut self, options: ScanOptions) {
        self.scanner.borrow_mut().set_options(options);
    }

    /// Whether later looks read the definitions of VMs.
    pub fn read_definitions(&mut self, whether: bool) {
        self.scanner.borrow_mut().read_definitions(whether);
    }

    /// What looks at the host, for others that do.
    pub(crate) fn scanner(&self) -> SharedScanner {
        Rc::clone(&self.scanner)
    }

    /// Looks without deciding, so that the next [`observe`](Self::observe) has a window to measure.
    ///
    /// # Errors
    /// When the host cannot be read.
    pub fn begin(&mut self) -> Result<(), Error> {
        let mut scan = self.scanner.borrow_mut().scan()?;
        self.untold = std::mem::take(&mut scan.warnings);
        self.before = Some(scan);
        Ok(())
    }

    /// Looks: loads are those since the look before, or since each VM started on the first.
    /// `journal` knows original affinities; `elapsed` overrides the length of the window.
    ///
    /// # Errors
    /// When the host cannot be read.
    pub fn observe(
        &mut self,
        journal: Option<&Journal>,
        elapsed: Option<Nanos>,
    ) -> Result<Observation, Error> {
        self.refresh_topology()?;
        let mut scan = self.scanner.borrow_mut().scan()?;
        let untold = std::mem::take(&mut self.untold);
        let new = untold.into_iter().filter(|warning| !scan.warnings.contains(warning));
        let new: Vec<String> = new.collect();
        scan.warnings.splice(0..0, new);
        scan.warnings.extend(load_warnings(self.before.as_ref(), &scan, elapsed));
        let mut snapshot = snapshot(&self.topology, self.before.as_ref(), &scan, elapsed);
        // Thread ids and start times of an earlier boot could be anyone's now.
        if let Some(journal) = journal.filter(|journal| !journal.is_void().unwrap_or(true)) {
            remember(&mut snapshot, journal);
        }
        let weights: BTreeMap<u32, u32> =
            scan.vms.iter().map(|vm| vm.pid).zip(shares(&scan.vms)).collect();
        for vm in &mut snapshot.vms {
            vm.weight = weights.get(&vm.id.0).copied().unwrap_or(vm.weight);
            let key = VmKey::from(&*vm);
            if let Some(home) = self.homes.get(&key) {
                vm.placed.clone_from(home);
            }
            vm.noise = self.noise.of(key);
        }
        Ok(Observation { snapshot, scan })
    }

    /// Remembers a look and what was decided on it: the next look's window begins there, and
    /// policies are told where they placed each VM.
    pub(crate) fn remember_decision(&mut self, observation: Observation, decision: &Decision) {
        let placed = decision.vms.iter().filter(|verdict| verdict.selected);
        let home =
            |verdict: &Verdict| Some((observation.key_of(verdict.vm)?, verdict.home.clone()));
        self.homes = placed.filter_map(home).collect();
        self.noise.remember(&observation.snapshot);
        self.before = Some(observation.scan);
    }

    /// Continues from a scan made elsewhere, such as of an earlier copy of the host.
    pub fn continue_from(&mut self, before: Scan) {
        self.before = Some(before);
    }

    /// Reads the topology again only when CPUs or nodes went on or off line.
    fn refresh_topology(&mut self) -> Result<(), Error> {
        let online = online(&self.root);
        if online != self.online {
            self.topology = Arc::new(instep_host::topology::read(&self.root)?);
            self.online = online;
        }
        Ok(())
    }
}

fn online(root: &Root) -> [Option<String>; 2] {
    ["cpu", "node"].map(|kind| root.read(format!("sys/devices/system/{kind}/online")).ok())
}

/// Keeps only the VMs named in `names` placeable (all that share a name); the others still count
/// as load. Returns the names that no VM has. An empty `names` keeps all.
pub fn keep_only(snapshot: &mut Snapshot, names: &[String]) -> Vec<String> {
    if names.is_empty() {
        return Vec::new();
    }
    let unknown =
        |name: &&String| !snapshot.vms.iter().any(|vm| is_called((vm.id.0, &vm.name), name));
    let missing = names.iter().filter(unknown).cloned().collect();
    let named = |vm: &Vm| names.iter().any(|name| is_called((vm.id.0, &vm.name), name));
    let (kept, others) = std::mem::take(&mut snapshot.vms).into_iter().partition(named);
    snapshot.vms = kept;
    for vm in others {
        let vcpus = u32::try_from(vm.vcpus.len()).unwrap_or(u32::MAX);
        leave_alone(snapshot, vm, vcpus, "not among the VMs named with --vm".to_owned());
    }
    snapshot.opaque.sort_by_key(|vm| vm.id);
    missing
}

/// Why a VM that was named is not among those to be placed, in one sentence.
#[must_use]
pub fn absent(snapshot: &Snapshot, name: &str) -> String {
    match snapshot.opaque.iter().find(|vm| is_called((vm.id.0, &vm.name), name)) {
        Some(vm) => format!("the VM `{name}` is left alone: {}", vm.why),
        None => format!("no VM is called `{name}`; see `instep status`"),
    }
}

/// Leaves alone the VMs of users who may start what they like but decide nothing for others: their load
/// counts, their vCPUs do not.
pub fn keep_trusted(snapshot: &mut Snapshot, scan: &Scan, trust: &Trust) {
    for facts in &scan.opaque {
        let Some(why) = trust.refusal(&facts.owner) else { continue };
        for vm in snapshot.opaque.iter_mut().filter(|vm| vm.id.0 == facts.pid) {
            (vm.vcpus, vm.why) = (0, why.clone());
        }
    }
    for vm in std::mem::take(&mut snapshot.vms) {
        match facts_of(scan, &vm).and_then(|facts| trust.refusal(&facts.owner)) {
            Some(why) => leave_alone(snapshot, vm, 0, why),
            None => snapshot.vms.push(vm),
        }
    }
    snapshot.opaque.sort_by_key(|vm| vm.id);
}

/// Leaves alone the VMs whose definitions say so. Their load and their vCPUs count.
pub fn leave_ignored(snapshot: &mut Snapshot, scan: &Scan) {
    for vm in std::mem::take(&mut snapshot.vms) {
        let settings = facts_of(scan, &vm).map(|facts| VmSettings::of(facts, None));
        match settings.and_then(|settings| settings.why_ignored()) {
            Some(why) => {
                let vcpus = u32::try_from(vm.vcpus.len()).unwrap_or(u32::MAX);
                leave_alone(snapshot, vm, vcpus, why);
            }
            None => snapshot.vms.push(vm),
        }
    }
    snapshot.opaque.sort_by_key(|vm| vm.id);
}

/// Makes a VM one that is not placed, and counts for so many vCPUs; the caller sorts `opaque`.
fn leave_alone(snapshot: &mut Snapshot, vm: Vm, vcpus: u32, why: String) {
    let (id, busy, name) = (vm.id, wanted(vm.busy(), vm.steal()), vm.name);
    snapshot.opaque.push(OpaqueVm { id, name, vcpus, busy, why });
}

/// Fills in original affinities and the nodes each VM was placed on.
fn remember(snapshot: &mut Snapshot, journal: &Journal) {
    let topology = Arc::clone(&snapshot.topology);
    let online = topology.all_cpus();
    for vm in &mut snapshot.vms {
        let threads = Rc::new(threads_of(vm));
        let initial = |(thread, present): &(ThreadKey, CpuSet)| {
            let (online, cpuset, threads) = (&online, &vm.cpuset, &|| Rc::clone(&threads));
            journal.initial_of(thread, &AffinityNow { present, online, cpuset, threads })
        };
        let initials: Vec<CpuSet> = threads.iter().map(initial).collect();
        let mut initials = initials.into_iter();
        for (vcpu, initial) in vm.vcpus.iter_mut().zip(initials.by_ref()) {
            vcpu.initial = initial;
        }
        for (emulator, initial) in vm.emulators.iter_mut().zip(initials) {
            emulator.initial = initial;
        }
        note_placed(vm, &topology, &online);
    }
}

/// The nodes that Instep placed a VM on: those of the CPUs that vCPUs have from it.
pub(crate) fn note_placed(vm: &mut Vm, topology: &Topology, online: &CpuSet) {
    let given = vm.vcpus.iter().filter(|vcpu| vcpu.initial != vcpu.allowed);
    let given = given.fold(CpuSet::new(), |given, vcpu| given.or(&vcpu.allowed));
    let nodes_with_cpus = topology.nodes().iter().filter(|node| !node.cpus.is_empty()).count();
    let nodes = topology.nodes_of(&given);
    if nodes.len() < nodes_with_cpus || (!given.is_empty() && given.len() < online.len()) {
        vm.placed = nodes;
    }
}

/// The threads of a VM, vCPUs first, with the CPUs that each may use.
fn threads_of(vm: &Vm) -> Vec<(ThreadKey, CpuSet)> {
    let thread = |tid, start, allowed: &CpuSet| (thread_key(vm, tid, start), allowed.clone());
    let vcpus = vm.vcpus.iter().map(|one| thread(one.tid, one.start_ticks, &one.allowed));
    let emulators = vm.emulators.iter().map(|one| thread(one.tid, one.start_ticks, &one.allowed));
    vcpus.chain(emulators).collect()
}

/// What tells a thread of this VM, which started then, from later ones of the same number.
pub(crate) fn thread_key(vm: &Vm, tid: Tid, start_ticks: u64) -> ThreadKey {
    ThreadKey { pid: vm.id.0, pid_start: vm.start_ticks, tid, tid_start: start_ticks }
}

/// The facts that a VM of the snapshot was made from.
#[must_use]
pub fn facts_of<'a>(scan: &'a Scan, vm: &Vm) -> Option<&'a VmFacts> {
    scan.vms.binary_search_by_key(&vm.id.0, |facts| facts.pid).ok().map(|index| &scan.vms[index])
}

#[cfg(test)]
mod tests {
    use super::*;
    use instep_core::policy::{PolicySettings, decide};
    use instep_core::units::{Bytes, Milli, NodeId};
    use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm};
    use std::path::Path;

    /// Two nodes of four cores; `a` and `b` live on node 1.
    fn made() -> MadeHost {
        let mut made = MadeHost::new(HostSpec::new(2, 4));
        for name in ["a", "b"] {
            let vm = VmSpec::new(name, Vmm::QemuKvm, 2, NodeId(1), Bytes::from_mib(512));
            made.push(vm.load(Milli(600)));
        }
        made
    }

    fn observer(dir: &Path) -> Observer {
        Observer::new(Root::at(dir), ScanOptions::once()).unwrap()
    }

    #[test]
    fn vms_weigh_by_the_tree_of_cgroups() {
        let mut made = MadeHost::new(HostSpec::new(2, 4));
        // libvirt's lie in machine.slice, that of Proxmox in qemu.slice.
        for (name, vmm) in [("a", Vmm::Libvirt), ("b", Vmm::Libvirt), ("c", Vmm::Proxmox)] {
            made.push(VmSpec::new(name, vmm, 2, NodeId(1), Bytes::from_mib(512)));
        }
        let dir = instep_madehost::scratch_dir().unwrap();
        made.write(dir.path()).unwrap();
        let snapshot = observer(dir.path()).observe(None, None).unwrap().snapshot;
        let weights: Vec<u32> = snapshot.vms.iter().map(|vm| vm.weight).collect();
        assert_eq!(weights, [75, 75, 150]);
    }

    #[test]
    fn looks_may_do_more_after_the_first() {
        let dir = instep_madehost::scratch_dir().unwrap();
        made().write(dir.path()).unwrap();
        let mut blind = ScanOptions::default();
        blind.memory.enabled = false;
        let mut observer = Observer::new(Root::at(dir.path()), blind).unwrap();
        let memory = |observer: &mut Observer| {
            observer.observe(None, None).unwrap().snapshot.vms[0].memory_total()
        };
        assert_eq!(memory(&mut observer), Bytes(0));
        observer.set_options(ScanOptions::default());
        assert_eq!(memory(&mut observer), Bytes::from_mib(512));
    }

    #[test]
    fn memory_missing_at_the_first_scan_is_reported_once() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let mut made = made();
        made.vms.iter_mut().for_each(|vm| vm.numa_stat = false);
        made.write(dir.path()).unwrap();
        for vm in &made.vms {
            std::fs::remove_file(dir.path().join(format!("proc/{}/numa_maps", vm.pid))).unwrap();
        }
        let mut observer = observer(dir.path());
        observer.begin().unwrap();
        let told = observer.observe(None, Some(Nanos::SECOND)).unwrap().scan.warnings;
        assert!(told.len() == 1 && told[0].starts_with("memory of 2 VMs is not in"), "{told:?}");
        let told = observer.observe(None, Some(Nanos::SECOND)).unwrap().scan.warnings;
        assert!(told.is_empty(), "{told:?}");
    }

    #[test]
    fn the_next_look_tells_where_each_vm_was_placed() {
        let dir = instep_madehost::scratch_dir().unwrap();
        made().write(dir.path()).unwrap();
        let mut observer = observer(dir.path());
        let seen = observer.observe(None, None).unwrap();
        assert!(seen.snapshot.vms.iter().all(|vm| vm.placed.is_empty()));
        let decision = decide(&seen.snapshot, &PolicySettings::default());
        observer.remember_decision(seen, &decision);
        let next = observer.observe(None, Some(Nanos::SECOND)).unwrap().snapshot;
        for (vm, verdict) in next.vms.iter().zip(&decision.vms) {
            assert!(verdict.selected && vm.placed == verdict.home, "{}", vm.name);
        }
    }

    #[test]
    fn another_process_of_the_same_number_was_not_placed() {
        let (dir, later) =
            (instep_madehost::scratch_dir().unwrap(), instep_madehost::scratch_dir().unwrap());
        let mut made = made();
        made.write(dir.path()).unwrap();
        let mut observer = observer(dir.path());
        let seen = observer.observe(None, None).unwrap();
        let decision = decide(&seen.snapshot, &PolicySettings::default());
        observer.remember_decision(seen, &decision);
        made.vms[0].started = Nanos(made.vms[0].started.0 + Nanos::SECOND.0);
        made.write(later.path()).unwrap();
        let root = Root::at(later.path());
        let scanner = Scanner::new(root.clone(), ScanOptions::once());
        (observer.scanner, observer.root) = (Rc::new(RefCell::new(scanner)), root);
        let next = observer.observe(None, Some(Nanos::SECOND)).unwrap().snapshot;
        assert!(next.vms[0].placed.is_empty() && !next.vms[1].placed.is_empty());
    }

    /// What the other programs get of the CPUs depends on the moment; what they want does not.
    #[test]
    fn two_busy_programs_beside_a_busy_vm_never_bind_it() {
        for got in [1020, 980, 850, 700] {
            let mut made = MadeHost::new(HostSpec::new(1, 2));
            let vm = VmSpec::new("a", Vmm::QemuKvm, 2, NodeId(0), Bytes::from_mib(64));
            made.push(vm.load(Milli((2000 - got) / 2)));
            made.other_load = Milli(got);
            let dir = instep_madehost::scratch_dir().unwrap();
            let [before, after] = ["before", "after"].map(|name| dir.path().join(name));
            made.write_pair(&before, &after, Nanos::from_secs(10)).unwrap();
            // Four threads want all of ten seconds; two CPUs have twenty of the forty.
            for (copy, waited) in [(&before, 0u64), (&after, 20_000_000_000)] {
                let text = format!("version 17\ntimestamp 1\ncpu0 0 0 0 0 0 0 0 {waited} 0\n");
                std::fs::write(copy.join("proc/schedstat"), text).unwrap();
            }
            let other = |with_waits: bool| {
                if !with_waits {
                    std::fs::remove_file(after.join("proc/schedstat")).unwrap();
                }
                let then = Scanner::new(Root::at(&before), ScanOptions::once()).scan().unwrap();
                let mut observer = observer(&after);
                observer.continue_from(then);
                let snapshot = observer.observe(None, None).unwrap().snapshot;
                let bound = decide(&snapshot, &PolicySettings::default()).actions.len();
                (snapshot.other_busy.milli_of(snapshot.window).0, bound)
            };
            assert_eq!(other(true), (2 * got, 0), "what they got and as much of their wait");
            assert_eq!(other(false), (got, 0), "others got {got}");
        }
    }

    #[test]
    fn vms_that_are_not_named_still_count_as_load() {
        let dir = instep_madehost::scratch_dir().unwrap();
        made().write(dir.path()).unwrap();
        let mut snapshot = observer(dir.path()).observe(None, None).unwrap().snapshot;
        let (vcpus, other, busy) =
            (snapshot.vcpu_count(), snapshot.other_busy, snapshot.vms[1].busy());
        let load = snapshot.fixed_busy();
        assert_eq!(keep_only(&mut snapshot, &["a".into(), "x".into()]), ["x"]);
        assert_eq!((snapshot.vms.len(), snapshot.opaque.len()), (1, 1));
        assert_eq!(snapshot.vcpu_count(), vcpus);
        assert_eq!((snapshot.other_busy, snapshot.opaque[0].busy), (other, busy));
        assert_eq!(snapshot.fixed_busy().0, load.0 + busy.0);
    }

    #[test]
    fn vm_that_is_left_alone_counts_by_what_it_wanted() {
        let mut made = made();
        made.vms[1] = made.vms[1].clone().steal(Milli(100));
        let dir = instep_madehost::scratch_dir().unwrap();
        made.write(dir.path()).unwrap();
        let mut snapshot = observer(dir.path()).observe(None, None).unwrap().snapshot;
        let wanted = snapshot.vms[1].busy().0 + snapshot.vms[1].steal().0;
        assert!(wanted > snapshot.vms[1].busy().0);
        keep_only(&mut snapshot, &["a".into()]);
        assert_eq!(snapshot.opaque[0].busy.0, wanted);
    }

    #[test]
    fn vms_of_ordinary_users_are_load_but_no_vcpus_unless_configured() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let made = made();
        made.write(dir.path()).unwrap();
        // Where libvirt would have put it no user can.
        made.give_to_user(dir.path(), 1, (4321, "/user.slice/user-4321.slice")).unwrap();
        let observe = |trust: &Trust| {
            let Observation { mut snapshot, scan } =
                observer(dir.path()).observe(None, None).unwrap();
            let busy = snapshot.fixed_busy().0 + snapshot.vms[1].busy().0;
            keep_trusted(&mut snapshot, &scan, trust);
            (snapshot, busy)
        };
        let (others, busy) = observe(&Trust::default());
        assert_eq!((others.vms.len(), others.vcpu_count()), (1, 2));
        assert_eq!((others.opaque[0].name.as_str(), others.fixed_busy().0), ("b", busy));
        assert!(others.opaque[0].why.contains("user 4321"), "{}", others.opaque[0].why);
        let (all, _) = observe(&Trust::of(&["4321".to_owned()], &[]).unwrap());
        assert_eq!((all.vms.len(), all.vcpu_count()), (2, 4));
    }

    #[test]
    fn a_name_that_two_vms_share_means_both() {
        let dir = instep_madehost::scratch_dir().unwrap();
        let mut made = made();
        made.vms[1].name = "a".to_owned();
        made.write(dir.path()).unwrap();
        let observe = || observer(dir.path()).observe(None, None).unwrap().snapshot;
        let mut both = observe();
        assert_eq!((keep_only(&mut both, &["a".into()]).len(), both.vms.len()), (0, 2));
        let mut one = observe();
        let name = one.vms[1].name.clone();
        assert_eq!((keep_only(&mut one, &[name]).len(), one.vms.len()), (0, 1));
    }
}
