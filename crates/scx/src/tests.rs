//! The kernel's side, tested with a scheduler written in Rust that writes down how it is called.

use crate::abi::{
    CpuMask, DSQ_GLOBAL, DSQ_LOCAL, DSQ_LOCAL_ON, ENQ_PREEMPT, Here, Iter, KICK_IDLE, KICK_PREEMPT,
    Ops, PICK_IDLE_CORE, SLICE_DFL, Task,
};
use crate::kfunc::{
    shim_claim_idle, shim_create_dsq, shim_insert, shim_iter_begin, shim_iter_next, shim_kick,
    shim_move, shim_move_to_local, shim_nr_queued, shim_pick_idle, shim_timer,
};
use crate::{Kernel, Machine, Release, Sizes, TaskSetup, Waker};
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr;

const MS: u64 = 1_000_000;

/// What the scheduler of a test does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    /// One queue for all, in order of coming.
    #[default]
    Shared,
    /// The same, ordered by virtual times: the task's number, reversed.
    Ordered,
    /// Idle CPUs are taken in `select_cpu`.
    Idle,
    /// Straight to CPU 1, where what runs gives way.
    Preempt,
    /// To a CPU that it may not use.
    Forbidden,
    /// Nowhere: it keeps the task.
    Keep,
    /// Kept, and inserted by `dispatch`.
    Insert,
    /// To a queue that there is not.
    Nowhere,
    /// Into the global queue.
    Global,
}

thread_local! {
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static WAY: Cell<Way> = const { Cell::new(Way::Shared) };
    static KICK: Cell<Option<(i32, u64)>> = const { Cell::new(None) };
    static SLICE: Cell<u64> = const { Cell::new(3 * MS) };
    static KEPT: RefCell<Vec<Task>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" {
    safe fn shim_where() -> *const Here;
}

fn here() -> &'static Here {
    // SAFETY: only asked inside of operations.
    unsafe { &*shim_where() }
}

fn kernel() -> *const c_void {
    here().kernel.get()
}

fn note(text: String) {
    CALLS.with_borrow_mut(|calls| calls.push(text));
}

fn calls() -> Vec<String> {
    CALLS.take()
}

fn number(p: Task) -> u32 {
    // SAFETY: tasks that operations are given are the instance's.
    unsafe { (*p).index }
}

unsafe extern "C" fn select_cpu(p: Task, prev: i32, _flags: u64) -> i32 {
    note(format!("select {}", number(p)));
    if WAY.get() == Way::Idle {
        // SAFETY: inside of an operation.
        let cpu = unsafe { shim_pick_idle(kernel(), (*p).cpus_ptr, 0) };
        if cpu >= 0 {
            // SAFETY: as above.
            unsafe { shim_insert(kernel(), p, DSQ_LOCAL, SLICE.get(), 0, 0, false) };
            return cpu;
        }
    }
    prev
}

unsafe extern "C" fn enqueue(p: Task, flags: u64) {
    note(format!("enqueue {}", number(p)));
    // SAFETY: inside of an operation.
    let insert = |dsq, vtime, flags, ordered| unsafe {
        shim_insert(kernel(), p, dsq, SLICE.get(), vtime, flags, ordered);
    };
    match WAY.get() {
        Way::Shared | Way::Idle => insert(7, 0, flags, false),
        Way::Ordered => insert(7, 100 - u64::from(number(p)), flags, true),
        Way::Preempt => insert(DSQ_LOCAL_ON | 1, 0, flags | ENQ_PREEMPT, false),
        Way::Forbidden => insert(DSQ_LOCAL_ON | 3, 0, flags, false),
        Way::Nowhere => insert(99, 0, flags, false),
        Way::Global => insert(DSQ_GLOBAL, 0, flags, false),
        Way::Keep | Way::Insert => KEPT.with_borrow_mut(|kept| kept.push(p)),
    }
    if let Some((cpu, flags)) = KICK.take() {
        // SAFETY: as above.
        unsafe { shim_kick(kernel(), cpu, flags) };
    }
}

unsafe extern "C" fn dispatch(cpu: i32, prev: Task) {
    let prev = if prev.is_null() { "-".to_owned() } else { number(prev).to_string() };
    note(format!("dispatch {cpu} {prev}"));
    if WAY.get() == Way::Insert {
        let kept = KEPT.take();
        // SAFETY: inside of an operation; kept tasks are the instance's.
        kept.iter().for_each(|p| unsafe {
            shim_insert(kernel(), *p, DSQ_LOCAL, SLICE.get(), 0, 0, false);
        });
        return;
    }
    // SAFETY: as above.
    unsafe { shim_move_to_local(kernel(), 7, 0) };
}

unsafe extern "C" fn yield_to(from: Task, to: Task) -> bool {
    let to = if to.is_null() { "-".to_owned() } else { number(to).to_string() };
    note(format!("yield {} {to}", number(from)));
    // SAFETY: it is the instance's.
    unsafe { (*from).scx.slice.set(0) };
    to != "-"
}

unsafe extern "C" fn init() -> i32 {
    // SAFETY: inside of an operation.
    unsafe { shim_create_dsq(kernel(), 7) }
}

unsafe extern "C" fn dequeue(p: Task, _flags: u64) {
    note(format!("dequeue {}", number(p)));
}
unsafe extern "C" fn tick(p: Task) {
    note(format!("tick {}", number(p)));
}
unsafe extern "C" fn runnable(p: Task, _flags: u64) {
    note(format!("runnable {}", number(p)));
}
unsafe extern "C" fn running(p: Task) {
    note(format!("running {} on {}", number(p), here().cpu.get()));
}
unsafe extern "C" fn stopping(p: Task, runnable: bool) {
    note(format!("stopping {} {runnable}", number(p)));
}
unsafe extern "C" fn quiescent(p: Task, _flags: u64) {
    note(format!("quiescent {}", number(p)));
}

fn ops() -> Ops {
    Ops {
        select_cpu: Some(select_cpu),
        enqueue: Some(enqueue),
        dequeue: Some(dequeue),
        dispatch: Some(dispatch),
        tick: Some(tick),
        runnable: Some(runnable),
        running: Some(running),
        stopping: Some(stopping),
        quiescent: Some(quiescent),
        yield_to: Some(yield_to),
        init: Some(init),
        timeout_ms: 1000,
        ..Ops::NONE
    }
}

/// A host of cores with two CPUs each and tasks that may use all but the last CPU.
fn host(way: Way, cpus: usize, tasks: usize) -> Kernel {
    loaded(way, cpus, tasks, ops(), Release::V7_2)
}

fn loaded(way: Way, cpus: usize, tasks: usize, ops: Ops, release: Release) -> Kernel {
    WAY.set(way);
    SLICE.set(3 * MS);
    KICK.set(None);
    KEPT.take();
    let core = (0..cpus).map(|cpu| vec![cpu & !1, cpu | 1]).collect();
    let machine = Machine { core, node: vec![0; cpus] };
    let allowed = CpuMask::of(0..cpus.max(2) - 1);
    let task = TaskSetup { allowed, cpu: 0, flags: 0 };
    let sizes = Sizes { globals: 8, storage: 8, thread: 8 };
    let mut kernel =
        Kernel::new(machine, &vec![task; tasks], ops, sizes, 1, release).expect("it fits");
    kernel.load(0).expect("it loads");
    calls();
    kernel
}

fn wake(kernel: &mut Kernel, task: usize, now: u64) {
    kernel.wake(task, Waker::Interrupt(0), now);
}

/// All CPUs that were told to choose do so.
fn schedule(kernel: &mut Kernel, now: u64) {
    while let Some(cpu) = kernel.take_resched() {
        kernel.schedule(cpu, now);
    }
}

#[test]
fn callbacks_of_a_task_come_in_the_kernels_order() {
    let mut kernel = host(Way::Shared, 2, 1);
    wake(&mut kernel, 0, 0);
    schedule(&mut kernel, 0);
    kernel.tick(0, MS);
    kernel.tick(0, 4 * MS);
    schedule(&mut kernel, 4 * MS);
    kernel.block(0, 5 * MS);
    // Tasks of one CPU are not asked where to go.
    let life = "runnable 0, enqueue 0, dispatch 0 -, dequeue 0, running 0 on 0, tick 0, tick 0, \
                dispatch 0 0, stopping 0 false, quiescent 0, dispatch 0 0";
    assert_eq!(calls().join(", "), life);
    assert_eq!(kernel.ejected(), None);
}

#[test]
fn a_task_that_goes_to_a_cpus_own_queue_is_never_in_custody() {
    let mut kernel = host(Way::Idle, 4, 1);
    wake(&mut kernel, 0, 0);
    schedule(&mut kernel, 0);
    assert_eq!(calls().join(", "), "select 0, runnable 0, running 0 on 1");
    assert_eq!(kernel.current(1), Some(0), "searches begin after CPU 0");
}

#[test]
fn before_7_1_dispatching_did_not_call_dequeue() {
    for (release, expected) in [(Release::V6_12, 0), (Release::V7_2, 1)] {
        let mut kernel = loaded(Way::Shared, 2, 1, ops(), release);
        wake(&mut kernel, 0, 0);
        schedule(&mut kernel, 0);
        let found = calls().iter().filter(|call| *call == "dequeue 0").count();
        assert_eq!(found, expected, "{release:?}");
    }
}

#[test]
fn leaving_a_queue_otherwise_is_reported_since_7_1() {
    for (way, release, expected) in [
        (Way::Shared, Release::V6_12, 0),
        (Way::Shared, Release::V7_2, 1),
        (Way::Keep, Release::V6_12, 1),
        (Way::Keep, Release::V7_2, 1),
    ] {
        let mut kernel = loaded(way, 2, 2, ops(), release);
        wake(&mut kernel, 0, 0);
        calls();
        kernel.set_affinity(0, &CpuMask::of([0, 1]), 0);
        let found = calls().iter().filter(|call| *call == "dequeue 0").count();
        assert_eq!(found, expected, "{way:?} {release:?}");
    }
}

#[test]
fn a_slice_ends_at_a_tick_and_another_gets_the_cpu() {
    let mut kernel = host(Way::Shared, 2, 2);
    wake(&mut kernel, 0, 0);
    schedule(&mut kernel, 0);
    wake(&mut kernel, 1, 0);
    schedule(&mut kernel, 0);
    assert_eq!(kernel.current(0), Some(0), "who has time left is not disturbed");
    kernel.tick(0, 2 * MS);
    schedule(&mut kernel, 2 * MS);
    assert_eq!(kernel.current(0), Some(0));
    kernel.tick(0, 4 * MS);
    calls();
    schedule(&mut kernel, 4 * MS);
    assert_eq!(kernel.current(0), Some(1));
    let change = "dispatch 0 0, dequeue 1, stopping 0 true, enqueue 0, running 1 on 0";
    assert_eq!(calls().join(", "), change);
}

#[test]
fn lone_task_goes_on_with_a_new_slice() {
    let mut kernel = host(Way::Shared, 2, 1);
    wake(&mut kernel, 0, 0);
    schedule(&mut kernel, 0);
    kernel.tick(0, 4 * MS);
    schedule(&mut kernel, 4 * MS);
    assert_eq!(kernel.current(0), Some(0));
    assert_eq!(kernel.task(0).scx.slice.get(), SLICE_DFL);
}

#[test]
fn ordered_queues_give_the_least_virtual_time_first() {
    let mut kernel = host(Way::Ordered, 2, 4);
    wake(&mut kernel, 0, 0);
    schedule(&mut kernel, 0);
    (1..4).for_each(|task| wake(&mut kernel, task, 0));
    let mut order = Vec::new();
    for now in 1..4 {
        kernel.block(0, now * MS);
        order.extend(kernel.current(0));
    }
    assert_eq!(order, [3, 2, 1]);
}

#[test]
fn an_insertion_with_preemption_ends_the_slice_there() {
    let mut kernel = host(Way::Shared, 4, 2);
    WAY.set(Way::Preempt);
    wake(&mut kernel, 0, 0);
    schedule(&mut kernel, 0);
    assert_eq!(kernel.current(1), Some(0));
    wake(&mut kernel, 1, MS);
    assert_eq!(kernel.task(0).scx.slice.get(), 0);
    schedule(&mut kernel, MS);
    assert_eq!(kernel.current(1), Some(1));
}

#[test]
fn kicks_preempt_wake_idle_cpus_and_leave_others_alone() {
    let mut kernel = host(Way::Shared, 4, 3);
    wake(&mut kernel, 0, 0);
    schedule(&mut kernel, 0);
    KICK.set(Some((0, KICK_IDLE)));
    wake(&mut kernel, 1, 0);
    assert!(!kernel.wants_schedule(0), "CPU 0 is busy");
    KICK.set(Some((2, KICK_IDLE)));
    wake(&mut kernel, 2, 0);
    schedule(&mut kernel, 0);
    assert_eq!(kernel.current(2), Some(1), "an idle CPU that was kicked looks for work");
    KICK.set(Some((0, KICK_PREEMPT)));
    kernel.block(2, MS);
    wake(&mut kernel, 1, MS);
    schedule(&mut kernel, MS);
    assert_eq!(kernel.current(0), Some(1), "who was kicked gave way to who waited");
}

#[test]
fn whole_cores_are_idle_until_one_of_their_cpus_is_claimed() {
    let mut kernel = host(Way::Idle, 6, 4);
    assert!((0..6).all(|cpu| kernel.is_core_idle(cpu)));
    (0..4).for_each(|task| wake(&mut kernel, task, 0));
    assert!((0..4).all(|cpu| !kernel.is_core_idle(cpu)));
    schedule(&mut kernel, 0);
    let runs: Vec<_> = (0..6).map(|cpu| kernel.current(cpu)).collect();
    // Cores first: one on each; the fourth goes on a second thread.
    assert_eq!(runs, [Some(3), Some(0), Some(1), None, Some(2), None]);
    assert!(kernel.is_idle(3) && !kernel.is_idle(4));
    kernel.block(2, MS);
    assert!(kernel.is_core_idle(2) && kernel.is_core_idle(3));
}

#[test]
fn a_claimed_cpu_that_gets_nothing_is_idle_again_when_it_looks() {
    let kernel = &mut host(Way::Keep, 4, 1);
    unsafe extern "C" fn claims(p: Task, prev: i32, _flags: u64) -> i32 {
        // SAFETY: inside of an operation.
        unsafe {
            let core = shim_pick_idle(kernel_pointer(), (*p).cpus_ptr, PICK_IDLE_CORE);
            assert!(core >= 0 && !shim_claim_idle(kernel_pointer(), core));
            assert!(shim_claim_idle(kernel_pointer(), core ^ 1), "its sibling is still idle");
        }
        prev
    }
    fn kernel_pointer() -> *const c_void {
        super::tests::kernel()
    }
    *kernel = loaded(Way::Keep, 4, 1, Ops { select_cpu: Some(claims), ..ops() }, Release::V7_2);
    wake(kernel, 0, 0);
    let busy: Vec<_> = (0..4).filter(|cpu| !kernel.is_idle(*cpu)).collect();
    assert_eq!(busy.len(), 2);
    // The task's own CPU is told to look, as the waking task belongs to it.
    schedule(kernel, 0);
    assert!(kernel.is_idle(0) && kernel.current(0).is_none());
}

#[test]
fn kept_tasks_run_when_dispatch_inserts_them() {
    let mut kernel = host(Way::Insert, 2, 2);
    wake(&mut kernel, 0, 0);
    wake(&mut kernel, 1, 0);
    schedule(&mut kernel, 0);
    assert_eq!(kernel.current(0), Some(0));
    kernel.block(0, MS);
    assert_eq!(kernel.current(0), Some(1));
    assert_eq!(kernel.ejected(), None);
}

#[test]
fn the_global_queue_serves_every_cpu_before_dispatch_is_asked() {
    let mut kernel = host(Way::Global, 2, 1);
    wake(&mut kernel, 0, 0);
    schedule(&mut kernel, 0);
    assert_eq!(kernel.current(0), Some(0));
    assert!(!calls().iter().any(|call| call.starts_with("dispatch")));
}

#[test]
fn scheduler_is_ejected_as_by_the_kernel_and_tasks_run_on() {
    for (way, word) in [(Way::Forbidden, "may not use CPU 3"), (Way::Nowhere, "which is none")] {
        let mut kernel = host(way, 4, 2);
        wake(&mut kernel, 0, 0);
        let why = kernel.ejected().expect("it is thrown out");
        assert!(why.contains(word), "{why}");
        wake(&mut kernel, 1, 0);
        schedule(&mut kernel, 0);
        let running = (0..4).filter(|cpu| kernel.current(*cpu).is_some()).count();
        assert!(running >= 1, "{way:?}");
        calls();
        kernel.tick(0, MS);
        assert_eq!(calls(), Vec::<String>::new(), "nobody asks it any more");
    }
}

#[test]
fn a_task_that_is_forgotten_is_found_by_the_watchdog() {
    let mut kernel = host(Way::Keep, 2, 1);
    wake(&mut kernel, 0, 0);
    schedule(&mut kernel, 0);
    kernel.tick(0, 900 * MS);
    assert_eq!(kernel.ejected(), None);
    kernel.tick(0, 1600 * MS);
    assert!(kernel.ejected().is_some_and(|why| why.contains("did not run for 1600 ms")));
}

#[test]
fn yielding_to_a_sibling_asks_scheduler_only_where_it_can_help() {
    let mut kernel = host(Way::Shared, 2, 3);
    wake(&mut kernel, 0, 0);
    schedule(&mut kernel, 0);
    assert!(!kernel.yield_to(0, Some(1), MS), "it sleeps");
    wake(&mut kernel, 1, MS);
    schedule(&mut kernel, MS);
    calls();
    assert!(kernel.yield_to(0, Some(1), 2 * MS));
    schedule(&mut kernel, 2 * MS);
    assert_eq!(calls()[0], "yield 0 1");
    assert_eq!(kernel.current(0), Some(1));
}

#[test]
fn changed_affinity_is_seen_as_sleep_and_wake_and_moves_the_task() {
    let mut kernel = host(Way::Shared, 4, 1);
    wake(&mut kernel, 0, 0);
    schedule(&mut kernel, 0);
    calls();
    kernel.set_affinity(0, &CpuMask::of([0, 1]), MS);
    let told = "stopping 0 false, quiescent 0, runnable 0, running 0 on 0";
    assert_eq!(calls().join(", "), told);
    assert_eq!(kernel.current(0), Some(0), "it may stay");
    kernel.set_affinity(0, &CpuMask::of([2]), 2 * MS);
    schedule(&mut kernel, 2 * MS);
    assert_eq!((kernel.current(0), kernel.current(2)), (None, Some(0)));
    assert_eq!(kernel.ejected(), None);
}

#[test]
fn running_task_whose_affinity_changes_is_not_moved_by_enqueue() {
    let mut kernel = host(Way::Shared, 4, 1);
    wake(&mut kernel, 0, 0);
    schedule(&mut kernel, 0);
    WAY.set(Way::Preempt);
    kernel.set_affinity(0, &CpuMask::of([0, 1]), MS);
    schedule(&mut kernel, MS);
    assert_eq!((kernel.current(0), kernel.current(1)), (Some(0), None));
    kernel.block(0, 2 * MS);
    wake(&mut kernel, 0, 3 * MS);
    schedule(&mut kernel, 3 * MS);
    assert_eq!((kernel.current(0), kernel.current(1)), (None, Some(0)));
    assert_eq!(kernel.ejected(), None);
}

#[test]
fn a_task_is_chosen_out_of_the_middle_of_a_queue() {
    unsafe extern "C" fn last_first(cpu: i32, _prev: Task) {
        // SAFETY: inside of an operation.
        unsafe {
            let mut iter = Iter { dsq_id: 7, ..Iter::default() };
            shim_iter_begin(kernel(), &mut iter);
            let mut chosen = ptr::null();
            loop {
                let p = shim_iter_next(kernel(), &mut iter);
                if p.is_null() {
                    break;
                }
                chosen = p;
            }
            if chosen.is_null() {
                return;
            }
            let before = shim_nr_queued(kernel(), 7);
            let to = DSQ_LOCAL_ON | cpu as u64;
            assert!(shim_move(kernel(), &iter, chosen, to, 0, false));
            assert!(!shim_move(kernel(), &iter, chosen, to, 0, false), "it is gone");
            assert_eq!(shim_nr_queued(kernel(), 7), before - 1);
        }
    }
    let ops = Ops { dispatch: Some(last_first), ..ops() };
    let mut kernel = loaded(Way::Shared, 2, 3, ops, Release::V7_2);
    (0..3).for_each(|task| wake(&mut kernel, task, 0));
    schedule(&mut kernel, 0);
    assert_eq!(kernel.current(0), Some(2));
}

#[test]
fn timers_fire_once_in_order_of_time() {
    unsafe extern "C" fn callback(_: *mut c_void, _: *mut i32, timer: *mut c_void) -> i32 {
        note(format!("timer {}", timer as usize));
        0
    }
    unsafe extern "C" fn starts() -> i32 {
        let callback = callback as *const c_void;
        for (timer, at) in [(1, 30), (2, 10), (3, 20), (1, 5)] {
            let timer = ptr::without_provenance_mut(timer);
            // SAFETY: inside of an operation.
            unsafe { shim_timer(kernel(), timer, callback, ptr::null(), ptr::null(), at) };
        }
        0
    }
    let ops = Ops { init: Some(starts), ..ops() };
    let mut kernel = loaded(Way::Keep, 2, 1, ops, Release::V7_2);
    assert_eq!(kernel.next_timer(), Some(5));
    assert!(!kernel.fire_timer(0, 4));
    while kernel.fire_timer(0, 10) {}
    assert_eq!((calls().join(", ").as_str(), kernel.next_timer()), ("timer 1, timer 2", Some(20)));
}

#[test]
fn instances_do_not_see_each_other() {
    let (mut one, mut other) = (host(Way::Shared, 2, 1), host(Way::Shared, 2, 1));
    wake(&mut one, 0, 0);
    schedule(&mut one, 0);
    wake(&mut other, 0, 5 * MS);
    schedule(&mut other, 5 * MS);
    one.block(0, MS);
    assert_eq!((one.current(0), other.current(0)), (None, Some(0)));
}
