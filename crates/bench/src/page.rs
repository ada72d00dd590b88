//! A report as one HTML page that needs nothing else: for each measure a plot (inline SVG) of
//! medians with least and most, and the same as a table. Knows only reports.

use crate::plan::WITHOUT;
use crate::report::{BenchReport, CaseReport, Spread, TookPart};
use crate::table::{MEASURES, Measure, marked, number, shown};
use instep_report::html::{self, add_paragraph, escaped};
use instep_report::plot::{
    Area, COLOURS, Direction, Scale, add_legend, add_plot, draw_remark, series_class,
};
use std::fmt::Write as _;

/// Heights of a scheduler's row, and of the space between cases.
const LANE: f64 = 11.0;
const GAP: f64 = 9.0;

/// Letters of a fair share and the space before it.
const SHARE: usize = 5;

const STYLE: &str = "
svg text.soft{font-size:11px}.one{stroke:var(--soft);stroke-dasharray:3 3}
body{max-width:900px}.about{text-align:left;white-space:normal;display:inline-block}.bad{color:var(--bad)}
";

/// The page of this report.
pub fn page(report: &BenchReport) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<p>Kernel {}; {}; {} runs in rotation, {} s each after {} s.</p>\n\
         <p class=\"soft\">Dots are medians, lines reach from the least to the most. The fair share \
         of a case stands behind its name.</p>",
        escaped(&report.kernel),
        escaped(&report.machine),
        report.runs,
        report.measure_s,
        report.settle_s
    );
    let legend_of_dilution = report.legend_of_dilution();
    for warning in report.warnings.iter().chain(&legend_of_dilution) {
        add_paragraph(&mut out, "bad", warning);
    }
    let name = |(place, scheduler): (usize, &TookPart)| {
        let version = scheduler.version.as_ref().map_or(String::new(), |v| format!(" ({v})"));
        (series_class(place), scheduler.name.clone() + &version)
    };
    add_legend(&mut out, report.schedulers.iter().enumerate().map(name));
    for measure in &MEASURES {
        section(&mut out, report, measure);
    }
    cases(&mut out, report);
    write_notes(&mut out, report);
    html::page("Schedulers side by side", STYLE, &out)
}

fn value(case: &CaseReport, name: &str, measure: &Measure) -> Option<Spread> {
    let spread = case.results.get(name).and_then(measure.of)?;
    let by = measure.by;
    Some(Spread {
        median: spread.median * by,
        min: spread.min * by,
        max: spread.max * by,
        samples: spread.samples.iter().map(|sample| sample * by).collect(),
        ..spread
    })
}

fn section(out: &mut String, report: &BenchReport, measure: &Measure) {
    let names: Vec<&str> = report.schedulers.iter().map(|s| s.name.as_str()).collect();
    let has = |case: &&CaseReport| names.iter().any(|name| value(case, name, measure).is_some());
    let cases: Vec<&CaseReport> = report.cases.iter().filter(has).collect();
    if cases.is_empty() {
        return;
    }
    let _ = writeln!(out, "<section>\n<h2>{}</h2>", escaped(measure.title));
    plot(out, &cases, &names, measure);
    let head: Vec<&str> = [""].into_iter().chain(names.iter().copied()).collect();
    let row = |case: &&CaseReport| {
        let cell = |name: &&str| match value(case, name, measure) {
            Some(spread) => marked(&case.results[*name], &spread, 1.0),
            None => "-".to_owned(),
        };
        let first = format!("{} ({})", escaped(&case.name), number(case.share));
        [first].into_iter().chain(names.iter().map(cell)).collect()
    };
    let table = html::table(&head, &cases.iter().map(row).collect::<Vec<_>>());
    let _ = writeln!(out, "<details><summary>in numbers</summary>{table}</details>\n</section>");
}

/// What the scale reaches to from 0: what all values need, or, where a few would press the others together, what most
/// need; what is beyond stands at the edge with its number.
fn most_of(spreads: &[Spread]) -> f64 {
    let mut medians: Vec<f64> = spreads.iter().map(|spread| spread.median).collect();
    medians.sort_by(f64::total_cmp);
    let at = medians.len().saturating_sub(1) * 9 / 10;
    let high = medians.get(at).copied().unwrap_or(1.0) * 1.15;
    let all = spreads.iter().map(|spread| spread.max).fold(0.0, f64::max) * 1.02;
    let most = if all <= 2.0 * high { all.max(high) } else { high };
    if most > 0.0 { most } else { 1.0 }
}

fn plot(out: &mut String, cases: &[&CaseReport], names: &[&str], measure: &Measure) {
    let of_case = |case: &CaseReport| -> Vec<(usize, Spread)> {
        let each = names.iter().enumerate();
        each.filter_map(|(place, name)| Some((place, value(case, name, measure)?))).collect()
    };
    let spreads: Vec<Spread> =
        cases.iter().flat_map(|case| of_case(case)).map(|(_, spread)| spread).collect();
    let lanes: usize = cases.iter().map(|case| of_case(case).len().max(1)).sum();
    let height = lanes as f64 * LANE + cases.len() as f64 * GAP + GAP;
    let letters = |case: &&CaseReport| case.name.chars().count() + SHARE;
    let left = Area::room_for(cases.iter().map(letters).max().unwrap_or(0)).min(400.0);
    let area = Area { left, top: 4.0, width: 790.0 - left, height, right: 70.0 };
    let scale = Scale { area, direction: Direction::Right, low: 0.0, high: most_of(&spreads) };
    add_plot(out, measure.title, &scale, round, |out| {
        if measure.one && scale.high >= 1.0 {
            scale.draw_line(out, "one", 1.0);
        }
        let mut y = area.top + GAP;
        for case in cases {
            let of_case = of_case(case);
            let height = of_case.len().max(1) as f64 * LANE;
            let (name, share) = (escaped(&case.name), number(case.share));
            let name = format!("{name} <tspan class=\"soft\">{share}</tspan>");
            scale.draw_name(out, y + height / 2.0, &name);
            for (place, spread) in of_case {
                let label = (names.len() > COLOURS).then(|| short(names[place]));
                lane(out, &scale, y + LANE / 2.0, (place, names[place], label), &spread);
                y += LANE;
            }
            y += GAP;
        }
    });
}

/// `-gang` of Instep without gang; others as they are.
fn short(name: &str) -> String {
    name.strip_prefix(WITHOUT).map_or(name.to_owned(), |without| format!("-{without}"))
}

/// One scheduler's median with its spread; with its name where there are more than colours.
fn lane(
    out: &mut String,
    scale: &Scale,
    y: f64,
    (place, name, label): (usize, &str, Option<String>),
    spread: &Spread,
) {
    let name =
        name.strip_prefix(WITHOUT).map_or(name.to_owned(), |m| format!("Instep without {m}"));
    let title = format!("{name}: {}", shown(spread, 1.0));
    let values = [spread.min, spread.median, spread.max];
    scale.draw_spread(out, (y, &series_class(place)), values, &title);
    let beyond = [spread.median, spread.max].into_iter().find(|value| *value > scale.high);
    let remarks: Vec<String> =
        beyond.map(number).into_iter().chain(label.as_deref().map(escaped)).collect();
    if !remarks.is_empty() {
        let end = scale.place(spread.median.max(spread.max));
        draw_remark(out, end + 7.0, y, &remarks.join(" "));
    }
}

fn cases(out: &mut String, report: &BenchReport) {
    let row = |case: &CaseReport| {
        let kind = format!("{:?}", case.kind).to_lowercase();
        let alone =
            case.alone.as_ref().map_or("-".to_owned(), |rate| format!("{:.0}", rate.median));
        vec![
            escaped(&case.name),
            format!("<span class=\"about\">{}</span>", escaped(&case.about)),
            kind,
            format!("{alone} {}/s", escaped(&case.unit)),
        ]
    };
    let rows: Vec<_> = report.cases.iter().map(row).collect();
    let table = html::table(&["case", "what it does", "kind", "alone"], &rows);
    let _ = writeln!(out, "<section>\n<h2>The cases</h2>\n{table}\n</section>");
}

fn write_notes(out: &mut String, report: &BenchReport) {
    out.push_str("<section>\n<h2>What to know</h2>\n");
    for scheduler in &report.schedulers {
        if let Some(why) = &scheduler.why_not {
            add_paragraph(out, "bad", &format!("{} took no part: {why}", scheduler.name));
        }
    }
    for case in &report.cases {
        for (name, outcome) in &case.results {
            for why in &outcome.failed {
                let text = format!("{} under {name} failed: {why}", case.name);
                add_paragraph(out, "bad", &text);
            }
        }
    }
    if !report.does_not_show.is_empty() {
        let _ = writeln!(out, "<p>This cannot show {}.</p>", escaped(&report.does_not_show));
    }
    out.push_str("</section>\n");
}

/// A round number without needless digits.
fn round(mark: f64) -> String {
    html::without_zeros(&number(mark)).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::BenchOutcome;

    fn report() -> BenchReport {
        let outcome = |speeds: &[f64]| BenchOutcome {
            fair_share_speed: Spread::of(speeds.iter().copied()),
            ..BenchOutcome::default()
        };
        let case = CaseReport {
            name: "a<b>".to_owned(),
            share: 0.5,
            results: [
                ("default".to_owned(), outcome(&[0.05, 0.04])),
                ("instep".to_owned(), outcome(&[0.9, 1.0])),
            ]
            .into(),
            ..CaseReport::default()
        };
        let took = |name: &str, why: Option<&str>| TookPart {
            name: name.to_owned(),
            why_not: why.map(str::to_owned),
            ..TookPart::default()
        };
        let schedulers =
            vec![took("default", None), took("instep", None), took("scx_a", Some("no <clang>"))];
        BenchReport { schedulers, cases: vec![case], ..BenchReport::default() }
    }

    #[test]
    fn a_dot_for_every_median_and_nothing_from_outside() {
        let page = page(&report());
        assert_eq!(page.matches("<circle").count(), 2);
        assert!(page.contains("a&lt;b&gt;") && page.contains("no &lt;clang&gt;"), "{page}");
        assert!(!page.contains("http") && !page.contains("<script"), "{page}");
        assert_eq!(page.matches("<section>").count(), page.matches("</section>").count());
    }

    #[test]
    fn a_value_beyond_the_scale_stands_at_its_edge_with_its_number() {
        let mut report = report();
        let many = (0..20).map(|n| CaseReport { name: format!("c{n}"), ..report.cases[0].clone() });
        report.cases = many.collect();
        let far = BenchOutcome { fair_share_speed: Spread::of([50.0]), ..BenchOutcome::default() };
        report.cases[3].results.insert("instep".to_owned(), far);
        assert!(page(&report).contains(">50.0</text>"));
    }

    #[test]
    fn a_spread_is_not_cut_off_without_a_word() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied()).unwrap();
        let near = [spread(&[0.2, 0.3]), spread(&[0.1, 0.5])];
        assert!(most_of(&near) > 0.5, "all fit: {}", most_of(&near));
        let far: Vec<Spread> =
            (0..20).map(|_| spread(&[0.5, 1.0])).chain([spread(&[0.5, 9.0])]).collect();
        assert!(most_of(&far) < 1.5);
        let mut report = report();
        let wide = BenchOutcome {
            fair_share_speed: Spread::of([0.05, 0.05, 50.0]),
            ..BenchOutcome::default()
        };
        report.cases[0].results.insert("instep".to_owned(), wide);
        assert!(page(&report).contains(">50.0</text>"), "its end is told");
    }

    #[test]
    fn more_schedulers_than_colours_are_named() {
        let mut report = report();
        assert!(!page(&report).contains(">instep</text>"));
        for number in 0..COLOURS {
            let name = format!("instep-without-m{number}");
            let outcome = report.cases[0].results["instep"].clone();
            report.schedulers.push(TookPart { name: name.clone(), ..TookPart::default() });
            report.cases[0].results.insert(name, outcome);
        }
        let page = page(&report);
        assert!(page.contains(">instep</text>") && page.contains(">-m3</text>"), "{page}");
    }

    #[test]
    fn marks_have_no_needless_digits() {
        assert_eq!(
            [0.0, 0.05, 0.5, 1.0, 20.0, 100.0].map(round),
            ["0", ".05", "0.5", "1", "20", "100"]
        );
    }

    #[test]
    fn a_report_of_nothing_is_a_page_too() {
        assert!(page(&BenchReport::default()).ends_with("</html>\n"));
    }
}
