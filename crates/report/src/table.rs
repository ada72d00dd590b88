//! Tables for terminals: columns under one another without lines between them.

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

/// A head of columns and rows of as many cells, `gap` spaces between columns. Cells are plain text: what would
/// steer a terminal is replaced. No line ends with a space.
#[must_use]
pub fn aligned(head: &[(&str, Side)], rows: &[Vec<String>], gap: u16) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(head.iter().map(|(title, _)| printable(title)));
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell)));
    }
    for (column, (_, side)) in table.column_iter_mut().zip(head) {
        column.set_padding((0, gap));
        column.set_cell_alignment(match side {
            Side::Left => CellAlignment::Left,
            Side::Right => CellAlignment::Right,
        });
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_one_another() {
        let rows = [["a", "1.5"], ["longer", "12.0"]].map(|row| row.map(str::to_owned).to_vec());
        let text = aligned(&[("VM", Side::Left), ("speed", Side::Right)], &rows, 2);
        assert_eq!(text, "VM      speed\na         1.5\nlonger   12.0\n");
    }

    #[test]
    fn a_cell_is_one_line_whatever_it_holds() {
        let text = aligned(&[("VM", Side::Left)], &[vec!["a\nb\x1b".to_owned()]], 1);
        assert_eq!(text, "VM\na?b?\n");
    }
}
