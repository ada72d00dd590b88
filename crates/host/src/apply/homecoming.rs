//! Brings a VM's memory home, a bounded batch at a time, and says of every byte what became of
//! it.
//!
//! ```text
//! queue (what is used most first, where that is known, else the range with most remote bytes) --cursor-->
//!   query where the pages are -> those elsewhere, as far as home has room -> move -> query again
//! ```
//! One pass walks every range once; what is left after it (busy, pinned, no memory) may be tried
//! in another pass. It does not decide whether moving pays: the policy did. Source: systems.md 4
//! (iv).

use crate::apply::damon::Region;
use crate::apply::damon::heat::{self, Part};
use crate::apply::move_pages::{self, Cause, Pages, UNTOLD};
use crate::apply::ranges::Range;
use crate::apply::room::Room;
use crate::error::Error;
use instep_core::idset::NodeSet;
use instep_core::units::{Bytes, NodeId};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The least batch in bytes, and what each begins and ends at a multiple of: a transparent huge page of x86
/// moves whole when any part of it moves, so none is split between batches (it would count as home though this
/// step moved it).
const BLOCK: u64 = 2 << 20;
/// The largest batch. Each call makes all CPUs of the host empty their lists of pages that were used of late
/// (`lru_cache_disable`, mm/swap.c, 6.18), so fewer and larger ones disturb others less.
const LARGEST: u64 = 64 << 20;
/// A batch that took less lets the next one be twice as large; one that took longer than twice this halves it.
/// So a stop request and the time budget wait for some 20 ms. A guest's page faults wait for less: the kernel moves 512
/// pages at a time.
const BRISK: Duration = Duration::from_millis(10);
/// Calls to move one block, at most: each one moves something, learns of a page that cannot be
/// moved, or halves the group.
const PATIENCE: u32 = 64;

/// The address of a page that shall move, and where to.
type Target = (u64, NodeId);

/// The bounds of one step. Each is checked between batches. No batch is larger than what is left of the bytes,
/// but for the 2 MiB that it ends at a multiple of, or one larger huge page.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveStop {
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
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Step {
    /// Bytes by what became of them.
    pub tally: Tally,
    /// Why it ended.
    pub stop: MoveStop,
}

/// Bytes by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(transparent)]
pub struct Tally(pub BTreeMap<Cause, Bytes>);

impl Tally {
    /// Bytes of this cause.
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
    /// What is still to be walked; the first part's start is the cursor.
    queue: VecDeque<Part>,
    /// Whether it is known what is used most.
    is_ranked: bool,
    /// Bytes outside `home` when the pass began.
    remote: Bytes,
    total: Tally,
    /// Bytes of the next batch.
    batch: u64,
    /// Calls that the next block may take.
    patience: u32,
}

impl Homecoming {
    /// Plans a pass over `ranges` (see [`crate::apply::ranges::read`]) of process `pid`: those with
    /// memory outside `home`, the most remote bytes first.
    pub fn new(pid: u32, home: NodeSet, ranges: Vec<Range>) -> Self {
        Self::leaving(&NodeSet::new(), pid, home, ranges)
    }

    /// The same of a pass that leaves memory on the nodes in `left` where it is, such as nodes without
    /// CPUs, which the kernel's tiering manages.
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
        let queue = away.into_iter().map(|(_, range)| Part { range, heat: 0 }).collect();
        let (total, batch, patience) = (Tally::default(), BLOCK, PATIENCE);
        Self { pid, home, stays, queue, is_ranked: false, remote, total, batch, patience }
    }

    /// Lets what is used most come first: walks what is left in the order of [`heat::hottest_first`].
    pub fn rank(&mut self, regions: &[Region]) {
        let ranges: Vec<Range> = self.queue.drain(..).map(|part| part.range).collect();
        self.queue = heat::hottest_first(&ranges, regions).into();
        self.is_ranked = true;
    }

    /// Bytes of the parts that were seen in use and are still to be walked; `None` where that is not known.
    pub fn hot(&self) -> Option<Bytes> {
        let hot = self.queue.iter().filter(|part| part.heat > 0);
        let bytes = hot.map(|part| part.range.end - part.range.start);
        self.is_ranked.then(|| Bytes(bytes.fold(0, u64::saturating_add)))
    }

    /// The process whose memory it is.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The nodes it brings memory to.
    pub fn home(&self) -> &NodeSet {
        &self.home
    }

    /// Bytes that were outside home when the pass began.
    pub fn remote(&self) -> Bytes {
        self.remote
    }

    /// What became of the bytes walked so far.
    pub fn total(&self) -> &Tally {
        &self.total
    }

    /// Whether the pass is over.
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
                break MoveStop::Finished;
            } else if moved >= budget.bytes {
                break MoveStop::Bytes;
            } else if pages.now().saturating_sub(began) >= budget.time {
                break MoveStop::Time;
            }
            let (mut batch, before) = (Tally::default(), pages.now());
            let walked = self.batch(pages, rooms, budget.bytes.0 - moved.0, &mut batch);
            self.resize(pages.now().saturating_sub(before), &batch);
            self.total.add(&batch);
            tally.add(&batch);
            if !walked? {
                break MoveStop::NoRoom;
            }
        };
        Ok(Step { tally, stop })
    }

    /// Chooses the size of the next batch by how long this one took and what it did.
    fn resize(&mut self, took: Duration, batch: &Tally) {
        let moved = batch.of(Cause::Moved).0;
        let is_usual =
            |cause: &Cause| matches!(cause, Cause::Moved | Cause::AlreadyHome | Cause::NotPresent);
        if took > 2 * BRISK {
            self.batch = (self.batch / 2).max(BLOCK);
        } else if took < BRISK && batch.0.keys().all(is_usual) && moved >= self.batch / 2 {
            self.batch = (self.batch * 2).min(LARGEST);
        }
    }

    /// Walks one batch at the cursor, of `most` bytes rounded up to whole blocks; false when nothing of it could
    /// be done for lack of room.
    fn batch(
        &mut self,
        pages: &mut impl Pages,
        rooms: &mut [Room],
        most: u64,
        tally: &mut Tally,
    ) -> Result<bool, Error> {
        let Some(Part { range, .. }) = self.queue.front() else { return Ok(true) };
        let (page, start) = (range.page, range.start);
        let block = BLOCK.max(page);
        let blocks = self.batch.min(most).div_ceil(block).max(1);
        let end = (start / block).saturating_add(blocks).saturating_mul(block).min(range.end);
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

    /// Moves pages that are elsewhere and counts every one of them exactly once: all by one call, and what that
    /// leaves block by block.
    fn move_all(
        &mut self,
        pages: &mut impl Pages,
        rooms: &mut [Room],
        away: Vec<Target>,
        page: u64,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let block = |target: &Target| target.0 / BLOCK.max(page);
        let is_one = |away: &[Target]| away.first().map(block) == away.last().map(block);
        if is_one(&away) {
            return self.move_block(pages, rooms, away, page, tally);
        }
        let (left, result) = self.move_group(pages, rooms, &away, page, tally)?;
        if let Err(error) = result {
            return self.refused(rooms, (&away, vec![left]), error, page, tally);
        }
        if !left.is_empty() {
            self.batch = BLOCK;
        }
        for left in left.chunk_by(|a, b| block(a) == block(b)) {
            self.move_block(pages, rooms, left.to_vec(), page, tally)?;
        }
        Ok(())
    }

    /// Moves pages of one block. A page that cannot be moved hides the fate of its group and all after it, so
    /// what is left of a call is tried again, in halves when the call moved nothing.
    fn move_block(
        &mut self,
        pages: &mut impl Pages,
        rooms: &mut [Room],
        away: Vec<Target>,
        page: u64,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let (mut calls, before) = (self.patience, tally.of(Cause::Moved));
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
                    work.push(left);
                    let rest = std::mem::take(&mut work);
                    self.refused(rooms, (&group, rest), error, page, tally)?;
                }
            }
        }
        // Where everything is pinned (VFIO), halving is in vain: learn it, and forget it again.
        let fruitless = calls == 0 && tally.of(Cause::Moved) == before;
        self.patience = if fruitless { (self.patience / 2).max(2) } else { PATIENCE };
        Ok(())
    }

    /// Gives up what is left when the kernel refused a call: for lack of memory on the nodes that were asked
    /// for, which are then full; else it is an error.
    fn refused(
        &self,
        rooms: &mut [Room],
        (asked, left): (&[Target], Vec<Vec<Target>>),
        error: std::io::Error,
        page: u64,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let is_full = error.raw_os_error() == Some(libc::ENOMEM);
        let cause = if is_full { Cause::NoMemory } else { Cause::Other };
        for group in left {
            give_up(rooms, &group, cause, page, tally);
        }
        if !is_full {
            return Err(self.error(error));
        }
        let is_asked = |room: &&mut Room| asked.iter().any(|(_, node)| *node == room.node);
        rooms.iter_mut().filter(is_asked).for_each(Room::close);
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
        if let Some(Part { range, .. }) = self.queue.front_mut() {
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
