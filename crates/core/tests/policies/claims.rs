//! The claims about the default policy on random hosts: it beats `bnn` and `bind` on the stated
//! score, and its core sharing never exceeds the kernel's.

use crate::check::{apply, settings};
use crate::made;
use instep_core::policy::{PolicyName, decide};
use instep_core::score::{Score, measure};
use instep_core::snapshot::Snapshot;
use std::cmp::Ordering;

/// Random hosts in the comparison.
const HOSTS: u64 = 400;

fn score(host: &Snapshot, policy: PolicyName) -> Score {
    measure(&apply(host, &decide(host, &settings(policy))))
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
    let [instep, bnn, _, bind, none] = &scores;
    for rival in [bnn, bind, none] {
        assert!(mean(instep, |score| score.combined.0) > mean(rival, |score| score.combined.0));
        let [higher, _, lower] = duel(instep, rival);
        assert!(higher > lower, "higher on {higher}, lower on {lower}");
    }
    for (seed, (ours, kernels)) in instep.iter().zip(none).enumerate() {
        assert!(ours.core_sharing <= kernels.core_sharing, "seed {seed}: {ours:?} {kernels:?}");
        // It takes memory as it lies, which follows a VM that goes where a core is free for each vCPU.
        assert!(ours.combined.0 + 5 >= kernels.combined.0, "seed {seed}: {ours:?} {kernels:?}");
    }
}

#[test]
fn core_sharing_never_exceeds_the_kernels_whatever_operators_set() {
    for seed in 0..HOSTS {
        let mut host = made::random(seed);
        made::restrict(&mut host, seed);
        made::forget(&mut host);
        let (ours, kernels) = (score(&host, PolicyName::Instep), score(&host, PolicyName::None));
        assert!(ours.core_sharing <= kernels.core_sharing, "seed {seed}: {ours:?} {kernels:?}");
    }
}
