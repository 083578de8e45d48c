//! Streaming JSON output: strings, lists and times.

use std::io::{self, Write};

/// Writes a string with its quotes.
pub(crate) fn string(output: &mut dyn Write, text: &str) -> io::Result<()> {
    serde_json::to_writer(output, text).map_err(io::Error::from)
}

/// Writes a list.
pub(crate) fn list<T>(
    output: &mut dyn Write,
    items: impl IntoIterator<Item = T>,
    mut item: impl FnMut(&mut dyn Write, T) -> io::Result<()>,
) -> io::Result<()> {
    output.write_all(b"[")?;
    for (index, value) in items.into_iter().enumerate() {
        if index > 0 {
            output.write_all(b",")?;
        }
        item(output, value)?;
    }
    output.write_all(b"]")
}

/// Writes `"name":` and a list of numbers or words.
pub(crate) fn column<T: std::fmt::Display>(
    output: &mut dyn Write,
    name: &str,
    items: impl IntoIterator<Item = T>,
) -> io::Result<()> {
    write!(output, "\"{name}\":")?;
    list(output, items, |output, value| write!(output, "{value}"))
}

/// A number, or `null`.
pub(crate) struct OrNull<T>(pub Option<T>);

impl<T: std::fmt::Display> std::fmt::Display for OrNull<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("null"),
        }
    }
}

/// Nanoseconds as milliseconds, exactly.
pub(crate) struct Milliseconds(pub u64);

impl std::fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}
