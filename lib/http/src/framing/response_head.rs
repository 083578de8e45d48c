//! A response's head, as a client receives it, and how long its body is (RFC 9112, section 6).

use crate::framing::chunked::Chunks;
use crate::framing::fields::Fields;
use crate::framing::head::content_length;
use crate::framing::incoming::Body;
use crate::framing::request::members;
use crate::{HEADERS_MAX, HttpError, Status};

/// A response's head.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) status: Status,
    pub(crate) fields: Fields,
    pub(crate) body: Body,
    /// The connection can have another request after the body.
    pub(crate) keep_alive: bool,
}

/// The length of the head that `bytes` start with, if it is there; `from` bytes were searched before.
pub(crate) fn find_end(bytes: &[u8], from: usize) -> Option<usize> {
    let start = from.saturating_sub(3);
    let lines =
        bytes[start..].iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(place, _)| start + place + 1);
    lines.into_iter().find_map(|next| match &bytes[next..] {
        [b'\n', ..] => Some(next + 1),
        [b'\r', b'\n', ..] => Some(next + 2),
        _ => None,
    })
}

/// Parses the whole head of a response to a request of `method`.
pub(crate) fn parse(bytes: &[u8], method: &str) -> Result<Head, HttpError> {
    let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut fields);
    match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(HttpError::Bad("it has too many header fields")),
        Err(httparse::Error::Version) => return Err(HttpError::Bad("it is not of HTTP/1.1")),
        _ => return Err(HttpError::Bad("this is no head of a response")),
    }
    let (Some(code), Some(minor)) = (parsed.code, parsed.version) else {
        return Err(HttpError::Bad("this is no head of a response"));
    };
    if !(100..1000).contains(&code) {
        return Err(HttpError::Bad("its status is no number of three digits"));
    }
    let status = Status(code);
    let mut framing = Framing::default();
    let mut kept = Fields::default();
    for field in parsed.headers.iter() {
        framing.read(field.name, field.value)?;
        kept.push(field.name, field.value);
    }
    let (body, keep_alive) = framing.body(status, method, minor)?;
    Ok(Head { status, fields: kept, body, keep_alive })
}

/// The fields that determine the length of the body and whether the connection is kept.
#[derive(Default)]
struct Framing {
    length: Option<u64>,
    codings: usize,
    chunked: bool,
    close: bool,
    keep_alive: bool,
}

impl Framing {
    fn read(&mut self, name: &str, value: &[u8]) -> Result<(), HttpError> {
        if name.eq_ignore_ascii_case("content-length") {
            let length = content_length(value).ok_or(HttpError::Bad("Content-Length is not a number"))?;
            if self.length.replace(length).is_some_and(|earlier| earlier != length) {
                return Err(HttpError::Bad("there are two fields Content-Length"));
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            for coding in members(value) {
                self.codings += 1;
                self.chunked = coding.eq_ignore_ascii_case(b"chunked");
            }
        } else if name.eq_ignore_ascii_case("connection") {
            for option in members(value) {
                self.close |= option.eq_ignore_ascii_case(b"close");
                self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            }
        }
        Ok(())
    }

    fn body(self, status: Status, method: &str, minor: u8) -> Result<(Body, bool), HttpError> {
        let http11 = minor > 0;
        let keep_alive = !self.close && (http11 || self.keep_alive);
        if status.forbids_body() || method == "HEAD" || (method == "CONNECT" && (200..300).contains(&status.0)) {
            return Ok((Body::Length(0), keep_alive));
        }
        match self.length {
            // An attacker's response in a response, for a proxy that reads the other field (RFC 9112, section 6.3).
            Some(_) if self.codings > 0 => {
                Err(HttpError::Bad("Content-Length and Transfer-Encoding exclude each other"))
            }
            _ if self.codings > 0 && !http11 => Err(HttpError::Bad("HTTP/1.0 has no Transfer-Encoding")),
            _ if self.codings > 1 || (self.codings == 1 && !self.chunked) => {
                Err(HttpError::Bad("its transfer coding is not chunked"))
            }
            _ if self.chunked => Ok((Body::Chunked(Chunks::Size), keep_alive)),
            Some(bytes) => Ok((Body::Length(bytes), keep_alive)),
            None => Ok((Body::UntilClose, false)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(head: &str, method: &str) -> Result<(u16, Body, bool), HttpError> {
        let bytes = head.replace('\n', "\r\n");
        assert_eq!(find_end(bytes.as_bytes(), 0), Some(bytes.len()), "{head}");
        parse(bytes.as_bytes(), method).map(|head| (head.status.0, head.body, head.keep_alive))
    }

    #[test]
    fn the_body_is_what_the_rfc_says() {
        let get = |fields: &str| of(&alloc::format!("HTTP/1.1 200 OK\n{fields}\n"), "GET");
        assert_eq!(get("Content-Length: 5\n"), Ok((200, Body::Length(5), true)));
        assert_eq!(get("Content-Length: 5\nContent-Length: 5\n"), Ok((200, Body::Length(5), true)));
        assert_eq!(get("Transfer-Encoding: Chunked\n"), Ok((200, Body::Chunked(Chunks::Size), true)));
        assert_eq!(get(""), Ok((200, Body::UntilClose, false)));
        assert_eq!(get("Content-Length: 5\nConnection: x, Close\n"), Ok((200, Body::Length(5), false)));
        assert_eq!(of("HTTP/1.0 200 OK\nContent-Length: 5\n\n", "GET"), Ok((200, Body::Length(5), false)));
        assert_eq!(
            of("HTTP/1.0 200 OK\nContent-Length: 5\nConnection: keep-alive\n\n", "GET"),
            Ok((200, Body::Length(5), true))
        );
        assert_eq!(of("HTTP/1.1 200 OK\nContent-Length: 5\n\n", "HEAD"), Ok((200, Body::Length(0), true)));
        for code in [100, 204, 304] {
            let head = alloc::format!("HTTP/1.1 {code} x\nContent-Length: 5\n\n");
            assert_eq!(of(&head, "GET"), Ok((code, Body::Length(0), true)));
        }
        assert_eq!(of("HTTP/1.1 200 OK\n\n", "CONNECT"), Ok((200, Body::Length(0), true)));
        assert_eq!(of("HTTP/1.1 403 No\nContent-Length: 2\n\n", "CONNECT"), Ok((403, Body::Length(2), true)));
    }

    #[test]
    fn what_two_parsers_read_differently_is_refused() {
        for fields in [
            "Content-Length: 5\nTransfer-Encoding: chunked\n",
            "Content-Length: 5\nContent-Length: 6\n",
            "Content-Length: +5\n",
            "Content-Length: 5, 5\n",
            "Transfer-Encoding: gzip\n",
            "Transfer-Encoding: gzip, chunked\n",
            "Transfer-Encoding: chunked\nTransfer-Encoding: chunked\n",
        ] {
            assert!(of(&alloc::format!("HTTP/1.1 200 OK\n{fields}\n"), "GET").is_err(), "{fields}");
        }
        for head in [
            "HTTP/1.0 200 OK\nTransfer-Encoding: chunked\n\n",
            "HTTP/2.0 200 OK\n\n",
            "HTTP/1.1 099 OK\n\n",
            "ICY 200 OK\n\n",
        ] {
            assert!(of(head, "GET").is_err(), "{head}");
        }
    }

    #[test]
    fn a_head_is_found_wherever_it_was_cut() {
        let bytes = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody";
        for cut in 0..bytes.len() {
            let expected = (cut >= 25).then_some(25);
            assert_eq!(find_end(&bytes[..cut], 0), expected);
            assert_eq!(find_end(bytes, cut.min(24)), Some(25), "{cut}");
        }
    }
}
