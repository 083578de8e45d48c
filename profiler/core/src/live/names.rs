//! Names of call addresses, looked up once and kept, within bounds.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::sync::Arc;

use crate::event::Mapping;
use crate::images::Names;
use crate::recording::FileSource;
use crate::text::is_unsafe;
use crate::unwind::CallAddress;

/// Files whose symbols are kept, in bytes of the files together. Beyond, those that were not needed for
/// the longest time go; they are read again when they are needed.
const FILES_BYTES_MAX: usize = 256 << 20;
/// Addresses whose names are kept; beyond, all are looked up again.
const ADDRESSES_MAX: usize = 256 << 10;
/// Names of generated code are read again after so many views: there is more of it by then.
const VIEWS_BETWEEN_READS: u64 = 25;
/// What stands for code without a name.
const NO_NAME: &str = "[no name]";
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

/// Where the names of an image come from: its index to its names, or why there are none.
pub type Loader<'a> = dyn FnMut(u32, &mut dyn FileSource) -> Result<Names, String> + 'a;

struct Loaded {
    names: Option<Names>,
    file_bytes: usize,
    used: u64,
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
    /// Why images have no names, until asked for.
    warnings: Vec<String>,
}

/// Counts the bytes that pass.
struct Measured<'a> {
    files: &'a mut dyn FileSource,
    bytes: usize,
}

impl FileSource for Measured<'_> {
    fn load(&mut self, path: &str) -> Option<Vec<u8>> {
        let loaded = self.files.load(path);
        self.bytes += loaded.as_ref().map_or(0, Vec::len);
        loaded
    }

    fn load_mapped(&mut self, process: u32, mapping: &Mapping) -> Result<Vec<u8>, String> {
        let loaded = self.files.load_mapped(process, mapping);
        self.bytes += loaded.as_ref().map_or(0, Vec::len);
        loaded
    }

    fn fetch_debug_file(&mut self, build_id: &[u8]) -> Option<Vec<u8>> {
        self.files.fetch_debug_file(build_id)
    }

    fn open_mapped(&mut self, process: u32, mapping: &Mapping) -> Result<Box<dyn Read>, String> {
        self.files.open_mapped(process, mapping)
    }

    fn open_perf_map(&mut self, process: u32) -> Result<Option<Box<dyn Read>>, String> {
        self.files.open_perf_map(process)
    }
}

/// A name from a file that anybody may have made: nothing in it may steer a terminal.
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
        let is_generated = |loaded: &Loaded| matches!(loaded.names, Some(Names::Generated(_)));
        let images = self.images.iter().filter(|(_, loaded)| is_generated(loaded));
        let images: HashSet<u32> = images.map(|(image, _)| *image).collect();
        self.images.retain(|image, _| !images.contains(image));
        self.lines_of.retain(|call, _| call.image.is_none_or(|image| !images.contains(&image)));
    }

    /// The lines that an address stands for, innermost first: the last is the function itself, those
    /// before it were inlined. Never empty. `path` is that of the address's image.
    pub fn lines(
        &mut self,
        call: CallAddress,
        path: &str,
        load: &mut Loader<'_>,
        files: &mut dyn FileSource,
    ) -> Arc<[u32]> {
        if let Some(lines) = self.lines_of.get(&call) {
            return Arc::clone(lines);
        }
        let locations = match call.image.and_then(|image| self.names(image, load, files)) {
            Some(names) => names.locate(call.address),
            None => Vec::new(),
        };
        let image = printable(path.rsplit('/').next().unwrap_or_default());
        let mut lines = Vec::with_capacity(locations.len().max(1));
        for location in &locations {
            let function = self.function(printable(&location.function), image.clone());
            let place = location.file.as_ref().zip(location.line).map(|(file, line)| (self.file(file), line));
            lines.push(self.line(Line { function, place }));
        }
        if lines.is_empty() {
            let function = self.function(NO_NAME.to_owned(), image);
            lines.push(self.line(Line { function, place: None }));
        }
        let lines: Arc<[u32]> = Arc::from(lines);
        self.lines_of.insert(call, Arc::clone(&lines));
        lines
    }

    fn names(&mut self, image: u32, load: &mut Loader<'_>, files: &mut dyn FileSource) -> Option<&Names> {
        self.clock += 1;
        if !self.images.contains_key(&image) {
            let mut measured = Measured { files, bytes: 0 };
            let names = match load(image, &mut measured) {
                Ok(names) => Some(names),
                Err(warning) => {
                    self.warnings.push(printable(&warning));
                    None
                }
            };
            // Without names, only the knowledge of that is kept.
            let file_bytes = if names.is_some() { measured.bytes } else { 0 };
            self.evict(file_bytes);
            self.images.insert(image, Loaded { names, file_bytes, used: self.clock });
        }
        let loaded = self.images.get_mut(&image)?;
        loaded.used = self.clock;
        loaded.names.as_ref()
    }

    fn evict(&mut self, new_bytes: usize) {
        let mut bytes: usize = self.images.values().map(|loaded| loaded.file_bytes).sum();
        while bytes.saturating_add(new_bytes) > FILES_BYTES_MAX {
            let with_names = self.images.iter().filter(|(_, loaded)| loaded.names.is_some());
            let Some((oldest, _)) = with_names.min_by_key(|(_, loaded)| loaded.used) else { return };
            let oldest = *oldest;
            bytes -= self.images.remove(&oldest).map_or(0, |loaded| loaded.file_bytes);
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

    /// Why images have no names, each told once.
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
