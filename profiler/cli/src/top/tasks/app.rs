//! What the screen of tasks shows and what keys do to it. Pure: keys and pictures in, state out.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::model::{Picture, Row};
use crate::top::filter;

/// Rows that one press of a page key moves by.
const PAGE_ROWS: isize = 10;

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

/// What a key asks of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing but another look.
    Draw,
    /// Forget what was longest.
    Reset,
    Quit,
}

/// Everything that the screen shows.
#[derive(Debug, Default)]
pub(crate) struct App {
    pub picture: Picture,
    pub sort: Sort,
    pub filter: String,
    /// Keys go into the filter.
    pub typing: bool,
    pub paused: bool,
    pub help: bool,
    selected: Option<String>,
}

impl App {
    /// Takes a newer picture, unless the display is paused. True if there is something to draw.
    pub fn show(&mut self, picture: Picture) -> bool {
        if self.paused {
            return false;
        }
        self.picture = picture;
        true
    }

    /// The rows that pass the filter, sorted.
    pub fn rows(&self) -> Vec<&Row> {
        let wanted = self.filter.to_lowercase();
        let matches = |row: &&Row| {
            wanted.is_empty()
                || row.name.to_lowercase().contains(&wanted)
                || row.waits_for.to_lowercase().contains(&wanted)
        };
        // They come sorted by name, which decides where all else is equal.
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
        let index = match self.selected(&rows) {
            Some(index) => index.saturating_add_signed(by).min(rows.len().saturating_sub(1)),
            None => 0,
        };
        self.selected = rows.get(index).map(|row| row.name.clone());
    }

    fn next_sort(&mut self, step: usize) {
        let index = SORTS.iter().position(|sort| *sort == self.sort).unwrap_or(0);
        self.sort = SORTS[(index + step) % SORTS.len()];
    }

    /// What a key does.
    pub fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Action::Quit } else { Action::Draw };
        }
        if self.typing {
            return self.type_key(key.code);
        }
        if self.help {
            self.help = false;
            return if key.code == KeyCode::Char('q') { Action::Quit } else { Action::Draw };
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc if self.selected.is_some() => self.selected = None,
            KeyCode::Esc => return Action::Quit,
            KeyCode::Char('n') => self.sort = Sort::Name,
            KeyCode::Char('s') => self.sort = Sort::State,
            KeyCode::Char('w') => self.sort = Sort::Since,
            KeyCode::Char('o') => self.sort = Sort::Polls,
            KeyCode::Char('u') => self.sort = Sort::Run,
            KeyCode::Char('l') => self.sort = Sort::Longest,
            KeyCode::Right => self.next_sort(1),
            KeyCode::Left => self.next_sort(SORTS.len() - 1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::PageDown => self.select(PAGE_ROWS),
            KeyCode::PageUp => self.select(-PAGE_ROWS),
            KeyCode::Home => self.select(isize::MIN),
            KeyCode::End => self.select(isize::MAX),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('r') => return Action::Reset,
            _ => {}
        }
        Action::Draw
    }

    fn type_key(&mut self, code: KeyCode) -> Action {
        if let Some(rows) = filter::key(&mut self.filter, &mut self.typing, code) {
            self.select(rows);
        }
        Action::Draw
    }
}

#[cfg(test)]
pub(crate) mod tests;
