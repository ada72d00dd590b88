//! Tests of running experiments; the published ones are only read, save the smallest.

use super::*;
use instep_report::html::escaped;

const TINY: &str = r#"
    about = "siblings of two guests"
    system = 3
    source = "systems.md, 3"
    unit = "%"
    measure = "stacking"
    vm = "a"
    seeds = 3
    fitted = "Nothing."
    [scenario]
    about = "x"
    scheduler = "cfs"
    duration = "200ms"
    warmup = "100ms"
    host = { cores = 2, memory = "4GiB" }
    guest = [{ name = "a", count = 2, vcpus = 2, memory = "1GiB", load = "spin" }]
    [[row]]
    label = "cfs"
    [[row]]
    label = "balance"
    published = 0
    set = { scheduler = "balance" }
"#;

fn tiny() -> Vec<Experiment> {
    vec![Experiment::parse("tiny", TINY).unwrap()]
}

#[test]
fn every_published_experiment_can_be_read_and_names_its_source() {
    let all = find("all").unwrap();
    assert_eq!(all.len(), FILES.len());
    for experiment in &all {
        assert!(experiment.source.starts_with(&format!("systems.md, {}", experiment.system)));
    }
    assert!(find("best").unwrap_err().to_string().contains("known are all, stacking"));
}

#[test]
fn only_what_is_neither_fitted_nor_arithmetic_is_predicted() {
    let kinds = |name: &str, label: &str| {
        let listed = list(&find(name).unwrap());
        listed.experiments[0].rows.iter().find(|row| row.label == label).unwrap().kind
    };
    assert_eq!(kinds("types", "type 1, PM"), Some(FigureKind::Fitted));
    assert_eq!(kinds("types", "type 1, VM"), Some(FigureKind::Predicted));
    assert_eq!(kinds("stacking", "balance, 1 VM"), Some(FigureKind::Arithmetic));
    assert_eq!(kinds("stacking", "CFS, 3 VMs"), None, "nothing is published");
    // An experiment that says that it fitted something has a row that says so.
    for experiment in &list(&find("all").unwrap()).experiments {
        let fitted = experiment.rows.iter().any(|row| row.kind == Some(FigureKind::Fitted));
        let says = ["Three numbers", "In scenarios/"]
            .iter()
            .any(|words| experiment.fitted.starts_with(words));
        assert!(fitted || !says, "{}", experiment.name);
    }
    let kind =
        |word: &str| TINY.replace("published = 0", &format!("published = 0\nkind = \"{word}\""));
    let run = |text: &str| {
        let tiny = vec![Experiment::parse("tiny", text).unwrap()];
        table::table(&run(&tiny, Some(2), &|_, _| (), &|| false))
    };
    let (arithmetic, predicted) = (run(&kind("arithmetic")), run(TINY));
    assert!(arithmetic.contains("arithmetic: 1 agree, 0 differ"), "{arithmetic}");
    assert!(arithmetic.contains("0.00a") && !arithmetic.contains("predicted:"), "{arithmetic}");
    assert!(predicted.contains("predicted: 1 agree"), "{predicted}");
    assert!(Experiment::parse("tiny", &kind("guessed")).unwrap_err().contains("guessed"));
}

const LATENCY: &str = "memory.latency";

/// The numbers that a machine assumes, with their sources, each of which the experiment halves and doubles.
#[track_caller]
fn numbers_halved_and_doubled(experiment: &str, machine: &str) -> Vec<(String, String)> {
    let text = FILES.iter().find(|(name, _)| *name == experiment).unwrap().1;
    let number = |value: &toml::Value| match value {
        toml::Value::Integer(number) => *number as u64,
        other => {
            let text = other.as_str().unwrap();
            let time = crate::scenario::load::duration(text).map(|time| time.as_nanos() as u64);
            time.or_else(|_| crate::scenario::size(text)).unwrap()
        }
    };
    let table: toml::Table = toml::from_str(text).unwrap();
    let rows = table["row"].as_array().unwrap();
    let sets: Vec<_> = rows.iter().filter_map(|row| row.get("set")?.as_table()).collect();
    let assumed = crate::library::assumed(machine).unwrap();
    let latency = assumed.iter().find(|(place, ..)| place == LATENCY).map(|found| number(&found.1));
    // No latency to other nodes is one that follows from their distances.
    let is_number =
        |place: &str, value: &toml::Value| place != "linux.release" && number(value) > 0;
    let numbers = assumed.into_iter().filter(|(place, value, _)| is_number(place, value));
    numbers
        .map(|(place, value, source)| {
            let key = format!("host.numbers.{place}");
            // The farther latency holds the nearer one. What it has above that is assumed by itself; rows of the nearer one keep it.
            let base = if place == "memory.remote" { latency.unwrap() } else { 0 };
            let nearer = format!("host.numbers.{LATENCY}");
            let sets = sets.iter().filter(|set| base == 0 || !set.contains_key(&nearer));
            let set: Vec<u64> = sets.filter_map(|set| set.get(&key)).map(number).collect();
            let own = number(&value) - base;
            assert_eq!(set, [base + own / 2, base + own * 2], "{place}");
            (place, source)
        })
        .collect()
}

#[test]
fn every_assumed_number_of_xen_6_is_halved_and_doubled() {
    let assumed = numbers_halved_and_doubled("sync-aware-sensitivity", "xen-6");
    assert!(assumed.len() > 9, "{assumed:?}");
    for (place, source) in assumed {
        assert!(source.contains(" to "), "{place}: a range, not a point: {source}");
    }
}

#[test]
fn every_assumed_number_of_xeon_4_node_is_halved_and_doubled() {
    let assumed = numbers_halved_and_doubled("best-node-sensitivity", "xeon-4-node");
    assert!(assumed.len() > 9, "{assumed:?}");
    for written_as_sentence in [LATENCY, "memory.remote", "contention.node_mib_s"] {
        assert!(assumed.iter().any(|(place, _)| place == written_as_sentence), "{assumed:?}");
    }
}

#[test]
fn every_assumed_number_of_kvm_16_is_halved_and_doubled() {
    let assumed = numbers_halved_and_doubled("types-sensitivity", "kvm-16");
    assert!(assumed.len() > 9, "{assumed:?}");
}

#[test]
fn what_was_published_of_one_policy_is_no_figure_of_another() {
    let npb = find("eight-npb-vms").unwrap();
    for row in npb[0].rows.iter().filter(|row| row.published.is_some()) {
        let of_hand_binding = row.label.ends_with("spread of runs, bound");
        assert!(row.label.contains("placement bnn") || of_hand_binding, "{}", row.label);
    }
}

#[test]
fn row_has_its_mean_between_ends_of_its_interval_and_a_verdict() {
    let found = run(&tiny(), None, &|_, _| (), &|| false);
    let rows = &found.experiments[0].rows;
    assert!(rows.iter().all(|row| row.seeds == 3 && row.low <= row.simulated));
    assert_eq!((rows[1].simulated, rows[1].verdict), (Some(0.0), Some(FigureVerdict::Agrees)));
    assert_eq!(rows[0].verdict, None);
    assert_eq!(run(&tiny(), None, &|_, _| (), &|| false), found);
}

#[test]
fn what_was_finished_before_a_stop_is_kept() {
    let done = AtomicUsize::new(0);
    let count = |_: usize, _: usize| {
        done.fetch_add(1, Ordering::SeqCst);
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let found = pool.install(|| run(&tiny(), None, &count, &|| done.load(Ordering::SeqCst) >= 3));
    let rows = &found.experiments[0].rows;
    assert_eq!(rows.iter().map(|row| row.seeds).sum::<usize>(), 3);
}

#[test]
fn stop_leaves_only_whole_experiments() {
    let three = [tiny(), tiny(), tiny()].concat();
    let each = 3 * three[0].plans.len();
    let done = AtomicUsize::new(0);
    let count = |_: usize, all: usize| {
        assert_eq!(all, 3 * each);
        done.fetch_add(1, Ordering::SeqCst);
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let stop = || done.load(Ordering::SeqCst) > each;
    let found = pool.install(|| run(&three, None, &count, &stop));
    let ran = |at: usize| found.experiments[at].rows.iter().map(|row| row.seeds).sum::<usize>();
    assert_eq!((ran(0), ran(2)), (each, 0));
    assert!((1..each).contains(&ran(1)), "{}", ran(1));
}

#[test]
fn the_seeds_that_were_wished_for_are_those_to_be_run() {
    let found = run(&tiny(), Some(2), &|_, _| (), &|| true);
    assert_eq!(found.experiments[0].seeds, 2);
}

#[test]
fn the_sequential_section_gives_two_and_four_iterations_exactly() {
    let found = run(&find("sequential-section").unwrap(), Some(9), &|_, _| (), &|| false);
    let rows = &found.experiments[0].rows;
    let mut published = rows.iter().filter(|row| row.published.is_some());
    assert!(published.all(|row| row.seeds == 1 && row.simulated == row.published), "{rows:?}");
    assert!(!found.differs());
}

#[test]
fn a_verdict_is_by_interval_then_by_nearness() {
    let wide = stats::Estimate { mean: 5.0, low: 1.0, high: 9.0 };
    let sharp = stats::Estimate { mean: 5.0, low: 5.0, high: 5.0 };
    assert_eq!(verdict(8.5, wide, 8.5), FigureVerdict::Agrees);
    assert_eq!(verdict(7.5, wide, 7.5), FigureVerdict::Unclear);
    assert_eq!(verdict(5.5, sharp, 5.5), FigureVerdict::Agrees);
    assert_eq!(verdict(5.6, sharp, 5.6), FigureVerdict::Differs);
    assert_eq!(verdict(4.0, sharp, 60.0), FigureVerdict::Agrees);
}

#[test]
fn what_is_a_bound_has_the_whole_interval_below_it() {
    let found = stats::Estimate { mean: 5.0, low: 1.0, high: 9.0 };
    assert_eq!(below(9.0, found), FigureVerdict::Agrees);
    assert_eq!(below(8.9, found), FigureVerdict::Unclear);
    assert_eq!(below(1.0, found), FigureVerdict::Unclear);
    assert_eq!(below(0.9, found), FigureVerdict::Differs);
    let at_it = stats::Estimate { mean: 5.0, low: 5.0, high: 5.0 };
    assert_eq!(below(5.0, at_it), FigureVerdict::Agrees);
    // In a row, too: throughput changes from seed to seed.
    let verdict = |bound: f64| {
        let row = format!("label = \"cfs\"\npublished = {bound}\nbound = true");
        let text = TINY.replace("label = \"cfs\"", &row).replace("stacking", "throughput");
        let text = text.replace("\"spin\"", "\"instep-load barrier --phase 1ms --imbalance 50%\"");
        let tiny = vec![Experiment::parse("tiny", &text).unwrap()];
        run(&tiny, None, &|_, _| (), &|| false).experiments[0].rows[0].clone()
    };
    let row = verdict(1.0);
    let (low, mean, high) = (row.low.unwrap(), row.simulated.unwrap(), row.high.unwrap());
    assert!(low < mean && mean < high, "{row:?}");
    assert_eq!(verdict(high + 0.1).verdict, Some(FigureVerdict::Agrees));
    assert_eq!(verdict(mean).verdict, Some(FigureVerdict::Unclear));
    assert_eq!(verdict(low - 0.1).verdict, Some(FigureVerdict::Differs));
}

#[test]
fn tables_keep_to_80_columns_and_pages_to_themselves() {
    for found in [list(&find("all").unwrap()), run(&tiny(), Some(2), &|_, _| (), &|| false)] {
        let text = table::table(&found);
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest.unwrap() <= 80, "{text}");
        let page = page::page(&found);
        assert!(
            !page.contains("http://www") && !page.contains("https://") && !page.contains("src=")
        );
        let units = |one: &ExperimentResult| {
            one.rows.iter().map(|row| row.unit.clone()).collect::<std::collections::BTreeSet<_>>()
        };
        let plots: usize = found.experiments.iter().map(|one| units(one).len()).sum();
        assert_eq!(page.matches("<svg").count(), plots);
        for row in found.experiments.iter().flat_map(|one| &one.rows) {
            let drawn = format!("text-anchor=\"end\">{}</text>", escaped(&row.label));
            assert!(page.contains(&drawn), "{} is drawn", row.label);
        }
        let bounds = found.experiments.iter().flat_map(|one| &one.rows).filter(|row| row.bound);
        assert_eq!(page.matches("class=\"published bound\"").count(), bounds.count());
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    }
}

#[test]
fn random_experiment_with_one_seed_is_reported_as_such() {
    let text = |name| {
        let found = run(&find(name).unwrap()[..1], Some(1), &|_, _| (), &|| true);
        table::table(&found)
    };
    assert!(text("sequential-section").contains("no chance in it"));
    let listed = list(&find("stacking").unwrap());
    let once = Reproduced::of(
        listed.experiments.into_iter().map(|one| ExperimentResult { seeds: 1, ..one }).collect(),
    );
    assert!(table::table(&once).contains("one seed, no interval"));
}
