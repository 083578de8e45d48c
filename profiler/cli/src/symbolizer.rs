//! Turns the addresses of a guest's crash report into functions and lines.

use glass_profiler_core::symbols::Symbols;
use glass_profiler_guests::files::HostFile;
use std::cell::OnceCell;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Symbols of one image, read at the first frame: a boot does not wait for them.
pub struct Symbolizer {
    image: PathBuf,
    symbols: OnceCell<Option<Symbols>>,
}

impl Symbolizer {
    /// For reports of `image`. If that is stripped or gone by then, addresses stay addresses.
    pub fn new(image: &Path) -> Symbolizer {
        Symbolizer { image: image.to_owned(), symbols: OnceCell::new() }
    }

    fn symbols(&self) -> Option<&Symbols> {
        let load = || Symbols::read(&HostFile::open(&self.image).ok()?).ok();
        self.symbols.get_or_init(load).as_ref()
    }

    /// `line`, with the functions added if it is a frame of a report (`  #3 0x0000000000201329`).
    pub fn explain_line(&self, line: &str) -> String {
        let mut text = line.to_owned();
        let Some((number, address)) = parse_frame(line) else { return text };
        let Some(symbols) = self.symbols() else { return text };
        // Frame 0 is where it happened; the others are return addresses, one past their call.
        let address = if number == 0 { address } else { address.saturating_sub(1) };
        for (index, location) in symbols.locate(address).iter().enumerate() {
            let lead = if index == 0 { "  ".to_owned() } else { format!("\n{:1$}", "", line.len() + 2) };
            // Writing to a string cannot fail.
            let _ = write!(text, "{lead}{}", location.function);
            if let (Some(file), Some(line)) = (&location.file, location.line) {
                let _ = write!(text, " ({file}:{line})");
            }
        }
        text
    }
}

fn parse_frame(line: &str) -> Option<(u32, u64)> {
    let (number, address) = line.strip_prefix("  #")?.split_once(" 0x")?;
    Some((number.parse().ok()?, u64::from_str_radix(address, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frames_are_explained() {
        assert_eq!(parse_frame("  #3 0x0000000000201329"), Some((3, 0x201329)));
        for line in ["", "#3 0x10", "  #x 0x10", "  #3 0x", "  #3 0x10 more", "hello"] {
            assert_eq!(parse_frame(line), None, "{line}");
        }
        let symbolizer = Symbolizer::new(Path::new("/nonexistent"));
        assert_eq!(symbolizer.explain_line("  #3 0x10"), "  #3 0x10");
    }
}
