//! `instep profile --vm` of a real guest against what the kernel says of its vCPU threads.

use super::common::text;
use super::stage::{Stage, schedstat, vcpus};
use serde_json::Value;
use std::time::Instant;

/// A counter of a running thread may lag behind by a clock tick.
const TICK: f64 = 1e7;

#[test]
fn both_vcpus_of_a_spinning_vm_are_profiled() {
    let Some(stage) = Stage::new() else { return };
    let guest = stage.start_one("profiled");
    let (name, tids) = (&guest.spec().name, vcpus(&guest));
    assert_eq!(tids.len(), 2);
    let ran = || tids.iter().map(|tid| schedstat(guest.pid(), *tid).0).sum::<u64>() as f64;
    for more in [&[][..], &["--no-trace"]] {
        let args = [&["profile", "--vm", name, "-d", "3s", "--json"], more].concat();
        let (start, before) = (Instant::now(), ran());
        let json = super::common::instep(&args).expect(0).json();
        let (ran, wall) = (ran() - before, start.elapsed().as_nanos() as f64);
        let of = |key: &str| json["profile"][key].as_f64().unwrap_or_else(|| panic!("{json:#}"));
        assert_eq!(text(&json, "what"), format!("VM {name} (pid {})", guest.pid()));
        assert_eq!(json["vcpu_tids"], Value::from(tids.clone()));
        assert_eq!((of("threads"), json["cpus"].as_u64()), (2.0, Some(2)));
        // The CPU time is that of both, but for what they had before and after.
        let outside = 2.0 * (wall - of("elapsed_ns")) + 4.0 * TICK;
        let (least, most) = (ran * 0.98 - outside, ran * 1.02 + 4.0 * TICK);
        assert!((least..=most).contains(&of("run_ns")), "{least} to {most}: {json:#}");
        // A thread that waits for a CPU counts as active, too, so a busy machine changes nothing.
        assert!((1.5..=2.0).contains(&of("parallelism")), "{:#}", json["profile"]);
        assert_eq!(json["profile"]["busy_waiting"], Value::Null);
        assert!(text(&json["profile"], "why_no_busy_waiting").contains("the guest's"), "{json:#}");
    }
}
