//! Devices that VMs were given, in small trees made here.

use super::tree::Copy;
use crate::collect;
use crate::discover::{ScanOptions, Scanner};
use crate::root::Root;
use instep_core::units::NodeId;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::AtomicBool;

#[test]
fn devices_of_a_vm_are_found_on_their_nodes() {
    let copy = Copy::new();
    copy.process(50, "qemu-system-x86_64 -name a -enable-kvm");
    copy.thread(50, 51, "CPU 0/KVM", (5, 5));
    copy.kvm_fds(50, 1);
    copy.fd(50, 30, "/dev/vfio/vfio");
    copy.fd(50, 31, "/dev/vfio/12");
    copy.fd(50, 32, "/dev/vfio/devices/vfio3");
    copy.fd(50, 33, "/dev/vhost-vdpa-0");
    copy.fd(50, 34, "/dev/net/tun");
    copy.write("proc/50/fdinfo/34", "pos:\t0\nflags:\t0104002\niff:\tvnet0\n");
    for (address, node) in [("0000:3b:00.0", "1"), ("0000:3b:00.1", "1"), ("0000:86:00.0", "2")] {
        copy.write(&format!("sys/bus/pci/devices/{address}/numa_node"), format!("{node}\n"));
    }
    copy.write("sys/kernel/iommu_groups/12/devices/0000:3b:00.0/x", "");
    copy.write("sys/kernel/iommu_groups/12/devices/0000:3b:00.1/x", "");
    copy.write("sys/class/vfio-dev/vfio3/device/numa_node", "0\n");
    // On the bus the device is a link into the tree of its parent.
    copy.write("sys/devices/pci0000:86/0000:86:00.0/numa_node", "2\n");
    copy.write("sys/devices/pci0000:86/0000:86:00.0/vdpa0/vhost-vdpa-0/dev", "");
    fs::create_dir_all(copy.path("sys/bus/vdpa/devices")).unwrap();
    let parent = "../../../devices/pci0000:86/0000:86:00.0/vdpa0";
    symlink(parent, copy.path("sys/bus/vdpa/devices/vdpa0")).unwrap();
    // The bridge of the tap interface has a card whose node the firmware does not tell, and one on node 3.
    copy.write("sys/class/net/vnet0/master/brif/eth0/x", "");
    copy.write("sys/class/net/vnet0/master/brif/eth1/x", "");
    copy.write("sys/class/net/eth0/device/numa_node", "-1\n");
    copy.write("sys/class/net/eth1/device/numa_node", "3\n");
    let scan = copy.scan();
    assert_eq!(scan.vms[0].devices, [0, 1, 1, 2, 3].map(NodeId));
    // A copy of this has all it takes to find them again.
    copy.write("sys/devices/system/cpu/online", "0\n");
    copy.write("sys/devices/system/cpu/cpu0/x", "");
    let collected = collect::take(&Root::at(copy.path("")), false).unwrap();
    let dir = copy.path("collected");
    collect::write(&dir, &[("one", &collected)], &AtomicBool::new(false)).unwrap();
    let again = Scanner::new(Root::at(dir.join("one")), ScanOptions::default()).scan().unwrap();
    assert_eq!(again.vms[0].devices, scan.vms[0].devices);
}
