//! No parser panics or runs away on any input, and no scan on any tree.

use super::super::*;
use super::tree::Copy;
use crate::collect::without_secrets;
use proptest::prelude::*;

/// Text made of what the formats are made of, so that it comes near to being right.
fn like_the_real_thing() -> impl Strategy<Value = String> {
    let parts = prop::sample::select(vec![
        "7f00",
        "default",
        "bind:",
        "prefer (many):",
        "N0=",
        "N1=5",
        "kernelpagesize_kB=",
        "4",
        "huge",
        "anon",
        " ",
        "\n",
        "\0",
        ",",
        ",,",
        "=",
        "{",
        "}",
        "\"",
        "[",
        ":",
        "-",
        "-smp",
        "-numa",
        "-name",
        "-object",
        "-append",
        "data",
        "password",
        "://",
        "@",
        "guest=",
        "node",
        "cpus=0-3",
        "memdev=",
        "cpus",
        "sockets=",
        "18446744073709551615",
        "-1",
        "(",
        ")",
        "R",
        "S",
        "0::/",
        "/..",
        "\\x2d",
        "machine-qemu",
        ".scope",
        "cpu ",
        "N",
        "e",
        "qemu-system-x86_64",
        "\u{fffd}",
        "unix:",
        "server",
    ]);
    prop::collection::vec(parts, 0..60).prop_map(|parts| parts.concat())
}

fn all_parsers(text: &str) {
    let bytes = text.as_bytes();
    let _ = proc_text::stat(bytes);
    let _ = proc_text::schedstat(bytes);
    let _ = proc_text::allowed(bytes);
    let _ = proc_text::hugetlb_kb(bytes);
    let _ = proc_text::uptime(bytes);
    let _ = proc_text::host_ticks(bytes);
    let maps = numa_maps::parse(bytes, "f", false);
    assert!(maps.warnings.len() <= 5);
    let _ = numa_stat::parse(text, 4096);
    let member = cgroup::membership(text);
    let _ = cgroup::told_by_path(member.path().unwrap_or(text));
    let _ = cgroup::cgroup_mounts(text);
    let _ = cgroup::unescape(text);
    let _ = debugfs::vm_dir(text);
    let arguments = args::split(bytes);
    let kept = without_secrets(bytes);
    assert_eq!(args::split(&kept).len(), arguments.len());
    let more = format!("{text}\0-object\0secret,id=s,data=hunter2");
    let kept = String::from_utf8(without_secrets(more.as_bytes())).unwrap();
    assert!(kept.contains("secret,id=s,data=removed"), "{kept}");
    let _ = vmm::by_name(arguments.first().map(String::as_str), Some(text));
    for vmm in
        [Vmm::Qemu, Vmm::CloudHypervisor, Vmm::Firecracker, Vmm::Crosvm, Vmm::Other(String::new())]
    {
        let told = guest::describe(&vmm, &arguments);
        assert!(told.smp.cpus >= 1 && told.smp.threads >= 1 && told.smp.max >= told.smp.cpus);
        assert!(told.name.is_none_or(|name| !name.chars().any(char::is_control)));
        let _ = vmm::runs_guest(&vmm, &arguments);
        let _ = vmm::accel(&vmm, &arguments);
        let _ = names::role(&vmm, text);
    }
    let _ = args::keys(text, "x");
    let _ = args::size(text, 1 << 20);
    if let Ok(value) = serde_json::from_str(text) {
        let _ = qmp::cpus(&value);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_parser_panics_on_near_misses(text in like_the_real_thing()) {
        all_parsers(&text);
    }

    #[test]
    fn no_parser_panics_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        all_parsers(&String::from_utf8_lossy(&bytes));
        let _ = proc_text::stat(&bytes);
        let _ = numa_maps::parse(&bytes, "f", true);
        let _ = args::split(&bytes);
    }

    #[test]
    fn numa_maps_sums_what_was_written(
        pages in prop::collection::vec((0u32..4, 0u64..1000), 0..30), cut in 0usize..40,
    ) {
        let lines: Vec<String> = pages
            .iter()
            .map(|(node, pages)| format!("7f000 default N{node}={pages} kernelpagesize_kB=4\n"))
            .collect();
        let sum = |count: usize| pages[..count].iter().map(|(_, pages)| pages * 4096).sum::<u64>();
        let text = lines.concat();
        let end = text.len() - cut.min(text.len());
        let read = numa_maps::parse(&text.as_bytes()[..end], "f", false);
        let whole = text[..end].matches('\n').count();
        prop_assert_eq!(read.by_node.values().map(|bytes| bytes.0).sum::<u64>(), sum(whole));
        prop_assert_eq!(read.truncated, !text[..end].is_empty() && !text[..end].ends_with('\n'));
    }
}

proptest! {
    #![proptest_config(
        ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() }
    )]

    #[test]
    fn no_tree_of_garbage_stops_a_scan(texts in prop::collection::vec(like_the_real_thing(), 10)) {
        let copy = Copy::new();
        copy.process(50, "qemu-system-x86_64 -name a,debug-threads=on -smp 2");
        copy.thread(50, 51, "CPU 0/KVM", (1, 1));
        let files = [
            "proc/50/stat", "proc/50/cgroup", "proc/50/numa_maps", "proc/50/status",
            "proc/50/task/51/schedstat", "proc/50/task/51/status", "proc/uptime", "proc/stat",
            "proc/self/mounts", "sys/fs/cgroup/cpuset.cpus.effective",
        ];
        for (file, text) in files.iter().zip(&texts) {
            copy.write(file, text);
        }
        let scan = copy.scan();
        prop_assert!(scan.vms.len() + scan.opaque.len() <= 1);
    }
}

#[test]
fn a_fifo_in_place_of_a_file_does_not_stop_a_scan() {
    let copy = Copy::new();
    copy.process(50, "qemu-system-x86_64 -name a,debug-threads=on");
    copy.thread(50, 51, "CPU 0/KVM", (1, 1));
    for file in ["proc/50/numa_maps", "proc/50/cgroup", "proc/50/task/51/schedstat"] {
        let _ = std::fs::remove_file(copy.path(file));
        let made = std::process::Command::new("mkfifo").arg(copy.path(file)).status();
        assert!(made.is_ok_and(|status| status.success()));
    }
    assert_eq!(copy.scan().vms.len(), 1);
}
