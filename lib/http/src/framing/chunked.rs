//! The chunked transfer coding (RFC 9112, section 7.1): where the data of a body lies among lines.

use crate::HttpError;

/// A line between data is no longer than this, with its line end.
pub(crate) const LINE_BYTES_MAX: usize = 4096;
/// Trailer fields, which are discarded, are no longer than this in total.
const TRAILER_BYTES_MAX: usize = 8192;

/// What comes next in a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chunks {
    /// The line with a chunk's size.
    Size,
    /// So many bytes of data.
    Data(u64),
    /// The line end after the data.
    DataEnd,
    /// A trailer field or the empty line at the end, after so many bytes of them.
    Trailer(usize),
    /// The next request.
    Over,
}

impl Chunks {
    /// What comes after `line`, which has its line end.
    pub(crate) fn after(self, line: &[u8]) -> Result<Chunks, HttpError> {
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return Err(HttpError::Bad("a line of a chunked body does not end properly"));
        };
        match self {
            Chunks::Size => match size(line) {
                Some(0) => Ok(Chunks::Trailer(0)),
                Some(bytes) => Ok(Chunks::Data(bytes)),
                None => Err(HttpError::Bad("a chunk's size is not a number")),
            },
            Chunks::DataEnd if line.is_empty() => Ok(Chunks::Size),
            Chunks::DataEnd => Err(HttpError::Bad("a chunk is longer than its size")),
            Chunks::Trailer(_) if line.is_empty() => Ok(Chunks::Over),
            Chunks::Trailer(bytes) if bytes + line.len() <= TRAILER_BYTES_MAX => {
                Ok(Chunks::Trailer(bytes + line.len()))
            }
            Chunks::Trailer(_) => Err(HttpError::Bad("the fields after a chunked body are too long")),
            Chunks::Data(_) | Chunks::Over => Ok(self),
        }
    }
}

/// Hexadecimal digits, then nothing or an extension after a semicolon, which is ignored.
fn size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|&byte| byte == b';').next()?.trim_ascii_end();
    if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lead_from_chunk_to_chunk() {
        assert_eq!(Chunks::Size.after(b"1aF\r\n"), Ok(Chunks::Data(0x1af)));
        assert_eq!(Chunks::Size.after(b"5 ;name=value\r\n"), Ok(Chunks::Data(5)));
        assert_eq!(Chunks::Size.after(b"000\r\n"), Ok(Chunks::Trailer(0)));
        assert_eq!(Chunks::Size.after(b"fffffffffffffff\r\n"), Ok(Chunks::Data((1 << 60) - 1)));
        assert_eq!(Chunks::DataEnd.after(b"\r\n"), Ok(Chunks::Size));
        assert_eq!(Chunks::Trailer(0).after(b"A: b\r\n"), Ok(Chunks::Trailer(4)));
        assert_eq!(Chunks::Trailer(4).after(b"\r\n"), Ok(Chunks::Over));
    }

    #[test]
    fn what_is_not_beyond_doubt_is_refused() {
        for line in
            ["\r\n", "5\n", "+5\r\n", "-5\r\n", "0x5\r\n", " 5\r\n", "5 5\r\n", "fffffffffffffffff\r\n", ";a\r\n"]
        {
            assert!(Chunks::Size.after(line.as_bytes()).is_err(), "{line:?}");
        }
        assert!(Chunks::DataEnd.after(b"x\r\n").is_err());
        assert!(Chunks::Trailer(TRAILER_BYTES_MAX).after(b"A: b\r\n").is_err());
        let long = [&[b'a'; TRAILER_BYTES_MAX + 1][..], b"\r\n"].concat();
        assert!(Chunks::Trailer(0).after(&long).is_err());
        assert_eq!(Chunks::Trailer(TRAILER_BYTES_MAX - 4).after(b"A: b\r\n"), Ok(Chunks::Trailer(TRAILER_BYTES_MAX)));
        assert!(Chunks::Size.after(b"0000000000000001\r\n").is_err(), "more digits than any size needs");
    }
}
