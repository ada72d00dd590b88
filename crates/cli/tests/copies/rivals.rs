//! `status` warns of programs and settings that move threads, memory or interrupts against placement.

use super::*;

/// Two nodes and a VM.
fn made(nodes: u32) -> MadeHost {
    host(HostSpec::new(nodes, 4), [vm("db", 2, 600, &[512])])
}

/// The warnings of `status` on one copy, in one text.
fn warnings(copies: &Copies) -> String {
    copies.one(&["status", "--json"]).expect(0).json()["warnings"].to_string()
}

#[test]
fn rival_balancers_are_reported_where_they_oppose_placement() {
    let mut made = made(2);
    assert_eq!(warnings(&Copies::of(&made)), "[]");
    for (modes, told) in [(1, "=0"), (3, "=2"), (2, "")] {
        made.numa_balancing = modes;
        let warnings = warnings(&Copies::of(&made));
        let advice = format!("set it to {} (sysctl kernel.numa_balancing{told})", modes & 2);
        assert_eq!(warnings.contains(&advice), modes != 2, "{modes}: {warnings}");
        assert_eq!(warnings == "[]", modes == 2, "only the tiering of memory: {warnings}");
    }
    made.numa_balancing = 0;
    made.daemons = vec!["numad", "irqbalance"];
    let told = warnings(&Copies::of(&made));
    assert!(told.contains("numad runs (process 370)"), "{told}");
    assert!(!told.contains("irqbalance"), "no VM has a device: {told}");
    // In text they are on standard error.
    let ran = Copies::of(&made).one(&["status"]).expect(0);
    ran.says(&["numad runs (process 370)", "systemctl disable --now numad"]);
}

#[test]
fn one_node_has_no_rivals_and_a_foreign_numad_is_none() {
    let mut one = made(1);
    (one.numa_balancing, one.daemons) = (1, vec!["numad"]);
    assert_eq!(warnings(&Copies::of(&one)), "[]");
    let mut two = made(2);
    two.daemons = vec!["numad"];
    let copies = Copies::of(&two);
    let file = copies.dir("after").join("proc/370/status");
    let status = fs::read_to_string(&file).unwrap();
    fs::write(&file, status.replace("Uid:\t0\t0\t0\t0", "Uid:\t1000\t1000\t1000\t1000")).unwrap();
    assert_eq!(warnings(&copies), "[]");
    // As a `numad -w`, which answers libvirt and ends.
    two.uptime = Nanos::from_secs(10);
    two.vms[0].started = Nanos::from_secs(2);
    assert_eq!(warnings(&Copies::of_one(&two)), "[]");
    two.uptime = Nanos::from_secs(12);
    assert!(warnings(&Copies::of_one(&two)).contains("numad runs"));
}

#[test]
fn irqbalance_is_reported_where_a_vm_has_a_device() {
    let mut made = made(1);
    made.daemons = vec!["irqbalance"];
    let copies = Copies::of(&made);
    let after = copies.dir("after");
    let fd = after.join(format!("proc/{}/fd/70", made.vms[0].pid));
    std::os::unix::fs::symlink("/dev/vfio/12", fd).unwrap();
    let address = "0000:3b:00.0";
    fs::create_dir_all(after.join("sys/kernel/iommu_groups/12/devices").join(address)).unwrap();
    let device = after.join("sys/bus/pci/devices").join(address);
    fs::create_dir_all(&device).unwrap();
    fs::write(device.join("numa_node"), "0\n").unwrap();
    let told = warnings(&copies);
    assert!(told.contains("irqbalance runs (process 370)"), "{told}");
    assert!(told.contains("the devices of 1 VM without"), "{told}");
}
