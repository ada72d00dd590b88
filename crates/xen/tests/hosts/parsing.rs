//! What real Xen hosts printed, read; and what no Xen prints, refused with its line.

use crate::made::{self, captured, copy, node};
use instep_core::conflict::find;
use instep_core::units::{Bytes, CpuId, Nanos, NodeId};
use instep_xen::scan::{Depth, XenScan, scan};
use instep_xen::text::{
    XlSet, config, cpupools, info, list, node_memory, sched, uptime, vcpu_list,
};
use instep_xen::{DomainKey, Error, Source, rates};
use std::fs;
use std::sync::Arc;

fn output(state: &str, name: &str) -> String {
    let path = copy(state).join("xen").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn host_is_read_with_its_nodes() {
    let info = info::parse(&output("two-nodes/six-domains", "xl-info-n")).unwrap();
    assert_eq!((info.version.as_str(), info.scheduler.as_str()), ("4.17.7", "credit2"));
    assert_eq!((info.max_cpu, info.node_count, info.cpus.len()), (Some(7), 2, 8));
    assert_eq!(info.cpus[&5], info::CpuLocation { core: 1, socket: 1, node: 1 });
    let topology = info.topology().unwrap();
    assert_eq!(
        (topology.cores().len(), topology.llcs().len(), topology.packages().len()),
        (8, 2, 2)
    );
    assert_eq!(topology.distance(NodeId(0), NodeId(1)), Some(20));
    assert_eq!(topology.nodes()[1].memory, Bytes::from_mib(3072));
    assert_eq!(topology.warnings(), [] as [String; 0]);
}

#[test]
fn domains_are_read_with_all_columns() {
    let domains = list::parse(&output("two-nodes/six-domains", "xl-list-v-c-n")).unwrap().rows;
    let named: Vec<&str> = domains.iter().map(|domain| domain.name.as_str()).collect();
    assert_eq!(named[..4], ["Domain-0", "one", "two", "four"]);
    let four = &domains[3];
    assert_eq!((four.id, four.memory_mib, four.vcpus), (3, 128, 4));
    assert_eq!(four.pool.as_deref(), Some("Pool-0"));
    assert_eq!(four.nodes, Some(XlSet::These(node(0))));
    assert_eq!(domains[0].nodes, Some(XlSet::All));
    assert!(four.uuid.as_ref().is_some_and(|uuid| uuid.len() == 36));
    assert!(!four.is_ending());
}

/// A shorter `xl list` is the same domains without what it does not show.
#[test]
fn columns_that_are_not_asked_for_are_not_known() {
    let domains = list::parse(&output("two-nodes/six-domains", "xl-list-n")).unwrap().rows;
    assert_eq!(domains[3].nodes, Some(XlSet::These(node(0))));
    assert_eq!((&domains[3].uuid, &domains[3].pool), (&None, &None));
    let domains = list::parse(&output("two-nodes/six-domains", "xl-list-v")).unwrap().rows;
    assert!(domains[3].uuid.is_some() && domains[3].nodes.is_none());
}

#[test]
fn vcpus_have_both_affinities() {
    let vcpus = vcpu_list::parse(&output("four-nodes/partial", "xl-vcpu-list")).unwrap().rows;
    let four: Vec<_> = vcpus.iter().filter(|vcpu| vcpu.domain == 3).collect();
    assert_eq!(four.len(), 4);
    for vcpu in four {
        assert_eq!(vcpu.hard, XlSet::parse("2-5").unwrap());
        assert_eq!(vcpu.soft, XlSet::parse("0-3").unwrap());
        assert!(vcpu.cpu.is_some_and(|cpu| (2..6).contains(&cpu.0)));
    }
    assert!(vcpus.iter().filter(|vcpu| vcpu.domain == 0).all(|vcpu| vcpu.hard == XlSet::All));
}

/// Domain 2 has twice the usual weight, and half a CPU at most.
#[test]
fn weight_and_cap_are_those_of_the_scheduler_in_force() {
    let snapshot = snapshot(&captured("two-nodes/credit"));
    let of =
        |id| snapshot.vm(instep_core::units::VmId(id)).map(|vm| (vm.weight, vm.quota)).unwrap();
    assert_eq!(of(2), (200, Some(instep_core::units::Milli(500))));
    assert_eq!(of(3), (100, None));
}

/// Its configuration says `vcpus`, of `maxvcpus` that it may be given.
#[test]
fn vcpu_that_its_guest_has_not_started_counts_if_it_will() {
    let vcpus = vcpu_list::parse(&output("two-nodes/pools", "xl-vcpu-list")).unwrap().rows;
    assert!(vcpus.iter().any(|vcpu| vcpu.domain == 7 && vcpu.cpu.is_none()));
    let with = |config: &dyn Fn(String) -> String| {
        // As the row of a vCPU that is not started, which is the third of domain 3 here.
        let stop = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["four", "3", "2", ..] => "four 3 2 - --p 18.8 all / 0-3\n".to_owned(),
            _ => format!("{line}\n"),
        };
        let change = |name: &str, text: String| match name {
            "xl-list-l" => config(text),
            "xl-vcpu-list" => text.lines().map(stop).collect(),
            _ => text,
        };
        let scan = made::changed("two-nodes/six-domains", change).unwrap();
        assert_eq!(scan.by_id(3).unwrap().vcpus.len(), 4, "its affinity is known");
        snapshot(&scan).vms.into_iter().find(|vm| vm.name == "four").unwrap().vcpus.len()
    };
    assert_eq!(with(&|text| text), 4);
    assert_eq!(with(&|_| "[]".to_owned()), 3);
}

/// The host was split into a pool for each node after `two words` had been placed on node 1.
#[test]
fn domains_stay_inside_their_pool() {
    let pools = cpupools::parse(&output("two-nodes/pools", "xl-cpupool-list-c")).unwrap().rows;
    assert_eq!(pools["Pool-node1"].to_string(), "4-7");
    let snapshot = snapshot(&captured("two-nodes/pools"));
    let said = |name: &str| {
        let vm = snapshot.vms.iter().find(|vm| vm.name == name).unwrap();
        let its = find(&snapshot).into_iter().filter(|conflict| conflict.vm == vm.id);
        let said: Vec<String> = its.map(|conflict| conflict.kind.to_string()).collect();
        (vm.cpuset.to_string(), vm.allowed().to_string(), said)
    };
    // A hard affinity of all CPUs is one of the pool's.
    assert_eq!(said("two"), ("4-7".to_owned(), "4-7".to_owned(), vec![]));
    let (pool, allowed, conflicts) = said("two words");
    assert_eq!((pool.as_str(), allowed.as_str(), conflicts.len()), ("0-3", "0-3", 2));
    assert!(conflicts[0].contains("is CPUs 4-7, but they may use CPUs 0-3 only"), "{conflicts:?}");
}

/// Taken for one of all CPUs, a domain would be given CPUs of other pools.
#[test]
fn domain_whose_pool_is_not_known_is_not_placed() {
    let placed = |scan: &XenScan| {
        let snapshot = snapshot(scan);
        let why = |id| snapshot.opaque.iter().find(|vm| vm.id.0 == id).map(|vm| vm.why.clone());
        (snapshot.vms.len(), why(1), why(0))
    };
    let pools = "xl-cpupool-list-c";
    let scan = changed(pools, |_| "Name  CPUs\n".to_owned()).unwrap();
    let said = "CPU pools are not known, so that no domain is placed: line 1 of `xl cpupool-list";
    assert!(scan.warnings[0].starts_with(said), "{:?}", scan.warnings);
    let (count, why, dom0) = placed(&scan);
    assert_eq!((count, why.is_some()), (0, true));
    assert!(why.unwrap().starts_with("it is not known which CPUs its CPU pool has"));
    assert!(dom0.unwrap().starts_with("it is the control domain"));
    // One pool was made after the list of pools was read.
    let to_new = |text: String| text.replacen("Pool-0 0\n", "Pool-1 0\n", 1);
    let scan = changed("xl-list-v-c-n", to_new).unwrap();
    let (count, why, _) = placed(&scan);
    assert_eq!((count, why.is_some()), (5, true), "{:?}", scan.warnings);
}

#[test]
fn weights_caps_and_times_are_read() {
    let shares = sched::parse(&output("two-nodes/six-domains", "xl-sched-credit2")).unwrap().rows;
    assert_eq!(shares[&3], sched::Share { weight: 256, cap: 0 });
    // Two pools have two tables.
    let shares = sched::parse(&output("two-nodes/pools", "xl-sched-credit2")).unwrap().rows;
    assert!(shares.len() >= 2, "{shares:?}");
    let times = uptime::parse(&output("two-nodes/six-domains", "xl-uptime")).unwrap().rows;
    assert!(times[&3].0 > 0 && times[&3] < times[&0]);
    let long = uptime::parse("Name  ID Uptime\nmy vm   7 12 days,  1:02:03\n").unwrap().rows;
    assert_eq!(long[&7], Nanos::from_secs(((12 * 24 + 1) * 60 + 2) * 60 + 3));
}

#[test]
fn memory_by_node_is_read_from_the_log() {
    let memory = node_memory::parse(&output("two-nodes/six-domains", "xl-dmesg"));
    assert_eq!(memory[&3][&NodeId(0)], Bytes::from_mib(128));
    assert_eq!(memory[&3][&NodeId(1)], Bytes(0));
    // As Xen 4.18 and newer names domains, and with times before each line.
    let newer = "(XEN) [   12.5] Memory location of each domain:\n(XEN) [   12.6] d7 (total: 256):\n\
                 (XEN) [   12.6]     Node 1: 256\n";
    assert_eq!(node_memory::parse(newer)[&7][&NodeId(1)], Bytes::from_mib(1));
    assert!(node_memory::parse("(XEN) nothing of it").is_empty());
    // What a guest printed is none of it.
    let guest =
        "(d3) Memory location of each domain:\n(d3) d7 (total: 512):\n(d3)     Node 1: 512\n";
    assert_eq!(node_memory::parse(&format!("{newer}{guest}"))[&7][&NodeId(1)], Bytes::from_mib(1));
}

#[test]
fn configurations_tell_the_kind_of_a_domain() {
    let configs = config::parse(&output("two-nodes/six-domains", "xl-list-l")).unwrap().rows;
    assert_eq!(configs[&3].kind, "pv");
    let error = config::parse("[\n{\"domid\": x}]").unwrap_err().to_string();
    assert!(error.starts_with("line 2 of `xl list -l` is `{\"domid\": x}]`"), "{error}");
}

#[test]
fn conflicts_of_a_real_host_are_found() {
    let snapshot = snapshot(&captured("four-nodes/conflict"));
    let of = |name: &str| {
        let vm = snapshot.vms.iter().find(|vm| vm.name == name).unwrap();
        let its = find(&snapshot).into_iter().filter(|conflict| conflict.vm == vm.id);
        its.map(|conflict| conflict.kind.to_string()).collect::<Vec<_>>()
    };
    // libxl placed it on node 1 although its configuration says cpus="0-1".
    assert!(of("fixed")[0].ends_with("they may use CPUs 0-1 only: the scheduler ignores it"));
    assert!(
        of("fixed")[1].starts_with("its node affinity is node 1, so its memory comes from there")
    );
    // All CPUs are preferred, but memory is of another node than the CPUs.
    assert_eq!(of("two").len(), 1);
    assert!(of("two")[0].starts_with("its node affinity is node 2"));
    // As libxl left them.
    assert_eq!((of("one"), of("two words"), of("wait")), (vec![], vec![], vec![]));
    assert_eq!(snapshot.opaque.len(), 1, "dom0 is load: {:?}", snapshot.opaque);
}

/// Hard affinity 2-5 over two nodes, and a soft one of which one node is in it.
#[test]
fn crowding_on_a_real_host_is_found_and_mended() {
    let scan = captured("four-nodes/partial");
    let snapshot = snapshot(&scan);
    let four = snapshot.vms.iter().find(|vm| vm.name == "four").unwrap();
    let found = find(&snapshot).into_iter().find(|conflict| conflict.vm == four.id).unwrap();
    assert_eq!(
        found.kind.to_string(),
        "the soft affinity of 4 vCPUs (0,1,2,3) draws them to CPUs 2-3 and leaves out CPUs 4-5 that they may use"
    );
    assert!(snapshot.vms.iter().any(|vm| vm.name == "two words"), "a name may have blanks");
    let topology = &snapshot.topology;
    assert_eq!(topology.nodes().len(), 4);
    assert_eq!(topology.warnings(), [] as [String; 0]);
}

/// What real commands of Xen 4.17 said.
#[test]
fn ended_domain_is_distinguished_from_other_failures() {
    for (said, is_gone, is_denied) in [
        ("Could not get domain info", true, false),
        ("nosuch is an invalid domain identifier (rc=-6)", true, false),
        ("Error: Domain '4711' does not exist.", true, false),
        (
            "libxl: error: libxl_sched.c:138:libxl_domain_set_nodeaffinity: Domain 999:Setting node affinity: No such process",
            true,
            false,
        ),
        (
            "libxl: error: libxl_sched.c:62:libxl__set_vcpuaffinity: Domain 2:Setting vcpu affinity: Invalid argument; Could not set affinity for vcpu `9'.",
            false,
            false,
        ),
        ("vcpu hard affinity map is empty", false, false),
        (
            "xencall: error: Could not obtain handle on privileged command interface: Permission denied",
            false,
            true,
        ),
        (
            "xencall: error: Could not obtain handle on privileged command interface: No such file or directory",
            false,
            false,
        ),
    ] {
        let (command, status) = ("xl vcpu-pin 9 0 0 0".to_owned(), "status 1".to_owned());
        let error = Error::Failed { command, status, said: said.to_owned() };
        assert_eq!((error.is_gone(), error.is_denied()), (is_gone, is_denied), "{said}");
    }
}

#[test]
fn loads_are_averages_or_those_between_two_copies() {
    let scan = captured("two-nodes/six-domains");
    let one = snapshot(&scan);
    let four = one.vms.iter().find(|vm| vm.name == "four").unwrap();
    assert!(four.busy().0 > 0 && four.steal().0 == 0);
    let mut later = scan.clone();
    later.domains[3].vcpus[0].time.0 += 2_500_000_000;
    let topology = Arc::new(scan.topology().unwrap());
    let window = Nanos::from_secs(10);
    let pair = rates::snapshot(&topology, Some((&scan, window)), &later, |_| Default::default());
    let four = pair.vms.iter().find(|vm| vm.name == "four").unwrap();
    assert_eq!(four.vcpus[0].demand(window).0, 250);
    assert_eq!(four.busy(), Nanos(2_500_000_000));
}

/// Two CPUs of one core, each used half by one vCPU.
#[test]
fn vcpus_on_two_cpus_of_a_core_compete_for_it() {
    let mut before = captured("two-nodes/six-domains");
    for (cpu, place) in &mut before.info.cpus {
        place.core = (cpu % 4) / 2;
    }
    let mut now = before.clone();
    for (domain, cpu) in [(1, 4), (2, 5)] {
        let vcpu = &mut now.domains[domain].vcpus[0];
        (vcpu.cpu, vcpu.time.0) = (Some(CpuId(cpu)), vcpu.time.0 + 5_000_000_000);
    }
    let topology = now.topology().unwrap();
    assert_eq!(topology.cores().len(), 4);
    let window = Some((&before, Nanos::from_secs(10)));
    assert_eq!(rates::competing_modules(&topology, window, &now), 250_000);
    now.domains[2].vcpus[0].cpu = Some(CpuId(6));
    assert_eq!(rates::competing_modules(&topology, window, &now), 0);
}

#[test]
fn domain_that_goes_between_two_commands_is_left_out_and_reported() {
    let scan = changed("xl-vcpu-list", |text| {
        text.lines()
            .filter(|line| !line.starts_with("four"))
            .map(|line| format!("{line}\n"))
            .collect()
    });
    let scan = scan.unwrap();
    assert!(scan.by_id(3).is_none() && scan.by_id(2).is_some());
    assert_eq!(scan.warnings, ["domain 3 (four) went away while the host was read: left out"]);
}

/// Of one domain a row cannot be read: it alone is left out, and the line is named.
#[test]
fn row_that_cannot_be_read_leaves_out_its_domain_only() {
    let whole = captured("two-nodes/six-domains");
    let list = "xl-list-v-c-n";
    let vcpus = "xl-vcpu-list";
    // A name may hold ends of lines, and so rows of other domains.
    let row = "two 2 128 2 -b---- 1.0 011bb239-9cf8-4d94-963a-92376a1b0d16 - - Pool-0 0\nfour";
    let twice = "x\ntwo                2 0 0 -b- 1.0 all / all\nfour  ";
    for (file, from, to, id, said) in [
        (list, "four    ", "", 3, "line 5 of `xl list` is `3   128"),
        (list, " -b----      84.0", " what        84.0", 3, "line 5 of `xl list` is `four"),
        (list, "four    ", row, 2, "domain 2 has several rows in `xl list`"),
        (vcpus, "four    ", "", 3, "line 7 of `xl vcpu-list` is `3     0"),
        (vcpus, "four    ", "x\nfour", 7, "line 7 of `xl vcpu-list` is `x`, which is not"),
        (vcpus, "four    ", twice, 2, "domain 2 (two) has other rows in `xl vcpu-list` than vCPUs"),
    ] {
        let scan = changed(file, |text| text.replacen(from, to, 1)).unwrap();
        let left: Vec<u32> = scan.domains.iter().map(|domain| domain.key.id).collect();
        let all = whole.domains.iter().map(|domain| domain.key.id);
        assert_eq!(left, all.filter(|of| *of != id).collect::<Vec<_>>(), "{to}");
        let key = DomainKey { id, uuid: String::new() };
        assert!(scan.warnings.iter().any(|line| line.starts_with(said)), "{:?}", scan.warnings);
        assert!(scan.may_miss(&key), "{to}: it may be there");
    }
}

#[test]
fn what_is_missing_or_odd_in_a_copy_is_reported() {
    for (file, from, to, said) in [
        ("xl-vcpu-list", "Affinity (Hard / Soft)", "CPU Affinity", "line 1 of `xl vcpu-list`"),
        ("xl-list-v-c-n", "Time(s)", "Zeit(s)", "line 1 of `xl list`"),
        ("xl-list-v-c-n", "-", "_", "line 2 of `xl list`"),
        ("xl-info-n", "xen_version", "xen_number", "which is not a list with xen_version"),
        ("xl-info-n", "cpu_topology", "cpu_tables", "which is not a list with cpu_topology"),
    ] {
        let replace = |text: String| match file {
            "xl-info-n" if from == "cpu_topology" => {
                text.split("cpu_topology").next().unwrap().to_owned()
                    + text.split("numa_info").nth(1).unwrap()
            }
            _ => text.replace(from, to),
        };
        let error = changed(file, replace).unwrap_err().to_string();
        assert!(error.contains(said), "{file}: {error}");
    }
}

#[test]
fn window_of_copies_in_the_wrong_order_is_not_known() {
    let scan = captured("two-nodes/six-domains");
    assert!(rates::window(&scan, &scan, None).is_none());
    assert_eq!(rates::window(&scan, &scan, Some(Nanos::SECOND)), Some(Nanos::SECOND));
}

/// Every captured state can be read.
#[test]
fn every_captured_state_is_read_without_warnings() {
    let mut seen = 0;
    for host in fs::read_dir(copy("")).unwrap().map(|entry| entry.unwrap().path()) {
        let states = host.is_dir().then(|| fs::read_dir(&host).unwrap());
        let states = states.into_iter().flatten().map(|entry| entry.unwrap().path());
        for state in states.filter(|state| state.is_dir()) {
            let scan = scan(&Source::Copy(state.clone()), Depth::Full).unwrap();
            assert_eq!(scan.warnings, [] as [String; 0], "{}", state.display());
            assert!(
                snapshot(&scan)
                    .vms
                    .iter()
                    .all(|vm| vm.vcpus.iter().all(|v| v.cpu != Some(CpuId(99))))
            );
            seen += 1;
        }
    }
    assert!(seen >= 3, "{seen}");
}

fn snapshot(scan: &XenScan) -> instep_core::snapshot::Snapshot {
    rates::snapshot(&Arc::new(scan.topology().unwrap()), None, scan, |_| Default::default())
}

/// The six domains with one output changed.
fn changed(file: &str, change: impl Fn(String) -> String) -> Result<XenScan, Error> {
    let change = |name: &str, text| if name == file { change(text) } else { text };
    made::changed("two-nodes/six-domains", change)
}
