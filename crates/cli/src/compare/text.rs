//! A comparison for people, in at most `width` columns.

use super::documents::Input;
use super::judge::{Comparison, Row, Value, Verdict};
use crate::text::{indented, plural, printable, shortened, wrapped};
use instep_report::table::{Side, Spacing, aligned};
use std::fmt::Write as _;

/// Draws it; rows that are the same on both sides only when `all` are wanted.
pub(super) fn draw(a: &Input, b: &Input, compared: &Comparison, all: bool, width: usize) -> String {
    let mut out = String::new();
    for (name, side) in [("A", a), ("B", b)] {
        // A bench holds several runs of everything.
        let one = if side.schema == "instep.bench/1" { "document" } else { "run" };
        let runs = plural(side.runs.len(), one);
        let line = format!("{name}: {} ({}, {runs})", printable(&side.file), side.schema);
        out.push_str(&indented(&wrapped(&line, width), 0));
    }
    let shown: Vec<&Row> =
        compared.rows.iter().filter(|row| all || row.verdict != Verdict::Same).collect();
    for rows in shown.chunk_by(|a, b| a.subject == b.subject) {
        let _ = writeln!(out, "\n{}", shortened(&printable(&rows[0].subject), width));
        out.push_str(&table(rows));
    }
    let same = compared.rows.len() - shown.len();
    if same > 0 {
        let _ = writeln!(
            out,
            "\n{} the same on both sides (--all lists them)",
            plural(same, "measure")
        );
    }
    for (name, only) in [("A", &compared.only_in_a), ("B", &compared.only_in_b)] {
        if !only.is_empty() {
            let line = format!("only in {name}: {}", printable(&only.join("; ")));
            out.push_str(&indented(&wrapped(&line, width), 0));
        }
    }
    let count = |verdict| compared.rows.iter().filter(|row| row.verdict == verdict).count();
    let line = format!(
        "{} better, {} worse, {} changed, {} the same, {} not shown",
        count(Verdict::Better),
        count(Verdict::Worse),
        count(Verdict::Changed),
        count(Verdict::Same),
        count(Verdict::NotShown)
    );
    let _ = writeln!(out, "\n{line}");
    if compared.rows.iter().any(is_scattered) {
        let line = "not shown: the 95 % interval of the difference includes 0 or the limit of \
                    --tolerance; more runs make it narrower";
        out.push_str(&indented(&wrapped(line, width), 0));
    }
    out
}

/// The measures of one subject; columns are as wide as in the other tables.
fn table(rows: &[&Row]) -> String {
    let head = [
        (&*" ".repeat(17), Side::Left),
        (&*format!("{:>19}", "A"), Side::Right),
        (&*format!("{:>19}", "B"), Side::Right),
        ("  B/A - 1", Side::Right),
        ("", Side::Left),
    ];
    let row = |row: &&Row| {
        let relative =
            row.relative.map_or("-".to_owned(), |part| format!("{:+.1} %", part * 100.0));
        let verdict = format!(" {}", word(row));
        vec![labelled(row.measure).to_owned(), cell(&row.a), cell(&row.b), relative, verdict]
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    aligned(&head, &rows, Spacing { indent: 2, gap: 1 })
}

/// A measure with the unit of what has none in its name: these are parts of the time.
fn labelled(measure: &str) -> &str {
    match measure {
        "stacking" => "stacking, of time",
        "held up" => "held up, of time",
        other => other,
    }
}

/// Whether there are runs enough for an interval, and it shows nothing.
fn is_scattered(row: &Row) -> bool {
    row.verdict == Verdict::NotShown && row.low.is_some()
}

/// A mean with half of its confidence interval's width; of a document without its runs the least and
/// the most, which are no such interval.
fn cell(value: &Value) -> String {
    match (value.low.zip(value.high), value.min.zip(value.max)) {
        (Some((low, high)), _) => {
            format!("{} ±{}", number(value.value), number((high - low) / 2.0))
        }
        (None, Some((min, max))) => format!("{} to {}", number(min), number(max)),
        (None, None) => number(value.value),
    }
}

/// Three digits that count.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        ..0.0005 => format!("{value:.0e}"),
        ..9.9995 => format!("{value:.3}"),
        ..99.995 => format!("{value:.2}"),
        ..999.95 => format!("{value:.1}"),
        ..1e6 => format!("{value:.0}"),
        _ => format!("{value:.3e}"),
    }
}

fn word(row: &Row) -> &'static str {
    match row.verdict {
        Verdict::Better => "better",
        Verdict::Worse => "WORSE",
        Verdict::Changed => "changed",
        Verdict::Same => "",
        Verdict::NotShown if is_scattered(row) => "not shown",
        Verdict::NotShown if row.a.is_untold() || row.b.is_untold() => "unknown",
        Verdict::NotShown => "one run",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_80_columns_and_hides_what_is_the_same() {
        let run = |speed: f64, work: f64| {
            format!(
                r#"{{"schema":"instep.sim/1","vms":[{{"name":"a-rather-long-name","throughput":{work},
                "fair_share_speed":{speed},"stacking":0.123}}]}}"#
            )
        };
        let side = |file: &str, runs: [(f64, f64); 2]| {
            Input::parse(file, &runs.map(|(speed, work)| run(speed, work)).join("\n")).unwrap()
        };
        let a = side("a.json", [(0.05, 123_456.7), (0.051, 123_466.7)]);
        let b = side("b.json", [(0.95, 2_234_567.0), (0.951, 2_234_667.0)]);
        let compared = super::super::judge::compare(&a, &b, 0.02);
        let text = draw(&a, &b, &compared, false, 80);
        assert_eq!(text.lines().find(|line| line.chars().count() > 80), None, "{text}");
        let row = "  fair-share speed         0.051 ±0.006        0.950 ±0.006 +1782.2 %  better";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("1 measure the same") && !text.contains("stacking"), "{text}");
        assert!(draw(&a, &b, &compared, true, 80).contains("  stacking, of time  "));
    }

    #[test]
    fn unproven_differences_are_listed_apart_from_equal_measures() {
        let side = |file: &str, co_run: [f64; 2]| {
            let run = |co_run| {
                format!(
                    r#"{{"schema":"instep.sim/1","vms":[{{"name":"a","co_run":{co_run},
                    "stacking":0.25}}]}}"#
                )
            };
            Input::parse(file, &co_run.map(run).join("\n")).unwrap()
        };
        let (a, b) = (side("a.json", [0.005, 0.129]), side("b.json", [0.09, 0.308]));
        let compared = super::super::judge::compare(&a, &b, 0.02);
        let text = draw(&a, &b, &compared, false, 80);
        assert!(text.contains("+197.0 %  not shown\n"), "{text}");
        assert!(text.contains("1 measure the same"), "{text}");
        assert!(text.contains("0 changed, 1 the same, 1 not shown\nnot shown: the 95 %"), "{text}");
        assert_eq!(text.lines().find(|line| line.chars().count() > 80), None, "{text}");
    }

    #[test]
    fn a_range_is_never_drawn_as_an_interval_of_confidence() {
        let side = |median: f64, more: &str| {
            let text = format!(
                r#"{{"schema":"instep.bench/1","cases":[{{"name":"c","results":{{"instep":{{
                "rate":{{"median":{median},"min":1234567.0,"max":3000000.0,"runs":3{more}}}}}}}}}]}}"#
            );
            Input::parse("f", &text).unwrap()
        };
        let drawn = |more: &str| {
            let (a, b) = (side(2e6, more), side(2.5e6, more));
            draw(&a, &b, &super::super::judge::compare(&a, &b, 0.02), true, 80)
        };
        let text = drawn("");
        assert!(!text.contains('±') && text.contains("unknown"), "{text}");
        assert!(text.contains("1.235e6 to 3.000e6  1.235e6 to 3.000e6"), "{text}");
        assert_eq!(text.lines().find(|line| line.chars().count() > 80), None, "{text}");
        let text = drawn(r#","samples":[1234567.0,2000000.0,3000000.0]"#);
        assert!(text.contains('±') && !text.contains(" to "), "{text}");
    }
}
