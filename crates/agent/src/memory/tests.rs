//! Memory's way home on a made host with a simulated page table and clock.

use super::*;
use crate::observe::Observer;
use instep_core::decision::Verdict;
use instep_core::idset::CpuSet;
use instep_core::reason::Reason;
use instep_core::snapshot::GuestNode;
use instep_core::topology::{CpuFacts, NodeFacts, Topology};
use instep_core::units::NodeId;
use instep_host::Root;
use instep_host::discover::ScanOptions;
use instep_madehost::{HostSpec, MadeHost, VmSpec, Vmm};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

const MIB: u64 = 1 << 20;
/// Of every VM, all on node 0 at first.
const MEMORY: u64 = 16 * MIB;

/// Pages of all processes by (process, address); a move takes a millisecond.
#[derive(Default)]
struct Table {
    on: RefCell<BTreeMap<(u32, u64), u32>>,
    now: Cell<Duration>,
}

impl Table {
    fn on(&self, pid: u32, node: u32) -> usize {
        let on = self.on.borrow();
        on.iter().filter(|((of, _), at)| *of == pid && **at == node).count()
    }
}

struct Simulated {
    table: Rc<Table>,
    pid: u32,
}

impl Pages for Simulated {
    fn query(&mut self, pages: &[u64], status: &mut [i32]) -> io::Result<()> {
        let on = self.table.on.borrow();
        for (page, status) in pages.iter().zip(status) {
            *status = on.get(&(self.pid, *page)).map_or(-2, |node| *node as i32);
        }
        Ok(())
    }

    fn move_to(&mut self, pages: &[u64], nodes: &[NodeId], status: &mut [i32]) -> io::Result<()> {
        for ((page, node), status) in pages.iter().zip(nodes).zip(status) {
            self.table.on.borrow_mut().insert((self.pid, *page), node.0);
            *status = node.0 as i32;
        }
        self.table.now.set(self.table.now.get() + Duration::from_millis(1));
        Ok(())
    }

    fn now(&self) -> Duration {
        self.table.now.get()
    }
}

#[derive(Default)]
struct Fake {
    table: Rc<Table>,
    /// Whose memory map was read, in order.
    read: Vec<u32>,
    /// Nodes of every guest, if more than one.
    guest_nodes: u32,
    /// The guest node whose mapping cannot be told.
    untold: Option<u32>,
    /// What is used of every VM; `None` where nothing tells that.
    used: Option<Vec<Region>>,
    /// Which VMs were watched, in order.
    watched: Vec<u32>,
    /// How long reading one takes.
    reading: Duration,
    /// After this many looks at its room a node is full.
    full_after: Option<usize>,
}

impl Host for Fake {
    type Pages = Simulated;

    fn ranges(&mut self, pid: u32) -> Result<GuestRanges, Error> {
        self.read.push(pid);
        self.table.now.set(self.table.now.get() + self.reading);
        let mut on = self.table.on.borrow_mut();
        let mut ranges = GuestRanges::default();
        for guest_node in 0..self.guest_nodes.max(1) {
            let mut by_node = BTreeMap::new();
            // The memory of each guest node has a place of its own.
            let start = u64::from(guest_node) * MEMORY;
            for address in (start..start + MEMORY).step_by(4096) {
                let node = on.entry((pid, address)).or_insert(0);
                *by_node.entry(NodeId(*node)).or_default() += 1;
            }
            ranges.all.push(Range { start, end: start + MEMORY, page: 4096, by_node });
            if self.untold != Some(guest_node) {
                ranges.nodes.insert(guest_node, start);
            }
        }
        Ok(ranges)
    }

    fn regions(
        &mut self,
        (pid, _): (u32, u64),
        enough: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<Option<Vec<Region>>, Error> {
        self.watched.push(pid);
        let next = "Instep leaves that alone".to_owned();
        let what = "another program uses DAMON".to_owned();
        let Some(used) = self.used.clone() else { return Err(Error::Unusable { what, next }) };
        let now = self.table.now.get();
        if enough(now) {
            return Ok(None);
        }
        self.table.now.set(now + RANKING);
        Ok(Some(used))
    }

    fn pages(&mut self, pid: u32, _: u64) -> Result<Simulated, Error> {
        Ok(Simulated { table: Rc::clone(&self.table), pid })
    }

    fn rooms(&mut self, home: &NodeSet) -> Result<Vec<Room>, Error> {
        let full = self.full_after.is_some_and(|left| left == 0);
        self.full_after = self.full_after.map(|left| left.saturating_sub(1));
        let free = Bytes::from_mib(if full { 0 } else { 4096 });
        let room = |node| Room { node, free, huge: BTreeMap::new() };
        Ok(home.iter().map(room).collect())
    }

    fn now(&self) -> Duration {
        self.table.now.get()
    }
}

fn observed(vms: &[&str]) -> Observation {
    observed_on(HostSpec::new(2, 4), vms)
}

fn observed_on(spec: HostSpec, vms: &[&str]) -> Observation {
    let dir = instep_madehost::scratch_dir().unwrap();
    let mut made = MadeHost::new(spec);
    for name in vms {
        made.push(VmSpec::new(name, Vmm::QemuKvm, 2, NodeId(0), Bytes(MEMORY)));
    }
    made.write(dir.path()).unwrap();
    let mut observer = Observer::new(Root::at(dir.path()), ScanOptions::once()).unwrap();
    observer.observe(None, None).unwrap()
}

/// All VMs live on `node`; with `moving` their memory shall come, too.
fn decided(observation: &Observation, node: u32, moving: bool) -> Decision {
    let mut decision = Decision::default();
    let (home, why) = (NodeSet::one(NodeId(node)), || Reason::PolicyNone);
    for vm in &observation.snapshot.vms {
        let verdict = Verdict { vm: vm.id, selected: true, home: home.clone(), why: why() };
        decision.vms.push(verdict);
        if moving {
            decision.actions.push(move_memory(vm.id, None, node));
        }
    }
    decision
}

fn move_memory(vm: VmId, guest_node: Option<u32>, node: u32) -> Action {
    let (to, remote) = (NodeSet::one(NodeId(node)), Bytes(MEMORY));
    Action::MoveMemory { vm, guest_node, to, remote, why: Reason::PolicyNone }
}

const FOUR_MIB: Limits = Limits {
    bytes: Bytes(4 * MIB),
    time: Some(Duration::from_secs(20)),
    batch: Bytes(2 * MIB),
    memory_only_nodes: false,
};

#[test]
fn a_pass_goes_on_while_the_home_stays_and_ends_when_it_changes() {
    let observation = observed(&["a"]);
    let id = observation.snapshot.vms[0].id.0;
    let (mut homes, mut host) = (Homes::default(), Fake::default());
    let mut step = |homes: &mut Homes, decision: &Decision| {
        homes.bring_home(&mut host, (&observation, decision), FOUR_MIB, &mut || false);
        host.table.on(id, 1)
    };
    assert_eq!(step(&mut homes, &decided(&observation, 1, true)), 1024);
    assert_eq!(step(&mut homes, &decided(&observation, 1, false)), 2048, "the home is the same");
    assert_eq!(step(&mut homes, &decided(&observation, 0, false)), 2048, "it lives elsewhere now");
    assert_eq!(step(&mut homes, &decided(&observation, 1, false)), 2048, "nobody asked again");

    step(&mut homes, &decided(&observation, 1, true));
    let mut given_back = decided(&observation, 1, false);
    given_back.vms[0].selected = false;
    assert_eq!(step(&mut homes, &given_back), 3072, "the policy is not in charge any more");
    assert_eq!(step(&mut homes, &Decision::default()), 3072);
}

#[test]
fn memory_leaves_a_node_without_cpus_only_on_request() {
    let spec = HostSpec { memory_only_nodes: 1, ..HostSpec::new(2, 4) };
    let observation = observed_on(spec, &["a"]);
    let id = observation.snapshot.vms[0].id.0;
    let decision = decided(&observation, 1, true);
    for (memory_only_nodes, comes) in [(false, 0), (true, 4096)] {
        let (mut homes, mut host) = (Homes::default(), Fake::default());
        let all = (0..MEMORY).step_by(4096).map(|address| ((id, address), 2));
        host.table.on.borrow_mut().extend(all);
        let limits = Limits { bytes: Bytes(MEMORY), memory_only_nodes, ..FOUR_MIB };
        homes.bring_home(&mut host, (&observation, &decision), limits, &mut || false);
        assert_eq!(host.table.on(id, 1), comes, "{memory_only_nodes}");
    }
}

/// A VM of two guest nodes of one vCPU each, which live on these nodes.
fn halves_on(observation: &Observation, nodes: [u32; 2]) -> Decision {
    let vm = &observation.snapshot.vms[0];
    let mut decision = decided(observation, 0, false);
    decision.vms[0].home = nodes.into_iter().map(NodeId).collect();
    for (vcpu, node) in vm.vcpus.iter().zip(nodes) {
        let cpus = observation.snapshot.topology.cpus_of(&NodeSet::one(NodeId(node)));
        let (vcpu, tid, why) = (vcpu.index, vcpu.tid, Reason::PolicyNone);
        decision.actions.push(Action::SetVcpuAffinity { vm: vm.id, vcpu, tid, cpus, why });
    }
    decision
}

/// A VM of two guest nodes of one vCPU each.
fn two_guest_nodes() -> Observation {
    let mut observation = observed(&["a"]);
    observation.snapshot.vms[0].guest_nodes =
        (0..2).map(|id| GuestNode { id, vcpus: vec![id], ..GuestNode::default() }).collect();
    observation
}

/// The memory of both guest nodes shall come to node 1.
fn both_to_node_1(observation: &Observation) -> Decision {
    let mut decision = halves_on(observation, [1, 1]);
    let id = observation.snapshot.vms[0].id;
    decision.actions.extend([0, 1].map(|guest_node| move_memory(id, Some(guest_node), 1)));
    decision
}

#[test]
fn the_memory_map_is_read_once_for_all_nodes_of_a_guest() {
    let observation = two_guest_nodes();
    let id = observation.snapshot.vms[0].id.0;
    let (mut homes, mut host) = (Homes::default(), Fake { guest_nodes: 2, ..Fake::default() });
    let decision = both_to_node_1(&observation);
    let limits = Limits::of(&MemoryConfig::default(), true);
    homes.bring_home(&mut host, (&observation, &decision), limits, &mut || false);
    assert_eq!((host.read.clone(), host.table.on(id, 1)), (vec![id], 8192));
    // All is at home: each rests a cycle later.
    homes.bring_home(&mut host, (&observation, &decision), limits, &mut || false);
    assert_eq!(host.read, [id, id]);
}

#[test]
fn guest_node_without_known_mapping_is_reported_and_rests() {
    let observation = two_guest_nodes();
    let (mut homes, mut host) = (Homes::default(), Fake { guest_nodes: 2, ..Fake::default() });
    host.untold = Some(1);
    let decision = both_to_node_1(&observation);
    let limits = Limits::of(&MemoryConfig::default(), true);
    let mut cycle =
        || homes.bring_home(&mut host, (&observation, &decision), limits, &mut || false);
    let records = cycle();
    let told: Vec<_> =
        records.iter().map(|r| (r.guest_node, r.complete, r.moved_bytes.0)).collect();
    assert_eq!(told, [(Some(0), true, MEMORY), (Some(1), false, 0)]);
    let error = records[1].error.as_deref().unwrap_or_default();
    assert!(
        error.contains("it is not known which mapping is the memory of guest node 1"),
        "{records:?}"
    );
    let later: Vec<usize> = (0..4)
        .map(|_| cycle().iter().filter(|record| record.guest_node == Some(1)).count())
        .collect();
    assert_eq!(later, [0, 1, 0, 0], "it is asked less and less often");
}

#[test]
fn memory_of_guest_node_goes_on_to_home_that_no_vcpu_is_bound_to() {
    let observation = two_guest_nodes();
    let id = observation.snapshot.vms[0].id.0;
    let (mut homes, mut host) = (Homes::default(), Fake { guest_nodes: 2, ..Fake::default() });
    let mut step = |decision: &Decision| {
        homes.bring_home(&mut host, (&observation, decision), FOUR_MIB, &mut || false);
        host.table.on(id, 1)
    };
    let begun = step(&both_to_node_1(&observation));
    let on_its_way = decided(&observation, 1, false);
    assert!(begun > 0 && step(&on_its_way) > begun);
}

#[test]
fn memory_of_one_guest_node_follows_its_vcpus_and_leaves_the_rest() {
    let observation = two_guest_nodes();
    let id = observation.snapshot.vms[0].id;
    let (mut homes, mut host) = (Homes::default(), Fake { guest_nodes: 2, ..Fake::default() });
    let mut step = |homes: &mut Homes, decision: &Decision| {
        let records =
            homes.bring_home(&mut host, (&observation, decision), FOUR_MIB, &mut || false);
        assert!(records.iter().all(|record| record.guest_node == Some(1)), "{records:?}");
        host.table.on(id.0, 1)
    };
    let mut first = halves_on(&observation, [0, 1]);
    first.actions.push(move_memory(id, Some(1), 1));
    assert_eq!(step(&mut homes, &first), 1024);
    assert_eq!(step(&mut homes, &halves_on(&observation, [0, 1])), 2048, "its vCPUs are there");
    assert_eq!(step(&mut homes, &halves_on(&observation, [1, 0])), 2048, "its vCPUs left");
    assert_eq!(step(&mut homes, &first), 3072);
    let mut all = first.clone();
    all.vms[0].selected = false;
    all.actions.clear();
    assert_eq!(step(&mut homes, &all), 3072, "the policy is not in charge any more");
    let first_half = |(of, address): &(u32, u64)| *of == id.0 && *address < MEMORY;
    let on = host.table.on.borrow();
    assert!(on.iter().filter(|(page, _)| first_half(page)).all(|(_, node)| *node == 0));
}

/// As `numa=fake` makes it: the kernel's nodes 0 and 2 are the topology's node 0, 1 and 3 its 1.
#[test]
fn memory_on_another_kernel_node_of_its_home_is_at_home() {
    let mut observation = observed(&["a"]);
    let node = |(id, cpus): (u32, &str)| NodeFacts {
        id,
        cpus: CpuSet::parse_list(cpus).unwrap(),
        memory: Bytes::from_mib(4096),
        distances: vec![10; 4],
    };
    let nodes = [(0, "0-3"), (1, "4-7"), (2, "0-3"), (3, "4-7")].map(node);
    let cpus = (0..8).map(|id| CpuFacts { id, ..CpuFacts::default() }).collect();
    observation.snapshot.topology = Topology::build(cpus, nodes.into()).unwrap().into();
    let id = observation.snapshot.vms[0].id.0;
    let (mut homes, mut host) = (Homes::default(), Fake::default());
    for address in (0..MEMORY / 2).step_by(4096) {
        host.table.on.borrow_mut().insert((id, address), 3);
    }
    let decision = decided(&observation, 1, true);
    let limits = Limits::of(&MemoryConfig::default(), true);
    let records = homes.bring_home(&mut host, (&observation, &decision), limits, &mut || false);
    assert_eq!((records[0].moved_bytes.0, records[0].complete), (MEMORY / 2, true));
    let [left, on_1, on_3] = [0, 1, 3].map(|node| host.table.on(id, node));
    assert_eq!((left, on_1 + on_3), (0, 4096), "both kernel nodes take what comes home");
}

#[test]
fn memory_maps_are_read_only_when_the_budget_comes_to_them() {
    let observation = observed(&["a", "b", "c"]);
    let ids: Vec<u32> = observation.snapshot.vms.iter().map(|vm| vm.id.0).collect();
    let decision = decided(&observation, 1, true);
    let (mut homes, mut host) = (Homes::default(), Fake::default());
    let records = homes.bring_home(&mut host, (&observation, &decision), FOUR_MIB, &mut || false);
    assert_eq!(host.read, ids[..1]);
    let moved: Vec<u64> = records.iter().map(|record| record.moved_bytes.0 / MIB).collect();
    assert_eq!(moved, [4, 0, 0]);
    assert!(records.iter().all(|record| !record.complete && record.error.is_none()));

    // The time of reading counts, too.
    let (mut homes, mut host) = (Homes::default(), Fake::default());
    host.reading = Duration::from_secs(15);
    let limits = Limits { bytes: Bytes::from_mib(4096), ..FOUR_MIB };
    homes.bring_home(&mut host, (&observation, &decision), limits, &mut || false);
    assert_eq!(host.read, ids[..2]);
    assert_eq!((host.table.on(ids[0], 1), host.table.on(ids[1], 1)), (4096, 0));
}

/// The second half of every VM's memory, as two regions, of which the last is used most.
fn second_half() -> Vec<Region> {
    let region = |mib: u64, accesses| Region { start: mib * MIB, end: (mib + 4) * MIB, accesses };
    vec![region(8, 3), region(12, 20)]
}

/// Which MiB of a VM's memory are on node 1.
fn home_mib(table: &Table, pid: u32) -> Vec<u64> {
    let on = table.on.borrow();
    (0..MEMORY / MIB).filter(|mib| on.get(&(pid, mib * MIB)) == Some(&1)).collect()
}

#[test]
fn memory_in_use_comes_home_first_where_cycle_moves_less_than_all() {
    let observation = observed(&["a"]);
    let id = observation.snapshot.vms[0].id.0;
    let decision = decided(&observation, 1, true);
    let used = Some(second_half());
    let (mut homes, mut host) = (Homes::default(), Fake { used, ..Fake::default() });
    let mut cycle = |homes: &mut Homes| {
        let records =
            homes.bring_home(&mut host, (&observation, &decision), FOUR_MIB, &mut || false);
        (home_mib(&host.table, id), records[0].used_left_bytes, host.watched.len())
    };
    let all = |mib: std::ops::Range<u64>| mib.collect::<Vec<_>>();
    assert_eq!(cycle(&mut homes), (all(12..16), Some(Bytes(4 * MIB)), 1));
    assert_eq!(cycle(&mut homes), (all(8..16), Some(Bytes(0)), 1), "it is watched once");
    assert_eq!(cycle(&mut homes).0, [all(0..4), all(8..16)].concat());
    assert_eq!(homes.take_unranked(), None);
}

#[test]
fn nothing_is_watched_where_all_comes_home_in_one_cycle() {
    let observation = observed(&["a"]);
    let decision = decided(&observation, 1, true);
    let used = Some(second_half());
    for limits in [
        Limits::of(&MemoryConfig::default(), true),
        Limits::of(&MemoryConfig::default(), false),
        // There is no time to watch anything.
        Limits { time: Some(RANKING), ..FOUR_MIB },
    ] {
        let (mut homes, mut host) =
            (Homes::default(), Fake { used: used.clone(), ..Fake::default() });
        homes.bring_home(&mut host, (&observation, &decision), limits, &mut || false);
        assert_eq!((host.watched.len(), home_mib(&host.table, decision.vms[0].vm.0)[0]), (0, 0));
    }
}

#[test]
fn without_damon_memory_moves_by_address_with_one_notice() {
    let observation = observed(&["a", "b"]);
    let id = observation.snapshot.vms[0].id.0;
    let decision = decided(&observation, 1, true);
    let (mut homes, mut host) = (Homes::default(), Fake::default());
    let limits = Limits { bytes: Bytes(8 * MIB), ..FOUR_MIB };
    let mut said = Vec::new();
    for _ in 0..5 {
        homes.bring_home(&mut host, (&observation, &decision), limits, &mut || false);
        said.extend(homes.take_unranked());
    }
    assert_eq!(host.watched.len(), 2);
    assert_eq!(home_mib(&host.table, id), (0..16).collect::<Vec<_>>());
    assert_eq!(said.len(), 1, "{said:?}");
    let words = ["in order of address", "another program uses DAMON", "leaves that alone"];
    assert!(words.iter().all(|words| said[0].contains(words)), "{said:?}");
}

#[test]
fn what_is_not_used_waits_for_what_other_vms_use() {
    let observation = observed(&["a", "b"]);
    let ids: Vec<u32> = observation.snapshot.vms.iter().map(|vm| vm.id.0).collect();
    let decision = decided(&observation, 1, true);
    let used = Some(second_half());
    let (mut homes, mut host) = (Homes::default(), Fake { used, ..Fake::default() });
    let limits = Limits { bytes: Bytes(8 * MIB), ..FOUR_MIB };
    let mut cycle = || {
        homes.bring_home(&mut host, (&observation, &decision), limits, &mut || false);
        [0, 1].map(|vm| home_mib(&host.table, ids[vm]).len())
    };
    assert_eq!(cycle(), [8, 0]);
    assert_eq!(cycle(), [8, 8], "what the first VM does not use waits");
    assert_eq!(cycle(), [16, 8]);
}

#[test]
fn vm_waits_for_the_next_cycle_when_no_time_is_left_to_watch_it() {
    let observation = observed(&["a", "b"]);
    let ids: Vec<u32> = observation.snapshot.vms.iter().map(|vm| vm.id.0).collect();
    let decision = decided(&observation, 1, true);
    let used = Some(Vec::new());
    let (mut homes, mut host) = (Homes::default(), Fake { used, ..Fake::default() });
    let limits = Limits { bytes: Bytes(MEMORY - 1), ..FOUR_MIB };
    let mut cycle = |host: &mut Fake| {
        homes.bring_home(host, (&observation, &decision), limits, &mut || false);
        (host.watched.clone(), host.table.on(ids[1], 1))
    };
    host.reading = Duration::from_secs(3);
    assert_eq!(cycle(&mut host), (vec![ids[0]], 0));
    assert_eq!(host.read, [ids[0]], "the map of a VM that waits is not read");
    assert_eq!(cycle(&mut host).0, ids, "the first VM needs none any more");
}

#[test]
fn a_stop_is_heeded_before_the_next_memory_map_is_read() {
    let observation = observed(&["a", "b"]);
    let decision = decided(&observation, 1, true);
    let limits = Limits::of(&MemoryConfig::default(), true);
    let (mut homes, mut host) = (Homes::default(), Fake::default());
    homes.bring_home(&mut host, (&observation, &decision), limits, &mut || true);
    assert!(host.read.is_empty());
    let mut asked = 0;
    let mut soon = || {
        asked += 1;
        asked > 2
    };
    homes.bring_home(&mut host, (&observation, &decision), limits, &mut soon);
    assert_eq!(host.read.len(), 1);
}

#[test]
fn the_only_cycle_brings_everything_home() {
    let observation = observed(&["a", "b"]);
    let decision = decided(&observation, 1, true);
    let config = MemoryConfig {
        per_cycle: Bytes(4096),
        time_per_cycle: Duration::from_millis(1),
        ..MemoryConfig::default()
    };
    let (mut homes, mut host) = (Homes::default(), Fake::default());
    let limits = Limits::of(&config, true);
    let records = homes.bring_home(&mut host, (&observation, &decision), limits, &mut || false);
    assert!(records.iter().all(|record| record.complete && record.moved_bytes.0 == MEMORY));
}

#[test]
fn a_node_that_others_fill_meanwhile_takes_no_more() {
    let observation = observed(&["a"]);
    let decision = decided(&observation, 1, true);
    let (mut homes, mut host) = (Homes::default(), Fake::default());
    host.full_after = Some(2);
    let config = MemoryConfig { batch: Bytes(2 * MIB), ..MemoryConfig::default() };
    let limits = Limits::of(&config, true);
    let records = homes.bring_home(&mut host, (&observation, &decision), limits, &mut || false);
    assert_eq!((records[0].moved_bytes, records[0].complete), (Bytes(4 * MIB), false));
}

#[test]
fn memory_that_will_not_move_is_asked_for_less_and_less_often() {
    let (mut next, mut rests) = (1, Vec::new());
    for _ in 0..9 {
        let (now, then) = rest(Bytes(0), Bytes::from_mib(64), next);
        rests.push(now);
        next = then;
    }
    assert_eq!(rests, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    assert_eq!(rest(Bytes::from_mib(32), Bytes::from_mib(64), next), (0, 1));
    assert_eq!(rest(Bytes(0), Bytes(0), 4), (4, 8), "nothing was found where the policy saw some");
}
