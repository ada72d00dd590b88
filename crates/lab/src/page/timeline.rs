//! Where each guest's memory was over time, as inline SVG: the nodes' parts stacked, and a line
//! for the part at home.
//!
//! The SVG is stretched to the page's width and holds no text, so that words keep their size on
//! any screen. Between two looks the earlier one is drawn: nothing is made up.

use super::{Colours, observed};
use crate::scenario::report::{LabReport, MemorySample};
use instep_report::html::escaped;
use std::fmt::Write as _;

/// The SVG's own width and height.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 100.0;

/// One guest at one look.
struct Point<'a> {
    x: f64,
    seen: &'a MemorySample,
}

/// Times of this machine onto the drawing's width.
#[derive(Clone, Copy)]
struct Axis {
    from: f64,
    to: f64,
}

impl Axis {
    fn x(self, seconds: f64) -> f64 {
        let span = (self.to - self.from).max(0.001);
        ((seconds - self.from) / span).clamp(0.0, 1.0) * WIDTH
    }
}

pub(super) fn draw(report: &LabReport, colours: &Colours) -> String {
    let (Some(first), Some(last)) = (report.samples.first(), report.samples.last()) else {
        return String::new();
    };
    if report.samples.len() < 3 {
        return String::new();
    }
    let axis = Axis { from: first.seconds, to: last.seconds };
    let mut html = format!(
        "<section>\n<h2>Memory over time</h2>\n<p>Each guest's touched memory by node, at {} looks \
         into the host's /proc. Node 0 is at the bottom and darkest. The line is the part that \
         lies on a node its vCPUs may use, from none at the bottom to all at the top. Numbers are \
         the moments above.</p>\n",
        report.samples.len()
    );
    for name in &colours.0 {
        html.push_str(&guest(report, name, axis, &colours.class(name)));
    }
    html.push_str(&marks(report, axis));
    let _ = writeln!(
        html,
        "<p class=\"axis\"><span>{:.0} s</span><span>by this machine's clock, since the start\
         </span><span>{:.0} s</span></p>\n</section>",
        axis.from, axis.to
    );
    html
}

fn guest(report: &LabReport, name: &str, axis: Axis, class: &str) -> String {
    let at = |sample: &crate::scenario::report::LabSample| axis.x(sample.seconds);
    let points: Vec<Point<'_>> = report
        .samples
        .iter()
        .filter_map(|sample| {
            let seen = sample.guests.iter().find(|guest| guest.name == *name)?;
            Some(Point { x: at(sample), seen })
        })
        .collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return String::new();
    };
    let total = |seen: &MemorySample| seen.memory_bytes_by_node.iter().sum::<u64>();
    let most = points.iter().map(|point| total(point.seen)).max().unwrap_or(0).max(1);
    let nodes = report.host.nodes as usize;
    let mut svg = String::new();
    for node in (0..nodes).rev() {
        let height = |seen: &MemorySample| {
            let below: u64 = seen.memory_bytes_by_node.iter().take(node + 1).sum();
            HEIGHT - below as f64 / most as f64 * HEIGHT
        };
        // From full to a quarter of the colour's strength.
        let strength = 1.0 - 0.75 * node as f64 / (nodes.max(2) - 1) as f64;
        let path = stairs(&points, height);
        let (start, end) = (first.x, last.x.max(first.x + 2.0));
        // The page's ground below it, so that strengths do not add up.
        for fill in ["ground".to_owned(), format!("{class}\" fill-opacity=\"{strength:.2}")] {
            let _ = write!(
                svg,
                "<path class=\"{fill}\" d=\"M{start:.1} {HEIGHT:.0}{path}L{end:.1} {HEIGHT:.0}Z\"/>"
            );
        }
    }
    let best = points.iter().map(|point| point.seen.memory_home).fold(0.0, f64::max);
    let home = stairs(&points, |seen| 98.0 - seen.memory_home * 96.0);
    let _ = write!(svg, "<path class=\"home\" d=\"M{}\"/>", home.trim_start_matches('L'));
    let words = format!(
        "{:.0} % at home when first seen, {:.0} % at best; {} MiB",
        first.seen.memory_home * 100.0,
        best * 100.0,
        total(last.seen) >> 20,
    );
    format!(
        "<figure>\n<figcaption><b>{}</b>: {words}</figcaption>\n\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{}: {words}\">{svg}</svg>\n</figure>\n",
        escaped(name),
        escaped(name)
    )
}

/// A path that keeps each look's height until the next.
fn stairs(points: &[Point<'_>], height: impl Fn(&MemorySample) -> f64) -> String {
    let mut path = String::new();
    let mut before: Option<f64> = None;
    for point in points {
        let y = height(point.seen);
        if let Some(before) = before {
            let _ = write!(path, "L{:.1} {before:.1}", point.x);
        }
        let _ = write!(path, "L{:.1} {y:.1}", point.x);
        before = Some(y);
    }
    path
}

/// The moments' numbers below their times.
fn marks(report: &LabReport, axis: Axis) -> String {
    let mut html = String::from("<div class=\"marks\">");
    let moments = report.steps.iter().filter(|step| observed(report, step).is_some());
    for (step, number) in moments.zip(1..) {
        let left = axis.x(step.began + step.seconds) / WIDTH * 100.0;
        let _ = write!(html, "<span style=\"left:{left:.1}%\">{number}</span>");
    }
    html.push_str("</div>\n");
    html
}
