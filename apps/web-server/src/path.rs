//! Which file a URL names.

use alloc::string::String;
use alloc::vec::Vec;
use glasshouse::check_path;

/// What a URL names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The path below the directory of the site.
    pub path: String,
    /// It ends with a slash, so it is a directory.
    pub is_directory: bool,
}

/// Decodes a URL's path. `None` for one that names no file whatever the site is: percent-encoding that is not valid, a name that is
/// not UTF-8 or contains a slash or a control character, an empty name, and `.` and `..`, which clients remove before they
/// send a request (RFC 3986, section 5.2.4).
pub(crate) fn target(path: &str) -> Option<Target> {
    let path = path.strip_prefix('/')?;
    let (path, is_directory) = match path.strip_suffix('/') {
        // `//`: an empty name.
        Some("") => return None,
        Some(path) => (path, true),
        None => (path, path.is_empty()),
    };
    let mut decoded = String::new();
    if !path.is_empty() {
        for name in path.split('/') {
            let name = String::from_utf8(decode(name)?).ok()?;
            if name.is_empty() || name.contains('/') || name.contains(|character: char| character.is_control()) {
                return None;
            }
            if !decoded.is_empty() {
                decoded.push('/');
            }
            decoded.push_str(&name);
        }
    }
    check_path(&decoded).is_ok().then_some(Target { path: decoded, is_directory })
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => digit(bytes.next()?)? << 4 | digit(bytes.next()?)?,
            other => other,
        });
    }
    Some(decoded)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_decoded_once() {
        for (url, path, is_directory) in [
            ("/", "", true),
            ("/a", "a", false),
            ("/a/", "a", true),
            ("/a%20b/%c3%bc.html", "a b/ü.html", false),
            ("/%2525", "%25", false),
            ("/...", "...", false),
            ("/a%3fb%23", "a?b#", false),
        ] {
            assert_eq!(target(url), Some(Target { path: path.into(), is_directory }), "{url}");
        }
        for url in [
            "",
            "a",
            "*",
            "//",
            "//a",
            "/a//b",
            "/a//",
            "/.",
            "/..",
            "/a/../b",
            "/a/..",
            "/%2e%2e/x",
            "/%2E%2e",
            "/.%2e/",
            "/a%2fb",
            "/%2f",
            "/a%00",
            "/%",
            "/%2",
            "/%zz",
            "/%+1",
            "/%ff",
            "/a%0d%0ab",
            "/%c0%ae%c0%ae/",
            "/a/%2e",
        ] {
            assert_eq!(target(url), None, "{url}");
        }
    }

    proptest! {
        #[test]
        fn no_url_leads_out(url in "/([a-z.%/]|%2e|%2f|%00|%5c|\\.\\./){0,20}") {
            if let Some(target) = target(&url) {
                prop_assert!(check_path(&target.path).is_ok());
                prop_assert!(!target.path.contains('\0'));
            }
        }
    }
}
