//! What every way of holding a VM shares: the image is compared with memory, a core's state is read,
//! and code in a ring-0 service is seen through to its caller.

use std::fs;
use std::path::{Path, PathBuf};

use glass_formats as formats;
use glass_profile::event::{Event, Mapping, Placement, RawSample, Registers};
use glass_profile::image::Image;
use glass_profile::model::State;

use crate::error::GuestError;
use crate::files;
use crate::memory::Paging;

/// The most vCPUs that are looked at.
pub(crate) const VCPUS_MAX: usize = 256;
/// Bytes of code that are compared with the guest if the image has no build id that is loaded.
const CODE_BYTES_COMPARED: usize = 64;

/// How a VM is sampled.
#[derive(Debug, Clone)]
pub struct VmSettings {
    /// How much of the stack is copied.
    pub stack_bytes: u32,
    /// The image that the guest runs, with symbols.
    pub symbols: PathBuf,
    /// The vCPUs to sample by their index, all if empty.
    pub vcpus: Vec<u32>,
}

impl VmSettings {
    /// All vCPUs of a guest that runs `symbols`.
    pub fn new(stack_bytes: u32, symbols: PathBuf) -> VmSettings {
        VmSettings { stack_bytes, symbols, vcpus: Vec::new() }
    }

    /// Whether a vCPU is to be sampled.
    pub fn wants(&self, vcpu: usize) -> bool {
        self.vcpus.is_empty() || self.vcpus.iter().any(|wanted| *wanted as usize == vcpu)
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
}

/// The image that a VM runs.
pub(crate) struct VmImage {
    pid: u32,
    image: Image,
    settings: VmSettings,
    /// Address of the guest's per-core state, if it is one of ours.
    cores: Option<u64>,
}

impl VmImage {
    /// Reads and parses the image of a guest.
    pub(crate) fn load(pid: u32, settings: VmSettings) -> Result<VmImage, GuestError> {
        let path = &settings.symbols;
        let file = |error| GuestError::File { path: path.clone(), error };
        let metadata = fs::metadata(path).map_err(file)?;
        if !metadata.is_file() || metadata.len() > files::FILE_BYTES_MAX {
            return Err(file(std::io::Error::other("not a file of a usual size")));
        }
        let bytes = fs::read(path).map_err(file)?;
        let wrong = |error| GuestError::Image { path: path.clone(), error };
        // Names come later; but without any there is no point in recording.
        glass_profile::symbols::Symbols::parse(&bytes).map_err(wrong)?;
        let image = Image::parse(&bytes, &[formats::CORES_SYMBOL]).map_err(wrong)?;
        let cores = image.symbol(formats::CORES_SYMBOL);
        Ok(VmImage { pid, image, settings, cores })
    }

    /// Whether the guest itself says when a core is idle.
    pub(crate) fn tells_state(&self) -> bool {
        self.cores.is_some()
    }

    /// Compares the image with what the guest has in memory. `Ok` holds a warning if that could not be done.
    pub(crate) fn check(&self, core: &mut impl HeldCore) -> Result<Option<String>, GuestError> {
        let path = &self.settings.symbols;
        let wrong = |path: &Path, difference: &str| GuestError::WrongImage {
            path: path.to_owned(),
            difference: difference.to_owned(),
        };
        if let (Some(address), Some(build_id)) = (self.image.build_id_address, &self.image.build_id) {
            let mut found = vec![0; build_id.len()];
            if core.read(address, &mut found)? == found.len() {
                return if found == *build_id { Ok(None) } else { Err(wrong(path, "it has another build id")) };
            }
        }
        if let Some((address, code)) = self.image.code_segments().next() {
            let code = &code[..code.len().min(CODE_BYTES_COMPARED)];
            let mut found = vec![0; code.len()];
            let read = core.read(address, &mut found)?;
            if read == found.len() && found == code {
                return Ok(None);
            }
            if read == found.len() {
                return Err(wrong(path, "the code in its memory differs"));
            }
        }
        Ok(Some(format!("whether the guest runs {} could not be checked", path.display())))
    }

    /// The tracks and the mapping of the image.
    pub(crate) fn announce(&self, cores: usize, sink: &mut dyn FnMut(Event)) {
        for core in 0..cores {
            let name = format!("vcpu {core}");
            sink(Event::Track { track: core as u32, id: core as u64, process: self.pid, name });
        }
        let range = self.image.linked_range();
        let path = self.settings.symbols.display().to_string();
        let mapping = Mapping { start: range.start, end: range.end, path, placement: Placement::AsLinked };
        sink(Event::Map { process: self.pid, mapping });
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
        let copied = core.read(registers.rsp, &mut stack)?;
        stack.truncate(copied);
        let state = self.state(core, index)?;
        Ok(RawSample { track: index as u32, process: self.pid, registers, stack, inner, state, ..Default::default() })
    }

    fn state(&self, core: &mut impl HeldCore, index: usize) -> Result<State, GuestError> {
        let Some(cores) = self.cores.filter(|_| index < formats::CORES_MAX) else {
            return Ok(if core.is_halted()? { State::Idle } else { State::Running });
        };
        let address = cores.wrapping_add(index as u64 * formats::CORE_STATE_BYTES);
        let mut words = [0; formats::ACTIVITY_OFFSET as usize + 4];
        if core.read(address, &mut words)? < words.len() {
            return Ok(State::Running);
        }
        let word = |at: usize| u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        if word(0) != formats::CORE_MAGIC {
            return Ok(State::Running);
        }
        Ok(match formats::Activity::from_word(word(formats::ACTIVITY_OFFSET as usize)) {
            Some(formats::Activity::Idle | formats::Activity::Off) => State::Idle,
            Some(formats::Activity::Spinning) => State::Spinning,
            Some(formats::Activity::Running) | None => State::Running,
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
            if is_selector(code_segment, 3) && is_selector(stack_segment, 3) && self.image.code(rip).is_some() {
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
