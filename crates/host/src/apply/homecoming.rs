//! Brings a VM's memory home, a bounded batch at a time, and says of every byte what became of
//! it.
//!
//! ```text
//! queue of ranges (hot ones first, then by remote bytes) --cursor-->
//!   query where the pages are -> those elsewhere, as far as home has room -> move -> query again
//! ```
//! One pass walks every range once; what is left after it (busy, pinned, no memory) may be tried
//! in another pass. It does not decide whether moving pays: the policy did. Source: systems.md 4
//! (iv).

use crate::apply::move_pages::{self, Cause, Pages, UNTOLD};
use crate::apply::ranges::Range;
use crate::apply::room::Room;
use crate::error::Error;
use instep_core::idset::NodeSet;
use instep_core::units::{Bytes, NodeId};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Bytes per batch, which ends at a multiple of this: a transparent huge page of x86 moves whole
/// when any part of it moves, so none is split between batches (it would count as home though this
/// step moved it). Also so small that a stop request, the time budget and the guest's page faults
/// wait for about a millisecond only.
const BLOCK: u64 = 2 << 20;
/// Calls to move one batch, at most: each one moves something, learns of a page that cannot be
/// moved, or halves the group.
const PATIENCE: u32 = 64;

/// The address of a page that shall move, and where to.
type Target = (u64, NodeId);

/// The bounds of one step. Each is checked between batches, so it is exceeded by at most one: 2 MiB
/// of small pages or one larger huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Stop after moving this much.
    pub bytes: Bytes,
    /// Stop after this time.
    pub time: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self { bytes: Bytes::from_mib(64), time: Duration::from_millis(50) }
    }
}

/// Why a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The pass is over: every range was walked.
    Finished,
    /// The budget of bytes is used up.
    Bytes,
    /// The budget of time is used up.
    Time,
    /// The home nodes have no room above their reserve; the same step can be tried later.
    NoRoom,
}

/// What one step did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Bytes by what became of them.
    pub tally: Tally,
    /// Why it ended.
    pub stop: Stop,
}

/// Bytes by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Tally(pub BTreeMap<Cause, Bytes>);

impl Tally {
    /// Bytes of this cause.
    #[must_use]
    pub fn of(&self, cause: Cause) -> Bytes {
        self.0.get(&cause).copied().unwrap_or_default()
    }

    /// Adds all of `other`.
    pub fn add(&mut self, other: &Tally) {
        for (cause, bytes) in &other.0 {
            self.count(*cause, bytes.0);
        }
    }

    fn count(&mut self, cause: Cause, bytes: u64) {
        let sum = self.0.entry(cause).or_default();
        sum.0 = sum.0.saturating_add(bytes);
    }
}

/// One process's way home; kept between steps.
#[derive(Clone, Debug)]
pub struct Homecoming {
    pid: u32,
    home: NodeSet,
    /// Nodes whose memory stays there: the home, and nodes that are left to others.
    stays: NodeSet,
    /// What is still to be walked; the first range's start is the cursor.
    queue: VecDeque<Range>,
    /// Bytes outside `home` when the pass began.
    remote: Bytes,
    total: Tally,
    /// Calls that the next batch may take.
    patience: u32,
}

impl Homecoming {
    /// Plans a pass over `ranges` (see [`crate::apply::ranges::read`]) of process `pid`: those with
    /// memory outside `home`, the most remote bytes first.
    #[must_use]
    pub fn new(pid: u32, home: NodeSet, ranges: Vec<Range>) -> Self {
        Self::leaving(&NodeSet::new(), pid, home, ranges)
    }

    /// The same of a pass that leaves memory on the nodes in `left` where it is, such as nodes without
    /// CPUs, which the kernel's tiering manages.
    #[must_use]
    pub fn leaving(left: &NodeSet, pid: u32, home: NodeSet, ranges: Vec<Range>) -> Self {
        let stays = home.or(left);
        let mut away: Vec<(Bytes, Range)> = ranges
            .into_iter()
            .filter(|range| range.page > 0 && range.start < range.end)
            .map(|range| (range.remote(&stays), range))
            .filter(|(remote, _)| remote.0 > 0)
            .collect();
        away.sort_by_key(|(remote, range)| (std::cmp::Reverse(*remote), range.start));
        let remote = Bytes(away.iter().fold(0, |sum, (remote, _)| sum.saturating_add(remote.0)));
        let queue = away.into_iter().map(|(_, range)| range).collect();
        Self { pid, home, stays, queue, remote, total: Tally::default(), patience: PATIENCE }
    }

    /// Puts these ranges (around hot pages) in front of everything else. They may overlap what is
    /// queued: a page that came home early is just found at home later.
    pub fn prefer(&mut self, hot: Vec<Range>) {
        for range in hot.into_iter().rev().filter(|range| range.page > 0) {
            self.queue.push_front(range);
        }
    }

    /// The process whose memory it is.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The nodes it brings memory to.
    #[must_use]
    pub fn home(&self) -> &NodeSet {
        &self.home
    }

    /// Bytes that were outside home when the pass began.
    #[must_use]
    pub fn remote(&self) -> Bytes {
        self.remote
    }

    /// What became of the bytes walked so far.
    #[must_use]
    pub fn total(&self) -> &Tally {
        &self.total
    }

    /// Whether the pass is over.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.queue.is_empty()
    }

    /// Walks on until the pass or the budget ends. `rooms` are the home nodes with what they can
    /// take (see [`crate::apply::room::read`]); what is moved is subtracted.
    ///
    /// # Errors
    /// [`Error::is_gone`] when the process ended; a refusal that names the capability or setting.
    /// The cursor then stays, and what was moved before is in [`Homecoming::total`].
    pub fn step(
        &mut self,
        pages: &mut impl Pages,
        rooms: &mut [Room],
        budget: Budget,
    ) -> Result<Step, Error> {
        let began = pages.now();
        let mut tally = Tally::default();
        let stop = loop {
            let moved = tally.of(Cause::Moved);
            if self.queue.is_empty() {
                break Stop::Finished;
            } else if moved >= budget.bytes {
                break Stop::Bytes;
            } else if pages.now().saturating_sub(began) >= budget.time {
                break Stop::Time;
            }
            let mut batch = Tally::default();
            let walked = self.batch(pages, rooms, &mut batch);
            self.total.add(&batch);
            tally.add(&batch);
            if !walked? {
                break Stop::NoRoom;
            }
        };
        Ok(Step { tally, stop })
    }

    /// Walks one batch at the cursor; false when nothing of it could be done for lack of room.
    fn batch(
        &mut self,
        pages: &mut impl Pages,
        rooms: &mut [Room],
        tally: &mut Tally,
    ) -> Result<bool, Error> {
        let Some(range) = self.queue.front() else { return Ok(true) };
        let (page, start) = (range.page, range.start);
        let block = BLOCK.max(page);
        let end = (start / block + 1).saturating_mul(block).min(range.end);
        let mut addresses: Vec<u64> =
            (0..(end - start).div_ceil(page)).map(|index| start + index * page).collect();
        let mut status = vec![UNTOLD; addresses.len()];
        pages.query(&addresses, &mut status).map_err(|error| self.error(error))?;
        let (mut away, mut chosen) = (Vec::new(), None::<usize>);
        for index in 0..addresses.len() {
            if status[index] < 0 || self.is_home(status[index]) {
                continue;
            }
            // One node for as long as it has room: neighbouring pages stay together.
            chosen = chosen
                .filter(|room| rooms[*room].for_page(page) >= page)
                .or_else(|| best_room(rooms, page, &self.home));
            let Some(room) = chosen else {
                addresses.truncate(index);
                break;
            };
            rooms[room].take(page);
            away.push((addresses[index], rooms[room].node));
        }
        for status in &status[..addresses.len()] {
            if self.is_home(*status) {
                tally.count(Cause::AlreadyHome, page);
            } else if *status < 0 {
                tally.count(Cause::of_status(*status), page);
            }
        }
        if addresses.is_empty() {
            return Ok(false);
        }
        let result = self.move_all(pages, rooms, away, page, tally);
        self.advance(addresses.len() as u64 * page);
        result.map(|()| true)
    }

    /// Moves pages that are elsewhere and counts every one of them exactly once. A page that cannot
    /// be moved hides the fate of its group and all after it, so what is left of a call is tried
    /// again, in halves when the call moved nothing.
    fn move_all(
        &mut self,
        pages: &mut impl Pages,
        rooms: &mut [Room],
        away: Vec<Target>,
        page: u64,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let mut calls = self.patience;
        let mut work = vec![away];
        while let Some(group) = work.pop() {
            if group.is_empty() {
                continue;
            }
            if calls == 0 {
                give_up(rooms, &group, Cause::Stuck, page, tally);
                continue;
            }
            calls -= 1;
            let (mut left, result) = self.move_group(pages, rooms, &group, page, tally)?;
            match result {
                Ok(()) if left.len() < group.len() => work.push(left),
                Ok(()) if left.len() == 1 => give_up(rooms, &left, Cause::Stuck, page, tally),
                Ok(()) => {
                    let later = left.split_off(left.len() / 2);
                    work.extend([later, left]);
                }
                Err(error) => {
                    let full = error.raw_os_error() == Some(libc::ENOMEM);
                    let cause = if full { Cause::NoMemory } else { Cause::Other };
                    work.push(left);
                    for rest in work.drain(..) {
                        give_up(rooms, &rest, cause, page, tally);
                    }
                    if !full {
                        return Err(self.error(error));
                    }
                    let asked = |room: &&mut Room| group.iter().any(|(_, node)| *node == room.node);
                    rooms.iter_mut().filter(asked).for_each(Room::close);
                }
            }
        }
        // Where everything is pinned (VFIO), halving is in vain: learn it, and forget it again.
        let fruitless = calls == 0 && tally.of(Cause::Moved).0 == 0;
        self.patience = if fruitless { (self.patience / 2).max(2) } else { PATIENCE };
        Ok(())
    }

    /// One call: counts the pages whose fate is known after it. The others come back, with what the
    /// call said.
    fn move_group(
        &self,
        pages: &mut impl Pages,
        rooms: &mut [Room],
        group: &[Target],
        page: u64,
        tally: &mut Tally,
    ) -> Result<(Vec<Target>, std::io::Result<()>), Error> {
        let (addresses, nodes): (Vec<u64>, Vec<NodeId>) = group.iter().copied().unzip();
        let mut status = vec![UNTOLD; group.len()];
        let result = pages.move_to(&addresses, &nodes, &mut status);
        let mut now = vec![UNTOLD; group.len()];
        pages.query(&addresses, &mut now).map_err(|error| self.error(error))?;
        let mut left = Vec::new();
        for (index, target) in group.iter().enumerate() {
            match self.fate(now[index], status[index]) {
                Some(Cause::Moved) => tally.count(Cause::Moved, page),
                Some(cause) => give_up(rooms, &[*target], cause, page, tally),
                None => left.push(*target),
            }
        }
        Ok((left, result))
    }

    /// What became of a page by where it is now and what the call said; `None` if that is open.
    fn fate(&self, now: i32, status: i32) -> Option<Cause> {
        if self.is_home(now) {
            Some(Cause::Moved)
        } else if now < 0 {
            Some(Cause::of_status(now))
        } else if status == UNTOLD {
            None
        } else if status < 0 {
            Some(Cause::of_status(status))
        } else {
            Some(Cause::Stuck)
        }
    }

    fn advance(&mut self, by: u64) {
        if let Some(range) = self.queue.front_mut() {
            range.start = range.start.saturating_add(by);
            if range.start >= range.end {
                self.queue.pop_front();
            }
        }
    }

    fn is_home(&self, status: i32) -> bool {
        u32::try_from(status).is_ok_and(|node| self.stays.contains(NodeId(node)))
    }

    fn error(&self, source: std::io::Error) -> Error {
        move_pages::call_error(self.pid, source)
    }
}

/// The home node with the most room for a page of this size; the first of equals.
fn best_room(rooms: &[Room], page: u64, home: &NodeSet) -> Option<usize> {
    (0..rooms.len())
        .rev()
        .filter(|index| home.contains(rooms[*index].node) && rooms[*index].for_page(page) >= page)
        .max_by_key(|index| rooms[*index].for_page(page))
}

/// Counts pages that did not move and returns the room set apart for them.
fn give_up(rooms: &mut [Room], pages: &[Target], cause: Cause, page: u64, tally: &mut Tally) {
    for (_, node) in pages {
        tally.count(cause, page);
        rooms.iter_mut().filter(|room| room.node == *node).for_each(|room| room.give(page));
    }
}

#[cfg(test)]
mod tests;
