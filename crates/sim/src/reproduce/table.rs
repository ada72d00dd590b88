//! Published beside simulated as text, in lines of up to 80 columns.

use super::{ExperimentResult, FigureKind, FigureVerdict, PublishedFigure, Reproduced};
use instep_report::text::{lines, paragraph};
use std::fmt::Write as _;

const WIDTH: usize = 80;
/// Columns of a row's label.
const LABEL: usize = 36;

/// The table of these results.
pub fn table(found: &Reproduced) -> String {
    let mut out = String::new();
    for experiment in &found.experiments {
        if !out.is_empty() {
            out.push('\n');
        }
        one(&mut out, experiment);
    }
    out.push_str("\n* follows from what is published, is no figure there\n");
    out.push_str("f a number was fitted to it; a it follows from the definition, on any host\n");
    for (kind, counts) in counts(found) {
        let _ = writeln!(out, "{}: {}", kind.word(), counts);
    }
    out
}

/// Published figures of each kind that agree, differ and are unclear, in words; kinds without any are
/// left out.
pub(super) fn counts(found: &Reproduced) -> Vec<(FigureKind, String)> {
    let rows = || found.experiments.iter().flat_map(|experiment| &experiment.rows);
    let of = |kind: FigureKind| {
        let count = |verdict| {
            rows().filter(|row| row.kind == Some(kind) && row.verdict == Some(verdict)).count()
        };
        let counts =
            [FigureVerdict::Agrees, FigureVerdict::Differs, FigureVerdict::Unclear].map(count);
        let [agree, differ, unclear] = counts;
        let text = format!("{agree} agree, {differ} differ, {unclear} are unclear");
        (counts.iter().sum::<usize>() > 0).then_some((kind, text))
    };
    FigureKind::ALL.into_iter().filter_map(of).collect()
}

/// A few lines for each experiment: what it shows and how many figures it has.
pub fn summary(found: &Reproduced) -> String {
    let mut out = String::new();
    for experiment in &found.experiments {
        let rows = &experiment.rows;
        let published = rows.iter().filter(|row| row.published.is_some() && !row.implied).count();
        let implied = rows.iter().filter(|row| row.implied).count();
        let figures = match (published, implied) {
            (0, 0) => "none published".to_owned(),
            (published, 0) => format!("{published} published"),
            (published, implied) => format!("{published} published, {implied} that follow"),
        };
        let _ = writeln!(
            out,
            "{:20} {} rows, {figures}; seeds: {}",
            experiment.name,
            rows.len(),
            experiment.seeds
        );
        wrap(&mut out, "    ", &format!("{} ({})", experiment.about, experiment.source));
    }
    out.push_str("\nrows and figures of one: instep reproduce --list NAME\n");
    out
}

fn one(out: &mut String, experiment: &ExperimentResult) {
    wrap(out, "", &format!("{} ({}): {}", experiment.name, experiment.source, experiment.about));
    let run = experiment.rows.iter().map(|row| row.seeds).max().unwrap_or(0);
    let seeds = match (run, experiment.seeds) {
        _ if !experiment.chance => "no chance in it".to_owned(),
        (_, 1) => "one seed, no interval".to_owned(),
        (0, seeds) => format!("{seeds} seeds to be run"),
        (run, seeds) if (run as u64) < seeds => {
            format!("{run} of {seeds} seeds, 95 % confidence")
        }
        (run, _) => format!("{run} seeds, 95 % confidence"),
    };
    wrap(out, "  ", &format!("{}; {seeds}", experiment.unit));
    let heads = ["published", "simulated", "interval"];
    let _ = writeln!(out, "  {:LABEL$} {:>10} {:>9} {:>10}", "", heads[0], heads[1], heads[2]);
    for row in &experiment.rows {
        line(out, row);
    }
    if let Some(note) = &experiment.note {
        wrap(out, "  ", &format!("note: {note}"));
    }
    wrap(out, "  ", &format!("fitted: {}", experiment.fitted));
    for what in &experiment.chosen {
        wrap(out, "  ", &format!("chosen after results: {what}"));
    }
    let mut told: Vec<&str> = Vec::new();
    for row in &experiment.rows {
        let Some(why) = row.why.as_deref().filter(|_| row.verdict == Some(FigureVerdict::Differs))
        else {
            continue;
        };
        if !told.contains(&why) {
            wrap(out, "  ", &format!("{} differs: {why}", row.label));
            told.push(why);
        }
    }
}

fn line(out: &mut String, row: &PublishedFigure) {
    let labels = lines(&row.label, LABEL, "", "  ");
    let label = &labels[0];
    let published = row.published.map_or("-".to_owned(), |value| published(row, value));
    let simulated = row.simulated.map_or("-".to_owned(), figure);
    let interval = match (row.low, row.high) {
        (Some(low), Some(high)) if row.seeds > 1 => between(row, low, high),
        _ => String::new(),
    };
    let verdict = row.verdict.map_or("", FigureVerdict::word);
    let text = format!("  {label:LABEL$} {published:>10} {simulated:>9} {interval:>10} {verdict}");
    let _ = writeln!(out, "{}", text.trim_end());
    labels[1..].iter().for_each(|rest| out.push_str(&format!("  {rest}\n")));
}

/// An interval: half its width where its middle is the figure, else its ends.
fn between(row: &PublishedFigure, low: f64, high: f64) -> String {
    let middle = row.simulated.unwrap_or(low);
    if (low + high - 2.0 * middle).abs() <= 1e-6 * (1.0 + middle.abs()) {
        format!("+-{}", figure((high - low) / 2.0))
    } else {
        format!("{}-{}", figure(low), figure(high))
    }
}

/// A published figure with what it is: one that follows has a star, a bound its sign.
pub(super) fn published(row: &PublishedFigure, value: f64) -> String {
    let (least, star) = (if row.bound { "<" } else { "" }, if row.implied { "*" } else { "" });
    let kind = match row.kind {
        Some(FigureKind::Fitted) => "f",
        Some(FigureKind::Arithmetic) => "a",
        Some(FigureKind::Predicted) | None => "",
    };
    format!("{least}{}{star}{kind}", figure(value))
}

/// A number with as many places as it is worth.
pub(super) fn figure(value: f64) -> String {
    let text = match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    // A negative number that is rounded to zero is zero.
    if text.trim_matches(['-', '0', '.']).is_empty() { text.replace('-', "") } else { text }
}

/// Adds words in lines of up to [`WIDTH`] columns; lines after the first begin two columns further.
fn wrap(out: &mut String, indent: &str, text: &str) {
    out.push_str(&paragraph(text, WIDTH, indent, &format!("{indent}  ")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_places_as_they_are_worth() {
        let written = [0.0, -0.001, 4.0, 9.999, 56.25, -3.254, 123.4].map(figure);
        assert_eq!(written, ["0.00", "0.00", "4.00", "10.0", "56.2", "-3.25", "123"]);
    }

    #[test]
    fn a_summary_is_short_and_has_every_experiment() {
        let all = crate::reproduce::find("all").unwrap();
        let text = summary(&crate::reproduce::list(&all));
        assert!(text.lines().count() <= 4 * all.len(), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(all.iter().all(|one| text.contains(&format!("{} ", one.name))), "{text}");
    }

    #[test]
    fn a_label_is_whole_however_long_it_is() {
        let found = crate::reproduce::list(&crate::reproduce::find("all").unwrap());
        let text = table(&found);
        assert_eq!(text.lines().find(|line| line.chars().count() > WIDTH), None);
        for row in found.experiments.iter().flat_map(|experiment| &experiment.rows) {
            for part in lines(&row.label, LABEL, "", "") {
                assert!(text.lines().any(|line| line.trim_start().starts_with(&part)), "{part}");
            }
        }
        let long = "  equal slices, rotating work, machine          -         -\n    kvm-16\n";
        assert!(text.contains(long), "{text}");
    }
}
