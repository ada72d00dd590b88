//! The table of results as one page of HTML that needs no network: a bar behind each speed, a colour for
//! each verdict.

use crate::scale::measure::Verdict;
use crate::scale::table::{Line, Table};
use instep_report::html::{self, Cell, Row, escaped};
use std::fmt::Write as _;

/// How tables of results look, with a colour for each verdict. The head stays where it is while rows scroll.
pub(crate) const STYLE: &str = "\
body { max-width: max-content }
.scroll { max-height: 95vh; overflow-y: auto }
th { position: sticky; top: 0; background: var(--bg); border-bottom: 2px solid var(--soft) }
.missed { background: rgba(220, 60, 40, .15) } .missed .verdict { color: var(--bad); font-weight: 600 }
.ok .verdict { color: var(--good) } .aim .verdict { color: var(--good); font-weight: 600 }
.informs { color: var(--soft) }
.group td { border-top: 2px solid var(--soft) }
";

/// The page.
pub(crate) fn render(table: &Table, commit: &str) -> String {
    let mut body = String::new();
    let _ = writeln!(body, "<p>Commit {}, simulated. {}.</p>", escaped(commit), table.summary());
    for note in &table.notes {
        let _ = writeln!(body, "<p>{}.</p>", escaped(note));
    }
    let schedulers = [&table.judged].into_iter().chain(&table.peers).map(String::as_str);
    let head: Vec<&str> =
        ["case", "measure", "must", "aim"].into_iter().chain(schedulers).chain([""]).collect();
    let mut before = "";
    let mut rows = Vec::new();
    for line in &table.lines {
        let group = line.group();
        rows.push(row_of(line, group != before, table.peers.len()));
        before = group;
    }
    body.push_str(&html::table_of(&head, &rows));
    html::page("Instep on hosts of 2 to 384 CPUs", STYLE, &body)
}

fn row_of(line: &Line, begins_group: bool, peers: usize) -> Row {
    let class = match line.verdict {
        Verdict::Informs => "informs",
        Verdict::Missed => "missed",
        Verdict::Ok => "ok",
        Verdict::Aim => "aim",
    };
    let class = class.to_owned() + if begins_group { " group" } else { "" };
    let mut cells = vec![Cell::words(&line.case), Cell::words(&line.measure)];
    cells.extend([line.must, line.aim].map(|number| Cell::number(&line.show(number))));
    let missing = std::iter::repeat_n(None, peers.saturating_sub(line.peers.len()));
    let numbers = [line.value].into_iter().chain(line.peers.iter().copied()).chain(missing);
    let is_speed = line.measure.starts_with("speed");
    let cell = |number: Option<f64>| {
        Cell::number(&line.show(number)).with_bar(number.filter(|_| is_speed))
    };
    cells.extend(numbers.map(cell));
    cells.push(Cell::verdict(&line.verdict.to_string()));
    Row { class, cells }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_needs_no_network_and_escapes_what_it_shows() {
        let mut table = Table { judged: "in<step".to_owned(), ..Table::default() };
        table.push(Line::of_ratio("a/b", "instructions", Some(7.0), Some([6.0, 5.0])));
        let html = render(&table, "abc");
        assert!(html.contains("in&lt;step") && html.contains("class=\"missed group\""), "{html}");
        assert!(!html.contains("http"), "{html}");
    }
}
