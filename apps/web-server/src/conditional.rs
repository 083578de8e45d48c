//! Entity tags, dates and ranges (RFC 9110, sections 8.8, 13 and 14).

use crate::limits::RANGES_MAX;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use glasshouse::http::Request;
use glasshouse::{HttpDate, Metadata};

/// What distinguishes a version of a file from any other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    /// A strong entity tag, with its quotes.
    pub etag: String,
    /// The date of its last modification.
    pub date: String,
}

impl Version {
    pub(crate) fn of(metadata: &Metadata) -> Version {
        let Metadata { number, bytes, modified, changed, .. } = metadata;
        let etag = format!("\"{number:x}-{bytes:x}-{:x}-{:x}\"", modified.as_nanos(), changed.as_nanos());
        Version { etag, date: format!("{}", HttpDate(*modified)) }
    }

    /// Whether the client has this version already, so that 304 is the answer.
    pub(crate) fn is_known(&self, request: &Request) -> bool {
        match text(request, "If-None-Match") {
            Some(tags) => self.is_in(tags, true),
            // As other servers: a date that we have not sent is not compared.
            None => text(request, "If-Modified-Since") == Some(&self.date),
        }
    }

    /// Whether a condition of the client forbids the request, so that 412 is the answer.
    pub(crate) fn is_refused(&self, request: &Request) -> bool {
        match text(request, "If-Match") {
            Some(tags) => !self.is_in(tags, false),
            None => text(request, "If-Unmodified-Since").is_some_and(|date| date != self.date),
        }
    }

    /// Whether `Range` counts: the client's part is of this version.
    pub(crate) fn allows_range(&self, request: &Request) -> bool {
        text(request, "If-Range").is_none_or(|version| version == self.etag || version == self.date)
    }

    fn is_in(&self, tags: &str, is_weak: bool) -> bool {
        tags.trim() == "*"
            || tags.split(',').map(str::trim).any(|tag| {
                let tag = if is_weak { tag.strip_prefix("W/").unwrap_or(tag) } else { tag };
                tag == self.etag
            })
    }
}

fn text<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request.header(name).and_then(|value| core::str::from_utf8(value).ok())
}

/// The parts of a file that a request wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    Whole,
    Ranges(Vec<Range<u64>>),
    /// No part of it is in the file.
    Unsatisfiable,
}

/// The ranges that `Range` names in a file of `bytes` bytes. A field that is not valid has no effect.
pub(crate) fn ranges(request: &Request, bytes: u64) -> Wanted {
    let Some(list) = text(request, "Range").and_then(|value| value.strip_prefix("bytes=")) else {
        return Wanted::Whole;
    };
    let mut found = Vec::new();
    for (count, word) in list.split(',').map(str::trim).filter(|word| !word.is_empty()).enumerate() {
        if count >= RANGES_MAX {
            return Wanted::Whole;
        }
        let Some(range) = range(word, bytes) else { return Wanted::Whole };
        found.extend(Some(range).filter(|range| !range.is_empty()));
    }
    // Parts that overlap are an attack, or a mistake: the whole file is shorter.
    let total = found.iter().fold(0, |total: u64, range| total.saturating_add(range.end - range.start));
    match found.len() {
        0 => Wanted::Unsatisfiable,
        2.. if total > bytes => Wanted::Whole,
        _ => Wanted::Ranges(found),
    }
}

/// `first-last`, `first-` or `-count`. Empty if it is not in the file; `None` if it is not valid.
fn range(word: &str, bytes: u64) -> Option<Range<u64>> {
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        // A number that is too large is beyond any file.
        is_number.then(|| digits.parse::<u64>().unwrap_or(u64::MAX))
    };
    let (first, last) = word.split_once('-')?;
    match (first, last) {
        ("", count) => Some(bytes.saturating_sub(number(count)?)..bytes),
        (first, "") => Some(number(first)?.min(bytes)..bytes),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then(|| first.min(bytes)..last.saturating_add(1).min(bytes))
        }
    }
}

/// Whether the client takes this encoding (RFC 9110, section 12.5.3), by name and not by `*`.
pub(crate) fn accepts_encoding(request: &Request, encoding: &str) -> bool {
    text(request, "Accept-Encoding").is_some_and(|list| {
        list.split(',').any(|word| {
            let (name, rest) = word.split_once(';').map_or((word, ""), |(name, rest)| (name, rest.trim()));
            let is_refused = rest.strip_prefix("q=").is_some_and(|q| q.trim_matches(['0', '.', ' ']).is_empty());
            name.trim().eq_ignore_ascii_case(encoding) && !is_refused
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_the_rfc() {
        for (word, expected) in [
            ("0-0", Some(0..1)),
            ("0-", Some(0..100)),
            ("90-200", Some(90..100)),
            ("-5", Some(95..100)),
            ("-500", Some(0..100)),
            ("-0", Some(100..100)),
            ("100-", Some(100..100)),
            ("18446744073709551615-18446744073709551615", Some(100..100)),
            ("99999999999999999999999-", Some(100..100)),
            ("5-4", None),
            ("-", None),
            ("a-b", None),
            ("+1-2", None),
            ("1", None),
        ] {
            assert_eq!(range(word, 100), expected, "{word}");
        }
        assert_eq!(range("0-", 0), Some(0..0));
    }
}
