//! Makes the table of media types: those that `mime_guess` has for the extensions of web sites. The crate itself needs the standard
//! library, which an image does not have.

use std::fmt::Write;
use std::path::Path;

/// In alphabetical order, which a search needs.
const EXTENSIONS: [&str; 62] = [
    "7z", "aac", "apng", "atom", "avi", "avif", "bin", "bmp", "bz2", "c", "css", "csv", "doc", "docx", "eot", "epub",
    "flac", "gif", "gz", "htm", "html", "ico", "ics", "jpeg", "jpg", "js", "json", "jsonld", "m4a", "map", "md", "mid",
    "mjs", "mov", "mp3", "mp4", "mpeg", "odt", "oga", "ogg", "ogv", "opus", "otf", "pdf", "png", "ppt", "pptx", "rss",
    "rtf", "svg", "tar", "tif", "tiff", "ttf", "txt", "wasm", "wav", "webm", "webp", "woff", "xhtml", "xml",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    assert!(EXTENSIONS.is_sorted(), "the extensions are in order");
    let mut table = String::new();
    for extension in EXTENSIONS {
        let media_type = mime_guess::from_ext(extension).first_raw().expect("a known extension");
        writeln!(table, "(\"{extension}\", \"{media_type}\"),").expect("a string can be written to");
    }
    let folder = std::env::var_os("OUT_DIR").expect("cargo sets it");
    std::fs::write(Path::new(&folder).join("media_types.in"), format!("[{table}]"))
        .expect("the build folder can be written");
}
