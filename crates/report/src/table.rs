//! Tables of text: for terminals columns under one another without lines between them, for documents Markdown.

use comfy_table::{CellAlignment, Table, presets};
use instep_core::wording::printable;

/// Where the cells of a column stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

impl Side {
    fn alignment(self) -> CellAlignment {
        match self {
            Side::Left => CellAlignment::Left,
            Side::Right => CellAlignment::Right,
        }
    }
}

/// Spaces before each line, and between two columns.
#[derive(Clone, Copy, Debug)]
pub struct Spacing {
    /// Before each line.
    pub indent: usize,
    /// Between columns.
    pub gap: u16,
}

/// A head of columns and rows of as many cells. Cells are plain text: what would steer a terminal is replaced. No line
/// ends with a space. A title that is padded with spaces gives its column a least width.
pub fn aligned(head: &[(&str, Side)], rows: &[Vec<String>], spacing: Spacing) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(head.iter().map(|(title, _)| printable(title)));
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell)));
    }
    for (column, (_, side)) in table.column_iter_mut().zip(head) {
        column.set_padding((0, spacing.gap));
        column.set_cell_alignment(side.alignment());
    }
    let indented = |line: String| format!("{:1$}{line}", "", spacing.indent).trim_end().to_owned();
    table.lines().map(|line| indented(line) + "\n").collect()
}

/// The same as a table of Markdown. Cells are markup.
pub fn markdown(head: &[(&str, Side)], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(head.iter().map(|(title, _)| title));
    table.add_rows(rows);
    for (column, (_, side)) in table.column_iter_mut().zip(head) {
        column.set_cell_alignment(side.alignment());
    }
    let mut lines: Vec<String> = table.lines().collect();
    let rule = head.iter().map(|(_, side)| if *side == Side::Right { "---:|" } else { "---|" });
    lines[1] = rule.fold("|".to_owned(), |line, part| line + part);
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAT: Spacing = Spacing { indent: 0, gap: 1 };

    #[test]
    fn columns_stand_under_one_another() {
        let rows = [["a", "1.5"], ["longer", "12.0"]].map(|row| row.map(str::to_owned).to_vec());
        let head = [("VM", Side::Left), ("speed", Side::Right)];
        let text = aligned(&head, &rows, Spacing { indent: 1, gap: 2 });
        assert_eq!(text, " VM      speed\n a         1.5\n longer   12.0\n");
        let padded = [("VM      ", Side::Left), ("speed", Side::Right)];
        let text = aligned(&padded, &rows, Spacing { indent: 0, gap: 1 });
        assert_eq!(text, "VM       speed\na          1.5\nlonger    12.0\n");
    }

    #[test]
    fn numbers_of_a_markdown_table_are_on_the_right() {
        let rows = [["a", "1.5"], ["b", "12.0"]].map(|row| row.map(str::to_owned).to_vec());
        let text = markdown(&[("VM", Side::Left), ("speed", Side::Right)], &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..3], ["| VM | speed |", "|---|---:|", "| a  |   1.5 |"]);
    }

    #[test]
    fn a_cell_is_one_line_whatever_it_holds() {
        let text = aligned(&[("VM", Side::Left)], &[vec!["a\nb\x1b".to_owned()]], FLAT);
        assert_eq!(text, "VM\na?b?\n");
    }
}
