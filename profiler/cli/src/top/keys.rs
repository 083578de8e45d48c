//! The keys of both screens: filter, movement through rows, pause, help and quit.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The longest text to filter by.
pub(super) const CHARACTERS_MAX: usize = 100;
/// Rows that one press of a page key moves by.
const PAGE_ROWS: isize = 10;

/// The state of the keys of both screens.
#[derive(Debug, Default)]
pub(super) struct Controls {
    /// Only rows with this text are shown.
    pub(super) filter: String,
    /// Keys go into the filter.
    pub(super) typing: bool,
    pub(super) paused: bool,
    /// The page of keys is shown, from this line on.
    pub(super) help: Option<u16>,
}

/// The action for the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pressed {
    /// Only a redraw.
    Draw,
    /// Move the selection by so many rows.
    Move(isize),
    /// Sort by the column on the right, or on the left.
    Sort {
        is_right: bool,
    },
    /// One step back.
    Back,
    /// Drop the past.
    Reset,
    Quit,
    /// An action of the screen itself.
    Own(KeyCode),
}

impl Controls {
    /// Handles a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Pressed {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Pressed::Quit } else { Pressed::Draw };
        }
        if self.typing {
            return self.type_key(key.code);
        }
        if let Some(line) = self.help {
            self.help = match key.code {
                KeyCode::Char('q') => return Pressed::Quit,
                KeyCode::Down | KeyCode::Char('j') => Some(line.saturating_add(1)),
                KeyCode::Up | KeyCode::Char('k') => Some(line.saturating_sub(1)),
                _ => None,
            };
            return Pressed::Draw;
        }
        match key.code {
            KeyCode::Char('q') => return Pressed::Quit,
            KeyCode::Char('r') => return Pressed::Reset,
            KeyCode::Esc => return Pressed::Back,
            KeyCode::Right => return Pressed::Sort { is_right: true },
            KeyCode::Left => return Pressed::Sort { is_right: false },
            KeyCode::Down | KeyCode::Char('j') => return Pressed::Move(1),
            KeyCode::Up | KeyCode::Char('k') => return Pressed::Move(-1),
            KeyCode::PageDown => return Pressed::Move(PAGE_ROWS),
            KeyCode::PageUp => return Pressed::Move(-PAGE_ROWS),
            KeyCode::Home => return Pressed::Move(isize::MIN),
            KeyCode::End => return Pressed::Move(isize::MAX),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('?' | 'h') => self.help = Some(0),
            own => return Pressed::Own(own),
        }
        Pressed::Draw
    }

    fn type_key(&mut self, code: KeyCode) -> Pressed {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace if self.filter.pop().is_none() => self.typing = false,
            KeyCode::Char(c) if self.filter.chars().count() < CHARACTERS_MAX => self.filter.push(c),
            KeyCode::Up => return Pressed::Move(-1),
            KeyCode::Down => return Pressed::Move(1),
            _ => {}
        }
        Pressed::Draw
    }
}

/// The new index of a selection that was at `index`, in so many rows; without one, the first.
pub(super) fn moved(index: Option<usize>, by: isize, rows: usize) -> usize {
    index.map_or(0, |index| index.saturating_add_signed(by).min(rows.saturating_sub(1)))
}

/// Whether one of the texts of a row contains the text of the filter, ignoring case.
pub(super) fn passes(filter: &str, texts: &[&str]) -> bool {
    let wanted = filter.to_lowercase();
    wanted.is_empty() || texts.iter().any(|text| text.to_lowercase().contains(&wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(controls: &mut Controls, code: KeyCode) -> Pressed {
        controls.key(KeyEvent::from(code))
    }

    #[test]
    fn help_is_gone_through_and_left() {
        let mut controls = Controls::default();
        press(&mut controls, KeyCode::Char('?'));
        for code in [KeyCode::Down, KeyCode::Down, KeyCode::Up, KeyCode::Up, KeyCode::Up, KeyCode::Down] {
            press(&mut controls, code);
        }
        assert_eq!(controls.help, Some(1));
        assert_eq!((press(&mut controls, KeyCode::Char('r')), controls.help), (Pressed::Draw, None));
        assert_eq!(press(&mut controls, KeyCode::Char('r')), Pressed::Reset);
    }

    #[test]
    fn a_selection_stays_in_its_rows() {
        assert_eq!(moved(None, 5, 3), 0);
        assert_eq!([moved(Some(1), 1, 3), moved(Some(1), 10, 3), moved(Some(1), isize::MIN, 3)], [2, 2, 0]);
        assert_eq!(moved(Some(7), isize::MAX, 0), 0);
    }

    #[test]
    fn a_filter_looks_at_every_text() {
        assert!(passes("", &[]) && passes("DISK", &["task", "a disk"]) && !passes("net", &["task", "a disk"]));
    }
}
