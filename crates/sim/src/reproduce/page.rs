//! Published against simulated as one HTML page that needs nothing else: a table for each experiment
//! and a plot (inline SVG) for each unit of its rows. Knows only results.

use super::table::{counts, figure, published};
use super::{ExperimentResult, FigureVerdict, PublishedFigure, Reproduced};
use instep_report::html::{self, add_paragraph, escaped};
use instep_report::plot::{Area, Direction, Scale, add_plot};
use std::fmt::Write as _;

/// The height of a row.
const LINE: f64 = 24.0;

const STYLE: &str = "
:root{--published:#c2410c;--simulated:#0b63a5}
@media screen and (prefers-color-scheme:dark){:root{--published:#fb923c;--simulated:#60b0f4}}
.simulated{--c:var(--simulated)}.published{fill:none;stroke:var(--published);stroke-width:2}
body{max-width:900px}.differs{color:var(--published)}
";

/// The page of these results.
pub fn page(found: &Reproduced) -> String {
    let mut out = String::new();
    out.push_str(
        "<p class=\"soft\">Diamonds are published figures, dashed where they follow from what is \
         published; an arrow to the left from a bar is a published bound, the most that was seen; dots \
         are means over seeds (of spreads: the spread) with their 95 % confidence interval. Figures \
         with f were fitted, those with a follow from a definition; only the others are predicted.</p>\n",
    );
    for (kind, counts) in counts(found) {
        let _ = writeln!(out, "<p>{}: {}</p>", kind.word(), counts);
    }
    for experiment in &found.experiments {
        section(&mut out, experiment);
    }
    html::page("Published and simulated", STYLE, &out)
}

fn section(out: &mut String, experiment: &ExperimentResult) {
    let _ = writeln!(
        out,
        "<section>\n<h2>{}</h2>\n<p>{}</p>\n<p class=\"soft\">{}; {}</p>",
        escaped(&experiment.name),
        escaped(&experiment.about),
        escaped(&experiment.source),
        escaped(&experiment.unit)
    );
    let mut units: Vec<&str> = Vec::new();
    for row in &experiment.rows {
        if !units.contains(&row.unit.as_str()) {
            units.push(&row.unit);
        }
    }
    for unit in &units {
        if units.len() > 1 {
            let _ = writeln!(out, "<h3>{}</h3>", escaped(unit));
        }
        plot(out, experiment, unit);
    }
    let head = ["", "published", "simulated", "from", "to", "seeds", ""];
    let rows: Vec<_> = experiment.rows.iter().map(|row| cells(row, &experiment.unit)).collect();
    out.push_str(&html::table(&head, &rows));
    let mut soft = |head: &str, text: &str| add_paragraph(out, "soft", &format!("{head}: {text}"));
    if let Some(note) = &experiment.note {
        soft("Note", note);
    }
    soft("Fitted", &experiment.fitted);
    experiment.chosen.iter().for_each(|what| soft("Chosen after results", what));
    for row in experiment.rows.iter().filter(|row| row.verdict == Some(FigureVerdict::Differs)) {
        if let Some(why) = &row.why {
            let _ = writeln!(out, "<p>{} differs: {}</p>", escaped(&row.label), escaped(why));
        }
    }
    out.push_str("</section>\n");
}

fn cells(row: &PublishedFigure, unit: &str) -> Vec<String> {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), figure);
    let verdict = row.verdict.map_or("", FigureVerdict::word);
    let own = if row.unit == unit { String::new() } else { format!(" ({})", row.unit) };
    vec![
        escaped(&row.label) + &escaped(&own),
        row.published.map_or("-".to_owned(), |value| escaped(&published(row, value))),
        number(row.simulated),
        number(row.low),
        number(row.high),
        row.seeds.to_string(),
        format!("<span class=\"{verdict}\">{verdict}</span>"),
    ]
}

/// From the least to the most of these rows, zero included.
fn scale_of<'a>(rows: impl Iterator<Item = &'a PublishedFigure> + Clone) -> Scale {
    let values = rows.clone().flat_map(|row| [row.published, row.simulated, row.low, row.high]);
    let (low, high) = values
        .flatten()
        .fold((0.0, 0.0), |(low, high), value| (f64::min(low, value), f64::max(high, value)));
    let letters = rows.clone().map(|row| row.label.chars().count()).max().unwrap_or(0);
    let left = Area::room_for(letters).min(400.0);
    let height = LINE * (rows.count() as f64 + 0.5);
    Scale {
        area: Area { left, top: 4.0, width: 760.0 - left, height, right: 30.0 },
        direction: Direction::Right,
        low,
        high: if high > low { high } else { low + 1.0 },
    }
}

/// The rows of one unit.
fn plot(out: &mut String, experiment: &ExperimentResult, unit: &str) {
    let rows = experiment.rows.iter().filter(|row| row.unit == unit);
    let scale = scale_of(rows.clone());
    let label = format!("{}, {unit}", experiment.name);
    let number = |mark| html::without_zeros(&figure(mark)).to_owned();
    add_plot(out, &label, &scale, number, |out| {
        for (at, row) in rows.enumerate() {
            points(out, &scale, scale.area.top + LINE * (at as f64 + 0.75), row);
        }
    });
}

fn points(out: &mut String, scale: &Scale, y: f64, row: &PublishedFigure) {
    scale.draw_name(out, y, &escaped(&row.label));
    if let (Some(low), Some(high), Some(mean)) = (row.low, row.high, row.simulated) {
        let title = format!("simulated: {}", figure(mean));
        scale.draw_spread(out, (y, "simulated"), [low, mean, high], &title);
    }
    if let Some(published) = row.published {
        let (x, dashed) = (scale.place(published), if row.implied { "2 2" } else { "none" });
        if row.bound {
            // A bar where the bound is, dashed if it follows, and an arrow to where the figure may be.
            let _ = writeln!(
                out,
                "<path class=\"published bound\" stroke-dasharray=\"{dashed}\" \
                 d=\"M{x:.1} {:.1}V{:.1}\"/>\
                 <path class=\"published\" d=\"M{x:.1} {y:.1}h-16m5 -4l-5 4l5 4\"/>",
                y - 8.0,
                y + 8.0
            );
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_without_values_is_one() {
        let scale = scale_of(std::iter::empty());
        assert!(scale.high > scale.low && html::marks(scale.low, scale.high).len() > 3);
    }
}
