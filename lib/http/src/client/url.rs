//! URLs of requests: `http` and `https`, and what a redirect makes of one (RFC 3986).

use super::Error;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// Bytes of a URL at most, as most servers accept.
const URL_BYTES_MAX: usize = 8000;

/// A URL of a server: what to connect to, and what to request. A fragment is left out; a user's name is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    origin: Origin,
    /// The path, which starts with a slash, and the query.
    target: String,
}

/// What a connection leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) is_secure: bool,
    /// In lower case; an IPv6 address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Origin {
    /// The host and the port, as in the field Host: without the scheme's own port.
    pub(crate) fn authority(&self) -> String {
        let host = self.bracketed();
        let own_port = if self.is_secure { 443 } else { 80 };
        if self.port == own_port { host } else { format!("{host}:{}", self.port) }
    }

    /// The host and the port, as CONNECT names them.
    pub(crate) fn host_and_port(&self) -> String {
        format!("{}:{}", self.bracketed(), self.port)
    }

    fn bracketed(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }
}

impl Url {
    /// Reads an absolute URL. Characters that no URL has have to be percent-encoded before.
    pub fn parse(text: &str) -> Result<Url, Error> {
        check(text)?;
        let (scheme, rest) = text.split_once("://").ok_or(Error::Url("it has no `http://` or `https://`"))?;
        let is_secure = match scheme {
            _ if scheme.eq_ignore_ascii_case("http") => false,
            _ if scheme.eq_ignore_ascii_case("https") => true,
            _ => return Err(Error::Url("its scheme is neither http nor https")),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let origin = parse_authority(authority, is_secure)?;
        let target = if target.starts_with('/') { target.to_string() } else { format!("/{target}") };
        Ok(Url { origin, target })
    }

    /// What a reference in a response to this URL means (RFC 3986, section 5.2).
    pub(crate) fn join(&self, reference: &str) -> Result<Url, Error> {
        let reference = reference.split('#').next().unwrap_or_default();
        check(reference)?;
        if let Some(rest) = reference.strip_prefix("//") {
            return Url::parse(&format!("{}://{rest}", self.scheme()));
        }
        if has_scheme(reference) {
            return Url::parse(reference);
        }
        let (path, query) = split(&self.target);
        let (new_path, new_query) = split(reference);
        let target = match new_path {
            "" if new_query.is_none() => joined(path, query),
            "" => joined(path, new_query),
            _ if new_path.starts_with('/') => joined(&without_dots(new_path), new_query),
            _ => {
                let folder = &path[..path.rfind('/').map_or(0, |slash| slash + 1)];
                joined(&without_dots(&format!("{folder}{new_path}")), new_query)
            }
        };
        Ok(Url { origin: self.origin.clone(), target })
    }

    fn scheme(&self) -> &'static str {
        if self.origin.is_secure { "https" } else { "http" }
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Whether it is an `https` URL.
    pub fn is_secure(&self) -> bool {
        self.origin.is_secure
    }

    /// The host, in lower case; an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.origin.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.origin.port
    }

    /// The path, which starts with a slash, and the query.
    pub fn target(&self) -> &str {
        &self.target
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme(), self.origin.authority(), self.target)
    }
}

fn check(text: &str) -> Result<(), Error> {
    if text.len() > URL_BYTES_MAX {
        return Err(Error::Url("it is longer than 8000 bytes"));
    }
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    match text.bytes().all(is_allowed) {
        true => Ok(()),
        false => Err(Error::Url("it has a character that has to be percent-encoded")),
    }
}

fn parse_authority(authority: &str, is_secure: bool) -> Result<Origin, Error> {
    if authority.contains('@') {
        return Err(Error::Url("it has a user's name: send a field Authorization instead"));
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or(Error::Url("its address has no closing bracket"))?;
            if host.parse::<core::net::Ipv6Addr>().is_err() {
                return Err(Error::Url("it has no IPv6 address in brackets"));
            }
            (
                host,
                after
                    .strip_prefix(':')
                    .or(after.is_empty().then_some(""))
                    .ok_or(Error::Url("its port is no number"))?,
            )
        }
        None => {
            let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
            glass_api::check_host_name(host).map_err(|_| Error::Url("its host is no host name"))?;
            (host, port)
        }
    };
    let port = match port {
        "" if is_secure => 443,
        "" => 80,
        _ if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            port.parse().map_err(|_| Error::Url("its port is larger than 65535"))?
        }
        _ => return Err(Error::Url("its port is no number")),
    };
    Ok(Origin { is_secure, host: host.to_ascii_lowercase(), port })
}

/// Whether a reference begins with a scheme, which ends before any slash.
fn has_scheme(reference: &str) -> bool {
    let Some((scheme, _)) = reference.split_once(':') else { return false };
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

fn split(target: &str) -> (&str, Option<&str>) {
    target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)))
}

fn joined(path: &str, query: Option<&str>) -> String {
    query.map_or_else(|| path.to_string(), |query| format!("{path}?{query}"))
}

/// A path without `.` and `..` (RFC 3986, section 5.2.4).
fn without_dots(path: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    let ends_in_folder = path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..");
    for name in path.split('/').skip(1) {
        match name {
            "." => {}
            ".." => _ = names.pop(),
            _ => names.push(name),
        }
    }
    if ends_in_folder && names.last().is_none_or(|last| !last.is_empty()) {
        names.push("");
    }
    format!("/{}", names.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> String {
        Url::parse(text).unwrap().to_string()
    }

    #[test]
    fn urls_are_read() {
        assert_eq!(parse("http://Example.COM"), "http://example.com/");
        assert_eq!(parse("HTTPS://a:443/b?c#d"), "https://a/b?c");
        assert_eq!(parse("http://a:8080?x=/?"), "http://a:8080/?x=/?");
        assert_eq!(parse("https://[::1]:8/"), "https://[::1]:8/");
        assert_eq!(parse("http://10.0.0.1:/x%20y"), "http://10.0.0.1/x%20y");
        let url = Url::parse("https://[fe80::1]/a").unwrap();
        assert_eq!((url.host(), url.port(), url.target(), url.is_secure()), ("fe80::1", 443, "/a", true));
        assert_eq!(url.origin().host_and_port(), "[fe80::1]:443");
    }

    #[test]
    fn others_are_refused() {
        for text in [
            "",
            "a",
            "/a",
            "ftp://a/",
            "http:/a",
            "http://",
            "http:///a",
            "http://a b/",
            "http://a/\r\n",
            "http://a/\u{e4}",
            "http://user@a/",
            "http://user:b@a/",
            "http://a:65536/",
            "http://a:-1/",
            "http://a:b/",
            "http://[::1/",
            "http://[a]/",
            "http://[::1]x/",
            "http://a_b..c/",
            "http://a/<",
            "http://a\0/",
        ] {
            assert!(Url::parse(text).is_err(), "{text:?}");
        }
        assert!(Url::parse(&format!("http://a/{}", "b".repeat(8000))).is_err());
    }

    /// The examples of RFC 3986, section 5.4, as far as they are of this scheme.
    #[test]
    fn references_are_those_of_the_rfc() {
        let base = Url::parse("http://a/b/c/d;p?q").unwrap();
        for (reference, expected) in [
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g/"),
            ("?y", "http://a/b/c/d;p?y"),
            ("g?y", "http://a/b/c/g?y"),
            ("#s", "http://a/b/c/d;p?q"),
            ("g#s", "http://a/b/c/g"),
            (";x", "http://a/b/c/;x"),
            ("", "http://a/b/c/d;p?q"),
            (".", "http://a/b/c/"),
            ("./", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../", "http://a/b/"),
            ("../g", "http://a/b/g"),
            ("../..", "http://a/"),
            ("../../g", "http://a/g"),
            ("../../../g", "http://a/g"),
            ("/./g", "http://a/g"),
            ("/../g", "http://a/g"),
            ("g.", "http://a/b/c/g."),
            ("..g", "http://a/b/c/..g"),
            ("./../g", "http://a/b/g"),
            ("./g/.", "http://a/b/c/g/"),
            ("g/./h", "http://a/b/c/g/h"),
            ("g/../h", "http://a/b/c/h"),
            ("g?y/./x", "http://a/b/c/g?y/./x"),
            ("https://c:9/x", "https://c:9/x"),
        ] {
            assert_eq!(base.join(reference).unwrap().to_string(), expected, "{reference:?}");
        }
        assert!(base.join("ftp://a").is_err());
        assert!(base.join("mailto:a").is_err());
    }
}
