//! What a measurement returns, and how it tells how far it is.

use crate::figure::Figure;

/// Figures, and what a reader has to know about them.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What was measured.
    pub figures: Vec<Figure>,
    /// Conditions, and what was left out and why.
    pub notes: Vec<String>,
}

impl Outcome {
    /// Adds a figure if there is one.
    pub fn add(&mut self, figure: Option<Figure>) {
        self.figures.extend(figure);
    }

    /// Adds a remark.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }
}

/// Called with rounds done and rounds in all.
pub type Progress<'a> = &'a dyn Fn(u64, u64);
