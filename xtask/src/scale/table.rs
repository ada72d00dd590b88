//! The table of results: its lines, printed as Markdown and as JSON (schema `instep.scale/1`).

use crate::scale::cases::Case;
use crate::scale::measure::{Row, Verdict};
use instep_report::table::{Side, markdown};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A line of the table.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) case: String,
    pub(crate) measure: String,
    digits: usize,
    pub(crate) must: Option<f64>,
    pub(crate) aim: Option<f64>,
    /// The judged scheduler's median.
    pub(crate) value: Option<f64>,
    /// The medians of the other columns, in their order.
    pub(crate) peers: Vec<Option<f64>>,
    pub(crate) verdict: Verdict,
}

/// All lines and what they are of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// The judged scheduler.
    pub(crate) judged: String,
    /// Names of the columns beside it.
    pub(crate) peers: Vec<String>,
    pub(crate) lines: Vec<Line>,
    /// What was not simulated as asked, and why; how many seeds.
    pub(crate) notes: Vec<String>,
}

impl Table {
    /// Adds the line of a row; `columns` has the median of each column that is known.
    pub(crate) fn add(&mut self, case: &Case, row: &Row, columns: &BTreeMap<String, f64>) {
        let column = |name: &str| columns.get(name).copied();
        let (value, must) = (column(&self.judged), row.find_must(column));
        self.lines.push(Line {
            case: case.name.clone(),
            measure: row.to_string(),
            digits: row.digits(),
            must,
            aim: row.aim,
            value,
            peers: self.peers.iter().map(|name| column(name)).collect(),
            verdict: row.judge(value, must),
        });
    }

    /// Adds a line that was measured and judged elsewhere.
    pub(crate) fn push(&mut self, line: Line) {
        self.lines.push(line);
    }

    /// How many lines have this verdict.
    pub(crate) fn count(&self, verdict: Verdict) -> usize {
        self.lines.iter().filter(|line| line.verdict == verdict).count()
    }

    /// One sentence.
    pub(crate) fn summary(&self) -> String {
        let asked = self.lines.len() - self.count(Verdict::Informs);
        let (missed, aim) = (self.count(Verdict::Missed), self.count(Verdict::Aim));
        format!(
            "{} of {asked} targets are met, {aim} with their aim; {missed} missed",
            asked - missed
        )
    }

    /// The table in Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut rows = vec![self.head(&["case", "measure", "must", "aim"])];
        for line in &self.lines {
            let mut cells = vec![line.case.clone(), line.measure.clone()];
            cells.extend([line.must, line.aim, line.value].map(|number| line.show(number)));
            cells.extend(line.peers.iter().map(|number| line.show(*number)));
            cells.push(line.verdict.to_string());
            rows.push(cells);
        }
        write_markdown(&rows)
    }

    /// The lines that have a target in Markdown, those of one group (a case's name up to `/`) and measure as one:
    /// the least and the most of their values, and how many are met.
    pub(crate) fn markdown_of_groups(&self) -> String {
        let mut groups: Vec<((&str, &str), Vec<&Line>)> = Vec::new();
        for line in self.lines.iter().filter(|line| line.verdict != Verdict::Informs) {
            let key = (line.group(), line.measure.as_str());
            match groups.iter_mut().find(|(known, _)| *known == key) {
                Some((_, lines)) => lines.push(line),
                None => groups.push((key, vec![line])),
            }
        }
        let mut rows = vec![self.head(&["cases", "measure", "must"])];
        for ((group, measure), lines) in groups {
            let mut cells = vec![group.to_owned(), measure.to_owned()];
            cells.push(show_range(&lines, |line| line.must));
            cells.push(show_range(&lines, |line| line.value));
            let peers = (0..self.peers.len())
                .map(|at| show_range(&lines, |line| line.peers.get(at).copied().flatten()));
            cells.extend(peers);
            let met = lines.iter().filter(|line| line.verdict != Verdict::Missed).count();
            cells.push(match (met, lines.len()) {
                (0, 1) => "**no**".to_owned(),
                (1, 1) => "yes".to_owned(),
                (met, all) => format!("{met} of {all}"),
            });
            rows.push(cells);
        }
        write_markdown(&rows)
    }

    /// Names of columns: these, the schedulers, and one without a name.
    fn head(&self, first: &[&str]) -> Vec<String> {
        let mut head: Vec<String> = first.iter().map(|&name| name.to_owned()).collect();
        head.push(self.judged.clone());
        head.extend(self.peers.iter().cloned());
        head.push(String::new());
        head
    }

    /// The table as JSON, a row on each line; `commit` is what was measured.
    pub(crate) fn json(&self, commit: &str) -> String {
        let rows: Vec<String> =
            self.lines.iter().map(|line| line.json(&self.peers).to_string()).collect();
        let head = json!({
            "schema": "instep.scale/1",
            "commit": commit,
            "scheduler": self.judged,
            "met": self.count(Verdict::Missed) == 0,
            "notes": self.notes,
        });
        let head = head.to_string();
        let open = head.strip_suffix('}').unwrap_or(&head);
        format!("{open},\"rows\":[\n{}\n]}}\n", rows.join(",\n"))
    }
}

impl Line {
    /// A line of a number that only informs.
    pub(crate) fn of_count(case: &str, measure: &str, value: Option<f64>) -> Self {
        Self { digits: 0, ..Self::of_ratio(case, measure, value, None) }
    }

    /// A line of a ratio that is to be at most this: must, aim.
    pub(crate) fn of_ratio(
        case: &str,
        measure: &str,
        value: Option<f64>,
        limits: Option<[f64; 2]>,
    ) -> Self {
        let within = |limit: f64| value.is_some_and(|value| value <= limit);
        let verdict = match limits {
            None => Verdict::Informs,
            Some([must, _]) if !within(must) => Verdict::Missed,
            Some([_, aim]) if within(aim) => Verdict::Aim,
            Some(_) => Verdict::Ok,
        };
        Self {
            case: case.to_owned(),
            measure: measure.to_owned(),
            digits: 2,
            must: limits.map(|[must, _]| must),
            aim: limits.map(|[_, aim]| aim),
            value,
            peers: Vec::new(),
            verdict,
        }
    }

    /// The name of the case up to `/`.
    pub(crate) fn group(&self) -> &str {
        self.case.split('/').next().unwrap_or_default()
    }

    /// A number as it is printed.
    pub(crate) fn show(&self, number: Option<f64>) -> String {
        number.map_or_else(String::new, |number| format!("{number:.*}", self.digits))
    }

    fn json(&self, peers: &[String]) -> Value {
        let rounded = |number: Option<f64>| number.map(|number| (number * 1e4).round() / 1e4);
        let peers: BTreeMap<&String, Option<f64>> =
            peers.iter().zip(self.peers.iter().map(|number| rounded(*number))).collect();
        let verdict = match self.verdict {
            Verdict::Informs => "informs",
            Verdict::Missed => "missed",
            Verdict::Ok => "ok",
            Verdict::Aim => "aim",
        };
        json!({
            "case": self.case,
            "measure": self.measure,
            "must": rounded(self.must),
            "aim": self.aim,
            "value": rounded(self.value),
            "peers": peers,
            "verdict": verdict,
        })
    }
}

/// The least and the most of these values, as they are printed; one where they look alike.
fn show_range(lines: &[&Line], value: impl Fn(&Line) -> Option<f64>) -> String {
    let mut shown: Vec<(f64, String)> =
        lines.iter().filter_map(|line| value(line).map(|v| (v, line.show(Some(v))))).collect();
    shown.sort_by(|a, b| a.0.total_cmp(&b.0));
    match (shown.first(), shown.last()) {
        (Some((_, least)), Some((_, most))) if least != most => format!("{least} to {most}"),
        (Some((_, only)), _) => only.clone(),
        _ => String::new(),
    }
}

/// A table of Markdown; numbers, from the third column to the last but one, on the right.
fn write_markdown(rows: &[Vec<String>]) -> String {
    let Some((head, rows)) = rows.split_first() else { return String::new() };
    let is_number = |column: usize| (2..head.len() - 1).contains(&column);
    let side = |column| if is_number(column) { Side::Right } else { Side::Left };
    let head: Vec<_> =
        head.iter().enumerate().map(|(at, title)| (title.as_str(), side(at))).collect();
    markdown(&head, rows)
}

/// The values of an earlier table, by case and measure.
pub(crate) fn parse_values(text: &str) -> BTreeMap<(String, String), f64> {
    let table: Value = serde_json::from_str(text).unwrap_or_default();
    let rows = table["rows"].as_array().into_iter().flatten();
    let one = |row: &Value| {
        let word = |key: &str| row[key].as_str().map(str::to_owned);
        Some(((word("case")?, word("measure")?), row["value"].as_f64()?))
    };
    rows.filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let (name, toml) = ("a".to_owned(), String::new());
        let case = Case { name, toml, cpus: 1, rows: Vec::new(), leave_out: Vec::new() };
        let text = "measure = \"speed\"\ntake = \"least\"\nmust = 0.9\naim = 1.0";
        let row: Row = toml::from_str(text).unwrap();
        let names = ["instep", "eevdf"].map(str::to_owned);
        let mut table = Table { judged: names[0].clone(), ..Table::default() };
        table.peers = names[1..].to_vec();
        table.add(&case, &row, &names.iter().cloned().zip([0.95, 0.5]).collect());
        table.add(&case, &row, &BTreeMap::new());
        table
    }

    #[test]
    fn a_column_without_a_value_is_empty_and_missed() {
        let table = table();
        assert_eq!(table.summary(), "1 of 2 targets are met, 0 with their aim; 1 missed");
        let text = table.markdown();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[2],
            "| a    | speed: least of all | 0.90 | 1.00 |   0.95 |  0.50 | ok     |"
        );
        assert!(lines[3].ends_with("|        |       | missed |"), "{text}");
    }

    #[test]
    fn lines_of_one_group_and_measure_are_one_with_least_and_most() {
        let mut table = table();
        let names = table.lines.iter_mut().zip(["g/1", "g/2"]);
        names.for_each(|(line, name)| line.case = name.to_owned());
        table.lines[1].value = Some(0.85);
        table.push(Line::of_ratio("h", "informs only", Some(1.0), None));
        table.push(Line::of_ratio("i", "ratio", Some(1.0), Some([2.0, 2.0])));
        table.push(Line::of_ratio("j", "ratio", Some(3.0), Some([2.0, 2.0])));
        let text = table.markdown_of_groups();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[2],
            "| g     | speed: least of all | 0.90 | 0.85 to 0.95 |  0.50 | 1 of 2 |"
        );
        assert!(lines[3].ends_with("| yes    |") && lines[4].ends_with("| **no** |"), "{text}");
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let text = table().json("abc");
        let values = parse_values(&text);
        let key = ("a".to_owned(), "speed: least of all".to_owned());
        assert_eq!(values.into_iter().collect::<Vec<_>>(), [(key, 0.95)]);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["met"], false);
        assert!(parse_values("nothing").is_empty());
    }
}
