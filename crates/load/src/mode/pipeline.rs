//! `pipeline`: each thread is a stage; items go from stage to stage through short queues.
//!
//! Models video encoders (systems.md 3: x264) and servers of several tiers: a stage whose vCPU
//! does not run first starves the stages after it, then blocks those before it. Waiting sleeps in
//! a futex and the wake-up comes from a neighbouring stage.

use crate::args::{self, nanos};
use crate::clock;
use crate::error::LoadError;
use crate::frame::{Mode, Worker};
use crate::unit;
use serde::Serialize;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Threads are stages, items pass from one to the next
///
/// work: items that left the last stage. item_ns: from an item's creation to its leaving the last stage.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct Options {
    /// Computation of an item in a stage
    #[arg(long, value_name = "DURATION", default_value = "100us", value_parser = args::duration::<100>)]
    #[serde(rename = "stage_ns", serialize_with = "nanos")]
    stage: Duration,
    /// Each is up to this much longer or shorter
    #[arg(long, value_name = "PERCENT", default_value = "20%", value_parser = args::percent)]
    #[serde(rename = "imbalance_percent")]
    imbalance: u32,
    /// Items that fit between two stages, 1 to 65536
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    depth: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Pipeline {
    options: Options,
    /// Queue i leads from stage i to stage i + 1.
    queues: Vec<Queue>,
}

impl Mode for Pipeline {
    const NAME: &'static str = "pipeline";
    const WORK: &'static str = "items";
    const LATENCY: Option<&'static str> = Some("item_ns");
    type Options = Options;
    type Local = u64;

    fn new(options: Options, threads: usize) -> Result<Self, LoadError> {
        let queues = (1..threads).map(|_| Queue::new(options.depth as usize)).collect();
        Ok(Self { options, queues })
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<u64, LoadError> {
        Ok(worker.units(self.options.stage))
    }

    fn work(&self, worker: &Worker<'_>, units: u64) -> Result<(), LoadError> {
        let mut rng = worker.rng();
        let from = worker.index.checked_sub(1).and_then(|index| self.queues.get(index));
        let to = self.queues.get(worker.index);
        loop {
            // The first stage makes items until it is time to end; the others work off the rest.
            let item = match from {
                None if worker.stopped() => None,
                None => Some(clock::now()),
                Some(queue) => queue.pop(),
            };
            let Some(created) = item else { break };
            unit::work(rng.around(units, self.options.imbalance));
            match to {
                Some(queue) => queue.push(created),
                None => worker.latency(clock::now() - created),
            }
            worker.add(1);
        }
        if let Some(queue) = to {
            queue.close();
        }
        Ok(())
    }

    fn together(&self, by_thread: &[u64]) -> u64 {
        by_thread.last().copied().unwrap_or(0)
    }

    fn verify(&self, by_thread: &[u64]) -> Result<(), LoadError> {
        match by_thread.iter().all(|items| Some(items) == by_thread.first()) {
            true => Ok(()),
            false => {
                Err(LoadError::Wrong(format!("items were lost between stages: {by_thread:?}")))
            }
        }
    }
}

/// A queue of bounded length from one thread to another.
#[derive(Debug)]
struct Queue {
    ring: Mutex<Ring>,
    changed: Condvar,
}

#[derive(Debug)]
struct Ring {
    items: Box<[u64]>,
    first: usize,
    length: usize,
    closed: bool,
}

impl Queue {
    fn new(depth: usize) -> Self {
        let items = vec![0; depth].into_boxed_slice();
        let ring = Ring { items, first: 0, length: 0, closed: false };
        Self { ring: Mutex::new(ring), changed: Condvar::new() }
    }

    /// Adds an item, when there is room. With one thread at each end, one condition serves both:
    /// never do both wait, and only at an empty or full queue is there one to wake.
    fn push(&self, item: u64) {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ring = self
            .changed
            .wait_while(ring, |ring| ring.length == ring.items.len())
            .unwrap_or_else(PoisonError::into_inner);
        let at = (ring.first + ring.length) % ring.items.len();
        ring.items[at] = item;
        ring.length += 1;
        let was_empty = ring.length == 1;
        drop(ring);
        if was_empty {
            self.changed.notify_one();
        }
    }

    /// Takes the oldest item, when there is one; `None` when there will be none.
    fn pop(&self) -> Option<u64> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ring = self
            .changed
            .wait_while(ring, |ring| ring.length == 0 && !ring.closed)
            .unwrap_or_else(PoisonError::into_inner);
        if ring.length == 0 {
            return None;
        }
        let item = ring.items[ring.first];
        ring.first = (ring.first + 1) % ring.items.len();
        let was_full = ring.length == ring.items.len();
        ring.length -= 1;
        drop(ring);
        if was_full {
            self.changed.notify_one();
        }
        Some(item)
    }

    fn close(&self) {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_passes_every_item_in_order() {
        for depth in [1, 2, 7] {
            let queue = Queue::new(depth);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    (0..5_000).for_each(|item| queue.push(item));
                    queue.close();
                });
                for expected in 0..5_000 {
                    assert_eq!(queue.pop(), Some(expected));
                }
                assert_eq!(queue.pop(), None);
            });
        }
    }
}
