//! Scans of small trees made here: what counts as a VM, what a copy may lack, what goes wrong.

use super::super::*;
use crate::error::Error;
use crate::root::Root;
use instep_core::idset::CpuSet;
use instep_core::topology::{CpuFacts, Topology};
use instep_core::units::{Bytes, Nanos, NodeId};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

/// A copy of a host under construction.
pub(super) struct Copy {
    dir: tempfile::TempDir,
}

impl Copy {
    pub(super) fn new() -> Self {
        let copy = Self { dir: instep_madehost::scratch_dir().unwrap() };
        copy.write("proc/uptime", "1000.00 1500.00\n");
        copy.write("proc/stat", "cpu  10000 0 5000 100 7 0 0 0 0 0\ncpu0 1 1 1 1\n");
        copy
    }

    pub(super) fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join(relative)
    }

    pub(super) fn write(&self, relative: &str, text: impl AsRef<[u8]>) {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A process with a command line in words and its main thread.
    pub(super) fn process(&self, pid: u32, cmdline: &str) {
        let comm = cmdline.split(' ').next().unwrap().rsplit('/').next().unwrap();
        let comm: String = comm.chars().take(15).collect();
        self.write(&format!("proc/{pid}/cmdline"), cmdline.replace(' ', "\0") + "\0");
        self.write(&format!("proc/{pid}/stat"), stat(pid, &comm, 0));
        self.thread(pid, pid, &comm, (0, 0));
    }

    /// A thread that has run and waited for these nanoseconds.
    pub(super) fn thread(&self, pid: u32, tid: u32, comm: &str, (run, wait): (u64, u64)) {
        let dir = format!("proc/{pid}/task/{tid}");
        self.write(&format!("{dir}/stat"), stat(tid, comm, run / 10_000_000));
        self.write(&format!("{dir}/schedstat"), format!("{run} {wait} 1\n"));
        self.write(&format!("{dir}/status"), "Cpus_allowed_list:\t0-1\nMems_allowed_list:\t0\n");
    }

    pub(super) fn fd(&self, pid: u32, fd: u32, target: &str) {
        fs::create_dir_all(self.path(&format!("proc/{pid}/fd"))).unwrap();
        symlink(target, self.path(&format!("proc/{pid}/fd/{fd}"))).unwrap();
    }

    pub(super) fn kvm_fds(&self, pid: u32, vcpus: u32) {
        self.fd(pid, 8, "anon_inode:kvm-vm");
        for n in 0..vcpus {
            self.fd(pid, 20 + n, &format!("anon_inode:kvm-vcpu:{n}"));
        }
    }

    pub(super) fn scan(&self) -> Scan {
        self.scanner().scan().unwrap()
    }

    pub(super) fn scanner(&self) -> Scanner {
        Scanner::new(Root::at(self.dir.path()), ScanOptions::default())
    }
}

/// A `stat` line of a thread that began 10 s after boot.
fn stat(tid: u32, comm: &str, ticks: u64) -> String {
    format!(
        "{tid} ({comm}) S 1 1 1 0 -1 4194304 0 0 0 0 {ticks} 0 0 0 20 0 1 0 1000 0 0 0 0 0 0 0 0 \
         0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"
    )
}

fn names(scan: &Scan) -> Vec<&str> {
    scan.vms.iter().map(|vm| vm.name.as_str()).collect()
}

#[test]
fn a_kvm_descriptor_makes_a_vm_whatever_the_program() {
    let copy = Copy::new();
    copy.process(50, "/opt/propolis-server run");
    copy.thread(50, 51, "vcpu-0", (5, 5));
    copy.thread(50, 52, "vcpu-1", (5, 5));
    copy.kvm_fds(50, 2);
    let scan = copy.scan();
    let vm = &scan.vms[0];
    assert_eq!(vm.vmm, Vmm::Other("propolis-server".into()));
    assert_eq!((vm.name.as_str(), vm.accel), ("propolis-server-50", Accel::Kvm));
    assert_eq!(vm.vcpus.iter().map(|v| v.tid.0).collect::<Vec<_>>(), [51, 52]);
}

#[test]
fn programs_that_only_mention_qemu_are_no_vms() {
    let copy = Copy::new();
    copy.process(10, "/bin/sh -c qemu-system-x86_64");
    copy.process(11, "qemu-img convert a b");
    copy.process(12, "qemu-system-x86_64 --version");
    copy.process(13, "/usr/sbin/libvirtd");
    copy.process(14, "qemu-ga");
    for pid in [10, 11, 12, 13, 14] {
        copy.thread(pid, pid + 100, "worker", (1, 1));
    }
    copy.process(15, "qemu-system-x86_64 -name dead");
    copy.thread(15, 16, "CPU 0/KVM", (1, 1));
    let dead = fs::read_to_string(copy.path("proc/15/stat")).unwrap().replace(") S ", ") Z ");
    copy.write("proc/15/stat", dead);
    // Waiting for the guest it put into the background: one thread, no vCPU.
    copy.process(17, "qemu-system-x86_64 -daemonize");
    let scan = copy.scan();
    assert!(scan.vms.is_empty() && scan.opaque.is_empty(), "{:?}", scan.opaque);
    assert_eq!(scan.looked.processes, 6);
    assert!(scan.looked.to_string().contains("6 processes"));
}

#[test]
fn debugfs_is_believed_before_names_and_only_about_the_process() {
    let copy = Copy::new();
    copy.process(50, "qemu-system-x86_64 -name a -smp 2 -enable-kvm");
    copy.thread(50, 51, "qemu-system-x86", (1, 1));
    copy.thread(50, 52, "qemu-system-x86", (1, 1));
    copy.write("sys/kernel/debug/kvm/50-8/vcpu0/pid", "51\n");
    copy.write("sys/kernel/debug/kvm/50-8/vcpu1/pid", "52\n");
    copy.process(60, "qemu-system-x86_64 -name b,debug-threads=on -smp 1 -enable-kvm");
    copy.thread(60, 61, "CPU 0/KVM", (1, 1));
    copy.write("sys/kernel/debug/kvm/60-8/vcpu0/pid", "51\n");
    let scan = copy.scan();
    let told: Vec<_> = scan.vms.iter().map(|vm| (vm.name.as_str(), vm.identified_by)).collect();
    assert_eq!(told, [("a", VcpuSource::KvmDebugfs), ("b", VcpuSource::ThreadNames)]);
    assert_eq!(scan.vms[1].vcpus[0].tid.0, 61);
    assert_eq!(scan.looked.kvm_debugfs, Debugfs::Read);
}

/// cloud-hypervisor makes its VM on its `vmm` thread.
#[test]
fn debugfs_names_a_vm_by_the_thread_that_made_it() {
    let copy = Copy::new();
    copy.process(50, "cloud-hypervisor --cpus boot=1");
    copy.thread(50, 51, "vmm", (1, 1));
    copy.thread(50, 52, "vcpu0", (1, 1));
    copy.kvm_fds(50, 1);
    copy.write("sys/kernel/debug/kvm/51-8/vcpu0/pid", "52\n");
    // Of a thread that has ended since, whose number a thread of this process has now.
    copy.write("sys/kernel/debug/kvm/50-9/vcpu0/pid", "71\n");
    let scan = copy.scan();
    assert_eq!(scan.vms[0].identified_by, VcpuSource::KvmDebugfs, "{:?}", scan.opaque);
    assert_eq!(scan.vms[0].vcpus[0].tid.0, 52);
}

#[test]
fn names_that_exceed_the_descriptors_are_not_believed() {
    let copy = Copy::new();
    copy.process(50, "qemu-system-x86_64 -name forged,debug-threads=on -smp 1");
    copy.thread(50, 51, "CPU 0/KVM", (1, 1));
    copy.thread(50, 52, "CPU 1/KVM", (1, 1));
    copy.kvm_fds(50, 1);
    let scan = copy.scan();
    assert!(scan.vms.is_empty());
    assert_eq!(scan.opaque[0].vcpus, 1);
    assert!(
        scan.opaque[0]
            .why
            .contains("it has 2 vCPU threads by name but holds 1 KVM vCPU descriptor;"),
        "{}",
        scan.opaque[0].why
    );
}

#[test]
fn unproven_vcpus_do_not_count_where_descriptors_are_readable() {
    let copy = Copy::new();
    // Two that only pretend, by thread names of KVM and by the command line.
    copy.process(50, "qemu-system-x86_64 -name forged,debug-threads=on -smp 2");
    copy.process(60, "qemu-system-x86_64 -name claimed -accel tcg -smp 4096");
    for pid in [50, 60] {
        copy.fd(pid, 3, "/dev/null");
        (1..5).for_each(|n| copy.thread(pid, pid + n, "x", (1, 1)));
    }
    copy.thread(50, 55, "CPU 0/KVM", (1, 1));
    copy.thread(50, 56, "CPU 1/KVM", (1, 1));
    // One whose descriptors say less than its command line.
    copy.process(70, "qemu-system-x86_64 -name small -smp 64");
    copy.kvm_fds(70, 1);
    (1..5).for_each(|n| copy.thread(70, 70 + n, "x", (1, 1)));
    let scan = copy.scan();
    assert!(scan.vms.is_empty());
    let counts: Vec<u32> = scan.opaque.iter().map(|vm| vm.vcpus).collect();
    assert_eq!(counts, [0, 0, 1]);
    assert!(scan.opaque[0].why.contains("no KVM descriptor"), "{}", scan.opaque[0].why);
}

#[test]
fn descriptors_of_unplugged_vcpus_give_a_warning_and_no_more() {
    let copy = Copy::new();
    copy.process(50, "qemu-system-x86_64 -name shrunk,debug-threads=on -smp 1,maxcpus=2");
    copy.thread(50, 51, "CPU 0/KVM", (1, 1));
    copy.kvm_fds(50, 2);
    let scan = copy.scan();
    assert_eq!(scan.vms[0].vcpus.len(), 1);
    assert!(scan.warnings.iter().any(|w| w.contains("process 50 holds 2 KVM vCPU")));
}

#[test]
fn threads_without_names_leave_a_vm_opaque_with_advice() {
    let copy = Copy::new();
    copy.process(50, "qemu-system-x86_64 -name mute -smp 4 -enable-kvm");
    for tid in 51..57 {
        copy.thread(50, tid, "qemu-system-x86", (1, 1));
    }
    let scan = copy.scan();
    assert!(scan.vms.is_empty());
    assert_eq!((scan.opaque[0].name.as_str(), scan.opaque[0].vcpus), ("mute", 4));
    assert!(scan.opaque[0].why.contains("debug-threads=on"), "{}", scan.opaque[0].why);
}

#[test]
fn command_line_counts_no_more_vcpus_than_there_are_threads() {
    let copy = Copy::new();
    for (pid, smp) in [(50, "4096"), (60, "cpus=2,maxcpus=4096")] {
        copy.process(pid, &format!("qemu-system-x86_64 -name claims -smp {smp}"));
        copy.thread(pid, pid + 1, "worker", (1, 1));
        copy.thread(pid, pid + 2, "worker", (1, 1));
    }
    let scan = copy.scan();
    let vcpus: Vec<u32> = scan.opaque.iter().map(|vm| vm.vcpus).collect();
    assert_eq!(vcpus, [3, 2], "{:?}", scan.opaque);
}

#[test]
fn owner_is_the_real_user_with_all_cgroups() {
    let copy = Copy::new();
    copy.process(50, "qemu-system-x86_64 -name a,debug-threads=on -smp 1");
    copy.thread(50, 51, "CPU 0/KVM", (1, 1));
    copy.write("proc/50/status", "Name:\tq\nUid:\t1001\t0\t0\t0\n");
    copy.write(
        "proc/50/cgroup",
        "3:cpuset:/\n1:name=systemd:/user.slice/a\n0::/b/machine-x.scope/c\n",
    );
    let owner = copy.scan().vms.remove(0).owner;
    let cgroups = ["/b/machine-x.scope/c", "/user.slice/a"].map(str::to_owned).to_vec();
    assert_eq!((owner.uid, owner.is_ordinary_outside), (Some(1001), false));
    assert_eq!(
        (owner.cgroups, owner.roots_cgroups),
        (cgroups, Vec::new()),
        "a copy's are its maker's"
    );
}

#[test]
fn cgroups_outside_the_namespace_are_reported_once_with_remedy() {
    let copy = Copy::new();
    for pid in [50, 60] {
        copy.process(pid, "qemu-system-x86_64 -name a,debug-threads=on -smp 1");
        copy.thread(pid, pid + 1, "CPU 0/KVM", (1, 1));
        copy.write(
            &format!("proc/{pid}/cgroup"),
            "0::/../../machine.slice/machine-qemu\\x2d1\\x2da.scope/libvirt\n",
        );
    }
    let mut scanner = copy.scanner();
    let mut told = || {
        let warnings = scanner.scan().unwrap().warnings;
        warnings.iter().filter(|warning| warning.contains("--cgroupns=host")).count()
    };
    assert_eq!([told(), told()], [1, 0]);
}

#[test]
fn no_link_of_a_copy_is_followed_out_of_it() {
    let other = instep_madehost::scratch_dir().unwrap();
    fs::create_dir(other.path().join("task")).unwrap();
    fs::write(other.path().join("secret"), "root:x:secret\n").unwrap();
    let copy = Copy::new();
    for pid in [50, 60] {
        copy.process(pid, "qemu-system-x86_64 -name a,debug-threads=on -smp 1 -enable-kvm");
        copy.thread(pid, pid + 1, "CPU 0/KVM", (1, 1));
    }
    symlink(other.path().join("secret"), copy.path("proc/50/numa_maps")).unwrap();
    // A directory that is outside as a whole, and a link that stays inside.
    fs::rename(copy.path("proc/60/task/61"), other.path().join("task/61")).unwrap();
    symlink(other.path().join("task/61"), copy.path("proc/60/task/61")).unwrap();
    symlink("../../50/task/51", copy.path("proc/60/task/62")).unwrap();
    let scan = copy.scan();
    let said = scan.warnings.join("\n");
    assert!(!said.contains("root:x") && said.contains("is a link that leaves the copy"), "{said}");
    let tids = |vm: &VmFacts| vm.vcpus.iter().map(|vcpu| vcpu.tid.0).collect::<Vec<_>>();
    assert_eq!(scan.vms.iter().map(tids).collect::<Vec<_>>(), [[51], [62]]);
}

#[test]
fn a_copy_may_lack_almost_everything() {
    let copy = Copy::new();
    // No stat, status, schedstat, fd or exe: a command line and thread names.
    copy.write("proc/70/cmdline", "qemu-kvm\0-name\0bare\0-smp\x002,threads=2\0");
    copy.write("proc/70/task/71/comm", "CPU 0/KVM\n");
    copy.write("proc/70/task/72/comm", "CPU 1/KVM\n");
    fs::remove_file(copy.path("proc/uptime")).unwrap();
    fs::remove_file(copy.path("proc/stat")).unwrap();
    let scan = copy.scan();
    assert_eq!(names(&scan), ["bare"]);
    let vm = &scan.vms[0];
    assert_eq!((vm.vcpus.len(), vm.guest_threads_per_core, vm.weight), (2, 2, 100));
    assert_eq!((&vm.vcpus[0].allowed, &vm.cpuset, &vm.memory), (&None, &None, &None));
    assert_eq!((scan.boot, scan.host_busy), (None, Nanos(0)));
    assert!(load_warnings(None, &scan, None)[0].contains("proc/uptime"), "{:?}", scan.gaps);
}

#[test]
fn without_proc_the_error_says_what_to_do() {
    let dir = instep_madehost::scratch_dir().unwrap();
    for make in [false, true] {
        if make {
            fs::create_dir(dir.path().join("proc")).unwrap();
        }
        let error = Scanner::new(Root::at(dir.path()), ScanOptions::default()).scan().unwrap_err();
        assert!(matches!(error, Error::Unusable { .. }));
        assert!(error.to_string().contains("--root"), "{error}");
    }
}

#[test]
fn vms_that_share_a_name_are_distinguished_by_process() {
    let copy = Copy::new();
    for pid in [50, 60] {
        copy.process(pid, "qemu-system-x86_64 -name twin,debug-threads=on -smp 1");
        copy.thread(pid, pid + 1, "CPU 0/TCG", (1, 1));
    }
    assert_eq!(names(&copy.scan()), ["twin@50", "twin@60"]);
}

#[test]
fn libvirt_vms_carry_their_uuid_limits_and_guest_nodes() {
    let copy = Copy::new();
    let scope = "machine.slice/machine-qemu\\x2d3\\x2dweb.scope";
    copy.process(
        50,
        "/usr/bin/qemu-system-x86_64 -name guest=web,debug-threads=on -uuid \
         6f1b0a4e-0000-4000-8000-000000000001 -smp 2,sockets=2,cores=1,threads=1 -object \
         {\"qom-type\":\"memory-backend-ram\",\"id\":\"ram-node0\",\"size\":1073741824,\
         \"host-nodes\":[1],\"policy\":\"bind\"} -numa node,nodeid=0,cpus=0-1,memdev=ram-node0 \
         -chardev socket,id=m,path=/var/lib/libvirt/qemu/d/monitor.sock,server=on -mon \
         chardev=m,mode=control",
    );
    copy.thread(50, 51, "CPU 0/KVM", (1, 1));
    copy.thread(50, 52, "CPU 1/KVM", (1, 1));
    copy.write("proc/50/cgroup", format!("0::/{scope}/libvirt/emulator\n"));
    let base = format!("sys/fs/cgroup/{scope}");
    copy.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory");
    copy.write(&format!("{base}/cpu.weight"), "300\n");
    copy.write(&format!("{base}/cpuset.cpus.effective"), "0-1\n");
    copy.write(&format!("{base}/cgroup.procs"), "50\n");
    copy.write(&format!("{base}/libvirt/cgroup.procs"), "50\n");
    copy.write(&format!("{base}/memory.numa_stat"), "anon N0=4096 N1=8192\nshmem N0=1 N1=2\n");
    let scan = copy.scan();
    let vm = &scan.vms[0];
    assert_eq!(vm.manager, Some(Manager::Libvirt));
    assert_eq!(vm.uuid.as_deref(), Some("6f1b0a4e-0000-4000-8000-000000000001"));
    assert_eq!(vm.cgroup.as_deref(), Some(format!("/{scope}").as_str()));
    assert_eq!((vm.weight, vm.cpuset.as_ref().unwrap().len()), (300, 2));
    assert_eq!(vm.guest_nodes[0].vcpus, [0, 1]);
    assert_eq!(vm.guest_nodes[0].memory, Bytes(1 << 30));
    assert_eq!(vm.memory_bound.as_ref().unwrap().to_string(), "1");
    let memory = vm.memory.as_ref().unwrap();
    assert_eq!(memory.source, MemorySource::CgroupNumaStat);
    assert_eq!(memory.by_node[&NodeId(1)], Bytes(8194));
}

#[test]
fn a_shared_cgroup_or_hugetlb_pages_make_numa_maps_count() {
    for (procs, huge) in [("50\n99\n", "0"), ("50\n", "2048")] {
        let copy = Copy::new();
        copy.process(50, "qemu-system-x86_64 -name m,debug-threads=on");
        copy.thread(50, 51, "CPU 0/KVM", (1, 1));
        copy.write("proc/50/cgroup", "0::/vm.scope\n");
        copy.write("proc/50/status", format!("HugetlbPages:\t    {huge} kB\n"));
        copy.write("proc/50/numa_maps", "7f000 default anon=2 N1=2 kernelpagesize_kB=4\n");
        copy.write("sys/fs/cgroup/vm.scope/cgroup.procs", procs);
        copy.write("sys/fs/cgroup/vm.scope/memory.numa_stat", "anon N0=1\n");
        let scan = copy.scan();
        let memory = scan.vms[0].memory.as_ref().unwrap();
        assert_eq!(memory.source, MemorySource::NumaMaps);
        assert_eq!(memory.by_node[&NodeId(1)], Bytes(8192));
        assert_eq!(scan.cost.numa_maps_reads, 1);
    }
}

#[test]
fn a_cut_numa_maps_is_named_in_a_warning() {
    let copy = Copy::new();
    copy.process(50, "qemu-system-x86_64 -name m,debug-threads=on");
    copy.thread(50, 51, "CPU 0/KVM", (1, 1));
    copy.write("proc/50/numa_maps", "7f000 default N1=2 kernelpagesize_kB=4\n7f10 default N0=99");
    let scan = copy.scan();
    assert!(scan.warnings.iter().any(|w| w.contains("proc/50/numa_maps:2")), "{:?}", scan.warnings);
    let memory = scan.vms[0].memory.as_ref().unwrap();
    assert!(memory.truncated);
    assert_eq!(memory.by_node.len(), 1);
}

#[test]
fn vms_and_vcpus_that_come_and_go_are_followed() {
    let copy = Copy::new();
    copy.process(50, "qemu-system-x86_64 -name m,debug-threads=on -smp 1,maxcpus=4");
    copy.thread(50, 51, "CPU 0/KVM", (1, 1));
    let mut scanner = copy.scanner();
    for _ in 0..4 {
        assert_eq!(scanner.scan().unwrap().vms[0].vcpus.len(), 1);
    }
    copy.thread(50, 52, "CPU 1/KVM", (1, 1));
    assert_eq!(scanner.scan().unwrap().vms[0].vcpus.len(), 2);
    fs::remove_dir_all(copy.path("proc/50/task/51")).unwrap();
    let scan = scanner.scan().unwrap();
    assert_eq!(scan.vms[0].vcpus.iter().map(|v| v.index).collect::<Vec<_>>(), [1]);
    fs::remove_dir_all(copy.path("proc/50")).unwrap();
    assert!(scanner.scan().unwrap().vms.is_empty());
    // Another program under the same process id.
    copy.process(50, "sleep 1000");
    assert!(scanner.scan().unwrap().vms.is_empty());
}

/// A VM of two vCPUs that began 10 s after boot and, at 1000 s, were busy half the time.
fn half_busy() -> Copy {
    let copy = Copy::new();
    copy.process(50, "qemu-system-x86_64 -name cut -smp 2");
    for (tid, index) in [(51, 0), (52, 1)] {
        copy.thread(50, tid, &format!("CPU {index}/KVM"), (495 * 1_000_000_000, 0));
        copy.write(&format!("proc/50/task/{tid}/comm"), format!("CPU {index}/KVM\n"));
    }
    copy
}

fn cut(copy: &Copy, tid: u32, keep: usize) {
    let path = format!("proc/50/task/{tid}/stat");
    let line = fs::read(copy.path(&path)).unwrap();
    copy.write(&path, &line[..keep]);
}

fn loads(before: Option<&Scan>, after: &Scan) -> Vec<u64> {
    let facts = |id| CpuFacts { id, ..CpuFacts::default() };
    let host = Arc::new(Topology::build(vec![facts(0), facts(1)], Vec::new()).unwrap());
    let taken = snapshot(&host, before, after, None);
    taken.vms[0].vcpus.iter().map(|v| v.busy.0 * 1000 / taken.window.0).collect()
}

#[test]
fn a_cut_stat_is_not_used_and_reported_once_for_a_vm() {
    for keep in [12, 14, 40, 48, 58, 69] {
        let copy = half_busy();
        cut(&copy, 51, keep);
        cut(&copy, 52, keep);
        let scan = copy.scan();
        assert_eq!(loads(None, &scan), [500, 500], "by schedstat, {keep}");
        let told = load_warnings(None, &scan, None);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("proc/50/task/51/stat of VM cut is missing or cut"), "{told:?}");
        assert!(told[0].contains("(so is 1 more of it)"), "{told:?}");
        fs::remove_file(copy.path("proc/50/task/52/schedstat")).unwrap();
        let scan = copy.scan();
        assert_eq!(loads(None, &scan), [500, 0]);
        let told = load_warnings(None, &scan, None);
        let said = "its load is known in part only: 1 of its 2 threads counts as idle";
        assert!(told.len() == 1 && told[0].ends_with(said), "{told:?}");
    }
}

#[test]
fn a_vm_without_any_counter_is_reported() {
    let copy = half_busy();
    for tid in [51, 52] {
        fs::remove_file(copy.path(&format!("proc/50/task/{tid}/stat"))).unwrap();
        fs::remove_file(copy.path(&format!("proc/50/task/{tid}/schedstat"))).unwrap();
    }
    let told = load_warnings(None, &copy.scan(), None);
    let said = "its load is not known: 2 of its 2 threads count as idle";
    assert!(told.len() == 1 && told[0].ends_with(said), "{told:?}");
}

#[test]
fn stat_cut_in_first_copy_never_makes_all_that_was_used_a_load() {
    let (before, after) = (half_busy(), half_busy());
    after.write("proc/uptime", "1010.00 1500.00\n");
    after.thread(50, 51, "CPU 0/KVM", (496 * 1_000_000_000, 0));
    cut(&before, 51, 66);
    cut(&before, 52, 66);
    fs::remove_file(before.path("proc/50/task/52/schedstat")).unwrap();
    let (before, mut after) = (before.scan(), after.scan());
    assert_eq!(loads(Some(&before), &after), [100, 495], "by schedstat; the mean since its start");
    let told = load_warnings(Some(&before), &after, None);
    assert!(told.len() == 1 && told[0].contains("means since it started"), "{told:?}");
    after.vms[0].vcpus[0].run = Nanos(0);
    assert_eq!(loads(Some(&before), &after)[0], 100, "by stat against schedstat");
}

#[test]
fn warnings_of_cut_stats_are_bounded() {
    let copy = Copy::new();
    for pid in (100..160).step_by(2) {
        copy.process(pid, &format!("qemu-system-x86_64 -name vm{pid}"));
        copy.thread(pid, pid + 1, "CPU 0/KVM", (5, 5));
        let dir = format!("proc/{pid}/task/{}", pid + 1);
        copy.write(&format!("{dir}/stat"), format!("{} (CPU 0/KVM) S 1 1", pid + 1));
    }
    let told = load_warnings(None, &copy.scan(), None);
    assert_eq!(told.len(), 11);
    assert!(told[10].contains("20 other VMs"), "{told:?}");
}

#[test]
fn status_cut_in_its_list_of_cpus_is_reported() {
    let copy = half_busy();
    copy.write("proc/50/task/51/status", "Cpus_allowed_list:\t1");
    let scan = copy.scan();
    assert_eq!(scan.vms[0].vcpus[0].allowed, CpuSet::parse_list("1").ok());
    assert!(scan.warnings.iter().all(|w| !w.contains("Cpus_allowed_list")), "{scan:?}");
    for list in ["", "\t0-", "\t0,"] {
        copy.write("proc/50/task/51/status", format!("Cpus_allowed_list:{list}"));
        let scan = copy.scan();
        assert_eq!(scan.vms[0].vcpus[0].allowed, None);
        let told = scan.warnings.iter().filter(|w| w.contains("task/51/status"));
        assert_eq!(told.count(), 1, "{:?}", scan.warnings);
    }
}

#[test]
fn a_missing_uptime_is_reported_only_where_it_matters() {
    let (before, after) = (half_busy(), half_busy());
    fs::remove_file(after.path("proc/uptime")).unwrap();
    let (mut before, after) = (before.scan(), after.scan());
    let told = |before: Option<&Scan>, elapsed| load_warnings(before, &after, elapsed);
    assert!(told(None, None)[0].contains("proc/uptime is missing or not readable"));
    assert!(told(Some(&before), None)[0].contains("relative to the busiest vCPU"));
    assert!(told(Some(&before), Some(Nanos::SECOND)).is_empty());
    before.vms.clear();
    let unseen = told(Some(&before), Some(Nanos::SECOND));
    assert!(unseen[0].ends_with("count as if they had started since"), "{unseen:?}");
}

#[test]
fn one_uptime_alone_is_no_window() {
    let (before, after) = (half_busy(), half_busy());
    after.thread(50, 51, "CPU 0/KVM", (496 * 1_000_000_000, 0));
    fs::remove_file(before.path("proc/uptime")).unwrap();
    assert_eq!(loads(Some(&before.scan()), &after.scan()), [1000, 0], "by the busiest");
}

#[test]
fn window_that_contradicts_uptimes_is_reported_with_both() {
    let (before, after) = (half_busy(), half_busy());
    after.write("proc/uptime", "1060.00 1500.00\n");
    let (before, after) = (before.scan(), after.scan());
    let told = |secs| load_warnings(Some(&before), &after, Some(Nanos::from_secs(secs)));
    for near in [54, 60, 66] {
        assert!(told(near).is_empty(), "{near}");
    }
    assert!(told(53)[0].starts_with("--elapsed says 53"), "{:?}", told(53));
    assert!(told(600)[0].contains("of the two copies are 60"), "{:?}", told(600));
}

#[test]
fn a_vm_that_only_the_second_copy_holds_counts_by_its_age() {
    let (before, after) = (Copy::new(), half_busy());
    after.write("proc/uptime", "1010.00 1500.00\n");
    let before = before.scan();
    assert_eq!(loads(Some(&before), &after.scan()), [495, 495], "its mean since its start");
    // Started 5 s into the window, and busy for 4 s since.
    after.thread(50, 51, "CPU 0/KVM", (4_000_000_000, 0));
    let line = fs::read_to_string(after.path("proc/50/task/51/stat")).unwrap();
    after.write("proc/50/task/51/stat", line.replace(" 0 1000 0 ", " 0 100500 0 "));
    assert_eq!(loads(Some(&before), &after.scan()), [400, 495]);
}
