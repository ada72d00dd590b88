//! What the steps of a Xen host printed: there the lab looks by commands, such as `xl vcpu-list`, which a
//! scenario names.
//!
//! The first line of a command is its title; one that is a comment says what the command is for. Output that
//! is JSON is folded away, since it is for programs.

use crate::scenario::check::Check;
use crate::scenario::report::{LabReport, StepReport};
use instep_report::html::escaped;
use serde_json::Value;
use std::fmt::Write as _;

/// The most lines of a command's output that are drawn.
const MOST_LINES: usize = 80;

/// A numbered section for each command of a run, with what it printed and what was checked.
pub(super) fn draw(report: &LabReport) -> String {
    let mut html = String::new();
    let (mut from, mut number) = (0, 0);
    for step in &report.steps {
        let checks = report.checks.get(from..from + step.checks).unwrap_or_default();
        from += step.checks;
        if step.stdout.is_some() {
            number += 1;
            section(&mut html, step, number, checks);
        }
    }
    html
}

fn section(html: &mut String, step: &StepReport, number: usize, checks: &[Check]) {
    let (title, rest) = step.step.trim().split_once('\n').unwrap_or((step.step.trim(), ""));
    let title = escaped(title.trim_start_matches(['#', ' ']));
    let _ = writeln!(
        html,
        "<section class=\"moment\">\n<h2><span class=\"number\">{number}</span> {title}</h2>"
    );
    if !rest.is_empty() {
        folded(html, "the command", rest);
    }
    match &step.stdout {
        Some(Value::String(text)) if !text.trim().is_empty() => {
            let _ = writeln!(html, "<pre>{}</pre>", escaped_lines(text));
        }
        Some(Value::String(_)) | None => {}
        Some(json) => folded(html, "what it printed, as JSON", &format!("{json:#}")),
    }
    if !step.stderr.is_empty() {
        folded(html, "its standard error", &step.stderr);
    }
    html.push_str("<ul class=\"checks\">\n");
    for check in checks {
        let (class, mark) =
            if check.held { ("held", "&#10003;") } else { ("failed", "&#10007; FAILED") };
        let (what, found) = (escaped(&check.what), escaped(&check.found));
        let _ = writeln!(html, "<li class=\"{class}\">{mark} {what}: {found}</li>");
    }
    html.push_str("</ul>\n</section>\n");
}

fn folded(html: &mut String, title: &str, text: &str) {
    let _ = writeln!(
        html,
        "<details><summary>{title}</summary><pre>{}</pre></details>",
        escaped_lines(text)
    );
}

/// A text line by line, so that what cannot be printed is marked and ends of lines stay.
fn escaped_lines(text: &str) -> String {
    let mut lines: Vec<String> =
        text.lines().take(MOST_LINES).map(|line| escaped(&line.replace('\t', "  "))).collect();
    let left = text.lines().count().saturating_sub(MOST_LINES);
    if left > 0 {
        lines.push(format!("({left} more lines)"));
    }
    lines.join("\n")
}
