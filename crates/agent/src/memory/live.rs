//! The running machine's side of memory's way home: its files and its system calls.

use super::Host;
use instep_core::idset::NodeSet;
use instep_host::apply::damon::{Region, WATCHED};
use instep_host::apply::move_pages::KernelPages;
use instep_host::apply::ranges::{self, GuestRanges};
use instep_host::apply::room::{self, Room};
use instep_host::apply::{Damon, StateDir};
use instep_host::{Error, Root};
use std::time::{Duration, Instant};

/// How often a request to stop is looked for while a VM is watched.
const SLICE: Duration = Duration::from_millis(20);

/// This machine.
#[derive(Debug)]
pub(crate) struct LiveHost {
    /// `None` where nothing may be changed.
    damon: Option<Damon>,
    began: Instant,
}

impl LiveHost {
    /// This machine; what is changed of it besides affinities is recorded in `state`.
    pub(crate) fn new(state: Option<StateDir>) -> Self {
        let damon = state.map(|state| Damon::new(Root::live(), state));
        Self { damon, began: Instant::now() }
    }
}

impl Host for LiveHost {
    type Pages = KernelPages;

    fn ranges(&mut self, pid: u32) -> Result<GuestRanges, Error> {
        let (ranges, warnings) = ranges::read(&Root::live(), pid)?;
        for warning in warnings {
            tracing::info!("{warning}");
        }
        Ok(ranges)
    }

    fn regions(
        &mut self,
        (pid, pid_start): (u32, u64),
        enough: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<Option<Vec<Region>>, Error> {
        let Some(damon) = &self.damon else { return Ok(None) };
        let watch = damon.watch(pid, pid_start)?;
        let end = Instant::now() + WATCHED;
        while Instant::now() < end {
            if enough(self.now()) {
                return Ok(None);
            }
            std::thread::sleep(SLICE);
        }
        watch.regions().map(Some)
    }

    fn pages(&mut self, pid: u32, pid_start: u64) -> Result<KernelPages, Error> {
        KernelPages::of(pid, pid_start)
    }

    fn rooms(&mut self, home: &NodeSet) -> Result<Vec<Room>, Error> {
        room::read(&Root::live(), home, None)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}
