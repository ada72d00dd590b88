//! Instep's scheduler in the simulator does what it does in the lab (docs/performance.md): the same cases,
//! the same direction. And runs of it share nothing.

#![allow(missing_docs, reason = "a test")]
#![expect(clippy::unwrap_used, reason = "all of this is a test, which fails by a panic")]

use instep_check::Promises;
use instep_sim::check::check;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;
use instep_sim::sched::{self, TunedValue};
use instep_sim::swarm::Swarm;
use rayon::prelude::*;

/// The plan of a scenario that is one.
fn planned(text: &str) -> SimulationPlan {
    SimulationPlan::new(&Scenario::parse(text).unwrap(), &|_| Err(String::new())).unwrap()
}

/// Two CPUs, a VM of two threads with this load, and as many neighbours that compute as leave it
/// this share, per cent; all weights equal.
fn plan(scheduler: &str, load: &str, share: u32, seed: u64) -> SimulationPlan {
    let neighbours = 100 / share - 1;
    let text = format!(
        "about = \"it\"\nseed = {seed}\nscheduler = \"{scheduler}\"\nduration = \"2s\"\n\
         warmup = \"500ms\"\n[host]\ncores = 2\nmemory = \"8GiB\"\n\
         [[guest]]\nname = \"a\"\nvcpus = 2\nmemory = \"1GiB\"\nload = \"{load}\"\n\
         [[guest]]\nname = \"n\"\ncount = {neighbours}\nvcpus = 2\nmemory = \"1GiB\"\nload = \"spin\"\n"
    );
    planned(&text)
}

/// The VM's fair-share speed: the median of three seeds.
fn speed(scheduler: &str, load: &str, share: u32) -> f64 {
    let one = |seed| {
        let report = plan(scheduler, load, share, seed).report().unwrap();
        report.vms[0].fair_share_speed.unwrap()
    };
    let mut all: Vec<f64> = (1..4u64).into_par_iter().map(one).collect();
    all.sort_by(f64::total_cmp);
    all[1]
}

const SPIN: &str = "instep-load barrier --kind spin --phase 100us";

#[test]
fn spinning_vm_has_its_fair_share_speed() {
    for share in [50, 25] {
        let (instep, eevdf) = (speed("instep", SPIN, share), speed("eevdf", SPIN, share));
        println!("spin 100us at {share} %: instep {instep:.2}, eevdf {eevdf:.2}");
        assert!(instep >= 0.85, "{share} %: {instep}");
        assert!(eevdf < 0.6 * instep, "{share} %: {eevdf} beside {instep}");
    }
}

#[test]
fn a_vm_of_many_vcpus_leaves_one_of_few_its_share() {
    for cpus in [2, 8] {
        let text = format!(
            "about = \"it\"\nscheduler = \"instep\"\nduration = \"6s\"\nwarmup = \"1s\"\n\
             [host]\ncores = {cpus}\nmemory = \"8GiB\"\n\
             [[guest]]\nname = \"many\"\nvcpus = {}\nmemory = \"1GiB\"\nload = \"spin\"\n\
             [[guest]]\nname = \"few\"\nvcpus = {cpus}\nmemory = \"1GiB\"\nload = \"spin\"\n",
            60 * cpus
        );
        let plan = planned(&text);
        let report = plan.report().unwrap();
        for vm in &report.vms {
            let speed = vm.fair_share_speed.unwrap();
            assert!((0.93..1.07).contains(&speed), "{} on {cpus} CPUs: {speed}", vm.name);
        }
    }
}

#[test]
fn gangs_that_have_the_same_domains_share_them_evenly() {
    // Two of three lie in the same two domains. Each was ahead of the other in one of them, so that neither was due.
    let text = "about = \"it\"\nseed = 1\nscheduler = \"instep\"\nduration = \"1s\"\nwarmup = \"1s\"\n\
        [host]\nnodes = 4\ncores = 8\nmemory = \"64GiB\"\n\
        [[guest]]\nname = \"vm\"\ncount = 3\nvcpus = 16\nmemory = \"8GiB\"\nload = \"spin\"\n";
    for seed in [1, 2] {
        let text = text.replace("seed = 1", &format!("seed = {seed}"));
        let mut cpus: Vec<f64> =
            planned(&text).report().unwrap().vms.iter().map(|vm| vm.cpus).collect();
        cpus.sort_by(f64::total_cmp);
        assert!(cpus[0] > 7.2 && cpus[1] < 8.8 && cpus[2] > 15.0, "seed {seed}: {cpus:?}");
    }
}

/// 16 CPUs with 184 vCPUs of equal weight. Two VMs wake up every 5 ms and want nearly their share.
fn crowded() -> String {
    let guest = |name: &str, count: u32, vcpus: u32, load: &str| {
        format!(
            "[[guest]]\nname = \"{name}\"\ncount = {count}\nvcpus = {vcpus}\nweight = {}\nmemory = \"1GiB\"\nload = \"{load}\"\n",
            50 * vcpus
        )
    };
    format!(
        "about = \"it\"\nscheduler = \"instep\"\nduration = \"2s\"\nwarmup = \"3s\"\n[host]\ncores = 16\nmemory = \"64GiB\"\n{}{}{}{}",
        guest("spins", 6, 8, "instep-load barrier --kind spin --phase 200us --imbalance 10%"),
        guest("blocks", 7, 8, "instep-load barrier --kind block --phase 500us --imbalance 10%"),
        guest("computes", 6, 8, "spin"),
        guest("pings", 2, 16, "instep-load ping --period 5ms --burst 350us"),
    )
}

#[test]
fn vm_that_leaves_some_of_its_share_does_not_hold_clock_back() {
    for vm in planned(&crowded()).report().unwrap().vms {
        // VMs that spin lose time to wake-ups of the others, and no CPU time.
        if vm.name.starts_with("pings") {
            assert!(vm.fair_share_speed.unwrap() > 0.93, "{}", vm.name);
        } else {
            let fair = vm.fair_share.unwrap() * 8.0;
            assert!(vm.cpus > 0.93 * fair, "{}: {} of {fair} CPUs", vm.name, vm.cpus);
        }
    }
}

#[test]
fn vm_that_mostly_sleeps_is_not_late_beside_gangs_that_are_many() {
    // 17 gangs of 8 on 16 CPUs: each has its turn every 51 ms and more, and is not overdue before.
    let text = "about = \"it\"\nscheduler = \"instep\"\nduration = \"2s\"\nwarmup = \"3s\"\n[host]\ncores = 16\nmemory = \"64GiB\"\n\
        [[guest]]\nname = \"computes\"\ncount = 17\nvcpus = 8\nweight = 400\nmemory = \"1GiB\"\nload = \"spin\"\n\
        [[guest]]\nname = \"pings\"\ncount = 5\nvcpus = 8\nweight = 400\nmemory = \"1GiB\"\n\
        load = \"instep-load ping --period 5ms --burst 300us\"\n";
    for vm in planned(text).report().unwrap().vms {
        let speed = vm.fair_share_speed.unwrap();
        assert!(speed > 0.9, "{}: {speed}", vm.name);
    }
}

#[test]
fn it_is_co_scheduling_that_does_it() {
    let with = |off: u64| {
        let mut plan = plan("instep", SPIN, 25, 1);
        (0..off).for_each(|_| {
            _ = plan.tuning.insert("without.gang".to_owned(), TunedValue::Switch(true))
        });
        plan.report().unwrap().vms[0].fair_share_speed.unwrap()
    };
    let (on, off) = (with(0), with(1));
    println!("spin 100us at 25 %: with co-scheduling {on:.2}, without {off:.2}");
    assert!(off < on - 0.15, "{on} with, {off} without");
}

#[test]
fn blocking_vm_is_no_slower_than_under_the_default() {
    for (load, least) in [
        ("instep-load barrier --kind block --phase 1ms", 0.95),
        ("instep-load barrier --kind block --phase 100us", 0.85),
        ("instep-load compute", 0.97),
    ] {
        let (instep, eevdf) = (speed("instep", load, 50), speed("eevdf", load, 50));
        println!("{load}: instep {instep:.2}, eevdf {eevdf:.2}");
        assert!(instep >= least * eevdf, "{load}: {instep} beside {eevdf}");
    }
}

#[test]
fn weights_divide_the_host() {
    let mut plan = plan("instep", "spin", 50, 1);
    plan.setup.vms[0].weight = 500;
    let outcome = plan.run();
    let ran = |vm: usize| outcome.vms[vm].2.sums.running as f64;
    let part = ran(0) / (ran(0) + ran(1));
    assert!((part - 5.0 / 6.0).abs() < 0.03, "{part}");
}

#[test]
fn runs_side_by_side_are_as_runs_one_by_one() {
    let json = |seed: u64| {
        let load = ["spin", SPIN, "instep-load lock --hold 20us --think 40us"][seed as usize % 3];
        let report = plan("instep", load, 50, seed).report().unwrap();
        serde_json::to_string(&report).unwrap()
    };
    let alone: Vec<String> = (0..6).map(json).collect();
    let together: Vec<String> = (0..6u64).into_par_iter().map(json).collect();
    assert_eq!(alone, together);
}

#[test]
fn it_keeps_what_it_promises_and_is_never_thrown_out() {
    for load in [SPIN, "instep-load lock --kind kernel-spin --hold 20us --think 40us", "spin"] {
        let plan = plan("instep", load, 25, 7);
        let promises = plan.scheduler().promises();
        let checked = check(&plan.setup, plan.scheduler(), &promises, u64::MAX);
        assert_eq!(checked.finding, None, "{load}");
    }
}

#[test]
fn a_host_beyond_its_tables_is_refused() {
    let text = "about = \"it\"\nscheduler = \"instep\"\nduration = \"1s\"\n[host]\nnodes = 4\n\
                cores = 300\nmemory = \"64GiB\"\n[[guest]]\nname = \"a\"\nvcpus = 2\n\
                memory = \"1GiB\"\n";
    let fault =
        SimulationPlan::new(&Scenario::parse(text).unwrap(), &|_| Err(String::new())).unwrap_err();
    assert!(fault.what.contains("at most 1024 CPUs"), "{}", fault.what);
    let small = "about = \"it\"\nscheduler = \"instep\"\nduration = \"1s\"\n[host]\ncores = 2\n\
                 memory = \"64GiB\"\n[[guest]]\nname = \"a\"\nvcpus = 513\nmemory = \"1GiB\"\n";
    let fault =
        SimulationPlan::new(&Scenario::parse(small).unwrap(), &|_| Err(String::new())).unwrap_err();
    assert!(fault.what.contains("513") || fault.what.contains("512 of one VM"), "{}", fault.what);
    assert!(sched::NAMES.contains(&"instep"));
}

#[test]
fn all_vcpus_of_a_vm_that_is_ahead_get_their_turn() {
    let text = include_str!("../../../scenarios/sim/ahead.toml");
    let plan = planned(text);
    let promises = Promises { turn: Some(30_000_000), ..plan.scheduler().promises() };
    let checked = check(&plan.setup, plan.scheduler(), &promises, u64::MAX);
    assert_eq!(checked.finding, None);
}

#[test]
fn a_thread_of_the_host_where_none_has_run_yet_gets_its_turn() {
    let text = "about = \"found by a swarm\"\nseed = 125742957\nscheduler = \"instep\"\n\
                duration = \"1693ms\"\nwarmup = \"0s\"\n\
                [host]\ncores = 3\nthreads = 2\nmemory = \"64GiB\"\nnoise = true\n\
                [[guest]]\nname = \"g0\"\nvcpus = 3\nmemory = \"1GiB\"\nload = \"spin\"\n\
                [[guest]]\nname = \"g1\"\nvcpus = 6\nmemory = \"1GiB\"\nweight = 10\n\
                load = \"spin\"\n";
    assert_eq!(planned(text).check(u64::MAX).finding, None);
}

/// What is found in the scenarios of this folder.
fn findings(folder: &str) -> Vec<String> {
    let folder = format!("{}/tests/{folder}", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let texts =
        files.filter(|path| path.is_file()).map(|path| std::fs::read_to_string(path).unwrap());
    let found =
        texts.filter_map(|text| planned(&text).check(u64::MAX).finding.map(|what| (text, what)));
    found.map(|(text, finding)| format!("{finding:?} in {text}")).collect()
}

#[test]
fn scenarios_found_by_swarms_hold() {
    assert_eq!(findings("found"), Vec::<String>::new());
}

#[test]
fn a_small_swarm_finds_nothing() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    let swarm = Swarm { runs: 10, seed: 3, scheduler: Some("instep".to_owned()) };
    let sum = swarm.run(&|| (), &|| false).unwrap();
    let found: Vec<String> = sum.found.iter().map(|found| found.text(3)).collect();
    assert_eq!(found, Vec::<String>::new());
}

/// Two CPUs, `a` with this load (as TOML) and these settings beside others with theirs.
fn set(load: &str, settings: &str, others: (u32, &str), seed: u64) -> SimulationPlan {
    let (count, theirs) = others;
    let text = format!(
        "about = \"it\"\nseed = {seed}\nscheduler = \"instep\"\nduration = \"2s\"\n\
         warmup = \"500ms\"\n[host]\ncores = 2\nmemory = \"8GiB\"\n\
         [[guest]]\nname = \"a\"\nvcpus = 2\nmemory = \"1GiB\"\nload = {load}\n{settings}\n\
         [[guest]]\nname = \"n\"\ncount = {count}\nvcpus = 2\nmemory = \"1GiB\"\n\
         load = \"{theirs}\"\n"
    );
    planned(&text)
}

/// How late `a` wakes with these settings, microseconds: mean over four seeds.
fn late(load: &str, settings: &str, others: (u32, &str)) -> u64 {
    let one = |seed| {
        let lateness = set(load, settings, others, seed).run().vms[0].2.lateness;
        lateness.ns / lateness.count / 1000
    };
    (1..5u64).into_par_iter().map(one).sum::<u64>() / 4
}

#[test]
fn a_vm_that_is_never_co_scheduled_loses_what_spinning_costs() {
    let speed = |cosched: &str| {
        let text = format!(
            "about = \"it\"\nseed = 1\nscheduler = \"instep\"\nduration = \"1s\"\nwarmup = \"500ms\"\n\
             [host]\ncores = 8\nmemory = \"16GiB\"\n[[guest]]\nname = \"a\"\ncount = 2\nvcpus = 4\n\
             memory = \"1GiB\"\ncosched = \"{cosched}\"\nload = \"{SPIN} --imbalance 10%\"\n\
             [[guest]]\nname = \"n\"\ncount = 2\nvcpus = 4\nmemory = \"1GiB\"\nload = \"spin\"\n"
        );
        planned(&text).report().unwrap().vms[0].fair_share_speed.unwrap()
    };
    let (never, relaxed) = (speed("never"), speed("relaxed"));
    println!("spin 100us: never {never:.2}, relaxed {relaxed:.2}");
    assert!(never < relaxed - 0.2, "{never} {relaxed}");
}

#[test]
fn a_light_vm_wakes_at_once_beside_vms_that_block() {
    let load = "[\"instep-load compute --threads 1\", \
                 \"instep-load ping --threads 1 --period 10ms --burst 500us\"]";
    let others = (2, "instep-load barrier --kind block --phase 2ms");
    let (normal, prompt) = (late(load, "", others), late(load, "latency = \"prompt\"", others));
    println!("ping late: normal {normal} us, prompt {prompt} us");
    assert!(normal < 100 && prompt < 100, "{prompt} {normal}");
}

#[test]
fn a_vm_of_a_long_period_catches_up_on_what_it_did_not_use() {
    let load = "\"instep-load ping --threads 2 --period 300ms --burst 100ms\"";
    let late = |period: &str| late(load, &format!("period = \"{period}\""), (1, "spin"));
    let (short, long) = (late("1ms"), late("1s"));
    println!("bursts of 100 ms late: period 1 ms {short} us, 1 s {long} us");
    assert!(long * 100 < short * 92, "{long} {short}");
}

#[test]
fn first_vm_does_not_wait_for_the_end_of_a_long_period() {
    // A run began when the kernel did, at 0: nobody was away for a period of 1 s, and who came with a
    // virtual time of 0 kept the CPU for 2 s.
    let text = "about = \"found by a swarm\"\nseed = 45498740\nscheduler = \"instep\"\n\
                duration = \"2s\"\nwarmup = \"0s\"\n\
                [host]\nthreads = 2\ncores = 1\nmemory = \"64GiB\"\nnoise = false\n\
                [[guest]]\nname = \"g0\"\nvcpus = 1\nmemory = \"1GiB\"\nload = \"spin\"\n\
                period = \"1s\"\n[[guest]]\nname = \"g1\"\nvcpus = 1\nmemory = \"1GiB\"\n\
                load = \"spin\"\nstart = { cpus = [[0]], pinned = true }\n";
    assert_eq!(planned(text).check(u64::MAX).finding, None);
}
