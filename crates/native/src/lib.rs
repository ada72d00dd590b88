//! The kernel scheduler's decisions, bpf/policy.h, compiled for this machine: the same C as in the
//! kernel, behind safe functions.
//!
//! It knows no kernel and keeps no state. Virtual times are nanoseconds; sets of CPUs are bits, of which bit n
//! is lane n of a scheduling domain.

/// Where virtual times begin (`POL_ORIGIN`), so that subtracting never wraps.
pub const ORIGIN: u64 = 1 << 50;
/// A whole CPU, where CPUs are counted in parts (`POL_CPU`).
pub const CPU: u32 = 1024;
/// The level at which every account has all that it wants (`POL_LEVEL_MOST`).
pub const LEVEL_MOST: u64 = 1 << 30;

mod c {
    // SAFETY: the signatures are those of policy.c, which is compiled with this crate; values are passed.
    unsafe extern "C" {
        pub(super) safe fn native_before(a: u64, b: u64) -> bool;
        pub(super) safe fn native_since(at: u64, now: u64) -> u64;
        pub(super) safe fn native_clamp(value: u64, least: u64, most: u64) -> u64;
        pub(super) safe fn native_count(set: u64) -> u32;
        pub(super) safe fn native_lowest(set: u64) -> u32;
        pub(super) safe fn native_highest(set: u64) -> u32;
        pub(super) safe fn native_span(first: u32, count: u32) -> u64;
        pub(super) safe fn native_rank_of_lane(set: u64, lane: u32) -> u32;
        pub(super) safe fn native_crosses(a: u64, b: u64) -> bool;
        pub(super) safe fn native_set_step(size: u32) -> u32;
        pub(super) safe fn native_charge(ran: u64, share: u32) -> u64;
        pub(super) safe fn native_level(cpus: u64, filled: u64, weight: u64, all: u64) -> u64;
        pub(super) safe fn native_claim(weight: u32, level: u64) -> u64;
        pub(super) safe fn native_share(most: u32, claim: u64) -> u32;
        pub(super) safe fn native_key(vtime: u64, own: u64, front: u64, bound: u64) -> u64;
        pub(super) safe fn native_host_key(
            vtime: u64,
            own: u64,
            mean: u64,
            bound: u64,
            threads: u32,
            share: u32,
        ) -> u64;
        pub(super) safe fn native_shorten(vtime: u64, most: u64) -> u64;
        pub(super) safe fn native_hardly_blocks(
            before: bool,
            bound: u32,
            ran_ns: u64,
            blocks: u32,
        ) -> bool;
        pub(super) safe fn native_trial_bound(ran_ns: u64, blocks: u32) -> u32;
        pub(super) safe fn native_wake_preempts(wakes: u64, runs: u64, slack: u64) -> bool;
    }
}

/// Whether virtual time `a` is before `b`, by signed difference.
#[must_use]
pub fn is_before(a: u64, b: u64) -> bool {
    c::native_before(a, b)
}

/// Time from `at` to `now`; 0 if `at` is later.
#[must_use]
pub fn since(at: u64, now: u64) -> u64 {
    c::native_since(at, now)
}

/// A virtual time from `least` to `most`.
#[must_use]
pub fn clamp(value: u64, least: u64, most: u64) -> u64 {
    c::native_clamp(value, least, most)
}

/// How many lanes a set has.
#[must_use]
pub fn count(set: u64) -> u32 {
    c::native_count(set)
}

/// The lowest lane of a set that is not empty.
#[must_use]
pub fn lowest(set: u64) -> u32 {
    c::native_lowest(set)
}

/// The highest lane of a set that is not empty.
#[must_use]
pub fn highest(set: u64) -> u32 {
    c::native_highest(set)
}

/// `count` lanes from `first` on.
#[must_use]
pub fn span(first: u32, count: u32) -> u64 {
    c::native_span(first, count)
}

/// Which of a set's lanes, counted from its lowest, this lane is.
#[must_use]
pub fn rank_of_lane(set: u64, lane: u32) -> u32 {
    c::native_rank_of_lane(set, lane)
}

/// Whether two sets have CPUs in common although neither holds the other.
#[must_use]
pub fn crosses(a: u64, b: u64) -> bool {
    c::native_crosses(a, b)
}

/// Gang sets of this size begin at multiples of this.
#[must_use]
pub fn set_step(size: u32) -> u32 {
    c::native_set_step(size)
}

/// What `ran` nanoseconds cost an account that is entitled to `share` 1024ths of a CPU.
#[must_use]
pub fn charge(ran: u64, share: u32) -> u64 {
    c::native_charge(ran, share)
}

/// One step towards the level of weighted max-min fairness: `filled` of `cpus` are the demand of accounts that have all
/// that they want, `weight` is that of the others, `all` that of all.
#[must_use]
pub fn level(cpus: u64, filled: u64, weight: u64, all: u64) -> u64 {
    c::native_level(cpus, filled, weight, all)
}

/// What the level gives this weight, 1024ths of a CPU.
#[must_use]
pub fn claim(weight: u32, level: u64) -> u64 {
    c::native_claim(weight, level)
}

/// The share of an account that can use `most` 1024ths of a CPU and claims `claim`.
#[must_use]
pub fn share(most: u32, claim: u64) -> u32 {
    c::native_share(most, claim)
}

/// The place of a waiting thread that had `own` itself, of an account with this virtual time whose last thread had
/// `front`.
#[must_use]
pub fn key(vtime: u64, own: u64, front: u64, bound: u64) -> u64 {
    c::native_key(vtime, own, front, bound)
}

/// The place of one of so many threads of the host that share by weight, with `share` together.
#[must_use]
pub fn host_key(vtime: u64, own: u64, mean: u64, bound: u64, (threads, share): (u32, u32)) -> u64 {
    c::native_host_key(vtime, own, mean, bound, threads, share)
}

/// A virtual time of which half of what is beyond `most` is forgiven.
#[must_use]
pub fn shorten(vtime: u64, most: u64) -> u64 {
    c::native_shorten(vtime, most)
}

/// Whether a vCPU hardly ever blocks, by a window of evidence. `bound`: of one that belongs to the gang, the CPU time for
/// each block below which it leaves it, in ns.
#[must_use]
pub fn hardly_blocks(bound: Option<u32>, ran_ns: u64, blocks: u32) -> bool {
    c::native_hardly_blocks(bound.is_some(), bound.unwrap_or(0), ran_ns, blocks)
}

/// That bound for a vCPU of a VM that is tried as a gang, from the window of evidence before the trial.
#[must_use]
pub fn trial_bound(ran_ns: u64, blocks: u32) -> u32 {
    c::native_trial_bound(ran_ns, blocks)
}

/// Whether a thread that wakes up with this place takes the CPU at once from one with the place `runs`.
#[must_use]
pub fn wake_preempts(wakes: u64, runs: u64, slack: u64) -> bool {
    c::native_wake_preempts(wakes, runs, slack)
}
