//! Entity tags, dates and ranges (RFC 9110, sections 8.8, 13 and 14).

use crate::limits::RANGES_MAX;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;
use glasshouse::http::Request;
use glasshouse::{HttpDate, Metadata};

/// What distinguishes a version of a file from any other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    /// A strong entity tag, with its quotes. `None` while the file may change again without another tag.
    pub etag: Option<String>,
    /// When it was modified last, in whole seconds since 1970: as a date shows it.
    pub modified: Duration,
    /// Now, since 1970.
    now: Duration,
}

/// What follows from a request's conditions (RFC 9110, section 13.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// None is against it.
    Answer,
    /// The client has this version: 304.
    Known,
    /// The client wants another version: 412.
    Refused,
}

impl Version {
    /// The version of a file at the time `now`, since 1970. `is_settled`: its times show a change that comes later.
    pub(crate) fn of(metadata: &Metadata, is_settled: bool, now: Duration) -> Version {
        let Metadata { number, bytes, modified, changed, .. } = metadata;
        let etag = format!("\"{number:x}-{bytes:x}-{:x}-{:x}\"", modified.as_nanos(), changed.as_nanos());
        Version { etag: is_settled.then_some(etag), modified: Duration::from_secs(modified.as_secs()), now }
    }

    /// What follows from the conditions of a GET or HEAD.
    pub(crate) fn outcome(&self, request: &Request) -> Outcome {
        let has = |name| request.header(name).is_some();
        // A condition by tags makes one by dates void; a date that is not valid is as if it were not there.
        let is_other = match has("If-Match") {
            true => !self.is_in(request, "If-Match"),
            false => self.date(request, "If-Unmodified-Since").is_some_and(|date| self.modified > date),
        };
        let is_known = match has("If-None-Match") {
            true => self.is_in(request, "If-None-Match"),
            false => {
                self.etag.is_some() && self.date(request, "If-Modified-Since").is_some_and(|date| self.modified <= date)
            }
        };
        match (is_other, is_known) {
            (true, _) => Outcome::Refused,
            (false, true) => Outcome::Known,
            (false, false) => Outcome::Answer,
        }
    }

    /// Whether `Range` counts: the client's part is of this version.
    pub(crate) fn allows_range(&self, request: &Request) -> bool {
        if request.header("If-Range").is_none() {
            return true;
        }
        let is_tag = request.only("If-Range").is_some_and(|text| self.etag.as_deref() == Some(text));
        // Exactly the date (RFC 9110, section 13.1.5), of a file that does not change within the same second.
        is_tag || self.etag.is_some() && self.date(request, "If-Range") == Some(self.modified)
    }

    /// Whether a list of tags has ours. If-None-Match compares weakly, by which a `W/` makes no difference; If-Match does not.
    fn is_in(&self, request: &Request, name: &str) -> bool {
        let is_weak = name == "If-None-Match";
        request.list(name).any(|tag| {
            let tag = if is_weak { tag.strip_prefix(b"W/").unwrap_or(tag) } else { tag };
            tag == b"*" || self.etag.as_ref().is_some_and(|etag| tag == etag.as_bytes())
        })
    }

    fn date(&self, request: &Request, name: &str) -> Option<Duration> {
        HttpDate::parse(request.only(name)?, self.now).map(|date| date.0)
    }
}

/// The parts of a file that a request wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selected {
    Whole,
    Ranges(Vec<Range<u64>>),
    /// No part of it is in the file.
    Unsatisfiable,
}

/// The ranges that `Range` names in a file of `bytes` bytes. A field that is not valid has no effect.
pub(crate) fn ranges(request: &Request, bytes: u64) -> Selected {
    let of_bytes = request.only("Range").and_then(|value| value.split_once('='));
    let Some((_, list)) = of_bytes.filter(|(unit, _)| unit.eq_ignore_ascii_case("bytes")) else {
        return Selected::Whole;
    };
    let mut found = Vec::new();
    for (count, word) in list.split(',').map(str::trim).filter(|word| !word.is_empty()).enumerate() {
        if count >= RANGES_MAX {
            return Selected::Whole;
        }
        let Some(range) = range(word, bytes) else { return Selected::Whole };
        found.extend(Some(range).filter(|range| !range.is_empty()));
    }
    // Parts that overlap are an attack, or a mistake: the whole file is shorter.
    let total = found.iter().fold(0, |total: u64, range| total.saturating_add(range.end - range.start));
    match found.len() {
        0 => Selected::Unsatisfiable,
        2.. if total > bytes => Selected::Whole,
        _ => Selected::Ranges(found),
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
    request.list("Accept-Encoding").any(|member| {
        let mut words = member.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let name = words.next().unwrap_or_default();
        // Section 8.4.1.3: older clients name gzip so.
        let name = if name.eq_ignore_ascii_case(b"x-gzip") { b"gzip" } else { name };
        name.eq_ignore_ascii_case(encoding.as_bytes()) && !words.any(is_zero_weight)
    })
}

/// Whether a parameter is a weight of 0, as in `q=0.000` (RFC 9110, section 12.4.2).
fn is_zero_weight(parameter: &[u8]) -> bool {
    let (Some(b'q' | b'Q'), Some(b'=')) = (parameter.first(), parameter.get(1)) else { return false };
    parameter[2..].iter().all(|byte| matches!(byte, b'0' | b'.'))
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
