//! The results as one page of HTML that needs no network: targets, and for each scheduler a table of hosts with a bar behind each
//! speed.

use crate::placement::found::{Found, RULES, SCHEDULERS, gain};
use crate::placement::targets::Target;
use crate::scale::page::STYLE;
use instep_report::html::{self, escaped};
use std::fmt::Write as _;

/// The page.
pub(crate) fn render(found: &Found, targets: &[Target], commit: &str) -> String {
    let mut body = String::new();
    let _ = writeln!(
        body,
        "<p>Commit {}, simulated: mean fair-share speed of the guests of each host.</p>",
        escaped(commit)
    );
    body.push_str("<table><tr><th>target<th>must<th>aim<th>found<th></tr>\n");
    for target in targets {
        let verdict = target.verdict().as_str();
        let _ = writeln!(
            body,
            "<tr class=\"{verdict}\"><td>{}, {}<td class=\"number\">{}<td class=\"number\">{}\
             <td class=\"number\">{}<td class=\"verdict\">{verdict}</tr>",
            escaped(&target.what),
            target.unit,
            target.must,
            target.aim,
            target.show()
        );
    }
    body.push_str("</table>\n");
    for (at, scheduler) in SCHEDULERS.iter().enumerate() {
        add_hosts(&mut body, found, at, scheduler);
    }
    for note in &found.notes {
        let _ = writeln!(body, "<p>{}.</p>", escaped(note));
    }
    html::page("Placement of VMs by Instep and by other rules", STYLE, &body)
}

fn add_hosts(html: &mut String, found: &Found, scheduler: usize, name: &str) {
    let _ = write!(
        html,
        "<h2>Above {}</h2>\n<table><tr><th>host<th>CPUs<th>nodes<th>LLCs<th>VMs",
        escaped(name)
    );
    RULES.iter().for_each(|rule| _ = write!(html, "<th>{rule}"));
    html.push_str("<th>to the best of the others</tr>\n");
    for host in &found.hosts {
        let speeds = &host.speeds[scheduler];
        let class = if gain(speeds) < -0.01 { "missed" } else { "ok" };
        let _ = write!(html, "<tr class=\"{class}\"><td>{}", escaped(&host.name));
        host.size.iter().for_each(|size| _ = write!(html, "<td class=\"number\">{size}"));
        add_speeds(html, speeds);
    }
    for (name, speeds) in found.means(scheduler) {
        let _ = write!(html, "<tr class=\"group\"><td colspan=\"5\">{name}");
        add_speeds(html, &speeds);
    }
    html.push_str("</table>\n");
}

fn add_speeds(html: &mut String, speeds: &[f64; 6]) {
    for speed in speeds {
        let part = (speed.clamp(0.0, 1.0) * 100.0).round();
        let _ = write!(
            html,
            "<td class=\"number\" style=\"background: linear-gradient(90deg, rgba(60, 130, 220, .3) {part}%, transparent \
             {part}%)\">{speed:.3}"
        );
    }
    let _ = writeln!(html, "<td class=\"number verdict\">{:+.1} %</tr>", gain(speeds) * 100.0);
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
