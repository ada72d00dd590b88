//! Properties that every policy has on random hosts, with and without operators' limits; and the
//! broken policies that prove the checkers.

use crate::check::{self, settings};
use crate::made;
use instep_core::policy::{PolicyName, decide};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_policy_keeps_its_promises_on_any_host(
        seed in any::<u64>(),
        limits in any::<bool>(),
        mend in any::<bool>(),
        pinned in any::<bool>(),
    ) {
        let mut host = made::random(seed);
        if limits {
            made::restrict(&mut host, seed);
        }
        for policy in PolicyName::ALL {
            let mut settings = settings(policy);
            settings.mend_conflicts = mend;
            settings.include_pinned = pinned;
            let policy = |host: &_| decide(host, &settings);
            let kept = check::sound(&policy, &host)
                .and_then(|()| check::inside(&policy, &host, mend))
                .and_then(|()| check::order_does_not_matter(&policy, &host))
                .and_then(|()| check::does_not_flap(&policy, &host));
            prop_assert!(kept.is_ok(), "{} on seed {seed}: {kept:?}", settings.policy);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nonsense_in_a_snapshot_makes_no_policy_panic(seed in any::<u64>(), mend in any::<bool>()) {
        let mut host = made::random(seed);
        made::restrict(&mut host, seed);
        made::spoil(&mut host, seed);
        for policy in PolicyName::ALL {
            let mut settings = settings(policy);
            (settings.mend_conflicts, settings.include_pinned) = (mend, seed % 2 == 0);
            let decision = decide(&host, &settings);
            prop_assert_eq!(decision.vms.len(), host.vms.len());
            let _ = instep_core::score::measure(&host);
        }
    }
}

/// A window of a nanosecond and more busy time than 64 bits hold: found by the property above.
#[test]
fn a_load_that_no_host_has_overflows_no_cost() {
    let mut host = made::random(12_917_978_063_422_544_049);
    made::restrict(&mut host, 12_917_978_063_422_544_049);
    made::spoil(&mut host, 12_917_978_063_422_544_049);
    let mut settings = settings(PolicyName::Instep);
    settings.include_pinned = false;
    assert_eq!(decide(&host, &settings).vms.len(), host.vms.len());
}

/// Fixed seeds: this is a statement about how far apart plans must be, not an invariant.
#[test]
fn five_percent_of_noise_in_the_loads_moves_no_home() {
    let settings = settings(PolicyName::Instep);
    for seed in 0..500 {
        let mut host = made::random(seed);
        if seed % 3 == 0 {
            made::restrict(&mut host, seed);
            made::forget(&mut host);
        }
        let kept = check::homes_survive_noise(&|host: &_| decide(host, &settings), &host, seed);
        assert!(kept.is_ok(), "seed {seed}: {kept:?}");
    }
}
