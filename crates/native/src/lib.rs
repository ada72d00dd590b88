//! The kernel scheduler's decisions, bpf/policy.h, compiled for this machine: the same C as in the
//! kernel, behind safe functions.
//!
//! It knows no kernel and keeps no state. Virtual times are nanoseconds of CPU time at weight 100.

/// Where virtual times begin (`POL_ORIGIN`), so that subtracting never wraps.
pub const ORIGIN: u64 = 1 << 50;

/// A candidate for a CPU (`struct pol_rank`, as it is laid out there).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Rank {
    /// Virtual time.
    pub vtime: u64,
    /// Of a VM whose siblings run together.
    pub gang: bool,
    /// Which do so now.
    pub episode: bool,
}

/// A VM's account (`struct pol_account`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Virtual time.
    pub vtime: u64,
    /// The host's at the period's begin.
    pub mark: u64,
    /// When the period began.
    pub period_at: u64,
    /// Whether a vCPU had to wait in this period.
    pub waited: bool,
}

/// What came of [`roll`] (`enum pol_rolled`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rolled {
    /// The period goes on.
    Same,
    /// A new one began.
    Rolled,
    /// A new one began and unused time was lost.
    Expired,
}

/// What a VM did in a window (`struct pol_handover`); times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    /// CPU time of its vCPUs.
    pub ran: u64,
    /// The window's length.
    pub wall: u64,
    /// Wake-ups of a vCPU by a sibling.
    pub wakes: u64,
    /// Wake-ups that found an idle CPU.
    pub idle: u64,
}

/// Co-scheduling as configured (`enum instep_cosched`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Cosched {
    Auto = 0,
    Never = 1,
    Relaxed = 2,
    Strict = 3,
}

mod c {
    use super::Rank;

    // SAFETY: the signatures are those of policy.c, which is compiled with this crate, and Rank is
    // `struct pol_rank`; values are passed, and references that are not kept.
    unsafe extern "C" {
        pub(super) safe fn native_cost(ran: u64, weight: u32) -> u64;
        pub(super) safe fn native_clamp(vtime: u64, cpu_vtime: u64, debt: u64) -> u64;
        pub(super) safe fn native_roll(
            vtime: &mut u64,
            mark: &mut u64,
            period_at: &mut u64,
            waited: &mut u32,
            now: u64,
            period: u64,
            host: u64,
        ) -> u32;
        pub(super) safe fn native_host_rank(
            behind: u64,
            group: u64,
            cpu_vtime: u64,
            light: u64,
            bound: u64,
        ) -> u64;
        pub(super) safe fn native_gang(
            cosched: u32,
            now: bool,
            ran_ns: u64,
            blocks: u32,
            nr_vcpus: u32,
        ) -> bool;
        pub(super) safe fn native_gang_before(a: Rank, b: Rank) -> bool;
        pub(super) safe fn native_tick_preempts(waiter: Rank, runs: Rank) -> bool;
        pub(super) safe fn native_goes_on(runs: Rank, waiter: Rank) -> bool;
        pub(super) safe fn native_skew_stops(runs: Rank, waiter: Rank) -> bool;
        pub(super) safe fn native_wake_preempts(wakes: Rank, runs: Rank, slack: u64) -> bool;
        pub(super) safe fn native_slice(
            episode: bool,
            now: u64,
            until: u64,
            slice: u64,
            siblings: u32,
        ) -> u64;
        pub(super) safe fn native_turn(episode: u64, slice: u64) -> u64;
        pub(super) safe fn native_held_up(
            waited: u64,
            all_vcpus: u32,
            cpus: u32,
            slice: u64,
            ready: u32,
        ) -> bool;
        pub(super) safe fn native_may_boost(vtime: u64, host_vtime: u64) -> bool;
        pub(super) safe fn native_probe_next(before: u64) -> u64;
        pub(super) safe fn native_may_gather(
            ran: u64,
            wall: u64,
            wakes: u64,
            idle: u64,
            gathered: bool,
        ) -> bool;
        pub(super) safe fn native_gather_pays(
            apart_ran: u64,
            apart_wall: u64,
            apart_wakes: u64,
            ran: u64,
            wall: u64,
            wakes: u64,
            gain: u32,
        ) -> bool;
        pub(super) safe fn native_may_use(held_vm: u32, held_until: u64, now: u64, vm: u32)
        -> bool;
        pub(super) safe fn native_overdue(since: u64, now: u64, bound: u64) -> bool;
        pub(super) safe fn native_overdue_bound(siblings: u32) -> u64;
        pub(super) safe fn native_first(cpu_vtime: u64) -> u64;
        pub(super) safe fn native_first_by_age(cpu_vtime: u64, waited: u64) -> u64;
        pub(super) safe fn native_waits_since(
            waited: u64,
            came: u64,
            ran: u64,
            had: u64,
            turn: u64,
        ) -> u64;
        pub(super) safe fn native_pulls(waiter: u64, runs: u64, waited: u64, pull: u64) -> bool;
        pub(super) safe fn native_probe_fails(
            ran_apart: u64,
            blocks_apart: u32,
            ran: u64,
            blocks: u32,
        ) -> bool;
    }
}

/// What `ran` nanoseconds cost a VM of this weight.
#[must_use]
pub fn cost(ran: u64, weight: u32) -> u64 {
    c::native_cost(ran, weight)
}

/// A virtual time within `debt` of the CPU's.
#[must_use]
pub fn clamp(vtime: u64, cpu_vtime: u64, debt: u64) -> u64 {
    c::native_clamp(vtime, cpu_vtime, debt)
}

/// Ends the account's period when it is over.
pub fn roll(account: &mut Account, now: u64, period: u64, host_vtime: u64) -> Rolled {
    let mut waited = u32::from(account.waited);
    let Account { vtime, mark, period_at, .. } = account;
    let rolled = c::native_roll(vtime, mark, period_at, &mut waited, now, period, host_vtime);
    account.waited = waited != 0;
    match rolled {
        0 => Rolled::Same,
        1 => Rolled::Rolled,
        _ => Rolled::Expired,
    }
}

/// The rank of a thread of no VM that is `behind` its equals.
#[must_use]
pub fn host_rank(behind: u64, group: u64, cpu_vtime: u64, light: u64, bound: u64) -> u64 {
    c::native_host_rank(behind, group, cpu_vtime, light, bound)
}

/// Whether a VM's siblings should run together.
#[must_use]
pub fn gang(cosched: Cosched, now: bool, ran_ns: u64, blocks: u32, nr_vcpus: u32) -> bool {
    c::native_gang(cosched as u32, now, ran_ns, blocks, nr_vcpus)
}

/// Whether `a` goes before `b`, both of VMs whose siblings run together.
#[must_use]
pub fn gang_before(a: Rank, b: Rank) -> bool {
    c::native_gang_before(Rank { gang: true, ..a }, Rank { gang: true, ..b })
}

/// Whether a waiter takes the CPU at a tick.
#[must_use]
pub fn tick_preempts(waiter: Rank, runs: Rank) -> bool {
    c::native_tick_preempts(waiter, runs)
}

/// Whether what runs goes on at the end of its slice although another waits.
#[must_use]
pub fn goes_on(runs: Rank, waiter: Rank) -> bool {
    c::native_goes_on(runs, waiter)
}

/// Whether a vCPU that is too far ahead of a waiting sibling gives way to this waiter.
#[must_use]
pub fn skew_stops(runs: Rank, waiter: Rank) -> bool {
    c::native_skew_stops(runs, waiter)
}

/// Whether a thread that wakes up takes the CPU at once.
#[must_use]
pub fn wake_preempts(wakes: Rank, runs: Rank, slack: u64) -> bool {
    c::native_wake_preempts(wakes, runs, slack)
}

/// How long a thread may run.
#[must_use]
pub fn slice(episode: bool, now: u64, until: u64, slice: u64, siblings: u32) -> u64 {
    c::native_slice(episode, now, until, slice, siblings)
}

/// How long a turn is of siblings that share a CPU.
#[must_use]
pub fn turn(episode: u64, slice: u64) -> u64 {
    c::native_turn(episode, slice)
}

/// Whether a VM is held up by a bottleneck.
#[must_use]
pub fn held_up(waited: u64, all_vcpus: u32, cpus: u32, slice: u64, ready: u32) -> bool {
    c::native_held_up(waited, all_vcpus, cpus, slice, ready)
}

/// Whether it may be helped within its fair allocation.
#[must_use]
pub fn may_boost(vtime: u64, host_vtime: u64) -> bool {
    c::native_may_boost(vtime, host_vtime)
}

/// Whether a VM might be served better by one CPU.
#[must_use]
pub fn may_gather(seen: Handover, gathered: bool) -> bool {
    c::native_may_gather(seen.ran, seen.wall, seen.wakes, seen.idle, gathered)
}

/// Whether it gets at least `gain` 32nds more done gathered than apart.
#[must_use]
pub fn gather_pays(apart: Handover, gathered: Handover, gain: u32) -> bool {
    let (a, g) = (apart, gathered);
    c::native_gather_pays(a.ran, a.wall, a.wakes, g.ran, g.wall, g.wakes, gain)
}

/// Whether a thread of `vm` (0: of none) may be chosen on a CPU that is held for another.
#[must_use]
pub fn may_use(held_vm: u32, held_until: u64, now: u64, vm: u32) -> bool {
    c::native_may_use(held_vm, held_until, now, vm)
}

/// Whether something has waited, or been absent, for longer than `bound`; never when `since` is 0.
#[must_use]
pub fn overdue(since: u64, now: u64, bound: u64) -> bool {
    c::native_overdue(since, now, bound)
}

/// How long a VM's thread may wait where so many vCPUs of its VM run or wait, itself included.
#[must_use]
pub fn overdue_bound(siblings: u32) -> u64 {
    c::native_overdue_bound(siblings)
}

/// The rank of who has its turn for having been overdue, and of overdue threads of no VM.
#[must_use]
pub fn first(cpu_vtime: u64) -> u64 {
    c::native_first(cpu_vtime)
}

/// The rank of a vCPU that is overdue.
#[must_use]
pub fn first_by_age(cpu_vtime: u64, waited: u64) -> u64 {
    c::native_first_by_age(cpu_vtime, waited)
}

/// Since when a thread waits that must wait again, having run for `ran` from `came` on, `had` with what it had
/// of its turn before; `waited`: since when it had waited before, 0 if it had not.
#[must_use]
pub fn waits_since(waited: u64, came: u64, ran: u64, had: u64, turn: u64) -> u64 {
    c::native_waits_since(waited, came, ran, had, turn)
}

/// Whether a CPU takes over a waiter of another's queue.
#[must_use]
pub fn pulls(waiter: u64, runs: u64, waited: u64, pull: u64) -> bool {
    c::native_pulls(waiter, runs, waited, pull)
}

/// Whether a trial together has failed already.
#[must_use]
pub fn probe_fails(ran_apart: u64, blocks_apart: u32, ran: u64, blocks: u32) -> bool {
    c::native_probe_fails(ran_apart, blocks_apart, ran, blocks)
}

/// When a VM that blocks is tried together again.
#[must_use]
pub fn probe_next(before: u64) -> u64 {
    c::native_probe_next(before)
}
