//! What every way of holding a VM shares: the image is compared with memory, a core's state is read,
//! and code in a ring-0 service is seen through to its caller.

use std::cell::OnceCell;
use std::path::PathBuf;

use glass_formats as formats;
use glass_profile::event::{Event, RawSample, Registers, Skid};
use glass_profile::model::State;

use crate::error::GuestError;
use crate::linux::{self, Linux};
use crate::memory::Paging;
use crate::symbols::{self, GuestProgram, SymbolFile};

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
    /// Symbols that do not fit what the guest runs are used all the same, with a warning.
    pub force: bool,
}

impl VmSettings {
    /// All vCPUs of a guest that runs `symbols`.
    pub fn new(stack_bytes: u32, symbols: PathBuf) -> VmSettings {
        VmSettings { stack_bytes, symbols: vec![symbols.into()], vcpus: Vec::new(), force: false }
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

/// What a core's registers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CoreRegisters {
    pub(crate) registers: Registers,
    pub(crate) paging: Paging,
    /// The privilege level, 0 to 3.
    pub(crate) ring: u8,
}

/// A core that stands still.
pub(crate) trait HeldCore {
    /// Copies from a virtual address of the guest; returns how much there was.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError>;

    /// Whether the VMM's side knows the core to be asleep; asked only if the guest does not say.
    fn is_halted(&mut self) -> Result<bool, GuestError>;

    /// Whether the core stands wherever it was, and not only between two blocks of instructions.
    fn is_exact(&self) -> bool {
        true
    }
}

/// What a VM runs.
pub(crate) struct VmImage {
    pid: u32,
    programs: Vec<GuestProgram>,
    settings: VmSettings,
    /// Address of the guest's per-core state, if it is one of ours.
    cores: Option<u64>,
    /// The kernel, if the guest is a Linux, once it has been looked at; by its place in `programs`.
    linux: OnceCell<(usize, Linux)>,
}

impl VmImage {
    /// Reads and parses the symbol files of a guest.
    pub(crate) fn load(pid: u32, settings: VmSettings) -> Result<VmImage, GuestError> {
        let programs = symbols::load(&settings.symbols)?;
        let cores = programs.iter().find_map(|program| {
            program.landmark(formats::CORES_SYMBOL).map(|address| address.wrapping_add(program.bias))
        });
        Ok(VmImage { pid, programs, settings, cores, linux: OnceCell::new() })
    }

    /// Compares the images with what the guest has in memory, and reads the unwind tables that a Linux
    /// keeps there. `Ok` holds a warning for what could not be done.
    pub(crate) fn check(&self, core: &mut impl HeldCore) -> Result<Option<String>, GuestError> {
        let mut warnings = Vec::new();
        for (index, program) in self.programs.iter().enumerate() {
            let checked = if program.is_linux() && self.linux.get().is_none() {
                Linux::find(program, core).map(|mut linux| {
                    let warning = linux.warning.take();
                    let _ = self.linux.set((index, linux));
                    warning
                })
            } else {
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

    /// The tracks of the vCPUs that are sampled, by their numbers, and where what the guest runs is.
    pub(crate) fn announce(&self, vcpus: impl Iterator<Item = u32>, sink: &mut dyn FnMut(Event)) {
        for vcpu in vcpus {
            let name = format!("vcpu {vcpu}");
            sink(Event::Track { track: vcpu, id: u64::from(vcpu), process: self.pid, name });
        }
        for (index, program) in self.programs.iter().enumerate() {
            let linux = self.linux.get().filter(|(kernel, _)| *kernel == index).map(|(_, linux)| linux);
            let slide = linux.map_or(program.bias, |linux| linux.slide);
            for (range, bias, program) in program.programs(slide, linux.and_then(|linux| linux.orc.as_ref())) {
                sink(Event::Place { process: self.pid, range, bias, program });
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
        state: CoreRegisters,
        core: &mut impl HeldCore,
        mut stack: Vec<u8>,
    ) -> Result<RawSample, GuestError> {
        let CoreRegisters { mut registers, ring, .. } = state;
        let mut inner = None;
        if ring == 0 && self.cores.is_some() {
            let in_service = registers.rip;
            if let Some(caller) = self.caller_of_service(core, registers)? {
                inner = Some(in_service);
                registers = caller;
            }
        }
        let linux = self.linux.get().map(|(_, linux)| linux);
        // A process of a guest has a stack that nobody could unwind.
        let in_process =
            linux.is_some() && ring == 3 && !self.programs.iter().any(|p| p.range().contains(&registers.rip));
        let copied = if in_process { 0 } else { core.read(registers.rsp, &mut stack)? };
        let room = stack.len() - copied;
        stack.truncate(copied);
        let mut left_stack = None;
        if linux.is_some()
            && let Some(start) = linux::left_stack(registers.rsp, &stack)
        {
            let mut left = vec![0; room.min(LEFT_STACK_BYTES_MAX)];
            let copied = core.read(start, &mut left)?;
            left.truncate(copied);
            left_stack = Some((start, left));
        }
        let waits = linux.and_then(|linux| if ring == 3 { Some(false) } else { linux.waits(registers.rip) });
        let state = match waits {
            Some(true) => State::Idle,
            Some(false) => State::Running,
            None => self.state(core, index)?,
        };
        let skid = if core.is_exact() || inner.is_some() { Skid::None } else { skid(core, registers)? };
        let (track, process) = (index as u32, self.pid);
        Ok(RawSample { track, process, registers, stack, left_stack, inner, skid, state, ..Default::default() })
    }

    fn state(&self, core: &mut impl HeldCore, index: usize) -> Result<State, GuestError> {
        Ok(match self.activity(core, index)? {
            Some(formats::Activity::Idle | formats::Activity::Off) => State::Idle,
            Some(formats::Activity::Spinning) => State::Spinning,
            Some(formats::Activity::Running) => State::Running,
            None if core.is_halted()? => State::Idle,
            None => State::Running,
        })
    }

    /// What the guest says that a core does; of one that it has not started it says nothing.
    fn activity(&self, core: &mut impl HeldCore, index: usize) -> Result<Option<formats::Activity>, GuestError> {
        let Some(cores) = self.cores.filter(|_| index < formats::CORES_MAX) else { return Ok(None) };
        let address = cores.wrapping_add(index as u64 * formats::CORE_STATE_BYTES);
        let mut words = [0; formats::ACTIVITY_OFFSET as usize + 4];
        if core.read(address, &mut words)? < words.len() {
            return Ok(None);
        }
        let word = |at: usize| u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        let activity = formats::Activity::from_word(word(formats::ACTIVITY_OFFSET as usize));
        Ok(activity.filter(|_| word(0) == formats::CORE_MAGIC))
    }

    fn has_code(&self, address: u64) -> bool {
        self.programs.iter().any(|program| {
            let code = program.elf.as_ref().and_then(|image| image.code(address.wrapping_sub(program.bias)));
            code.is_some()
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
            if core.read(address.wrapping_add(program.bias), &mut found)? == found.len() {
                return if found == *build_id { Ok(None) } else { Err(wrong("it has another build id")) };
            }
        }
        if let Some((address, code)) = image.code_segments().next() {
            let code = &code[..code.len().min(CODE_BYTES_COMPARED)];
            let mut found = vec![0; code.len()];
            let read = core.read(address.wrapping_add(program.bias), &mut found)?;
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
