//! The `instep` binary on copies of made hosts: decisions as by hand, documented JSON, scripts.
#![cfg(test)]

#[path = "copies/advice.rs"]
mod advice;
mod common;
#[path = "copies/rivals.rs"]
mod rivals;
#[path = "copies/settings.rs"]
mod settings;
#[path = "copies/table.rs"]
mod table;

use common::{Ran, instep, list, text};
use instep_core::units::{Bytes, Milli, Nanos, NodeId};
use instep_madehost::{
    Cgroup, Cgroups, GuestNodeSpec, HostSpec, MadeHost, VmSpec, Vmm, scratch_dir,
};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// Two copies of a host, a minute apart.
struct Copies(TempDir);

impl Copies {
    fn of(host: &MadeHost) -> Self {
        let copies = Self(scratch_dir().unwrap());
        let (before, after) = (copies.dir("before"), copies.dir("after"));
        host.write_pair(&before, &after, Nanos::from_secs(60)).unwrap();
        copies
    }

    /// The second copy alone.
    fn of_one(host: &MadeHost) -> Self {
        let copies = Self(scratch_dir().unwrap());
        host.write(&copies.dir("after")).unwrap();
        copies
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A command on the second copy alone.
    fn one(&self, args: &[&str]) -> Ran {
        let after = self.dir("after");
        instep(&[args, &["--root", after.to_str().unwrap()]].concat())
    }

    /// A command on both.
    fn both(&self, args: &[&str]) -> Ran {
        let before = self.dir("before");
        let more = ["--before", before.to_str().unwrap(), "--elapsed", "60s"];
        self.one(&[args, &more].concat())
    }
}

/// A VM with `load` (milli) on every vCPU and memory on the nodes in MiB.
fn vm(name: &str, vcpus: u32, load: u64, memory: &[u64]) -> VmSpec {
    let mut vm = VmSpec::new(name, Vmm::Libvirt, vcpus, NodeId(0), Bytes(0)).load(Milli(load));
    vm.memory.clear();
    for (node, mib) in (0..).zip(memory).filter(|(_, mib)| **mib > 0) {
        vm = vm.memory_on(NodeId(node), Bytes::from_mib(*mib));
    }
    vm
}

fn host(spec: HostSpec, vms: impl IntoIterator<Item = VmSpec>) -> MadeHost {
    let mut host = MadeHost::new(spec);
    for vm in vms {
        host.push(vm);
    }
    host
}

/// What a plan says: per VM its home, `-` where it is left to the kernel.
fn homes(plan: &Value) -> Vec<(String, String)> {
    let home = |vm: &Value| match vm["selected"].as_bool().unwrap() {
        true => vm["home_node"].to_string(),
        false => "-".to_owned(),
    };
    list(plan, "vms").iter().map(|vm| (text(vm, "name").to_owned(), home(vm))).collect()
}

fn named(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, home)| ((*name).to_owned(), (*home).to_owned())).collect()
}

/// The CPUs each vCPU of a VM is to get, in their order.
fn cpus_of<'a>(plan: &'a Value, vm: &str) -> Vec<&'a Value> {
    let its = |action: &&Value| action["vm"] == vm && action["kind"] == "vcpu_affinity";
    list(plan, "actions").iter().filter(its).map(|action| &action["cpus"]).collect()
}

/// Two nodes of 4 cores with 2 threads: CPUs 0-7 and 8-15.
/// Loads: web 6 x 0.9 = 5.4, db 4 x 1.0 = 4.0, ci 4 x 0.5 = 2.0, idle 2 x 0.1 = 0.2; all 11.6,
/// four fifths 9.28.
/// (i) web 5.4, with db 9.4 > 9.28: web and db; ci and idle stay with the kernel.
/// (ii) VR = (6 + 4 + 4 + 2) / 2 = 8 | 8.
/// web (6000 | 2000, mean 4000): candidate 0, 8 >= 6: node 0. VR 2 | 8.
/// db (5000 | 1000, mean 3000): candidate 0, 2 < 4, so the largest VR: node 1. VR 2 | 4.
fn two_nodes() -> MadeHost {
    let vms = [
        vm("web", 6, 900, &[6000, 2000]),
        vm("db", 4, 1000, &[5000, 1000]),
        vm("ci", 4, 500, &[0, 2048]),
        vm("idle", 2, 100, &[512, 0]),
    ];
    host(HostSpec::new(2, 4).threads(2), vms)
}

const TWO_NODES: [(&str, &str); 4] = [("web", "0"), ("db", "1"), ("ci", "-"), ("idle", "-")];

#[test]
fn a_full_candidate_falls_back_to_the_node_with_most_room() {
    let copies = Copies::of(&two_nodes());
    let plan = copies.both(&["plan", "--policy", "bnn", "--json"]).expect(0).json();
    assert_eq!(homes(&plan), named(&TWO_NODES));
    assert_eq!(cpus_of(&plan, "web"), vec![&json!([0, 1, 2, 3, 4, 5, 6, 7]); 6]);
    assert_eq!(cpus_of(&plan, "db"), vec![&json!([8, 9, 10, 11, 12, 13, 14, 15]); 4]);
    let untouched = |action: &&Value| ["ci", "idle"].contains(&text(action, "vm"));
    assert_eq!(list(&plan, "actions").iter().find(untouched), None);
    let moves: Vec<(&str, &Value, &Value)> = list(&plan, "actions")
        .iter()
        .filter(|action| action["kind"] == "move_memory")
        .map(|action| (text(action, "vm"), &action["nodes"], &action["remote_bytes"]))
        .collect();
    let (web, db) = (json!(2000u64 << 20), json!(5000u64 << 20));
    assert_eq!(moves, [("web", &json!([0]), &web), ("db", &json!([1]), &db)]);
    let why: Vec<&str> = list(&plan, "vms").iter().map(|vm| text(vm, "why")).collect();
    assert!(why[0].starts_with("best node 0"), "{why:?}");
    assert!(why[1].contains("node 0 has its memory but no room: node 1 has the most"), "{why:?}");
    assert!(why[2].starts_with("in the last fifth of the load: 2.00 of 11.6"), "{why:?}");
}

/// Rates were the same since each VM started, so one copy tells what two tell.
#[test]
fn one_copy_gives_the_loads_since_each_vm_started() {
    let copies = Copies::of(&two_nodes());
    let plan = copies.one(&["plan", "--policy", "bnn", "--json"]).expect(0).json();
    assert_eq!(homes(&plan), named(&TWO_NODES));
}

#[test]
fn window_that_contradicts_uptimes_is_reported() {
    let copies = Copies::of(&two_nodes());
    let before = copies.dir("before");
    let warnings = |more: &[&str]| {
        let args = ["status", "--json", "--before", before.to_str().unwrap()];
        copies.one(&[&args, more].concat()).expect(0).json()["warnings"].clone()
    };
    assert_eq!(warnings(&["--elapsed", "60s"]), json!([]));
    let told = warnings(&["--elapsed", "6s"]).to_string();
    assert!(told.contains("--elapsed says 6") && told.contains("are 60"), "{told}");
    fs::remove_file(copies.dir("after/proc/uptime")).unwrap();
    assert_eq!(warnings(&["--elapsed", "60s"]), json!([]));
    assert!(warnings(&[]).to_string().contains("relative to the busiest vCPU"));
}

/// Four nodes of 4 cores: CPUs 0-3, 4-7, 8-11, 12-15.
/// Loads: p 4.0, q 3.6, r 3.0, s 2.4, t 0.5; all 13.5, four fifths 10.8.
/// (i) p 4.0, q 7.6, r 10.6 (not more than 10.8), s 13.0: p, q, r, s.
/// (ii) VR = (4 + 4 + 3 + 4 + 1) / 4 = 4 each.
/// p (1 | 1 | 6 | 0 GiB, mean 2): candidate 2, 4 >= 4: node 2. VR 4 | 4 | 0 | 4.
/// q (0 | 5 | 5 | 0, mean 2.5): candidates 1 and 2, larger VR 1: node 1. VR 4 | 0 | 0 | 4.
/// r (0 | 0 | 4 | 0, mean 1): candidate 2, 0 < 3: the largest VR is 0 and 3, with none of its
///   memory on either: the lower, 0. VR 1 | 0 | 0 | 4.
/// s (3 | 3 | 3 | 3, mean 3): none exceeds the mean, no candidate: the largest VR, 3.
#[test]
fn four_nodes_with_two_candidates_and_with_none_are_as_by_hand() {
    let gib = |memory: [u64; 4]| memory.map(|gib| gib << 10);
    let vms = [
        vm("p", 4, 1000, &gib([1, 1, 6, 0])),
        vm("q", 4, 900, &gib([0, 5, 5, 0])),
        vm("r", 3, 1000, &gib([0, 0, 4, 0])),
        vm("s", 4, 600, &gib([3, 3, 3, 3])),
        vm("t", 1, 500, &gib([0, 2, 0, 0])),
    ];
    let copies = Copies::of(&host(HostSpec::new(4, 4), vms));
    let plan = copies.both(&["plan", "--policy", "bnn", "--json"]).expect(0).json();
    let by_hand = [("p", "2"), ("q", "1"), ("r", "0"), ("s", "3"), ("t", "-")];
    assert_eq!(homes(&plan), named(&by_hand));
    assert_eq!(cpus_of(&plan, "r"), vec![&json!([0, 1, 2, 3]); 3]);
    assert_eq!(cpus_of(&plan, "s"), vec![&json!([12, 13, 14, 15]); 4]);
}

/// Loads 4 and 1: four fifths of 5 is 4, and 4 is not more, so both are selected.
/// VR = 5 / 2 = 2.5 | 2.5.
/// big (4 vCPUs; 1000 | 7000, mean 4000): candidate 1, 2.5 < 4: the largest VR is both; more of
///   its memory is on 1: node 1. VR 2.5 | -1.5.
/// small (1 vCPU; 0 | 2000, mean 1000): candidate 1, -1.5 < 1: the largest VR: node 0.
/// A little more load on big, and four fifths are exceeded: small stays with the kernel.
#[test]
fn the_prefix_must_exceed_four_fifths_of_the_load() {
    let vms = [vm("big", 4, 1000, &[1000, 7000]), vm("small", 1, 1000, &[0, 2000])];
    let mut host = host(HostSpec::new(2, 4), vms);
    let decided = |host: &MadeHost| {
        let copies = Copies::of(host);
        homes(&copies.both(&["plan", "--policy", "bnn", "--json"]).expect(0).json())
    };
    assert_eq!(decided(&host), named(&[("big", "1"), ("small", "0")]));
    host.vms[1] = VmSpec { pid: host.vms[1].pid, ..vm("small", 1, 990, &[0, 2000]) };
    assert_eq!(decided(&host), named(&[("big", "1"), ("small", "-")]));
}

/// Checks that `value` has the members of `shape`, of the same kinds; more are allowed.
fn assert_has(value: &Value, shape: &Value) {
    match (value, shape) {
        (Value::Object(members), Value::Object(wanted)) => {
            for (key, shape) in wanted {
                let member = members.get(key).unwrap_or_else(|| panic!("no `{key}` in {value}"));
                assert_has(member, shape);
            }
        }
        (Value::Array(values), Value::Array(wanted)) => {
            assert!(!values.is_empty(), "an empty list shows nothing");
            values.iter().for_each(|value| assert_has(value, &wanted[0]));
        }
        (Value::Number(_), Value::Number(_)) | (Value::Bool(_), Value::Bool(_)) => {}
        (Value::String(text), Value::String(wanted)) => {
            assert!(wanted.is_empty() || text == wanted, "{text} is not {wanted}");
        }
        _ => panic!("{value} is not like {shape}"),
    }
}

/// Two nodes of 4 cores, and a VM of two guest nodes of 4 vCPUs: of the first, 3000 MiB lie on node
/// 0 and 1000 on node 1, of the second 2500 on node 1.
#[test]
fn stray_memory_of_one_guest_node_of_split_vm_comes_to_its_vcpus() {
    let mut large = vm("large", 8, 900, &[3010, 3500]);
    let part = |vcpus: std::ops::Range<u32>, resident: &[(u32, u64)]| GuestNodeSpec {
        vcpus: vcpus.collect(),
        memory: Bytes::from_mib(resident.iter().map(|(_, mib)| mib).sum()),
        resident: resident.iter().map(|(n, mib)| (NodeId(*n), Bytes::from_mib(*mib))).collect(),
    };
    large.guest_nodes = vec![part(0..4, &[(0, 3000), (1, 1000)]), part(4..8, &[(1, 2500)])];
    let copies = Copies::of(&host(HostSpec::new(2, 4), [large]));
    let plan = copies.both(&["plan", "--json"]).expect(0).json();
    let moves: Vec<_> = list(&plan, "actions")
        .iter()
        .filter(|action| action["kind"] == "move_memory")
        .map(|action| (&action["guest_node"], &action["nodes"], &action["remote_bytes"]))
        .collect();
    assert_eq!(moves, [(&json!(0), &json!([0]), &json!(1000u64 << 20))], "{plan}");
    let text = copies.both(&["plan"]).expect(0).stdout;
    assert!(text.contains("* memory of guest node 0: 1000MiB -> node 0"), "{text}");
    let taskset = copies.both(&["plan", "--format", "taskset"]).expect(0).stdout;
    assert!(taskset.contains("# large: left out: memory of guest node 0"), "{taskset}");
    assert!(!taskset.lines().any(|line| line.starts_with("migratepages")), "{taskset}");
}

#[test]
fn json_has_the_documented_members() {
    let copies = Copies::of(&two_nodes());
    let topology = copies.one(&["topology", "--json"]).expect(0).json();
    assert_has(
        &topology,
        &json!({
            "schema": "instep.topology/1",
            "counts": {"cpus": 0, "cores": 0, "clusters": 0, "llcs": 0, "packages": 0, "nodes": 0},
            "cpus": [{"id": 0, "core": 0, "llc": 0, "package": 0, "node": 0}],
            "nodes": [{"id": 0, "memory_bytes": 0, "cpus": [0], "distances": [0]}],
        }),
    );
    assert_eq!(topology["warnings"], json!([]));
    assert_eq!(topology["counts"]["cores"], 8);
    let status = copies.both(&["status", "--json"]).expect(0).json();
    let vcpu = json!({"index": 0, "tid": 0, "cpu": 0, "allowed": [0], "used": 0.0,
        "steal": 0.0});
    let vm = json!({"id": "", "name": "", "pid": 0, "vmm": "qemu", "accel": "kvm", "home_node": 0,
        "vcpus": [vcpu], "memory_bytes_by_node": {}});
    assert_has(&status, &json!({"schema": "instep.status/1", "vms": [vm]}));
    assert_eq!(list(&status, "vms")[0]["memory_bytes_by_node"]["1"], 2000u64 << 20);
    let used = &list(&list(&status, "vms")[0], "vcpus")[0]["used"];
    assert!((used.as_f64().unwrap() - 0.9).abs() < 1e-6, "{used}");
    let bnn = ["plan", "--policy", "bnn"];
    let plan = copies.both(&[&bnn[..], &["--json"]].concat()).expect(0).json();
    let vm = json!({"id": "", "name": "", "selected": true, "why": ""});
    assert_has(&plan["vms"][0], &json!({"home_node": 0}));
    assert_eq!(plan["vms"][3]["home_node"], Value::Null, "left to the kernel");
    let action = json!({"kind": "", "vm": "", "why": ""});
    assert_has(&plan, &json!({"schema": "instep.plan/1", "vms": [vm], "actions": [action]}));
    let vcpu = json!({"kind": "vcpu_affinity", "vcpu": 0, "tid": 0, "cpus": [0]});
    let actions = list(&plan, "actions").iter();
    let vcpus: Vec<&Value> = actions.filter(|a| a["kind"] == "vcpu_affinity").collect();
    assert!(!vcpus.is_empty());
    vcpus.into_iter().for_each(|action| assert_has(action, &vcpu));
    let same = copies.both(&[&bnn[..], &["--format", "json"]].concat()).json();
    assert_eq!(plan, same, "the same in two words");
}

#[test]
fn scripts_are_valid_shell_and_name_every_vcpu() {
    let copies = Copies::of(&two_nodes());
    let script = |format| copies.both(&["plan", "--policy", "bnn", "--format", format]).expect(0);
    let (virsh, taskset) = (script("virsh").stdout, script("taskset").stdout);
    for text in [&virsh, &taskset] {
        let file = copies.dir("script");
        fs::write(&file, text).unwrap();
        assert!(Command::new("sh").arg("-n").arg(&file).status().unwrap().success(), "{text}");
    }
    let [web, db] = ["web", "db"].map(|name| uuid(&copies, name));
    assert_eq!(virsh.matches(&format!("virsh vcpupin {web} ")).count(), 6);
    assert!(virsh.contains(&format!("\nvirsh vcpupin {db} 3 8-15 --live\n")), "{virsh}");
    assert!(!virsh.contains("numatune") && virsh.contains("# web: left out: memory"), "{virsh}");
    let tid = two_nodes().vms[1].vcpu_tid(3);
    assert!(taskset.contains(&format!("\ntaskset --cpu-list --pid 8-15 {tid}\n")), "{taskset}");
    let text = script("text").stdout;
    assert!(text.contains("db: placed, home node 1") && text.contains("8-15"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

/// The UUID of a VM.
fn uuid(copies: &Copies, name: &str) -> String {
    let status = copies.both(&["status", "--json"]).json();
    let vm = list(&status, "vms").iter().find(|vm| vm["name"] == name).unwrap();
    text(vm, "uuid").to_owned()
}

#[test]
fn virsh_script_omits_vms_that_claim_to_be_libvirts() {
    let mut made = two_nodes();
    // A user's own process with the command line of libvirt's VM.
    let cgroup = "/user.slice/user-1000.slice/machine-qemu\\x2d1\\x2dweb.scope";
    made.vms[0].cgroup = Cgroup::Shared(cgroup.to_owned());
    let copies = Copies::of(&made);
    let (claimed, db) = (uuid(&copies, "web"), uuid(&copies, "db"));
    let args = ["plan", "--policy", "bnn", "--format", "virsh"];
    let script = copies.both(&args).expect(0).stdout;
    assert!(!script.contains(&claimed), "{script}");
    assert!(script.contains("# web: left out: no VM of libvirt in machine.slice"), "{script}");
    assert!(script.contains(&format!("virsh vcpupin {db} ")), "{script}");
}

#[test]
fn virsh_script_omits_a_uuid_that_two_vms_have() {
    let made = two_nodes();
    let copies = Copies::of(&made);
    let [web, db] = ["web", "db"].map(|name| uuid(&copies, name));
    for copy in ["before", "after"] {
        let path = copies.dir(copy).join(format!("proc/{}/cmdline", made.vms[0].pid));
        let line = fs::read_to_string(&path).unwrap();
        assert!(line.contains(&web));
        fs::write(&path, line.replace(&web, &db)).unwrap();
    }
    let args = ["plan", "--policy", "bnn", "--format", "virsh"];
    let script = copies.both(&args).expect(0).stdout;
    assert!(!script.contains("virsh vcpupin"), "{script}");
    assert!(script.contains(&format!("another process has its UUID {db}, too")), "{script}");
}

#[test]
fn an_empty_script_says_that_there_is_nothing_to_do() {
    let copies = Copies::of(&two_nodes());
    for format in ["virsh", "taskset"] {
        let script =
            copies.both(&["plan", "--policy", "none", "--format", format]).expect(0).stdout;
        let second = script.lines().nth(1).unwrap_or_default();
        assert!(second.starts_with("# Nothing to do"), "{script}");
        let some = copies.both(&["plan", "--policy", "bnn", "--format", format]).expect(0).stdout;
        assert!(!some.contains("Nothing to do"), "{some}");
    }
}

/// Names as their owners could choose them, and what is left of them.
const HOSTILE: [(&str, &str); 7] = [
    ("two\nlines: placed", "two?lines: placed"),
    ("\u{1b}[2J\u{1b}]0;mine\u{7}", "?[2J?]0;mine?"),
    ("c1\u{9b}31m", "c1?31m"),
    ("back\u{202e}wards", "back?wards"),
    ("it's \"quoted\"", "it's \"quoted\""),
    ("$(reboot) `id`; rm -rf /", "$(reboot) `id`; rm -rf /"),
    ("--all", "--all"),
];

/// A host whose VMs have those names: each in place of a harmless one of its own.
fn hostile() -> Copies {
    let vms = (0..HOSTILE.len()).map(|n| vm(&format!("harmless{n}"), 2, 600, &[1000, 200]));
    let made = host(HostSpec::new(2, 8), vms);
    let copies = Copies::of(&made);
    for (vm, (name, _)) in made.vms.iter().zip(HOSTILE) {
        for copy in ["before", "after"] {
            let path = copies.dir(copy).join(format!("proc/{}/cmdline", vm.pid));
            let line = String::from_utf8(fs::read(&path).unwrap()).unwrap();
            let name = name.replace(',', ",,");
            let replaced = line.replace(&format!("guest={}", vm.name), &format!("guest={name}"));
            assert_ne!(line, replaced);
            fs::write(&path, replaced).unwrap();
        }
    }
    copies
}

#[test]
fn a_hostile_name_is_harmless_in_text_and_the_same_in_json() {
    let copies = hostile();
    for command in ["status", "plan"] {
        let told = copies.both(&[command, "--json"]).expect(0).json();
        let names: Vec<&str> = list(&told, "vms").iter().map(|vm| text(vm, "name")).collect();
        assert_eq!(names, HOSTILE.map(|(_, shown)| shown));
    }
    for args in [&["status"][..], &["status", "--vcpus"], &["plan"], &["plan", "--policy", "bind"]]
    {
        let ran = copies.both(args);
        for shown in [&ran.stdout, &ran.stderr] {
            let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!shown.contains(bad), "{shown:?}");
            assert!(!shown.lines().any(|line| line.starts_with("lines:")), "{shown}");
        }
        for (_, shown) in HOSTILE {
            assert!(ran.stdout.contains(shown), "no `{shown}`:\n{}", ran.all());
        }
    }
}

/// Runs the script with a `virsh` that writes down its domain.
#[test]
fn a_hostile_name_stands_in_comments_only_and_virsh_gets_uuids() {
    let copies = hostile();
    let script = copies.both(&["plan", "--policy", "bind", "--format", "virsh"]).expect(0).stdout;
    let bin = copies.dir("bin");
    fs::create_dir(&bin).unwrap();
    let heard = copies.dir("heard");
    let fake = format!("#!/bin/sh\nprintf '%s\\n' \"$2\" >>'{}'\n", heard.display());
    fs::write(bin.join("virsh"), fake).unwrap();
    fs::write(copies.dir("script"), &script).unwrap();
    let path = std::env::var("PATH").unwrap();
    let run = format!(
        "chmod +x '{0}/virsh' && PATH='{0}':$PATH sh '{1}'",
        bin.display(),
        copies.dir("script").display()
    );
    let ran = Command::new("sh").arg("-c").arg(run).env("PATH", path).output().unwrap();
    assert!(ran.status.success(), "{ran:?}\n{script}");
    let mut domains: Vec<String> =
        fs::read_to_string(&heard).unwrap().lines().map(str::to_owned).collect();
    domains.dedup();
    assert_eq!(domains, HOSTILE.map(|(_, shown)| uuid(&copies, shown)));
    assert!(!script.contains(|c: char| (c.is_control() && c != '\n') || c == '\u{202e}'));
    for line in script.lines() {
        let known = ["# ", "#!", "set -eu", "virsh "].iter().any(|start| line.starts_with(start));
        assert!(known, "{line}");
    }
    let taskset = copies.both(&["plan", "--policy", "bind", "--format", "taskset"]).expect(0);
    assert!(taskset.stdout.lines().all(|line| !line.starts_with("lines")), "{}", taskset.stdout);
}

#[test]
fn a_conflict_makes_status_a_finding_and_a_plan_none() {
    let crowded = vm("crowded", 2, 300, &[1000, 0]);
    let one = instep_core::idset::CpuSet::parse_list("3").unwrap();
    let fine = Copies::of(&host(HostSpec::new(2, 4), [crowded.clone()]));
    fine.both(&["status"]).expect(0);
    let copies = Copies::of(&host(HostSpec::new(2, 4), [crowded.pinned(&one)]));
    let found = copies.both(&["status"]).expect(1);
    let said = "CONFLICT 2 vCPUs (0,1) may use only CPU 3 while";
    assert!(found.stdout.contains(said), "{}", found.all());
    assert!(found.stdout.contains("1 conflict found; `instep plan --mend-conflicts`"));
    let told = copies.both(&["status", "--json"]).expect(1).json();
    assert_eq!(list(&told, "conflicts")[0]["kind"], "vcpus_share_cpus");
    let left = copies.both(&["plan", "--json"]).expect(0).json();
    assert!(list(&left, "actions").is_empty(), "an operator's pinning is left alone: {left}");
    let mend = ["plan", "--mend-conflicts", "--include-pinned", "--json"];
    assert!(!list(&copies.both(&mend).expect(0).json(), "actions").is_empty());
}

#[test]
fn conflict_of_vm_that_does_not_count_is_shown_and_is_no_finding() {
    let one = instep_core::idset::CpuSet::parse_list("3").unwrap();
    let made = host(HostSpec::new(1, 4), [vm("web", 2, 300, &[64]).pinned(&one)]);
    let copies = Copies::of(&made);
    let process = copies.dir("after").join(format!("proc/{}", made.vms[0].pid));
    let cgroup = fs::read_to_string(process.join("cgroup")).unwrap();
    made.give_to_user(&copies.dir("after"), 0, (4321, "/user.slice/user-4321.slice")).unwrap();
    let shown = copies.both(&["status"]).expect(0);
    assert!(shown.stdout.contains("conflict, not counted: 2 vCPUs"), "{}", shown.stdout);
    assert!(shown.stdout.contains("left alone: user 4321"), "{}", shown.stdout);
    assert!(!shown.stdout.contains("1 conflict found"), "{}", shown.stdout);
    let told = copies.both(&["status", "--json"]).expect(0).json();
    assert_eq!(list(&told, "conflicts")[0]["counts"], false);
    assert!(text(&list(&told, "vms")[0], "left_alone").contains("user 4321"), "{told}");
    // It is a finding where the configuration makes it count, and where root put it.
    let config = copies.dir("instep.toml");
    fs::write(&config, "[discover]\nusers = [\"4321\"]\n").unwrap();
    let found = copies.both(&["status", "--config", config.to_str().unwrap()]).expect(1);
    assert!(found.stdout.contains("1 conflict found"), "{}", found.stdout);
    fs::write(process.join("cgroup"), cgroup).unwrap();
    copies.both(&["status"]).expect(1);
}

#[test]
fn a_status_of_hundreds_of_vms_has_a_line_for_each() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    let name = |n: u32| format!("tenant-with-a-rather-long-name-{n:03}");
    let vms = (0..300).map(|n| vm(&name(n), 2 + n % 3, 300, &[2048, 512]).steal(Milli(20)));
    let copies = Copies::of(&host(HostSpec::new(2, 16).threads(2), vms));
    for (args, most) in
        [(&["status"][..], 320), (&["plan"], 1000), (&["plan", "--policy", "bnn"], 750)]
    {
        let text = copies.both(args).expect(0).stdout;
        assert!(text.lines().count() <= most, "{} lines", text.lines().count());
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!((0..300).all(|n| text.contains(&format!("-{n:03}"))));
    }
    let all = copies.both(&["status", "--vcpus"]).expect(0).stdout;
    assert!(all.lines().count() > 900);
}

#[test]
fn what_a_quota_keeps_from_a_vm_is_shown_apart_from_steal() {
    for cgroups in [Cgroups::V2, Cgroups::V1] {
        let mut limited = vm("limited", 2, 100, &[2048]).steal(Milli(900));
        limited.quota = Some((Milli(200), Milli(1_600)));
        let mut host = host(HostSpec::new(1, 4), [limited, vm("free", 2, 300, &[2048])]);
        host.cgroups = cgroups;
        let copies = Copies::of(&host);
        let status = copies.both(&["status", "--json"]).expect(0).json();
        let of = |name: &str| list(&status, "vms").iter().find(|vm| vm["name"] == name).unwrap();
        let cpus = |vm: &Value, key: &str| vm[key].as_f64().unwrap();
        let vm = of("limited");
        assert_eq!(cpus(vm, "quota_cpus"), 0.2, "{cgroups:?}");
        assert!((cpus(vm, "throttled_cpus") - 1.6).abs() < 0.01, "{vm}");
        let steal: f64 = list(vm, "vcpus").iter().map(|vcpu| cpus(vcpu, "steal")).sum();
        assert!((steal - 0.2).abs() < 0.02, "{vm}");
        assert_eq!(
            (of("free")["quota_cpus"].clone(), cpus(of("free"), "throttled_cpus")),
            (Value::Null, 0.0)
        );
        let said = |args: &[&str]| {
            let text = copies.both(args).expect(0).stdout;
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let shown = said(&["status"]);
        assert!(shown.contains("steal 0.20 CPUs, throttled 1.60 CPUs by its quota of 0.20 CPUs"));
        let planned = said(&["plan"]);
        assert!(planned.contains("its quota of 0.20 CPUs throttles it: it wanted 1.60 CPUs more"));
        assert_eq!(planned.matches("throttles it").count(), 1, "{planned}");
    }
}

#[test]
fn host_without_vms_lists_what_was_sought_and_names_the_demo() {
    let copies = Copies::of(&MadeHost::new(HostSpec::new(1, 2)));
    let none = copies.both(&["status"]).expect(0);
    for word in ["No VM", "instep demo"] {
        assert!(none.stdout.contains(word), "{}", none.all());
    }
    let plan = copies.both(&["plan", "--json"]).expect(0).json();
    assert_eq!((&plan["vms"], &plan["actions"]), (&json!([]), &json!([])));
}

#[test]
fn a_name_that_no_vm_has_is_refused() {
    let copies = Copies::of(&two_nodes());
    let refused = copies.both(&["plan", "--vm", "web", "--vm", "wbe", "--json"]).expect(2);
    let refused = refused.says(&["no VM is called `wbe`", "instep status"]);
    assert_eq!(refused.stdout, "");
}
