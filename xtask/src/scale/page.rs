//! The table of results as one page of HTML that needs no network: a bar behind each speed, a colour for
//! each verdict.

use crate::scale::measure::Verdict;
use crate::scale::table::{Line, Table};
use instep_report::html::{self, escaped};
use std::fmt::Write as _;

/// How tables of results look, with a colour for each verdict.
pub(crate) const STYLE: &str = "\
body { max-width: none }
th { position: sticky; top: 0; background: var(--bg); border-bottom: 2px solid var(--soft) }
td, th { text-align: left }
.number { text-align: right; font-variant-numeric: tabular-nums }
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
    body.push_str("<table><tr><th>case<th>measure<th>must<th>aim");
    for name in [&table.judged].into_iter().chain(&table.peers) {
        let _ = write!(body, "<th>{}", escaped(name));
    }
    body.push_str("<th></tr>\n");
    let mut before = "";
    for line in &table.lines {
        let group = line.group();
        add_line(&mut body, line, group != before, table.peers.len());
        before = group;
    }
    body.push_str("</table>\n");
    html::page("Instep on hosts of 2 to 384 CPUs", STYLE, &body)
}

fn add_line(html: &mut String, line: &Line, begins_group: bool, peers: usize) {
    let class = match line.verdict {
        Verdict::Informs => "informs",
        Verdict::Missed => "missed",
        Verdict::Ok => "ok",
        Verdict::Aim => "aim",
    };
    let group = if begins_group { " group" } else { "" };
    let (case, measure) = (escaped(&line.case), escaped(&line.measure));
    let _ = write!(html, "<tr class=\"{class}{group}\"><td>{case}<td>{measure}");
    for number in [line.must, line.aim] {
        let _ = write!(html, "<td class=\"number\">{}", line.show(number));
    }
    let missing = std::iter::repeat_n(None, peers.saturating_sub(line.peers.len()));
    let numbers = [line.value].into_iter().chain(line.peers.iter().copied()).chain(missing);
    let is_speed = line.measure.starts_with("speed");
    for number in numbers {
        let style = match number.filter(|_| is_speed) {
            Some(speed) => {
                let part = (speed.clamp(0.0, 1.0) * 100.0).round();
                format!(
                    " style=\"background: linear-gradient(90deg, rgba(60, 130, 220, .3) {part}%, transparent {part}%)\""
                )
            }
            None => String::new(),
        };
        let _ = write!(html, "<td class=\"number\"{style}>{}", line.show(number));
    }
    let _ = writeln!(html, "<td class=\"verdict\">{}</tr>", line.verdict);
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
