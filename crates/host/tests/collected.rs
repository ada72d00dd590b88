//! A copy that was collected of a host reads as the host itself, and holds nothing of processes that are
//! no VMs.

#![cfg(test)]

use instep_core::snapshot::Snapshot;
use instep_core::units::{Bytes, Nanos, NodeId};
use instep_host::Root;
use instep_host::collect::{HostCopy, WriteError, take, write};
use instep_host::discover::{Scan, ScanOptions, Scanner, VmFacts, load_warnings, snapshot};
use instep_host::topology;
use instep_madehost::{
    Cgroups, HostSize, HostSpec, MadeHost, VmSpec, Vmm, random, scratch_dir, skip,
};
use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

const WINDOW: Nanos = Nanos::from_secs(60);
const NAMES: [&str; 2] = ["before", "after"];

/// A made host twice, and what is collected of it.
struct Hosts(TempDir);

impl Hosts {
    fn of(made: &MadeHost) -> Self {
        let hosts = Self(scratch_dir().unwrap());
        let [before, after] = NAMES.map(|name| hosts.host(name));
        made.write_pair(&before, &after, WINDOW).unwrap();
        hosts
    }

    fn host(&self, name: &str) -> PathBuf {
        self.0.path().join("host").join(name)
    }

    fn out(&self) -> PathBuf {
        self.0.path().join("out")
    }

    fn take(&self) -> [HostCopy; 2] {
        NAMES.map(|name| take(&Root::at(self.host(name)), true).unwrap())
    }

    fn collect(&self) -> [HostCopy; 2] {
        let copies = self.take();
        write(&self.out(), &named(&copies), &AtomicBool::new(false)).unwrap();
        copies
    }
}

fn named(copies: &[HostCopy; 2]) -> [(&str, &HostCopy); 2] {
    [(NAMES[0], &copies[0]), (NAMES[1], &copies[1])]
}

/// All that a scan tells which is not about the processes it looked at, with paths from the root.
fn facts_of(scan: &Scan, root: &Path) -> String {
    let Scan { at, boot, ticks_per_second, isolated, vms, opaque, host_busy, waited, gaps, .. } =
        scan;
    let facts = (at, boot, ticks_per_second, isolated, vms, opaque, host_busy, waited, gaps);
    format!("{facts:#?}\n{:?}", scan.looked.kvm_debugfs).replace(root.to_str().unwrap(), "")
}

fn observe(dir: &Path) -> (Snapshot, [String; 2], Vec<String>) {
    let dirs = NAMES.map(|name| dir.join(name));
    let scans = [&dirs[0], &dirs[1]]
        .map(|dir| Scanner::new(Root::at(dir), ScanOptions::once()).scan().unwrap());
    let topology = Arc::new(topology::read(&Root::at(&dirs[1])).unwrap());
    let warnings = load_warnings(Some(&scans[0]), &scans[1], None);
    let snapshot = snapshot(&topology, Some(&scans[0]), &scans[1], None);
    (snapshot, [facts_of(&scans[0], &dirs[0]), facts_of(&scans[1], &dirs[1])], warnings)
}

/// The names in a folder that are numbers.
fn processes(dir: &Path) -> BTreeSet<u32> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| name.to_str()?.parse().ok()).collect()
}

/// Everything in a folder, with its bytes or where it leads.
fn contents(dir: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = path.symlink_metadata().unwrap();
        let mode = meta.permissions().mode() & 0o777;
        if meta.is_dir() {
            assert_eq!(mode, 0o700, "{}", path.display());
            contents(&path, found);
        } else if meta.is_symlink() {
            found.push((
                path.clone(),
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
            ));
        } else {
            assert_eq!(mode, 0o600, "{}", path.display());
            found.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
}

fn holds(found: &[(PathBuf, Vec<u8>)], text: &str) -> bool {
    found.iter().any(|(_, bytes)| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
}

fn check(made: &MadeHost, what: &str) {
    let hosts = Hosts::of(made);
    let copies = hosts.collect();
    let (host, copy) = (observe(&hosts.0.path().join("host")), observe(&hosts.out()));
    for (host, copy) in host.1.iter().zip(&copy.1) {
        let differs = host.lines().zip(copy.lines()).find(|(host, copy)| host != copy);
        assert!(host == copy, "{what}: {differs:?}");
    }
    assert_eq!(format!("{:#?}", host.0), format!("{:#?}", copy.0), "{what}");
    assert_eq!(host.2, copy.2, "{what}");
    let vms: BTreeSet<u32> = copy.0.vms.iter().map(|vm| vm.id.0).collect();
    let opaque: BTreeSet<u32> = copy.0.opaque.iter().map(|vm| vm.id.0).collect();
    assert_eq!((copies[1].vms, copies[1].opaque), (vms.len(), opaque.len()), "{what}");
    assert_eq!(processes(&hosts.out().join("after/proc")), &vms | &opaque, "{what}");
    let mut found = Vec::new();
    contents(&hosts.out(), &mut found);
    for process in ["/sbin/init", "libvirtd", "-name fake", "qemu-img", "ksoftirqd"] {
        let shown = format!("{what}: {process}");
        assert!(
            !holds(&found, process) || made.vms.iter().any(|vm| vm.name.contains(process)),
            "{shown}"
        );
    }
}

#[test]
fn copy_reads_as_the_host_that_was_collected() {
    check_copies(0..4);
}

#[test]
fn copy_of_any_host_reads_as_it() {
    if skip::may_take_long() {
        check_copies(4..20);
    }
}

fn check_copies(seeds: Range<u64>) {
    for seed in seeds {
        let mut made = random(seed, HostSize { vms: 6, ..HostSize::default() });
        if seed % 4 == 3 {
            made.cgroups = Cgroups::V1;
        }
        check(&made, &format!("seed {seed}"));
    }
}

/// A host of one QEMU process with secrets, and a shell that has some, too.
fn with_secrets() -> Hosts {
    let hosts = Hosts::of(&MadeHost::new(HostSpec::new(1, 2)));
    for name in NAMES {
        let proc = hosts.host(name).join("proc");
        let stat = |pid: u32| {
            format!(
                "{pid} (x) S 1 1 1 0 -1 4194304 0 0 0 0 9 0 0 0 20 0 1 0 1000 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"
            )
        };
        let qemu = "qemu-system-x86_64\0-name\0db\0-object\0secret,id=s,data=hunter2\0-accel\0tcg\0-smp\x001\0";
        for (pid, cmdline) in [(4000, qemu), (4002, "mysql\0--password=hunter3\0")] {
            let task = proc.join(format!("{pid}/task/{pid}"));
            fs::create_dir_all(&task).unwrap();
            fs::write(proc.join(format!("{pid}/stat")), stat(pid)).unwrap();
            fs::write(proc.join(format!("{pid}/cmdline")), cmdline).unwrap();
            fs::write(proc.join(format!("{pid}/environ")), "PASSWORD=hunter4").unwrap();
            fs::write(task.join("stat"), stat(pid)).unwrap();
        }
        let vcpu = proc.join("4000/task/4001");
        fs::create_dir_all(&vcpu).unwrap();
        fs::write(vcpu.join("stat"), stat(4001).replace("(x)", "(CPU 0/TCG)")).unwrap();
    }
    hosts
}

#[test]
fn secrets_and_other_processes_are_not_in_the_copy() {
    let hosts = with_secrets();
    let [_, after] = hosts.collect();
    assert_eq!((after.vms, after.vcpus, after.opaque), (1, 1, 0));
    let mut found = Vec::new();
    contents(&hosts.out(), &mut found);
    assert!(holds(&found, "secret,id=s,data=removed") && holds(&found, "qemu-system-x86_64"));
    assert!(!holds(&found, "hunter") && !holds(&found, "mysql"));
    let (host, copy) = (observe(&hosts.0.path().join("host")), observe(&hosts.out()));
    assert_eq!(host.1, copy.1);
    assert_eq!(copy.0.vms[0].name, "db");
}

#[test]
fn what_counts_by_being_there_is_in_the_copy() {
    let hosts = with_secrets();
    for name in NAMES {
        let host = hosts.host(name);
        // Only its program says that it is a VM, and KVM's folder does not name all its vCPUs.
        let process = host.join("proc/4000");
        let line = fs::read_to_string(process.join("cmdline")).unwrap();
        fs::write(process.join("cmdline"), line.replace("qemu-system-x86_64", "db")).unwrap();
        symlink("/usr/bin/qemu-system-x86_64", process.join("exe")).unwrap();
        let vm = host.join("sys/kernel/debug/kvm/4000-8");
        fs::create_dir_all(vm.join("vcpu1")).unwrap();
        fs::create_dir_all(vm.join("vcpu0")).unwrap();
        fs::write(vm.join("vcpu0/pid"), "4001\n").unwrap();
        // A CPU without a cache or a topology that could be read.
        let cpus = host.join("sys/devices/system/cpu");
        fs::create_dir(cpus.join("cpu2")).unwrap();
        fs::write(cpus.join("online"), "0-2\n").unwrap();
    }
    let check = || {
        hosts.collect();
        let (host, copy) = (observe(&hosts.0.path().join("host")), observe(&hosts.out()));
        fs::remove_dir_all(hosts.out()).unwrap();
        assert_eq!(host.1, copy.1);
        assert_eq!(host.0.topology, copy.0.topology);
        copy
    };
    let copy = check();
    assert_eq!((copy.0.vms[0].name.as_str(), copy.0.topology.all_cpus().len()), ("db", 3));
    assert!(copy.1[1].contains("identified_by: ThreadNames"), "{}", copy.1[1]);
    // Nothing in KVM's folder is no reason to say that there is none.
    for name in NAMES {
        fs::remove_dir_all(hosts.host(name).join("sys/kernel/debug/kvm/4000-8")).unwrap();
    }
    assert!(check().1[1].ends_with("\nRead"));
}

#[test]
fn half_a_copy_is_removed_and_what_was_there_stays() {
    let hosts = with_secrets();
    let copies = hosts.take();
    let named = named(&copies);
    let stopped = write(&hosts.out(), &named, &AtomicBool::new(true)).unwrap_err();
    assert!(matches!(stopped, WriteError::Stopped) && !hosts.out().exists(), "{stopped}");
    // A folder that was there stays, without what was written.
    fs::create_dir(hosts.out()).unwrap();
    symlink("nowhere", hosts.out().join("after")).unwrap();
    let failed = write(&hosts.out(), &named, &AtomicBool::new(false)).unwrap_err();
    assert!(failed.to_string().contains("out/after: "), "{failed}");
    assert!(hosts.out().is_dir() && !hosts.out().join("before").exists());
    fs::remove_file(hosts.out().join("after")).unwrap();
    assert!(write(&hosts.out(), &named, &AtomicBool::new(false)).unwrap() > 20);
}

/// The domain `web` with a password for its console, keys of others in its metadata, and a mistake.
const WEB: &str = "<domstatus pid='PID'><domain type='kvm'><uuid>UUID</uuid><title>hunter-1</title><metadata>\
    <i:vm xmlns:i='urn:instep:vm:1' weight='200' wieght='1'/><i:vm xmlns:i='urn:instep:vm:2'/>\
    <cloud:data xmlns:cloud='urn:cloud' key='hunter-2'>hunter-3</cloud:data></metadata>\
    <devices><graphics type='vnc' passwd='hunter-4'/></devices></domain></domstatus>";

/// The VM `db` with a password for its first start, and another for its console.
const DB: &str = "#hunter-5\ncipassword: hunter-6\nargs: -vnc :1,password=hunter-7\n\
    tags: hunter-8;instep-cosched-relaxed;instep-ignore\n[old]\ndescription: hunter-9\n";

/// A host of one VM of libvirt and one of Proxmox, with definitions; others' are there, too.
fn with_definitions() -> Hosts {
    let mut made = MadeHost::new(HostSpec::new(1, 8));
    for (name, vmm) in [("web", Vmm::Libvirt), ("db", Vmm::Proxmox)] {
        made.push(VmSpec::new(name, vmm, 2, NodeId(0), Bytes::from_mib(64)));
    }
    let hosts = Hosts::of(&made);
    for name in NAMES {
        let host = hosts.host(name);
        let scan = Scanner::new(Root::at(&host), ScanOptions::once()).scan().unwrap();
        let write = |folder: &str, file: String, text: String| {
            fs::create_dir_all(host.join(folder)).unwrap();
            fs::write(host.join(folder).join(file), text).unwrap();
        };
        let vm = |name: &str| scan.vms.iter().find(|vm| vm.name == name).unwrap();
        let uuid = vm("web").uuid.as_deref().unwrap();
        let status = WEB.replace("PID", &vm("web").pid.to_string()).replace("UUID", uuid);
        write("run/libvirt/qemu", "other.xml".to_owned(), status.clone());
        write("run/libvirt/qemu", "web.xml".to_owned(), status);
        let number = vm("db").pid;
        write("run/qemu-server", format!("{number}.pid"), format!("{number}\n"));
        write("etc/pve/qemu-server", format!("{number}.conf"), DB.to_owned());
        write("etc/pve/qemu-server", "1.conf".to_owned(), DB.to_owned());
    }
    hosts
}

#[test]
fn definitions_are_in_the_copy_without_what_others_keep_in_them() {
    let hosts = with_definitions();
    hosts.collect();
    let (host, copy) = (observe(&hosts.0.path().join("host")), observe(&hosts.out()));
    assert_eq!(host.1, copy.1);
    let mut found = Vec::new();
    contents(&hosts.out(), &mut found);
    assert!(holds(&found, "urn:instep:vm:1") && holds(&found, "instep-ignore"));
    assert!(!holds(&found, "hunter"));
    let scan = Scanner::new(Root::at(hosts.out().join("after")), ScanOptions::once()).scan();
    let vms = scan.unwrap().vms;
    let shown = |vm: &VmFacts| {
        let settings = vm.definition.settings.iter();
        settings.map(|it| format!("{} {}", it.key, it.value)).collect::<Vec<_>>()
    };
    let of = |name: &str| vms.iter().find(|vm| vm.name == name).unwrap();
    assert_eq!(shown(of("web")), ["weight 200", "wieght 1"]);
    assert!(of("web").definition.problems[0].contains("`urn:instep:vm:2`, which is unknown"));
    assert_eq!(shown(of("db")), ["cosched relaxed", "ignore "]);
    // Only what belongs to VMs that run.
    let names = |folder: &str| {
        let listed = fs::read_dir(hosts.out().join("after").join(folder)).unwrap();
        listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(names("run/libvirt/qemu"), ["web.xml"]);
    assert_eq!(names("etc/pve/qemu-server"), [format!("{}.conf", of("db").pid)]);
}

#[test]
fn definition_that_cannot_be_read_is_not_in_the_copy_as_it_is() {
    let hosts = with_definitions();
    for name in NAMES {
        let path = hosts.host(name).join("run/libvirt/qemu/web.xml");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("</domstatus>", "<hunter-10>")).unwrap();
    }
    hosts.collect();
    let mut found = Vec::new();
    contents(&hosts.out(), &mut found);
    assert!(!holds(&found, "hunter"));
    let scan = Scanner::new(Root::at(hosts.out().join("after")), ScanOptions::once()).scan();
    let vms = scan.unwrap().vms;
    let web = vms.iter().find(|vm| vm.name == "web").unwrap();
    assert!(web.definition.problems[0].contains("web.xml: "), "{:?}", web.definition);
}

#[test]
fn daemons_that_move_threads_are_known_in_a_copy_by_name() {
    let mut made = MadeHost::new(HostSpec::new(2, 4));
    made.push(VmSpec::new("vm", Vmm::Libvirt, 2, NodeId(0), Bytes::from_mib(64)));
    (made.numa_balancing, made.daemons) = (1, vec!["numad"]);
    let hosts = Hosts::of(&made);
    hosts.collect();
    let told = |dir: PathBuf| {
        let mut scanner = Scanner::new(Root::at(dir), ScanOptions::once());
        let first = scanner.scan().unwrap().warnings;
        let second = scanner.scan().unwrap().warnings;
        assert!(
            !second.iter().any(|told| first.contains(told)),
            "each warning comes once: {second:?}"
        );
        first
    };
    let (host, copy) = (told(hosts.host("after")), told(hosts.out().join("after")));
    let count = |told: &[String], word: &str| told.iter().filter(|one| one.contains(word)).count();
    for word in ["numad runs", "kernel.numa_balancing is 1"] {
        assert_eq!((count(&host, word), count(&copy, word)), (1, 1), "{word}: {host:?} {copy:?}");
    }
    let mut found = Vec::new();
    contents(&hosts.out(), &mut found);
    assert!(!holds(&found, "--secret"), "its command line is not kept");
}
