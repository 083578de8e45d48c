//! The images that processes and guests run: which are mapped where, unwinding through them, and
//! their names afterwards. What is shared by all who turn raw samples into stacks.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::event::{Mapping, Placement, RawSample};
use crate::image::Image;
use crate::model::StackEnd;
use crate::program::{NamesFrom, Program};
use crate::recording::FileSource;
use crate::skid::{self, Correction};
use crate::symbols::{Location, Symbols};
use crate::unwind::{AddressSpace, CallAddress, CallChain, StackMemory, UnwindCache};

/// The name of what runs below a system call.
const KERNEL: &str = "[kernel]";
/// Index of the image that stands for it.
const KERNEL_INDEX: u32 = 0;
/// The name of what runs in a guest's processes, and the index of the image that stands for it.
const GUEST_USER: &str = "[guest user space]";
const GUEST_USER_INDEX: u32 = 1;
/// Where x86-64 kernels begin: all of the upper half.
const UPPER_HALF: u64 = 1 << 63;

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
    /// Where its names are if not in the file.
    names: Vec<NamesFrom>,
}

impl Loaded {
    fn stand_in(name: &str) -> Loaded {
        let file = MappedFile { path: name.to_owned(), build_id: Vec::new(), range: (0, 1) };
        Loaded { file, image: None, names: Vec::new() }
    }
}

/// The images and address spaces of all processes that are sampled together.
pub struct Images {
    cache: UnwindCache,
    spaces: HashMap<u32, AddressSpace>,
    loaded: Vec<Loaded>,
    by_path: HashMap<String, u32>,
    /// Processes that are VMs with an operating system in them.
    guests: HashSet<u32>,
}

impl Default for Images {
    fn default() -> Images {
        Images {
            cache: UnwindCache::default(),
            spaces: HashMap::new(),
            loaded: vec![Loaded::stand_in(KERNEL), Loaded::stand_in(GUEST_USER)],
            by_path: HashMap::new(),
            guests: HashSet::new(),
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
                self.loaded.push(Loaded { file, image, names: Vec::new() });
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

    /// A process or guest runs a program.
    pub fn place(&mut self, process: u32, range: Range<u64>, bias: u64, program: &Program) {
        let index = self.loaded.len() as u32;
        let build_id = program.image.build_id.clone().unwrap_or_default();
        let file = MappedFile { path: program.name.clone(), build_id, range: (range.start, range.end) };
        let image = Some(program.image.clone());
        self.loaded.push(Loaded { file, image, names: program.names.clone() });
        self.spaces.entry(process).or_default().add(range, bias, index, program.image.clone());
        if program.is_kernel {
            self.guests.insert(process);
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
        let rip = sample.registers.rip;
        if rip < UPPER_HALF && self.guests.contains(&sample.process) && space.at(rip).image.is_none() {
            let call = CallAddress { image: Some(GUEST_USER_INDEX), address: rip };
            return CallChain { calls: vec![call], end: StackEnd::Complete };
        }
        let left = sample.left_stack.as_ref().map(|(address, bytes)| (*address, &bytes[..]));
        let memory = StackMemory { start: sample.registers.rsp, bytes: &sample.stack, left };
        let correction = skid::correction(space, sample.registers, &sample.stack, sample.skid);
        let registers = if let Correction::InCaller(caller) = correction { caller } else { sample.registers };
        let mut chain = space.unwind_in(&mut self.cache, registers, &memory);
        if let Correction::InCallee(callee) = correction {
            chain.calls.insert(0, space.at(callee));
        }
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
        let Some(loaded) = self.loaded.get(index as usize) else { return Ok(Names::Fixed(KERNEL)) };
        if index == KERNEL_INDEX || index == GUEST_USER_INDEX {
            return Ok(Names::Fixed(if index == KERNEL_INDEX { KERNEL } else { GUEST_USER }));
        }
        let MappedFile { path, build_id, .. } = &loaded.file;
        if loaded.names.is_empty() {
            return names_in(path, build_id, files).map(|symbols| Names::Symbols(vec![symbols]));
        }
        let symbols = loaded.names.iter().map(|from| match from {
            NamesFrom::Map(map) => Ok(Symbols::of_map(map.clone())),
            NamesFrom::File(path) => names_in(path, build_id, files),
        });
        symbols.collect::<Result<_, String>>().map(Names::Symbols)
    }
}

fn names_in(path: &str, build_id: &[u8], files: &mut dyn FileSource) -> Result<Symbols, String> {
    match files.load(path).map(|bytes| Symbols::parse(&bytes)) {
        Some(Ok(symbols)) if symbols.build_id.clone().unwrap_or_default() == *build_id => Ok(symbols),
        Some(Ok(_)) => Err(format!("{path} was replaced by another build while it ran: its functions have no names")),
        Some(Err(error)) => Err(format!("{path} {error}: its functions have no names")),
        None => Err(format!("{path} cannot be read: its functions have no names")),
    }
}

/// The names in one image.
pub enum Names {
    /// One name for all.
    Fixed(&'static str),
    /// Those of files and maps; the first that has one wins.
    Symbols(Vec<Symbols>),
}

impl Names {
    /// The functions at a linked address, as [`Symbols::locate`] gives them.
    pub fn locate(&self, address: u64) -> Vec<Location> {
        match self {
            Names::Symbols(sources) => sources
                .iter()
                .map(|symbols| symbols.locate(address))
                .find(|found| !found.is_empty())
                .unwrap_or_default(),
            Names::Fixed(name) => vec![Location { function: (*name).to_owned(), file: None, line: None }],
        }
    }
}
