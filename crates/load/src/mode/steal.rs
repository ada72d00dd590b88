//! Backtracking-based work stealing (systems.md 1): how `fib` and `nqueens` share their tree.
//!
//! Each worker walks a tree of choices depth first, with no task queue: its stack is all there
//! is. An idle worker asks another at random; that one looks, between two nodes, at its stack from
//! the bottom up, gives away half of the untried children of the oldest node that has some (the
//! largest task), and goes on. It always keeps something to do, so that a task cannot be passed
//! around unworked.
//!
//! ```text
//!   idle --ask--> victim: request = me + 1
//!     ^              | oldest node that can be split      | nothing worth giving
//!     |              v                                    v
//!     |           reply: given -> walk the task        reply: refused
//!     +---------------- task done <-----+                 |
//!     +---------------------------------------------------+
//! ```
//!
//! Unlike the published system, a victim never waits for the result of what it gave away: values
//! are sums, added up at the end of the task. So a round ends when no task is left, and whoever
//! ended the last one checks the value and starts the next round.

use crate::args::Args;
use crate::clock;
use crate::error::LoadError;
use crate::frame::{Mode, Worker};
use crate::json::Object;
use crate::rng::Rng;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The deepest tree.
const DEPTH: usize = 64;
/// Nodes between two updates of the work done.
const NODES_PER_UPDATE: u64 = 1024;
/// Pauses of an idle worker before it offers its CPU to others.
const PAUSES: u32 = 64;

const ROUNDS: usize = 0;
const STEALS: usize = 1;
const REFUSALS: usize = 2;

/// A child of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child<N> {
    /// No further choices; the value it adds.
    Leaf(u64),
    /// A node with children of its own.
    Node(N),
}

/// How many untried children of a node to give away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Half, rounded up: the giver is busy with another child of the node.
    Larger,
    /// Half, rounded down: the giver has nothing but this node.
    Smaller,
}

impl Part {
    /// Of so many.
    pub fn of(self, children: u32) -> u32 {
        match self {
            Self::Larger => children.div_ceil(2),
            Self::Smaller => children / 2,
        }
    }
}

/// A tree of choices to be walked. A node holds which of its children are yet untried.
pub trait Tree: Sized + Sync {
    /// Name of the mode.
    const NAME: &'static str;
    /// Help of the mode.
    const HELP: &'static str;
    /// A node and its untried children.
    type Node: Copy + Default + Send;

    /// Reads the size of the tree.
    ///
    /// # Errors
    /// A size that is missing or out of range.
    fn from_args(args: &mut Args) -> Result<Self, LoadError>;
    /// The root, which is an inner node.
    fn root(&self) -> Self::Node;
    /// Takes the next untried child.
    fn next(&self, node: &mut Self::Node) -> Option<Child<Self::Node>>;
    /// Moves `part` of the untried children into a node of their own; `None` if that is none or
    /// they are too small to be worth it.
    fn split(&self, node: &mut Self::Node, part: Part) -> Option<Self::Node>;
    /// The value of the whole tree.
    fn value(&self) -> u64;
    /// Writes the size into a report.
    fn describe(&self, fields: &mut Object);
}

/// A tree walked over and over by all threads.
#[derive(Debug)]
pub struct Steal<T: Tree> {
    tree: T,
    yields: bool,
    desks: Vec<Desk<T::Node>>,
    round: Round,
}

/// Where others reach a worker.
#[derive(Debug)]
#[repr(align(128))]
struct Desk<N> {
    /// Who asks for work: 1 + its index; 0: nobody.
    request: AtomicUsize,
    /// The answer to this worker's own request.
    answered: AtomicU32,
    given: Mutex<Option<N>>,
}

/// The state of a round.
#[derive(Debug)]
#[repr(align(128))]
struct Round {
    /// Tasks not yet walked to their end. At 0 nobody else touches the round.
    tasks: AtomicU64,
    value: AtomicU64,
    nodes: AtomicU64,
    /// Nodes of the first round, which every other must have, too: a task that was lost or walked
    /// twice would show here.
    expected: AtomicU64,
    started: AtomicU64,
}

/// What a walk has found so far.
#[derive(Debug, Default)]
struct Found {
    value: u64,
    nodes: u64,
}

impl<T: Tree> Steal<T> {
    /// Nobody has a task yet; worker 0 will begin.
    fn new(tree: T, threads: usize, yields: bool) -> Self {
        let desk = |_| Desk {
            request: AtomicUsize::new(0),
            answered: AtomicU32::new(0),
            given: Mutex::new(None),
        };
        let zero = || AtomicU64::new(0);
        let round = Round {
            tasks: zero(),
            value: zero(),
            nodes: zero(),
            expected: zero(),
            started: zero(),
        };
        Self { tree, yields, desks: (0..threads).map(desk).collect(), round }
    }

    /// Walks a task to its end; false if it was time to stop before.
    fn walk(&self, worker: &Worker<'_>, task: T::Node) -> bool {
        let mut stack = [T::Node::default(); DEPTH];
        stack[0] = task;
        let mut length = 1;
        let mut found = Found::default();
        let mut reported = 0;
        let request = &self.desks[worker.index].request;
        while length > 0 {
            if request.load(Ordering::Relaxed) != 0 {
                self.answer(worker, &mut stack[..length]);
            }
            if found.nodes - reported >= NODES_PER_UPDATE {
                worker.add(found.nodes - reported);
                reported = found.nodes;
                if worker.stopped() {
                    return false;
                }
            }
            match self.tree.next(&mut stack[length - 1]) {
                None => length -= 1,
                Some(Child::Leaf(value)) => {
                    found.value += value;
                    found.nodes += 1;
                }
                Some(Child::Node(node)) => {
                    found.nodes += 1;
                    stack[length] = node;
                    length += 1;
                }
            }
        }
        worker.add(found.nodes - reported);
        self.round.value.fetch_add(found.value, Ordering::Relaxed);
        self.round.nodes.fetch_add(found.nodes, Ordering::Relaxed);
        true
    }

    /// Gives the oldest splittable node of `stack` to whoever asks.
    fn answer(&self, worker: &Worker<'_>, stack: &mut [T::Node]) {
        let request = &self.desks[worker.index].request;
        if request.load(Ordering::Relaxed) == 0 {
            return;
        }
        let asked = request.swap(0, Ordering::Acquire);
        let Some(thief) = asked.checked_sub(1).and_then(|index| self.desks.get(index)) else {
            return;
        };
        let given = self.oldest(stack);
        if given.is_some() {
            self.round.tasks.fetch_add(1, Ordering::Relaxed);
            worker.count(STEALS, 1);
        } else {
            worker.count(REFUSALS, 1);
        }
        *thief.given.lock().unwrap_or_else(PoisonError::into_inner) = given;
        thief.answered.store(1, Ordering::Release);
    }

    /// Takes from the oldest node that can be split.
    fn oldest(&self, stack: &mut [T::Node]) -> Option<T::Node> {
        let (newest, older) = stack.split_last_mut()?;
        let from_older = older.iter_mut().find_map(|node| self.tree.split(node, Part::Larger));
        from_older.or_else(|| self.tree.split(newest, Part::Smaller))
    }

    /// Asks others until one gives a task; `None` when it is time to stop.
    fn ask(&self, worker: &Worker<'_>, rng: &mut Rng) -> Option<T::Node> {
        let own = &self.desks[worker.index];
        let others = self.desks.len() as u64 - 1;
        let mut pauses = 0;
        while others > 0 && !worker.stopped() {
            let step = 1 + rng.below(others) as usize;
            let victim = &self.desks[(worker.index + step) % self.desks.len()];
            own.answered.store(0, Ordering::Relaxed);
            let free = victim.request.compare_exchange(
                0,
                worker.index + 1,
                Ordering::Release,
                Ordering::Relaxed,
            );
            while free.is_ok() && own.answered.load(Ordering::Acquire) == 0 {
                self.answer(worker, &mut []);
                if worker.stopped() {
                    return None;
                }
                self.pause(&mut pauses);
            }
            if free.is_ok() {
                let given = own.given.lock().unwrap_or_else(PoisonError::into_inner).take();
                if given.is_some() {
                    return given;
                }
                // A victim with nothing to give is left alone for a while.
                (0..PAUSES).for_each(|_| std::hint::spin_loop());
            }
            self.answer(worker, &mut []);
            self.pause(&mut pauses);
        }
        None
    }

    fn pause(&self, pauses: &mut u32) {
        *pauses += 1;
        if self.yields && (*pauses).is_multiple_of(PAUSES) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    /// Ends a task; the root of the next round if it was the last one.
    fn end_task(&self, worker: &Worker<'_>) -> Result<Option<T::Node>, LoadError> {
        let round = &self.round;
        if round.tasks.fetch_sub(1, Ordering::AcqRel) != 1 {
            return Ok(None);
        }
        let nodes = round.nodes.swap(0, Ordering::Relaxed);
        if round.expected.load(Ordering::Relaxed) == 0 {
            round.expected.store(nodes, Ordering::Relaxed);
        }
        let found = (round.value.swap(0, Ordering::Relaxed), nodes);
        let expected = (self.tree.value(), round.expected.load(Ordering::Relaxed));
        if found != expected {
            let text = format!("{}: (value, nodes) {found:?} instead of {expected:?}", T::NAME);
            return Err(LoadError::Wrong(text));
        }
        let now = clock::now();
        worker.latency(now - round.started.swap(now, Ordering::Relaxed));
        worker.count(ROUNDS, 1);
        Ok(Some(self.begin(now)))
    }

    /// Starts a round with the one task of its root.
    fn begin(&self, now: u64) -> T::Node {
        self.round.started.store(now, Ordering::Relaxed);
        self.round.tasks.store(1, Ordering::Relaxed);
        self.tree.root()
    }
}

impl<T: Tree> Mode for Steal<T> {
    const NAME: &'static str = T::NAME;
    const HELP: &'static str = T::HELP;
    const WORK: &'static str = "nodes";
    const LATENCY: Option<&'static str> = Some("round_ns");
    const COUNTERS: &'static [&'static str] = &["rounds", "steals", "refusals"];
    type Local = ();

    fn from_args(args: &mut Args, threads: usize) -> Result<Self, LoadError> {
        let tree = T::from_args(args)?;
        let yields = args.choice("--idle", &[("yield", true), ("spin", false)])?;
        Ok(Self::new(tree, threads, yields))
    }

    fn prepare(&self, _: &Worker<'_>) -> Result<(), LoadError> {
        Ok(())
    }

    fn work(&self, worker: &Worker<'_>, (): ()) -> Result<(), LoadError> {
        let mut rng = worker.rng();
        let mut task = (worker.index == 0).then(|| self.begin(clock::now()));
        loop {
            let Some(node) = task.or_else(|| self.ask(worker, &mut rng)) else { return Ok(()) };
            // Small tasks end before the walk looks whether it is time to stop.
            if !self.walk(worker, node) || worker.stopped() {
                return Ok(());
            }
            task = self.end_task(worker)?;
        }
    }

    fn options(&self, fields: &mut Object) {
        self.tree.describe(fields);
        fields.text("idle", if self.yields { "yield" } else { "spin" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{self, Plan};
    use crate::mode::{fib::Calls, nqueens::Board};
    use crate::unit::Scale;
    use std::time::Duration;

    fn tree<T: Tree>(size: &str) -> T {
        let mut args = Args::new(T::NAME, &[size.to_owned()]).unwrap();
        T::from_args(&mut args).unwrap()
    }

    /// Runs rounds with as many threads; rounds and steals. Every round is checked as it ends.
    fn rounds<T: Tree>(tree: T, threads: usize, yields: bool, nodes: u64) -> (u64, u64) {
        let mode = Steal::new(tree, threads, yields);
        let plan = Plan {
            threads,
            cpus: Vec::new(),
            duration: Duration::from_millis(400),
            interval: Duration::from_secs(60),
            seed: 1,
            scale: Scale::new(100.0).unwrap(),
        };
        let mut out = Vec::new();
        frame::run(&mode, &plan, &mut out).unwrap();
        let total: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let rounds = total["rounds"].as_u64().unwrap();
        if rounds > 0 {
            assert_eq!(mode.round.expected.load(Ordering::Relaxed), nodes);
        }
        (rounds, total["steals"].as_u64().unwrap())
    }

    /// Nodes below the root, one after the other.
    fn count<T: Tree>(tree: &T) -> (u64, u64) {
        fn below<T: Tree>(tree: &T, mut node: T::Node) -> (u64, u64) {
            let (mut value, mut nodes) = (0, 0);
            while let Some(child) = tree.next(&mut node) {
                let (v, n) = match child {
                    Child::Leaf(leaf) => (leaf, 0),
                    Child::Node(node) => below(tree, node),
                };
                (value, nodes) = (value + v, nodes + n + 1);
            }
            (value, nodes)
        }
        below(tree, tree.root())
    }

    #[test]
    fn trees_have_their_known_values() {
        assert_eq!(count(&tree::<Calls>("2")), (1, 2));
        // fib(n) takes 2 fib(n + 1) - 1 calls, the first of which is the root.
        assert_eq!(count(&tree::<Calls>("20")), (6765, 2 * 10_946 - 2));
        assert_eq!(tree::<Calls>("60").value(), 1_548_008_755_920);
        for n in 1..=9 {
            let board = tree::<Board>(&n.to_string());
            assert_eq!(count(&board).0, board.value(), "{n} queens");
        }
    }

    #[test]
    fn every_task_is_walked_exactly_once_by_any_number_of_workers() {
        for (threads, yields) in [(1, true), (2, true), (2, false), (5, true)] {
            let fib = tree::<Calls>("18");
            let (done, steals) = rounds(tree::<Calls>("18"), threads, yields, count(&fib).1);
            assert!(done > 0 && (steals > 0) == (threads > 1), "{threads}: {done}, {steals}");
            let queens = tree::<Board>("8");
            let (done, steals) = rounds(tree::<Board>("8"), threads, yields, count(&queens).1);
            assert!(done > 0 && (steals > 0) == (threads > 1), "{threads}: {done}, {steals}");
        }
    }

    /// Splits every node as often as possible; the value of all parts together.
    fn in_parts<T: Tree>(tree: &T, mut node: T::Node) -> u64 {
        let smaller = tree.split(&mut node, Part::Smaller);
        let larger = tree.split(&mut node, Part::Larger);
        let mut value = 0;
        for mut part in [smaller, larger, Some(node)].into_iter().flatten() {
            while let Some(child) = tree.next(&mut part) {
                value += match child {
                    Child::Leaf(leaf) => leaf,
                    Child::Node(node) => in_parts(tree, node),
                };
            }
        }
        value
    }

    #[test]
    fn splitting_loses_and_repeats_nothing() {
        let fib = tree::<Calls>("22");
        assert_eq!(in_parts(&fib, fib.root()), fib.value());
        let board = tree::<Board>("9");
        assert_eq!(in_parts(&board, board.root()), board.value());
    }

    #[test]
    fn the_oldest_task_is_given_away() {
        let mode = Steal::new(tree::<Calls>("30"), 2, true);
        let mut stack = [mode.tree.root(); 3];
        for depth in 1..3 {
            let Some(Child::Node(child)) = mode.tree.next(&mut stack[depth - 1]) else { panic!() };
            stack[depth] = child;
        }
        let oldest = mode.oldest(&mut stack).unwrap();
        let mut rest = oldest;
        // fib(30)'s second call, fib(28), while the worker is within fib(28) of its first call.
        let Some(Child::Node(given)) = mode.tree.next(&mut rest) else { panic!() };
        assert_eq!(mode.tree.next(&mut rest), None);
        assert_eq!(format!("{given:?}"), "Call { n: 28, next: 0, end: 2 }");
    }

    #[test]
    fn a_wrong_value_is_noticed() {
        let mode = Steal::new(tree::<Calls>("10"), 1, true);
        mode.round.value.store(1, Ordering::Relaxed);
        let plan = Plan {
            threads: 1,
            cpus: Vec::new(),
            duration: Duration::from_millis(100),
            interval: Duration::from_secs(60),
            seed: 1,
            scale: Scale::new(100.0).unwrap(),
        };
        let error = frame::run(&mode, &plan, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("(56, 176) instead of (55, 176)"), "{error}");
    }
}
