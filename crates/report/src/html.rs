//! What the pages that the front ends draw have in common: the frame with its style, text from hosts,
//! guests and files that cannot become markup, the marks of a scale. Knows nothing of what they show.

use instep_core::wording::is_steering;
use maud::{DOCTYPE, PreEscaped, html};
use std::fmt::Write as _;

/// What all pages look like: ink, paper, headings, tables, and of plots (inline SVG) the text and the grid.
/// Light, dark, and on paper.
pub const STYLE: &str = include_str!("style.css");

/// A page with the heading `title`. `style` comes after the common one, and `body` is markup.
pub fn page(title: &str, style: &str, body: &str) -> String {
    let title = PreEscaped(escaped(title));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Instep: " (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(style)) }
            }
            body { h1 { (title) } (PreEscaped(body)) }
        }
    };
    page.into_string() + "\n"
}

/// A table: a head of plain text, and rows of cells that are markup.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let row = |row: &Vec<String>| Row {
        class: String::new(),
        cells: row.iter().map(|markup| Cell::of(markup.clone(), "")).collect(),
    };
    table_of(head, &rows.iter().map(row).collect::<Vec<_>>())
}

/// A row of a table.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Its style classes.
    pub class: String,
    /// Its cells.
    pub cells: Vec<Cell>,
}

/// A cell of a table.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    markup: String,
    class: &'static str,
    bar: Option<f64>,
}

impl Cell {
    fn of(markup: String, class: &'static str) -> Self {
        Cell { markup, class, bar: None }
    }

    /// Plain text, on the left.
    pub fn words(text: &str) -> Self {
        Self::of(escaped(text), "words")
    }

    /// Plain text, on the right as numbers are.
    pub fn number(text: &str) -> Self {
        Self::of(escaped(text), "")
    }

    /// Plain text of the class `verdict`: what a row comes to.
    pub fn verdict(text: &str) -> Self {
        Self::of(escaped(text), "verdict")
    }

    /// With a bar behind it over this part (0 to 1) of its width.
    #[must_use]
    pub fn with_bar(self, part: Option<f64>) -> Self {
        Cell { bar: part, ..self }
    }

    fn style(&self) -> Option<String> {
        let percent = (self.bar?.clamp(0.0, 1.0) * 100.0).round();
        Some(format!(
            "background:linear-gradient(90deg,var(--bar) {percent}%,transparent {percent}%)"
        ))
    }
}

/// A table: a head of plain text, and rows.
pub fn table_of(head: &[&str], rows: &[Row]) -> String {
    let first = |at: usize| rows.first().and_then(|row| row.cells.get(at));
    let side = |at: usize| first(at).map(|cell| cell.class).filter(|class| *class == "words");
    let some = |class: &str| (!class.is_empty()).then(|| class.to_owned());
    let table = html! {
        div class="scroll" {
            table {
                thead {
                    tr { @for (at, cell) in head.iter().enumerate() { th class=[side(at)] { (PreEscaped(escaped(cell))) } } }
                }
                tbody {
                    @for row in rows {
                        tr class=[some(&row.class)] {
                            @for cell in &row.cells {
                                td class=[some(cell.class)] style=[cell.style()] { (PreEscaped(&cell.markup)) }
                            }
                        }
                    }
                }
            }
        }
    };
    table.into_string()
}

/// A paragraph of plain text of the style class `class`.
pub fn add_paragraph(out: &mut String, class: &str, text: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "<p class=\"{class}\">{}</p>", escaped(text));
}

/// Round numbers from `low` to `high` for the marks of a scale, up to a dozen; nothing where there is
/// no scale.
pub fn marks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    if !rough.is_finite() || rough <= 0.0 {
        return Vec::new();
    }
    let ten = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|by| by * ten).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let first = (low / step).ceil();
    (0..12).map(|at| (first + f64::from(at)) * step).filter(|at| *at <= high).collect()
}

/// A number as text without the zeros that its places after the point end with.
pub fn without_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

/// Text as it may stand anywhere in a page, attributes in either quotes included. Line ends and tabs
/// become spaces, other control characters and marks of the writing direction `?`.
pub fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            '\n' | '\t' => html.push(' '),
            c if is_steering(c) => html.push('?'),
            c => html.push(c),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_numbers_within_the_scale() {
        assert_eq!(marks(0.0, 9.0), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(marks(-3.0, 49.0), [0.0, 20.0, 40.0]);
        assert_eq!(marks(0.0, 1.15).len(), 3);
        assert!(marks(0.0, 0.0).is_empty() && marks(0.0, f64::NAN).is_empty());
    }

    #[test]
    fn only_zeros_after_the_point_are_taken_away() {
        let texts = ["-200", "0.00", "0.50", "20.0", "100"].map(without_zeros);
        assert_eq!(texts, ["-200", "0", "0.5", "20", "100"]);
    }

    #[test]
    fn a_title_is_text() {
        let html = page("<b>", ".x{}", "");
        assert_eq!(html.matches("&lt;b&gt;").count(), 2);
        assert!(html.contains(".x{}</style>") && !html.contains("http"));
    }

    #[test]
    fn a_table_has_a_head_and_a_cell_of_each_row() {
        let rows = [vec!["1".to_owned(), "2".to_owned()], vec!["3".to_owned(), "4".to_owned()]];
        let html = table(&["<a>", "b"], &rows);
        assert!(html.contains("<th>&lt;a&gt;</th><th>b</th>"), "{html}");
        assert!(html.contains("<tr><td>3</td><td>4</td></tr>"), "{html}");
    }

    #[test]
    fn a_cell_has_a_class_and_a_bar_where_it_is_given_one() {
        let cells =
            vec![Cell::words("<a>"), Cell::number("0.5").with_bar(Some(0.5)), Cell::verdict("ok")];
        let html = table_of(&["", "", ""], &[Row { class: "missed".to_owned(), cells }]);
        assert!(html.contains("<tr class=\"missed\"><td class=\"words\">&lt;a&gt;</td>"), "{html}");
        assert!(html.contains("var(--bar) 50%,transparent 50%)\">0.5</td>"), "{html}");
        assert!(html.contains("<td class=\"verdict\">ok</td>"), "{html}");
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("<a b=\"c\" d='e'>&"), "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;");
        assert_eq!(escaped("two\nlines\x1b[2J\u{202e}"), "two lines?[2J?");
    }
}
