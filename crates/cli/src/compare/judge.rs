//! Whether two sets of runs differ.
//!
//! Several runs on each side: the means, and the 95 % interval of their difference by Welch's t. A
//! difference beyond the tolerance is shown where that interval does not hold zero; both sides are the
//! same where it lies within the tolerance; else the runs show neither. Of one bench its runs are the runs; of several
//! benches the median of each is one, for what differs from one to the next is in none of them. One
//! run on a side, or a bench of a version that kept no runs: the difference is told, and nothing is
//! shown.

use super::documents::{Better, Input, Reading};
use instep_report::stats;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Equal runs have means that differ by this part at most, from how sums of floats are rounded.
const ROUNDING: f64 = 1e-9;

/// What became of a measure from A to B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "ComparisonVerdict")]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Better,
    Worse,
    /// It changed, and neither way is better.
    Changed,
    /// No difference beyond the tolerance: the interval lies within it, or, where there is none, the
    /// difference.
    Same,
    /// Neither: the interval holds zero, or the end of what is tolerated; or no confidence interval can be computed of
    /// a difference, for there is one run on a side, or the document has none of its runs.
    NotShown,
}

/// One side of a measure.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
#[schemars(rename = "ComparedValue")]
pub(super) struct Value {
    /// The mean of the runs, or the median that a document without its runs tells.
    pub(super) value: f64,
    /// The 95 % interval of the mean; none from one run.
    pub(super) low: Option<f64>,
    pub(super) high: Option<f64>,
    /// The least and the most that a document without its runs tells: no interval of confidence.
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
    pub(super) runs: usize,
    #[serde(skip)]
    samples: Vec<f64>,
}

impl Value {
    /// Whether it is of several runs that the document does not tell.
    pub(super) fn is_untold(&self) -> bool {
        self.low.is_none() && self.runs > 1
    }
}

/// A measure on both sides.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
#[schemars(rename = "ComparedMeasure")]
pub(super) struct Row {
    pub(super) subject: String,
    pub(super) measure: &'static str,
    pub(super) better: Better,
    pub(super) a: Value,
    pub(super) b: Value,
    /// B - A, and its interval where there is one.
    pub(super) difference: f64,
    pub(super) low: Option<f64>,
    pub(super) high: Option<f64>,
    /// The difference as a part of A; none where A is zero.
    pub(super) relative: Option<f64>,
    pub(super) verdict: Verdict,
}

/// Everything.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    pub(super) rows: Vec<Row>,
    pub(super) only_in_a: Vec<String>,
    pub(super) only_in_b: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// Subjects and measures in the order of the first document that has them.
type Key = (String, &'static str);

/// Compares B with A. Differences up to `tolerance`, a part of A, are none.
pub(super) fn compare(a: &Input, b: &Input, tolerance: f64) -> Comparison {
    let (keys_a, of_a) = gathered(a);
    let (keys_b, of_b) = gathered(b);
    let subjects = |keys: &[Key], other: &[Key]| {
        let mut only: Vec<String> = keys
            .iter()
            .filter(|(subject, _)| !other.iter().any(|(there, _)| there == subject))
            .map(|(subject, _)| subject.clone())
            .collect();
        only.dedup();
        only
    };
    let rows = keys_a.iter().filter_map(|key| {
        let (readings_a, readings_b) = (of_a.get(key)?, of_b.get(key)?);
        Some(row(key, readings_a, readings_b, tolerance))
    });
    let rows: Vec<Row> = rows.collect();
    let warnings = warnings(a, b, &rows);
    let (only_in_a, only_in_b) = (subjects(&keys_a, &keys_b), subjects(&keys_b, &keys_a));
    Comparison { rows, only_in_a, only_in_b, warnings }
}

/// What keeps the rows from showing more.
fn warnings(a: &Input, b: &Input, rows: &[Row]) -> Vec<String> {
    let mut warnings = Vec::new();
    for side in [a, b].into_iter().filter(|side| side.repeated > 0) {
        warnings.push(format!(
            "{} holds {} runs again that it has already: each counts once",
            side.file, side.repeated
        ));
    }
    for side in [a, b].into_iter().filter(|side| !side.namesakes.is_empty()) {
        let names: Vec<&str> = side.namesakes.iter().map(String::as_str).collect();
        warnings.push(format!(
            "{} has several in one run that are called {}: they are numbered in its order",
            side.file,
            names.join(", ")
        ));
    }
    let untold = |of: fn(&Row) -> &Value| rows.iter().any(|row| of(row).is_untold());
    let sides = [(a, untold(|row| &row.a)), (b, untold(|row| &row.b))];
    for (side, _) in sides.iter().filter(|(_, untold)| *untold) {
        warnings.push(format!(
            "{} does not have each of its runs, as older versions wrote it: no confidence \
             interval can be computed; run `instep bench` again",
            side.file
        ));
    }
    let known = sides.iter().all(|(_, untold)| !untold);
    if known && !rows.is_empty() && rows.iter().all(|row| row.low.is_none()) {
        warnings.push(
            "one run on a side shows no difference; put several in one file (cat run1.json \
             run2.json > a.json)"
                .to_owned(),
        );
    }
    warnings
}

fn gathered(side: &Input) -> (Vec<Key>, BTreeMap<Key, Vec<&Reading>>) {
    let (mut keys, mut found) = (Vec::new(), BTreeMap::<Key, Vec<&Reading>>::new());
    for reading in side.runs.iter().flatten() {
        let key = (reading.subject.clone(), reading.measure);
        let readings = found.entry(key.clone()).or_default();
        if readings.is_empty() {
            keys.push(key);
        }
        readings.push(reading);
    }
    (keys, found)
}

fn value(readings: &[&Reading]) -> Value {
    let samples: Vec<f64> = match readings {
        [one] if !one.samples.is_empty() => one.samples.clone(),
        _ => readings.iter().map(|reading| reading.value).collect(),
    };
    let (range, runs) = match readings {
        [one] => (one.range, one.of),
        several => (None, several.len()),
    };
    let (min, max) = range.unzip();
    let estimate = stats::estimate(&samples);
    let interval = estimate.filter(|_| samples.len() > 1);
    Value {
        value: estimate.map_or(f64::NAN, |estimate| estimate.mean),
        low: interval.map(|interval| interval.low),
        high: interval.map(|interval| interval.high),
        min,
        max,
        runs,
        samples,
    }
}

fn row(key: &Key, a: &[&Reading], b: &[&Reading], tolerance: f64) -> Row {
    let better = a.first().map_or(Better::Neither, |reading| reading.better);
    let (a, b) = (value(a), value(b));
    let difference = b.value - a.value;
    let interval = stats::difference(&a.samples, &b.samples);
    let (low, high) = interval.map(|interval| (interval.low, interval.high)).unzip();
    let relative = (a.value != 0.0).then(|| difference / a.value.abs());
    // Against a zero, the larger of the two is all there is to measure by.
    let scale = if a.value == 0.0 { b.value.abs() } else { a.value.abs() };
    let verdict = verdict(difference, interval, scale * tolerance.max(ROUNDING), better);
    let (subject, measure) = key.clone();
    Row { subject, measure, better, a, b, difference, low, high, relative, verdict }
}

/// What a difference, and its interval where there is one, show; up to `tolerated` is none.
fn verdict(
    difference: f64,
    interval: Option<stats::Estimate>,
    tolerated: f64,
    better: Better,
) -> Verdict {
    let is_small = difference.abs() <= tolerated;
    let is_shown = match interval {
        Some(found) if found.low >= -tolerated && found.high <= tolerated => return Verdict::Same,
        None if is_small => return Verdict::Same,
        Some(found) => !is_small && (found.low > 0.0 || found.high < 0.0),
        None => false,
    };
    match (better, difference > 0.0) {
        _ if !is_shown => Verdict::NotShown,
        (Better::Neither, _) => Verdict::Changed,
        (Better::Higher, true) | (Better::Lower, false) => Verdict::Better,
        _ => Verdict::Worse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(stacking: &[f64]) -> Input {
        let runs: Vec<String> = stacking
            .iter()
            .map(|value| {
                format!(r#"{{"schema":"instep.sim/1","vms":[{{"name":"a","stacking":{value}}}]}}"#)
            })
            .collect();
        Input::parse("f", &runs.join("\n")).unwrap()
    }

    /// A bench by what is in its fair-share speed.
    fn bench(speed: &str) -> String {
        format!(
            r#"{{"schema":"instep.bench/1","runs":5,"cases":[{{"name":"c","results":{{"instep":
            {{"fair_share_speed":{{{speed}}},"stacking":0.5}}}}}}]}}"#
        )
    }

    /// One with each of its runs.
    fn bench_of(samples: &[f64]) -> String {
        let spread = instep_bench::report::Spread::of(samples.iter().copied()).unwrap();
        let spread = serde_json::to_string(&spread).unwrap();
        bench(spread.trim_start_matches('{').trim_end_matches('}'))
    }

    fn parsed(text: &str) -> Input {
        Input::parse("f", text).unwrap()
    }

    fn verdict(a: &Input, b: &Input) -> Verdict {
        compare(a, b, 0.02).rows[0].verdict
    }

    #[test]
    fn a_difference_beyond_the_scatter_of_the_runs_is_shown() {
        let (low, high) = (side(&[0.10, 0.11, 0.12]), side(&[0.50, 0.52, 0.51]));
        assert_eq!(verdict(&low, &high), Verdict::Worse);
        assert_eq!(verdict(&high, &low), Verdict::Better);
    }

    #[test]
    fn difference_within_the_scatter_is_neither_shown_nor_excluded() {
        // 0.067 and 0.199 with intervals of 0.8 and 1.4.
        let (wide, other) = (side(&[0.005, 0.129]), side(&[0.09, 0.308]));
        for (a, b) in [(&wide, &other), (&wide, &wide)] {
            let compared = compare(a, b, 0.02);
            assert_eq!(compared.rows[0].verdict, Verdict::NotShown);
            assert!(compared.rows[0].low < Some(0.0) && compared.rows[0].high > Some(0.0));
        }
    }

    #[test]
    fn equal_measures_have_an_interval_within_the_tolerance() {
        let (steady, near) = (side(&[0.5, 0.501, 0.499]), side(&[0.501, 0.502, 0.5]));
        assert_eq!(verdict(&steady, &near), Verdict::Same);
        // Larger by 1.8 % for sure, and by more than is tolerated or not.
        let larger = compare(&steady, &side(&[0.509, 0.510, 0.508]), 0.02);
        assert!(larger.rows[0].low > Some(0.0) && larger.rows[0].high > Some(0.01));
        assert_eq!(larger.rows[0].verdict, Verdict::NotShown);
    }

    #[test]
    fn equal_measures_are_equal_despite_rounding_and_tolerance() {
        // The mean of three is 0.10000000000000002.
        let (three, two) = (side(&[0.1; 3]), side(&[0.1; 2]));
        for (a, b) in [(&three, &two), (&two, &three), (&three, &three)] {
            assert_eq!(compare(a, b, 0.0).rows[0].verdict, Verdict::Same);
        }
        let zero = side(&[0.0; 2]);
        assert_eq!(compare(&zero, &zero, 0.0).rows[0].verdict, Verdict::Same);
    }

    #[test]
    fn one_analysis_twice_is_one_run() {
        let run = |steal: u32, begin: u32| {
            format!(
                r#"{{"schema":"instep.analysis/1","duration_ns":100,"host":{{"begin_ns":{begin}}},
                "vms":[{{"name":"a","vcpus":[{{"run_ns":50,"steal_ns":{steal}}}]}}]}}"#
            )
        };
        let side = |runs: &[(u32, u32)]| {
            let runs: Vec<String> = runs.iter().map(|(steal, begin)| run(*steal, *begin)).collect();
            Input::parse("f", &runs.join("\n")).unwrap()
        };
        let verdict = |compared: &Comparison| {
            compared.rows.iter().find(|row| row.measure == "steal / wanted").unwrap().verdict
        };
        let twice = compare(&side(&[(10, 1), (10, 1)]), &side(&[(11, 2), (11, 2)]), 0.02);
        assert_eq!(verdict(&twice), Verdict::NotShown);
        assert!(twice.warnings[0].contains("f holds 1 runs again"), "{:?}", twice.warnings);
        let two = compare(&side(&[(10, 1), (10, 2)]), &side(&[(11, 3), (11, 4)]), 0.02);
        assert_eq!((verdict(&two), two.warnings.len()), (Verdict::Worse, 0));
    }

    #[test]
    fn two_of_one_name_in_a_run_are_two_and_no_two_runs() {
        let vm =
            |steal: u32| format!(r#"{{"name":"a","vcpus":[{{"run_ns":50,"steal_ns":{steal}}}]}}"#);
        let side = |steals: [u32; 2]| {
            let head = r#"{"schema":"instep.analysis/1","duration_ns":100,"vms":["#;
            parsed(&format!("{head}{},{}]}}", vm(steals[0]), vm(steals[1])))
        };
        let compared = compare(&side([50, 150]), &side([50, 50]), 0.02);
        let of = |subject: &str| {
            let is = |row: &&Row| row.subject == subject && row.measure == "steal / wanted";
            let row = compared.rows.iter().find(is).unwrap();
            (row.a.runs, row.a.value, row.b.value)
        };
        assert_eq!((of("VM a"), of("VM a (2)")), ((1, 0.5, 0.5), (1, 0.75, 0.5)));
        assert!(
            compared.warnings[0].contains("called VM a: they are numbered"),
            "{:?}",
            compared.warnings
        );
    }

    #[test]
    fn one_run_shows_nothing_and_says_what_to_do() {
        let compared = compare(&side(&[0.1]), &side(&[0.5]), 0.02);
        assert_eq!(compared.rows[0].verdict, Verdict::NotShown);
        assert!(compared.warnings[0].contains("cat run1.json"), "{:?}", compared.warnings);
        assert_eq!(verdict(&side(&[0.500]), &side(&[0.501])), Verdict::Same);
    }

    #[test]
    fn benches_are_judged_by_their_runs() {
        let slow = parsed(&bench_of(&[0.4, 0.5, 0.6, 0.5, 0.5]));
        let fast = parsed(&bench_of(&[0.9, 0.8, 1.0]));
        let compared = compare(&slow, &fast, 0.02);
        let row = &compared.rows[0];
        assert_eq!((row.verdict, row.a.runs, row.b.runs), (Verdict::Better, 5, 3));
        assert_eq!(row.a.min, None);
        let student = stats::estimate(&[0.9, 0.8, 1.0]).unwrap();
        assert_eq!((row.b.low, row.b.high), (Some(student.low), Some(student.high)));
        assert_eq!(verdict(&fast, &slow), Verdict::Worse);
        // The ranges do not overlap, and two runs each with such a scatter show nothing.
        let (few, other) = (bench_of(&[0.5, 0.7]), bench_of(&[0.72, 0.9]));
        assert_eq!(verdict(&parsed(&few), &parsed(&other)), Verdict::NotShown);
        // One run is no range.
        let one = compare(&parsed(&bench_of(&[0.5])), &fast, 0.02);
        assert_eq!((one.rows[0].verdict, one.rows[0].a.low), (Verdict::NotShown, None));
    }

    #[test]
    fn of_several_benches_each_is_one_run_and_a_copy_is_none() {
        let (one, two) = (bench_of(&[0.5, 0.5, 0.5]), bench_of(&[0.6, 0.6, 0.6]));
        let both = parsed(&format!("{one}{two}"));
        let row = &compare(&both, &both, 0.02).rows[0];
        assert_eq!((row.a.runs, row.a.value), (2, 0.55));
        assert_eq!(compare(&parsed(&format!("{one}{one}")), &both, 0.02).rows[0].a.runs, 3);
    }

    #[test]
    fn bench_without_its_runs_shows_a_range_and_no_confidence() {
        let old = |median: f64, min: f64, max: f64| {
            parsed(&bench(&format!(r#""median":{median},"min":{min},"max":{max},"runs":5"#)))
        };
        let (slow, fast) = (old(0.5, 0.4, 0.6), old(0.9, 0.8, 1.0));
        for new in [fast, parsed(&bench_of(&[0.9, 0.8, 1.0]))] {
            let compared = compare(&slow, &new, 0.02);
            let row = &compared.rows[0];
            assert_eq!((row.verdict, row.low), (Verdict::NotShown, None));
            assert_eq!((row.a.low, row.a.min, row.a.max), (None, Some(0.4), Some(0.6)));
            assert_eq!(row.a.runs, 5);
            // A number alone is of these runs, too.
            assert!(compared.rows[1].a.is_untold() && compared.rows[1].a.min.is_none());
            assert!(compared.warnings[0].contains("no confidence interval can be computed"));
        }
        assert_eq!(verdict(&slow, &old(0.501, 0.4, 0.7)), Verdict::Same);
    }

    #[test]
    fn what_one_side_lacks_is_named() {
        let other =
            Input::parse("f", r#"{"schema":"instep.sim/1","vms":[{"name":"b","co_run":1}]}"#);
        let compared = compare(&side(&[0.1]), &other.unwrap(), 0.02);
        assert_eq!(
            (compared.only_in_a, compared.only_in_b),
            (vec!["VM a".into()], vec!["VM b".into()])
        );
        // The command refuses this.
        assert!(compared.rows.is_empty() && compared.warnings.is_empty());
    }
}
