//! The claims about the default policy on random hosts, with memory where it was moved to: it beats
//! `bnn`, `bind` and `none` on the stated score, and shares hardly more cores than the kernel alone.

use crate::check::{arrived, settings};
use crate::made;
use crate::score::{Score, measure};
use instep_core::policy::{PolicyName, decide};
use instep_core::snapshot::Snapshot;
use std::cmp::Ordering;

/// Random hosts in the comparison.
const HOSTS: u64 = 400;

fn score(host: &Snapshot, policy: PolicyName) -> Score {
    measure(&arrived(host, &decide(host, &settings(policy))))
}

fn mean(scores: &[Score], part: impl Fn(&Score) -> u64) -> u64 {
    scores.iter().map(part).sum::<u64>() / scores.len() as u64
}

/// On how many hosts `ours` is higher, equal and lower.
fn duel(ours: &[Score], theirs: &[Score]) -> [usize; 3] {
    [Ordering::Greater, Ordering::Equal, Ordering::Less].map(|wanted| {
        let pairs = ours.iter().zip(theirs);
        pairs.filter(|(a, b)| a.combined.cmp(&b.combined) == wanted).count()
    })
}

#[test]
fn default_policy_beats_bnn_and_bind_on_the_stated_score() {
    let hosts: Vec<Snapshot> = (0..HOSTS).map(made::random).collect();
    let scores = PolicyName::ALL
        .map(|policy| hosts.iter().map(|host| score(host, policy)).collect::<Vec<Score>>());
    println!("{HOSTS} random hosts; means in thousandths, sharing in thousandths of a pair");
    println!("policy  combined locality sharing balance  instep higher/equal/lower");
    for (policy, theirs) in PolicyName::ALL.into_iter().zip(&scores) {
        let [higher, equal, lower] = duel(&scores[0], theirs);
        println!(
            "{policy:7} {:8} {:8} {:7} {:7}  {higher}/{equal}/{lower}",
            mean(theirs, |score| score.combined.0),
            mean(theirs, |score| score.locality.0),
            mean(theirs, |score| score.core_sharing.0),
            mean(theirs, |score| score.balance.0),
        );
    }
    let of = |policy| &scores[PolicyName::ALL.iter().position(|name| *name == policy).unwrap()];
    let (instep, none) = (of(PolicyName::Instep), of(PolicyName::None));
    for rival in [of(PolicyName::Bnn), of(PolicyName::Bind), none] {
        assert!(mean(instep, |score| score.combined.0) > mean(rival, |score| score.combined.0));
        let [higher, _, lower] = duel(instep, rival);
        assert!(higher > lower, "higher on {higher}, lower on {lower}");
    }
    // The kernel alone shares as few cores as can be, and knows nothing of memory and caches.
    let [_, _, lower] = duel(instep, none);
    assert!(lower as u64 <= HOSTS / 100, "lower on {lower} hosts than what the kernel does alone");
    let sharing = [instep, none].map(|scores| mean(scores, |score| score.core_sharing.0));
    assert!(sharing[0] * 100 <= sharing[1] * 102, "{sharing:?}");
}
