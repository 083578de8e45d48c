//! A request's head, as the service sees it.

use crate::HttpError;
use alloc::vec::Vec;

/// The method of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// `GET`
    Get,
    /// `HEAD`
    Head,
    /// `PUT`
    Put,
    /// `POST`
    Post,
    /// `DELETE`
    Delete,
    /// `OPTIONS`
    Options,
    /// `PATCH`
    Patch,
    /// `CONNECT`
    Connect,
    /// `TRACE`
    Trace,
    /// Any other method; [`Request::method_name`] has it.
    Other,
}

impl Method {
    /// Names of methods are case-sensitive.
    fn from_name(name: &str) -> Method {
        match name {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "PUT" => Method::Put,
            "POST" => Method::Post,
            "DELETE" => Method::Delete,
            "OPTIONS" => Method::Options,
            "PATCH" => Method::Patch,
            "CONNECT" => Method::Connect,
            "TRACE" => Method::Trace,
            _ => Method::Other,
        }
    }
}

/// The version of HTTP that a peer uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1, or a later 1.x
    Http11,
}

/// What follows a request's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestBody {
    /// Nothing: neither Content-Length nor Transfer-Encoding was sent.
    None,
    /// So many bytes, possibly zero.
    Length(u64),
    /// A chunked body, whose length is known only at its end.
    Chunked,
    /// A body with another transfer coding, which is not decoded here: reading it fails with
    /// [`HttpError::LengthRequired`], and the connection is closed after the answer.
    UnknownLength,
}

/// A request's head. It owns its memory, so it can be kept while the body is read.
#[derive(Debug, Clone)]
pub struct Request {
    /// Method, target, then each name and value without anything between them.
    text: Vec<u8>,
    method_bytes: usize,
    target_end: usize,
    /// Ends of name and value of each field in `text`.
    fields: Vec<(u32, u32)>,
    method: Method,
    version: Version,
    pub(crate) body: RequestBody,
    pub(crate) keep_alive: bool,
    pub(crate) expects_continue: bool,
}

impl Request {
    /// A request without fields. `head_bytes` bounds the text that will be pushed.
    pub(crate) fn new(name: &str, target: &str, version: Version, head_bytes: usize) -> Result<Request, HttpError> {
        let mut text = Vec::new();
        text.try_reserve_exact(head_bytes).map_err(|_| HttpError::OutOfMemory)?;
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(target.as_bytes());
        Ok(Request {
            method_bytes: name.len(),
            target_end: text.len(),
            text,
            fields: Vec::new(),
            method: Method::from_name(name),
            version,
            body: RequestBody::None,
            keep_alive: false,
            expects_continue: false,
        })
    }

    pub(crate) fn push(&mut self, name: &str, value: &[u8]) {
        self.text.extend_from_slice(name.as_bytes());
        let name_end = self.text.len() as u32;
        self.text.extend_from_slice(value);
        self.fields.push((name_end, self.text.len() as u32));
    }

    /// The method.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The method as it was sent.
    pub fn method_name(&self) -> &str {
        str::from_utf8(&self.text[..self.method_bytes]).unwrap_or_default()
    }

    /// The target as it was sent, usually a path with a query.
    pub fn target(&self) -> &str {
        str::from_utf8(&self.text[self.method_bytes..self.target_end]).unwrap_or_default()
    }

    /// The target's path, still percent-encoded: without the scheme and host of a URL and without
    /// the query. Starts with a slash, except for `*` and for the target of a CONNECT.
    pub fn path(&self) -> &str {
        let path = self.path_and_query();
        path.split_once('?').map_or(path, |(path, _)| path)
    }

    /// What follows the first `?` of the target.
    pub fn query(&self) -> Option<&str> {
        self.path_and_query().split_once('?').map(|(_, query)| query)
    }

    fn path_and_query(&self) -> &str {
        let target = self.target();
        if target.starts_with('/') || self.method == Method::Connect {
            return target;
        }
        match target.split_once("://") {
            Some((_, rest)) => match rest.find(['/', '?']) {
                Some(slash) if rest[slash..].starts_with('/') => &rest[slash..],
                // A URL with a query and no path is unusual; its path is the root.
                _ => "/",
            },
            None => target,
        }
    }

    /// The version of HTTP.
    pub fn version(&self) -> Version {
        self.version
    }

    /// What follows the head.
    pub fn body(&self) -> RequestBody {
        self.body
    }

    /// The value of the first header field with this name (case-insensitive), trimmed.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.values(name).next()
    }

    /// The value of the only header field with this name, as text; `None` if there is none, if there are several, which together are no
    /// valid value of a field that is not a list (RFC 9110, section 5.3), or if it is not UTF-8.
    pub fn only(&self, name: &str) -> Option<&str> {
        let mut values = self.values(name);
        let value = values.next().filter(|_| values.next().is_none())?;
        str::from_utf8(value).ok()
    }

    /// The values of all header fields with this name, in order.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.headers().filter(move |(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The members of a list, which one field with this name or several contain, without white space around them and without empty ones
    /// (RFC 9110, sections 5.3 and 5.6.1). A comma between double quotes separates nothing.
    pub fn list(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.values(name).flat_map(members)
    }

    /// All fields, in order, with names as they were sent.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut start = self.target_end;
        self.fields.iter().map(move |&(name_end, value_end)| {
            let name = &self.text[start..name_end as usize];
            let value = &self.text[name_end as usize..value_end as usize];
            start = value_end as usize;
            (str::from_utf8(name).unwrap_or_default(), value)
        })
    }
}

/// The members of a list in one field. A backslash escapes no quote: it does not in entity tags, and other lists here have no quotes.
pub(crate) fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut is_quoted = false;
    let members = value.split(move |&byte| {
        is_quoted ^= byte == b'"';
        byte == b',' && !is_quoted
    });
    members.map(<[u8]>::trim_ascii).filter(|member| !member.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fields: &[(&str, &str)]) -> Request {
        let mut request = Request::new("GET", "/", Version::Http11, 100).unwrap();
        fields.iter().for_each(|(name, value)| request.push(name, value.as_bytes()));
        request
    }

    #[test]
    fn a_list_may_have_several_lines_and_other_fields_only_one() {
        let request = request(&[("A", "x, , y"), ("B", "1"), ("a", "\"p,q\\\" ,z"), ("A", "")]);
        let list: Vec<_> = request.list("A").map(|member| str::from_utf8(member).unwrap()).collect();
        assert_eq!(list, ["x", "y", "\"p,q\\\"", "z"]);
        assert_eq!((request.only("b"), request.only("a"), request.only("c")), (Some("1"), None, None));
        assert_eq!(request.header("A"), Some(&b"x, , y"[..]));
    }
}
