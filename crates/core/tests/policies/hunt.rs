use crate::check::{self, settings};
use crate::made;
use instep_core::policy::{PolicyName, Settings, decide};

#[test]
#[ignore = "a hunt"]
fn hunt() {
    let (mut bad, mut all) = (0, 0);
    let from: u64 = std::env::var("FROM").ok().and_then(|v| v.parse().ok()).unwrap_or(0);
    let many: u64 = std::env::var("MANY").ok().and_then(|v| v.parse().ok()).unwrap_or(2000);
    let caches: u32 = std::env::var("CACHES").ok().and_then(|v| v.parse().ok()).unwrap_or(1);
    for seed in from..from + many {
        for (limits, mend, pinned) in [(false, false, false), (true, false, false), (true, true, false), (true, false, true)] {
            let mut host = made::random_of_caches(seed, caches);
            if limits { made::restrict(&mut host, seed); }
            let settings = Settings { mend_conflicts: mend, include_pinned: pinned, ..settings(PolicyName::Instep) };
            all += 1;
            if let Err(e) = check::does_not_flap(&|h: &_| decide(h, &settings), &host) {
                bad += 1;
                if bad < 12 { println!("{seed} {limits} {mend} {pinned} vms {} nodes {}: {}", host.vms.len(), host.topology.nodes().len(), e.chars().take(400).collect::<String>()); }
            }
        }
    }
    println!("{bad} of {all}");
}
