//! What every way of holding a VM shares: the image is compared with memory, a core's state is read,
//! and code in a ring-0 service is seen through to its caller.

use std::cell::OnceCell;
use std::ops::Range;
use std::path::PathBuf;

use glass_formats as formats;
use glass_profile::arch::x86_64::Registers;
use glass_profile::arch::{Architecture, Width};
use glass_profile::event::{Event, RawSample, Segment, Skid};
use glass_profile::guest::{Guest, GuestId, GuestKind, Mode, SpaceId};
use glass_profile::image::ImageError;
use glass_profile::model::State;

use crate::arch::x86_64::CoreState;
use crate::error::GuestError;
use crate::linux::{self, Linux};
use crate::relocated;
use crate::stack;
use crate::symbols::{self, GuestProgram, SymbolFile};

/// Bytes of the state of a core that are read for a sample.
pub(crate) const CORE_STATE_READ: usize = formats::ACTIVITY_OFFSET as usize + 4;
/// The most vCPUs that are looked at.
pub(crate) const VCPUS_MAX: usize = 256;
/// Bytes of code that are compared with the guest if the image has no build id that is loaded.
const CODE_BYTES_COMPARED: usize = 64;
/// The most that is copied of the stack that an interrupt left: Linux's are of 16 KiB.
const LEFT_STACK_BYTES_MAX: usize = 16 << 10;

/// How a VM is sampled.
#[derive(Debug, Clone)]
pub struct VmSettings {
    /// How much of the stack is copied.
    pub stack_bytes: u32,
    /// What the guest runs: images, maps of symbols.
    pub symbols: Vec<SymbolFile>,
    /// The vCPUs to sample by their index, all if empty.
    pub vcpus: Vec<u32>,
    /// A kernel without symbols that the VM was started with: addresses are recorded, with a warning.
    pub boot_image: Option<PathBuf>,
    /// Symbols that do not fit what the guest runs are used all the same, with a warning.
    pub force: bool,
}

impl VmSettings {
    /// All vCPUs of a guest that runs `symbols`.
    pub fn new(stack_bytes: u32, symbols: PathBuf) -> VmSettings {
        VmSettings { stack_bytes, symbols: vec![symbols.into()], boot_image: None, vcpus: Vec::new(), force: false }
    }

    /// Whether a vCPU is to be sampled.
    pub fn wants(&self, vcpu: usize) -> bool {
        self.vcpus.is_empty() || self.vcpus.iter().any(|wanted| *wanted as usize == vcpu)
    }

    /// The vCPUs to sample, of so many. Fails if one is wanted that does not exist.
    pub(crate) fn choose(&self, count: usize) -> Result<Vec<usize>, GuestError> {
        match self.vcpus.iter().find(|wanted| **wanted as usize >= count) {
            Some(index) => Err(GuestError::NoSuchVcpu { index: *index, there: (0..count as u32).collect() }),
            None => Ok((0..count).filter(|vcpu| self.wants(*vcpu)).collect()),
        }
    }
}

/// A stopped core.
pub(crate) trait HeldCore {
    /// Copies from a virtual address of the guest; returns how much there was.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError>;

    /// Whether the core sleeps according to the VMM's side; called only if the guest does not report it.
    fn is_halted(&mut self) -> Result<bool, GuestError>;

    /// Whether the core stands wherever it was, and not only between two blocks of instructions.
    fn is_exact(&self) -> bool {
        true
    }
}

/// The one guest, and the one address space, of a source of this kind: kernels share their part of each.
const GUEST: GuestId = GuestId(0);
const SPACE: SpaceId = SpaceId(0);

/// What a VM runs.
pub(crate) struct VmImage {
    guest: Guest,
    programs: Vec<GuestProgram>,
    settings: VmSettings,
    /// Address of the guest's per-core state, if it is one of ours.
    cores: Option<u64>,
    /// The kernel, if the guest is a Linux, once it has been looked at; by its place in `programs`.
    linux: OnceCell<(usize, Linux)>,
}

impl VmImage {
    /// Reads and parses the symbol files of a guest.
    pub(crate) fn load(kind: GuestKind, name: &str, settings: VmSettings) -> Result<VmImage, GuestError> {
        let guest = Guest { id: GUEST, kind, name: name.to_owned(), architecture: Architecture::X86_64 };
        let programs = symbols::load(&settings.symbols)?;
        let cores = programs.iter().find_map(|program| {
            program.landmark(formats::CORES_SYMBOL).map(|address| address.wrapping_add(program.bias.get()))
        });
        Ok(VmImage { guest, programs, settings, cores, linux: OnceCell::new() })
    }

    /// Compares the images with what the guest has in memory, finds a kernel that has moved, and copies the unwind tables
    /// that a Linux keeps there. [`prepare`](VmImage::prepare) comes after it. `Ok` holds a warning for what could not be
    /// done.
    pub(crate) fn check(&self, state: &CoreState, core: &mut impl HeldCore) -> Result<Option<String>, GuestError> {
        let mut warnings = Vec::new();
        if let Some(kernel) = &self.settings.boot_image {
            warnings.push(format!(
                "code is shown by address alone, because {} {}, with --symbols",
                kernel.display(),
                ImageError::BootImage
            ));
        }
        for (index, program) in self.programs.iter().enumerate().filter(|(_, program)| !program.is_right) {
            let checked = if program.is_linux() && self.linux.get().is_none() {
                Linux::find(program, core).map(|mut linux| {
                    let warning = linux.warning.take();
                    let _ = self.linux.set((index, linux));
                    warning
                })
            } else {
                self.find_moved(program, state, core)?;
                check_program(program, core)
            };
            match checked {
                Ok(warning) => warnings.extend(warning),
                Err(
                    error @ (GuestError::WrongImage { .. } | GuestError::Symbols(_) | GuestError::KernelNotFound(_)),
                ) if self.settings.force => {
                    warnings.push(format!("names may be wrong: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((!warnings.is_empty()).then(|| warnings.join("; ")))
    }

    /// Takes note of where a kernel is that has moved. One of ours never does, and a Linux is found in its own way.
    fn find_moved(
        &self,
        program: &GuestProgram,
        state: &CoreState,
        core: &mut impl HeldCore,
    ) -> Result<(), GuestError> {
        let may_move = self.cores.is_none() && program.address.is_none() && !program.is_linux();
        if let Some(image) = program.elf.as_ref().filter(|_| may_move && state.width == Width::Bits64)
            && let Some(slide) = relocated::slide(image, state, core)?
        {
            program.bias.set(slide);
        }
        Ok(())
    }

    /// Does what [`check`](VmImage::check) has left for when the guest runs again; returns a warning for what could
    /// not be done.
    pub(crate) fn prepare(&mut self) -> Option<String> {
        self.linux.get_mut()?.1.parse()
    }

    /// The guest, the tracks of the vCPUs that are sampled, by their numbers, and where what it runs is.
    pub(crate) fn announce(&self, vcpus: impl Iterator<Item = u32>, sink: &mut dyn FnMut(Event)) {
        sink(Event::Guest(self.guest.clone()));
        sink(Event::Space { space: SPACE, guest: GUEST, copy_of: None });
        for vcpu in vcpus {
            let name = format!("vcpu {vcpu}");
            sink(Event::Track { track: vcpu, guest: GUEST, id: u64::from(vcpu), name });
        }
        for (index, program) in self.programs.iter().enumerate() {
            let linux = self.linux.get().filter(|(kernel, _)| *kernel == index).map(|(_, linux)| linux);
            let slide = linux.map_or(program.bias.get(), |linux| linux.slide);
            for (range, bias, program) in program.programs(slide, linux.and_then(|linux| linux.orc.as_ref())) {
                sink(Event::Place { space: SPACE, range, bias, program });
            }
        }
    }

    /// Room for the stack of a sample, all of it touched: a page fault would be part of the pause.
    pub(crate) fn room(&self) -> Vec<u8> {
        std::hint::black_box(vec![1; self.settings.stack_bytes as usize])
    }

    /// Copies a sample of a core, its stack to `stack`; time and pause are not known yet.
    pub(crate) fn sample(
        &self,
        index: usize,
        state: CoreState,
        core: &mut impl HeldCore,
        stack: Vec<u8>,
    ) -> Result<RawSample, GuestError> {
        let track = index as u32;
        if state.is_at_reset {
            return Ok(RawSample { track, state: State::NeverStarted, ..Default::default() });
        }
        let CoreState { registers, width, .. } = state;
        let mode = self.mode(&state);
        let segment = |registers: Registers, stack| {
            let registers = registers.into();
            Segment { space: SPACE, mode, width, registers, stack, ..Default::default() }
        };
        if width != Width::Bits64 {
            let segments = vec![segment(registers, Vec::new())];
            return Ok(RawSample { track, state: self.state(core, index)?, segments, ..Default::default() });
        }
        let mut segments = Vec::with_capacity(2);
        let mut outer = registers;
        if state.is_privileged
            && self.cores.is_some()
            && let Some(caller) = self.caller_of_service(core, registers)?
        {
            segments.push(segment(registers, Vec::new()));
            outer = caller;
        }
        // The stack of a guest's process cannot be unwound.
        let in_process = mode == Mode::User && self.linux.get().is_some() && !self.has_image(registers.rip);
        let pieces = if in_process { Vec::new() } else { self.copy_stack(core, outer, stack)? };
        let linux = self.linux.get().map(|(_, linux)| linux);
        let waits = linux.and_then(|linux| match mode {
            Mode::User => Some(false),
            _ => linux.waits(registers.rip),
        });
        let skid = if core.is_exact() || !segments.is_empty() { Skid::None } else { skid(core, registers)? };
        let state = match waits {
            Some(true) => State::Idle,
            Some(false) => State::Running,
            None => self.state(core, index)?,
        };
        segments.push(segment(outer, pieces));
        Ok(RawSample { track, state, skid, segments, ..Default::default() })
    }

    /// Whose code runs. An image of ours is kernel and service in one, whatever it may do.
    fn mode(&self, state: &CoreState) -> Mode {
        if self.cores.is_some() || state.is_privileged { Mode::Kernel } else { Mode::User }
    }

    fn has_image(&self, address: u64) -> bool {
        self.programs.iter().any(|program| program.range().contains(&address))
    }

    /// The pieces of memory that hold a stack.
    fn copy_stack(
        &self,
        core: &mut impl HeldCore,
        registers: Registers,
        mut stack: Vec<u8>,
    ) -> Result<Vec<(u64, Vec<u8>)>, GuestError> {
        let (start, bytes) = (registers.rsp, stack.len());
        // The functions of a Linux have no frame pointers.
        let is_code = |address| self.linux.get().is_none() && self.has_code(address);
        let read = |address, into: &mut [u8]| core.read(address, into);
        let copied = stack::copy((start, registers.rbp), &mut stack, read, is_code)?;
        stack.truncate(copied);
        let room = bytes - copied;
        let left = if self.linux.get().is_some() { linux::left_stack(start, &stack) } else { None };
        let mut pieces = vec![(start, stack)];
        if let Some(left) = left {
            let mut bytes = vec![0; room.min(LEFT_STACK_BYTES_MAX)];
            let copied = core.read(left, &mut bytes)?;
            bytes.truncate(copied);
            pieces.push((left, bytes));
        }
        Ok(pieces)
    }

    fn state(&self, core: &mut impl HeldCore, index: usize) -> Result<State, GuestError> {
        Ok(match self.activity(core, index)? {
            Some(formats::Activity::Idle) => State::Idle,
            Some(formats::Activity::Off) => State::NeverStarted,
            Some(formats::Activity::Spinning) => State::Spinning,
            Some(formats::Activity::Running) => State::Running,
            None if core.is_halted()? => State::Idle,
            None => State::Running,
        })
    }

    /// The state of a core that the guest reports; none for a core that it has not started.
    fn activity(&self, core: &mut impl HeldCore, index: usize) -> Result<Option<formats::Activity>, GuestError> {
        let Some(address) = self.core_state(index) else { return Ok(None) };
        let mut words = [0; CORE_STATE_READ];
        if core.read(address, &mut words)? < words.len() {
            return Ok(None);
        }
        let word = |at: usize| u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        let activity = formats::Activity::from_word(word(formats::ACTIVITY_OFFSET as usize));
        Ok(activity.filter(|_| word(0) == formats::CORE_MAGIC))
    }

    /// Where the guest has the state of a core, of which [`CORE_STATE_READ`] bytes are read, if it is one of ours.
    pub(crate) fn core_state(&self, index: usize) -> Option<u64> {
        let cores = self.cores.filter(|_| index < formats::CORES_MAX)?;
        Some(cores.wrapping_add(index as u64 * formats::CORE_STATE_BYTES))
    }

    /// The addresses between which all code is, if a sample needs only a core's registers, its stack and its state: not of a Linux.
    pub(crate) fn code_of_simple_guest(&self) -> Option<Range<u64>> {
        let ranges = || self.programs.iter().map(GuestProgram::range);
        let start = ranges().map(|range| range.start).min().filter(|_| self.linux.get().is_none())?;
        Some(start..ranges().map(|range| range.end).max()?)
    }

    fn has_code(&self, address: u64) -> bool {
        self.programs.iter().any(|program| {
            let linked = address.wrapping_sub(program.bias.get());
            program.elf.as_ref().is_some_and(|image| image.has_code(linked))
        })
    }

    /// Our images run in ring 3; ring 0 holds only services on a stack of their own, which return by
    /// `iret`. Finds the registers of the code in ring 3 that called one.
    fn caller_of_service(&self, core: &mut impl HeldCore, service: Registers) -> Result<Option<Registers>, GuestError> {
        const FRAME_WORDS: usize = 5;
        // The first frame is the service's own if an interrupt has just ended its halt.
        const FRAMES_MAX: usize = 2;
        let mut stack_pointer = service.rsp;
        for _ in 0..FRAMES_MAX {
            let mut bytes = [0; FRAME_WORDS * 8];
            if core.read(stack_pointer, &mut bytes)? < bytes.len() {
                break;
            }
            let (words, _) = bytes.as_chunks::<8>();
            let [rip, code_segment, _flags, rsp, stack_segment] =
                [0, 1, 2, 3, 4].map(|at| u64::from_le_bytes(words[at]));
            let is_selector = |segment: u64, ring: u64| segment < 0x100 && segment & 3 == ring;
            if is_selector(code_segment, 3) && is_selector(stack_segment, 3) && self.has_code(rip) {
                return Ok(Some(Registers { rip, rsp, rbp: service.rbp }));
            }
            if !is_selector(code_segment, 0) {
                break;
            }
            stack_pointer = rsp;
        }
        Ok(None)
    }
}

/// Compares an image with memory. `Ok` holds a warning if that could not be done.
fn check_program(program: &GuestProgram, core: &mut impl HeldCore) -> Result<Option<String>, GuestError> {
    let wrong = |difference: &str| {
        let place = program.address.map(|address| format!(" at the load address {address:#x}")).unwrap_or_default();
        GuestError::WrongImage { path: program.path.clone(), difference: format!("{difference}{place}") }
    };
    if let Some(image) = &program.elf {
        if let (Some(address), Some(build_id)) = (image.build_id_address, &image.build_id) {
            let mut found = vec![0; build_id.len()];
            if core.read(address.wrapping_add(program.bias.get()), &mut found)? == found.len() {
                return if found == *build_id { Ok(None) } else { Err(wrong("it has another build id")) };
            }
        }
        if let Some((address, code)) = image.code_segments().next() {
            let code = &code[..code.len().min(CODE_BYTES_COMPARED)];
            let mut found = vec![0; code.len()];
            let read = core.read(address.wrapping_add(program.bias.get()), &mut found)?;
            if read == found.len() {
                return if found == code { Ok(None) } else { Err(wrong("the code in its memory differs")) };
            }
        }
    }
    Ok(Some(format!("whether the guest runs {} could not be checked", program.path.display())))
}

/// A return leaves its address below the stack pointer.
fn skid(core: &mut impl HeldCore, registers: Registers) -> Result<Skid, GuestError> {
    let mut left = [0; 8];
    let read = core.read(registers.rsp.wrapping_sub(8), &mut left)?;
    Ok(Skid::NextBlock { has_returned: read == left.len() && u64::from_le_bytes(left) == registers.rip })
}
