//! What a program writes, in lines.

use alloc::string::String;
use alloc::vec::Vec;

/// A line is printed in parts when it has more bytes.
const LINE_BYTES_MAX: usize = 4096;

/// The start of a line whose end was not written yet.
#[derive(Debug, Default)]
pub struct Line(Vec<u8>);

impl Line {
    /// Adds bytes, and calls `print` with each line that has an end now.
    pub fn add(&mut self, mut bytes: &[u8], mut print: impl FnMut(String)) {
        while !bytes.is_empty() {
            let space = LINE_BYTES_MAX - self.0.len();
            let end = bytes.iter().take(space).position(|byte| *byte == b'\n');
            let length = end.unwrap_or(bytes.len().min(space));
            self.0.extend_from_slice(&bytes[..length]);
            bytes = &bytes[length + usize::from(end.is_some())..];
            if end.is_some() || self.0.len() == LINE_BYTES_MAX {
                print(self.take());
            }
        }
    }

    /// Calls `print` with what has no end.
    pub fn flush(&mut self, mut print: impl FnMut(String)) {
        if !self.0.is_empty() {
            print(self.take());
        }
    }

    fn take(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.0).into_owned();
        self.0.clear();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_and_cut() {
        let (mut line, mut printed) = (Line::default(), Vec::new());
        line.add(b"a\n\nb", |text| printed.push(text));
        line.add(b"c", |text| printed.push(text));
        assert_eq!(printed, ["a", ""]);
        line.add(b"\nd", |text| printed.push(text));
        line.flush(|text| printed.push(text));
        line.flush(|text| printed.push(text));
        assert_eq!(printed, ["a", "", "bc", "d"]);
        printed.clear();
        line.add(&[b'x'; 2 * LINE_BYTES_MAX + 5], |text| printed.push(text));
        assert_eq!(printed.iter().map(String::len).collect::<Vec<_>>(), [LINE_BYTES_MAX, LINE_BYTES_MAX]);
        line.add(b"\xff\n", |text| printed.push(text));
        assert_eq!(printed[2], "xxxxx\u{fffd}");
    }
}
