//! Names for the addresses of a recording: from the recording itself, or from the files that it mentions.

use std::collections::{BTreeSet, HashMap};

use super::changes::Changes;
use super::recorded::{NameSource, Place, Recording};
use crate::debug_files;
use crate::elf::ImageError;
use crate::files::FileSource;
use crate::images::stand_ins;
use crate::model::{Frame, STACK_ENTRIES_MAX, Stack, StackEnd};
use crate::symbols::{Location, Symbols};

/// Names by address, for each image that the recording has names of: path as Perfetto writes it, and build id.
pub(super) type Recorded = HashMap<(String, Vec<u8>), HashMap<u64, Vec<Location>>>;

/// Builds the profile's tables of frames and stacks.
pub(super) struct Builder<'a> {
    pub recording: &'a mut Recording,
    pub recorded: Recorded,
    pub changes: Changes,
    /// Image and address of each frame of the file.
    pub frames: HashMap<u64, Place>,
    pub callstacks: HashMap<u64, Vec<u64>>,
    pub files: &'a mut dyn FileSource,
    /// Symbols of files that had to be opened, by image.
    pub loaded: HashMap<u32, Option<Box<Symbols>>>,
    /// What was left out of files, one sentence each.
    pub left_out: BTreeSet<String>,
    /// Indices into the profile's frames of all functions at a place, in a version of its names, outermost first.
    pub known: HashMap<(Place, u32), Vec<u32>>,
    pub entries: usize,
    /// Stacks that were cut because of [`STACK_ENTRIES_MAX`].
    pub shortened: u64,
}

impl Builder<'_> {
    /// Which names the places of a stack have at a time, of those that have changed.
    pub fn versions(&self, callstack: u64, time_ns: u64) -> Vec<u32> {
        let ids = self.callstacks.get(&callstack).map_or(&[][..], Vec::as_slice);
        self.changes.versions(ids.iter().filter_map(|id| self.frames.get(id)).copied(), time_ns)
    }

    /// Adds a stack with the names of a time to the profile and returns its index.
    pub fn stack(&mut self, callstack: u64, end: StackEnd, time_ns: u64) -> u32 {
        let ids = self.callstacks.get(&callstack).cloned().unwrap_or_default();
        let mut frames = Vec::new();
        for id in ids {
            let Some(place) = self.frames.get(&id).copied() else { continue };
            let key = (place, self.changes.version(place, time_ns));
            if !self.known.contains_key(&key) {
                let indices = self.resolve(place, key.1);
                self.known.insert(key, indices);
            }
            let indices = &self.known[&key];
            if self.entries + indices.len() > STACK_ENTRIES_MAX {
                self.shortened += 1;
                break;
            }
            self.entries += indices.len();
            frames.extend_from_slice(indices);
        }
        let stacks = &mut self.recording.profile.stacks;
        stacks.push(Stack { frames, end });
        stacks.len() as u32 - 1
    }

    /// Adds the functions at a place to the profile, outermost first.
    fn resolve(&mut self, place: Place, version: u32) -> Vec<u32> {
        let changed = self.changes.get(place, version).cloned();
        let mut locations = changed.unwrap_or_else(|| self.locate(place));
        if let Some(image) = place.image.and_then(|image| self.recording.images.get_mut(image as usize)) {
            image.addresses += 1;
            // Where only the start of a function is known, that stands for its name.
            image.named += u64::from(locations.iter().any(|location| !location.function.starts_with("0x")));
            image.with_line += u64::from(locations.iter().any(|location| location.line.is_some()));
        }
        if locations.is_empty() {
            locations.push(Location::of_name(format!("{:#x}", place.address)));
        }
        let image = place.image.and_then(|image| self.recording.images.get(image as usize));
        let name = image.map_or("", |image| image.path.rsplit('/').next().unwrap_or_default()).to_owned();
        let outermost = locations.len() - 1;
        let mut indices = Vec::with_capacity(locations.len());
        for (index, location) in locations.into_iter().enumerate().rev() {
            let frames = &mut self.recording.profile.frames;
            indices.push(frames.len() as u32);
            frames.push(Frame {
                function: location.function,
                file: location.file,
                line: location.line,
                start_line: location.start_line,
                image: name.clone(),
                inlined: index != outermost,
                ..Frame::default()
            });
            self.recording.places.push(place);
        }
        indices
    }

    /// The functions at a place, innermost first.
    fn locate(&mut self, place: Place) -> Vec<Location> {
        let Some(index) = place.image else { return Vec::new() };
        let Some(image) = self.recording.images.get(index as usize) else { return Vec::new() };
        let recorded = self.recorded.get(&(image.path.clone(), image.build_id.clone()));
        if let Some(locations) = recorded.and_then(|names| names.get(&place.address))
            && !locations.is_empty()
        {
            return locations.clone();
        }
        if let Some(name) = stand_ins().find(|name| image.path.strip_prefix('/') == Some(*name)) {
            return vec![Location::of_name(name)];
        }
        // Names are written when a recording ends: only one that did not end needs the file.
        if self.recording.is_complete {
            return Vec::new();
        }
        if !self.loaded.contains_key(&index) {
            let mut found = self.read(index);
            // What is held of other files is read again where it is needed.
            if found.as_ref().map_or_else(is_too_much, |symbols| symbols.left_out().is_some())
                && !self.loaded.is_empty()
            {
                self.release();
                found = self.read(index);
            }
            let symbols = self.take_note(index, found);
            self.loaded.insert(index, symbols);
        }
        self.loaded[&index].as_ref().map_or_else(Vec::new, |symbols| symbols.locate(place.address))
    }

    /// Drops all symbols. What was left out of them is a warning.
    pub fn release(&mut self) {
        for (index, symbols) in std::mem::take(&mut self.loaded) {
            let path = self.recording.images.get(index as usize).map_or("", |image| &image.path);
            let Some(symbols) = symbols else { continue };
            self.left_out.extend(symbols.left_out_of(path).into_iter().chain(symbols.missing_of(path)));
        }
    }

    /// Reads the file of an image, if it still is what was recorded.
    fn read(&mut self, index: u32) -> Result<Box<Symbols>, ImageError> {
        let image = self.recording.images.get(index as usize).ok_or(ImageError::Stripped)?;
        // What the kernel gives without a file, `[vdso]`, has a slash in front only for Perfetto.
        let path = image.path.strip_prefix('/').filter(|path| path.starts_with('[')).unwrap_or(&image.path);
        let file = self.files.load(path).ok_or(ImageError::Absent)?;
        debug_files::read(path, &*file, None, self.files).map(Box::new)
    }

    fn take_note(&mut self, index: u32, found: Result<Box<Symbols>, ImageError>) -> Option<Box<Symbols>> {
        let image = self.recording.images.get_mut(index as usize)?;
        match found {
            Ok(symbols) if symbols.build_id.as_deref().unwrap_or_default() == image.build_id => {
                image.names = NameSource::File;
                Some(symbols)
            }
            Ok(_) => {
                image.names = NameSource::Missing("is another build by now".to_owned());
                None
            }
            Err(error) => {
                image.names = NameSource::Missing(error.to_string());
                None
            }
        }
    }
}

fn is_too_much(error: &ImageError) -> bool {
    matches!(error, ImageError::TooMuch(_))
}

/// What to say about names that had to be looked up because the recorder was ended before it wrote them: a sentence
/// for those that were found, one for those that could not be checked, one for those that were not found.
pub(super) fn looked_up(recording: &Recording) -> Vec<String> {
    let mut found = 0;
    let (mut unchecked, mut missing) = (Vec::new(), Vec::new());
    for image in &recording.images {
        match &image.names {
            NameSource::Recording => {}
            NameSource::File if image.build_id.is_empty() => unchecked.push(image.path.clone()),
            NameSource::File => found += 1,
            NameSource::Missing(reason) => missing.push(format!("{} {reason}", image.path)),
        }
    }
    let mut said = Vec::new();
    if found > 0 {
        let files = if found == 1 { "the file".to_owned() } else { format!("the {found} files") };
        said.push(format!("the recording lacks names: they were looked up in {files} of the recorded build id"));
    }
    if !unchecked.is_empty() {
        said.push(format!(
            "names come from files that have no build id, so they may be of another build: {}",
            some_of(&unchecked)
        ));
    }
    if !missing.is_empty() {
        said.push(format!("the recording lacks names, and they are in no file: {}", some_of(&missing)));
    }
    said
}

/// The first few of a list, and how many more there are.
fn some_of(list: &[String]) -> String {
    const SHOWN_MAX: usize = 4;
    let shown = list[..list.len().min(SHOWN_MAX)].join(", ");
    match list.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
