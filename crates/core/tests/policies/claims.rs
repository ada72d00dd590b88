//! The claims about the default policy on random hosts: it beats `bnn` and `bind` on the stated
//! score, and its core sharing never exceeds the kernel's.

use crate::check::{apply, settings};
use crate::made;
use instep_core::policy::{PolicyName, decide};
use instep_core::score::{Score, measure};

/// Random hosts in the comparison.
const HOSTS: u64 = 600;

fn scores(policy: PolicyName) -> Vec<Score> {
    let score = |seed| {
        let host = made::random(seed);
        measure(&apply(&host, &decide(&host, &settings(policy))))
    };
    (0..HOSTS).map(score).collect()
}

fn mean(scores: &[Score], part: impl Fn(&Score) -> u64) -> u64 {
    scores.iter().map(part).sum::<u64>() / scores.len() as u64
}

/// Hosts on which `ours` is higher, equal and lower.
fn duel(ours: &[Score], theirs: &[Score]) -> (usize, usize, usize) {
    let count = |wanted| {
        let pairs = ours.iter().zip(theirs);
        pairs.filter(|(a, b)| a.combined.cmp(&b.combined) == wanted).count()
    };
    use std::cmp::Ordering::{Equal, Greater, Less};
    (count(Greater), count(Equal), count(Less))
}

#[test]
fn default_policy_beats_bnn_and_bind_and_never_shares_cores_more_than_none() {
    let instep = scores(PolicyName::Instep);
    println!("{HOSTS} random hosts, means in thousandths; core sharing in thousandths of a pair");
    println!("policy   combined  locality  sharing  balance  evenness  instep wins/ties/losses");
    let mut means = Vec::new();
    for policy in PolicyName::ALL {
        let theirs = scores(policy);
        let (won, tied, lost) = duel(&instep, &theirs);
        println!(
            "{policy:8} {:8} {:9} {:8} {:8} {:9}  {won}/{tied}/{lost}",
            mean(&theirs, |score| score.combined.0),
            mean(&theirs, |score| score.locality.0),
            mean(&theirs, |score| score.core_sharing.0),
            mean(&theirs, |score| score.balance.0),
            mean(&theirs, |score| score.evenness.0),
        );
        means.push((policy, mean(&theirs, |score| score.combined.0)));
        if policy == PolicyName::None {
            let worse: Vec<usize> = (0..theirs.len())
                .filter(|seed| instep[*seed].core_sharing > theirs[*seed].core_sharing)
                .collect();
            assert!(worse.is_empty(), "more core sharing than none on seeds {worse:?}");
        }
    }
    let ours = means[0].1;
    let rivals = means[1..].iter();
    let beaten = rivals.filter(|(policy, mean)| {
        ours > *mean || !matches!(policy, PolicyName::Bnn | PolicyName::Bind)
    });
    assert_eq!(beaten.count(), 4, "{means:?}");
}
