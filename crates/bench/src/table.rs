//! A report as text of at most 80 columns: a table of speeds, and one for each further measure that
//! has values. Four schedulers stand side by side; more make another table below.

use crate::report::{BenchOutcome, BenchReport, CaseReport, DILUTED, Spread};
use instep_report::table::{Side, Spacing, aligned};
use instep_report::text::paragraph;
use std::fmt::Write as _;

/// Columns of the case's name, and of a scheduler.
pub(crate) const NAME: usize = 20;
const COLUMN: usize = 14;
/// Schedulers side by side.
const SIDE: usize = 4;

/// One table's measure.
pub(crate) struct Measure {
    pub(crate) title: &'static str,
    pub(crate) of: fn(&BenchOutcome) -> Option<Spread>,
    /// What is shown is the value times this.
    pub(crate) by: f64,
    /// Whether 1 is what it is held against.
    pub(crate) one: bool,
}

fn exact(value: Option<f64>) -> Option<Spread> {
    Spread::of(value)
}

const fn measure(title: &'static str, by: f64, of: fn(&BenchOutcome) -> Option<Spread>) -> Measure {
    Measure { title, of, by, one: false }
}

/// One that is held against 1.
const fn speed(title: &'static str, of: fn(&BenchOutcome) -> Option<Spread>) -> Measure {
    Measure { title, of, by: 1.0, one: true }
}

/// What is shown, in this order.
pub(crate) const MEASURES: [Measure; 12] = [
    speed("Fair-share speed: throughput / (fair share x throughput alone)", |o| {
        o.fair_share_speed.clone()
    }),
    speed("Speed beside the default's, of medians", |o| exact(o.beside_default)),
    measure("Stacking: % of time with siblings runnable on one CPU", 100.0, |o| exact(o.stacking)),
    measure("Competing modules", 1.0, |o| exact(o.competing_modules)),
    measure("Worst error of a share of CPU time over 1 s, %", 100.0, |o| o.share_error.clone()),
    measure("Wake-up latency, median, ms", 1e-6, |o| o.wake_p50_ns.clone()),
    measure("Wake-up latency, p99, ms", 1e-6, |o| o.wake_p99_ns.clone()),
    measure("Time of a run of a BPF program (a scheduling event), us", 1e-3, |o| {
        o.bpf_ns_per_call.clone()
    }),
    measure("CPU time spent in BPF programs, %", 100.0, |o| o.bpf_cpu.clone()),
    measure("Time in BPF programs per context switch, us", 1e-3, |o| o.bpf_ns_per_switch.clone()),
    measure("Context switches per ms", 1e-3, |o| o.switches_per_s.clone()),
    measure("Emulated CPUs waited for those of this machine, % of the time", 100.0, |o| {
        o.diluted.clone()
    }),
];

/// The whole report.
pub fn table(report: &BenchReport) -> String {
    let mut out = format!("kernel {}, {}\n", report.kernel, report.machine);
    let _ = writeln!(
        out,
        "{} runs in rotation, {} s each after {} s; %: fair share; median, least-most\n",
        report.runs, report.measure_s, report.settle_s
    );
    for warning in &report.warnings {
        out.push_str(&folded(&format!("warning: {warning}")));
    }
    if let Some(legend) = report.legend_of_dilution() {
        out.push_str(&folded(&legend));
    }
    if !report.warnings.is_empty() {
        out.push('\n');
    }
    let ran: Vec<&str> = report.schedulers.iter().map(|s| s.name.as_str()).collect();
    for measure in &MEASURES {
        for names in ran.chunks(SIDE) {
            one(&mut out, report, measure, names);
        }
    }
    let mut said = Vec::new();
    for scheduler in &report.schedulers {
        if let Some(why) = &scheduler.why_not {
            said.push(format!("{} took no part: {why}", scheduler.name));
        }
    }
    for case in &report.cases {
        for (name, outcome) in &case.results {
            for why in &outcome.failed {
                said.push(format!("{} under {name} failed: {why}", case.name));
            }
        }
    }
    if !report.does_not_show.is_empty() {
        said.push(format!("This cannot show {}.", report.does_not_show));
    }
    for line in said {
        out.push_str(&folded(&line));
    }
    out
}

/// One measure of some schedulers; nothing when there is no value.
fn one(out: &mut String, report: &BenchReport, measure: &Measure, names: &[&str]) {
    let value = |case: &CaseReport, name: &str| case.results.get(name).and_then(measure.of);
    let has = |case: &&CaseReport| names.iter().any(|name| value(case, name).is_some());
    let cases: Vec<&CaseReport> = report.cases.iter().filter(has).collect();
    if cases.is_empty() {
        return;
    }
    let _ = writeln!(out, "{}", measure.title);
    let title = |name: &&str| {
        let short = name.strip_prefix(crate::plan::WITHOUT).map(|without| format!("-{without}"));
        format!("{:>1$}", cut(short.as_deref().unwrap_or(name), COLUMN - 1), COLUMN - 1)
    };
    let titles: Vec<String> = names.iter().map(title).collect();
    let case_title = format!("{:NAME$}", "case");
    let head: Vec<_> = [(case_title.as_str(), Side::Left), ("  %", Side::Right)]
        .into_iter()
        .chain(titles.iter().map(|title| (title.as_str(), Side::Right)))
        .collect();
    let row = |case: &&CaseReport| {
        let cell = |name: &&str| {
            let failed = || case.results.get(*name).is_some_and(|o| !o.failed.is_empty());
            match value(case, name) {
                Some(spread) => marked(&case.results[*name], &spread, measure.by),
                None if failed() => "failed".to_owned(),
                None => "-".to_owned(),
            }
        };
        let first = [cut(&case.name, NAME), format!("{:.0}", case.share * 100.0)];
        first.into_iter().chain(names.iter().map(cell)).collect()
    };
    let rows: Vec<_> = cases.iter().map(row).collect();
    let _ = writeln!(out, "{}", aligned(&head, &rows, Spacing { indent: 0, gap: 1 }));
}

/// [`shown`], with a mark where the figures are diluted.
pub(crate) fn marked(outcome: &BenchOutcome, spread: &Spread, by: f64) -> String {
    if outcome.is_diluted() {
        format!("{}{DILUTED}", shown_in(spread, by, COLUMN - 2))
    } else {
        shown(spread, by)
    }
}

/// [`shown_in`] the whole of a column but the space before it.
pub(crate) fn shown(spread: &Spread, by: f64) -> String {
    shown_in(spread, by, COLUMN - 1)
}

/// `0.97 .95-1.02`: median, least and most in so many columns; the median alone of one run, or when
/// the least and the most cannot be told apart in so few.
fn shown_in(spread: &Spread, by: f64, columns: usize) -> String {
    let median = number(spread.median * by);
    let (min, max) = (spread.min * by, spread.max * by);
    if spread.runs < 2 || (number(min) == median && number(max) == median) {
        return median;
    }
    let text = format!("{median} {}-{}", bare(number(min)), bare(number(max)));
    if text.chars().count() <= columns {
        return text;
    }
    let (min, max) = (short(min), short(max));
    let text = format!("{median} {min}-{max}");
    if min == max || text.chars().count() > columns { median } else { text }
}

/// A number in at most four columns.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size < 0.0005 => "0".to_owned(),
        size if size < 0.0995 => format!("{value:.3}").trim_start_matches('0').to_owned(),
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        size if size < 9999.5 => format!("{value:.0}"),
        size if size < 999_500.0 => format!("{:.0}k", value / 1e3),
        _ => format!("{value:.0e}"),
    }
}

/// A number in at most three columns, but for thousands of thousands.
fn short(value: f64) -> String {
    match value.abs() {
        size if size < 0.995 => bare(format!("{value:.2}")),
        size if size < 9.95 => format!("{value:.1}"),
        size if size < 999.5 => format!("{value:.0}"),
        size if size < 99_500.0 => format!("{:.0}k", value / 1e3),
        _ => number(value),
    }
}

/// Without the zero before its point.
fn bare(text: String) -> String {
    text.strip_prefix("0.").map(|rest| format!(".{rest}")).unwrap_or(text)
}

fn cut(name: &str, width: usize) -> String {
    name.chars().take(width).collect()
}

/// In lines of at most 80 columns.
fn folded(text: &str) -> String {
    paragraph(text, 80, "", "  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::TookPart;

    fn report() -> BenchReport {
        let outcome = |values: &[f64]| BenchOutcome {
            fair_share_speed: Spread::of(values.iter().copied()),
            stacking: Some(0.25),
            ..BenchOutcome::default()
        };
        let failed =
            BenchOutcome { failed: vec!["it\x1b[2J ended".to_owned()], ..BenchOutcome::default() };
        let names = ["default", "instep", "scx_cosmos", "scx_bpfland", "instep-without-gang"];
        let case = CaseReport {
            name: "spin-100us-at-a-fair-share-of-50".to_owned(),
            share: 0.5,
            results: [
                ("default".to_owned(), outcome(&[0.04, 0.051, 0.031])),
                ("instep".to_owned(), outcome(&[0.97])),
                ("scx_cosmos".to_owned(), failed),
                ("instep-without-gang".to_owned(), outcome(&[123.456, 1000.0])),
            ]
            .into(),
            ..CaseReport::default()
        };
        let took = |name: &str| TookPart { name: name.to_owned(), ..TookPart::default() };
        let mut schedulers: Vec<TookPart> = names.iter().map(|name| took(name)).collect();
        schedulers[3].why_not = Some("it is not built: clang-19 is missing".to_owned());
        BenchReport { schedulers, cases: vec![case], ..BenchReport::default() }
    }

    #[test]
    fn no_line_is_wider_than_a_terminal_and_none_steers_it() {
        let text = table(&report());
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }

    #[test]
    fn no_two_cells_touch_whatever_they_hold() {
        let values = [
            0.0, 0.0004, 0.031, 0.0995, 0.5, 0.996, 1.02, 9.99, 43.21, 99.96, 1234.0, 9999.9,
            123_456.0,
        ];
        for median in values {
            for (min, max) in values.into_iter().flat_map(|min| values.map(|max| (min, max))) {
                let spread = Spread { median, min, max, runs: 3, ..Spread::default() };
                let diluted =
                    BenchOutcome { diluted: Spread::of([0.5]), ..BenchOutcome::default() };
                for outcome in [BenchOutcome::default(), diluted] {
                    let text = marked(&outcome, &spread, 1.0);
                    assert!(text.chars().count() < COLUMN, "{text}: {min} {median} {max}");
                }
            }
        }
        let of = |median, min, max| {
            shown(&Spread { median, min, max, runs: 3, ..Spread::default() }, 1.0)
        };
        assert_eq!(of(0.97, 0.95, 1.02), "0.97 .95-1.02");
        assert_eq!(of(1.02, 1.018, 1.028), "1.02");
        assert_eq!(of(1234.0, 1100.0, 12_345.0), "1234 1100-12k");
        assert_eq!((of(0.0, 0.0, 0.0), of(0.5, 0.4999, 0.5001)), ("0".into(), "0.50".into()));
    }

    #[test]
    fn warnings_stand_on_top_and_diluted_cells_are_marked() {
        let mut report = report();
        report.warnings.push("this machine was busy".to_owned());
        let instep = report.cases[0].results.get_mut("instep").unwrap();
        instep.diluted = Spread::of([0.3, 0.2]);
        let text = table(&report);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} in\n{text}"));
        assert!(at("warning: this machine was busy") < at("* emulated CPUs had to wait"));
        assert!(at("* emulated CPUs had to wait") < at("Fair-share speed"));
        assert!(text.contains(" 0.97* ") && text.contains(".040 .03-.05 "), "{text}");
    }

    #[test]
    fn medians_failures_and_absences_are_reported() {
        let text = table(&report());
        for part in [
            ".040 .03-.05",
            "0.97",
            "failed",
            "scx_bpfland took no part: it is not built: clang-19 is missing",
            "-gang",
            "562 123-1000",
            "under scx_cosmos failed: it?[2J ended",
            "25.0",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains("Competing"), "{text}");
    }
}
