//! Independent readers find in a written host what its spec says: the procfs-core crate for
//! processes, hwloc's lstopo for the topology.

use instep_core::idset::CpuSet;
use instep_core::units::{Bytes, Milli, Nanos, NodeId};
use instep_madehost::{HostSize, HostSpec, MadeHost, VmSpec, Vmm, random, scratch_dir};
use procfs_core::FromRead;
use procfs_core::process::{Schedstat, Stat, Status};
use std::fs;
use std::path::Path;
use std::process::Command;

fn mib(n: u64) -> Bytes {
    Bytes::from_mib(n)
}

#[test]
fn procfs_core_reads_stat_status_and_schedstat_of_every_thread() {
    let mut made = MadeHost::new(HostSpec::new(2, 4).threads(2));
    for (index, vmm) in (0..).zip(Vmm::ALL) {
        let cpus = CpuSet::parse_list("1,3-4").unwrap();
        let vm = VmSpec::new(&format!("vm{index}"), vmm, 4, NodeId(index % 2), mib(512));
        made.push(vm.load(Milli(250)).steal(Milli(100)).pinned(&cpus));
    }
    let dir = scratch_dir().unwrap();
    made.write(dir.path()).unwrap();
    let proc = dir.path().join("proc");
    for vm in &made.vms {
        let pid = proc.join(vm.pid.to_string());
        let process = Stat::from_file(pid.join("stat")).unwrap();
        assert_eq!(process.num_threads as usize, vm.threads(made.uptime).len());
        assert_eq!(process.starttime, 100_000);
        let whole = 4 * 3600 * 100 / 4;
        assert_eq!(process.utime + process.stime, whole, "{}", vm.name);
        for thread in vm.threads(made.uptime) {
            let task = pid.join("task").join(thread.tid.to_string());
            let stat = Stat::from_file(task.join("stat")).unwrap();
            assert_eq!((stat.pid as u32, &stat.comm), (thread.tid.0, &thread.name));
            let status = Status::from_file(task.join("status")).unwrap();
            assert_eq!((status.tgid as u32, status.pid as u32), (vm.pid, thread.tid.0));
        }
        let tid = vm.vcpu_tid(2).to_string();
        let task = pid.join("task").join(&tid);
        let schedstat = Schedstat::from_file(task.join("schedstat")).unwrap();
        assert_eq!(schedstat.sum_exec_runtime, 900_000_000_000);
        assert_eq!(schedstat.run_delay, 360_000_000_000);
        let allowed = Status::from_file(task.join("status")).unwrap().cpus_allowed_list.unwrap();
        assert_eq!(allowed, [(1, 1), (3, 4)]);
    }
}

#[test]
fn procfs_core_reads_every_process_of_random_hosts() {
    for seed in 0..10 {
        let made = random(seed, HostSize { vms: 6, ..HostSize::default() });
        let dir = scratch_dir().unwrap();
        made.write(dir.path()).unwrap();
        for entry in fs::read_dir(dir.path().join("proc")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if let Ok(pid) = name.parse::<i32>() {
                let stat = Stat::from_file(path.join("stat")).unwrap();
                let status = Status::from_file(path.join("status")).unwrap();
                assert_eq!((stat.pid, status.pid), (pid, pid), "seed {seed}");
            }
        }
    }
}

#[test]
fn two_copies_differ_by_the_load_over_the_time_between() {
    let mut made = MadeHost::new(HostSpec::new(1, 2));
    made.push(VmSpec::new("a", Vmm::QemuKvm, 1, NodeId(0), mib(64)).load(Milli(750)));
    let mut late = VmSpec::new("late", Vmm::QemuTcg, 1, NodeId(0), mib(64));
    late.started = Nanos::from_secs(4590);
    made.push(late);
    let dir = scratch_dir().unwrap();
    let [before, after] = ["before", "after"].map(|name| dir.path().join(name));
    made.write_pair(&before, &after, Nanos::from_secs(60)).unwrap();
    let vm = &made.vms[0];
    let run = |copy: &Path| {
        let file = format!("proc/{}/task/{}/schedstat", vm.pid, vm.vcpu_tid(0));
        Schedstat::from_file(copy.join(file)).unwrap().sum_exec_runtime
    };
    assert_eq!(run(&after) - run(&before), 45_000_000_000);
    let late = format!("proc/{}", made.vms[1].pid);
    assert!(!before.join(&late).exists() && after.join(&late).exists());
}

/// How many objects of a kind lstopo sees, or `None` without lstopo.
fn lstopo(dir: &Path, kind: &str) -> Option<usize> {
    let output = Command::new("lstopo")
        .args(["--of", "console", "--only", kind])
        .env("HWLOC_FSROOT", dir)
        .env("HWLOC_THISSYSTEM", "0")
        .env("HWLOC_COMPONENTS", "linux,stop")
        .output()
        .ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).lines().count())
}

#[test]
fn lstopo_counts_what_the_spec_says() {
    let mut modules = HostSpec::new(4, 4).threads(2);
    (modules.modules, modules.packages) = (true, 2);
    let mut hybrid = HostSpec::new(1, 12).threads(2);
    hybrid.efficient_cores_per_node = 8;
    let mut offline = HostSpec::new(2, 4).threads(2).siblings_far();
    offline.offline = CpuSet::parse_list("3,9-11").unwrap();
    let mut chiplets = HostSpec::new(2, 12);
    (chiplets.llcs_per_node, chiplets.node_stride) = (3, 8);
    let mut memory_only = HostSpec::new(1, 4);
    memory_only.memory_only_nodes = 1;
    // Name, host, and the counts of pu, core, l2, l3, numa, package. hwloc takes the halves of a
    // module for cores: they have core_ids of their own.
    let cases = [
        ("far", HostSpec::new(2, 4).threads(2).siblings_far(), [16, 8, 8, 2, 2, 2]),
        ("modules", modules, [32, 32, 16, 4, 4, 2]),
        ("hybrid", hybrid, [16, 12, 6, 1, 1, 1]),
        ("offline", offline, [12, 7, 7, 2, 2, 2]),
        ("chiplets", chiplets, [24, 24, 24, 6, 2, 2]),
        ("memory only", memory_only, [4, 4, 4, 1, 2, 1]),
    ];
    for (name, host, expected) in cases {
        let dir = scratch_dir().unwrap();
        MadeHost::new(host).write(dir.path()).unwrap();
        for (kind, expected) in ["pu", "core", "l2", "l3", "numa", "package"].iter().zip(expected) {
            let Some(count) = lstopo(dir.path(), kind) else {
                instep_madehost::skip::note("lstopo is not installed (package hwloc-nox)");
                return;
            };
            assert_eq!(count, expected, "{kind} of {name}");
        }
    }
}
