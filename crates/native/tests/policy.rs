//! What the kernel scheduler's decisions promise, checked on the very C that runs in the kernel.

use instep_native::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn rank(vtime: u64) -> Rank {
    Rank { vtime: ORIGIN + vtime, gang: false, episode: false }
}

fn gang_at(vtime: u64, episode: bool) -> Rank {
    Rank { gang: true, episode, ..rank(vtime) }
}

#[test]
fn twice_the_weight_costs_half() {
    assert_eq!(cost(10 * MS, 100), 10 * MS);
    assert_eq!(cost(10 * MS, 200), 5 * MS);
    assert_eq!(cost(10 * MS, 0), cost(10 * MS, 1));
    assert_eq!(cost(u64::MAX, 1), cost(1000 * MS, 1));
}

#[test]
fn time_that_nobody_wanted_expires_with_the_period() {
    let mut account = Account { vtime: ORIGIN, mark: ORIGIN, ..Account::default() };
    assert_eq!(roll(&mut account, 23 * MS, 24 * MS, ORIGIN + 50 * MS), Rolled::Same);
    // Behind the host, but not behind the mark of this period: the claim stands for one more.
    assert_eq!(roll(&mut account, 24 * MS, 24 * MS, ORIGIN + 50 * MS), Rolled::Rolled);
    assert_eq!(account.vtime, ORIGIN);
    // Nor further behind the next than others may lead, 48 ms; then it is.
    assert_eq!(roll(&mut account, 48 * MS, 24 * MS, ORIGIN + 90 * MS), Rolled::Expired);
    assert_eq!(account.vtime, ORIGIN + 2 * MS);
    assert_eq!(roll(&mut account, 72 * MS, 24 * MS, ORIGIN + 120 * MS), Rolled::Expired);
    assert_eq!(account.vtime, ORIGIN + 42 * MS);
}

#[test]
fn a_vm_that_had_to_wait_keeps_its_claim() {
    let mut account =
        Account { vtime: ORIGIN, mark: ORIGIN + 9 * MS, waited: true, ..Account::default() };
    assert_eq!(roll(&mut account, 24 * MS, 24 * MS, ORIGIN + 50 * MS), Rolled::Rolled);
    assert_eq!((account.vtime, account.waited), (ORIGIN, false));
}

#[test]
fn a_vm_that_was_away_for_long_claims_nothing() {
    let mut account = Account { vtime: ORIGIN, mark: ORIGIN, ..Account::default() };
    assert_eq!(roll(&mut account, 1000 * MS, 24 * MS, ORIGIN + 900 * MS), Rolled::Expired);
    assert_eq!(account.vtime, ORIGIN + 900 * MS);
}

#[test]
fn a_period_that_began_after_now_by_another_cpus_clock_goes_on() {
    let begun = Account { vtime: ORIGIN, mark: ORIGIN, period_at: 48 * MS, waited: false };
    let mut account = begun;
    assert_eq!(roll(&mut account, 48 * MS - 1, 24 * MS, ORIGIN + 900 * MS), Rolled::Same);
    assert_eq!(account, begun);
}

#[test]
fn a_light_thread_goes_first_beside_a_fork_bomb() {
    let at = ORIGIN + 500 * MS;
    let (light, bound) = (2 * MS, 48 * MS);
    assert_eq!(host_rank(3 * MS, at + 40 * MS, at, light, bound), at - light);
    // One of the bomb's, not behind: by the account of all together.
    assert_eq!(host_rank(0, at + 40 * MS, at, light, bound), at + 40 * MS);
    // All together far beyond their share: no exception.
    assert_eq!(host_rank(3 * MS, at + 50 * MS, at, light, bound), at + 50 * MS);
}

#[test]
fn a_vm_that_never_blocks_runs_together_and_one_that_does_not() {
    assert!(gang(Cosched::Auto, false, 40 * MS, 0, 2));
    assert!(gang(Cosched::Auto, false, 40 * MS, 2, 2));
    assert!(!gang(Cosched::Auto, false, 40 * MS, 3, 2));
    // Between the thresholds it stays as it is.
    assert!(gang(Cosched::Auto, true, 40 * MS, 4, 2));
    assert!(!gang(Cosched::Auto, true, 40 * MS, 5, 2));
}

#[test]
fn too_little_evidence_changes_nothing_and_settings_win() {
    assert!(!gang(Cosched::Auto, false, 9 * MS, 0, 2));
    assert!(gang(Cosched::Auto, true, 9 * MS, 100, 2));
    assert!(!gang(Cosched::Never, true, 40 * MS, 0, 2));
    assert!(gang(Cosched::Relaxed, false, 40 * MS, 99, 2));
    assert!(!gang(Cosched::Strict, false, 40 * MS, 0, 1), "one vCPU has no siblings");
}

#[test]
fn an_episode_is_not_torn_apart_by_another_gang() {
    assert!(gang_before(gang_at(50, true), gang_at(10, false)));
    assert!(!tick_preempts(gang_at(10, false), gang_at(50, true)));
    assert!(tick_preempts(gang_at(50, true), gang_at(10, false)));
    assert!(!wake_preempts(gang_at(10, false), gang_at(50, true), MS));
}

#[test]
fn an_episode_leads_by_no_more_than_its_bound() {
    let (ahead, behind) = (gang_at(58 * MS, true), gang_at(10 * MS, false));
    assert!(!gang_before(ahead, behind) && gang_before(behind, ahead));
    assert!(tick_preempts(behind, ahead) && !goes_on(ahead, behind));
    assert!(gang_before(gang_at(58 * MS - 1, true), behind));
}

#[test]
fn skew_gives_way_to_other_kinds_as_far_as_an_episode_may_lead() {
    let runs = gang_at(10 * MS, true);
    assert!(skew_stops(runs, rank(58 * MS - 1)) && !skew_stops(runs, rank(58 * MS)));
    assert!(!skew_stops(runs, gang_at(0, false)) && !skew_stops(gang_at(10, false), rank(0)));
}

#[test]
fn equals_take_turns_when_a_slice_ends() {
    assert!(!goes_on(rank(10), rank(10)));
    assert!(goes_on(rank(9), rank(10)) && !goes_on(rank(11), rank(10)));
    assert!(goes_on(gang_at(50, true), gang_at(10, false)));
    assert!(!goes_on(gang_at(10, true), gang_at(10, true)));
}

#[test]
fn a_vm_that_blocks_does_not_wait_for_an_episode() {
    assert!(tick_preempts(rank(10), gang_at(50, true)));
    assert!(wake_preempts(rank(10), gang_at(50, true), 0));
}

#[test]
fn a_waker_at_its_share_preempts_a_gang_but_not_an_equal_that_blocks() {
    assert!(wake_preempts(rank(10 * MS), gang_at(10 * MS, true), MS));
    assert!(!wake_preempts(rank(11 * MS), gang_at(10 * MS, true), MS));
    assert!(!wake_preempts(rank(10 * MS), rank(10 * MS), MS));
    assert!(wake_preempts(rank(8 * MS), rank(10 * MS), MS));
}

#[test]
fn a_turn_is_a_quarter_of_an_episode_within_its_bounds() {
    assert_eq!(turn(6 * MS, 3 * MS), 3 * MS / 2);
    assert_eq!(turn(MS, 3 * MS), MS / 2);
    assert_eq!(turn(100 * MS, 3 * MS), 3 * MS);
}

#[test]
fn a_slice_ends_with_the_episode() {
    assert_eq!(slice(true, 10 * MS, 14 * MS, 3 * MS, 1), 4 * MS);
    assert_eq!(slice(true, 14 * MS, 14 * MS, 3 * MS, 1), 3 * MS);
    assert_eq!(slice(false, 10 * MS, 14 * MS, 3 * MS, 1), 3 * MS);
    // Two on one CPU take turns in it.
    assert_eq!(slice(true, 10 * MS, 14 * MS, 3 * MS, 2), 3 * MS);
    assert_eq!(slice(true, 13 * MS, 14 * MS, 3 * MS, 2), MS);
}

#[test]
fn a_bottleneck_is_seen_after_the_ideal_interval() {
    // 12 vCPUs on 6 CPUs and slices of 3 ms: 6 ms.
    assert!(!held_up(6 * MS, 12, 6, 3 * MS, 1));
    assert!(held_up(6 * MS + 1, 12, 6, 3 * MS, 1));
    assert!(!held_up(60 * MS, 12, 6, 3 * MS, 0), "nobody is ready");
    assert!(may_boost(ORIGIN, ORIGIN) && !may_boost(ORIGIN + 1, ORIGIN));
}

#[test]
fn trials_grow_rare() {
    let mut gap = 0;
    let gaps: Vec<u64> = (0..8)
        .map(|_| {
            gap = probe_next(gap);
            gap / (1000 * MS)
        })
        .collect();
    assert_eq!(gaps, [1, 2, 4, 8, 16, 32, 64, 64]);
}

proptest! {
    #[test]
    fn nothing_is_further_from_its_cpu_than_the_bound(v in 0u64..1 << 40, c in 0u64..1 << 40, d in 0u64..1 << 30) {
        let clamped = clamp(ORIGIN + v, ORIGIN + c, d);
        prop_assert!(clamped.abs_diff(ORIGIN + c) <= d);
        if v.abs_diff(c) <= d {
            prop_assert_eq!(clamped, ORIGIN + v);
        }
    }

    #[test]
    fn two_never_preempt_each_other(
        a in 0u64..100, b in 0u64..100, kinds in 0u8..16, slack in 1u64..50
    ) {
        let kind = |v: u64, bits: u8| Rank { gang: bits & 1 != 0, episode: bits & 3 == 3, ..rank(v) };
        let (a, b) = (kind(a, kinds & 3), kind(b, kinds >> 2));
        prop_assert!(!(tick_preempts(a, b) && tick_preempts(b, a)));
        if a.gang == b.gang {
            prop_assert!(!(wake_preempts(a, b, slack) && wake_preempts(b, a, slack)));
        }
    }

    #[test]
    fn a_roll_never_takes_from_a_vm(v in 0u64..1 << 40, m in 0u64..1 << 40, now in 0u64..1 << 40, waited: bool) {
        let before = Account { vtime: ORIGIN + v, mark: ORIGIN + m, period_at: 0, waited };
        let mut after = before;
        roll(&mut after, now, 24 * MS, ORIGIN + m + 5);
        prop_assert!(after.vtime >= before.vtime);
        prop_assert!(!waited || after.vtime == before.vtime);
    }

    #[test]
    fn shares_follow_weights_whatever_the_run_lengths(
        runs in prop::collection::vec(1u64..4 * MS, 2000..3000), weight in 1u32..=10
    ) {
        // Two VMs on one CPU, the one behind runs: times approach 100 : 100 * weight.
        let (mut vtime, mut used) = ([0u64; 2], [0u64; 2]);
        for run in runs {
            let who = usize::from(vtime[1] < vtime[0]);
            vtime[who] += cost(run, [100, 100 * weight][who]);
            used[who] += run;
        }
        let ratio = used[1] as f64 / used[0] as f64;
        prop_assert!((ratio / f64::from(weight) - 1.0).abs() < 0.1, "{ratio} for {weight}");
    }
}

/// A window of 48 ms in which a VM used `cpus` 100ths of a CPU and handed over each `grain` of it.
fn window(cpus: u64, grain: u64) -> Handover {
    let ran = 48 * MS * cpus / 100;
    Handover { ran, wall: 48 * MS, wakes: ran / grain, idle: 0 }
}

#[test]
fn a_vm_is_gathered_only_when_it_hands_over_finely_on_one_cpu() {
    let us = 1000;
    assert!(may_gather(window(50, 200 * us), false));
    assert!(may_gather(window(110, 40 * us), false));
    assert!(!may_gather(window(130, 40 * us), false), "it uses more than one CPU");
    assert!(!may_gather(window(50, 2 * MS), false), "it computes for long between two");
    assert!(!may_gather(window(10, 40 * us), false), "too little to judge by");
    assert!(!may_gather(Handover { wakes: 0, ..window(90, MS) }, false), "it spins or computes");
}

#[test]
fn a_vm_that_finds_idle_cpus_is_not_gathered() {
    let busy = window(80, 100_000);
    assert!(may_gather(Handover { idle: busy.wakes / 8, ..busy }, true));
    assert!(!may_gather(Handover { idle: busy.wakes / 8 + 1, ..busy }, true));
}

#[test]
fn gathering_pays_only_where_more_is_done() {
    let apart = window(50, 320_000);
    assert!(
        gather_pays(apart, window(50, 280_000), 1) && gather_pays(apart, window(50, 280_000), 4)
    );
    assert!(gather_pays(apart, window(50, 300_000), 1));
    assert!(!gather_pays(apart, window(50, 300_000), 4), "not beside VMs that might spin");
    assert!(!gather_pays(apart, window(50, 318_000), 1), "not worth it");
    assert!(gather_pays(apart, window(48, 280_000), 1), "more is done with less CPU time");
    assert!(!gather_pays(apart, window(40, 280_000), 1), "less is done in the time that passed");
    assert!(!gather_pays(apart, window(2, 1_000), 1), "too little to judge by");
}

#[test]
fn a_trial_together_ends_early_unless_blocks_halve() {
    assert!(probe_fails(40 * MS, 400, 40 * MS, 399));
    assert!(!probe_fails(40 * MS, 400, 40 * MS, 200));
    assert!(!probe_fails(40 * MS, 400, 0, 0), "it did not run");
}

#[test]
fn a_held_cpu_is_for_its_vm_and_for_threads_of_none_until_the_hold_ends() {
    assert!(may_use(1, 6 * MS, 5 * MS, 1) && may_use(1, 6 * MS, 5 * MS, 0));
    assert!(!may_use(1, 6 * MS, 5 * MS, 2));
    assert!(may_use(1, 6 * MS, 6 * MS, 2), "the hold is over");
    assert!(may_use(1, 0, 5 * MS, 2), "it is not held");
}

#[test]
fn a_waiter_far_behind_or_long_forgotten_is_taken_over() {
    let at = |v: u64| ORIGIN + v * MS;
    assert!(pulls(at(7), at(20), 0, 12 * MS));
    assert!(!pulls(at(8), at(20), 0, 12 * MS));
    assert!(pulls(at(20), at(20), 12 * MS + 1, 12 * MS), "a sibling of what runs");
    assert!(!pulls(at(21), at(20), 100 * MS, 12 * MS), "it is ahead");
}

#[test]
fn a_turn_that_is_taken_back_at_once_was_none() {
    let (waited, turn) = (5 * MS, 1500 * MS / 1000);
    let (soon, late) = (100 * MS, 900 * MS);
    let whole = |waited, came, ran| waits_since(waited, came, ran, ran, turn);
    assert_eq!(whole(waited, late, turn - 1), waited, "it was overdue");
    assert_eq!(whole(waited, late, turn), late + turn);
    assert_eq!(whole(waited, soon, MS / 20 - 1), waited, "it was torn away");
    assert_eq!(whole(waited, soon, MS / 20), soon + MS / 20);
    assert_eq!(whole(0, late, 0), late, "it had not waited");
    assert_eq!(waits_since(waited, late, MS, turn, turn), late + MS, "the second piece");
}

#[test]
fn what_waits_for_too_long_is_overdue() {
    assert!(!overdue(5 * MS, 245 * MS, 240 * MS));
    assert!(overdue(5 * MS, 245 * MS + 1, 240 * MS));
    assert!(!overdue(0, 245 * MS, 240 * MS), "it does not wait");
    assert_eq!([0, 1, 3, 32, 512].map(overdue_bound), [1, 1, 3, 32, 32].map(|n| n * 240 * MS));
}

proptest! {
    #[test]
    fn the_overdue_go_before_all_others(c in 1u64 << 40..1 << 45, behind in 0u64..1 << 40) {
        prop_assert!(first(ORIGIN + c) < ORIGIN + c - behind);
        prop_assert!(first_by_age(ORIGIN + c, 0) < ORIGIN + c - behind);
    }

    #[test]
    fn of_the_overdue_who_waited_longer_goes_first_but_not_before_who_has_its_turn(
        c in 1u64 << 40..1 << 45, waited in 0u64..1 << 34, more in 1u64..1 << 34
    ) {
        let age = |waited| first_by_age(ORIGIN + c, waited);
        prop_assert!(age(waited + more) < age(waited));
        prop_assert!(first(ORIGIN + c) < age(u64::MAX));
    }

    #[test]
    fn what_does_not_pay_at_equal_work_never_pays_with_less(
        ran in 11u64..10_000, wakes in 1u64..1 << 30, less in 0u64..1 << 30
    ) {
        let apart = Handover { ran: ran * MS, wall: ran * MS, wakes, idle: 0 };
        let gathered = Handover { wakes: wakes.saturating_sub(less), ..apart };
        prop_assert!(!gather_pays(apart, gathered, 1));
    }
}
