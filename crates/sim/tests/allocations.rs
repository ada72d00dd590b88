//! In its steady state no event allocates: counted by an allocator, for every scheduler. Only a queue
//! that is longer than ever before may ask for room.

#![cfg(test)]
#![allow(missing_docs, reason = "a test")]

use instep_sim::engine::Engine;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;
use instep_sim::sched;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts what this thread asks of it.
struct Counting;

// SAFETY: every call is passed on to the system's allocator as it is; the counter is a plain cell
// that needs no allocation itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the promises of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above; `at` came from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above; `at` came from the system's allocator.
        unsafe { System.realloc(at, layout, size) }
    }
}

fn count() {
    // A thread that ends may have no counter any more.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SECOND: u64 = 1_000_000_000;

fn plan(scheduler: &str) -> SimulationPlan {
    let mut text = format!(
        "about = \"it\"\nscheduler = \"{scheduler}\"\nduration = \"9s\"\nwarmup = \"0s\"\n\
         [host]\nnodes = 2\ncores = 2\nthreads = 2\nmemory = \"64GiB\"\nnoise = true\n"
    );
    let loads = [
        "spin",
        "instep-load barrier --phase 200us --imbalance 30%",
        "instep-load lock --kind kernel-spin --hold 20us --think 40us",
        "instep-load fib 30",
        "instep-load io --threads 6 --float --compute 200us --wait 500us",
    ];
    for (at, load) in loads.iter().enumerate() {
        text.push_str(&format!(
            "[[guest]]\nname = \"g{at}\"\nvcpus = 5\nmemory = \"1GiB\"\nload = \"{load}\"\n"
        ));
    }
    text.push_str(
        "[[guest]]\nname = \"crowd\"\nvcpus = 40\nmemory = \"1GiB\"\nload = \"spin\"\n\
         allowed = \"0-1\"\n",
    );
    SimulationPlan::new(&Scenario::parse(&text).unwrap(), &|_| Err(String::new())).unwrap()
}

/// Allocations and events in the steady state under this scheduler.
fn steady(name: &str) -> (u64, u64) {
    let plan = plan(name);
    let mut engine = Engine::new(plan.setup.clone(), plan.scheduler());
    engine.begin();
    // Queues reach their lengths.
    while engine.advance(2 * SECOND) {}
    let (before, events) = (COUNT.get(), engine.events());
    while engine.advance(9 * SECOND / 4) {}
    (COUNT.get() - before, engine.events() - events)
}

fn allocates_hardly_ever(name: &str) {
    let (allocations, events) = steady(name);
    assert!(events > 3_000, "{name}: {events} events");
    // A queue may reach a new length, seldom.
    assert!(allocations * 50_000 <= events, "{name}: {allocations} in {events} events");
}

#[test]
fn no_event_allocates_in_the_steady_state() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    sched::NAMES
        .iter()
        .filter(|name| **name != "instep")
        .for_each(|name| allocates_hardly_ever(name));
}

#[test]
fn no_event_of_the_kernel_scheduler_allocates() {
    allocates_hardly_ever("instep");
}
