//! What guests do: adaptive waiting, programs of the library, profiles of their own, machines.

#![cfg(test)]

use instep_check::FactKind;
use instep_sim::engine::Engine;
use instep_sim::report::{SimulatedVm, SimulationReport};
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;

fn report(host: &str, scheduler: &str, guests: &str) -> SimulationReport {
    let text = format!(
        "about = \"x\"\nscheduler = \"{scheduler}\"\nduration = \"400ms\"\nwarmup = \"100ms\"\n\
         [host]\n{host}\n{guests}"
    );
    let scenario = Scenario::parse(&text).unwrap_or_else(|fault| panic!("{fault:?}"));
    let plan = SimulationPlan::new(&scenario, &|_| Err(String::new()));
    plan.unwrap_or_else(|fault| panic!("{fault:?}")).report().unwrap()
}

fn guest(name: &str, vcpus: u32, load: &str) -> String {
    format!("[[guest]]\nname = \"{name}\"\nvcpus = {vcpus}\nmemory = \"1GiB\"\nload = \"{load}\"\n")
}

fn one(scheduler: &str, cpus: u32, load: &str, beside: bool) -> SimulatedVm {
    let other = if beside { guest("b", 4, "spin") } else { String::new() };
    let host = format!("cores = {cpus}\nmemory = \"4GiB\"");
    let found = report(&host, scheduler, &(guest("a", 4, load) + &other));
    found.vms[0].clone()
}

#[test]
fn an_adaptive_barrier_spins_where_siblings_come_soon() {
    let barrier = |kind: &str| {
        format!("instep-load barrier --kind {kind} --phase 20us --imbalance 20% --spin-limit 1ms")
    };
    // Alone, everybody comes within microseconds: nobody sleeps in vain.
    let alone = one("cfs", 4, &barrier("adaptive"), false);
    let blocking = one("cfs", 4, &barrier("block"), false);
    assert!(alone.throughput > 0.95 * blocking.throughput, "{alone:?}");
    assert!(alone.spinning > 0.1 && blocking.spinning == 0.0);
    assert!(alone.waits.sibling_ns < blocking.waits.sibling_ns / 4, "{:?}", alone.waits);
}

#[test]
fn an_adaptive_lock_is_passed_on_without_being_lost() {
    for scheduler in ["cfs", "eevdf", "credit"] {
        let load = "instep-load lock --kind adaptive --hold 5us --think 10us --spin-limit 20us";
        let found = one(scheduler, 2, load, true);
        assert!(found.throughput > 1_000.0, "{scheduler}: {found:?}");
        assert!(found.spinning > 0.0);
    }
}

#[test]
fn throughput_is_that_of_the_first_load() {
    let found = |loads: &str| {
        let guest = guest("a", 4, "spin").replace("\"spin\"", loads);
        report("cores = 4\nmemory = \"4GiB\"", "cfs", &guest).vms[0].clone()
    };
    let (barrier, fib) = ("\"instep-load barrier --phase 1ms\"", "\"instep-load fib 30\"");
    let io = "\"instep-load io --compute 100us --wait 300us\"";
    let lock = "\"instep-load lock --hold 2us --think 20us\"";
    for (loads, unit, most) in [
        (format!("[{barrier}, {fib}]"), "phases", 1_000.0),
        (format!("[{fib}, {barrier}]"), "us of work", 4e6),
        (format!("[\"idle\", {io}, {lock}]"), "requests", 10_500.0),
        (format!("[{io}, \"instep-load ping --period 100us\"]"), "requests", 10_500.0),
    ] {
        let found = found(&loads);
        assert_eq!(found.unit, unit, "{loads}");
        assert!((100.0..most).contains(&found.throughput), "{loads}: {}", found.throughput);
    }
    let with_stages = guest("a", 2, "instep-load barrier --phase 1ms")
        + "[[guest.stage]]\nname = \"x\"\nwork = \"10us\"\n";
    let found = report("cores = 2\nmemory = \"4GiB\"", "cfs", &with_stages).vms[0].clone();
    assert!(found.unit == "phases" && found.throughput < 1_000.0, "{found:?}");
}

#[test]
fn guest_that_is_bound_to_no_node_lies_where_others_leave_memory() {
    let home = "start = { memory_node = 0 }\n";
    let guests = guest("a", 1, "spin").replace("1GiB", "2GiB") + home + &guest("b", 1, "spin");
    let host = "nodes = 2\ncores = 1\nmemory = \"4GiB\"";
    let text = format!("scheduler = \"cfs\"\nduration = \"1ms\"\n[host]\n{host}\n{guests}");
    let plan =
        SimulationPlan::new(&Scenario::parse(&text).unwrap(), &|_| Err(String::new())).unwrap();
    assert_eq!(
        (&plan.setup.vms[0].memory[..], &plan.setup.vms[1].memory[..]),
        (&[1024, 0][..], &[0, 1024][..])
    );
}

#[test]
fn a_machine_of_the_library_has_its_shape() {
    let found = report("machine = \"opteron-6376\"", "credit", &guest("a", 16, "npb/ep"));
    assert_eq!((found.host.cpus, found.machine.as_str()), (32, "opteron-6376"));
    let found =
        report("machine = \"xeon-4-node\"\nmemory = \"8GiB\"", "cfs", &guest("a", 4, "spin"));
    assert_eq!(found.host.cpus, 32);
}

#[test]
fn program_runs_by_its_profile_and_distance_slows_it() {
    let program =
        "[[guest]]\nname = \"a\"\nvcpus = 4\nmemory = \"1GiB\"\nprofile = \"npb/lu-hp\"\n";
    let found = report("machine = \"kvm-4\"", "cfs", program);
    assert_eq!((found.vms[0].unit, found.vms[0].throughput > 100.0), ("phases", true));
    let far = |node: u32| {
        let text = format!(
            "[[guest]]\nname = \"a\"\nvcpus = 1\nmemory = \"1GiB\"\nload = \"spin\"\nallowed = \"0\"\n\
             profile = {{ memory = 500, set = \"8MiB\", mib_s = 1000 }}\nstart = {{ memory_node = {node} }}\n"
        );
        let host = "nodes = 2\ncores = 2\nmemory = \"4GiB\"\nmachine = \"ideal\"\n\
                    numbers.memory.latency = \"100ns\"";
        report(host, "cfs", &text).vms[0].throughput
    };
    // Distance 20: half of the work takes twice as long.
    assert!((far(0) / far(1) - 1.5).abs() < 0.01, "{} {}", far(0), far(1));
}

#[test]
fn types_are_those_of_the_programs_that_stand_for_them() {
    for (program, kind) in [("type-1", 1), ("type-2", 2), ("type-3", 3), ("type-4", 4)] {
        let guests = guest("a", 16, &format!("parsec/{program}"))
            + "[[guest]]\nname = \"b\"\ncount = 3\nvcpus = 16\nmemory = \"1GiB\"\nload = \"spin\"\n";
        let text = format!(
            "about = \"x\"\nscheduler = \"pm\"\nduration = \"2s\"\nwarmup = \"0s\"\n\
             [host]\nmachine = \"kvm-16\"\n{guests}"
        );
        let plan =
            SimulationPlan::new(&Scenario::parse(&text).unwrap(), &|_| Err(String::new())).unwrap();
        assert_eq!(plan.report().unwrap().vms[0].kind, Some(kind), "{program}");
    }
}

#[test]
fn bounds_hold_for_a_program_that_the_model_describes() {
    // Blocking phases of equal work: what the model of Lag was made for.
    let found = report(
        "cores = 4\nmemory = \"4GiB\"\nmachine = \"ideal\"",
        "credit",
        &(guest("a", 4, "instep-load barrier --kind block --phase 5ms") + &guest("b", 4, "spin")),
    );
    let vm = &found.vms[0];
    let lag = vm.lag.as_ref().unwrap();
    assert!((lag.rate - 0.5).abs() < 1e-9);
    assert!(lag.latest_ns >= found.duration_ns * 9 / 10, "{lag:?}");
    assert!(vm.potential.unwrap() > 0.99 && vm.efficiency.unwrap() <= 1.0);
    let charged: u64 = vm.culprits.iter().map(|one| one.ns).sum();
    let steal: u64 = vm.steal_by_vcpu_ns.iter().sum();
    assert_eq!(charged, steal);
    assert!((vm.steal - steal as f64 / found.duration_ns as f64).abs() < 1e-3);
}

#[test]
fn vm_with_fewer_threads_than_vcpus_is_typed_by_its_threads() {
    let kind = |load: &str| {
        let found = report(
            "cores = 16\nmemory = \"4GiB\"",
            "cfs",
            &(guest("a", 16, load) + &guest("b", 16, "spin")),
        );
        found.vms[0].kind
    };
    assert_eq!(kind("instep-load fib 48 --threads 4"), Some(1));
    assert_eq!(kind("instep-load barrier --kind block --phase 500us --threads 4"), Some(3));
    // One of four works at a time.
    assert_eq!(kind("instep-load serial --parallel 0 --sequential 100ms --threads 4"), Some(4));
}

#[test]
fn the_quantum_of_lag_is_the_schedulers() {
    let quantum = |scheduler: &str, cpus: u32| {
        let host = format!("cores = {cpus}\nmemory = \"4GiB\"");
        report(&host, scheduler, &guest("a", 2, "spin")).vms[0].lag.as_ref().unwrap().quantum_ns
    };
    assert_eq!(quantum("credit", 2), 30_000_000);
    assert_eq!(quantum("credit\"\ntuning = { slice = \"10ms\" }\n#\"", 2), 10_000_000);
    assert_eq!((quantum("cfs", 2), quantum("balance", 8)), (1_500_000, 3_000_000));
    assert_eq!(quantum("eevdf", 4), 2_250_000);
    assert_eq!((quantum("strict", 2), quantum("instep", 2)), (6_000_000, 3_000_000));
    assert_eq!(quantum("period", 2), 3_000_000);
}

#[test]
fn spinning_is_no_use_of_a_share() {
    // Four threads work for 1 ms, then one for 3 ms while the others spin: 1.75 CPUs of 4.
    let load = "instep-load serial --parallel 4ms --sequential 3ms --kind spin";
    let found = report(
        "cores = 4\nmemory = \"4GiB\"\nmachine = \"ideal\"",
        "cfs",
        &(guest("a", 4, load) + &guest("b", 4, "spin")),
    );
    let (vm, other) = (&found.vms[0], &found.vms[1]);
    // Its share is 2 CPUs.
    let potential = vm.potential.unwrap();
    assert!((potential - 1.75 / 2.0).abs() < 0.02, "{potential}");
    let used = (vm.cpus - vm.spinning) / 2.0;
    let efficiency = vm.efficiency.unwrap();
    assert!(vm.spinning > 0.3 && efficiency > 0.1, "{vm:?}");
    assert!(efficiency <= used + 0.01, "{efficiency}, used {used}");
    assert!(other.potential.unwrap() > 0.99, "{other:?}");
}

#[test]
fn bounds_know_that_threads_share_vcpus() {
    let found = report(
        "cores = 2\nmemory = \"4GiB\"\nmachine = \"ideal\"",
        "credit",
        &(guest("a", 2, "instep-load fib 48 --threads 16") + &guest("b", 2, "spin")),
    );
    let lag = found.vms[0].lag.as_ref().unwrap();
    // Sixteen threads' work on two vCPUs: the busiest thread alone would mean an eighth.
    assert!(lag.latest_ns >= found.duration_ns * 3 / 4, "{lag:?}");
}

#[test]
fn a_program_of_so_many_rounds_ends_and_says_how_long_it_took() {
    let load = "instep-load barrier --kind block --phase 1ms --rounds 50";
    let host = "cores = 4\nmemory = \"4GiB\"\nmachine = \"ideal\"";
    let found = report(host, "cfs", &(guest("a", 4, load) + &guest("b", 4, "idle")));
    // Threads begin 20 us after each other.
    assert_eq!(found.vms[0].took_ns, Some(50_060_000));
    assert_eq!(found.vms[1].took_ns, None);
    let shared = report(host, "cfs", &(guest("a", 4, load) + &guest("b", 4, "spin")));
    let took = shared.vms[0].took_ns.expect("it ends");
    assert!((70_000_000..200_000_000).contains(&took), "{took}");
    let endless = load.replace(" --rounds 50", "");
    assert_eq!(report(host, "cfs", &guest("a", 4, &endless)).vms[0].took_ns, None);
}

#[test]
fn threads_on_two_nodes_wait_longer_for_each_other_s_cache_lines() {
    let load = "instep-load barrier --kind spin --phase 10us";
    let phases = |allowed: &str, latency: &str| {
        let host = format!(
            "nodes = 2\ncores = 4\nmemory = \"4GiB\"\nmachine = \"ideal\"\n\
             numbers.costs.line = \"100ns\"\nnumbers.memory.latency = \"{latency}\""
        );
        let pinned =
            guest("a", 2, load) + &format!("start = {{ cpus = {allowed}, pinned = true }}\n");
        report(&host, "cfs", &pinned).vms[0].throughput
    };
    let (near, far) = (phases("[[0], [1]]", "100ns"), phases("[[0], [4]]", "100ns"));
    // A line comes and goes once a phase and thread: from the other node each takes 200 ns instead of 100.
    assert!((98_000.0..=99_000.0).contains(&near), "{near}");
    assert!((96_500.0..=97_800.0).contains(&far), "{far}");
    assert_eq!(phases("[[0], [4]]", "0ns"), near);
}

/// Nanoseconds and number of the vCPU of each wake-up.
fn wakes(text: &str) -> Vec<(u64, u32)> {
    let plan =
        SimulationPlan::new(&Scenario::parse(text).unwrap(), &|_| Err(String::new())).unwrap();
    let mut engine = Engine::new(plan.setup.clone(), plan.scheduler());
    engine.watch();
    engine.begin();
    let mut wakes = Vec::new();
    while engine.advance(plan.setup.duration) {
        let woken = engine.facts().filter_map(|fact| match fact.what {
            FactKind::Wake { task, .. } => Some((fact.at, task)),
            _ => None,
        });
        wakes.extend(woken);
    }
    wakes
}

#[test]
fn team_of_openmp_meets_at_barrier_and_dock_and_is_woken_one_by_one() {
    // Three threads work for 1 ms, then meet. They start 20 us after each other, and only futexes cost anything: 10 us. So the
    // third comes last. It has woken the first after 10 us and the second after 20, when it goes to the dock. The first
    // sleeps there by then. The second comes last, wakes the first after another 10 us and the third after 20.
    let guests = guest("a", 3, "instep-load barrier --kind block --phase 1ms --regions 1/1");
    let text = format!(
        "scheduler = \"affinity\"\nduration = \"30ms\"\nwarmup = \"0s\"\n[host]\ncores = 3\nmemory = \"4GiB\"\n\
         machine = \"ideal\"\nnumbers.costs.futex = \"10us\"\n{guests}"
    );
    let all = wakes(&text);
    assert_eq!(all[..3].iter().map(|wake| wake.1).collect::<Vec<_>>(), [0, 1, 2], "all begin");
    let last = all[2].0 + 1_000_000;
    let expected = |region: u64| {
        // From one meeting to the next 1 ms of work, and 40 us until the third thread begins it.
        let last = last + region * 1_040_000;
        [(10, 0), (20, 1), (30, 0), (40, 2)].map(|(us, task)| (last + us * 1000, task))
    };
    assert_eq!(all[3..7], expected(0));
    assert_eq!(all[7..11], expected(1));
    let together = wakes(&text.replace(" --regions 1/1", ""));
    assert_eq!(
        together[3..5],
        [(last, 0), (last, 1)],
        "other programs wake all at once, at no dock"
    );
}

#[test]
fn guest_ticks_take_time_of_running_vcpus_only() {
    let host = |cpus: u32| {
        format!(
            "cores = {cpus}\nmemory = \"4GiB\"\nmachine = \"ideal\"\n\
             numbers.guest = {{ tick = \"4ms\", tick_cost = \"100us\" }}"
        )
    };
    let near = |found: f64, due: f64| (found / due - 1.0).abs() < 0.002;
    // Alone 100 us of each 4 ms are lost.
    let alone = report(&host(1), "credit", &guest("a", 1, "instep-load compute"));
    assert!(near(alone.vms[0].throughput, 975_000.0), "{}", alone.vms[0].throughput);
    // Under the bare machine's scheduler there is no guest.
    let bare = report(&host(1), "pm", &guest("a", 1, "instep-load compute"));
    assert!(near(bare.vms[0].throughput, 1_000_000.0), "{}", bare.vms[0].throughput);
    // Two share a CPU in slices of 30 ms. In each 7 or 8 ticks are due, 7.5 on average, and the first thing is a tick that was
    // missed: 8.5 ticks. So 0.85 ms of 30 are lost.
    let two = guest("a", 1, "instep-load compute") + &guest("b", 1, "instep-load compute");
    let shared = report(&host(1), "credit", &two);
    let sum: f64 = shared.vms.iter().map(|vm| vm.throughput).sum();
    assert!((sum / 1e6 - (1.0 - 0.85 / 30.0)).abs() < 0.0015, "{sum}");
    // A vCPU that sleeps is not woken by ticks: it has the CPU for 100 us of 9.9 ms, and rarely for a tick as well.
    let sleeps = guest("a", 1, "instep-load ping --period 9900us --burst 100us");
    let found = report(&host(1), "credit", &sleeps).vms[0].clone();
    assert!((0.0099..0.0115).contains(&found.cpus), "{}", found.cpus);
}

#[test]
fn vcpus_in_turn_bring_back_what_the_other_took_from_the_cache() {
    // Two vCPUs share a CPU in slices of 30 ms. Each has a set of 512 KiB in a cache of 1 MiB and brings in 100 MiB/s, 3 MiB
    // in a slice: nothing of the other's is left. 8,192 lines of 10 ns are 82 us of each slice.
    let speed = |warmth: bool| {
        let vm = |name| {
            guest(name, 1, "instep-load compute") + "profile = { set = \"512KiB\", mib_s = 100 }\n"
        };
        let host = format!(
            "cores = 1\nmemory = \"4GiB\"\nmachine = \"ideal\"\nnumbers.contention.llc = \"1MiB\"\n\
             numbers.memory = {{ latency = \"100ns\", in_flight_tenths = 100, warmth = {warmth} }}"
        );
        let found = report(&host, "credit", &(vm("a") + &vm("b")));
        found.vms.iter().map(|vm| vm.throughput).sum::<f64>()
    };
    let lost = 1.0 - speed(true) / speed(false);
    assert!((lost / (81_920.0 / 30e6) - 1.0).abs() < 0.15, "{lost}");
}

#[test]
fn neighbour_that_goes_on_running_takes_the_cache_of_a_sleeper() {
    // Beside a vCPU that runs 1 ms of each 20 another computes without a break and brings in 20 MiB meanwhile, through a cache of
    // 1 MiB. So each burst begins with 8,192 lines of 10 ns.
    let cpus = |warmth: bool| {
        let host = format!(
            "cores = 2\nmemory = \"4GiB\"\nmachine = \"ideal\"\nnumbers.contention.llc = \"1MiB\"\n\
             numbers.memory = {{ latency = \"100ns\", in_flight_tenths = 100, warmth = {warmth} }}"
        );
        let sleeper = guest("a", 1, "instep-load ping --period 20ms --burst 1ms")
            + "allowed = \"0\"\nprofile = { set = \"512KiB\", mib_s = 1 }\n";
        let neighbour = guest("b", 1, "instep-load compute")
            + "allowed = \"1\"\nprofile = { set = \"1KiB\", mib_s = 1000 }\n";
        report(&host, "cfs", &(sleeper + &neighbour)).vms[0].cpus
    };
    let more = (cpus(true) - cpus(false)) * 20e6;
    assert!((75_000.0..90_000.0).contains(&more), "{more} ns a burst");
}
