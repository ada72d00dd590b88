//! Published against simulated as one HTML page that needs nothing else: a table and a plot (inline
//! SVG) for each experiment. Knows only results.

use super::table::figure;
use super::{Reproduced, Result, Row, Verdict};
use std::fmt::Write as _;

/// Widths and heights of a plot.
const LEFT: f64 = 270.0;
const PLOT: f64 = 480.0;
const RIGHT: f64 = 30.0;
const LINE: f64 = 24.0;

const STYLE: &str = "
:root{--ink:#1c2126;--soft:#667078;--line:#d8dde1;--paper:#fff;--published:#c2410c;
--simulated:#0b63a5}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9eb;--soft:#98a2aa;--line:#3a4249;--paper:#14181b;
--published:#fb923c;--simulated:#60b0f4}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:840px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin:2.5rem 0 0}p{margin:.3rem 0}
.soft{color:var(--soft)}svg{width:100%;height:auto;margin:.5rem 0}
text{font:12px system-ui,sans-serif;fill:var(--ink)}text.soft{fill:var(--soft)}
.grid{stroke:var(--line)}.interval{stroke:var(--simulated);stroke-width:2}
.simulated{fill:var(--simulated)}.published{fill:none;stroke:var(--published);stroke-width:2}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:right;padding:.15rem .4rem;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}.differs{color:var(--published)}
";

/// The page of these results.
#[must_use]
pub fn page(found: &Reproduced) -> String {
    let mut out = String::from(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Instep: published and simulated</title>\n<style>",
    );
    out.push_str(STYLE);
    out.push_str(
        "</style></head>\n<body>\n<h1>Published and simulated</h1>\n\
         <p class=\"soft\">Diamonds are published figures, hollow and dashed where they follow from \
         what is published; dots are means over seeds with their 95 % confidence interval.</p>\n",
    );
    for experiment in &found.experiments {
        section(&mut out, experiment);
    }
    out.push_str("</body>\n</html>\n");
    out
}

fn section(out: &mut String, experiment: &Result) {
    let _ = writeln!(
        out,
        "<section>\n<h2>{}</h2>\n<p>{}</p>\n<p class=\"soft\">{}; {}</p>",
        escaped(&experiment.name),
        escaped(&experiment.about),
        escaped(&experiment.source),
        escaped(&experiment.unit)
    );
    plot(out, experiment);
    out.push_str(
        "<table><tr><th></th><th>published</th><th>simulated</th><th>from</th><th>to</th>\
         <th>seeds</th><th></th></tr>\n",
    );
    for row in &experiment.rows {
        cells(out, row, &experiment.unit);
    }
    out.push_str("</table>\n");
    for (head, text) in [("Note", &experiment.note), ("Fitted", &experiment.fitted)] {
        if let Some(text) = text {
            let _ = writeln!(out, "<p class=\"soft\">{head}: {}</p>", escaped(text));
        }
    }
    for row in experiment.rows.iter().filter(|row| row.verdict == Some(Verdict::Differs)) {
        if let Some(why) = &row.why {
            let _ = writeln!(out, "<p>{} differs: {}</p>", escaped(&row.label), escaped(why));
        }
    }
    out.push_str("</section>\n");
}

fn cells(out: &mut String, row: &Row, unit: &str) {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), figure);
    let verdict = row.verdict.map_or("", Verdict::word);
    let own = if row.unit == unit { String::new() } else { format!(" ({})", row.unit) };
    let _ = writeln!(
        out,
        "<tr><td>{}{}</td><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
         <td class=\"{verdict}\">{verdict}</td></tr>",
        escaped(&row.label),
        escaped(&own),
        number(row.published),
        if row.implied { "*" } else { "" },
        number(row.simulated),
        number(row.low),
        number(row.high),
        row.seeds
    );
}

/// Where values stand: from the least to the most of an experiment, zero included.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn of<'a>(rows: impl Iterator<Item = &'a Row>) -> Self {
        let values = rows.flat_map(|row| [row.published, row.simulated, row.low, row.high]);
        let (low, high) = values
            .flatten()
            .fold((0.0, 0.0), |(low, high), value| (f64::min(low, value), f64::max(high, value)));
        Self { low, high: if high > low { high } else { low + 1.0 } }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + (value - self.low) / (self.high - self.low) * PLOT
    }

    /// Round numbers, four to nine of them.
    fn marks(&self) -> Vec<f64> {
        let rough = (self.high - self.low) / 5.0;
        let ten = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|by| by * ten).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        (first..=first + 12).map(|at| at as f64 * step).filter(|at| *at <= self.high).collect()
    }
}

fn plot(out: &mut String, experiment: &Result) {
    // Rows of another unit stand in the table only.
    let rows = || experiment.rows.iter().filter(|row| row.unit == experiment.unit);
    let scale = Scale::of(rows());
    let bottom = LINE * (rows().count() as f64 + 0.5);
    let _ = writeln!(
        out,
        "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">",
        LEFT + PLOT + RIGHT,
        bottom + 20.0,
        escaped(&experiment.name)
    );
    for mark in scale.marks() {
        let x = scale.x(mark);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"4\" y2=\"{bottom:.1}\"/>\
             <text class=\"soft\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 15.0,
            figure(mark).trim_end_matches('0').trim_end_matches('.')
        );
    }
    for (at, row) in rows().enumerate() {
        points(out, &scale, LINE * (at as f64 + 0.75), row);
    }
    out.push_str("</svg>\n");
}

fn points(out: &mut String, scale: &Scale, y: f64, row: &Row) {
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        LEFT - 12.0,
        y + 4.0,
        escaped(&row.label)
    );
    if let (Some(low), Some(high), Some(mean)) = (row.low, row.high, row.simulated) {
        let _ = writeln!(
            out,
            "<line class=\"interval\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <circle class=\"simulated\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4\"/>",
            scale.x(low),
            scale.x(high),
            scale.x(mean)
        );
    }
    if let Some(published) = row.published {
        let (x, dashed) = (scale.x(published), if row.implied { "2 2" } else { "none" });
        let _ = writeln!(
            out,
            "<path class=\"published\" stroke-dasharray=\"{dashed}\" \
             d=\"M{:.1} {y:.1}L{x:.1} {:.1}L{:.1} {y:.1}L{x:.1} {:.1}Z\"/>",
            x - 7.0,
            y - 7.0,
            x + 7.0,
            y + 7.0
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_numbers_within_the_scale() {
        assert_eq!(Scale { low: 0.0, high: 9.0 }.marks(), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(Scale { low: -3.0, high: 49.0 }.marks(), [0.0, 20.0, 40.0]);
        let scale = Scale::of(std::iter::empty());
        assert!(scale.high > scale.low && scale.marks().len() > 3);
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("<a b=\"c\">&"), "&lt;a b=&quot;c&quot;&gt;&amp;");
    }
}
