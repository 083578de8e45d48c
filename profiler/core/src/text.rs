//! Untrusted text of guests and files, made safe for a terminal or a page.

/// Whether a character could move a terminal's cursor or reorder the text around it: control characters, line and
/// paragraph separators, marks of direction, invisible joiners.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{61c}')
}
