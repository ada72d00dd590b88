//! `instep advise` and the answer of numad, on copies of made hosts.

use super::*;

/// Two nodes of four cores and 4 GiB.
fn small_nodes() -> HostSpec {
    HostSpec { memory_per_node: Bytes::from_mib(4096), ..HostSpec::new(2, 4) }
}

/// The same with a VM that is busy on node 0.
fn host_with_a_busy_node() -> MadeHost {
    let spec = small_nodes();
    let mut busy = vm("busy", 4, 900, &[512, 0]);
    let cpus = instep_core::idset::CpuSet::parse_list("0-3").unwrap();
    busy.vcpus.iter_mut().for_each(|vcpu| vcpu.affinity = Some(cpus.clone()));
    host(spec, [busy])
}

#[test]
fn advice_names_the_free_node_and_how_to_start_there() {
    let copies = Copies::of(&host_with_a_busy_node());
    let ran = copies.both(&["advise", "--vcpus", "4", "--memory", "1GiB", "--json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let advice: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((text(&advice, "nodes"), text(&advice, "cpus")), ("1", "4-7"));
    assert!(text(&advice, "why").starts_with("node 1: saves "), "{advice}");
    let words = |key: &str| {
        list(&advice, key).iter().map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(
        words("virsh")
            .iter()
            .any(|line| line.contains("numatune DOMAIN --mode preferred --nodeset 1"))
    );
    assert!(
        words("virt_install").join(" ").contains("--vcpus 4,cpuset=4-7 --memory 1024 --numatune 1")
    );
    assert!(words("qemu").join(" ").contains("taskset -c 4-7 qemu-system-x86_64 -smp 4 -m 1024"));
    let told = copies.both(&["advise", "--vcpus", "4", "--memory", "1GiB"]);
    assert!(told.stdout.starts_with("nodes 1, CPUs 4-7\nnode 1: saves "), "{}", told.stdout);
}

#[test]
fn vms_that_start_together_get_different_nodes() {
    let copies = Copies::of(&host(small_nodes(), []));
    let state = copies.dir("state");
    let advise = |vcpus: &str, memory: &str| {
        let given = ["--state-dir", state.to_str().unwrap(), "--json"];
        let ran =
            copies.one(&[&["advise", "--vcpus", vcpus, "--memory", memory], &given[..]].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let advice: Value = serde_json::from_str(&ran.stdout).unwrap();
        (text(&advice, "nodes").to_owned(), advice["reserved"].as_u64().unwrap())
    };
    assert_eq!(advise("4", "512MiB"), ("0".to_owned(), 0));
    assert_eq!(advise("4", "512MiB"), ("1".to_owned(), 1));
    // Node 0 and node 1 have room left; after this, one of them has none for as much.
    let (third, _) = advise("1", "1GiB");
    let (fourth, reserved) = advise("1", "1GiB");
    assert_eq!(reserved, 3);
    assert_ne!(third, fourth);
    // Without a state directory nothing is kept of a copy.
    let ran = copies.one(&["advise", "--vcpus", "4", "--memory", "1GiB", "--json"]);
    let advice: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(advice["reserved"], 0);
}

#[test]
fn a_device_draws_the_advice_to_its_node() {
    let copies = Copies::of(&host(small_nodes(), []));
    for dir in ["before", "after"] {
        let dir = copies.dir(dir).join("sys/bus/pci/devices/0000:3b:00.0");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("numa_node"), "1\n").unwrap();
    }
    let with = |device: &str| {
        copies.one(&["advise", "--vcpus", "2", "--memory", "1GiB", "--json", "--device", device])
    };
    let ran = with("3b:00.0");
    let advice: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(text(&advice, "nodes"), "1");
    assert_eq!(advice["devices"], json!({ "3b:00.0": 1 }));
    for (bad, why) in
        [("0000:99:00.0", "there is no PCI device"), ("../x", "is no address of a PCI device")]
    {
        let ran = with(bad);
        assert_eq!(ran.code, Some(2), "{bad}");
        assert!(ran.stderr.contains(why), "{}", ran.stderr);
    }
}

#[test]
fn wrong_questions_for_advice_are_refused() {
    let copies = Copies::of(&host(small_nodes(), []));
    for (vcpus, memory, why) in [
        ("0", "1GiB", "is not in 1..=4096"),
        ("many", "1GiB", "invalid"),
        ("2", "16", "sizes look like"),
        ("2", "1TiB", "the host has no room for 1TiB"),
    ] {
        let ran = copies.one(&["advise", "--vcpus", vcpus, "--memory", memory]);
        assert_eq!(ran.code, Some(2), "{vcpus} {memory}: {}", ran.stdout);
        assert!(ran.stderr.contains(why), "{}", ran.stderr);
    }
}

#[test]
fn numad_answers_with_nodes_and_refuses_what_it_does_not_do() {
    let dir = scratch_dir().unwrap();
    let numad = dir.path().join("numad");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_instep"), &numad).unwrap();
    let run = |args: &[&str]| Command::new(&numad).args(args).output().unwrap();
    let answer = run(&["-w", "1:8"]);
    let nodes = String::from_utf8(answer.stdout).unwrap();
    assert_eq!(answer.status.code(), Some(0), "{}", String::from_utf8_lossy(&answer.stderr));
    let nodes = instep_core::idset::NodeSet::parse_list(nodes.trim()).unwrap();
    assert!(!nodes.is_empty());
    for bad in [&["-i", "0"][..], &["-w"], &["-w", "0:1"], &[]] {
        let refused = run(bad);
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0), "{bad:?}");
    }
}
