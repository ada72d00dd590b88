//! The page of a sweep: a plot of each measure along the values of the first place, a line for each VM and
//! combination of the other values. Inline SVG, nothing else is needed.

use super::rows::Point;
use super::sweep::{MEASURES, Measure};
use instep_report::html::{self, escaped};
use instep_report::plot::{Area, Direction, Scale, add_legend, add_plot, series_class};
use instep_report::stats::{Estimate, estimate};
use std::fmt::Write as _;

/// Where the values of a plot are.
const AREA: Area = Area { left: 60.0, top: 10.0, width: 640.0, height: 240.0, right: 10.0 };

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
    html::page("Sweep", "body{max-width:900px}", &out)
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
    let high = if most > 0.0 { most } else { 1.0 };
    let scale = Scale { area: AREA, direction: Direction::Up, low: 0.0, high };
    let step = AREA.width / along.len().max(1) as f64;
    let x = |at: usize| AREA.left + step * (at as f64 + 0.5);
    // Beside one another, or intervals of the same place would hide each other.
    let apart = (step * 0.6 / lines.len().max(1) as f64).min(6.0);
    let middle = (lines.len() as f64 - 1.0) / 2.0;
    let x_of = |at: usize, line: usize| x(at) + apart * (line as f64 - middle);
    let number = |mark: f64| html::without_zeros(&format!("{mark:.4}")).to_owned();
    let _ = writeln!(out, "<section>\n<h2>{}</h2>", escaped(name));
    add_plot(out, name, &scale, number, |out| {
        for (at, value) in along.iter().enumerate() {
            scale.draw_below(out, x(at), value);
        }
        for (place, line) in lines.iter().enumerate() {
            let class = series_class(place + 1);
            let point = |(at, found): &(usize, Estimate)| {
                format!("{:.1},{:.1}", x_of(*at, place), scale.place(found.mean))
            };
            let points: Vec<String> = line.points.iter().map(point).collect();
            let points = points.join(" ");
            let _ = writeln!(out, "<polyline class=\"{class}\" points=\"{points}\"/>");
            for (at, found) in &line.points {
                let title = format!("{}: {:.4}", line.label, found.mean);
                let values = [found.low, found.mean, found.high];
                scale.draw_spread(out, (x_of(*at, place), &class), values, &title);
            }
        }
    });
    let name = |(at, line): (usize, &Series)| (series_class(at + 1), line.label.clone());
    add_legend(out, lines.iter().enumerate().map(name));
    out.push_str("</section>\n");
}
