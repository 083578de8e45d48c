//! The text that rows are filtered by, as it is typed.

use ratatui::crossterm::event::KeyCode;

/// The longest text to filter by.
pub(super) const CHARACTERS_MAX: usize = 100;

/// What a key does while the filter is typed, which it may end; by how many rows the selection moves.
pub(super) fn key(filter: &mut String, typing: &mut bool, code: KeyCode) -> Option<isize> {
    match code {
        KeyCode::Enter => *typing = false,
        KeyCode::Esc => {
            *typing = false;
            filter.clear();
        }
        KeyCode::Backspace if filter.pop().is_none() => *typing = false,
        KeyCode::Char(c) if filter.chars().count() < CHARACTERS_MAX => filter.push(c),
        KeyCode::Up => return Some(-1),
        KeyCode::Down => return Some(1),
        _ => {}
    }
    None
}
