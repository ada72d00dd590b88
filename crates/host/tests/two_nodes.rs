//! Memory really moves between NUMA nodes: on a machine with at least two, skipped elsewhere. Run
//! in an emulated host (QEMU `-numa`) this shows what the simulated page table assumes.
#![expect(clippy::unwrap_used, reason = "all of this is a test, which fails by a panic")]

use instep_core::idset::NodeSet;
use instep_core::units::{Bytes, NodeId};
use instep_host::Root;
use instep_host::apply::move_pages::{KernelPages, Pages};
use instep_host::apply::ranges::{self, Range};
use instep_host::apply::{Budget, Cause, Homecoming, MoveStop, room, thread};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::time::Duration;

const ROLE: &str = "INSTEP_TEST_OWNER_OF_MEMORY";
const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// The nodes that have memory, if there are two: where from, where to.
fn two_nodes() -> Option<(u32, u32)> {
    let text = Root::live().read("sys/devices/system/node/has_memory").unwrap_or_default();
    let nodes = NodeSet::parse_list(&text).unwrap_or_default();
    let mut nodes = nodes.iter().map(|node| node.0);
    match (nodes.next(), nodes.next()) {
        (Some(from), Some(to)) => Some((from, to)),
        _ => {
            instep_madehost::skip::note("this machine has one NUMA node; an emulated one has two");
            None
        }
    }
}

/// A child that owns memory of some kind on node `from`.
struct Owner {
    child: Child,
    start: u64,
    length: u64,
}

impl Owner {
    /// `None` (told) when this machine cannot give that kind of memory.
    fn of(kind: &str, from: u32) -> Option<Self> {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "helper_that_owns_memory", "--nocapture"])
            .env(ROLE, format!("{kind} {from}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.find_map(|line| {
            let line = line.unwrap();
            line.split_once("memory: ").map(|(_, rest)| rest.to_owned())
        });
        let words: Vec<u64> =
            line.unwrap_or_default().split(' ').filter_map(|word| word.parse().ok()).collect();
        let &[start, length] = words.as_slice() else {
            instep_madehost::skip::note(&format!("no memory of kind {kind} here"));
            let _ = child.wait();
            return None;
        };
        Some(Self { child, start, length })
    }

    fn ranges(&self) -> Vec<Range> {
        let (guest, warnings) = ranges::read(&Root::live(), self.child.id()).unwrap();
        assert_eq!(warnings, Vec::<String>::new());
        let end = self.start + self.length;
        let mut ranges = guest.all;
        ranges.retain(|range| range.start < end && self.start < range.end);
        ranges
    }

    fn bytes_on(&self, node: u32) -> u64 {
        let on = |range: &Range| range.by_node.get(&NodeId(node)).map_or(0, |n| n * range.page);
        self.ranges().iter().map(on).sum()
    }

    fn pages(&self) -> KernelPages {
        let pid = self.child.id();
        let start = thread::key_of(&Root::live(), pid, instep_core::units::Tid(pid)).unwrap();
        KernelPages::of(pid, start.pid_start).unwrap()
    }

    /// Brings everything to node `to`; the tally and how many steps it took.
    fn bring_to(&self, to: u32, budget: Budget) -> (Homecoming, usize) {
        let home = NodeSet::one(NodeId(to));
        let mut coming = Homecoming::new(self.child.id(), home.clone(), self.ranges());
        let mut steps = 0;
        loop {
            let mut rooms = room::read(&Root::live(), &home, Some(Bytes::from_mib(16))).unwrap();
            let step = coming.step(&mut self.pages(), &mut rooms, budget).unwrap();
            steps += 1;
            assert!(step.tally.of(Cause::Moved).0 < budget.bytes.0.saturating_add(2 << 20));
            assert_ne!(step.stop, MoveStop::NoRoom, "{:?}", coming.total());
            if step.stop == MoveStop::Finished {
                eprintln!("{steps} steps: {:?}", coming.total());
                return (coming, steps);
            }
            assert!(steps < 10_000, "does not end");
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const LARGE: Budget = Budget { bytes: Bytes(1 << 40), time: Duration::from_secs(60) };

#[test]
fn small_pages_come_home_within_the_budget() {
    let Some((from, to)) = two_nodes() else { return };
    let Some(owner) = Owner::of("small", from) else { return };
    assert_eq!((owner.bytes_on(from), owner.bytes_on(to)), (owner.length, 0));
    let budget = Budget { bytes: Bytes::from_mib(4), ..LARGE };
    let (coming, steps) = owner.bring_to(to, budget);
    assert_eq!(coming.total().of(Cause::Moved), Bytes(owner.length));
    assert!(steps as u64 >= owner.length / (6 << 20));
    assert_eq!((owner.bytes_on(from), owner.bytes_on(to)), (0, owner.length));
}

#[test]
fn transparent_huge_pages_come_home() {
    let Some((from, to)) = two_nodes() else { return };
    let Some(owner) = Owner::of("transparent", from) else { return };
    let (coming, _) = owner.bring_to(to, LARGE);
    assert_eq!(coming.total().of(Cause::Moved), Bytes(owner.length), "{:?}", coming.total());
    assert_eq!((owner.bytes_on(from), owner.bytes_on(to)), (0, owner.length));
}

#[test]
fn hugetlb_pages_move_whole() {
    let Some((from, to)) = two_nodes() else { return };
    let Some(owner) = Owner::of("hugetlb", from) else { return };
    assert!(owner.ranges().iter().all(|range| range.page == 2 << 20));
    let (coming, _) = owner.bring_to(to, Budget { bytes: Bytes(1), ..LARGE });
    assert_eq!(coming.total().of(Cause::Moved), Bytes(owner.length), "{:?}", coming.total());
    assert_eq!((owner.bytes_on(from), owner.bytes_on(to)), (0, owner.length));
}

#[test]
fn pages_pinned_for_a_device_stay_and_do_not_hold_up_the_others() {
    let Some((from, to)) = two_nodes() else { return };
    let Some(owner) = Owner::of("pinned", from) else { return };
    let (coming, _) = owner.bring_to(to, LARGE);
    let pinned = Bytes(PINNED as u64);
    assert_eq!(coming.total().of(Cause::Stuck), pinned, "{:?}", coming.total());
    assert_eq!(owner.bytes_on(from), pinned.0);
    assert_eq!(owner.bytes_on(to), owner.length - pinned.0);
}

#[test]
fn pages_that_other_processes_map_stay_and_are_counted_as_shared() {
    let Some((from, to)) = two_nodes() else { return };
    let Some(owner) = Owner::of("shared", from) else { return };
    let (coming, _) = owner.bring_to(to, LARGE);
    assert_eq!(coming.total().of(Cause::Shared), Bytes(owner.length), "{:?}", coming.total());
    assert_eq!(owner.bytes_on(from), owner.length);
}

#[test]
fn untouched_and_zero_pages_are_distinguished_from_memory() {
    let Some((from, to)) = two_nodes() else { return };
    let Some(owner) = Owner::of("sparse", from) else { return };
    let (coming, _) = owner.bring_to(to, LARGE);
    // Every third page written, every third only read, every third untouched.
    let third = Bytes(owner.length / 3);
    let of = |cause| coming.total().of(cause);
    assert_eq!(of(Cause::Moved), third, "{:?}", coming.total());
    assert_eq!(of(Cause::ZeroOrSpecial).0 + of(Cause::NotPresent).0, 2 * third.0);
}

#[test]
fn full_target_node_is_refused_by_its_reserve_and_nothing_moves() {
    let Some((from, to)) = two_nodes() else { return };
    let Some(owner) = Owner::of("small", from) else { return };
    let home = NodeSet::one(NodeId(to));
    let mut coming = Homecoming::new(owner.child.id(), home.clone(), owner.ranges());
    let mut rooms = room::read(&Root::live(), &home, Some(Bytes(1 << 50))).unwrap();
    let step = coming.step(&mut owner.pages(), &mut rooms, LARGE).unwrap();
    assert_eq!((step.stop, step.tally.of(Cause::Moved)), (MoveStop::NoRoom, Bytes(0)));
    assert_eq!(owner.bytes_on(from), owner.length);
}

#[test]
fn the_kernel_leaves_the_status_of_a_failed_group_unwritten() {
    let Some((from, to)) = two_nodes() else { return };
    let Some(owner) = Owner::of("pinned", from) else { return };
    let first = owner.start + FIRST_PINNED as u64;
    let pages: Vec<u64> = (0..4).map(|i| first - 2 * PAGE as u64 + i * PAGE as u64).collect();
    let mut status = [i32::MIN; 4];
    owner.pages().move_to(&pages, &[NodeId(to); 4], &mut status).unwrap();
    let mut now = [i32::MIN; 4];
    owner.pages().query(&pages, &mut now).unwrap();
    assert_eq!(now, [to as i32, to as i32, from as i32, from as i32]);
    assert_eq!(status, [i32::MIN; 4], "two moved and two did not, and none is told");
}

/// Where and how much of the "pinned" memory is pinned.
const FIRST_PINNED: usize = 5 * MIB;
const PINNED: usize = 64 * PAGE;

/// Run in a process of its own by [`Owner::of`]; does nothing otherwise.
#[test]
fn helper_that_owns_memory() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (kind, node) = role.split_once(' ').unwrap();
    let mask = 1u64 << node.parse::<u32>().unwrap();
    const MPOL_BIND: libc::c_int = 2;
    // SAFETY: `mask` is a node mask of the 64 bits announced (the kernel wants one more).
    let bound = unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_BIND, &raw const mask, 65) };
    assert_eq!(bound, 0);
    let length = if kind == "hugetlb" { 8 * MIB } else { 12 * MIB };
    let flags = match kind {
        "hugetlb" => libc::MAP_PRIVATE | libc::MAP_HUGETLB,
        "shared" => libc::MAP_SHARED,
        _ => libc::MAP_PRIVATE,
    };
    let Some(start) = map(length, flags | libc::MAP_ANONYMOUS) else { return };
    let huge = if kind == "transparent" { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: exactly the mapping above.
    let advised = unsafe { libc::madvise(start.cast(), length, huge) };
    if kind == "transparent" && advised != 0 {
        return;
    }
    for page in 0..length / PAGE {
        // SAFETY: inside the mapping; volatile, so that it is not left out.
        let at = unsafe { start.add(page * PAGE) };
        match (kind, page % 3) {
            // SAFETY: as above.
            ("sparse", 1) => assert_eq!(unsafe { at.read_volatile() }, 0),
            ("sparse", 2) => {}
            // SAFETY: as above.
            _ => unsafe { at.write_volatile(1) },
        }
    }
    if kind == "pinned" && !pin(start as usize + FIRST_PINNED, PINNED) {
        return;
    }
    // SAFETY: the child only touches the shared mapping and waits; it makes no other use of the
    // state that a fork of a threaded process leaves undefined, and ends by _exit.
    let other = if kind == "shared" { unsafe { libc::fork() } } else { -1 };
    if other == 0 {
        for page in 0..length / PAGE {
            // SAFETY: inside the mapping.
            unsafe { start.add(page * PAGE).write_volatile(2) };
        }
        // SAFETY: ends this process alone.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::sleep(60);
            libc::_exit(0);
        }
    }
    if kind == "shared" {
        std::thread::sleep(Duration::from_millis(500));
    }
    println!("memory: {} {length}", start as usize);
    std::io::stdout().flush().unwrap();
    // Until the parent ends us or itself.
    let _ = std::io::stdin().read(&mut [0]);
}

fn map(length: usize, flags: libc::c_int) -> Option<*mut u8> {
    // SAFETY: a new mapping at an address of the kernel's choice, never unmapped.
    let start = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0)
    };
    (start != libc::MAP_FAILED).then(|| start.cast())
}

/// Pins memory as a device driver would, by registering it as an io_uring buffer.
fn pin(start: usize, length: usize) -> bool {
    const REGISTER_BUFFERS: libc::c_int = 0;
    // struct io_uring_params is 120 bytes, zero for no options.
    let mut params = [0u8; 120];
    let buffer = libc::iovec { iov_base: start as *mut libc::c_void, iov_len: length };
    // SAFETY: `params` and `buffer` have the ABI's layout; the descriptor stays open with the
    // process and with it the pin.
    unsafe {
        let ring = libc::syscall(libc::SYS_io_uring_setup, 2, params.as_mut_ptr());
        ring >= 0
            && libc::syscall(
                libc::SYS_io_uring_register,
                ring,
                REGISTER_BUFFERS,
                &raw const buffer,
                1,
            ) == 0
    }
}
