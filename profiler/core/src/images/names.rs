//! The names in an image: where they are, and reading them, which can take its time.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::{Loaded, MappedFile};
use crate::debug_files;
use crate::elf::ReadAt;
use crate::files::FileSource;
use crate::guest::{GuestId, ProcessKey};
use crate::image::Image;
use crate::jit::{JitNames, NamedCode};
use crate::program::{NameSource, NamesFrom};
use crate::symbols::{Location, Symbols};

/// An image and where its names are, which need no [`Images`](super::Images) to be read.
#[derive(Debug, Clone)]
pub struct NamedImage {
    pub(super) loaded: Arc<Loaded>,
    pub(super) generated: Option<NamedCode>,
}

impl NamedImage {
    /// The path of its file, or the name in brackets of what it stands for.
    pub fn path(&self) -> &str {
        &self.loaded.file.path
    }

    /// Reads its names; fails with one sentence why there are none. Slow: reads the file and its debug information.
    pub fn read(&self, files: &mut dyn FileSource) -> Result<Names, String> {
        if let Some(name) = self.loaded.stand_in {
            return Ok(Names::Fixed(name));
        }
        if let Some(generated) = &self.generated {
            return Ok(Names::Generated(Box::new(generated.read(files))));
        }
        let MappedFile { path, build_id, .. } = &self.loaded.file;
        let image = self.loaded.image.clone();
        if let Some((process, mapping)) = &self.loaded.mapped {
            let file = files.load_mapped(*process, mapping);
            let (symbols, path) = (names_in(path, build_id, Some(*process), file, files)?.symbols, path.clone());
            return Ok(Names::Symbols { symbols, image, path, sources: Vec::new() });
        }
        let (mut symbols, mut sources) = (Vec::new(), Vec::new());
        for from in &self.loaded.names {
            match from {
                NamesFrom::Map(map) => symbols.push(Symbols::of_map(map.clone())),
                NamesFrom::Opened(file) => {
                    symbols.extend(names_in(path, build_id, None, Ok(Box::new(file.clone())), files)?.symbols);
                }
                NamesFrom::OfGuest(file, source) => {
                    let found = names_in(path, build_id, None, Ok(Box::new(file.clone())), files);
                    let found = found.map_err(|error| match *source == NameSource::Memory {
                        true => format!(
                            "the names of {path} are not in the guest's memory: its functions have none; give the guest's disk with --guest-disk, or its files with --guest-root"
                        ),
                        false => error,
                    })?;
                    let of_file = found.symbols.len() - usize::from(found.has_debug_file);
                    sources.extend(found.has_debug_file.then_some(NameSource::DebugFile));
                    sources.extend(std::iter::repeat_n(*source, of_file));
                    symbols.extend(found.symbols);
                }
                NamesFrom::PerfMap(map, pid) => {
                    // Its numbers are of the guest, whichever that is.
                    let process = ProcessKey { machine: Some(GuestId(0)), pid: *pid };
                    let names = JitNames::of_guest(process, &map.lines(), files.budget().account());
                    return Ok(Names::Generated(Box::new(names)));
                }
                NamesFrom::File(path) => symbols.extend(names_of_file(path, build_id, files)?),
            }
        }
        if self.loaded.names.is_empty() {
            symbols = names_of_file(path, build_id, files)?;
        }
        Ok(Names::Symbols { symbols, image, path: path.clone(), sources })
    }
}

fn names_of_file(path: &str, build_id: &[u8], files: &mut dyn FileSource) -> Result<Vec<Symbols>, String> {
    let file = files.load(path).ok_or_else(|| "cannot be read".to_owned());
    Ok(names_in(path, build_id, None, file, files)?.symbols)
}

/// Names in files.
struct Found {
    /// The first with a name for an address wins.
    symbols: Vec<Symbols>,
    /// The first are in a file with debug information alone.
    has_debug_file: bool,
}

/// The names in a file, and before them those in the file that its debug information was moved to.
fn names_in(
    path: &str,
    build_id: &[u8],
    process: Option<ProcessKey>,
    file: Result<Box<dyn ReadAt>, String>,
    files: &mut dyn FileSource,
) -> Result<Found, String> {
    let without = |reason: &str| format!("{path} {reason}: its functions have no names");
    let file = file.map_err(|reason| without(&reason))?;
    let own = debug_files::read(path, &*file, process, files);
    if let Ok(own) = &own
        && own.build_id.as_deref().unwrap_or_default() != build_id
    {
        return Err(without("was replaced by another build while it ran"));
    }
    let debug = match &own {
        Ok(own) if own.has_debug_information() => None,
        _ => debug_files::find(path, &*file, build_id, process, files),
    };
    let has_debug_file = debug.is_some();
    let embedded = || debug_files::embedded(&*file, &files.budget());
    let has_own = own.as_ref().is_ok_and(Symbols::has_debug_information);
    let debug = debug.or_else(|| if has_own { None } else { embedded() });
    match (debug, own) {
        (None, Err(error)) => Err(without(&error.to_string())),
        (debug, own) => Ok(Found { symbols: debug.into_iter().chain(own).collect(), has_debug_file }),
    }
}

/// The names in one image.
pub enum Names {
    /// One name for all.
    Fixed(&'static str),
    /// Those of files and maps, the first with a name wins; and the starts of functions without a name.
    Symbols {
        /// Files and maps.
        symbols: Vec<Symbols>,
        /// The image, with its unwind tables.
        image: Option<Arc<Image>>,
        /// Its path.
        path: String,
        /// Of a program in a guest, where each of `symbols` is from; none of any other.
        sources: Vec<NameSource>,
    },
    /// Those that a process gave to the code that it generated.
    Generated(Box<JitNames>),
}

impl Names {
    /// The memory that they take, in bytes, as [`Symbols::bytes`] gives it.
    pub(crate) fn bytes(&self) -> usize {
        if let Names::Symbols { symbols, .. } = self { symbols.iter().map(Symbols::bytes).sum() } else { 0 }
    }

    /// The functions at a linked address, as [`Symbols::locate`] gives them.
    pub fn locate(&self, address: u64) -> Vec<Location> {
        match self {
            Names::Symbols { symbols, image, .. } => {
                let mut found = symbols.iter().map(|symbols| symbols.locate(address));
                found.find(|found| !found.is_empty()).unwrap_or_else(|| {
                    // One row for a function, and not one for each address in it.
                    let start = image.as_ref().and_then(|image| image.function_start(address));
                    let named = |start| Location::of_name(format!("{start:#x}"));
                    start.map(named).into_iter().collect()
                })
            }
            Names::Generated(names) => names.locate(address),
            Names::Fixed(name) => vec![Location::of_name(*name)],
        }
    }

    /// Where the name at a linked address of a program in a guest is from.
    pub(crate) fn source(&self, address: u64) -> NameSource {
        let (symbols, sources) = match self {
            Names::Symbols { symbols, sources, .. } => (symbols, sources),
            Names::Generated(names) if names.has_name(address) => return NameSource::PerfMap,
            Names::Generated(_) | Names::Fixed(_) => return NameSource::Nothing,
        };
        let named = symbols.iter().zip(sources).find(|(symbols, _)| !symbols.locate(address).is_empty());
        named.map_or(NameSource::Nothing, |(_, source)| *source)
    }

    /// The linked addresses of the function at one of them, if a table of symbols has it. Its last one may be where the next function starts.
    pub fn span(&self, address: u64) -> Option<Range<u64>> {
        let Names::Symbols { symbols, .. } = self else { return None };
        symbols.iter().find_map(|symbols| symbols.span(address))
    }

    /// What was at a linked address one after the other, and from when on (`CLOCK_MONOTONIC` in nanoseconds), if that
    /// is not always the same.
    pub fn changes(&self, address: u64) -> Vec<(u64, Vec<Location>)> {
        if let Names::Generated(names) = self { names.changes(address) } else { Vec::new() }
    }

    /// What a reader of the profile should know of the names at these addresses, one sentence each.
    pub fn warnings(&self, addresses: &BTreeSet<u64>) -> Vec<String> {
        match self {
            Names::Generated(names) => names.warnings(addresses),
            Names::Symbols { .. } => self.left_out().into_iter().chain(self.missing()).collect(),
            Names::Fixed(_) => Vec::new(),
        }
    }

    /// Which names and lines of a file are missing because reading them was too much, in one sentence.
    pub(crate) fn left_out(&self) -> Option<String> {
        let Names::Symbols { symbols, path, .. } = self else { return None };
        symbols.iter().find_map(|symbols| symbols.left_out_of(path))
    }

    /// Which names of a file are missing because files beside it are, in one sentence: of what was looked up so far.
    pub(crate) fn missing(&self) -> Option<String> {
        let Names::Symbols { symbols, path, .. } = self else { return None };
        symbols.iter().find_map(|symbols| symbols.missing_of(path))
    }
}
