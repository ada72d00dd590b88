//! The page of a sweep: a plot of each measure along the values of the first place, a line for each VM and
//! combination of the other values. Inline SVG, nothing else is needed.

use super::rows::Point;
use super::sweep::{MEASURES, Measure};
use instep_report::html::{self, escaped, marks};
use instep_report::stats::{Estimate, estimate};
use std::fmt::Write as _;

/// Where a plot begins, its size, and the space below it.
const LEFT: f64 = 60.0;
const TOP: f64 = 10.0;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 240.0;
const BELOW: f64 = 24.0;

const STYLE: &str = "
.line{fill:none;stroke-width:1.5}.key{display:inline-block;margin-right:1rem}
";

/// A line of a plot: what it is, and its points by the place on the axis.
struct Series {
    label: String,
    points: Vec<(usize, Estimate)>,
}

/// The page of these points. Intervals are of 95 % confidence.
pub(super) fn page(places: &[String], points: &[Point<'_>]) -> String {
    let mut out = String::new();
    let first = places.first().map_or("", String::as_str);
    let mut along: Vec<&str> = Vec::new();
    for (values, _) in points {
        let value = values.first().map_or("", String::as_str);
        if !along.contains(&value) {
            along.push(value);
        }
    }
    let _ = writeln!(
        out,
        "<p class=\"soft\">Along: {}. Dots are means over seeds, with their 95 % confidence interval.</p>",
        escaped(first)
    );
    for measure in &MEASURES {
        let lines = series(places, points, &along, measure);
        plot(&mut out, measure.0, &along, &lines);
    }
    html::page("Sweep", STYLE, &out)
}

fn series(
    places: &[String],
    points: &[Point<'_>],
    along: &[&str],
    (_, measure): &Measure,
) -> Vec<Series> {
    let mut lines: Vec<Series> = Vec::new();
    for (values, reports) in points {
        let at = along.iter().position(|value| values.first().is_some_and(|own| own == value));
        let others = places.iter().zip(*values).skip(1);
        let others: String = others.map(|(place, value)| format!(", {place} {value}")).collect();
        for (vm, named) in reports.first().iter().flat_map(|report| report.vms.iter().enumerate()) {
            let found: Vec<f64> =
                reports.iter().filter_map(|report| measure(report.vms.get(vm)?)).collect();
            let (Some(at), Some(found)) = (at, estimate(&found)) else { continue };
            let label = format!("{}{others}", named.name);
            match lines.iter_mut().find(|line| line.label == label) {
                Some(line) => line.points.push((at, found)),
                None => lines.push(Series { label, points: vec![(at, found)] }),
            }
        }
    }
    lines
}

fn plot(out: &mut String, name: &str, along: &[&str], lines: &[Series]) {
    let most =
        lines.iter().flat_map(|line| &line.points).map(|(_, found)| found.high.max(found.mean));
    let most = most.filter(|most| most.is_finite()).fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let x = |at: usize| LEFT + WIDTH * (at as f64 + 0.5) / along.len().max(1) as f64;
    let y = |value: f64| TOP + HEIGHT * (1.0 - value.clamp(0.0, most) / most);
    let name = escaped(name);
    let _ = writeln!(
        out,
        "<section>\n<h2>{name}</h2>\n<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{name}\">",
        LEFT + WIDTH,
        TOP + HEIGHT + BELOW
    );
    for mark in marks(0.0, most) {
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
             <text class=\"soft\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT + WIDTH,
            y(mark),
            y(mark),
            LEFT - 6.0,
            y(mark) + 4.0,
            format!("{mark:.4}").trim_end_matches('0').trim_end_matches('.')
        );
    }
    for (at, value) in along.iter().enumerate() {
        let _ = writeln!(
            out,
            "<text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x(at),
            TOP + HEIGHT + 16.0,
            escaped(value)
        );
    }
    for (at, line) in lines.iter().enumerate() {
        let color = color(at);
        let path: Vec<String> = line
            .points
            .iter()
            .map(|(at, found)| format!("{:.1},{:.1}", x(*at), y(found.mean)))
            .collect();
        let _ = writeln!(
            out,
            "<polyline class=\"line\" stroke=\"{color}\" points=\"{}\"/>",
            path.join(" ")
        );
        for (at, found) in &line.points {
            let _ = writeln!(
                out,
                "<line stroke=\"{color}\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{2:.1}\"/>\
                 <circle fill=\"{color}\" cx=\"{0:.1}\" cy=\"{3:.1}\" r=\"3\"><title>{4}</title></circle>",
                x(*at),
                y(found.low),
                y(found.high),
                y(found.mean),
                escaped(&format!("{}: {:.4}", line.label, found.mean))
            );
        }
    }
    out.push_str("</svg>\n<p>");
    for (at, line) in lines.iter().enumerate() {
        let _ = write!(
            out,
            "<span class=\"key\" style=\"color:{}\">{}</span> ",
            color(at),
            escaped(&line.label)
        );
    }
    out.push_str("</p>\n</section>\n");
}

/// Neighbours differ much: steps of the golden angle.
fn color(at: usize) -> String {
    format!("hsl({} 65% 45%)", at * 137 % 360)
}
