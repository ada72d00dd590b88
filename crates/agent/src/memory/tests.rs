//! Memory's way home on a made host with a simulated page table and clock.

use super::*;
use crate::observe::Observer;
use instep_core::decision::Verdict;
use instep_core::reason::Reason;
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
    /// How long reading one takes.
    reading: Duration,
}

impl Host for Fake {
    type Pages = Simulated;

    fn ranges(&mut self, pid: u32) -> Result<Vec<Range>, Error> {
        self.read.push(pid);
        self.table.now.set(self.table.now.get() + self.reading);
        let mut by_node = BTreeMap::new();
        let mut on = self.table.on.borrow_mut();
        for address in (0..MEMORY).step_by(4096) {
            let node = on.entry((pid, address)).or_insert(0);
            *by_node.entry(NodeId(*node)).or_default() += 1;
        }
        Ok(vec![Range { start: 0, end: MEMORY, page: 4096, by_node }])
    }

    fn hot(
        &mut self,
        _: &Vm,
        _: Option<Accel>,
        _: &[Range],
        _: &mut dyn FnMut(Duration) -> bool,
    ) -> Vec<Range> {
        Vec::new()
    }

    fn pages(&mut self, pid: u32, _: u64) -> Result<Simulated, Error> {
        Ok(Simulated { table: Rc::clone(&self.table), pid })
    }

    fn rooms(&mut self, home: &NodeSet) -> Result<Vec<Room>, Error> {
        let room = |node| Room { node, free: Bytes::from_mib(4096), huge: BTreeMap::new() };
        Ok(home.iter().map(room).collect())
    }

    fn now(&self) -> Duration {
        self.table.now.get()
    }
}

fn observed(vms: &[&str]) -> Observation {
    let dir = tempfile::tempdir().unwrap();
    let mut made = MadeHost::new(HostSpec::new(2, 4));
    for name in vms {
        made.push(VmSpec::new(name, Vmm::QemuKvm, 2, NodeId(0), Bytes(MEMORY)));
    }
    made.write(dir.path()).unwrap();
    let mut observer = Observer::new(Root::at(dir.path()), ScanOptions::once()).unwrap();
    observer.look(None, None).unwrap()
}

/// All VMs live on `node`; with `moving` their memory shall come, too.
fn decided(observation: &Observation, node: u32, moving: bool) -> Decision {
    let mut decision = Decision::default();
    let (home, why) = (NodeSet::one(NodeId(node)), || Reason::PolicyNone);
    for vm in &observation.snapshot.vms {
        let verdict = Verdict { vm: vm.id, selected: true, home: home.clone(), why: why() };
        decision.vms.push(verdict);
        if moving {
            let (to, remote) = (home.clone(), Bytes(MEMORY));
            decision.actions.push(Action::MoveMemory { vm: vm.id, to, remote, why: why() });
        }
    }
    decision
}

const FOUR_MIB: Limits =
    Limits { bytes: Bytes(4 * MIB), time: Some(Duration::from_secs(20)), batch: Bytes(2 * MIB) };

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
fn memory_that_will_not_move_is_asked_for_less_and_less_often() {
    let (mut next, mut rests) = (1, Vec::new());
    for _ in 0..9 {
        let (now, then) = rest(Bytes(0), Bytes::from_mib(64), next);
        rests.push(now);
        next = then;
    }
    assert_eq!(rests, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    assert_eq!(rest(Bytes::from_mib(32), Bytes::from_mib(64), next), (0, 1));
}
