//! How much of what a vCPU had in a last-level cache is still there when it runs again, and how long the rest takes to come back.
//!
//! Others bring lines into the cache while it is away, and the least recently used ones leave first: its own go once what came in
//! since then does not fit beside them any more. Under another cache nothing of it is there. Lines come back as fast as a thread
//! can stream them: so many on their way at a time, each for the latency of memory. A vCPU has no more in a cache than
//! its part of it, by what those that run there want. Its work
//! is that of the thread with which it begins to run.

use crate::context::TaskId;
use crate::host::Host;
use crate::params::{Params, Profile};

/// Bytes of a line.
const LINE: u64 = 64;

/// What a profile means to a cache.
#[derive(Clone, Copy, Debug)]
struct Use {
    /// Its working set, bytes.
    set: u64,
    /// Bytes that it brings in in a second.
    brings: u64,
}

/// Where a vCPU ran last, and what that cache had taken in by then, bytes.
#[derive(Clone, Copy, Debug)]
struct Left {
    llc: usize,
    filled: u64,
}

/// What a vCPU does, and how far its lines have come back.
#[derive(Clone, Copy, Debug)]
struct Set {
    profile: usize,
    /// CPU time that it had when it was last looked at, nanoseconds.
    ran: u64,
    /// For how long it runs before lines come back, nanoseconds.
    lead: u64,
    /// Bytes of the refill that are still missing.
    missing: u64,
    left: Option<Left>,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Warmth {
    pub(super) is_on: bool,
    /// Bytes of a cache.
    size: u64,
    /// Picoseconds until a line is there again.
    line_ps: u64,
    profiles: Vec<Use>,
    /// Bytes that each cache has taken in.
    filled: Vec<u64>,
    /// Of each task.
    sets: Vec<Set>,
}

impl Warmth {
    pub(super) fn new(host: &Host, params: &Params, profiles: &[Profile], tasks: usize) -> Self {
        let (size, memory) = (params.contention.llc_kib << 10, &params.memory);
        let of = |profile: &Profile| Use {
            set: (profile.set_kib << 10).min(size),
            brings: profile.mib_s << 20,
        };
        let new = Set { profile: Profile::PLAIN, ran: 0, lead: 0, missing: 0, left: None };
        Self {
            is_on: memory.warmth && memory.latency > 0,
            size,
            line_ps: memory.latency * 10_000 / memory.in_flight_tenths.max(1),
            profiles: profiles.iter().map(of).collect(),
            filled: vec![0; host.llcs.len()],
            sets: vec![new; tasks],
        }
    }

    /// A task has run under a cache, and had so much CPU time in all.
    pub(super) fn note_run(&mut self, task: TaskId, llc: usize, ran: u64) {
        let set = &mut self.sets[task.ix()];
        let ns = ran - std::mem::replace(&mut set.ran, ran);
        let brings = u128::from(self.profiles[set.profile].brings);
        self.filled[llc] += (brings * u128::from(ns) / 1_000_000_000) as u64;
        set.left = Some(Left { llc, filled: self.filled[llc] });
        let refills = ns.saturating_sub(set.lead);
        set.lead = set.lead.saturating_sub(ns);
        let back = refills.saturating_mul(1000) / self.line_ps.max(1) * LINE;
        set.missing = set.missing.saturating_sub(back);
    }

    /// Nanoseconds until a task that begins to run with such work has in its cache what it had, `lead` of them from now on not
    /// counted; those that run there want `wanted` KiB without it. What others have brought in must be noted.
    pub(super) fn refill(
        &mut self,
        task: TaskId,
        llc: usize,
        profile: usize,
        (wanted, lead): (u64, u64),
    ) -> u64 {
        let bytes = self.profiles[profile].set;
        let all = bytes + (wanted << 10);
        let own = if all > self.size { self.size * bytes / all } else { bytes };
        let set = &mut self.sets[task.ix()];
        let lost = match set.left {
            Some(left) if left.llc == llc => {
                let taken = (self.filled[llc] - left.filled + own).saturating_sub(self.size);
                (set.missing + taken).min(own)
            }
            _ => own,
        };
        (set.profile, set.lead, set.missing) = (profile, lead, lost);
        lost / LINE * self.line_ps / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const A: TaskId = TaskId(0);
    const B: TaskId = TaskId(1);

    /// Two caches of 1 MiB; a line takes 100 ns, ten come at a time. Profile 0 has 512 KiB and brings 100 MiB/s.
    fn warmth() -> Warmth {
        let mut params = Params::generic();
        params.contention.llc_kib = 1024;
        (params.memory.latency, params.memory.in_flight_tenths) = (100, 100);
        params.memory.warmth = true;
        let own = Profile { set_kib: 512, mib_s: 100, ..Profile::bound("own", [0; 5]) };
        Warmth::new(&testing::host(2, 2, 1), &params, &[own], 2)
    }

    /// What `task` has to wait for in this cache, as it begins to run and others want so many KiB.
    fn refill(warmth: &mut Warmth, task: TaskId, llc: usize, wanted: u64) -> u64 {
        warmth.refill(task, llc, 0, (wanted, 0))
    }

    #[test]
    fn cache_stays_warm_until_others_have_filled_what_set_leaves() {
        let mut warmth = warmth();
        // 512 KiB are 8,192 lines of 10 ns each.
        assert_eq!(refill(&mut warmth, A, 0, 0), 81_920, "the first time");
        warmth.note_run(A, 0, 1_000_000);
        assert_eq!(refill(&mut warmth, A, 0, 0), 0);
        // 5 ms bring 500 KiB, which fits beside its 512.
        warmth.refill(B, 0, 0, (0, 0));
        warmth.note_run(B, 0, 4_882_813);
        assert_eq!(refill(&mut warmth, A, 0, 0), 0);
        // As much again: of 1000 KiB 512 fit, and 488 took the place of its own. They are 7,808 lines.
        warmth.note_run(B, 0, 9_765_626);
        let some = refill(&mut warmth, A, 0, 0);
        assert!((78_050..=78_090).contains(&some), "{some}");
        warmth.note_run(B, 0, 1_009_765_626);
        assert_eq!(refill(&mut warmth, A, 0, 0), 81_920, "no more than all");
    }

    #[test]
    fn other_cache_is_cold_and_a_crowded_one_holds_less() {
        let mut warmth = warmth();
        assert_eq!(refill(&mut warmth, A, 0, 0), 81_920);
        warmth.note_run(A, 0, 1_000_000);
        assert_eq!(refill(&mut warmth, A, 1, 0), 81_920);
        // Others want 1,536 KiB: with it 2 MiB, of which half fit. Its part is 256 KiB.
        assert_eq!(refill(&mut warmth, A, 1, 1536), 40_960);
    }

    #[test]
    fn refill_that_was_interrupted_goes_on() {
        let mut warmth = warmth();
        assert_eq!(refill(&mut warmth, A, 0, 0), 81_920);
        warmth.note_run(A, 0, 20_000);
        // 20 us brought 2,000 lines.
        assert_eq!(refill(&mut warmth, A, 0, 0), 61_920);
        // Of 30 us it is 10 before the first line comes.
        assert_eq!(warmth.refill(A, 0, 0, (0, 10_000)), 61_920);
        warmth.note_run(A, 0, 50_000);
        assert_eq!(refill(&mut warmth, A, 0, 0), 41_920);
        warmth.note_run(A, 0, 1_000_000);
        assert_eq!(refill(&mut warmth, A, 0, 0), 0);
    }
}
