//! Plots as inline SVG: the frame, the marks of a scale as lines across it with their numbers, a value with its
//! spread, and a legend. Knows nothing of what the values mean.
//!
//! On a screen too narrow for its text a plot keeps its size and scrolls.

use crate::html::{escaped, marks};
use std::fmt::Write as _;

/// Colours of series; more series begin again, with dashed lines.
pub const COLOURS: usize = 8;

/// Sizes of a plot in units of its drawing, about a pixel each: the area of the values, and what is around it.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// Left of the area, for the names of rows or the numbers of a vertical scale.
    pub left: f64,
    /// Above the area.
    pub top: f64,
    /// Of the area itself.
    pub width: f64,
    /// Of the area itself.
    pub height: f64,
    /// Right of the area, for what stands beyond the scale.
    pub right: f64,
}

/// Below the area, for the numbers or names along it.
const BELOW: f64 = 20.0;
/// From the bottom of the area to the line that its numbers stand on.
const BASELINE: f64 = 15.0;

/// The width of a letter of a row's name, rather more than less.
const LETTER: f64 = 7.0;
/// Between a row's name and the area.
const GAP: f64 = 9.0;

impl Area {
    /// What is needed left of an area for names of rows, the longest of so many letters.
    pub fn room_for(letters: usize) -> f64 {
        LETTER * letters as f64 + GAP
    }

    fn bottom(&self) -> f64 {
        self.top + self.height
    }

    fn end(&self) -> f64 {
        self.left + self.width
    }
}

/// The way in which the values of a plot grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From left to right: a row for each thing that has values.
    Right,
    /// From the bottom to the top: along something else.
    Up,
}

/// The scale of a plot: values from `low` to `high` in an area.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Where the values are.
    pub area: Area,
    /// The way in which they grow.
    pub direction: Direction,
    /// The least value of the area.
    pub low: f64,
    /// The most, above `low`.
    pub high: f64,
}

impl Scale {
    /// Where a value is along the scale; what is beyond an end is at that end.
    pub fn place(&self, value: f64) -> f64 {
        let part = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        match self.direction {
            Direction::Right => self.area.left + part * self.area.width,
            Direction::Up => self.area.top + (1.0 - part) * self.area.height,
        }
    }

    /// A line of the style class `class` across the area at a value.
    pub fn draw_line(&self, out: &mut String, class: &str, value: f64) {
        let (at, area) = (self.place(value), &self.area);
        let [x1, x2, y1, y2] = match self.direction {
            Direction::Right => [at, at, area.top, area.bottom()],
            Direction::Up => [area.left, area.end(), at, at],
        };
        let _ = writeln!(
            out,
            "<line class=\"{class}\" x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    /// A dot at `mean` and a line from `low` to `high`, at `across` on the other axis, in the colour of `class`.
    /// A pointer over it shows `title`.
    pub fn draw_spread(
        &self,
        out: &mut String,
        (across, class): (f64, &str),
        [low, mean, high]: [f64; 3],
        title: &str,
    ) {
        let [low, mean, high] = [low, mean, high].map(|value| self.place(value));
        let (line, dot) = match self.direction {
            Direction::Right => ([low, high, across, across], [mean, across]),
            Direction::Up => ([across, across, low, high], [across, mean]),
        };
        let ([x1, x2, y1, y2], [cx, cy]) = (line, dot);
        let _ = writeln!(
            out,
            "<g class=\"{class}\"><title>{}</title>\
             <line x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\" stroke-width=\"2\"/>\
             <circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\"/></g>",
            escaped(title)
        );
    }

    fn draw_mark(&self, out: &mut String, value: f64, number: &str) {
        self.draw_line(out, "grid", value);
        let at = self.place(value);
        match self.direction {
            Direction::Right => self.draw_below(out, at, number),
            Direction::Up => {
                draw_text(out, (self.area.left - 6.0, at + 4.0), END, &escaped(number))
            }
        }
    }

    /// Plain text below the area, its middle at `x`.
    pub fn draw_below(&self, out: &mut String, x: f64, text: &str) {
        let y = self.area.bottom() + BASELINE;
        draw_text(out, (x, y), "class=\"soft\" text-anchor=\"middle\"", &escaped(text));
    }

    /// The name of a row, which is markup, left of the area; `y` is the middle of the row.
    pub fn draw_name(&self, out: &mut String, y: f64, name: &str) {
        draw_text(out, (self.area.left - GAP, y + 4.0), "text-anchor=\"end\"", name);
    }
}

const END: &str = "class=\"soft\" text-anchor=\"end\"";

fn draw_text(out: &mut String, (x, y): (f64, f64), attributes: &str, markup: &str) {
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{markup}</text>");
}

/// Markup beside what is drawn, in soft ink, `y` its middle.
pub fn draw_remark(out: &mut String, x: f64, y: f64, markup: &str) {
    draw_text(out, (x, y + 4.0), "class=\"soft\"", markup);
}

/// A plot with the scale's marks, each with its number; `draw` adds what is in it. `label` is for readers who do
/// not see it.
pub fn add_plot(
    out: &mut String,
    label: &str,
    scale: &Scale,
    number: impl Fn(f64) -> String,
    draw: impl FnOnce(&mut String),
) {
    let area = &scale.area;
    let (width, height) = (area.end() + area.right, area.bottom() + BELOW);
    let _ = writeln!(
        out,
        "<div class=\"scroll\"><svg class=\"plot\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">",
        escaped(label)
    );
    for mark in marks(scale.low, scale.high) {
        scale.draw_mark(out, mark, &number(mark));
    }
    draw(out);
    out.push_str("</svg></div>\n");
}

/// The style class of a series by its place: a colour, and from the second round of colours on dashed.
pub fn series_class(at: usize) -> String {
    let dashed = if at >= COLOURS { " dashed" } else { "" };
    format!("s{}{dashed}", at % COLOURS)
}

/// Names of series, each behind a dot or dash of its class.
pub fn add_legend(out: &mut String, series: impl IntoIterator<Item = (String, String)>) {
    out.push_str("<p>");
    for (class, name) in series {
        let _ = write!(
            out,
            "<span class=\"series\"><i class=\"{class}\"></i>{}</span> ",
            escaped(&name)
        );
    }
    out.push_str("</p>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(direction: Direction) -> Scale {
        let area = Area { left: 100.0, top: 10.0, width: 200.0, height: 50.0, right: 20.0 };
        Scale { area, direction, low: 0.0, high: 2.0 }
    }

    #[test]
    fn values_grow_to_the_right_or_up_and_stop_at_the_ends() {
        let at = |direction| [-1.0, 0.0, 1.0, 9.0].map(|value| scale(direction).place(value));
        assert_eq!(at(Direction::Right), [100.0, 100.0, 200.0, 300.0]);
        assert_eq!(at(Direction::Up), [60.0, 60.0, 35.0, 10.0]);
    }

    #[test]
    fn a_plot_has_a_line_and_a_number_for_each_mark() {
        for direction in [Direction::Right, Direction::Up] {
            let mut out = String::new();
            let scale = scale(direction);
            let number = |value: f64| format!("<{value:.1}>");
            add_plot(&mut out, "a<b", &scale, number, |out| {
                scale.draw_spread(out, (20.0, "s1"), [0.5, 1.0, 1.5], "one: <1>");
            });
            assert_eq!(out.matches("class=\"grid\"").count(), marks(0.0, 2.0).len());
            assert!(out.contains("&lt;2.0&gt;</text>") && out.contains("one: &lt;1&gt;"), "{out}");
            assert!(out.contains("viewBox=\"0 0 320 80\"") && out.contains("a&lt;b"), "{out}");
        }
    }

    #[test]
    fn a_second_round_of_colours_is_dashed() {
        assert_eq!([0, 7, 8].map(series_class), ["s0", "s7", "s0 dashed"]);
        assert!(crate::html::STYLE.contains(".s7") && !crate::html::STYLE.contains(".s8"));
    }
}
