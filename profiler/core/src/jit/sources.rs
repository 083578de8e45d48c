//! Which processes generate code, and the files in which they name it.

use std::collections::HashMap;

use super::{JitNames, dump, perf_map};
use crate::budget::Account;
use crate::event::Mapping;
use crate::files::FileSource;
use crate::guest::ProcessKey;

/// A process that generates code.
#[derive(Debug, Clone, Default)]
struct Source {
    process: ProcessKey,
    /// The jitdump that it writes.
    dump: Option<Mapping>,
    samples: u64,
    /// It runs another program by now, which may write files of the same names.
    has_ended: bool,
}

/// The processes that generate code, by the image that stands for what they generate.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    images: HashMap<ProcessKey, u32>,
    sources: HashMap<u32, Source>,
    /// Of all processes.
    samples: u64,
}

/// The image of a process's generated code.
pub(crate) enum Found {
    Known(u32),
    /// There is none yet: it has to be added with [`Sources::add`].
    New,
}

impl Sources {
    /// The image that stands for what a process generates.
    pub(crate) fn image_of(&self, process: ProcessKey) -> Found {
        self.images.get(&process).map_or(Found::New, |image| Found::Known(*image))
    }

    /// `image` stands for what a process generates.
    pub(crate) fn add(&mut self, process: ProcessKey, image: u32) {
        self.images.insert(process, image);
        self.sources.insert(image, Source { process, ..Default::default() });
    }

    /// The process of an image writes a jitdump, which is kept open from now on.
    pub(crate) fn dump(&mut self, image: u32, mapping: &Mapping, files: &mut dyn FileSource) {
        let Some(source) = self.sources.get_mut(&image) else { return };
        // If it cannot be opened, that is reported when names are needed.
        let _ = files.open_mapped(source.process, mapping);
        source.dump = Some(mapping.clone());
    }

    /// A process runs another program.
    pub(crate) fn exec(&mut self, process: ProcessKey) {
        if let Some(source) = self.images.remove(&process).and_then(|image| self.sources.get_mut(&image)) {
            source.has_ended = true;
        }
    }

    /// A sample was taken, innermost in this image. From time to time the process's map is looked for, and kept open
    /// once it is there: the process may end, and with it the way to its files.
    pub(crate) fn sampled(&mut self, image: Option<u32>, files: &mut dyn FileSource) {
        self.samples += 1;
        let Some(source) = image.and_then(|image| self.sources.get_mut(&image)) else { return };
        source.samples += 1;
        if source.samples.is_power_of_two() && !source.has_ended {
            let _ = files.open_perf_map(source.process);
        }
    }

    /// Where the names are of what an image stands for, `None` if that is not generated code.
    pub(crate) fn named(&self, image: u32) -> Option<NamedCode> {
        /// One sample in so many is too little for a word about missing names.
        const RARE: u64 = 100;
        let source = self.sources.get(&image)?;
        let is_rare = source.samples.saturating_mul(RARE) < self.samples;
        let Source { process, has_ended, .. } = *source;
        Some(NamedCode { process, dump: source.dump.clone(), has_ended, is_rare })
    }
}

/// Where the names are of the code that a process generated.
#[derive(Debug, Clone)]
pub(crate) struct NamedCode {
    process: ProcessKey,
    dump: Option<Mapping>,
    has_ended: bool,
    is_rare: bool,
}

impl NamedCode {
    /// Reads them.
    pub(crate) fn read(&self, files: &mut dyn FileSource) -> JitNames {
        let process = self.process;
        let mut names = JitNames { dump: None, map: None, problems: Vec::new(), is_rare: self.is_rare, process };
        if let Some(mapping) = &self.dump {
            let path = &mapping.path;
            let read =
                files.open_mapped(process, mapping).map(|mut input| dump::read(&mut input, files.budget().account()));
            names.dump = names.keep(path, read);
        }
        if !self.has_ended {
            let path = format!("/tmp/perf-{}.map", process.pid);
            let read = match files.open_perf_map(process) {
                Ok(None) => None,
                Ok(Some(mut input)) => Some(Ok(perf_map::read(&mut input, files.budget().account()))),
                Err(reason) => Some(Err(reason)),
            };
            names.map = read.and_then(|read| names.keep(&path, read));
        }
        names
    }
}

impl JitNames {
    /// Those of a process of a guest, by the lines of its map, if it has one.
    pub(crate) fn of_guest(process: ProcessKey, lines: &[u8], account: Account) -> JitNames {
        let mut names = JitNames { dump: None, map: None, problems: Vec::new(), is_rare: false, process };
        if !lines.is_empty() {
            let path = format!("/tmp/perf-{}.map", process.pid);
            names.map = names.keep(&path, Ok(perf_map::read(&mut &lines[..], account)));
        }
        names
    }

    /// What was read of a file, with its path, if it was; what is wrong with it is kept.
    fn keep(
        &mut self,
        path: &str,
        read: Result<(super::JitCode, Option<String>), String>,
    ) -> Option<(String, super::JitCode)> {
        match read {
            Ok((code, problem)) => {
                self.problems.extend(problem.map(|problem| format!("{path} {problem}")));
                Some((path.to_owned(), code))
            }
            Err(reason) => {
                self.problems.push(format!("{path} {reason}: the functions that it names have no names here"));
                None
            }
        }
    }
}
