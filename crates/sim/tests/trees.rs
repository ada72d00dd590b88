//! Trees of cgroups under Instep's scheduler: weights at two levels, CPU limits, and VMs that come and go.

#![cfg(test)]
#![allow(missing_docs, reason = "a test")]

use instep_sim::report::SimulationReport;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;

fn plan(text: &str) -> Result<SimulationPlan, String> {
    // The scenarios of bench scale are longer.
    let text = &text.replace("\"4s\"", "\"2s\"").replace("\"5s\"", "\"4s\"");
    let scenario = Scenario::parse(text).map_err(|fault| fault.what)?;
    SimulationPlan::new(&scenario, &|_| Err(String::new()))
        .map_err(|fault| format!("{}: {}", fault.line(text), fault.what))
}

fn report(plan: &SimulationPlan) -> SimulationReport {
    let report = plan.report().expect("nobody stops it");
    assert_eq!(report.failed, None);
    report
}

/// CPUs that VMs whose names begin so had together, and what is due to them.
fn cpus(plan: &SimulationPlan, report: &SimulationReport, name: &str) -> (f64, f64) {
    let due = plan.by_weight();
    let named = report.vms.iter().zip(due).filter(|(vm, _)| vm.name.starts_with(name));
    named.fold((0.0, 0.0), |(had, due), (vm, own)| (had + vm.cpus, due + own))
}

#[track_caller]
fn assert_due(plan: &SimulationPlan, names: &[&str], part: f64) {
    let report = report(plan);
    for name in names {
        let (had, due) = cpus(plan, &report, name);
        assert!((had - due).abs() <= part * due, "{name}: {had:.3} CPUs, {due:.3} are due");
    }
}

macro_rules! scenario {
    ($name:literal) => {
        include_str!(concat!("../../../scenarios/scale/", $name, ".toml"))
    };
}

#[test]
fn shares_follow_weights_on_two_levels_beside_kernel_threads() {
    let text = scenario!("trees-weights").replace("\"$NODES\"", "1");
    let plan = plan(&text.replace("\"32/$NODES\"", "32")).unwrap();
    assert_eq!(plan.by_weight(), [2.0, 6.0, 6.0, 18.0]);
    assert_due(&plan, &["light", "heavy", "service-light", "service-heavy"], 0.03);
}

#[test]
fn threads_of_services_move_to_the_node_where_vms_weigh_less() {
    // Each node has one of the VMs. Without that the light one had 2.28 CPUs and the heavy one 5.31.
    let text = scenario!("trees-weights").replace("\"$NODES\"", "2");
    let plan = plan(&text.replace("\"32/$NODES\"", "16")).unwrap();
    assert_due(&plan, &["light", "heavy", "service-light", "service-heavy"], 0.03);
}

#[test]
fn shares_follow_weights_on_two_levels_within_second_of_loading() {
    // When the scheduler is loaded user space does not know what anybody wants, and it looks at all weights once a second. After
    // 300 ms it looks once more. Without that the lightest VM had 5.4 CPUs here, and the heaviest services 8.5.
    let text = scenario!("trees-weights").replace("\"$NODES\"", "1");
    let text = text.replace("\"32/$NODES\"", "32").replace("\"4s\"", "\"400ms\"");
    let plan = plan(&text.replace("\"5s\"", "\"800ms\"")).unwrap();
    assert_due(&plan, &["light", "heavy", "service-light", "service-heavy"], 0.1);
}

#[test]
fn tiers_of_vms_and_services_have_their_shares_on_two_nodes() {
    let plan = plan(&scenario!("trees-mixed").replace("$LOAD", "spin")).unwrap();
    let wanted = [[4.8; 4], [1.6; 4]].concat();
    assert_eq!(plan.by_weight(), [wanted, vec![1.6, 4.8]].concat());
    assert_due(&plan, &["first", "second", "service-light", "service-heavy"], 0.03);
}

#[test]
fn limits_of_a_process_a_vm_and_a_slice_hold_on_32_cpus() {
    let plan = plan(&scenario!("trees-limits").replace("\"$OTHERS\"", "2")).unwrap();
    assert_eq!(plan.by_weight()[..3], [0.5, 0.75, 0.75]);
    assert_due(&plan, &["limited-process", "limited", "in-slice"], 0.03);
}

#[test]
fn limit_above_two_vms_is_divided_evenly_and_rest_is_the_others() {
    let report = report(&plan(&scenario!("trees-limits").replace("\"$OTHERS\"", "8")).unwrap());
    let of = |name: &str| {
        let own = report.vms.iter().filter(|vm| vm.name.starts_with(name));
        own.map(|vm| vm.cpus).collect::<Vec<f64>>()
    };
    let near = |had: f64, wanted: f64| (had - wanted).abs() < 0.03 * wanted;
    // They had 0.66 to 0.84 of a CPU, and a service that is not limited half as much again as the VMs beside it.
    assert!(of("in-slice").iter().all(|had| near(*had, 0.75)), "{:?}", of("in-slice"));
    let others: f64 = of("others").iter().sum();
    assert!(near(others, (32.0 - 0.2 - 0.5 - 1.5) * 8.0 / 9.0), "{others}");
}

const HOST: &str = "duration = \"3s\"\nwarmup = \"2s\"\n[host]\ncores = 4\nmemory = \"8GiB\"\n";

fn small(scheduler: &str, rest: &str) -> String {
    format!("scheduler = \"{scheduler}\"\n{HOST}{rest}")
}

fn guest(name: &str, more: &str) -> String {
    format!("[[guest]]\nname = \"{name}\"\nvcpus = 4\nmemory = \"1GiB\"\nload = \"spin\"\n{more}\n")
}

#[test]
fn service_of_little_weight_has_no_part_of_gangs_slots() {
    // A VM and a process have 1.5 of 4 CPUs each by their limits, and a service of weight 1 what they leave. It had 1.3.
    let text = "scheduler = \"instep\"\nduration = \"4s\"\nwarmup = \"2s\"\n[host]\ncores = 4\nmemory = \"8GiB\"\n\
        [[cgroup]]\npath = \"plain\"\nquota = \"150ms\"\n[[cgroup]]\npath = \"vm\"\nquota = \"150ms\"\n\
        [[cgroup]]\npath = \"rest\"\nweight = 1\n\
        [[guest]]\nname = \"vm\"\ncgroup = \"vm\"\nvcpus = 2\nmemory = \"1GiB\"\nload = \"spin\"\n\
        [[service]]\nname = \"plain\"\ncgroup = \"plain\"\nthreads = 2\nload = \"spin\"\n\
        [[service]]\nname = \"rest\"\ncgroup = \"rest\"\nthreads = 4\nload = \"spin\"\n";
    let report = report(&plan(text).unwrap());
    for name in ["vm", "plain"] {
        let had = report.vms.iter().find(|vm| vm.name == name).unwrap().cpus;
        assert!((had - 1.5).abs() < 0.05, "{name}: {had}");
    }
}

#[test]
fn idle_cgroup_has_what_others_leave() {
    let idle = "[[cgroup]]\npath = \"low\"\nidle = true\n";
    let rest = [idle, &guest("a", ""), &guest("b", "cgroup = \"low/b\"")].concat();
    let plan = plan(&small("instep", &rest)).unwrap();
    let report = report(&plan);
    assert!(report.vms[0].cpus > 3.8 && report.vms[1].cpus > 0.0, "{:?}", report.vms[1].cpus);
}

#[test]
fn other_schedulers_keep_one_level_and_refuse_more() {
    let service = "[[service]]\nname = \"s\"\nthreads = 4\nweight = 300\nload = \"spin\"\n";
    for scheduler in ["eevdf", "cfs", "instep"] {
        let plan = plan(&small(scheduler, &[service, &guest("a", "")].concat())).unwrap();
        assert_eq!(plan.by_weight(), [1.0, 3.0]);
        assert_due(&plan, &["a", "s"], 0.1);
    }
    let nested = guest("a", "cgroup = \"machine.slice/a\"");
    let limited = ["[[cgroup]]\npath = \"a\"\nquota = \"20ms\"\n", &guest("a", "")].concat();
    let shared = [guest("a", "cgroup = \"both\""), guest("b", "cgroup = \"both\"")].concat();
    for rest in [nested, limited, shared] {
        let refused = plan(&small("eevdf", &rest)).unwrap_err();
        assert!(refused.contains("scheduler eevdf has no cgroups within others"), "{refused}");
        assert!(plan(&small("instep", &rest)).is_ok());
    }
}

#[test]
fn impossible_cgroups_and_lives_are_refused_with_their_line() {
    for (rest, what) in [
        (guest("a", "cgroup = \"/machine\""), "12: guest a: cgroup: \"/machine\" is no path"),
        (
            guest("a", "cgroup = \"m\"\n[[cgroup]]\npath = \"other\""),
            "no guest and no service lies in it",
        ),
        (
            guest("a", "[[cgroup]]\npath = \"a\"\nperiod = \"10ms\""),
            "period and burst need a quota",
        ),
        (guest("a", "[[cgroup]]\npath = \"a\"\nquota = \"10us\""), "10us is not between 1ms"),
        (guest("a", "[[cgroup]]\npath = \"a\"\nidle = true\nweight = 7"), "weight 7: with idle"),
        (
            guest("a", "weight = 7\n[[cgroup]]\npath = \"a\"\nweight = 9"),
            "[[cgroup]] says its weight",
        ),
        (guest("a", "from = \"2s\"\nuntil = \"1s\""), "it goes before it comes"),
        (guest("a", "from = \"9s\""), "comes after the end"),
        (guest("a", "churn_per_minute = 5"), "it needs count"),
    ] {
        let refused = plan(&small("instep", &rest)).unwrap_err();
        assert!(refused.contains(what), "{refused}, and not {what}");
    }
}

#[test]
fn vm_that_comes_and_goes_has_its_share_while_it_exists() {
    // Of two VMs on all CPUs one is there from 2.5 s to 4.5 s, of which user space learns within a second.
    for scheduler in ["instep", "eevdf", "cfs", "credit"] {
        let rest = [guest("stays", ""), guest("comes", "from = \"2500ms\"\nuntil = \"4500ms\"")];
        let plan = plan(&small(scheduler, &rest.concat())).unwrap();
        let report = report(&plan);
        let [stays, comes] =
            [0, 1].map(|vm| (report.vms[vm].lived_ns / 1_000_000, report.vms[vm].cpus));
        assert_eq!((stays.0, comes.0), (3000, 2000), "{scheduler}");
        assert!((comes.1 - 2.0).abs() < 0.3, "{scheduler}: {comes:?}");
        // One second alone, two seconds with half.
        assert!((stays.1 - 8.0 / 3.0).abs() < 0.2, "{scheduler}: {stays:?}");
        let due = plan.by_weight();
        assert!((due[0] - 8.0 / 3.0).abs() < 1e-9 && (due[1] - 2.0).abs() < 1e-9, "{due:?}");
    }
}

#[test]
fn vm_that_comes_to_a_crowded_host_waits_no_longer_than_others() {
    // 13 VMs of 16 vCPUs compute on 32 CPUs, each in a cgroup of its own, when another comes. Its threads are the host's until user
    // space has found it. Weighed by what they wanted until then beside the VM's own weight, it waited for 320 ms.
    let vm = |name: &str, more: &str| {
        let cgroup = format!("cgroup = \"machine.slice/{name}\"\n{more}");
        guest(name, &cgroup).replace("vcpus = 4", "vcpus = 16")
    };
    let rest = [vm("stays", "count = 13"), vm("comes", "from = \"1700ms\"")].concat();
    let text = small("instep", &rest)
        .replace("cores = 4\nmemory = \"8GiB\"", "cores = 32\nmemory = \"64GiB\"");
    let report = report(&plan(&text.replace("warmup = \"2s\"", "warmup = \"500ms\"")).unwrap());
    let longest = report.vms.iter().map(|vm| vm.wait.max_ns / 1_000_000).max().unwrap();
    assert!(longest < 150, "{longest} ms");
}

#[test]
fn vms_that_come_and_go_leave_nothing_running_and_break_no_rule() {
    let mut rest = String::new();
    for (name, load) in [
        ("spins", "instep-load barrier --kind spin --phase 200us"),
        ("blocks", "instep-load barrier --kind block --phase 500us"),
        ("computes", "spin"),
        ("pings", "instep-load ping --period 5ms --burst 300us"),
    ] {
        rest += &format!(
            "[[guest]]\nname = \"{name}\"\ncount = 2\nvcpus = 2\nmemory = \"64MiB\"\n\
             churn_per_minute = 160\nload = \"{load}\"\n"
        );
    }
    for scheduler in ["instep", "eevdf", "cfs", "credit", "strict", "relaxed", "period", "pm"] {
        let text = small(scheduler, &rest).replace("3s", "1s").replace("2s", "500ms");
        let plan = plan(&text).unwrap();
        assert_eq!(plan.check(u64::MAX).finding, None, "{scheduler}");
        let vms = plan.run().vms;
        assert!(vms.len() >= 20, "{scheduler}: {}", vms.len());
        for (name, _, tally) in vms.iter().filter(|vm| vm.2.lived > 100_000_000) {
            assert!(tally.sums.running > 0, "{scheduler}: {name} never ran");
        }
    }
}

#[test]
fn minutes_of_vms_that_come_and_go_break_no_rule() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    // All 24 hours take minutes in a release build: `instep-lab sim day --check`.
    let text = include_str!("../../../scenarios/sim/day.toml");
    let plan = plan(&text.replace("24h", "8m").replace("h\"", "m\"")).unwrap();
    assert_eq!(plan.check(u64::MAX).finding, None);
    assert!(plan.run().vms.len() >= 8);
}
