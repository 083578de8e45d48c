//! A request that a client sends, and what a redirect makes of it.

use super::Error;
use super::url::Url;
use crate::framing::outgoing::Outgoing;
use crate::framing::text::{Text, is_token};
use crate::{Status, TraceContext};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// A request to be sent: its method, URL and fields. Host, Content-Length, Transfer-Encoding and Connection are added; do not add them.
#[derive(Debug, Clone)]
pub struct Request {
    method: String,
    url: Url,
    fields: Vec<(String, String)>,
}

impl Request {
    /// A request of any method, whose name is case-sensitive.
    pub fn new(method: &str, url: &str) -> Result<Request, Error> {
        Ok(Request { method: method.into(), url: Url::parse(url)?, fields: Vec::new() })
    }

    /// `GET`.
    pub fn get(url: &str) -> Result<Request, Error> {
        Request::new("GET", url)
    }

    /// `POST`.
    pub fn post(url: &str) -> Result<Request, Error> {
        Request::new("POST", url)
    }

    /// Adds a field. A character that may not be in one makes the request fail with [`Error::BadRequest`].
    pub fn header(mut self, name: &str, value: impl fmt::Display) -> Request {
        self.fields.push((name.into(), alloc::format!("{value}")));
        self
    }

    /// Sends it as a part of a trace across services: `context` is the span that it belongs to.
    pub fn in_trace(self, context: &TraceContext) -> Request {
        let request = self.header("traceparent", context.traceparent());
        match context.tracestate() {
            "" => request,
            state => request.header("tracestate", state),
        }
    }

    /// The URL.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// The method.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Whether a second request has the effect of one (RFC 9110, section 9.2.2).
    pub(crate) fn is_idempotent(&self) -> bool {
        ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE"].contains(&self.method.as_str())
    }

    pub(crate) fn head(&self, body: Outgoing) -> Result<Vec<u8>, Error> {
        let mut text = Text::new(format_args!("{} {} HTTP/1.1", self.method, self.url.target()));
        text.field("Host", self.url.origin().authority());
        match body {
            // Servers expect a length of methods that have a body (RFC 9110, section 8.6).
            Outgoing::Length(0) if !["POST", "PUT", "PATCH"].contains(&self.method.as_str()) => {}
            Outgoing::Length(bytes) => text.field("Content-Length", bytes),
            Outgoing::Chunked | Outgoing::UntilClose => text.field("Transfer-Encoding", "chunked"),
        }
        for (name, value) in &self.fields {
            text.checked_field(name, value);
        }
        match text.is_bad() || !is_token(&self.method) {
            true => Err(Error::BadRequest),
            false => Ok(text.into_bytes()),
        }
    }

    /// The request that follows a redirect of `status` to `url` (RFC 9110, section 15.4), and whether it has the same body.
    pub(crate) fn redirected(mut self, status: Status, url: Url) -> (Request, bool) {
        let keeps_body = match status.0 {
            303 => self.method == "HEAD",
            301 | 302 => self.method != "POST",
            _ => true,
        };
        if !keeps_body {
            self.method = "GET".into();
            self.fields.retain(|(name, _)| !name.to_ascii_lowercase().starts_with("content-"));
        }
        if url.origin() != self.url.origin() {
            let is_secret = |name: &str| {
                ["authorization", "cookie", "proxy-authorization"]
                    .iter()
                    .any(|secret| name.eq_ignore_ascii_case(secret))
            };
            self.fields.retain(|(name, _)| !is_secret(name));
        }
        self.url = url;
        (self, keeps_body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_what_follows() {
        let text = |request: &Request, body| String::from_utf8(request.head(body).unwrap()).unwrap();
        let request = Request::get("http://a:8/b?c").unwrap().header("X", 1);
        assert_eq!(text(&request, Outgoing::Length(0)), "GET /b?c HTTP/1.1\r\nHost: a:8\r\nX: 1\r\n\r\n");
        let request = Request::post("https://a").unwrap();
        assert_eq!(text(&request, Outgoing::Length(0)), "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        assert!(text(&request, Outgoing::Chunked).contains("Transfer-Encoding: chunked\r\n"));
        for (name, value) in [("A b", "c"), ("A", "b\r\nC: d"), ("", "x")] {
            assert_eq!(
                Request::get("http://a").unwrap().header(name, value).head(Outgoing::Length(0)),
                Err(Error::BadRequest)
            );
        }
        assert_eq!(Request::new("G T", "http://a").unwrap().head(Outgoing::Length(0)), Err(Error::BadRequest));
    }

    #[test]
    fn a_redirect_keeps_what_it_may() {
        let redirect = |method, status, to: &str| {
            let request = Request::new(method, "https://a/x").unwrap();
            let request = request.header("Authorization", "secret").header("Content-Type", "t").header("Accept", "*");
            let (request, keeps_body) = request.redirected(Status(status), Url::parse(to).unwrap());
            let names: Vec<_> = request.fields.iter().map(|(name, _)| name.as_str()).collect();
            (request.method.clone(), names.join(" "), keeps_body)
        };
        let other = "https://b/";
        assert_eq!(redirect("POST", 302, "https://a/y"), ("GET".into(), "Authorization Accept".into(), false));
        assert_eq!(redirect("POST", 303, other), ("GET".into(), "Accept".into(), false));
        assert_eq!(redirect("POST", 307, other), ("POST".into(), "Content-Type Accept".into(), true));
        assert_eq!(
            redirect("PUT", 301, "https://a/y"),
            ("PUT".into(), "Authorization Content-Type Accept".into(), true)
        );
        assert_eq!(redirect("HEAD", 303, other).0, "HEAD");
        assert_eq!(redirect("GET", 308, "http://a/x").1, "Content-Type Accept");
    }
}
