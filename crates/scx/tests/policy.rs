//! What the kernel scheduler's decisions promise, checked on the very C that runs in the kernel.

use instep_scx as _; // It links the C.
use proptest::prelude::*;

const MS: u64 = 1_000_000;
/// `POL_ORIGIN`: where virtual times begin.
const ORIGIN: u64 = 1 << 50;
/// `POL_CPU`: a whole CPU, where CPUs are counted in parts.
const CPU: u32 = 1024;
/// `POL_LEVEL_MOST`: the level at which every account has all that it wants.
const LEVEL_MOST: u64 = 1 << 30;

// SAFETY: the signatures are those of shim/policy.c; values are passed.
#[rustfmt::skip]
unsafe extern "C" {
    #[link_name = "policy_before"] safe fn is_before(a: u64, b: u64) -> bool;
    #[link_name = "policy_since"] safe fn since(at: u64, now: u64) -> u64;
    #[link_name = "policy_clamp"] safe fn clamp(value: u64, least: u64, most: u64) -> u64;
    #[link_name = "policy_count"] safe fn count(set: u64) -> u32;
    #[link_name = "policy_lowest"] safe fn lowest(set: u64) -> u32;
    #[link_name = "policy_highest"] safe fn highest(set: u64) -> u32;
    #[link_name = "policy_nth"] safe fn nth(set: u64, n: u32) -> u32;
    #[link_name = "policy_pick"] safe fn pick(set: u64, first: u32, count: u32) -> u64;
    #[link_name = "policy_rank_of_lane"] safe fn rank_of_lane(set: u64, lane: u32) -> u32;
    #[link_name = "policy_crosses"] safe fn crosses(a: u64, b: u64) -> bool;
    #[link_name = "policy_set_step"] safe fn set_step(size: u32, cpus: u32) -> u32;
    #[link_name = "policy_charge"] safe fn charge(ran: u64, share: u32) -> u64;
    #[link_name = "policy_level"] safe fn level(cpus: u64, filled: u64, weight: u64, all: u64) -> u64;
    #[link_name = "policy_claim"] safe fn claim(weight: u32, level: u64) -> u64;
    #[link_name = "policy_share"] safe fn share(most: u32, claim: u64) -> u32;
    #[link_name = "policy_key"] safe fn key(vtime: u64, own: u64, front: u64, bound: u64) -> u64;
    safe fn policy_host_key(vtime: u64, own: u64, mean: u64, bound: u64, threads: u32, share: u32) -> u64;
    #[link_name = "policy_shorten"] safe fn shorten(vtime: u64, most: u64) -> u64;
    safe fn policy_hardly_blocks(member: bool, bound: u32, ran_ns: u64, blocks: u32) -> bool;
    #[link_name = "policy_trial_bound"] safe fn trial_bound(ran_ns: u64, blocks: u32) -> u32;
    #[link_name = "policy_wake_preempts"] safe fn wake_preempts(wakes: u64, runs: u64, slack: u64) -> bool;
}

/// `bound`: of a vCPU that belongs to the gang, the CPU time for each block below which it leaves it, in ns.
fn hardly_blocks(bound: Option<u32>, ran_ns: u64, blocks: u32) -> bool {
    policy_hardly_blocks(bound.is_some(), bound.unwrap_or(0), ran_ns, blocks)
}

#[test]
fn the_exact_share_costs_one_second_a_second() {
    // A whole CPU for a share of one, two CPUs for a share of two.
    assert_eq!(charge(10 * MS, CPU), 10 * MS);
    assert_eq!(2 * charge(10 * MS, 2 * CPU), 10 * MS);
    assert_eq!(charge(10 * MS, CPU / 2), 20 * MS);
    assert_eq!(charge(10 * MS, 0), charge(10 * MS, 1));
    assert_eq!(charge(u64::MAX, CPU), 1000 * MS, "a clock that jumps costs a second");
}

/// The level after ten steps from the top, for accounts of (weight, demand in 1024ths of a CPU).
fn level_of(cpus: u64, accounts: &[(u32, u32)]) -> u64 {
    let mut now = LEVEL_MOST;
    for _ in 0..10 {
        let (mut filled, mut weight, mut all) = (0, 0, 0);
        for (own, demand) in accounts {
            all += u64::from(*own);
            match u64::from(*demand) <= claim(*own, now) {
                true => filled += u64::from(*demand),
                false => weight += u64::from(*own),
            }
        }
        now = level(cpus * u64::from(CPU), filled, weight, all);
    }
    now
}

fn shares_of(cpus: u64, accounts: &[(u32, u32)]) -> Vec<u32> {
    let level = level_of(cpus, accounts);
    accounts.iter().map(|(weight, demand)| share(*demand, claim(*weight, level))).collect()
}

#[test]
fn the_level_fills_the_host_with_shares_of_all() {
    // One vCPU beside sixteen on 16 CPUs: it has one CPU, the other all that is left.
    let narrow = shares_of(16, &[(100, CPU), (100, 16 * CPU)]);
    assert!(narrow[0] == CPU && narrow[1].abs_diff(15 * CPU) < 16, "{narrow:?}");
    // Three that want more than there is, by weight.
    let by_weight = shares_of(8, &[(100, 8 * CPU), (100, 8 * CPU), (200, 8 * CPU)]);
    assert!(by_weight.iter().zip([2, 2, 4]).all(|(share, cpus)| share.abs_diff(cpus * CPU) < 16));
    // Room for all: each has what it wants.
    assert_eq!(shares_of(8, &[(1, CPU), (10_000, 3 * CPU)]), [CPU, 3 * CPU]);
}

#[test]
fn a_share_is_never_less_than_a_64th_of_a_cpu() {
    assert_eq!(share(0, 0), CPU / 64);
    assert_eq!(share(CPU, 1), CPU / 64);
    assert_eq!(share(CPU, u64::MAX), CPU);
}

#[test]
fn a_thread_stands_before_others_of_its_account_within_a_bound() {
    let (vtime, front) = (ORIGIN + 50 * MS, ORIGIN + 9 * MS);
    assert_eq!(key(vtime, front, front, 3 * MS), vtime);
    assert_eq!(key(vtime, front - 2 * MS, front, 3 * MS), vtime - 2 * MS);
    assert_eq!(key(vtime, front - 20 * MS, front, 3 * MS), vtime - 3 * MS);
    assert_eq!(key(vtime, front + 20 * MS, front, 3 * MS), vtime + 3 * MS);
}

#[test]
fn host_thread_that_had_more_waits_for_the_others() {
    let (vtime, mean) = (ORIGIN + 50 * MS, ORIGIN + 9 * MS);
    let place = |own, (threads, share)| policy_host_key(vtime, own, mean, 3 * MS, threads, share);
    assert_eq!(place(mean, (8, CPU)), vtime);
    assert_eq!(place(mean - 2 * MS, (8, CPU)), vtime - 2 * MS);
    assert_eq!(place(mean - 20 * MS, (8, CPU)), vtime - 3 * MS);
    // Eight threads on two CPUs: each has 5 ms in 20; with a CPU for each it waits for what it had.
    assert_eq!(place(mean + 5 * MS, (8, 2 * CPU)), vtime + 20 * MS);
    assert_eq!(place(mean + 5 * MS, (2, 2 * CPU)), vtime + 5 * MS);
    assert_eq!(place(mean + 5000 * MS, (8, CPU)), vtime + 1000 * MS, "a second at most");
    assert_eq!(place(mean + 5000 * MS, (u32::MAX, 0)), vtime + 1000 * MS, "no product overflows");
}

#[test]
fn half_of_a_debt_beyond_bound_is_forgiven_and_order_stays() {
    let most = ORIGIN + 96 * MS;
    assert_eq!(shorten(most - 1, most), most - 1);
    assert_eq!(shorten(most + 10 * MS, most), most + 5 * MS);
    assert!(shorten(most + 10 * MS, most) < shorten(most + 12 * MS, most));
}

/// A vCPU of a gang that formed by its own evidence.
const MEMBER: Option<u32> = Some(10 * MS as u32);

#[test]
fn vcpu_on_trial_stays_in_the_gang_if_it_blocks_four_times_less() {
    let bound = trial_bound(40 * MS, 80);
    assert_eq!(u64::from(bound), 2 * MS);
    assert!(hardly_blocks(Some(bound), 40 * MS, 20));
    assert!(!hardly_blocks(Some(bound), 40 * MS, 21));
    assert_eq!(Some(trial_bound(40 * MS, 2)), MEMBER, "it is never stricter than for others");
    assert_eq!(Some(trial_bound(40 * MS, 0)), MEMBER);
}

#[test]
fn vcpu_that_hardly_blocks_joins_the_gang_with_hysteresis() {
    assert!(hardly_blocks(None, 40 * MS, 0) && hardly_blocks(None, 40 * MS, 2));
    assert!(!hardly_blocks(None, 40 * MS, 3));
    assert!(hardly_blocks(MEMBER, 40 * MS, 4));
    assert!(!hardly_blocks(MEMBER, 40 * MS, 5));
}

#[test]
fn too_little_cpu_time_makes_no_vcpu_a_member() {
    assert!(!hardly_blocks(None, 3 * MS, 0));
    assert!(hardly_blocks(MEMBER, 3 * MS, 0), "a member that had to wait stays");
    assert!(!hardly_blocks(MEMBER, 3 * MS, 1), "one that sleeps does not");
}

#[test]
fn waker_preempts_what_is_further_along_by_more_than_the_slack() {
    assert!(wake_preempts(ORIGIN, ORIGIN + MS + 1, MS));
    assert!(!wake_preempts(ORIGIN, ORIGIN + MS, MS));
    assert!(!wake_preempts(ORIGIN + MS, ORIGIN, MS));
}

#[test]
fn a_time_that_another_cpus_clock_noted_later_was_just_now() {
    assert_eq!((since(5, 9), since(9, 5), since(7, 7)), (4, 0, 0));
}

#[test]
fn sets_of_different_sizes_nest() {
    assert_eq!(
        [1, 2, 3, 4, 8, 16, 32, 64].map(|size| set_step(size, 64)),
        [1, 2, 4, 4, 8, 16, 32, 64]
    );
    // More than a quarter would stay unused.
    assert_eq!([5, 9, 17, 33].map(|size| set_step(size, 64)), [2, 4, 8, 16]);
    // Two sets fit, but not from multiples of the next power of two on; of four of seven CPUs one fits.
    assert_eq!((set_step(3, 6), set_step(6, 12), set_step(3, 7), set_step(4, 7)), (1, 2, 4, 4));
    for (a, b) in [(2, 4), (2, 8), (4, 8), (3, 4), (8, 16)] {
        let sets = |size: u32| {
            (0..64 / set_step(size, 64))
                .map(move |n| pick(u64::MAX, n * set_step(size, 64), size))
                .filter(|set| *set != 0)
        };
        for (a, b) in sets(a).flat_map(|a| sets(b).map(move |b| (a, b))) {
            assert!(!crosses(a, b), "{a:x} {b:x}");
        }
    }
}

#[test]
fn sets_cross_where_each_has_a_cpu_that_the_other_has_not() {
    assert!(crosses(0b0111, 0b1110));
    assert!(!crosses(0b0111, 0b0110) && !crosses(0b0011, 0b1100) && !crosses(0b11, 0b11));
}

#[test]
fn lanes_picked_of_a_domain_lie_side_by_side() {
    assert_eq!(
        (pick(u64::MAX, 0, 64), pick(u64::MAX, 0, 1), pick(u64::MAX, 62, 2)),
        (u64::MAX, 1, 3 << 62)
    );
    assert_eq!(
        (pick(u64::MAX, 63, 2), pick(0, 0, 1), pick(0b1011_0100, 1, 2)),
        (0, 0, 0b0011_0000)
    );
}

proptest! {
    #[test]
    fn lanes_are_counted_as_bits_are(set: u64, lane in 0u32..64) {
        prop_assert_eq!(count(set), set.count_ones());
        prop_assert_eq!(rank_of_lane(set, lane), (set & ((1 << lane) - 1)).count_ones());
        if set != 0 {
            prop_assert_eq!((lowest(set), highest(set)), (set.trailing_zeros(), 63 - set.leading_zeros()));
        }
    }

    #[test]
    fn lanes_of_a_set_have_numbers(set: u64, first in 0u32..70, size in 1u32..70) {
        let lanes: Vec<u32> = (0..64).filter(|lane| set & 1 << lane != 0).collect();
        let at = |n: u32| lanes.get(n as usize).copied();
        prop_assert_eq!(nth(set, first), at(first).unwrap_or(64));
        let wanted = (first..first + size).map(at).collect::<Option<Vec<u32>>>().unwrap_or_default();
        prop_assert_eq!(pick(set, first, size), wanted.iter().fold(0, |set, lane| set | 1 << lane));
    }

    #[test]
    fn a_clamped_time_is_within_its_bounds(v in 0u64..1 << 40, least in 0u64..1 << 40, room in 0u64..1 << 30) {
        let (least, most) = (ORIGIN + least, ORIGIN + least + room);
        let clamped = clamp(ORIGIN + v, least, most);
        prop_assert!(!is_before(clamped, least) && !is_before(most, clamped));
        if (least..=most).contains(&(ORIGIN + v)) {
            prop_assert_eq!(clamped, ORIGIN + v);
        }
    }

    #[test]
    fn two_never_preempt_each_other(a in 0u64..100, b in 0u64..100, slack in 0u64..50) {
        let (a, b) = (ORIGIN + a, ORIGIN + b);
        prop_assert!(!(wake_preempts(a, b, slack) && wake_preempts(b, a, slack)));
    }

    #[test]
    fn the_level_is_never_below_an_equal_division(
        accounts in prop::collection::vec((1u32..=1000, 0u32..32 * 1024), 1..20), cpus in 1u64..128
    ) {
        let all: u64 = accounts.iter().map(|(weight, _)| u64::from(*weight)).sum();
        let least = ((cpus * u64::from(CPU)) << 10) / all;
        prop_assert!(level_of(cpus, &accounts) >= least);
    }

    #[test]
    fn shares_together_fill_the_host_and_no_more(
        accounts in prop::collection::vec((10u32..=1000, CPU / 8..32 * CPU), 1..20), cpus in 8u64..128
    ) {
        let sum: u64 = shares_of(cpus, &accounts).iter().map(|share| u64::from(*share)).sum();
        let demand: u64 = accounts.iter().map(|(_, demand)| u64::from(*demand)).sum();
        prop_assert!(sum >= demand.min(cpus * u64::from(CPU)) * 99 / 100, "{sum} of {demand}");
        // Each may have a 64th of a CPU whatever its weight.
        prop_assert!(sum <= cpus * u64::from(CPU) + 20 * u64::from(CPU) / 64, "{sum}");
    }

    #[test]
    fn time_follows_shares_whatever_the_run_lengths(
        runs in prop::collection::vec(1u64..4 * MS, 2000..3000), weight in 1u32..=10
    ) {
        // Two accounts on one CPU, the one behind runs: times approach 1 : weight.
        let (mut vtime, mut used) = ([0u64; 2], [0u64; 2]);
        for run in runs {
            let next = usize::from(vtime[1] < vtime[0]);
            vtime[next] += charge(run, [CPU / 16, CPU / 16 * weight][next]);
            used[next] += run;
        }
        let ratio = used[1] as f64 / used[0] as f64;
        prop_assert!((ratio / f64::from(weight) - 1.0).abs() < 0.1, "{ratio} for {weight}");
    }
}
