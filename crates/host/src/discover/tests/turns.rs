//! What a scanner reads of processes that are no monitors, and of kernel threads: not all in every scan.

use super::tree::Copy;
use std::fs;

#[test]
fn process_known_to_be_no_monitor_is_left_alone_but_not_for_ever() {
    let copy = Copy::new();
    copy.process(50, "late-vmm serve");
    let mut scanner = copy.scanner();
    assert_eq!(scanner.scan().unwrap().cost.examined, 1);
    copy.thread(50, 51, "vcpu0", (1, 1));
    copy.kvm_fds(50, 1);
    let mut scans = 0;
    while scanner.scan().unwrap().vms.is_empty() {
        scans += 1;
        assert!(scans <= 16, "a monitor stayed unseen");
    }
}

#[test]
fn number_of_a_kernel_thread_that_a_monitor_reuses_is_seen() {
    let copy = Copy::new();
    copy.process(50, "late-vmm serve");
    let stat = fs::read_to_string(copy.path("proc/50/stat")).unwrap();
    let (before_flags, of_kernel) = (" 4194304 ", " 69238784 ");
    assert!(stat.contains(before_flags), "{stat}");
    copy.write("proc/50/stat", stat.replace(before_flags, of_kernel));
    let mut scanner = copy.scanner();
    assert_eq!(scanner.scan().unwrap().looked.processes, 0);
    copy.write("proc/50/stat", stat);
    let seen: Vec<u32> = (0..16).map(|_| scanner.scan().unwrap().looked.processes).collect();
    let first = seen.iter().position(|seen| *seen == 1).expect("seen within a round");
    assert!(first > 0 && seen[first..].iter().all(|seen| *seen == 1), "{seen:?}");
}
