//! Which bytes of an item a request is about (RFC 9110, section 14).

use crate::config::number;
use core::ops::Range;

/// The bytes that a field Range requests of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All of it: the field is not valid, of another unit or of several ranges, which a server may ignore.
    All,
    /// These, at least one.
    Part(Range<u64>),
    /// Bytes that it does not have.
    Nothing,
}

/// Reads the value of a field Range, for an item of `length` bytes.
pub(crate) fn wanted(field: &[u8], length: u64) -> Wanted {
    let text = str::from_utf8(field).unwrap_or_default();
    let Some((unit, range)) = text.split_once('=') else { return Wanted::All };
    let Some((first, last)) = range.trim().split_once('-') else { return Wanted::All };
    if !unit.eq_ignore_ascii_case("bytes") {
        return Wanted::All;
    }
    let part = match (first.is_empty(), digits(first), last.is_empty(), digits(last)) {
        (true, _, _, Some(count)) => length.saturating_sub(count)..length,
        (_, Some(first), true, _) => first..length,
        (_, Some(first), _, Some(last)) if first <= last => first..length.min(last.saturating_add(1)),
        _ => return Wanted::All,
    };
    if part.is_empty() { Wanted::Nothing } else { Wanted::Part(part) }
}

/// A number of any length: one that does not fit is larger than every item.
fn digits(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| number(text).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_a_part_nothing_or_ignored() {
        let of = |text: &str| wanted(text.as_bytes(), 100);
        for (text, part) in [
            ("bytes=0-0", 0..1),
            ("Bytes= 5-9 ", 5..10),
            ("bytes=5-", 5..100),
            ("bytes=99-99999999999999999999999", 99..100),
            ("bytes=0-18446744073709551615", 0..100),
            ("bytes=-1", 99..100),
            ("bytes=-100", 0..100),
            ("bytes=-99999999999999999999999", 0..100),
        ] {
            assert_eq!(of(text), Wanted::Part(part), "{text}");
        }
        for text in ["bytes=100-", "bytes=100-200", "bytes=99999999999999999999999-", "bytes=-0"] {
            assert_eq!(of(text), Wanted::Nothing, "{text}");
        }
        for text in
            ["", "bytes", "bytes=", "bytes=-", "bytes=5", "bytes=9-5", "bytes=+1-", "bytes=0-1,5-6", "items=0-1"]
        {
            assert_eq!(of(text), Wanted::All, "{text}");
        }
        assert_eq!(wanted(b"bytes=0-", 0), Wanted::Nothing);
        assert_eq!(wanted(b"bytes=-5", 0), Wanted::Nothing);
        assert_eq!(wanted(b"bytes=\xff-", 9), Wanted::All);
    }
}
