//! The credit scheduler beside real Xen: data/xen-credit.txt is what scenarios/lab/xen-credit.toml printed on an
//! emulated host. The same domains are simulated, and CPU time, credits and priorities are compared.
//!
//! A line `look` is one reading of Xen's debug key `r`: Xen's clock, accountings and balance of the pool, then for each
//! vCPU in brackets its domain, and priority, flags, credits and state.

#![cfg(test)]
#![allow(missing_docs, reason = "a test")]

use instep_sim::context::TaskId;
use instep_sim::engine::Engine;
use instep_sim::scenario::Scenario;
use instep_sim::scenario::build::SimulationPlan;
use instep_sim::sched::Standing;
use std::collections::BTreeMap;
use std::sync::OnceLock;

const MS: u64 = 1_000_000;
const BOOST: i32 = 0;
const OVER: i32 = -2;
/// By how many standard errors of the readings of real Xen a mean may differ.
const MOST: f64 = 4.0;

/// Readings of the vCPUs of one domain.
type Readings = Vec<Standing>;

/// A case, as real Xen showed it or as it was simulated.
#[derive(Debug, Default)]
struct Shown {
    /// Domains in the order of the case.
    names: Vec<String>,
    /// Part of the CPU that each had.
    has: Vec<f64>,
    readings: Vec<Readings>,
    /// Mean time from one accounting to the next, ms.
    period: f64,
}

impl Shown {
    fn credits(&self, at: usize) -> Vec<f64> {
        self.readings[at].iter().map(|one| one.credit as f64).collect()
    }

    fn part(&self, at: usize, is: impl Fn(&Standing) -> bool) -> f64 {
        let all = &self.readings[at];
        all.iter().filter(|one| is(one)).count() as f64 / all.len() as f64
    }
}

/// Mean and standard deviation.
fn mean(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (mean, (square / values.len() as f64).sqrt())
}

/// What real Xen showed of each case.
fn real() -> BTreeMap<String, Shown> {
    let mut cases: BTreeMap<String, Shown> = BTreeMap::new();
    let (mut name, mut numbers) = (String::new(), Vec::new());
    let mut before: Option<(f64, BTreeMap<String, f64>)> = None;
    let mut clock = None;
    let seconds = |words: &[&str]| -> BTreeMap<String, f64> {
        let pairs = words.iter().map(|word| word.split_once('=').unwrap());
        pairs.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
    };
    for line in include_str!("data/xen-credit.txt").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "case" => {
                name = words[1].to_owned();
                (before, clock) = (None, None);
                let domains = seconds(&words[2..]);
                let names =
                    words[2..].iter().map(|word| word.split_once('=').unwrap().0.to_owned());
                let names: Vec<String> = names.collect();
                numbers = names.iter().map(|name| format!("[{}]", domains[name])).collect();
                let readings = vec![Vec::new(); names.len()];
                cases.insert(name.clone(), Shown { names, readings, ..Shown::default() });
            }
            "time" => {
                let now = (words[1].parse::<f64>().unwrap(), seconds(&words[2..]));
                let case = cases.get_mut(&name).unwrap();
                if let Some((at, had)) = &before {
                    let has = |name: &String| (now.1[name] - had[name]) / (now.0 - at);
                    case.has = case.names.iter().map(has).collect();
                }
                before.get_or_insert(now);
            }
            "look" => {
                let at: f64 = words[1].parse().unwrap();
                let accountings: f64 = words[2].strip_prefix("sort=").unwrap().parse().unwrap();
                let case = cases.get_mut(&name).unwrap();
                let (first, sort) = *clock.get_or_insert((at, accountings));
                case.period = (at - first) * 1000.0 / (accountings - sort);
                for vcpu in words[4..].chunks(5) {
                    let domain = numbers.iter().position(|number| number == vcpu[0]).unwrap();
                    let flags = u32::from_str_radix(vcpu[2], 16).unwrap();
                    case.readings[domain].push(Standing {
                        pri: vcpu[1].parse().unwrap(),
                        credit: vcpu[3].parse().unwrap(),
                        is_parked: flags & 1 == 1,
                    });
                }
            }
            other => panic!("{other}"),
        }
    }
    cases
}

/// The case as a scenario; timers of Xen are late by up to `slop` microseconds.
fn scenario(name: &str, real: &Shown, slop: u64) -> String {
    let (case, _) = name.split_once('/').unwrap();
    let cpu = if case == "pinned" { 3 } else { 0 };
    let guest = |name: &String| {
        let (weight, load) = match name.as_str() {
            "light" => (128, "spin"),
            "middle" => (256, "spin"),
            "heavy" => (512, "spin"),
            _ => (256, "instep-load io --compute 40ms --wait 100ms --imbalance 20%"),
        };
        let cap = if name == "heavy" && ["cap", "alone"].contains(&case) { "cap = 30" } else { "" };
        format!(
            "[[guest]]\nname = '{name}'\nvcpus = 1\nmemory = '128MiB'\nweight = {weight}\nload = '{load}'\n\
             allowed = '{cpu}'\n{cap}\n"
        )
    };
    let mut text = format!(
        "scheduler = 'credit'\nduration = '61s'\ntuning = {{ slop = '{slop}us' }}\n[host]\ncores = {}\nmemory = '4GiB'\n\
         machine = 'ideal'\nnumbers = {{ xen.release = '4.17' }}\n",
        cpu + 1
    );
    text.extend(real.names.iter().map(guest));
    if case == "pinned" {
        // dom0, which looks: most of a CPU.
        text += "[[guest]]\nname = 'dom0'\nvcpus = 2\nmemory = '1GiB'\nweight = 256\nallowed = '0-1'\n\
                 load = 'instep-load ping --period 30ms --burst 10ms'\n";
    }
    text
}

/// Simulates a minute after a second, and looks each millisecond. Accountings are when credits rise.
fn simulate(text: &str, real: &Shown) -> Shown {
    let plan =
        SimulationPlan::new(&Scenario::parse(text).unwrap(), &|_| Err(String::new())).unwrap();
    let mut engine = Engine::new(plan.setup.clone(), plan.scheduler());
    engine.begin();
    let tasks: Vec<TaskId> = (0..real.names.len() as u32).map(TaskId).collect();
    while engine.advance(1000 * MS) {}
    let before: Vec<u64> = tasks.iter().map(|task| engine.ctx().ran(*task)).collect();
    let mut readings = vec![Readings::new(); tasks.len()];
    let (mut accountings, milliseconds) = (0, 60_000);
    for at in 1..=milliseconds {
        while engine.advance((1000 + at) * MS) {}
        let mut rises = false;
        for (task, readings) in tasks.iter().zip(&mut readings) {
            let now = engine.scheduler().standing(*task).unwrap();
            rises |= readings.last().is_some_and(|last| now.credit > last.credit);
            readings.push(now);
        }
        accountings += u64::from(rises);
    }
    let had = tasks.iter().zip(before).map(|(task, before)| engine.ctx().ran(*task) - before);
    let has = had.map(|ns| ns as f64 / (milliseconds * MS) as f64).collect();
    let period = milliseconds as f64 / accountings as f64;
    Shown { names: real.names.clone(), has, readings, period }
}

/// The case with timers so late that an accounting takes as long as it did on the emulated CPUs.
fn simulated(name: &str, real: &Shown) -> Shown {
    let (mut least, mut most) = (0, 40_000);
    loop {
        let slop = (least + most) / 2;
        let shown = simulate(&scenario(name, real, slop), real);
        if most - least < 500 || (shown.period / real.period - 1.0).abs() < 0.003 {
            return shown;
        }
        if shown.period < real.period { least = slop } else { most = slop }
    }
}

/// Readings and parts of both, side by side, for whoever asks with --nocapture.
fn print(name: &str, real: &Shown, simulated: &Shown) {
    println!("{name}: an accounting each {:.1} ms", real.period);
    for (at, domain) in real.names.iter().enumerate() {
        for (what, shown) in [("Xen", real), ("simulated", simulated)] {
            let (credit, deviation) = mean(&shown.credits(at));
            println!(
                "  {domain:8} {what:10} has {:.3}; credits {credit:.0} (+-{deviation:.0}); OVER {:.2}, BOOST {:.2}, parked {:.2}; n {}",
                shown.has[at],
                shown.part(at, |one| one.pri == OVER),
                shown.part(at, |one| one.pri == BOOST),
                shown.part(at, |one| one.is_parked),
                shown.readings[at].len()
            );
        }
    }
}

/// All cases beside their simulations.
fn both() -> &'static [(String, Shown, Shown)] {
    static BOTH: OnceLock<Vec<(String, Shown, Shown)>> = OnceLock::new();
    let one = |(name, real): (String, Shown)| {
        let simulated = simulated(&name, &real);
        print(&name, &real, &simulated);
        (name, real, simulated)
    };
    BOTH.get_or_init(|| real().into_iter().map(one).collect())
}

/// By how many standard errors of so many readings a part differs from the simulated one.
fn errors(part: f64, simulated: f64, readings: usize) -> f64 {
    // Of few readings none or all may be so where a part is small or large.
    let n = readings as f64;
    let usual = (simulated * n + 1.0) / (n + 2.0);
    (part - simulated).abs() / (usual * (1.0 - usual) / n).sqrt()
}

#[test]
fn cpu_time_by_weight_and_cap_is_that_of_real_xen() {
    for (name, real, simulated) in both() {
        // xl tells 0.1 s of 10 s. On the busy machine timers were late by turns, not evenly.
        let within = if name.ends_with("/quiet") { 0.02 } else { 0.06 };
        for (at, domain) in real.names.iter().enumerate().filter(|_| name != "boost/busy") {
            let (has, would) = (real.has[at], simulated.has[at]);
            assert!(
                (has - would).abs() < within,
                "{name}: {domain} has {has:.3}, simulated {would:.3}"
            );
        }
    }
}

#[test]
fn credits_and_priorities_are_those_of_real_xen() {
    for (name, real, simulated) in both().iter().filter(|(name, ..)| name.ends_with("/quiet")) {
        for (at, domain) in real.names.iter().enumerate() {
            let readings = real.readings[at].len();
            let (credit, deviation) = mean(&real.credits(at));
            let (would, _) = mean(&simulated.credits(at));
            let off = (credit - would).abs() / (deviation / (readings as f64).sqrt());
            assert!(off < MOST, "{name}: {domain}: {credit:.0} credits, simulated {would:.0}");
            for (what, is) in [
                ("OVER", (|one: &Standing| one.pri == OVER) as fn(&Standing) -> bool),
                ("parked", |one| one.is_parked),
            ] {
                let (part, would) = (real.part(at, is), simulated.part(at, is));
                let off = errors(part, would, readings);
                assert!(off < MOST, "{name}: {domain}: {what} {part:.2}, simulated {would:.2}");
            }
        }
    }
}

#[test]
fn only_capped_vcpus_park_and_only_blocking_ones_are_boosted() {
    for (name, real, simulated) in both() {
        for (at, domain) in real.names.iter().enumerate() {
            let capped =
                domain == "heavy" && ["cap", "alone"].iter().any(|case| name.starts_with(case));
            for shown in [real, simulated] {
                assert_eq!(shown.part(at, |one| one.is_parked) > 0.0, capped, "{name}: {domain}");
                let boosted = shown.part(at, |one| one.pri == BOOST) > 0.0;
                assert_eq!(boosted, domain == "sleeper", "{name}: {domain}");
            }
        }
    }
}

#[test]
fn caps_that_cannot_be_are_refused() {
    let plan = |scheduler: &str, cap: u32| {
        let text = format!(
            "scheduler = '{scheduler}'\nduration = '1s'\nhost = {{ cores = 2, memory = '1GiB' }}\n\
             [[guest]]\nname = 'a'\nvcpus = 2\nmemory = '128MiB'\nload = 'spin'\ncap = {cap}\n"
        );
        let plan = SimulationPlan::new(&Scenario::parse(&text).unwrap(), &|_| Err(String::new()));
        plan.map(|_| ()).map_err(|fault| (fault.line(&text), fault.what))
    };
    assert_eq!(plan("credit", 200), Ok(()));
    assert_eq!(plan("sync-aware", 1), Ok(()));
    for cap in [0, 201] {
        let (line, what) = plan("credit", cap).unwrap_err();
        assert!(line == 9 && what.contains("it is 1 to 200 per cent of a CPU"), "{line}: {what}");
    }
    let (line, what) = plan("cfs", 50).unwrap_err();
    assert!(line == 9 && what.contains("scheduler cfs has no caps"), "{line}: {what}");
}
