//! A body that is received: where in it the next byte is, and what follows it.

use crate::HttpError;
use crate::framing::chunked::{Chunks, LINE_BYTES_MAX};
use crate::framing::fields::Fields;
use crate::framing::input::Input;

/// How long a received body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// So many bytes are to come; 0 is the end.
    Length(u64),
    /// Chunks.
    Chunked(Chunks),
    /// It ends with the connection.
    UntilClose,
}

impl Body {
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Body::Length(0) | Body::Chunked(Chunks::Over))
    }
}

/// A body that is received, and the fields after it.
pub(crate) struct Incoming {
    pub(crate) body: Body,
    pub(crate) trailers: Fields,
}

impl Default for Incoming {
    fn default() -> Incoming {
        Body::Length(0).into()
    }
}

impl From<Body> for Incoming {
    fn from(body: Body) -> Incoming {
        Incoming { body, trailers: Fields::default() }
    }
}

/// What has to be done for the next bytes of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing: so many bytes were put into the reader's memory. 0 is the end of the body, or that the reader has no memory.
    Done(usize),
    /// Receive at most so many bytes into the reader's memory, and call [`Incoming::received`].
    Receive(usize),
    /// Receive into the input: a line between chunks is not whole.
    ReceiveLine,
}

impl Incoming {
    /// Moves the next bytes from `input` to `buf`.
    pub(crate) fn next(&mut self, input: &mut Input, buf: &mut [u8]) -> Result<Step, HttpError> {
        loop {
            let left = match self.body {
                _ if buf.is_empty() || self.body.is_over() => return Ok(Step::Done(0)),
                Body::Length(left) | Body::Chunked(Chunks::Data(left)) => left,
                Body::UntilClose => u64::MAX,
                Body::Chunked(chunks) => {
                    let Some(line_bytes) = line(input.bytes())? else { return Ok(Step::ReceiveLine) };
                    self.follow(chunks, &input.bytes()[..line_bytes])?;
                    input.consume(line_bytes);
                    continue;
                }
            };
            let wanted = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            if input.is_empty() {
                return Ok(Step::Receive(wanted));
            }
            let count = input.take(&mut buf[..wanted]);
            self.received(count);
            return Ok(Step::Done(count));
        }
    }

    /// A line between chunks, or of the fields after them.
    fn follow(&mut self, chunks: Chunks, line: &[u8]) -> Result<(), HttpError> {
        let next = chunks.after(line)?;
        if let (Chunks::Trailer(_), Chunks::Trailer(_)) = (chunks, next) {
            self.trailers.push_line(line)?;
        }
        self.body = Body::Chunked(next);
        Ok(())
    }

    /// So many bytes of the body were received, at most as many as [`Step::Receive`] has.
    pub(crate) fn received(&mut self, count: usize) {
        self.body = match self.body {
            Body::Length(left) => Body::Length(left - count as u64),
            Body::Chunked(Chunks::Data(left)) if left > count as u64 => {
                Body::Chunked(Chunks::Data(left - count as u64))
            }
            Body::Chunked(_) => Body::Chunked(Chunks::DataEnd),
            Body::UntilClose => Body::UntilClose,
        };
    }

    /// The peer has ended: an error, unless that is the end of the body.
    pub(crate) fn ended(&mut self) -> Result<(), HttpError> {
        match self.body {
            Body::UntilClose => {
                self.body = Body::Length(0);
                Ok(())
            }
            Body::Length(missing_bytes) => Err(HttpError::BodyCut { missing_bytes }),
            Body::Chunked(_) => Err(HttpError::ChunksCut),
        }
    }

    /// Bytes that are to come; 0 if their number is unknown.
    pub(crate) fn length_left(&self) -> u64 {
        if let Body::Length(bytes) = self.body { bytes } else { 0 }
    }
}

/// The length of the line that `bytes` start with; `None` if it is not whole.
fn line(bytes: &[u8]) -> Result<Option<usize>, HttpError> {
    match bytes.iter().take(LINE_BYTES_MAX).position(|&byte| byte == b'\n') {
        Some(end) => Ok(Some(end + 1)),
        None if bytes.len() >= LINE_BYTES_MAX => Err(HttpError::Bad("a line of a chunked body is too long")),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// What is read of `bytes` that arrive in pieces, and whether the body has ended then.
    fn read(body: Body, bytes: &[u8], piece: usize) -> Result<(Vec<u8>, bool), HttpError> {
        let (mut incoming, mut input, mut rest) = (Incoming::from(body), Input::default(), bytes);
        let (mut all, mut buf) = (Vec::new(), [0; 5]);
        loop {
            match incoming.next(&mut input, &mut buf)? {
                Step::Done(0) => return Ok((all, incoming.body.is_over())),
                Step::Done(count) => all.extend_from_slice(&buf[..count]),
                _ if rest.is_empty() => return incoming.ended().map(|()| (all, true)),
                Step::Receive(count) => {
                    let (now, later) = rest.split_at(count.min(piece).min(rest.len()));
                    all.extend_from_slice(now);
                    incoming.received(now.len());
                    rest = later;
                }
                Step::ReceiveLine => {
                    let (now, later) = rest.split_at(piece.min(rest.len()));
                    input.space(LINE_BYTES_MAX)?[..now.len()].copy_from_slice(now);
                    input.received(now.len());
                    rest = later;
                }
            }
        }
    }

    #[test]
    fn a_body_is_the_same_however_it_arrives() {
        for piece in [1, 2, 7, 100] {
            assert_eq!(read(Body::Length(11), b"hello world", piece), Ok((b"hello world".to_vec(), true)));
            assert_eq!(read(Body::UntilClose, b"hello world", piece), Ok((b"hello world".to_vec(), true)));
            let chunked = b"6\r\nhello \r\n5\r\nworld\r\n0\r\nA: b\r\n\r\n";
            assert_eq!(read(Body::Chunked(Chunks::Size), chunked, piece), Ok((b"hello world".to_vec(), true)));
            for cut in 0..chunked.len() {
                let cut = read(Body::Chunked(Chunks::Size), &chunked[..cut], piece);
                assert_eq!(cut, Err(HttpError::ChunksCut));
            }
            assert_eq!(read(Body::Length(11), b"hello", piece), Err(HttpError::BodyCut { missing_bytes: 6 }));
        }
    }
}
