//! Prometheus' text format (exposition formats, version 0.0.4): families with help and type, and their samples.

use std::fmt::Write as _;

/// The most bytes of a label's value: names of VMs are others' text.
const LONGEST_LABEL: usize = 128;

/// The kind of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricKind {
    Counter,
    Gauge,
}

/// Labels of a sample: names and values.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// A page of families.
#[derive(Debug, Default)]
pub(super) struct Page(pub(super) String);

impl Page {
    /// Begins a family; its samples follow.
    pub(super) fn begin(&mut self, name: &str, kind: MetricKind, help: &str) {
        let kind = if kind == MetricKind::Counter { "counter" } else { "gauge" };
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A sample of the family that began last.
    pub(super) fn sample(&mut self, name: &str, labels: Labels<'_>, value: f64) {
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let open = if at == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{open}{label}=\"{}\"", escaped(text));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{close} {value}");
    }

    /// A family with one sample that has no labels.
    pub(super) fn single(&mut self, name: &str, kind: MetricKind, help: &str, value: f64) {
        self.begin(name, kind, help);
        self.sample(name, &[], value);
    }
}

/// The value of a label as it is used: cut where it is too long.
pub(super) fn cut(text: &str) -> &str {
    let end = (0..=LONGEST_LABEL.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Backslash, quotation mark and line feed are all that the format escapes.
fn escaped(text: &str) -> String {
    cut(text).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_are_escaped_and_cut() {
        let mut page = Page::default();
        page.begin("x_total", MetricKind::Counter, "Help.");
        page.sample("x_total", &[("name", "a\"b\\c\nd"), ("node", "0")], 1.5);
        let expected = "# HELP x_total Help.\n# TYPE x_total counter\n\
            x_total{name=\"a\\\"b\\\\c\\nd\",node=\"0\"} 1.5\n";
        assert_eq!(page.0, expected);
        let long = "é".repeat(100);
        assert_eq!(cut(&long), "é".repeat(64));
        assert_eq!(escaped("x"), "x");
    }
}
