//! The type of a file.

/// Extensions and types, in order; `build.rs` makes them.
const TYPES: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/media_types.in"));
/// The longest extension of the table.
const EXTENSION_BYTES_MAX: usize = 8;

/// The media type of a file of this name; bytes of no known type have the last one.
pub(crate) fn media_type(path: &str) -> &'static str {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let mut lower = [0; EXTENSION_BYTES_MAX];
    let Some(lower) = lower.get_mut(..extension.len()) else { return UNKNOWN };
    lower.copy_from_slice(extension.as_bytes());
    lower.make_ascii_lowercase();
    let found = TYPES.binary_search_by(|(extension, _)| extension.as_bytes().cmp(lower));
    found.map_or(UNKNOWN, |index| TYPES[index].1)
}

const UNKNOWN: &str = "application/octet-stream";

/// Whether files of this type are made smaller by compression, so that there may be compressed ones beside them.
pub(crate) fn is_compressible(media_type: &str) -> bool {
    let words = ["text/", "json", "xml", "javascript", "wasm", "font/ttf", "font/otf"];
    words.iter().any(|word| media_type.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_extension() {
        for (path, expected) in [
            ("a/index.html", "text/html"),
            ("X.PNG", "image/png"),
            ("style.css", "text/css"),
            ("app.wasm", "application/wasm"),
            ("a.svg", "image/svg+xml"),
            ("archive.tar.gz", "application/gzip"),
            ("README", UNKNOWN),
            (".html/x", UNKNOWN),
            ("x.averylongextension", UNKNOWN),
            ("x.", UNKNOWN),
            ("", UNKNOWN),
        ] {
            assert_eq!(media_type(path), expected, "{path}");
        }
        assert!(is_compressible("text/html") && is_compressible("image/svg+xml") && !is_compressible("image/png"));
    }
}
