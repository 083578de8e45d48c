//! Items that a client uploads and a check looks for: each one's content follows from its number.

use anyhow::{Context, Result, bail};
use fastrand::Rng;
use std::fmt;

/// What an item starts with, before its number and a line end.
const START: &str = "glass item ";

/// The content of an item of at most `bytes_max` bytes, and at least its first line.
pub fn content(number: u64, bytes_max: u64) -> Vec<u8> {
    let mut random = Rng::with_seed(number);
    let mut bytes = format!("{START}{number}\n").into_bytes();
    // As many small ones as large ones.
    let most = random.u64(..=bytes_max.saturating_sub(bytes.len() as u64));
    let more = if random.bool() { most } else { most.min(1000) };
    bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(more as usize));
    bytes
}

/// The number of the item with this content.
pub fn number_of(content: &[u8]) -> Option<u64> {
    let line = content.split(|byte| *byte == b'\n').next()?;
    std::str::from_utf8(line).ok()?.strip_prefix(START)?.parse().ok()
}

/// An upload that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acknowledged {
    /// Of the item.
    pub number: u64,
    /// The bound of [`content`].
    pub bytes_max: u64,
    /// When it was sent, and when the answer had come: nanoseconds since 1970.
    pub sent_ns: u64,
    /// When the answer had come.
    pub answered_ns: u64,
    /// Of the answer.
    pub status: u16,
    /// Where it is.
    pub url: String,
}

impl fmt::Display for Acknowledged {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Acknowledged { number, bytes_max, sent_ns, answered_ns, status, url } = self;
        write!(f, "{number} {bytes_max} {sent_ns} {answered_ns} {status} {url}")
    }
}

/// The acknowledgements of a file. A last line without its end was being written, and is left out.
///
/// # Errors
/// It is no such file.
pub fn parse(text: &str) -> Result<Vec<Acknowledged>> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| of_line(line).with_context(|| format!("`{line}` is no acknowledgement"))).collect()
}

fn of_line(line: &str) -> Result<Acknowledged> {
    let words: Vec<&str> = line.splitn(6, ' ').collect();
    let [number, bytes_max, sent_ns, answered_ns, status, url] = words[..] else { bail!("it has not six words") };
    Ok(Acknowledged {
        number: number.parse()?,
        bytes_max: bytes_max.parse()?,
        sent_ns: sent_ns.parse()?,
        answered_ns: answered_ns.parse()?,
        status: status.parse()?,
        url: url.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_have_their_number() {
        for number in [0, 1, 99_999] {
            let bytes = content(number, 10_000);
            assert_eq!(number_of(&bytes), Some(number));
            assert!(bytes.len() <= 10_000);
            assert_eq!(bytes, content(number, 10_000));
        }
        assert_ne!(content(1, 10_000), content(2, 10_000));
        assert_eq!(number_of(b"glass item x\n"), None);
        assert_eq!(number_of(b""), None);
    }

    #[test]
    fn acknowledgements_are_lines() {
        let first = Acknowledged {
            number: 3,
            bytes_max: 100,
            sent_ns: 5,
            answered_ns: 9,
            status: 201,
            url: "http://a/b c".to_owned(),
        };
        let text = format!("{first}\n4 100 6");
        assert_eq!(parse(&text).unwrap(), [first]);
        assert!(parse("x\n").is_err());
        assert!(parse("1 2 3 4 5\n").is_err());
        assert!(parse("").unwrap().is_empty());
    }
}
