//! What the pages that the front ends draw have in common: text from hosts, guests and files that cannot
//! become markup, the head with its style, the marks of a scale. Knows nothing of what they show.

use crate::wording::is_steering;
use std::fmt::Write as _;

/// Ink, paper, headings, tables, and of plots (inline SVG) the text and the grid; light and dark.
const STYLE: &str = "
:root{--ink:#1c2126;--soft:#667078;--line:#d8dde1;--paper:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9eb;--soft:#98a2aa;--line:#3a4249;--paper:#14181b}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:900px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:.3rem}h2{font-size:1.15rem;margin:2.5rem 0 0}p{margin:.3rem 0}
.soft{color:var(--soft)}svg{width:100%;height:auto;margin:.5rem 0}
text{font:12px system-ui,sans-serif;fill:var(--ink)}text.soft{fill:var(--soft)}.grid{stroke:var(--line)}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:right;padding:.15rem .4rem;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}
";

/// A page up to its first heading, which is `title`; `style` comes after the common one. The page ends
/// with `</body></html>`.
#[must_use]
pub fn head(title: &str, style: &str) -> String {
    let title = escaped(title);
    let mut html = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        html,
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Instep: {title}</title>\n<style>{STYLE}{style}</style></head>\n<body>\n<h1>{title}</h1>"
    );
    html
}

/// Round numbers from `low` to `high` for the marks of a scale, up to a dozen; nothing where there is
/// no scale.
#[must_use]
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

/// Text as it may stand anywhere in a page, attributes in either quotes included. Line ends and tabs
/// become spaces, other control characters and marks of the writing direction `?`.
#[must_use]
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
    fn a_title_is_text() {
        let html = head("<b>", ".x{}");
        assert_eq!(html.matches("&lt;b&gt;").count(), 2);
        assert!(html.contains(".x{}</style>") && !html.contains("http"));
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("<a b=\"c\" d='e'>&"), "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;");
        assert_eq!(escaped("two\nlines\x1b[2J\u{202e}"), "two lines?[2J?");
    }
}
