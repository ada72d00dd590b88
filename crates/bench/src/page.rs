//! A report as one HTML page that needs nothing else: for each measure a plot (inline SVG) of
//! medians with least and most, and the same as a table. Knows only reports.

use crate::plan::WITHOUT;
use crate::report::{CaseReport, Report, Spread};
use crate::table::{MEASURES, Measure, marked, number, shown};
use instep_report::html::{self, add_paragraph, escaped, marks};
use std::fmt::Write as _;

/// Widths and heights of a plot.
const LEFT: f64 = 190.0;
const PLOT: f64 = 600.0;
const RIGHT: f64 = 70.0;
const LANE: f64 = 11.0;
const GAP: f64 = 9.0;
/// A scheduler has the colour of its place; more than these begin again.
const COLOURS: usize = 8;

const STYLE: &str = "
:root{--c0:#8a8f94;--c1:#0b63a5;--c2:#c2410c;--c3:#15803d;--c4:#7e22ce;--c5:#b45309;--c6:#be185d;
--c7:#0f766e}
@media screen and (prefers-color-scheme:dark){:root{--c0:#a3a9ae;--c1:#60b0f4;--c2:#fb923c;--c3:#4ade80;--c4:#c084fc;
--c5:#fbbf24;--c6:#f472b6;--c7:#2dd4bf}}
svg text.soft{font-size:11px}.one{stroke:var(--soft);stroke-dasharray:3 3}
.key{display:inline-block;margin-right:1.2rem}.key i{display:inline-block;width:.75em;height:.75em;
border-radius:50%;margin-right:.35em}
body{max-width:900px}.about{text-align:left;white-space:normal;display:inline-block}.bad{color:var(--bad)}
";

/// The page of this report.
#[must_use]
pub fn page(report: &Report) -> String {
    let mut style = STYLE.to_owned();
    for colour in 0..COLOURS {
        let _ = write!(style, ".s{colour}{{fill:var(--c{colour});stroke:var(--c{colour})}}");
        let _ = write!(style, "i.s{colour}{{background:var(--c{colour})}}");
    }
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
    legend(&mut out, report);
    for measure in &MEASURES {
        section(&mut out, report, measure);
    }
    cases(&mut out, report);
    write_notes(&mut out, report);
    html::page("Schedulers side by side", &style, &out)
}

fn legend(out: &mut String, report: &Report) {
    out.push_str("<p>");
    for (place, scheduler) in report.schedulers.iter().enumerate() {
        let _ = write!(
            out,
            "<span class=\"key\"><i class=\"s{}\"></i>{}{}</span>",
            place % COLOURS,
            escaped(&scheduler.name),
            scheduler.version.as_ref().map_or(String::new(), |v| format!(" ({})", escaped(v)))
        );
    }
    out.push_str("</p>\n");
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

fn section(out: &mut String, report: &Report, measure: &Measure) {
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

/// From 0 to what all values need, or, where a few would press the others together, to what most need;
/// what is beyond stands at the edge with its number.
struct Scale {
    most: f64,
}

impl Scale {
    fn of(spreads: &[Spread]) -> Self {
        let mut medians: Vec<f64> = spreads.iter().map(|spread| spread.median).collect();
        medians.sort_by(f64::total_cmp);
        let at = medians.len().saturating_sub(1) * 9 / 10;
        let high = medians.get(at).copied().unwrap_or(1.0) * 1.15;
        let all = spreads.iter().map(|spread| spread.max).fold(0.0, f64::max) * 1.02;
        let most = if all <= 2.0 * high { all.max(high) } else { high };
        Self { most: if most > 0.0 { most } else { 1.0 } }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + (value / self.most).clamp(0.0, 1.0) * PLOT
    }
}

fn plot(out: &mut String, cases: &[&CaseReport], names: &[&str], measure: &Measure) {
    let of_case = |case: &CaseReport| -> Vec<(usize, Spread)> {
        let each = names.iter().enumerate();
        each.filter_map(|(place, name)| Some((place, value(case, name, measure)?))).collect()
    };
    let spreads: Vec<Spread> =
        cases.iter().flat_map(|case| of_case(case)).map(|(_, spread)| spread).collect();
    let scale = Scale::of(&spreads);
    let lanes: usize = cases.iter().map(|case| of_case(case).len().max(1)).sum();
    let bottom = lanes as f64 * LANE + cases.len() as f64 * GAP + GAP;
    let _ = writeln!(
        out,
        "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">",
        LEFT + PLOT + RIGHT,
        bottom + 20.0,
        escaped(measure.title)
    );
    for mark in marks(0.0, scale.most) {
        let x = scale.x(mark);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"4\" y2=\"{bottom:.1}\"/>\
             <text class=\"soft\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 14.0,
            round(mark)
        );
    }
    if measure.one && scale.most >= 1.0 {
        let x = scale.x(1.0);
        let _ = writeln!(
            out,
            "<line class=\"one\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"4\" y2=\"{bottom:.1}\"/>"
        );
    }
    let mut y = GAP;
    for case in cases {
        let of_case = of_case(case);
        let height = of_case.len().max(1) as f64 * LANE;
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} <tspan class=\"soft\">{}</tspan>\
             </text>",
            LEFT - 8.0,
            y + height / 2.0 + 4.0,
            escaped(&case.name),
            number(case.share)
        );
        for (place, spread) in of_case {
            let label = (names.len() > COLOURS).then(|| short(names[place]));
            let label = label.as_deref();
            lane(out, &scale, y + LANE / 2.0, (place, names[place], label), &spread);
            y += LANE;
        }
        y += GAP;
    }
    out.push_str("</svg>\n");
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
    (place, name, label): (usize, &str, Option<&str>),
    spread: &Spread,
) {
    let (x, from, to) = (scale.x(spread.median), scale.x(spread.min), scale.x(spread.max));
    let colour = place % COLOURS;
    let short =
        name.strip_prefix(WITHOUT).map_or(name.to_owned(), |m| format!("Instep without {m}"));
    let _ = writeln!(
        out,
        "<g class=\"s{colour}\"><title>{}: {}</title>\
         <line x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke-width=\"2\"/>\
         <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/></g>",
        escaped(&short),
        shown(spread, 1.0)
    );
    let beyond = [spread.median, spread.max].into_iter().find(|value| *value > scale.most);
    let said: Vec<String> = beyond.map(number).into_iter().chain(label.map(escaped)).collect();
    if !said.is_empty() {
        let _ = writeln!(
            out,
            "<text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x.max(to) + 7.0,
            y + 4.0,
            said.join(" ")
        );
    }
}

fn cases(out: &mut String, report: &Report) {
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

fn write_notes(out: &mut String, report: &Report) {
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
    use crate::report::{Outcome, TookPart};

    fn report() -> Report {
        let outcome = |speeds: &[f64]| Outcome {
            fair_share_speed: Spread::of(speeds.iter().copied()),
            ..Outcome::default()
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
        Report { schedulers, cases: vec![case], ..Report::default() }
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
        let far = Outcome { fair_share_speed: Spread::of([50.0]), ..Outcome::default() };
        report.cases[3].results.insert("instep".to_owned(), far);
        assert!(page(&report).contains(">50.0</text>"));
    }

    #[test]
    fn a_spread_is_not_cut_off_without_a_word() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied()).unwrap();
        let near = [spread(&[0.2, 0.3]), spread(&[0.1, 0.5])];
        assert!(Scale::of(&near).most > 0.5, "all fit: {}", Scale::of(&near).most);
        let far: Vec<Spread> =
            (0..20).map(|_| spread(&[0.5, 1.0])).chain([spread(&[0.5, 9.0])]).collect();
        assert!(Scale::of(&far).most < 1.5);
        let mut report = report();
        let wide =
            Outcome { fair_share_speed: Spread::of([0.05, 0.05, 50.0]), ..Outcome::default() };
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
        assert!(page(&Report::default()).ends_with("</html>\n"));
    }
}
