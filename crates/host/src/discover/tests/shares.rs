//! What VMs weigh in trees of cgroups made here.

use super::super::shares;
use super::tree::Copy;

/// What VMs weigh of which each is given by its cgroup, on a host whose cgroups have these weights.
fn weights(groups: &[(&str, u32)], vms: &[&str]) -> Vec<u32> {
    let copy = Copy::new();
    copy.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory");
    for (group, weight) in groups {
        copy.write(&format!("sys/fs/cgroup/{group}/cpu.weight"), format!("{weight}\n"));
    }
    for (pid, group) in (50..).step_by(10).zip(vms) {
        copy.process(pid, &format!("qemu-system-x86_64 -name vm{pid},debug-threads=on -smp 1"));
        copy.thread(pid, pid + 1, "CPU 0/TCG", (1, 1));
        copy.write(&format!("proc/{pid}/cgroup"), format!("0::/{group}\n"));
    }
    let scan = copy.scan();
    assert_eq!(scan.vms.len(), vms.len());
    shares(&scan.vms)
}

#[test]
fn vms_of_one_slice_weigh_what_their_own_cgroups_do() {
    let groups = [("m.slice", 700), ("m.slice/a", 100), ("m.slice/b", 300), ("m.slice/c", 55)];
    assert_eq!(weights(&groups, &["m.slice/a", "m.slice/b", "m.slice/c"]), [100, 300, 55]);
}

#[test]
fn slice_of_three_vms_weighs_as_much_as_a_slice_of_one() {
    let groups = ["m.slice", "m.slice/a", "m.slice/b", "m.slice/c", "s.slice", "s.slice/d"];
    let groups = groups.map(|group| (group, 100));
    let vms = ["m.slice/a", "m.slice/b", "m.slice/c", "s.slice/d"];
    assert_eq!(weights(&groups, &vms), [67, 67, 67, 200]);
}

#[test]
fn weights_of_nested_slices_multiply() {
    let groups = [("m", 300), ("m/gold", 300), ("m/gold/a", 100), ("m/tin", 100), ("m/tin/b", 100)];
    let groups = [&groups[..], &[("s", 100), ("s/c", 100)]].concat();
    // 3/4 of 3/4, 3/4 of 1/4, and 1/4 of the sum of 300.
    assert_eq!(weights(&groups, &["m/gold/a", "m/tin/b", "s/c"]), [169, 56, 75]);
}

#[test]
fn vms_of_one_cgroup_divide_its_weight() {
    // The third lies in the root.
    assert_eq!(weights(&[("u", 100)], &["u", "u", ""]), [75, 75, 150]);
}

#[test]
fn vm_below_its_slice_without_controller_weighs_in_the_slice() {
    // The kernel charges `a` to its slice, as the controller ends there.
    let copy_of_a_slice = [("m.slice", 300), ("s.slice", 100), ("s.slice/b", 100)];
    assert_eq!(weights(&copy_of_a_slice, &["m.slice/a", "s.slice/b"]), [150, 50]);
}

#[test]
fn small_weights_keep_their_ratios() {
    let groups = [("big", 10_000), ("big/a", 100), ("small", 1), ("small/b", 100)];
    let groups = [&groups[..], &[("small/c", 300)]].concat();
    let [a, b, c] = weights(&groups, &["big/a", "small/b", "small/c"])[..] else { panic!() };
    assert_eq!((b, c), (50, 150));
    assert_eq!(a, 200 * 10_000);
}
