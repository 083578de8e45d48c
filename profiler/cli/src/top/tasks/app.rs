//! The state of the screen of tasks, and its changes by keys. Pure: keys and views in, state out.

use crossterm::event::{KeyCode, KeyEvent};

use super::model::{Picture, Row};
use crate::top::keys::{self, Controls, Pressed};

/// The column that rows are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Sort {
    Name,
    State,
    /// The longest in its state first.
    Since,
    Polls,
    #[default]
    Run,
    Longest,
}

/// In the order of the columns.
const SORTS: [Sort; 6] = [Sort::Name, Sort::State, Sort::Since, Sort::Polls, Sort::Run, Sort::Longest];

/// The request of a key to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Only a redraw.
    Draw,
    /// Reset the longest polls.
    Reset,
    Quit,
}

/// The state of the screen.
#[derive(Debug, Default)]
pub(crate) struct App {
    pub picture: Picture,
    pub sort: Sort,
    pub controls: Controls,
    selected: Option<String>,
}

impl App {
    /// Takes a newer view, unless the display is paused. Returns true if the screen has to be drawn.
    pub fn show(&mut self, picture: Picture) -> bool {
        if self.controls.paused {
            return false;
        }
        self.picture = picture;
        true
    }

    /// The rows that pass the filter, sorted.
    pub fn rows(&self) -> Vec<&Row> {
        let matches = |row: &&Row| keys::passes(&self.controls.filter, &[&row.name, &row.waits_for]);
        // They come sorted by name, which is the last criterion.
        let mut rows: Vec<&Row> = self.picture.rows.iter().filter(matches).collect();
        match self.sort {
            Sort::Name => {}
            Sort::State => rows.sort_by_key(|row| row.state),
            Sort::Since => rows.sort_by_key(|row| std::cmp::Reverse(row.since_ns)),
            Sort::Polls => rows.sort_by(|a, b| b.polls_per_sec.total_cmp(&a.polls_per_sec)),
            Sort::Run => rows.sort_by(|a, b| b.run_share.total_cmp(&a.run_share)),
            Sort::Longest => rows.sort_by_key(|row| std::cmp::Reverse(row.longest_ns)),
        }
        rows
    }

    /// The index of the selected row in `rows`.
    pub fn selected(&self, rows: &[&Row]) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        rows.iter().position(|row| row.name == *selected)
    }

    /// Moves the selection; without one, to the first row.
    fn select(&mut self, by: isize) {
        let rows = self.rows();
        let index = keys::moved(self.selected(&rows), by, rows.len());
        self.selected = rows.get(index).map(|row| row.name.clone());
    }

    fn next_sort(&mut self, step: usize) {
        let index = SORTS.iter().position(|sort| *sort == self.sort).unwrap_or(0);
        self.sort = SORTS[(index + step) % SORTS.len()];
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> Action {
        match self.controls.key(key) {
            Pressed::Draw => {}
            Pressed::Move(by) => self.select(by),
            Pressed::Sort { is_right: true } => self.next_sort(1),
            Pressed::Sort { is_right: false } => self.next_sort(SORTS.len() - 1),
            Pressed::Back if !self.controls.filter.is_empty() => self.controls.filter.clear(),
            Pressed::Back if self.selected.is_some() => self.selected = None,
            Pressed::Back | Pressed::Quit => return Action::Quit,
            Pressed::Reset => return Action::Reset,
            Pressed::Own(code) => self.own_key(code),
        }
        Action::Draw
    }

    fn own_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char('n') => self.sort = Sort::Name,
            KeyCode::Char('s') => self.sort = Sort::State,
            KeyCode::Char('w') => self.sort = Sort::Since,
            KeyCode::Char('o') => self.sort = Sort::Polls,
            KeyCode::Char('u') => self.sort = Sort::Run,
            KeyCode::Char('l') => self.sort = Sort::Longest,
            _ => {}
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
