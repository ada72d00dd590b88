//! Homecoming on a simulated page table of two nodes that answers as the kernel does, and on a
//! real process.

use super::*;
use crate::apply::move_pages::KernelPages;
use crate::apply::testing::Sleeper;
use crate::apply::{ranges, room};
use crate::root::Root;
use proptest::prelude::*;
use std::io;

/// What happens to a page that shall move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Moves,
    /// Cannot be isolated.
    Busy,
    /// Mapped by others.
    Shared,
    /// Isolated, but migration fails.
    Pinned,
}

/// A process's pages; the kernel's grouping and stopping included (`do_pages_move`, 6.18).
struct Simulated {
    table: BTreeMap<u64, (u32, Fate)>,
    /// Pages that each node still takes.
    capacity: Vec<usize>,
    calls: usize,
    largest_call: usize,
    tick: Duration,
    refuse: Option<i32>,
}

impl Simulated {
    fn new(pages: impl IntoIterator<Item = (u32, Fate)>) -> Self {
        let table = pages.into_iter().enumerate().map(|(i, page)| (i as u64 * 4096, page));
        Self {
            table: table.collect(),
            capacity: vec![usize::MAX; 2],
            calls: 0,
            largest_call: 0,
            tick: Duration::ZERO,
            refuse: None,
        }
    }

    fn range(&self, page: u64) -> Range {
        let mut by_node = BTreeMap::new();
        for (node, _) in self.table.values() {
            *by_node.entry(NodeId(*node)).or_default() += 1;
        }
        Range { start: 0, end: self.table.len() as u64 * page, page, by_node }
    }

    fn homecoming(&self) -> Homecoming {
        Homecoming::new(7, NodeSet::one(NodeId(1)), vec![self.range(4096)])
    }

    fn call(&mut self, pages: usize) {
        self.calls += 1;
        self.largest_call = self.largest_call.max(pages);
        assert!(self.calls < 100_000, "does not end");
    }

    fn on(&self, node: u32) -> usize {
        self.table.values().filter(|(on, _)| *on == node).count()
    }

    /// Migrates a group; how many failed, `ENOMEM` when the target is full.
    fn flush(
        &mut self,
        group: &mut Vec<(usize, u64, u32)>,
        status: &mut [i32],
    ) -> io::Result<bool> {
        let mut failed = false;
        for (_, address, node) in group.iter() {
            let page = self.table.get_mut(address).unwrap();
            if page.1 == Fate::Pinned {
                failed = true;
            } else if self.capacity[*node as usize] == 0 {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            } else {
                self.capacity[*node as usize] -= 1;
                page.0 = *node;
            }
        }
        if !failed {
            group.iter().for_each(|(index, _, node)| status[*index] = *node as i32);
        }
        group.clear();
        Ok(failed)
    }
}

impl Pages for Simulated {
    fn query(&mut self, pages: &[u64], status: &mut [i32]) -> io::Result<()> {
        self.call(pages.len());
        if let Some(errno) = self.refuse {
            return Err(io::Error::from_raw_os_error(errno));
        }
        for (address, status) in pages.iter().zip(status) {
            *status = self.table.get(address).map_or(-libc::ENOENT, |(node, _)| *node as i32);
        }
        Ok(())
    }

    fn move_to(&mut self, pages: &[u64], nodes: &[NodeId], status: &mut [i32]) -> io::Result<()> {
        self.call(pages.len());
        let mut group = Vec::new();
        for (index, (address, node)) in pages.iter().zip(nodes).enumerate() {
            if group.last().is_some_and(|(_, _, last)| *last != node.0)
                && self.flush(&mut group, status)?
            {
                return Ok(());
            }
            let error = match self.table.get(address) {
                None => -libc::ENOENT,
                Some((on, _)) if *on == node.0 => *on as i32,
                Some((_, Fate::Busy)) => -libc::EBUSY,
                Some((_, Fate::Shared)) => -libc::EACCES,
                Some((_, Fate::Moves | Fate::Pinned)) => {
                    group.push((index, *address, node.0));
                    continue;
                }
            };
            status[index] = error;
            if self.flush(&mut group, status)? {
                return Ok(());
            }
        }
        self.flush(&mut group, status).map(|_| ())
    }

    fn now(&self) -> Duration {
        self.tick * self.calls as u32
    }
}

fn rooms(pages: u64) -> Vec<Room> {
    vec![Room { node: NodeId(1), free: Bytes(pages * 4096), huge: BTreeMap::new() }]
}

const LARGE: Budget = Budget { bytes: Bytes(u64::MAX), time: Duration::MAX };

#[test]
fn every_page_comes_home_and_is_counted_by_cause() {
    use Fate::{Busy, Moves, Pinned, Shared};
    let odd = |i| match i {
        17 => (0, Busy),
        18 => (0, Pinned),
        200 => (0, Shared),
        300..400 => (1, Moves),
        450 => (0, Pinned),
        _ => (0, Moves),
    };
    let mut pages = Simulated::new((0..2000).map(|i| odd(i % 500)));
    let mut coming = pages.homecoming();
    assert_eq!(coming.remote(), Bytes(1600 * 4096));
    let step = coming.step(&mut pages, &mut rooms(10_000), LARGE).unwrap();
    assert_eq!(step.stop, MoveStop::Finished);
    let of = |cause| step.tally.of(cause).0 / 4096;
    let causes = [Cause::AlreadyHome, Cause::Busy, Cause::Shared, Cause::Stuck, Cause::Moved];
    assert_eq!(causes.map(of), [400, 4, 4, 8, 1584]);
    assert_eq!(pages.on(1), 1984);
}

#[test]
fn memory_that_is_all_pinned_costs_few_calls() {
    let mut pages = Simulated::new((0..100 * 512).map(|_| (0, Fate::Pinned)));
    let mut coming = pages.homecoming();
    let step = coming.step(&mut pages, &mut rooms(100_000), LARGE).unwrap();
    assert_eq!(step.tally.of(Cause::Stuck), Bytes(100 * 512 * 4096));
    assert!(pages.calls < 100 * 7 + 300, "{}", pages.calls);
}

#[test]
fn one_pinned_page_does_not_hold_up_the_others() {
    let fate = |i| if i == 100 { Fate::Pinned } else { Fate::Moves };
    let mut pages = Simulated::new((0..2000).map(|i| (0, fate(i))));
    let mut coming = pages.homecoming();
    let step = coming.step(&mut pages, &mut rooms(10_000), LARGE).unwrap();
    assert_eq!(step.tally.of(Cause::Moved), Bytes(1999 * 4096));
    assert_eq!(step.tally.of(Cause::Stuck), Bytes(4096));
}

#[test]
fn step_keeps_its_budget_and_the_next_goes_on() {
    let mut pages = Simulated::new((0..5 * 1024).map(|_| (0, Fate::Moves)));
    let mut coming = pages.homecoming();
    let budget = Budget { bytes: Bytes(1000 * 4096), time: Duration::MAX };
    for done in 1..=5 {
        let step = coming.step(&mut pages, &mut rooms(10_000), budget).unwrap();
        assert_eq!(step.tally.of(Cause::Moved), Bytes(1024 * 4096));
        assert_eq!(pages.on(1), done * 1024);
    }
    assert!(coming.is_finished());
    assert_eq!(coming.total().of(Cause::Moved), Bytes(5 * 1024 * 4096));
    assert!(pages.largest_call as u64 <= 2 * BLOCK / 4096);
    assert_eq!(coming.step(&mut pages, &mut rooms(1), LARGE).unwrap().stop, MoveStop::Finished);
}

#[test]
fn batches_end_where_huge_pages_begin() {
    let mut pages = Simulated::new((0..2000).map(|_| (0, Fate::Moves)));
    let mut range = pages.range(4096);
    range.start = 100 * 4096;
    let mut coming = Homecoming::new(7, NodeSet::one(NodeId(1)), vec![range]);
    let budget = Budget { bytes: Bytes(1), time: Duration::MAX };
    coming.step(&mut pages, &mut rooms(10_000), budget).unwrap();
    assert_eq!(pages.on(1), 412);
    coming.step(&mut pages, &mut rooms(10_000), budget).unwrap();
    assert_eq!(pages.on(1), 412 + 512);
}

#[test]
fn a_step_keeps_its_budget_of_time() {
    let mut pages = Simulated::new((0..5000).map(|_| (0, Fate::Moves)));
    pages.tick = Duration::from_millis(4);
    let mut coming = pages.homecoming();
    let budget = Budget { bytes: Bytes(u64::MAX), time: Duration::from_millis(20) };
    let step = coming.step(&mut pages, &mut rooms(10_000), budget).unwrap();
    // Query, move, query: 12 ms a batch, too long for a larger one.
    assert_eq!((step.stop, step.tally.of(Cause::Moved)), (MoveStop::Time, Bytes(2 * BLOCK)));
}

#[test]
fn a_full_home_stops_the_step_where_it_can_go_on_later() {
    let mut pages = Simulated::new((0..1000).map(|_| (0, Fate::Moves)));
    let mut coming = pages.homecoming();
    let step = coming.step(&mut pages, &mut rooms(300), LARGE).unwrap();
    assert_eq!((step.stop, step.tally.of(Cause::Moved)), (MoveStop::NoRoom, Bytes(300 * 4096)));
    assert!(!coming.is_finished());
    let step = coming.step(&mut pages, &mut rooms(900), LARGE).unwrap();
    assert_eq!((step.stop, step.tally.of(Cause::Moved)), (MoveStop::Finished, Bytes(700 * 4096)));
}

#[test]
fn node_fuller_than_reported_is_counted_and_not_tried_again() {
    let mut pages = Simulated::new((0..1000).map(|_| (0, Fate::Moves)));
    pages.capacity[1] = 100;
    let mut coming = pages.homecoming();
    let step = coming.step(&mut pages, &mut rooms(10_000), LARGE).unwrap();
    assert_eq!(step.stop, MoveStop::NoRoom);
    assert_eq!(step.tally.of(Cause::Moved), Bytes(100 * 4096));
    assert_eq!(step.tally.of(Cause::NoMemory), Bytes(BLOCK - 100 * 4096));
}

#[test]
fn the_home_node_with_most_room_is_filled_first() {
    let home: NodeSet = [NodeId(1), NodeId(2)].into_iter().collect();
    let mut pages = Simulated::new((0..300).map(|_| (0, Fate::Moves)));
    pages.capacity = vec![usize::MAX; 3];
    let mut coming = Homecoming::new(7, home, vec![pages.range(4096)]);
    let mut rooms = rooms(100);
    rooms.push(Room { node: NodeId(2), free: Bytes(200 * 4096), huge: BTreeMap::new() });
    let step = coming.step(&mut pages, &mut rooms, LARGE).unwrap();
    assert_eq!(step.stop, MoveStop::Finished);
    assert_eq!((pages.on(1), pages.on(2)), (100, 200));
}

#[test]
fn memory_on_nodes_that_are_left_alone_stays() {
    let mut pages = Simulated::new((0..300).map(|page| (page % 3, Fate::Moves)));
    pages.capacity = vec![usize::MAX; 3];
    let (left, home) = (NodeSet::one(NodeId(2)), NodeSet::one(NodeId(1)));
    let mut coming = Homecoming::leaving(&left, 7, home, vec![pages.range(4096)]);
    assert_eq!(coming.remote(), Bytes(100 * 4096));
    let step = coming.step(&mut pages, &mut rooms(10_000), LARGE).unwrap();
    assert_eq!((step.stop, step.tally.of(Cause::Moved)), (MoveStop::Finished, Bytes(100 * 4096)));
    assert_eq!((pages.on(0), pages.on(1), pages.on(2)), (0, 200, 100));
}

#[test]
fn used_memory_comes_first_and_what_is_left_to_be_used_is_known() {
    let mut pages = Simulated::new((0..8 * 512).map(|_| (0, Fate::Moves)));
    let mut coming = pages.homecoming();
    assert_eq!(coming.hot(), None);
    let region =
        |block, accesses| Region { start: block * BLOCK, end: (block + 1) * BLOCK, accesses };
    coming.rank(&[region(2, 9), region(6, 20)]);
    assert_eq!(coming.hot(), Some(Bytes(2 * BLOCK)));
    let mut order = Vec::new();
    while !coming.is_finished() {
        let budget = Budget { bytes: Bytes(1), time: Duration::MAX };
        coming.step(&mut pages, &mut rooms(10_000), budget).unwrap();
        let is_home = |block: &u64| pages.table[&(block * BLOCK)].0 == 1 && !order.contains(block);
        let new: Vec<u64> = (0..8).filter(is_home).collect();
        order.extend(new);
    }
    assert_eq!(order, [6, 2, 0, 1, 3, 4, 5, 7]);
    assert_eq!(coming.hot(), Some(Bytes(0)));
    assert_eq!(coming.total().of(Cause::Moved), Bytes(8 * BLOCK));
    assert_eq!(coming.total().of(Cause::AlreadyHome), Bytes(0), "nothing is walked twice");
}

#[test]
fn batches_grow_while_they_are_brisk_and_shrink_at_pinned_page() {
    let blocks = 200;
    let mut pages = Simulated::new((0..blocks * 512).map(|_| (0, Fate::Moves)));
    let mut coming = pages.homecoming();
    coming.step(&mut pages, &mut rooms(1 << 20), LARGE).unwrap();
    assert_eq!((pages.on(1), pages.largest_call as u64), (blocks * 512, LARGEST / 4096));
    assert!(pages.calls < 3 * 12, "three calls a batch: {}", pages.calls);

    let fate = |page| if page == 190 * 512 + 7 { Fate::Pinned } else { Fate::Moves };
    let mut pages = Simulated::new((0..blocks * 512).map(|page| (0, fate(page))));
    let mut coming = pages.homecoming();
    let step = coming.step(&mut pages, &mut rooms(1 << 20), LARGE).unwrap();
    assert_eq!(step.tally.of(Cause::Stuck), Bytes(4096));
    assert_eq!(pages.on(1), blocks * 512 - 1);
    assert!(coming.batch < LARGEST, "it begins small again");
}

#[test]
fn batches_that_take_long_stay_small() {
    let mut pages = Simulated::new((0..100 * 512).map(|_| (0, Fate::Moves)));
    pages.tick = Duration::from_millis(5);
    let mut coming = pages.homecoming();
    coming.step(&mut pages, &mut rooms(1 << 20), LARGE).unwrap();
    assert_eq!((pages.on(1), pages.largest_call as u64), (100 * 512, BLOCK / 4096));
}

#[test]
fn huge_pages_step_by_their_size_into_their_own_room() {
    const HUGE: u64 = 2 << 20;
    let mut pages = Simulated::new([]);
    pages.table = (0..8).map(|i| (i * HUGE, (0, Fate::Moves))).collect();
    let mut coming = Homecoming::new(7, NodeSet::one(NodeId(1)), vec![pages.range(HUGE)]);
    let mut rooms = rooms(u64::from(u32::MAX));
    rooms[0].huge.insert(HUGE, 5);
    let budget = Budget { bytes: Bytes(4096), time: Duration::MAX };
    let step = coming.step(&mut pages, &mut rooms, budget).unwrap();
    assert_eq!(step.tally.of(Cause::Moved), Bytes(HUGE), "one huge page even on a small budget");
    let step = coming.step(&mut pages, &mut rooms, LARGE).unwrap();
    assert_eq!((step.stop, step.tally.of(Cause::Moved)), (MoveStop::NoRoom, Bytes(4 * HUGE)));
}

#[test]
fn a_refusal_is_an_error_and_the_cursor_stays() {
    let mut pages = Simulated::new((0..10).map(|_| (0, Fate::Moves)));
    let mut coming = pages.homecoming();
    pages.refuse = Some(libc::EPERM);
    let error = coming.step(&mut pages, &mut rooms(10), LARGE).unwrap_err();
    assert!(error.to_string().contains("CAP_SYS_NICE"), "{error}");
    pages.refuse = Some(libc::ESRCH);
    assert!(coming.step(&mut pages, &mut rooms(10), LARGE).unwrap_err().is_gone());
    pages.refuse = None;
    coming.step(&mut pages, &mut rooms(10), LARGE).unwrap();
    assert_eq!(pages.on(1), 10);
}

#[test]
fn a_real_process_on_its_own_node_is_found_all_at_home() {
    let sleeper = Sleeper::start();
    let (root, key) = (Root::live(), sleeper.key());
    let Ok((guest, _)) = ranges::read(&root, key.pid) else {
        return instep_madehost::skip::note("numa_maps cannot be read here");
    };
    let mut found = guest.all;
    let nodes: NodeSet = found.iter().flat_map(|range| range.by_node.keys().copied()).collect();
    let coming = Homecoming::new(key.pid, nodes.clone(), found.clone());
    assert!(coming.is_finished(), "nothing is remote");
    // As if it had come home since numa_maps was read.
    found.iter_mut().for_each(|range| range.by_node = [(NodeId(900), 1)].into());
    let mut coming = Homecoming::new(key.pid, nodes.clone(), found);
    let mut rooms = room::read(&root, &nodes, None).unwrap();
    let mut pages = KernelPages::of(key.pid, key.pid_start).unwrap();
    let step = coming.step(&mut pages, &mut rooms, LARGE).unwrap();
    assert_eq!((step.stop, step.tally.of(Cause::Moved)), (MoveStop::Finished, Bytes(0)));
    assert!(step.tally.of(Cause::AlreadyHome).0 > 0);
}

#[test]
fn memory_nodes_that_do_not_exist_are_refused_with_the_reason() {
    let sleeper = Sleeper::start();
    let (root, key) = (Root::live(), sleeper.key());
    let Ok((guest, _)) = ranges::read(&root, key.pid) else {
        return instep_madehost::skip::note("numa_maps cannot be read here");
    };
    let mut coming = Homecoming::new(key.pid, NodeSet::one(NodeId(900)), guest.all);
    let mut rooms = vec![Room { node: NodeId(900), free: Bytes(1 << 30), huge: BTreeMap::new() }];
    let mut pages = KernelPages::of(key.pid, key.pid_start).unwrap();
    let error = coming.step(&mut pages, &mut rooms, LARGE).unwrap_err().to_string();
    assert!(error.contains("target node"), "{error}");
}

fn fates() -> impl Strategy<Value = Vec<(u32, Fate)>> {
    let fate = prop_oneof![
        6 => Just(Fate::Moves),
        1 => Just(Fate::Busy),
        1 => Just(Fate::Shared),
        1 => Just(Fate::Pinned),
    ];
    proptest::collection::vec((0u32..2, fate), 1..1500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_pass_ends_and_counts_every_page_once(
        table in fates(),
        budget in 1u64..600,
        room in 0u64..2000,
        holes in proptest::collection::vec(0u64..1500, 0..40),
    ) {
        let mut pages = Simulated::new(table);
        let mut coming = pages.homecoming();
        let range = pages.range(4096);
        let remote_before = pages.on(0);
        for hole in holes {
            pages.table.remove(&(hole * 4096));
        }
        let budget = Budget { bytes: Bytes(budget * 4096), time: Duration::MAX };
        let mut rooms = rooms(room);
        let mut moved = 0;
        loop {
            let step = coming.step(&mut pages, &mut rooms, budget).unwrap();
            prop_assert!(step.tally.of(Cause::Moved).0 < budget.bytes.0 + BLOCK);
            moved += step.tally.of(Cause::Moved).0 / 4096;
            match step.stop {
                MoveStop::Finished => break,
                MoveStop::NoRoom => rooms[0].free = Bytes(100 * 4096),
                MoveStop::Bytes => {}
                MoveStop::Time => prop_assert!(false, "no time passes"),
            }
        }
        prop_assert!(moved as usize <= remote_before);
        let counted: u64 = coming.total().0.values().map(|bytes| bytes.0).sum();
        let walked = if remote_before == 0 { 0 } else { range.end - range.start };
        prop_assert_eq!(counted, walked);
    }
}
