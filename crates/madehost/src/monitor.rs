//! What the monitors look like from outside: command lines, thread names, file descriptors and
//! cgroups of QEMU, libvirt, Proxmox, Cloud Hypervisor, Firecracker and crosvm.
//!
//! Shapes: QEMU 7.2 to 10.0, libvirt 9, Proxmox 8, Cloud Hypervisor 40, Firecracker 1.7; thread
//! names cut at 15 bytes by the kernel.

use crate::vm::{MemPolicy, Pages, Thread, ThreadKind, VmSpec, Vmm};
use instep_core::units::{Nanos, Tid};

/// Threads of every monitor whose ids come before the vCPUs', the main one included.
pub(crate) const THREADS_BEFORE_VCPUS: u32 = 3;

/// File descriptor of the VM (`anon_inode:kvm-vm`).
pub(crate) const VM_FD: u32 = 8;

/// Name of the main thread.
pub(crate) fn comm(vmm: Vmm) -> &'static str {
    match vmm {
        Vmm::QemuKvm | Vmm::QemuTcg | Vmm::Libvirt => "qemu-system-x86",
        Vmm::Proxmox => "kvm",
        Vmm::CloudHypervisor => "cloud-hyperviso",
        Vmm::Firecracker => "firecracker",
        Vmm::Crosvm => "crosvm",
    }
}

/// The program.
pub(crate) fn exe(vmm: Vmm) -> &'static str {
    match vmm {
        Vmm::QemuKvm | Vmm::QemuTcg | Vmm::Libvirt => "/usr/bin/qemu-system-x86_64",
        Vmm::Proxmox => "/usr/bin/kvm",
        Vmm::CloudHypervisor => "/usr/bin/cloud-hypervisor",
        Vmm::Firecracker => "/usr/bin/firecracker",
        Vmm::Crosvm => "/usr/bin/crosvm",
    }
}

fn vcpu_name(vmm: Vmm, index: u32) -> String {
    match vmm {
        Vmm::QemuTcg => format!("CPU {index}/TCG"),
        Vmm::QemuKvm | Vmm::Libvirt | Vmm::Proxmox => format!("CPU {index}/KVM"),
        Vmm::CloudHypervisor => format!("vcpu{index}"),
        Vmm::Firecracker => format!("fc_vcpu {index}"),
        Vmm::Crosvm => format!("crosvm_vcpu{index}"),
    }
}

/// Names of the threads before the vCPUs, the main one not included.
fn names_before(vmm: Vmm) -> [&'static str; THREADS_BEFORE_VCPUS as usize - 1] {
    match vmm {
        Vmm::QemuKvm | Vmm::QemuTcg | Vmm::Proxmox => ["call_rcu", "worker"],
        Vmm::Libvirt => ["call_rcu", "IO mon_iothread"],
        Vmm::CloudHypervisor => ["vmm", "_disk0_q0"],
        Vmm::Firecracker => ["fc_api", "firecracker"],
        Vmm::Crosvm => ["crosvm_balloon", "crosvm"],
    }
}

/// All threads of `vm` at `now`, ascending by id.
pub(crate) fn threads(vm: &VmSpec, now: Nanos) -> Vec<Thread> {
    let main = comm(vm.vmm);
    let name = |own: &str| {
        let name = if vm.names_threads() { own } else { main };
        name.chars().take(15).collect::<String>()
    };
    let emulator =
        |tid: u32, own: &str| Thread { tid: Tid(tid), name: name(own), kind: ThreadKind::Emulator };
    let mut threads =
        vec![Thread { tid: Tid(vm.pid), name: main.to_owned(), kind: ThreadKind::Main }];
    for (offset, own) in (1..).zip(names_before(vm.vmm)) {
        threads.push(emulator(vm.pid + offset, own));
    }
    for (index, vcpu) in (0..).zip(&vm.vcpus) {
        if vcpu.started.is_none_or(|started| started <= now) {
            let name = name(&vcpu_name(vm.vmm, index));
            threads.push(Thread { tid: vm.vcpu_tid(index), name, kind: ThreadKind::Vcpu(index) });
        }
    }
    let after = vm.pid + THREADS_BEFORE_VCPUS + vm.vcpus.len() as u32;
    for number in 1..=vm.io_threads {
        threads.push(emulator(after + number, &format!("IO iothread{number}")));
    }
    if vm.vmm.is_kvm() {
        let mut recovery = emulator(after, "kvm-nx-lpage-re");
        recovery.name = "kvm-nx-lpage-re".to_owned();
        threads.push(recovery);
    }
    threads.sort_by_key(|thread| thread.tid);
    threads
}

/// Numbers after `vm.pid` that its threads may take.
pub(crate) fn pids_taken(vm: &VmSpec) -> u32 {
    THREADS_BEFORE_VCPUS + vm.vcpus.len() as u32 + 1 + vm.io_threads
}

/// Open files: number and target.
pub(crate) fn fds(vm: &VmSpec) -> Vec<(u32, String)> {
    let mut fds: Vec<(u32, String)> = (0..3).map(|fd| (fd, "/dev/null".to_owned())).collect();
    fds.extend([4, 6, 7].map(|fd| (fd, "anon_inode:[eventfd]".to_owned())));
    fds.push((5, "anon_inode:[signalfd]".to_owned()));
    fds.push((9, "socket:[44181]".to_owned()));
    if vm.vmm.is_kvm() {
        fds.push((3, "/dev/kvm".to_owned()));
        fds.push((VM_FD, "anon_inode:kvm-vm".to_owned()));
        for index in 0..vm.vcpus.len() as u32 {
            fds.push((10 + 2 * index, format!("anon_inode:kvm-vcpu:{index}")));
            fds.push((11 + 2 * index, format!("anon_inode:kvm-vcpu-stats:{index}")));
        }
    }
    fds
}

/// Path of a VM's own cgroup, and of the cgroups of its monitor and of a vCPU within it.
pub(crate) fn own_cgroup(vm: &VmSpec) -> String {
    match vm.vmm {
        Vmm::Libvirt => {
            let name = vm.name.replace('-', "\\x2d");
            format!("/machine.slice/machine-qemu\\x2d{}\\x2d{name}.scope", vm.pid)
        }
        Vmm::Proxmox => format!("/qemu.slice/{}.scope", vm.pid),
        _ => format!("/system.slice/vm-{}.service", vm.name),
    }
}

/// The UUID that its command line gives.
pub(crate) fn told_uuid(vm: &VmSpec) -> Option<String> {
    matches!(vm.vmm, Vmm::Libvirt | Vmm::Proxmox).then(|| uuid(vm))
}

/// A UUID that the name and the process id fix.
pub(crate) fn uuid(vm: &VmSpec) -> String {
    let mut hash = crate::random::Random::new(u64::from(vm.pid));
    let (a, b) = (hash.next_u64(), hash.next_u64());
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xfff,
        b >> 52,
        b & 0xffff_ffff_ffff
    )
}

/// The command line, arguments each ended by a NUL as in /proc/PID/cmdline.
pub(crate) fn cmdline(vm: &VmSpec) -> String {
    let args = match vm.vmm {
        Vmm::QemuKvm | Vmm::QemuTcg => plain_qemu(vm),
        Vmm::Libvirt => libvirt(vm),
        Vmm::Proxmox => proxmox(vm),
        Vmm::CloudHypervisor => cloud_hypervisor(vm),
        Vmm::Firecracker => strings(&[
            exe(vm.vmm),
            "--api-sock",
            &format!("/run/firecracker/{}.sock", vm.name),
            "--id",
            &vm.name,
        ]),
        Vmm::Crosvm => crosvm(vm),
    };
    args.into_iter().map(|arg| arg + "\0").collect()
}

fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

fn mebibytes(vm: &VmSpec) -> u64 {
    (vm.memory_total().0 >> 20).max(1)
}

fn smp(vm: &VmSpec) -> String {
    let vcpus = vm.vcpus.len() as u32;
    let threads = vm.guest_threads_per_core.max(1);
    if threads == 1 {
        return format!("{vcpus},sockets=1,cores={vcpus},threads=1");
    }
    format!("{vcpus},sockets=1,dies=1,cores={},threads={threads}", vcpus / threads)
}

/// `-object` and `-numa` of the guest's memory and nodes.
fn qemu_memory(vm: &VmSpec) -> Vec<String> {
    let bound = match &vm.policy {
        MemPolicy::Default => String::new(),
        MemPolicy::Bind(nodes) => format!(",host-nodes={nodes},policy=bind"),
        MemPolicy::Prefer(node) => format!(",host-nodes={node},policy=preferred"),
        MemPolicy::Interleave(nodes) => format!(",host-nodes={nodes},policy=interleave"),
    };
    let backend = match vm.pages {
        Pages::Small => "memory-backend-ram",
        Pages::Huge => "memory-backend-memfd,hugetlb=on",
    };
    let object =
        |id: String, mib: u64| format!("{backend},id={id},size={mib}M{bound}").replace(",,", ",");
    let mut args = Vec::new();
    if vm.guest_nodes.is_empty() {
        if !bound.is_empty() {
            args.extend(["-object".to_owned(), object("mem0".to_owned(), mebibytes(vm))]);
        }
        return args;
    }
    for (index, node) in vm.guest_nodes.iter().enumerate() {
        let ram = format!("ram-node{index}");
        args.extend(["-object".to_owned(), object(ram.clone(), node.memory.0 >> 20)]);
        let cpus: String = ranges(&node.vcpus)
            .into_iter()
            .map(|(first, last)| format!(",cpus={first}-{last}"))
            .collect();
        args.extend(["-numa".to_owned(), format!("node,nodeid={index}{cpus},memdev={ram}")]);
    }
    args
}

/// Runs of consecutive numbers of an ascending list.
fn ranges(ids: &[u32]) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &id in ids {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == id => *last = id,
            _ => ranges.push((id, id)),
        }
    }
    ranges
}

fn plain_qemu(vm: &VmSpec) -> Vec<String> {
    let debug = if vm.thread_names { ",debug-threads=on" } else { "" };
    let accel = if vm.vmm == Vmm::QemuTcg { "tcg,thread=multi" } else { "kvm" };
    let mut args = strings(&[
        "qemu-system-x86_64",
        "-name",
        &format!("{}{debug}", vm.name),
        "-accel",
        accel,
        "-smp",
        &smp(vm),
        "-m",
        &mebibytes(vm).to_string(),
    ]);
    args.extend(qemu_memory(vm));
    args.extend(strings(&["-kernel", "/boot/vmlinuz", "-append", "console=ttyS0 quiet panic=-1"]));
    args.extend(strings(&["-nodefaults", "-nographic", "-serial", "null", "-monitor", "none"]));
    args
}

fn libvirt(vm: &VmSpec) -> Vec<String> {
    let debug = if vm.thread_names { "on" } else { "off" };
    let mut args = strings(&[
        exe(vm.vmm),
        "-name",
        &format!("guest={},debug-threads={debug}", vm.name),
        "-S",
        "-object",
        r#"{"qom-type":"secret","id":"masterKey0","format":"raw","file":"/var/lib/libvirt/qemu/key"}"#,
        "-machine",
        "pc-q35-7.2,usb=off,vmport=off,dump-guest-core=off",
        "-accel",
        "kvm",
        "-cpu",
        "host,migratable=on",
        "-m",
        &format!("size={}k", mebibytes(vm) << 10),
        "-overcommit",
        "mem-lock=off",
        "-smp",
        &smp(vm),
    ]);
    args.extend(qemu_memory(vm));
    args.extend(strings(&[
        "-uuid",
        &uuid(vm),
        "-no-user-config",
        "-nodefaults",
        "-chardev",
        "socket,id=charmonitor,fd=24,server=on,wait=off",
        "-mon",
        "chardev=charmonitor,id=monitor,mode=control",
        "-msg",
        "timestamp=on",
    ]));
    args
}

fn proxmox(vm: &VmSpec) -> Vec<String> {
    let debug = if vm.thread_names { ",debug-threads=on" } else { "" };
    let mut args = strings(&[
        exe(vm.vmm),
        "-id",
        &vm.pid.to_string(),
        "-name",
        &format!("{}{debug}", vm.name),
        "-no-shutdown",
        "-chardev",
        &format!("socket,id=qmp,path=/var/run/qemu-server/{}.qmp,server=on,wait=off", vm.pid),
        "-mon",
        "chardev=qmp,mode=control",
        "-daemonize",
        "-smbios",
        &format!("type=1,uuid={}", uuid(vm)),
        "-smp",
        &smp(vm),
        "-m",
        &mebibytes(vm).to_string(),
    ]);
    args.extend(qemu_memory(vm));
    args
}

fn cloud_hypervisor(vm: &VmSpec) -> Vec<String> {
    let vcpus = vm.vcpus.len() as u32;
    let threads = vm.guest_threads_per_core.max(1);
    let topology = if threads == 1 {
        String::new()
    } else {
        format!(",topology={threads}:{}:1:1", vcpus / threads)
    };
    strings(&[
        exe(vm.vmm),
        "--api-socket",
        &format!("/run/ch/{}.sock", vm.name),
        "--kernel",
        "/boot/vmlinux",
        "--cpus",
        &format!("boot={vcpus},max={vcpus}{topology}"),
        "--memory",
        &format!("size={}M", mebibytes(vm)),
        "--disk",
        &format!("path=/var/lib/vms/{}.raw", vm.name),
    ])
}

fn crosvm(vm: &VmSpec) -> Vec<String> {
    strings(&[
        exe(vm.vmm),
        "run",
        "--name",
        &vm.name,
        "--cpus",
        &format!("num-cores={}", vm.vcpus.len()),
        "--mem",
        &format!("size={}", mebibytes(vm)),
        "--socket",
        &format!("/run/crosvm/{}.sock", vm.name),
        "/boot/vmlinux",
    ])
}
