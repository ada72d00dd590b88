//! `pipeline`: each thread is a stage; items go from stage to stage through short queues.
//!
//! Models video encoders (systems.md 3: x264) and servers of several tiers: a stage whose vCPU
//! does not run first starves the stages after it, then blocks those before it. Waiting sleeps in
//! a futex and the wake-up comes from a neighbouring stage.

use crate::args::Args;
use crate::clock;
use crate::error::LoadError;
use crate::frame::{Mode, Worker};
use crate::json::Object;
use crate::unit;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub struct Pipeline {
    stage: Duration,
    imbalance: u32,
    depth: usize,
    /// Queue i leads from stage i to stage i + 1.
    queues: Vec<Queue>,
}

impl Mode for Pipeline {
    const NAME: &'static str = "pipeline";
    const HELP: &'static str = "\
pipeline: threads are stages, items pass from one to the next
work: items that left the last stage
  --stage DURATION     computation of an item in a stage [100us]
  --imbalance PERCENT  each is up to this much longer or shorter [20%]
  --depth N            items that fit between two stages [4]
item_ns: from an item's creation to its leaving the last stage
";
    const WORK: &'static str = "items";
    const LATENCY: Option<&'static str> = Some("item_ns");
    type Local = u64;

    fn from_args(args: &mut Args, threads: usize) -> Result<Self, LoadError> {
        let stage =
            args.duration("--stage", Duration::from_micros(100), Duration::from_nanos(100))?;
        let imbalance = args.percent("--imbalance", 20)?;
        let depth = args.number("--depth", 4, 1..=65_536)? as usize;
        let queues = (1..threads).map(|_| Queue::new(depth)).collect();
        Ok(Self { stage, imbalance, depth, queues })
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<u64, LoadError> {
        Ok(worker.units(self.stage))
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
            unit::work(rng.around(units, self.imbalance));
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

    fn options(&self, fields: &mut Object) {
        fields.number("stage_ns", self.stage.as_nanos() as u64);
        fields.number("imbalance_percent", u64::from(self.imbalance));
        fields.number("depth", self.depth as u64);
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
