//! The images that processes and guests run: which are mapped where, unwinding through them, and
//! their names afterwards. What is shared by all who turn raw samples into stacks.

mod names;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::arch::{Registers, Width};
use crate::budget::{Budget, Meters, TABLES};
use crate::event::{Event, FileIdentity, Mapping, NumberedWait, Placement, RawSample, Segment, Skid};
use crate::files::FileSource;
use crate::guest::{GuestId, GuestKind, Mode, ProcessId, ProcessKey, SpaceId};
use crate::image::Image;
use crate::jit::{self, Found};
use crate::linux::waits::Wait;
use crate::map::SymbolMap;
use crate::model::StackEnd;
use crate::program::{NamesFrom, Program};
use crate::unwind::skid;
use crate::unwind::{AddressSpace, CallAddress, CallChain, DEPTH_MAX, StackMemory, UnwindCache};

pub use names::{NamedImage, Names};

/// The image of this machine's kernel: of its functions where they are known, otherwise one that stands for all of it.
pub const KERNEL_NAME: &str = "[kernel]";

/// Names of images that stand for code of which no image is known.
const CODE_STAND_INS: [&str; 6] =
    [KERNEL_NAME, "[guest user space]", "[16-bit code]", "[32-bit code]", "[guest]", "[nested guest]"];
/// What runs below a system call of a process: the index of its image.
const KERNEL: u32 = 0;
/// What runs in a guest's processes.
const GUEST_USER: u32 = 1;
/// Code that is not of 64 bits.
const CODE_16: u32 = 2;
const CODE_32: u32 = 3;
/// What a guest executes that a process runs as its VMM.
const GUEST: u32 = 4;
/// What a guest of a guest executes.
const NESTED: u32 = 5;

/// A file that code was mapped from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedFile {
    /// Its path, or the name in brackets of what it stands for: `[kernel]`.
    pub path: String,
    /// The GNU build id at the time of mapping, empty if there is none.
    pub build_id: Vec<u8>,
    /// Where it was mapped first: first address and the one after its end.
    pub range: (u64, u64),
}

#[derive(Debug)]
struct Loaded {
    file: MappedFile,
    /// All of it has one name.
    stand_in: Option<&'static str>,
    image: Option<Arc<Image>>,
    /// Where its names are if not in the file.
    names: Vec<NamesFrom>,
    /// The process that mapped it first, and how, by which the file is found again.
    mapped: Option<(ProcessKey, Mapping)>,
    /// The user has named it for what a guest runs.
    is_named: bool,
    /// It is an operating system's kernel.
    is_kernel: bool,
}

impl Loaded {
    /// A file of which nothing more is known.
    fn new(file: MappedFile) -> Loaded {
        Loaded { file, stand_in: None, image: None, names: Vec::new(), mapped: None, is_named: false, is_kernel: false }
    }

    fn stand_in(name: &'static str) -> Loaded {
        let file = MappedFile { path: name.to_owned(), build_id: Vec::new(), range: (0, 1) };
        Loaded { stand_in: Some(name), ..Loaded::new(file) }
    }
}

/// Files that stay open for their code. Without it a few functions that have neither unwind tables nor a frame lose their
/// caller.
const OPEN_MAX: usize = 512;
/// Maximum of unreadable files that are reported one by one; only invalid input has more.
const WARNINGS_MAX: usize = 100;

/// The images and address spaces of all guests that are sampled together.
pub struct Images {
    cache: UnwindCache,
    guests: HashMap<GuestId, GuestKind>,
    spaces: HashMap<SpaceId, Space>,
    loaded: Vec<Arc<Loaded>>,
    /// Process IDs within their guests.
    processes: HashMap<ProcessId, u32>,
    /// What sources placed, by where it is in our memory, where it stays.
    programs: HashMap<usize, (Program, u32)>,
    /// By machine, by path, and by which file that was: one may have been replaced by another.
    by_file: HashMap<(Option<GuestId>, String, Option<FileIdentity>), u32>,
    /// How many images there are of a path and a build id.
    alike: HashMap<(String, Vec<u8>), u32>,
    /// Why files have no names and break stacks, until taken; how many there were.
    warnings: Vec<String>,
    warned: usize,
    jit: jit::Sources,
    /// What unwind tables may cost.
    tables: Budget,
    /// What is known of generated code to unwind it by.
    nothing: Arc<Image>,
}

/// An address space.
#[derive(Clone)]
struct Space {
    guest: GuestId,
    /// Whose files and generated code it has.
    process: ProcessKey,
    /// Shared with the copies that a process has made of itself, until one of them maps something else.
    code: Arc<AddressSpace>,
}

/// The stack of a sample: those of its segments, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JoinedStack {
    /// The calls, innermost first.
    pub calls: Vec<CallAddress>,
    /// Which of them, behind the innermost of each segment, were interrupted: their addresses are not within a call.
    pub interrupted: Vec<u32>,
    /// Why there are no more, or why the first of the segments that are not whole ended.
    pub end: StackEnd,
    /// The segments, innermost first.
    pub parts: Vec<Part>,
}

/// What a segment gave to a stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Part {
    /// Its address space.
    pub space: SpaceId,
    /// Whose code it is.
    pub mode: Mode,
    /// How wide its addresses are.
    pub width: Width,
    /// How many of the calls.
    pub calls: u32,
    /// Why there are no more of this segment.
    pub end: StackEnd,
    /// How far from the sample's time it was sampled, if it was merged by time.
    pub apart_ns: u64,
}

/// The names of the images that stand for code or for a wait, by their index.
pub(crate) fn stand_ins() -> impl Iterator<Item = &'static str> {
    CODE_STAND_INS.into_iter().chain(Wait::ALL.map(Wait::frame))
}

impl Default for Images {
    fn default() -> Images {
        Images {
            cache: UnwindCache::default(),
            guests: HashMap::new(),
            spaces: HashMap::new(),
            loaded: stand_ins().map(|name| Arc::new(Loaded::stand_in(name))).collect(),
            processes: HashMap::new(),
            programs: HashMap::new(),
            by_file: HashMap::new(),
            alike: HashMap::new(),
            warnings: Vec::new(),
            warned: 0,
            jit: jit::Sources::default(),
            tables: Budget::new(TABLES, Meters::NONE),
            nothing: Arc::new(Image::of_map(&SymbolMap::default(), 0..u64::MAX, None)),
        }
    }
}

impl Images {
    /// Takes note of guests, of their address spaces and of what is mapped there; other events change nothing.
    /// `files` gives the bytes of mapped files, the first time that each is seen.
    pub fn learn(&mut self, event: &Event, files: &mut dyn FileSource) {
        match event {
            Event::Guest(guest) => {
                self.guests.insert(guest.id, guest.kind);
            }
            Event::Process(process) => {
                self.processes.insert(process.id, process.pid);
            }
            Event::Space { space, guest, process, copy_of } => {
                let process = self.process_of(*guest, *process);
                // What its process generates belongs to the program that it runs.
                self.jit.exec(process);
                let code =
                    copy_of.and_then(|original| self.spaces.get(&original)).map(|original| original.code.clone());
                self.spaces.insert(*space, Space { guest: *guest, process, code: code.unwrap_or_default() });
            }
            Event::SpaceEnd(space) => {
                self.spaces.remove(space);
            }
            Event::Map { space, mapping } => self.map(*space, mapping, files),
            Event::Place { space, range, bias, program } => self.place(*space, range.clone(), *bias, program),
            _ => {}
        }
    }

    /// By what the files of an address space are found.
    fn process_of(&self, guest: GuestId, process: Option<ProcessId>) -> ProcessKey {
        let kind = self.guests.get(&guest);
        let machine = kind.is_some_and(|kind| kind.is_machine()).then_some(guest);
        let pid = process.and_then(|process| self.processes.get(&process).copied());
        ProcessKey { machine, pid: pid.or_else(|| kind.and_then(|kind| kind.pid())).unwrap_or(0) }
    }

    /// How many address spaces there are now.
    pub fn spaces(&self) -> usize {
        self.spaces.len()
    }

    fn map(&mut self, space: SpaceId, mapping: &Mapping, files: &mut dyn FileSource) {
        let process = self.spaces.get(&space).map_or(ProcessKey::default(), |space| space.process);
        if jit::is_dump(&mapping.path) {
            let index = self.generated(process, mapping);
            return self.jit.dump(index, mapping, files);
        }
        if jit::is_anonymous(&mapping.path) {
            return self.place_generated(space, process, mapping);
        }
        let key = (process.machine, mapping.path.clone(), mapping.file);
        let index = match self.by_file.get(&key) {
            Some(index) => *index,
            None => {
                let index = self.load(process, mapping, files);
                self.by_file.insert(key, index);
                index
            }
        };
        let Some(image) = self.loaded[index as usize].image.clone() else {
            if jit::may_be_generated(&mapping.path) {
                self.place_generated(space, process, mapping);
            }
            return;
        };
        let bias = match mapping.placement {
            Placement::AsLinked => Some(0),
            Placement::Biased(bias) => Some(bias),
            Placement::FileOffset(offset) => image.bias_of_mapping(mapping.start, offset),
        };
        if let (Some(bias), Some(space)) = (bias, self.spaces.get_mut(&space)) {
            Arc::make_mut(&mut space.code).add(mapping.start..mapping.end, bias, index, image);
        }
    }

    fn load(&mut self, process: ProcessKey, mapping: &Mapping, files: &mut dyn FileSource) -> u32 {
        let parsed = files.load_mapped(process, mapping).and_then(|file| {
            let read = Image::of_file(file, self.loaded.len() < OPEN_MAX, self.tables.account());
            read.map_err(|error| error.to_string())
        });
        let image = match parsed {
            Ok(image) => {
                if let Some(reason) = &image.without_tables {
                    let path = &mapping.path;
                    self.warn(format!("{path} {reason}: it is unwound without its tables, so stacks may be broken"));
                }
                Some(Arc::new(image))
            }
            Err(reason) => {
                // What has no file has no names there either.
                let has_file = !["/memfd:", "/dev/", "/SYSV", "/anon_hugepage"]
                    .iter()
                    .any(|start| mapping.path.starts_with(start));
                if has_file {
                    let path = &mapping.path;
                    self.warn(format!(
                        "{path} {reason}: its functions have no names, and stacks through it may be broken"
                    ));
                }
                None
            }
        };
        let build_id = image.as_ref().and_then(|image| image.build_id.clone()).unwrap_or_default();
        // Path and build id distinguish images in a recording.
        let path = self.unlike_others(&mapping.path, &build_id, "another file");
        let file = MappedFile { path, build_id, range: (mapping.start, mapping.end) };
        let mapped = Some((process, mapping.clone()));
        self.loaded.push(Arc::new(Loaded { image, mapped, ..Loaded::new(file) }));
        self.loaded.len() as u32 - 1
    }

    fn warn(&mut self, sentence: String) {
        if self.warned < WARNINGS_MAX {
            self.warned += 1;
            self.warnings.push(sentence);
        }
    }

    /// Why files could not be read, one sentence each; each is returned once.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// A path that no other image with this build id has: if need be with `addition`, and how many there were before.
    fn unlike_others(&mut self, path: &str, build_id: &[u8], addition: &str) -> String {
        let count = self.alike.entry((path.to_owned(), build_id.to_vec())).or_insert(0);
        *count += 1;
        match *count {
            1 => path.to_owned(),
            2 => format!("{path} ({addition})"),
            count => format!("{path} ({addition}, {})", count - 1),
        }
    }

    fn place(&mut self, space: SpaceId, range: Range<u64>, bias: u64, program: &Program) {
        let index = match self.programs.get(&program.place()) {
            Some((_, index)) => *index,
            None => self.load_program(range.clone(), program),
        };
        if let Some(space) = self.spaces.get_mut(&space) {
            Arc::make_mut(&mut space.code).add(range, bias, index, program.image.clone());
        }
    }

    fn load_program(&mut self, range: Range<u64>, program: &Program) -> u32 {
        let index = self.loaded.len() as u32;
        let build_id = program.image.build_id.clone().unwrap_or_default();
        let path = self.unlike_others(&program.name, &build_id, "another file");
        let file = MappedFile { path, build_id, range: (range.start, range.end) };
        let (image, names) = (Some(program.image.clone()), program.names.clone());
        let (is_named, is_kernel) = (program.is_whole, program.is_kernel);
        self.loaded.push(Arc::new(Loaded { image, names, is_named, is_kernel, ..Loaded::new(file) }));
        self.programs.insert(program.place(), (program.clone(), index));
        index
    }

    /// A process may run code there that it generated.
    fn place_generated(&mut self, space: SpaceId, process: ProcessKey, mapping: &Mapping) {
        let index = self.generated(process, mapping);
        if let Some(space) = self.spaces.get_mut(&space) {
            Arc::make_mut(&mut space.code).add(mapping.start..mapping.end, 0, index, self.nothing.clone());
        }
    }

    /// The image that stands for what a process generates; `mapping` is where it does.
    fn generated(&mut self, process: ProcessKey, mapping: &Mapping) -> u32 {
        if let Found::Known(index) = self.jit.image_of(process) {
            return index;
        }
        let index = self.loaded.len() as u32;
        // Programs that a process ran one after the other.
        let path = self.unlike_others(&format!("[jit {}]", process.pid), &[], "another program");
        let file = MappedFile { path, build_id: Vec::new(), range: (mapping.start, mapping.end) };
        self.loaded.push(Arc::new(Loaded::new(file)));
        self.jit.add(process, index);
        index
    }

    /// A sample had this stack: keeps the data that only its process can provide later.
    pub fn sampled(&mut self, stack: &JoinedStack, files: &mut dyn FileSource) {
        let of_kernel =
            stack.parts.iter().take_while(|part| part.mode == Mode::Kernel).map(|part| part.calls).sum::<u32>();
        let in_process = stack.calls.get(of_kernel as usize);
        self.jit.sampled(in_process.and_then(|call| call.image), files);
    }

    /// The stack of a sample. What it waits for is the innermost call, and a part of the innermost segment.
    pub fn unwind(&mut self, sample: &RawSample) -> JoinedStack {
        let mut joined = self.unwind_code(sample);
        if let Some(NumberedWait { wait, .. }) = sample.wait {
            let image = Some((CODE_STAND_INS.len() + wait as usize) as u32);
            joined.calls.insert(0, CallAddress { image, address: 0 });
            joined.interrupted.iter_mut().for_each(|index| *index += 1);
            match joined.parts.first_mut() {
                Some(innermost) => innermost.calls += 1,
                None => joined.parts.push(Part { mode: Mode::Kernel, calls: 1, ..Part::default() }),
            }
        }
        joined
    }

    /// The stack of the code that a sample was in.
    pub fn unwind_code(&mut self, sample: &RawSample) -> JoinedStack {
        let mut joined = JoinedStack::default();
        for (index, segment) in sample.segments.iter().enumerate() {
            let skid = if index == 0 { sample.skid } else { Skid::None };
            let chain = self.unwind_segment(segment, skid, index + 1 == sample.segments.len());
            if joined.end == StackEnd::Complete {
                joined.end = chain.end;
            }
            let Segment { space, mode, width, apart_ns, .. } = *segment;
            let calls = chain.calls.len() as u32;
            joined.parts.push(Part { space, mode, width, calls, end: chain.end, apart_ns });
            let before = joined.calls.len() as u32;
            joined.interrupted.extend(chain.interrupted.iter().map(|index| before + index));
            joined.calls.extend(chain.calls);
        }
        joined
    }

    fn unwind_segment(&mut self, segment: &Segment, skid: Skid, is_last: bool) -> CallChain {
        let (ip, just) =
            (segment.registers.ip(), |call, end| CallChain { calls: vec![call], end, ..CallChain::default() });
        let Some(space) = self.spaces.get(&segment.space) else {
            return just(CallAddress { image: None, address: ip }, StackEnd::BadAddress);
        };
        if let [innermost, returns @ ..] = &segment.chain[..] {
            // A return address is one past its call.
            let calls = [*innermost].into_iter().chain(returns.iter().map(|address| address.saturating_sub(1)));
            let calls = calls.take(DEPTH_MAX).map(|address| space.code.at(address)).collect();
            return CallChain { calls, end: StackEnd::Complete, ..CallChain::default() };
        }
        let here = space.code.at(ip);
        let stand_in = match (self.guests.get(&space.guest), segment.mode) {
            (Some(GuestKind::Process { .. }), Mode::Kernel) => Some(CallAddress { image: Some(KERNEL), address: 0 }),
            (Some(GuestKind::Process { .. }), Mode::Hypervisor) => Some(CallAddress { image: Some(GUEST), address: 0 }),
            // Its addresses are in a space of its own.
            (Some(_), Mode::Hypervisor) => {
                return just(CallAddress { image: Some(NESTED), address: 0 }, StackEnd::Complete);
            }
            (Some(kind), Mode::User) if kind.is_machine() => Some(CallAddress { image: Some(GUEST_USER), address: ip }),
            _ => None,
        };
        if let (Some(stand_in), None) = (stand_in, here.image) {
            return just(stand_in, StackEnd::Complete);
        }
        let narrow = match segment.width {
            Width::Bits64 => None,
            Width::Bits32 => Some(CODE_32),
            Width::Bits16 => Some(CODE_16),
        };
        if let Some(narrow) = narrow {
            return just(CallAddress { image: here.image.or(Some(narrow)), ..here }, StackEnd::NotLongMode);
        }
        if segment.stack.is_empty() && !is_last {
            return just(here, StackEnd::Complete);
        }
        let memory = StackMemory(&segment.stack);
        match segment.registers {
            Registers::X86_64(registers) => skid::unwind(&space.code, &mut self.cache, registers, memory, skid),
            Registers::Aarch64(registers) => skid::unwind(&space.code, &mut self.cache, registers, memory, skid),
        }
    }

    /// The file that [`CallAddress::image`] stands for.
    pub fn file(&self, index: u32) -> Option<&MappedFile> {
        self.loaded.get(index as usize).map(|loaded| &loaded.file)
    }

    /// The files that were named for what a guest runs and into which no sample falls, a sentence each.
    /// `elsewhere` is the lowest address of samples that are in no file. A kernel whose guest was in processes need not be seen.
    pub fn unseen(&self, is_seen: impl Fn(u32) -> bool, elsewhere: Option<u64>) -> Vec<String> {
        let is_in_processes = elsewhere.is_none() && is_seen(GUEST_USER);
        let is_expected = |loaded: &Loaded| loaded.is_named && !(loaded.is_kernel && is_in_processes);
        let named = (0u32..).zip(&self.loaded).filter(|(index, loaded)| is_expected(loaded) && !is_seen(*index));
        let sentence = |(_, loaded): (u32, &Arc<Loaded>)| {
            let MappedFile { path, range: (start, end), .. } = &loaded.file;
            let what = match elsewhere {
                Some(address) => format!(
                    "code without a name ran at {address:#x} and above; if that is where it was loaded, or moved itself to, give its first address there with --load-address"
                ),
                None => "give the file that the guest runs with --symbols".to_owned(),
            };
            format!("no sample falls into {path}, which was taken to run at {start:#x} to {end:#x}: {what}")
        };
        named.map(sentence).collect()
    }

    /// An image, to read its names apart from these images.
    pub fn named(&self, index: u32) -> Option<NamedImage> {
        let loaded = self.loaded.get(index as usize)?.clone();
        Some(NamedImage { loaded, generated: self.jit.named(index) })
    }

    /// All images, in the order of [`CallAddress::image`].
    pub fn all_named(&self) -> impl Iterator<Item = NamedImage> {
        (0u32..).map_while(|index| self.named(index))
    }

    /// How many images there are.
    pub fn count(&self) -> usize {
        self.loaded.len()
    }

    /// The names in a file, or one sentence why there are none.
    pub fn names(&self, index: u32, files: &mut dyn FileSource) -> Result<Names, String> {
        self.named(index).ok_or_else(|| format!("there is no image {index}"))?.read(files)
    }

    /// What an image without any name has: the addresses where its functions begin.
    pub fn nameless(&self, index: u32) -> Names {
        let image = self.loaded.get(index as usize).and_then(|loaded| loaded.image.clone());
        Names::Symbols { symbols: Vec::new(), image, path: String::new(), sources: Vec::new() }
    }

    /// Whether an image is a program in a guest whose names may be from several places.
    pub(crate) fn is_of_guest(&self, index: u32) -> bool {
        let names = self.loaded.get(index as usize).map(|loaded| &loaded.names);
        names.is_some_and(|names| {
            names.iter().any(|from| matches!(from, NamesFrom::OfGuest(..) | NamesFrom::PerfMap(..)))
        })
    }
}
