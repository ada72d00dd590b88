//! The results as one page of HTML that needs no network: targets, and for each scheduler a table of hosts with a bar behind each
//! speed.

use crate::placement::found::{Found, RULES, SCHEDULERS, gain};
use crate::placement::targets::Target;
use crate::scale::page::STYLE;
use instep_report::html::{self, Cell, Row, escaped};
use std::fmt::Write as _;

/// The page.
pub(crate) fn render(found: &Found, targets: &[Target], commit: &str) -> String {
    let mut body = String::new();
    let _ = writeln!(
        body,
        "<p>Commit {}, simulated: mean fair-share speed of the guests of each host.</p>",
        escaped(commit)
    );
    let row = |target: &Target| Row {
        class: target.verdict().as_str().to_owned(),
        cells: vec![
            Cell::words(&format!("{}, {}", target.what, target.unit)),
            Cell::number(&target.must.to_string()),
            Cell::number(&target.aim.to_string()),
            Cell::number(&target.show()),
            Cell::verdict(target.verdict().as_str()),
        ],
    };
    let rows: Vec<Row> = targets.iter().map(row).collect();
    body.push_str(&html::table_of(&["target", "must", "aim", "found", ""], &rows));
    for (at, scheduler) in SCHEDULERS.iter().enumerate() {
        add_hosts(&mut body, found, at, scheduler);
    }
    for note in &found.notes {
        let _ = writeln!(body, "<p>{}.</p>", escaped(note));
    }
    html::page("Placement of VMs by Instep and by other rules", STYLE, &body)
}

fn add_hosts(body: &mut String, found: &Found, scheduler: usize, name: &str) {
    let _ = writeln!(body, "<h2>Above {}</h2>", escaped(name));
    let head: Vec<&str> = ["host", "CPUs", "nodes", "LLCs", "VMs"]
        .into_iter()
        .chain(RULES)
        .chain(["to the best of the others"])
        .collect();
    let row = |class: &str, name: &str, size: [String; 4], speeds: &[f64; 6]| {
        let size = size.iter().map(|size| Cell::number(size));
        let speed = |speed: &f64| Cell::number(&format!("{speed:.3}")).with_bar(Some(*speed));
        let gain = Cell::verdict(&format!("{:+.1} %", gain(speeds) * 100.0));
        let cells = [Cell::words(name)]
            .into_iter()
            .chain(size)
            .chain(speeds.iter().map(speed))
            .chain([gain]);
        Row { class: class.to_owned(), cells: cells.collect() }
    };
    let mut rows = Vec::new();
    for host in &found.hosts {
        let speeds = &host.speeds[scheduler];
        let class = if gain(speeds) < -0.01 { "missed" } else { "ok" };
        rows.push(row(class, &host.name, host.size.map(|size| size.to_string()), speeds));
    }
    for (name, speeds) in found.means(scheduler) {
        rows.push(row("group", name, [const { String::new() }; 4], &speeds));
    }
    body.push_str(&html::table_of(&head, &rows));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::found::tests::host;
    use crate::placement::targets::judge;

    #[test]
    fn a_page_needs_no_network_and_escapes_what_it_shows() {
        let found = Found { hosts: vec![host("a<b", 0.4)], ..Found::default() };
        let html = render(&found, &judge(&found), "abc");
        assert!(html.contains("a&lt;b") && html.contains("class=\"missed\""), "{html}");
        assert!(!html.contains("http"), "{html}");
    }
}
