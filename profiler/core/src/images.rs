//! The images that processes and guests run: which are mapped where, unwinding through them, and
//! their names afterwards. What is shared by all who turn raw samples into stacks.

use std::collections::HashMap;
use std::sync::Arc;

use crate::event::{Mapping, Placement, RawSample};
use crate::image::Image;
use crate::recording::FileSource;
use crate::symbols::{Location, Symbols};
use crate::unwind::{AddressSpace, CallAddress, CallChain, UnwindCache};

/// The name of what runs below a system call.
const KERNEL: &str = "[kernel]";
/// Index of the image that stands for it.
const KERNEL_INDEX: u32 = 0;

/// A file that code was mapped from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedFile {
    /// Its path; `[kernel]` for the operating system's kernel.
    pub path: String,
    /// The GNU build id at the time of mapping, empty if there is none.
    pub build_id: Vec<u8>,
    /// Where it was mapped first: first address and the one after its end.
    pub range: (u64, u64),
}

struct Loaded {
    file: MappedFile,
    image: Option<Arc<Image>>,
}

/// The images and address spaces of all processes that are sampled together.
pub struct Images {
    cache: UnwindCache,
    spaces: HashMap<u32, AddressSpace>,
    loaded: Vec<Loaded>,
    by_path: HashMap<String, u32>,
}

impl Default for Images {
    fn default() -> Images {
        let file = MappedFile { path: KERNEL.to_owned(), build_id: Vec::new(), range: (0, 1) };
        Images {
            cache: UnwindCache::default(),
            spaces: HashMap::new(),
            loaded: vec![Loaded { file, image: None }],
            by_path: HashMap::new(),
        }
    }
}

impl Images {
    /// A process has mapped a file. `files` gives its bytes, the first time that it is seen.
    pub fn map(&mut self, process: u32, mapping: &Mapping, files: &mut dyn FileSource) {
        let index = match self.by_path.get(&mapping.path) {
            Some(index) => *index,
            None => {
                let image = files.load(&mapping.path).and_then(|bytes| Image::parse(&bytes, &[]).ok()).map(Arc::new);
                let build_id = image.as_ref().and_then(|image| image.build_id.clone()).unwrap_or_default();
                let index = self.loaded.len() as u32;
                let file = MappedFile { path: mapping.path.clone(), build_id, range: (mapping.start, mapping.end) };
                self.loaded.push(Loaded { file, image });
                self.by_path.insert(mapping.path.clone(), index);
                index
            }
        };
        let Some(image) = self.loaded[index as usize].image.clone() else { return };
        let bias = match mapping.placement {
            Placement::AsLinked => Some(0),
            Placement::Biased(bias) => Some(bias),
            Placement::FileOffset(offset) => image.bias_of_mapping(mapping.start, offset),
        };
        if let Some(bias) = bias {
            self.spaces.entry(process).or_default().add(mapping.start..mapping.end, bias, index, image);
        }
    }

    /// A process is a copy of another.
    pub fn fork(&mut self, process: u32, parent: u32) {
        let space = self.spaces.get(&parent).cloned().unwrap_or_default();
        self.spaces.insert(process, space);
    }

    /// A process runs another program: its mappings are gone.
    pub fn exec(&mut self, process: u32) {
        self.spaces.remove(&process);
    }

    /// The call chain of a sample, innermost first.
    pub fn unwind(&mut self, sample: &RawSample) -> CallChain {
        let space = self.spaces.entry(sample.process).or_default();
        let mut chain = space.unwind(&mut self.cache, sample.registers, &sample.stack);
        if let Some(address) = sample.inner {
            chain.calls.insert(0, space.at(address));
        }
        if sample.in_kernel {
            chain.calls.insert(0, CallAddress { image: Some(KERNEL_INDEX), address: 0 });
        }
        chain
    }

    /// The file that [`CallAddress::image`] stands for.
    pub fn file(&self, index: u32) -> Option<&MappedFile> {
        self.loaded.get(index as usize).map(|loaded| &loaded.file)
    }

    /// The names in a file, or one sentence why there are none.
    pub fn names(&self, index: u32, files: &mut dyn FileSource) -> Result<Names, String> {
        if index == KERNEL_INDEX {
            return Ok(Names(None));
        }
        let Some(MappedFile { path, build_id, .. }) = self.file(index) else { return Ok(Names(None)) };
        match files.load(path).map(|bytes| Symbols::parse(&bytes)) {
            Some(Ok(symbols)) if symbols.build_id.clone().unwrap_or_default() == *build_id => Ok(Names(Some(symbols))),
            Some(Ok(_)) => {
                Err(format!("{path} was replaced by another build while it ran: its functions have no names"))
            }
            Some(Err(error)) => Err(format!("{path} {error}: its functions have no names")),
            None => Err(format!("{path} cannot be read: its functions have no names")),
        }
    }
}

/// The names in one file.
pub struct Names(Option<Symbols>);

impl Names {
    /// The functions at a linked address, as [`Symbols::locate`] gives them.
    pub fn locate(&self, address: u64) -> Vec<Location> {
        match &self.0 {
            Some(symbols) => symbols.locate(address),
            None => vec![Location { function: KERNEL.to_owned(), file: None, line: None }],
        }
    }
}
