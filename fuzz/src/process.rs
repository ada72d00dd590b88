//! The parsers of /proc: processes, threads, their memory and command lines.

use instep_host::collect::without_secrets;
use instep_host::discover::identify::{self, ByName, Named};
use instep_host::discover::{
    UserMap, Vmm, args, guest, names, numa_maps, proc_text, process, vmm, waits,
};

fn monitors() -> [Vmm; 5] {
    [Vmm::Qemu, Vmm::CloudHypervisor, Vmm::Firecracker, Vmm::Crosvm, Vmm::Other("x".to_owned())]
}

/// stat, schedstat, status, uptime and the host's stat and schedstat.
pub(crate) fn proc_files(data: &[u8]) {
    if let Some(stat) = proc_text::stat(data) {
        assert!(stat.comm.chars().count() <= 64);
        let _ = (stat.is_dead(), stat.is_kernel_thread());
    }
    let _ = proc_text::schedstat(data);
    let _ = proc_text::allowed(data);
    let _ = proc_text::hugetlb_kb(data);
    let _ = proc_text::uptime(data);
    let _ = proc_text::real_uid(data);
    let text = String::from_utf8_lossy(data);
    let _ = waits::of_all_threads(&text);
    let map = UserMap::parse(&text);
    for uid in [0, 999, 1000, u32::MAX] {
        let _ = map.is_ordinary_outside(uid);
    }
    if let Some(ticks) = proc_text::host_ticks(data) {
        assert!(ticks.stolen <= ticks.busy);
        let _ = proc_text::ticks_to_nanos(ticks.busy, 100);
    }
}

/// Command lines, as every monitor reads them.
pub(crate) fn command_lines(data: &[u8]) {
    let arguments = args::split(data);
    let argv0 = arguments.first().map(String::as_str);
    let _ = vmm::by_name(argv0, None);
    let _ = vmm::one_thread_for_all(&arguments);
    assert_eq!(args::split(&without_secrets(data)).len(), arguments.len());
    for monitor in monitors() {
        let _ = vmm::runs_guest(&monitor, &arguments);
        let _ = vmm::accel(&monitor, &arguments);
        let told = guest::describe(&monitor, &arguments);
        if let Some(name) = &told.name {
            assert!(!name.is_empty() && !name.contains(char::is_control));
        }
        for node in &told.nodes {
            assert!(node.vcpus.is_sorted(), "{:?}", node.vcpus);
        }
    }
}

/// Thread names, one a line, and what is made of them.
pub(crate) fn thread_names(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let threads: Vec<Named<'_>> =
        (1..).zip(text.lines().take(300)).map(|(tid, comm)| Named { tid, comm }).collect();
    for monitor in monitors() {
        for thread in &threads {
            let _ = names::role(&monitor, thread.comm);
        }
        if let ByName::Found(vcpus, _) = identify::by_names(&monitor, &threads) {
            assert!(vcpus.is_sorted_by(|a, b| a.0 < b.0), "{vcpus:?}");
        }
    }
    let (_, count) = process::kvm_fds(data.split(|byte| *byte == b'\n'));
    assert!(count as usize <= data.len());
}

/// numa_maps, as a scan reads it.
pub(crate) fn numa_maps(data: &[u8]) {
    let read = numa_maps::parse(data, "numa_maps", false);
    assert!(read.warnings.len() < 6, "{:?}", read.warnings);
    assert!(numa_maps::parse(data, "numa_maps", true).truncated);
}
