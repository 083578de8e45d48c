//! The state of the screen, and its changes by keys. Pure: keys and views in, state out.

use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent};
use glass_profiler_core::live::names::{Function, NOT_READ_YET};
use glass_profiler_core::live::threads::{By, Subject, SubjectRow};
use glass_profiler_core::live::view::{Only, Query, Row};
use glass_profiler_core::model::Origin;

use super::keys::{self, Controls, Pressed};
use super::text;
use super::work::Picture;

/// The column that rows are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sort {
    #[default]
    Own,
    Total,
    Name,
}

/// The request of a key to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Only a redraw.
    Draw,
    /// A view of another selection.
    Query(Query),
    /// Drop all samples.
    Reset,
    Quit,
}

/// A row, independent of its shares.
type RowId = (Arc<Function>, Option<(Arc<str>, u32)>);

/// The state of the screen.
#[derive(Debug, Default)]
pub(super) struct App {
    pub(super) origin: Origin,
    pub(super) picture: Arc<Picture>,
    pub(super) query: Query,
    pub(super) sort: Sort,
    pub(super) lines: bool,
    pub(super) controls: Controls,
    selected: Option<RowId>,
    /// Among processes or threads.
    selected_subject: Option<Subject>,
    /// What rows were before a process or a thread was opened.
    opened_from: By,
}

fn id(row: &Row, lines: bool) -> RowId {
    (row.function.clone(), if lines { row.place.clone() } else { None })
}

impl App {
    /// `by`: what the rows are.
    pub(super) fn new(origin: Origin, by: By) -> App {
        App { origin, query: Query { by, ..Query::default() }, ..Default::default() }
    }

    /// Takes a newer view, unless the display is paused. Returns true if the screen has to be drawn.
    pub(super) fn show(&mut self, picture: Arc<Picture>) -> bool {
        let is_new = !Arc::ptr_eq(&picture, &self.picture);
        // A view that was requested while paused is shown nevertheless.
        if !is_new || (self.controls.paused && picture.view.query == self.picture.view.query) {
            return false;
        }
        self.picture = picture;
        true
    }

    /// The rows that pass the filter, sorted.
    pub(super) fn rows(&self) -> Vec<&Row> {
        let view = &self.picture.view;
        let matches = |row: &&Row| {
            keys::passes(&self.controls.filter, &[&row.function.name, &row.function.image, &text::place(&row.place)])
        };
        let rows = if self.lines { &view.lines } else { &view.functions };
        let mut rows: Vec<&Row> = rows.iter().filter(matches).collect();
        match self.sort {
            // They come sorted by self.
            Sort::Own => {}
            Sort::Total => rows.sort_by(|a, b| b.total_share.total_cmp(&a.total_share)),
            Sort::Name => rows.sort_by(|a, b| a.function.name.cmp(&b.function.name)),
        }
        rows
    }

    /// The processes or threads that pass the filter, sorted.
    pub(super) fn subjects(&self) -> Vec<&SubjectRow> {
        let matches = |row: &&SubjectRow| keys::passes(&self.controls.filter, &[&row.label(), &row.process]);
        let mut rows: Vec<&SubjectRow> = self.picture.view.subjects.iter().filter(matches).collect();
        if self.sort == Sort::Name {
            rows.sort_by(|a, b| (&a.name, a.number).cmp(&(&b.name, b.number)));
        }
        rows
    }

    /// The index of the selected process or thread in `rows`.
    pub(super) fn selected_subject(&self, rows: &[&SubjectRow]) -> Option<usize> {
        rows.iter().position(|row| Some(row.subject) == self.selected_subject)
    }

    /// Whether the rows are processes or threads.
    pub(super) fn is_by_subject(&self) -> bool {
        self.query.by != By::Function
    }

    /// The index of the selected row in `rows`.
    pub(super) fn selected(&self, rows: &[&Row]) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        rows.iter().position(|row| id(row, self.lines) == *selected)
    }

    /// Moves the selection; without one, to the first row.
    fn select(&mut self, by: isize) {
        if self.is_by_subject() {
            let rows = self.subjects();
            let index = keys::moved(self.selected_subject(&rows), by, rows.len());
            self.selected_subject = rows.get(index).map(|row| row.subject);
            return;
        }
        let rows = self.rows();
        let index = keys::moved(self.selected(&rows), by, rows.len());
        self.selected = rows.get(index).map(|row| id(row, self.lines));
    }

    /// Handles a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        match self.controls.key(key) {
            Pressed::Draw => {}
            Pressed::Move(by) => self.select(by),
            Pressed::Sort { is_right: true } => self.sort = next_sort(self.sort),
            Pressed::Sort { is_right: false } => self.sort = next_sort(next_sort(self.sort)),
            Pressed::Back => return self.back(),
            Pressed::Reset => return Action::Reset,
            Pressed::Quit => return Action::Quit,
            Pressed::Own(code) => return self.own_key(code),
        }
        Action::Draw
    }

    fn own_key(&mut self, code: KeyCode) -> Action {
        match code {
            KeyCode::Char('s') => self.sort = Sort::Own,
            KeyCode::Char('t') => self.sort = Sort::Total,
            KeyCode::Char('n') => self.sort = Sort::Name,
            KeyCode::Char('g') => return self.next_rows(),
            KeyCode::Char('l') if self.is_by_subject() => {}
            KeyCode::Char('l') => {
                self.lines = !self.lines;
                self.selected = None;
            }
            KeyCode::Char('i') => {
                self.query.idle = !self.query.idle;
                return Action::Query(self.query.clone());
            }
            KeyCode::Char('c') => return self.next_track(true),
            KeyCode::Char('C') => return self.next_track(false),
            KeyCode::Enter => return self.open(),
            _ => {}
        }
        Action::Draw
    }

    /// One step out: of the surroundings, of the filter, of the selection, of a process or thread, at last of the program.
    fn back(&mut self) -> Action {
        if self.query.focus.take().is_some() {
            return Action::Query(self.query.clone());
        }
        if !self.controls.filter.is_empty() {
            self.controls.filter.clear();
        } else if self.selected.is_some() && !self.is_by_subject() {
            self.selected = None;
        } else if self.query.only.take().is_some() {
            self.query.by = self.opened_from;
            return Action::Query(self.query.clone());
        } else if self.selected_subject.is_some() && self.is_by_subject() {
            self.selected_subject = None;
        } else {
            return Action::Quit;
        }
        Action::Draw
    }

    /// The surroundings of the selected function, or of the first one. Code whose names are still being read has none:
    /// it is another function soon.
    fn open(&mut self) -> Action {
        if self.query.focus.is_some() {
            return self.back();
        }
        if self.is_by_subject() {
            return self.open_subject();
        }
        let rows = self.rows();
        let is_function = |row: &&&Row| row.function.name != NOT_READ_YET;
        let row = match self.selected(&rows) {
            Some(index) => rows.get(index).filter(is_function),
            None => rows.iter().find(is_function),
        };
        let Some(row) = row else { return Action::Draw };
        let (selected, function) = (id(row, self.lines), (*row.function).clone());
        self.selected = Some(selected);
        self.query.focus = Some(function);
        Action::Query(self.query.clone())
    }

    /// The functions of the selected process or thread, or of the first one.
    fn open_subject(&mut self) -> Action {
        let rows = self.subjects();
        let Some(row) = rows.get(self.selected_subject(&rows).unwrap_or(0)) else { return Action::Draw };
        let only = Only { subject: row.subject, label: row.label() };
        self.selected_subject = Some(only.subject);
        (self.opened_from, self.query.by) = (self.query.by, By::Function);
        self.query.only = Some(only);
        self.selected = None;
        Action::Query(self.query.clone())
    }

    /// Functions, then processes, then threads, of all.
    fn next_rows(&mut self) -> Action {
        self.query.by = match self.query.by {
            By::Function => By::Process,
            By::Process => By::Thread,
            By::Thread => By::Function,
        };
        (self.query.only, self.query.focus) = (None, None);
        Action::Query(self.query.clone())
    }

    /// All tracks, then one after the other.
    fn next_track(&mut self, forward: bool) -> Action {
        let tracks = self.picture.tracks.iter().map(|track| Some(track.track));
        let mut choices: Vec<Option<u32>> = std::iter::once(None).chain(tracks).collect();
        if !forward {
            choices.reverse();
        }
        let current = choices.iter().position(|choice| *choice == self.query.track);
        self.query.track = choices[current.map_or(0, |index| (index + 1) % choices.len())];
        Action::Query(self.query.clone())
    }
}

fn next_sort(sort: Sort) -> Sort {
    match sort {
        Sort::Own => Sort::Total,
        Sort::Total => Sort::Name,
        Sort::Name => Sort::Own,
    }
}

#[cfg(test)]
pub(super) mod tests;
