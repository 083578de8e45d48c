//! The page that lists a directory.

use crate::limits::{LISTED_MAX, LISTING_BYTES_MAX};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};
use glasshouse::{DirectoryEntry, FileKind};

/// `color-scheme` makes browsers use their own colours, dark ones where the user has chosen them.
const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
    <meta name=\"viewport\" content=\"width=device-width\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
    <style>body { font: 1rem/1.6 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem } \
    ul { list-style: none; padding: 0 } li { overflow-wrap: anywhere }</style>\n";

/// The page of the directory at `path`, which is empty for the root: directories first, then files, by name. Names that start with a dot
/// are left out, and so is what no URL leads to: symbolic links and names with control characters (and those that are not UTF-8, which
/// [`Files::read_dir`](glasshouse::Files::read_dir) leaves out).
pub(crate) fn page(path: &str, mut entries: Vec<DirectoryEntry>) -> String {
    entries.retain(|entry| {
        let is_served = matches!(entry.kind, FileKind::File | FileKind::Directory);
        is_served && !entry.name.starts_with('.') && !entry.name.contains(|character: char| character.is_control())
    });
    let is_file = |entry: &DirectoryEntry| entry.kind == FileKind::File;
    entries.sort_unstable_by(|a, b| (is_file(a), &a.name).cmp(&(is_file(b), &b.name)));
    let slash = if path.is_empty() { "" } else { "/" };
    let title = format!("/{path}{slash}");
    let title = Escaped(&title);
    let mut page = format!("{HEAD}<title>{title}</title>\n</head>\n<body>\n<h1><bdi>{title}</bdi></h1>\n<ul>\n");
    if !path.is_empty() {
        page += "<li><a href=\"../\">../</a></li>\n";
    }
    let (mut listed, count) = (0, entries.len());
    for entry in entries {
        let slash = if is_file(&entry) { "" } else { "/" };
        let (link, name) = (Encoded(&entry.name), Escaped(&entry.name));
        // `./`: a name may have a colon.
        let item = format!("<li><a href=\"./{link}{slash}\"><bdi>{name}{slash}</bdi></a></li>\n");
        if listed == LISTED_MAX || page.len() + item.len() > LISTING_BYTES_MAX {
            break;
        }
        page += &item;
        listed += 1;
    }
    page += "</ul>\n";
    if count == 0 {
        page += "<p>The directory is empty.</p>\n";
    } else if listed < count {
        // A `String` never fails to be written to.
        let _ = writeln!(page, "<p>These are the first {listed} of {count} names.</p>");
    }
    page + "</body>\n</html>\n"
}

/// Text in HTML, also within quotes.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            other => f.write_char(other),
        })
    }
}

/// A name in a URL: all but unreserved characters are percent-encoded (RFC 3986, section 2.3).
pub(crate) struct Encoded<'a>(pub(crate) &'a str);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => f.write_char(byte.into()),
            other => write!(f, "%{other:02X}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::target;
    use proptest::prelude::*;

    fn entry(name: &str, kind: FileKind) -> DirectoryEntry {
        DirectoryEntry { name: name.into(), kind }
    }

    /// The links of a page, in order.
    fn links(page: &str) -> Vec<&str> {
        page.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
    }

    #[test]
    fn names_are_sorted_escaped_and_encoded() {
        let names = ["b", "\u{fc} x", "a&<b>\"'.html", "a:b", "#?%41"];
        let mut entries: Vec<_> = names.map(|name| entry(name, FileKind::File)).into();
        entries.push(entry("z", FileKind::Directory));
        entries.push(entry(".hidden", FileKind::File));
        entries.push(entry("link", FileKind::SymbolicLink));
        entries.push(entry("line\nend", FileKind::File));
        let page = page("<up>/x", entries);
        let expected = ["../", "./z/", "./%23%3F%2541", "./a%26%3Cb%3E%22%27.html", "./a%3Ab", "./b", "./%C3%BC%20x"];
        assert_eq!(links(&page), expected);
        assert!(page.contains("<title>/&lt;up&gt;/x/</title>") && page.contains(">a&amp;&lt;b&gt;&quot;&#39;.html<"));
        assert!(!page.contains("first") && !page.contains("empty"));
    }

    #[test]
    fn a_page_is_bounded_and_has_a_sentence_for_the_rest() {
        let empty = page("", vec![entry(".", FileKind::Directory)]);
        assert!(empty.contains("The directory is empty.") && links(&empty).is_empty());
        let many = (0..LISTED_MAX + 1).map(|number| entry(&format!("{number:05}"), FileKind::File)).collect();
        let cut = page("", many);
        assert_eq!(links(&cut).len(), LISTED_MAX);
        assert!(cut.contains(&format!("the first {LISTED_MAX} of {} names", LISTED_MAX + 1)));
        let long = (0..LISTED_MAX).map(|number| entry(&format!("{number}{}", "\"".repeat(250)), FileKind::File));
        let cut = page("", long.collect());
        assert!(cut.len() < LISTING_BYTES_MAX + 1000 && links(&cut).len() > 50, "{} bytes", cut.len());
        assert!(cut.contains(&format!("the first {} of {LISTED_MAX} names", links(&cut).len())));
    }

    proptest! {
        /// Whatever a name is, its link leads to it, and it is no markup.
        #[test]
        fn each_link_leads_to_its_name(name in "[^/.\\p{Cc}][^/\\p{Cc}]{0,20}") {
            let page = page("", vec![entry(&name, FileKind::File)]);
            let links = links(&page);
            let url = format!("/{}", links[0].strip_prefix("./").unwrap());
            prop_assert_eq!(target(&url).unwrap().path, name);
            let text = page.split("<li>").nth(1).unwrap();
            let markup = text.matches('<').count();
            prop_assert_eq!((links.len(), markup, text.matches('\'').count()), (1, 8, 0), "{}", text);
        }
    }
}
