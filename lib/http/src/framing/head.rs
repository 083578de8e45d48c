//! From bytes to a [`Request`]: finding the end of a head, parsing it, refusing what is ambiguous.

use crate::framing::request::{Method, Request, RequestBody, Version, members};
use crate::{HttpError, Limits};

/// The maximum number of header fields in a request.
pub const HEADERS_MAX: usize = 64;

const NO_VERSION: HttpError = HttpError::Bad("the request line does not end with HTTP/1.1");

/// Searches for the end of a head in bytes that arrive piece by piece; each byte is checked once.
#[derive(Default)]
pub(crate) struct HeadScan {
    /// Everything before holds no end of a head.
    scanned: usize,
    /// Length of the request line with its line end.
    line_bytes: Option<usize>,
    checked: Checked,
}

#[derive(Clone, Copy, Default, PartialEq, PartialOrd)]
enum Checked {
    #[default]
    Nothing,
    Beginning,
    Line,
}

impl HeadScan {
    /// Returns the length of the head once all of it is in `bytes`, which only grow from call to
    /// call. Bytes that can never become a head are refused without waiting for the end.
    pub(crate) fn find_end(&mut self, bytes: &[u8], limits: &Limits) -> Result<Option<usize>, HttpError> {
        let end = self.scan(bytes);
        let line_known = self.line_bytes.unwrap_or(bytes.len());
        if line_known > limits.request_line_bytes_max {
            return Err(HttpError::RequestLineTooLong(limits.request_line_bytes_max));
        }
        if end.unwrap_or(bytes.len() + 1) > limits.head_bytes_max {
            return Err(HttpError::HeadTooLong(limits.head_bytes_max));
        }
        // A complete head is parsed soon anyway.
        if end.is_none() && !bytes.is_empty() {
            let now = if self.line_bytes.is_some() { Checked::Line } else { Checked::Beginning };
            if self.checked < now {
                self.checked = now;
                let mut fields = [httparse::EMPTY_HEADER; 0];
                match parse(&mut httparse::Request::new(&mut fields), &bytes[..line_known]) {
                    // The rest of the line decides which version it is.
                    Err(HttpError::Version | NO_VERSION) if now == Checked::Beginning => (),
                    checked => _ = checked?,
                }
            }
        }
        Ok(end)
    }

    fn scan(&mut self, bytes: &[u8]) -> Option<usize> {
        while let Some(distance) = bytes[self.scanned..].iter().position(|&byte| byte == b'\n') {
            let newline = self.scanned + distance;
            self.line_bytes.get_or_insert(newline + 1);
            match &bytes[newline + 1..] {
                [b'\n', ..] => return Some(newline + 2),
                [b'\r', b'\n', ..] => return Some(newline + 3),
                [] | [b'\r'] => {
                    self.scanned = newline;
                    return None;
                }
                _ => self.scanned = newline + 1,
            }
        }
        self.scanned = bytes.len();
        None
    }
}

/// Parses `bytes` and returns whether they are a whole head.
fn parse<'b>(request: &mut httparse::Request<'_, 'b>, bytes: &'b [u8]) -> Result<Option<usize>, HttpError> {
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => Ok(Some(length)),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(httparse::Error::TooManyHeaders) => Err(HttpError::TooManyHeaders(request.headers.len())),
        Err(httparse::Error::Version) if is_http_version(bytes) => Err(HttpError::Version),
        Err(httparse::Error::Version) => Err(NO_VERSION),
        Err(httparse::Error::HeaderName) => Err(HttpError::Bad("a header field's name has a forbidden character")),
        Err(httparse::Error::HeaderValue) => Err(HttpError::Bad("a header field's value has a forbidden character")),
        Err(httparse::Error::NewLine) => Err(HttpError::Bad("a line does not end properly")),
        Err(_) => Err(HttpError::Bad("this is not an HTTP request line")),
    }
}

/// Whether the request line names some version of HTTP, as in `HTTP/2.0`.
fn is_http_version(bytes: &[u8]) -> bool {
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    let word = line.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
    matches!(word, [b'H', b'T', b'T', b'P', b'/', major, rest @ ..]
        if major.is_ascii_digit() && matches!(rest, [] | [b'.', _]))
}

/// Parses a whole head. Any ambiguity of its framing is an error.
pub(crate) fn parse_head(bytes: &[u8]) -> Result<Request, HttpError> {
    let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut fields);
    if parse(&mut parsed, bytes)? != Some(bytes.len()) {
        return Err(HttpError::Bad("the head does not end where its empty line is"));
    }
    let (Some(method), Some(target), Some(minor)) = (parsed.method, parsed.path, parsed.version) else {
        return Err(HttpError::Bad("this is not an HTTP request line"));
    };
    let version = if minor == 0 { Version::Http10 } else { Version::Http11 };
    let mut framing = Framing::default();
    let mut request = Request::new(method, target, version, bytes.len())?;
    for field in parsed.headers.iter() {
        framing.read(field.name, field.value)?;
        request.push(field.name, field.value);
    }
    check_target(request.method(), target)?;
    framing.apply(&mut request)?;
    Ok(request)
}

/// Section 3.2 of RFC 9112: origin form, absolute form, authority form for CONNECT, `*` for OPTIONS.
fn check_target(method: Method, target: &str) -> Result<(), HttpError> {
    let scheme = |scheme: &str| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    let known = target.starts_with('/')
        || scheme("http://")
        || scheme("https://")
        || method == Method::Connect
        || (method == Method::Options && target == "*");
    if known { Ok(()) } else { Err(HttpError::Bad("the target is neither a path nor a URL")) }
}

/// The fields that determine the length of the message and whether the connection is kept.
#[derive(Default)]
struct Framing {
    length: Option<u64>,
    transfer_encoding: bool,
    chunked: bool,
    hosts: usize,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
    expects_other: bool,
}

impl Framing {
    fn read(&mut self, name: &str, value: &[u8]) -> Result<(), HttpError> {
        if name.eq_ignore_ascii_case("content-length") {
            let length = content_length(value).ok_or(HttpError::Bad("Content-Length is not a number"))?;
            if self.length.replace(length).is_some() {
                return Err(HttpError::Bad("there are two fields Content-Length"));
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            // Two fields are one list of two codings, which is not decoded here.
            self.chunked = !self.transfer_encoding && value.eq_ignore_ascii_case(b"chunked");
            self.transfer_encoding = true;
        } else if name.eq_ignore_ascii_case("host") {
            self.hosts += 1;
            if !value.iter().all(|&byte| is_host_byte(byte)) {
                return Err(HttpError::Bad("the field Host does not name a host"));
            }
        } else if name.eq_ignore_ascii_case("connection") {
            for option in members(value) {
                self.close |= option.eq_ignore_ascii_case(b"close");
                self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            }
        } else if name.eq_ignore_ascii_case("expect") {
            for expectation in members(value) {
                let is_continue = expectation.eq_ignore_ascii_case(b"100-continue");
                self.expects_continue |= is_continue;
                self.expects_other |= !is_continue;
            }
        }
        Ok(())
    }

    fn apply(self, request: &mut Request) -> Result<(), HttpError> {
        let http11 = request.version() == Version::Http11;
        if self.transfer_encoding && self.length.is_some() {
            return Err(HttpError::Bad("Content-Length and Transfer-Encoding exclude each other"));
        }
        if self.transfer_encoding && !http11 {
            return Err(HttpError::Bad("HTTP/1.0 has no Transfer-Encoding"));
        }
        if self.hosts > 1 || (http11 && self.hosts == 0) {
            return Err(HttpError::Bad("the field Host must appear exactly once"));
        }
        if http11 && self.expects_other {
            return Err(HttpError::Expectation);
        }
        request.body = match self.length {
            _ if self.chunked => RequestBody::Chunked,
            _ if self.transfer_encoding => RequestBody::UnknownLength,
            Some(bytes) => RequestBody::Length(bytes),
            None => RequestBody::None,
        };
        request.keep_alive = !self.close && (!self.transfer_encoding || self.chunked) && (http11 || self.keep_alive);
        // Section 10.1.1 of RFC 9110: ignored in HTTP/1.0 and for an empty body.
        request.expects_continue = http11 && self.expects_continue;
        Ok(())
    }
}

/// Digits and nothing else. `None` for signs, lists, hexadecimal, nothing at all, and what does not fit.
pub(crate) fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |length, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        length.checked_mul(10)?.checked_add(digit)
    })
}

/// Section 3.2.2 of RFC 3986, without user names.
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:[]%".contains(&byte)
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
