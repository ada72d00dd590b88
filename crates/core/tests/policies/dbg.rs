use crate::{check, check::settings, made};
use instep_core::policy::{PolicyName, decide};
#[test]
#[ignore]
fn dbg96() {
    let seed: u64 = std::env::var("SEED").unwrap().parse().unwrap();
    let mut host = made::random(seed);
    if seed % 3 == 0 {
        made::restrict(&mut host, seed);
        made::forget(&mut host);
    }
    let s = settings(PolicyName::Instep);
    let kept = check::homes_survive_noise(
        &|host: &_| {
            eprintln!("DECIDE");
            let d = decide(host, &s);
            for (vm, v) in host.vms.iter().zip(&d.vms) {
                if vm.placed != v.home {
                    eprintln!("  {} {} -> {} : {}", vm.id.0, vm.placed, v.home, v.why);
                }
            }
            d
        },
        &host,
        seed,
    );
    eprintln!("{kept:?}");
}
