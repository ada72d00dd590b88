//! Processes of a made host that are no VMs: init, kernel threads, shells and daemons, some of
//! which look like VMs at a glance.

use crate::process::{Process, ProcessKind, Task};
use instep_core::idset::{CpuSet, NodeSet};
use instep_core::units::{Bytes, CpuId, Nanos};

/// Ids that noise may take end below this; VMs come after.
pub(crate) const FIRST_VM_PID: u32 = 1000;

/// The processes, and the cgroup of each.
pub(crate) fn processes(cpus: &CpuSet, mems: &NodeSet) -> Vec<Process> {
    let user = |pid, name: &str, args: &[&str], cgroup: &str| {
        let cmdline = args.iter().map(|arg| format!("{arg}\0")).collect();
        process(pid, 1, name, cmdline, ProcessKind::User, cgroup, cpus, mems)
    };
    let session = "/user.slice/user-1000.slice/session-3.scope";
    let libvirtd = "/system.slice/libvirtd.service";
    let mut list = vec![
        user(1, "systemd", &["/sbin/init"], "/init.scope"),
        user(310, "libvirtd", &["/usr/sbin/libvirtd", "--timeout", "120"], libvirtd),
        user(320, "sshd", &["sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups"], session),
        user(330, "bash", &["-bash"], session),
        user(
            331,
            "bash",
            &["bash", "-c", "qemu-system-x86_64 -name fake -smp 4 -accel kvm; true"],
            session,
        ),
        user(332, "grep", &["grep", "--color=auto", "qemu-system-x86_64"], session),
        user(333, "vim", &["vim", "firecracker --id crosvm cloud-hypervisor.md"], session),
        user(
            340,
            "qemu-img",
            &["qemu-img", "convert", "-O", "qcow2", "/var/lib/a.raw", "/var/lib/a.qcow2"],
            session,
        ),
        user(
            341,
            "swtpm",
            &["/usr/bin/swtpm", "socket", "--ctrl", "type=unixio,path=/run/vm.sock"],
            "/system.slice/swtpm.service",
        ),
        user(350, "a) R 1 (b", &["odd"], session),
    ];
    let no_args = String::new();
    list.push(process(
        334,
        331,
        "qemu-system-x86",
        no_args.clone(),
        ProcessKind::Zombie,
        session,
        cpus,
        mems,
    ));
    list.push(kernel_thread(2, "kthreadd", cpus, mems));
    for (pid, cpu) in (10..).zip(cpus.iter().take(64)) {
        list.push(kernel_thread(pid, &format!("ksoftirqd/{cpu}"), &CpuSet::one(cpu), mems));
    }
    list.push(kernel_thread(360, "vhost-1000", cpus, mems));
    list.push(kernel_thread(361, "kworker/u8:1-kv", cpus, mems));
    list
}

/// Daemons of these names.
pub(crate) fn daemons<'a>(
    names: &'a [&str],
    cpus: &'a CpuSet,
    mems: &'a NodeSet,
) -> impl Iterator<Item = Process> + 'a {
    (370..).zip(names).map(|(pid, name)| {
        let (cmdline, group) =
            (format!("/usr/sbin/{name}\0--secret\0"), format!("/system.slice/{name}.service"));
        process(pid, 1, name, cmdline, ProcessKind::User, &group, cpus, mems)
    })
}

fn kernel_thread(pid: u32, name: &str, cpus: &CpuSet, mems: &NodeSet) -> Process {
    let parent = if pid == 2 { 0 } else { 2 };
    process(pid, parent, name, String::new(), ProcessKind::Kernel, "/", cpus, mems)
}

#[expect(clippy::too_many_arguments, reason = "one row of a table, spelled out by its callers")]
fn process(
    pid: u32,
    parent: u32,
    name: &str,
    cmdline: String,
    kind: ProcessKind,
    cgroup: &str,
    cpus: &CpuSet,
    mems: &NodeSet,
) -> Process {
    let user = kind == ProcessKind::User;
    let heap = "55ee273dc000 default heap anon=256 dirty=256 active=0 N0=256 kernelpagesize_kB=4\n";
    Process {
        pid,
        parent,
        started: Nanos::from_secs(1),
        cmdline,
        memory: Bytes(if user { 1 << 20 } else { 0 }),
        fds: user.then(|| (0..3).map(|fd| (fd, "/dev/null".to_owned())).collect()),
        numa_maps: if user { heap.to_owned() } else { String::new() },
        maps: String::new(),
        huge: Bytes(0),
        exe: user.then_some("/usr/bin/busybox"),
        mems: mems.clone(),
        tasks: vec![Task {
            tid: pid,
            name: name.to_owned(),
            cgroup: cgroup.to_owned(),
            state: match kind {
                ProcessKind::Zombie => 'Z',
                ProcessKind::Kernel if name.starts_with("kworker") => 'I',
                _ => 'S',
            },
            busy: Nanos(0),
            steal: Nanos(0),
            guest: false,
            cpu: cpus.first().unwrap_or(CpuId(0)),
            allowed: cpus.clone(),
        }],
        kind,
    }
}
