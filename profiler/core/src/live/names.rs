//! Names of call addresses, looked up once and kept, within bounds.

use std::collections::HashMap;
use std::sync::Arc;

use crate::images::Names;
use crate::names::is_unsafe;
use crate::unwind::CallAddress;

/// Names that are kept, in bytes of all images together: half of what may be held, so that there is room for the next. Beyond, those
/// that were not needed for the longest time go; they are read again when they are needed.
const NAMES_BYTES_MAX: usize = 128 << 20;
/// Addresses whose names are kept; beyond, all are looked up again.
const ADDRESSES_MAX: usize = 256 << 10;
/// Names of generated code are read again after so many views: there is more of it by then.
const VIEWS_BETWEEN_READS: u64 = 25;
/// What stands for code without a name.
const NO_NAME: &str = "[no name]";
/// What stands for code whose names are on their way.
pub const NOT_READ_YET: &str = "[reading names]";
/// The longest name that is shown, in characters.
const NAME_CHARACTERS_MAX: usize = 1000;

/// A function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Function {
    /// Demangled, free of control characters.
    pub name: String,
    /// File name of the program or library.
    pub image: String,
}

/// A line of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Line {
    /// Index of the function.
    pub function: u32,
    /// Source file and line, if known.
    pub place: Option<(Arc<str>, u32)>,
}

/// Where the names of an image come from: its index to its names, or why there are none. `None`: not yet, they are being
/// read.
pub type Loader<'a> = dyn FnMut(u32) -> Option<Result<Names, String>> + 'a;

struct Loaded {
    names: Option<Names>,
    used: u64,
    /// There was a warning that files beside it are missing.
    has_warned: bool,
    /// They are to be read again.
    is_old: bool,
}

impl Loaded {
    fn bytes(&self) -> usize {
        self.names.as_ref().map_or(0, Names::bytes)
    }
}

/// The names that were needed lately.
#[derive(Default)]
pub struct NameCache {
    images: HashMap<u32, Loaded>,
    clock: u64,
    views: u64,
    lines_of: HashMap<CallAddress, Arc<[u32]>>,
    lines: Vec<Line>,
    line_ids: HashMap<Line, u32>,
    functions: Vec<Arc<Function>>,
    function_ids: HashMap<Arc<Function>, u32>,
    files: HashMap<String, Arc<str>>,
    /// Why images have no names, until taken.
    warnings: Vec<String>,
}

/// A name from an untrusted file: it must not control the terminal.
fn printable(text: &str) -> String {
    text.chars().take(NAME_CHARACTERS_MAX).map(|c| if is_unsafe(c) { '?' } else { c }).collect()
}

impl NameCache {
    /// Makes room if too much is kept. Indices from before are void afterwards; call it between views.
    pub fn trim(&mut self) {
        if self.lines_of.len() > ADDRESSES_MAX {
            let images = std::mem::take(&mut self.images);
            *self = NameCache { images, clock: self.clock, ..Default::default() };
        }
        self.views += 1;
        if self.views.is_multiple_of(VIEWS_BETWEEN_READS) {
            self.forget_generated();
        }
    }

    /// Has the names of generated code read again.
    fn forget_generated(&mut self) {
        for loaded in self.images.values_mut() {
            loaded.is_old |= matches!(loaded.names, Some(Names::Generated(_)));
        }
        let images = &self.images;
        let is_old = |image: u32| images.get(&image).is_some_and(|loaded| loaded.is_old);
        self.lines_of.retain(|call, _| !call.image.is_some_and(is_old));
    }

    /// The lines that an address stands for, innermost first: the last is the function itself, those
    /// before it were inlined. Never empty. `path` is that of the address's image.
    pub fn lines(&mut self, call: CallAddress, path: &str, load: &mut Loader<'_>) -> Arc<[u32]> {
        if let Some(lines) = self.lines_of.get(&call) {
            return Arc::clone(lines);
        }
        let is_final = call.image.is_none_or(|image| self.read(image, load));
        let loaded = call.image.and_then(|image| self.images.get(&image));
        let is_loaded = loaded.is_some();
        let locations = loaded.and_then(|loaded| loaded.names.as_ref()).map(|names| names.locate(call.address));
        let locations = locations.unwrap_or_default();
        self.warn_of_missing(call.image);
        let without = if !is_loaded && !is_final { NOT_READ_YET } else { NO_NAME };
        let image = printable(path.rsplit('/').next().unwrap_or_default());
        let mut lines = Vec::with_capacity(locations.len().max(1));
        for location in &locations {
            let function = self.function(printable(&location.function), image.clone());
            let place = location.file.as_ref().zip(location.line).map(|(file, line)| (self.file(file), line));
            lines.push(self.line(Line { function, place }));
        }
        if lines.is_empty() {
            let function = self.function(without.to_owned(), image);
            lines.push(self.line(Line { function, place: None }));
        }
        let lines: Arc<[u32]> = Arc::from(lines);
        if is_final {
            self.lines_of.insert(call, Arc::clone(&lines));
        }
        lines
    }

    /// Sees to it that the names of an image are there, if they can be. `false` if newer ones are on their way.
    fn read(&mut self, image: u32, load: &mut Loader<'_>) -> bool {
        self.clock += 1;
        if self.images.get(&image).is_none_or(|loaded| loaded.is_old) {
            let names = match load(image) {
                None => return false,
                Some(Ok(names)) => {
                    self.warnings.extend(names.left_out().map(|sentence| printable(&sentence)));
                    Some(names)
                }
                Some(Err(warning)) => {
                    self.warnings.push(printable(&warning));
                    None
                }
            };
            self.evict(names.as_ref().map_or(0, Names::bytes));
            self.images.insert(image, Loaded { names, used: self.clock, has_warned: false, is_old: false });
        }
        if let Some(loaded) = self.images.get_mut(&image) {
            loaded.used = self.clock;
        }
        true
    }

    /// Warns once of files beside an image that were found missing when an address was looked up.
    fn warn_of_missing(&mut self, image: Option<u32>) {
        let Some(loaded) = image.and_then(|image| self.images.get_mut(&image)) else { return };
        let names = loaded.names.as_ref().filter(|_| !loaded.has_warned);
        if let Some(sentence) = names.and_then(Names::missing) {
            loaded.has_warned = true;
            self.warnings.push(printable(&sentence));
        }
    }

    fn evict(&mut self, new_bytes: usize) {
        let mut bytes: usize = self.images.values().map(Loaded::bytes).sum();
        while bytes.saturating_add(new_bytes) > NAMES_BYTES_MAX {
            let with_names = self.images.iter().filter(|(_, loaded)| loaded.names.is_some());
            let Some((oldest, _)) = with_names.min_by_key(|(_, loaded)| loaded.used) else { return };
            let oldest = *oldest;
            bytes -= self.images.remove(&oldest).map_or(0, |loaded| loaded.bytes());
        }
    }

    fn file(&mut self, file: &str) -> Arc<str> {
        if let Some(known) = self.files.get(file) {
            return Arc::clone(known);
        }
        let shown: Arc<str> = Arc::from(printable(file));
        self.files.insert(file.to_owned(), Arc::clone(&shown));
        shown
    }

    fn function(&mut self, name: String, image: String) -> u32 {
        let function = Arc::new(Function { name, image });
        let next = self.functions.len() as u32;
        let id = *self.function_ids.entry(Arc::clone(&function)).or_insert(next);
        if id == next {
            self.functions.push(function);
        }
        id
    }

    fn line(&mut self, line: Line) -> u32 {
        let next = self.lines.len() as u32;
        let id = *self.line_ids.entry(line.clone()).or_insert(next);
        if id == next {
            self.lines.push(line);
        }
        id
    }

    /// All functions so far; [`Line::function`] is an index.
    pub fn functions(&self) -> &[Arc<Function>] {
        &self.functions
    }

    /// All lines so far.
    pub fn all_lines(&self) -> &[Line] {
        &self.lines
    }

    /// Why images have no names, each returned once.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks of direction make a terminal show a name backwards (2026-11-22).
    #[test]
    fn nothing_in_a_name_steers_a_terminal() {
        assert_eq!(printable("a\u{202e}b\u{1b}[2Jc\u{200b}"), "a?b?[2Jc?");
    }
}
