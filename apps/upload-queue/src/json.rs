//! Text from others in JSON.

use alloc::string::String;
use core::fmt::Write;

/// Adds `text` between double quotes. Control characters are escaped, those after 0x7f too: a terminal would obey them.
pub(crate) fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        // A `String` never fails to be written to.
        let _ = match character {
            '"' | '\\' => write!(out, "\\{character}"),
            _ if character.is_control() => write!(out, "\\u{:04x}", u32::from(character)),
            _ => write!(out, "{character}"),
        };
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_string() {
        let mut out = String::new();
        push_string(&mut out, "no '/\"},{\\\n\u{7}\u{9b}é'");
        assert_eq!(out, "\"no '/\\\"},{\\\\\\u000a\\u0007\\u009bé'\"");
    }
}
