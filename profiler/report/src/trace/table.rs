//! Lines of a table: columns as wide as what is in them, numbers to the right, texts to the left.

use unicode_width::UnicodeWidthStr;

use glass_profiler_core::format::{cut_end, pad};

/// No line is wider.
pub(super) const COLUMNS: usize = 100;
/// Rows that are shown; the rest is counted.
pub(super) const ROWS_MAX: usize = 40;

/// A table that is being written. The last column holds text of any width, which is cut; so does the first if it is a text.
pub(super) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A heading that begins with `<` is that of a text, which stands at the left.
    pub(super) fn new(head: &[impl AsRef<str>]) -> Table {
        Table { head: head.iter().map(|title| title.as_ref().to_owned()).collect(), rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The lines; rows beyond [`ROWS_MAX`] are only counted.
    pub(super) fn lines(&self) -> String {
        let shown = &self.rows[..self.rows.len().min(ROWS_MAX)];
        let title = |index: usize| self.head[index].trim_start_matches('<');
        let mut widths: Vec<usize> = (0..self.head.len())
            .map(|index| {
                let cells = shown.iter().filter_map(|row| row.get(index)).map(|cell| cell.width());
                cells.max().unwrap_or(0).max(title(index).width())
            })
            .collect();
        self.fit(&mut widths);
        let mut out = String::new();
        let heads: Vec<String> = (0..self.head.len()).map(|index| title(index).to_owned()).collect();
        for row in std::iter::once(&heads).chain(shown) {
            let mut line = String::from(" ");
            for (index, cell) in row.iter().enumerate().take(widths.len()) {
                let cell = cut_end(cell, widths[index]);
                line.push(' ');
                match self.head[index].starts_with('<') {
                    true => line.push_str(&pad(&cell, widths[index])),
                    false => {
                        line.push_str(&" ".repeat(widths[index].saturating_sub(cell.width())));
                        line.push_str(&cell);
                    }
                }
                line.push(' ');
            }
            out.push_str(cut_end(line.trim_end(), COLUMNS).trim_end());
            out.push('\n');
        }
        if self.rows.len() > shown.len() {
            out.push_str(&format!(
                "  … and {} more\n",
                glass_profiler_core::format::count((self.rows.len() - shown.len()) as u64)
            ));
        }
        out
    }

    /// Makes text columns narrower, the widest first, until a line fits.
    fn fit(&self, widths: &mut [usize]) {
        const TEXT_MIN: usize = 12;
        loop {
            let all: usize = widths.iter().map(|width| width + 2).sum();
            if all < COLUMNS {
                return;
            }
            let texts = (0..widths.len()).filter(|index| self.head[*index].starts_with('<'));
            let Some(widest) = texts.filter(|index| widths[*index] > TEXT_MIN).max_by_key(|index| widths[*index])
            else {
                return;
            };
            widths[widest] -= 1;
        }
    }
}

/// A sentence on as many lines as it takes, each after `indent` spaces.
pub(super) fn wrap(indent: usize, sentence: &str) -> String {
    let mut out = String::new();
    let mut row = String::new();
    for word in sentence.split(' ') {
        if !row.is_empty() && indent + row.width() + 1 + word.width() > COLUMNS {
            out.push_str(&format!("{}{row}\n", " ".repeat(indent)));
            row.clear();
        }
        if !row.is_empty() {
            row.push(' ');
        }
        row.push_str(word);
    }
    out.push_str(&format!("{}{}\n", " ".repeat(indent), cut_end(&row, COLUMNS - indent)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_too_wide_and_rows_are_bounded() {
        let mut table = Table::new(&["<name", "count", "<what"]);
        for row in 0..100 {
            table.row(vec!["長".repeat(row), "1".repeat(row / 4), "w".repeat(row * 2)]);
        }
        let lines = table.lines();
        assert!(lines.lines().all(|line| line.width() <= COLUMNS), "{lines}");
        assert_eq!(lines.lines().count(), ROWS_MAX + 2);
        assert!(lines.ends_with("  … and 60 more\n"));
        assert!(wrap(4, &"word ".repeat(100)).lines().all(|line| line.width() <= COLUMNS));
    }
}
