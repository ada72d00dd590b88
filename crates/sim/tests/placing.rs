//! A small part of `cargo xtask bench placement`: the same seed draws the same host, and on few hosts the default policy is near
//! the best of all plans and not slower than other rules.

#![allow(missing_docs, reason = "a test")]
#![expect(clippy::unwrap_used, reason = "all of this is a test, which fails by a panic")]

use instep_core::idset::CpuSet;
use instep_core::policy::against_exact;
use instep_sim::placing::draw::{Size, draw};
use instep_sim::placing::{Contest, Rule};

/// Hosts of 8 and 16 CPUs among those that the benchmark draws first.
const SEEDS: [u64; 3] = [5, 9, 11];

fn contest(seed: u64, size: Size) -> Contest {
    Contest::new(&draw(seed, size, None).unwrap()).unwrap()
}

#[test]
fn seed_fixes_host_and_speeds() {
    assert_eq!(draw(3, Size::Any, None), draw(3, Size::Any, None));
    assert_ne!(draw(3, Size::Any, None), draw(4, Size::Any, None));
    let speeds = || {
        let contest = contest(SEEDS[0], Size::Any);
        contest.speeds(Rule::ALL[0], "instep", &contest.alone(), 0).unwrap()
    };
    assert_eq!(speeds(), speeds());
}

#[test]
fn runs_differ_by_chance_and_placement_in_force_does_not() {
    let contest = contest(SEEDS[0], Size::Any);
    let alone = contest.alone();
    let kept = contest.placements(Rule::ALL[0], "eevdf", 0).unwrap();
    let of_kept = |run| contest.kept_speeds(&kept, "eevdf", &alone, run).unwrap();
    assert_eq!(of_kept(0), contest.speeds(Rule::ALL[0], "eevdf", &alone, 0).unwrap());
    assert_ne!(of_kept(0), of_kept(1));
}

#[test]
fn kept_placement_of_another_host_is_refused() {
    let other = contest(SEEDS[1], Size::Any).placements(Rule::ALL[0], "eevdf", 0).unwrap();
    let contest = contest(SEEDS[0], Size::Any);
    let refused = |kept| contest.kept_speeds(kept, "eevdf", &contest.alone(), 0).unwrap_err();
    assert_eq!(refused(&other), "5 VMs are kept of 4");
    assert_eq!(refused(&other[..4]), "VM 0 is kept on another host");
}

#[test]
fn changes_are_kept_where_guests_are_faster() {
    // A host of 16 CPUs on which `instep` does not find the best.
    let contest = contest(8, Size::Any);
    let alone = contest.alone();
    let changed = |changes| contest.changed("eevdf", &alone, changes, 1).unwrap();
    let (placed, speeds) = changed(16);
    assert_eq!((&placed, &speeds), (&changed(16).0, &changed(16).1), "the host's seed fixes them");
    let of = |placed| contest.kept_speeds(placed, "eevdf", &alone, 0).unwrap();
    assert!(of(&placed).iter().sum::<f64>() > of(&changed(0).0).iter().sum(), "{placed:?}");
    for (vm, placement) in contest.plan().setup.vms.iter().zip(&placed) {
        let cpus = CpuSet::parse_list(&placement.cpus[0]).unwrap();
        assert!(cpus.len() >= vm.affinity.len(), "{placement:?}");
    }
}

#[test]
fn all_drawn_hosts_can_be_simulated() {
    for seed in 0..60 {
        for size in [Size::Small, Size::Any] {
            let contest = contest(seed, size);
            let cpus = contest.plan().setup.host.cpus();
            assert!(size == Size::Small || (8..=128).contains(&cpus), "seed {seed}: {cpus} CPUs");
        }
    }
}

#[test]
fn plan_comes_near_the_best_on_drawn_small_hosts() {
    let gap = |seed: u64| {
        let (found, best) = against_exact(&contest(seed, Size::Small).expected(), 2000)?;
        Some((found - best) as f64 / best.max(1000) as f64)
    };
    let gaps: Vec<f64> = (0..100).filter_map(gap).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let worst = gaps.iter().copied().fold(0.0, f64::max);
    assert!(gaps.len() >= 40 && mean <= 0.01 && worst <= 0.10, "{gaps:?}");
}

#[test]
fn default_policy_is_not_slower_than_other_rules() {
    let mut means = [0.0; Rule::ALL.len()];
    for seed in SEEDS {
        let contest = contest(seed, Size::Any);
        let alone = contest.alone();
        for (rule, mean) in Rule::ALL.iter().zip(&mut means) {
            let speeds = contest.speeds(*rule, "eevdf", &alone, 0).unwrap();
            *mean += speeds.iter().sum::<f64>() / speeds.len() as f64 / SEEDS.len() as f64;
        }
    }
    let best = means[1..].iter().copied().fold(0.0, f64::max);
    assert!(means[0] > best * 0.99, "{means:?} in the order of Rule::ALL");
}
