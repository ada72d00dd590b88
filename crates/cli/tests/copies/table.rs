//! Cases that an operator judges at a glance, decided as an expert would from copies of /proc and /sys.

use super::*;
use instep_core::idset::{CpuSet, NodeSet};
use std::collections::{BTreeMap, BTreeSet};

/// What `instep plan` says of a host.
fn plan(host: &MadeHost) -> Value {
    let plan = Copies::of(host).both(&["plan", "--json"]).expect(0).json();
    assert_eq!(plan["warnings"], json!([]));
    plan
}

fn cpus(list: &str) -> CpuSet {
    CpuSet::parse_list(list).unwrap()
}

/// The home of each VM: its nodes.
fn homes_of(plan: &Value) -> Vec<String> {
    list(plan, "vms").iter().map(|vm| vm["home_nodes"].to_string()).collect()
}

/// How many VMs each home has.
fn by_home(plan: &Value) -> BTreeMap<String, usize> {
    homes_of(plan).into_iter().fold(BTreeMap::new(), |mut all, home| {
        *all.entry(home).or_default() += 1;
        all
    })
}

/// The CPUs of each action of this kind on a VM.
fn given(plan: &Value, vm: &str, kind: &str) -> Vec<CpuSet> {
    let its = |action: &&Value| action["vm"] == vm && action["kind"] == kind;
    let id = |cpu: &Value| instep_core::units::CpuId(cpu.as_u64().unwrap() as u32);
    let actions = list(plan, "actions").iter().filter(its);
    actions.map(|action| list(action, "cpus").iter().map(id).collect()).collect()
}

/// What each vCPU of a VM may use.
fn of_vcpus(plan: &Value, vm: &str) -> Vec<CpuSet> {
    given(plan, vm, "vcpu_affinity")
}

/// Each move of memory, in order: the VM, to where, and how much in MiB.
fn moves(plan: &Value) -> Vec<(String, String, u64)> {
    let moves = list(plan, "actions").iter().filter(|action| action["kind"] == "move_memory");
    let one = |action: &Value| {
        let mib = action["remote_bytes"].as_u64().unwrap() >> 20;
        (text(action, "vm").to_owned(), action["nodes"].to_string(), mib)
    };
    moves.map(one).collect()
}

/// The four VMs of the demo, of 2 vCPUs and 150 MiB, on 2 nodes of 2 cores of 2 threads.
fn four_vms(nodes: [usize; 4]) -> MadeHost {
    let vms = ["a", "b", "c", "d"].into_iter().zip(nodes).zip([300, 550, 420, 380]);
    let vms = vms.map(|((name, node), load)| {
        let mut mib = [0, 0];
        mib[node] = 150;
        vm(name, 2, load, &mib)
    });
    host(HostSpec::new(2, 2).threads(2), vms)
}

#[test]
fn four_equal_vms_go_two_and_two_wherever_their_memory_lies() {
    for nodes in [[0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]] {
        let plan = plan(&four_vms(nodes));
        assert_eq!(by_home(&plan), [("[0]".into(), 2), ("[1]".into(), 2)].into(), "{nodes:?}");
    }
}

#[test]
fn vm_with_scattered_memory_gets_one_node_and_its_memory_follows() {
    for (nodes, mib) in [(2, vec![2000, 2000]), (4, vec![1000; 4])] {
        let plan = plan(&host(HostSpec::new(nodes, 8), [vm("a", 4, 600, &mib)]));
        let home = homes_of(&plan).remove(0);
        assert!(list(&plan, "vms")[0]["home_node"].is_u64(), "{plan}");
        let away: u64 = mib.iter().sum::<u64>() - mib[0];
        assert_eq!(moves(&plan), [("a".into(), home, away)], "{plan}");
    }
}

#[test]
fn three_vms_with_nearly_even_memory_have_one_home_each() {
    let memory = [("a", [520, 480]), ("b", [550, 450]), ("c", [600, 400])];
    let vms = memory.map(|(name, mib)| vm(name, 4, 600, &mib));
    let plan = plan(&host(HostSpec::new(2, 8), vms));
    assert!(list(&plan, "vms").iter().all(|vm| vm["home_node"].is_u64()), "{plan}");
}

#[test]
fn sixty_vms_on_two_large_nodes_all_have_homes() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    for load in [100, 900] {
        let one = |n: u64| {
            let mib = [n * 977 % 2000, n * 577 % 2000];
            vm(&format!("vm{n}"), 4, load / 2 + n * 31 % (load / 2), &mib)
        };
        let plan = plan(&host(HostSpec::new(2, 64).threads(2), (1..=60).map(one)));
        let count = by_home(&plan);
        assert_eq!(count.len(), 2, "{count:?}");
        assert!(count.values().all(|vms| (24..=36).contains(vms)), "{count:?}");
    }
}

#[test]
fn ten_vms_on_eight_caches_are_each_within_one_or_two() {
    for load in [150, 300, 500] {
        let mut spec = HostSpec::new(1, 64);
        spec.llcs_per_node = 8;
        let vms = (0..10).map(|n| vm(&format!("vm{n}"), 8, load, &[1000]));
        let plan = plan(&host(spec, vms));
        for n in 0..10 {
            let used = of_vcpus(&plan, &format!("vm{n}"));
            let used = used.iter().fold(CpuSet::new(), |all, cpus| all.or(cpus));
            let caches = used.iter().map(|cpu| cpu.0 / 8).collect::<BTreeSet<_>>();
            assert!((1..=2).contains(&caches.len()), "{load}: vm{n} uses {used}");
        }
    }
}

/// Performance cores of two threads are CPUs 0-3, efficiency cores 4-7.
#[test]
fn busy_vm_gets_the_performance_cores_and_idle_ones_do_not() {
    let mut spec = HostSpec::new(1, 6).threads(2);
    spec.efficient_cores_per_node = 4;
    let idle = |name| vm(name, 1, 20, &[500]);
    let vms = [idle("idle1"), idle("idle2"), vm("busy", 2, 900, &[500])];
    let plan = plan(&host(spec, vms));
    let busy = of_vcpus(&plan, "busy");
    assert_eq!(busy.len(), 2, "{plan}");
    assert!(busy.iter().all(|its| its.is_subset(&cpus("0-3"))), "{plan}");
    assert!(!busy[0].intersects(&busy[1]), "a core each: {plan}");
    for name in ["idle1", "idle2"] {
        assert!(of_vcpus(&plan, name).iter().all(|its| !its.is_subset(&cpus("0-3"))), "{plan}");
    }
}

#[test]
fn io_threads_share_the_home_of_their_vm() {
    let vms = (1..=5).map(|n| {
        let mut vm = vm(&format!("vm{n}"), 2, 600, &[1000, 1000]);
        vm.io_threads = 6;
        vm
    });
    let made = host(HostSpec::new(2, 8), vms);
    let plan = plan(&made);
    for (vm, verdict) in made.vms.iter().zip(list(&plan, "vms")) {
        let homes = [cpus("0-7"), cpus("8-15")];
        let home = homes[verdict["home_node"].as_u64().unwrap() as usize].clone();
        let threads = given(&plan, &vm.name, "emulator_affinity");
        // The main thread, two helpers, six I/O threads and one of the kernel.
        assert_eq!(threads, vec![home; 10], "{plan}");
    }
}

/// How many vCPUs are bound to one core on 128 cores, in VMs of four and one of what is left.
fn bound(count: u32, load: u64) -> usize {
    let sizes = (0..count).step_by(4).map(|first| (count - first).min(4));
    let vms = sizes.enumerate().map(|(n, vcpus)| vm(&format!("vm{n}"), vcpus, load, &[100, 100]));
    let plan = plan(&host(HostSpec::new(2, 64), vms));
    let vms = list(&plan, "vms").iter();
    let all = vms.flat_map(|vm| of_vcpus(&plan, text(vm, "name")));
    all.filter(|cpus| cpus.len() == 1).count()
}

#[test]
fn one_vcpu_more_does_not_release_all_others() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    assert_eq!((bound(128, 10), bound(129, 10)), (0, 0), "what rests needs no core of its own");
    assert_eq!(bound(128, 500), 128);
    let beyond = bound(129, 500);
    assert!((120..=128).contains(&beyond), "{beyond}");
}

/// `limited` uses the 20 % of a CPU that its quota leaves it; schedstat counts the time in which it is stopped as
/// waiting in a run queue.
#[test]
fn throttled_time_is_no_demand_and_moves_nothing() {
    let made = |throttled: bool| {
        let mut limited = vm("limited", 2, 100, &[7800]).steal(Milli(800));
        limited.quota = throttled.then_some((Milli(200), Milli(1600)));
        host(HostSpec::new(2, 4), [limited, vm("busy", 2, 850, &[7800])])
    };
    let demanding = plan(&made(false));
    assert_ne!(moves(&demanding), [], "both want all of node 0: {demanding}");
    let copies = Copies::of(&made(true));
    let plan = copies.both(&["plan", "--json"]).expect(0).json();
    assert_eq!(moves(&plan), [], "{plan}");
    let status = copies.both(&["status", "--json"]).expect(0).json();
    let vm = list(&status, "vms").iter().find(|vm| vm["name"] == "limited").unwrap();
    assert!((vm["throttled_cpus"].as_f64().unwrap() - 1.6).abs() < 0.01, "{vm}");
    for vcpu in list(vm, "vcpus") {
        assert!(vcpu["steal"].as_f64().unwrap() < 0.01, "{vm}");
    }
}

/// So many nodes with CPUs, and after them one with memory only, on which most of the VM lies.
fn with_memory_node(nodes: u32) -> MadeHost {
    let mut spec = HostSpec::new(nodes, 4);
    (spec.memory_only_nodes, spec.memory_per_node) = (1, Bytes::from_mib(64 << 10));
    let mut mib = vec![0; nodes as usize + 1];
    (mib[nodes as usize - 1], mib[nodes as usize]) = (1000, 29 << 10);
    host(spec, [vm("a", 2, 900, &mib)])
}

#[test]
fn memory_on_a_node_without_cpus_is_left_to_the_kernel() {
    let copies = Copies::of(&with_memory_node(2));
    let plan = copies.both(&["plan", "--json"]).expect(0).json();
    assert_eq!((homes_of(&plan), moves(&plan)), (vec!["[1]".to_owned()], vec![]), "{plan}");
    let status = copies.both(&["status", "--json"]).expect(0).json();
    assert_eq!(list(&status, "vms")[0]["memory_bytes_by_node"]["2"], 29u64 << 30);
}

#[test]
fn memory_comes_from_a_node_without_cpus_when_that_is_asked_for() {
    for nodes in [1, 2] {
        let copies = Copies::of(&with_memory_node(nodes));
        let file = copies.dir("instep.toml");
        fs::write(&file, "[memory]\nmemory_only_nodes = true\n").unwrap();
        let args = ["plan", "--json", "--config", file.to_str().unwrap()];
        let plan = copies.both(&args).expect(0).json();
        let home = format!("[{}]", nodes - 1);
        assert_eq!(moves(&plan), [("a".into(), home, 29 << 10)], "{plan}");
    }
}

/// `idle` has 200 GiB away from where it may run, `busy` 2 GiB; `idle` has the lower process id.
#[test]
fn memory_that_is_used_most_for_each_byte_comes_home_first() {
    let mut spec = HostSpec::new(2, 16);
    spec.memory_per_node = Bytes::from_mib(512 << 10);
    let mut vms = [vm("idle", 4, 10, &[0, 200 << 10]), vm("busy", 4, 900, &[0, 2 << 10])];
    vms.iter_mut().for_each(|vm| vm.cpuset = Some(cpus("0-15")));
    let plan = plan(&host(spec, vms));
    let to = |name: &str, mib| (name.to_owned(), "[0]".to_owned(), mib);
    assert_eq!(moves(&plan), [to("busy", 2 << 10), to("idle", 200 << 10)], "{plan}");
}

/// Two VMs of equal demand whose memory is bound to node 0, where there are cores for one of them.
#[test]
fn vm_of_greater_weight_keeps_the_better_place() {
    for heavy in [0, 1] {
        let mut vms = ["a", "b"].map(|name| vm(name, 4, 900, &[4000, 0]));
        vms.iter_mut().for_each(|vm| vm.mems = Some(NodeSet::one(NodeId(0))));
        vms[heavy].weight = 1000;
        let plan = plan(&host(HostSpec::new(2, 4), vms));
        assert_eq!(homes_of(&plan)[heavy], "[0]", "{plan}");
        assert_ne!(homes_of(&plan)[1 - heavy], "[0]", "{plan}");
    }
}
