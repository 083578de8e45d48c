//! What a VM runs: its images are read, compared with its memory and found where they have moved to. What the other half needs of that,
//! which stops the VM and copies, is a [`CopyPlan`].

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use glass_formats as formats;
use glass_profiler_core::arch::{Architecture, Paging, Width};
use glass_profiler_core::elf::ImageError;
use glass_profiler_core::event::Event;
use glass_profiler_core::guest::{Guest, GuestKind};
use glass_profiler_core::image::Image;
use glass_profiler_core::map::SymbolMap;

use crate::arch::CoreState;
use crate::error::GuestError;
use crate::files::OpenedFiles;
use crate::find::architecture_of;
use crate::memory::{AddressSpace, Machine, memories_of};
use crate::systems::linux::{self, Followed, GuestProcesses, InRam, Linux, Outside, Processes};
use crate::systems::plan::{CopyPlan, GUEST, LinuxPlan, SPACE};
use crate::systems::relocated;
use crate::systems::symbols::{self, GuestProgram, SymbolFile};

/// Bytes of code that are compared with the guest if the image has no build id that is loaded.
const CODE_BYTES_COMPARED: usize = 64;

/// How a VM is sampled.
#[derive(Debug, Clone)]
pub struct VmSettings {
    /// How much of the stack is copied.
    pub stack_bytes: u32,
    /// A vCPU that sleeps is not stopped, under TCG if all of them do: its sample has a state and no stack.
    pub leaves_sleepers: bool,
    /// What the guest runs: images, maps of symbols.
    pub symbols: Vec<SymbolFile>,
    /// The vCPUs to sample by their index, all if empty.
    pub vcpus: Vec<u32>,
    /// A kernel without symbols that the VM was started with: addresses are recorded, with a warning.
    pub boot_image: Option<PathBuf>,
    /// Symbols that do not fit what the guest runs are used all the same, with a warning.
    pub force: bool,
    /// The symbols of a Linux are used as given, although its RAM may have them.
    pub files_only: bool,
    /// Of the processes of a Linux.
    pub processes: GuestProcesses,
}

impl VmSettings {
    /// All vCPUs of a guest that runs `symbols`.
    pub fn new(stack_bytes: u32, symbols: PathBuf) -> VmSettings {
        VmSettings {
            stack_bytes,
            leaves_sleepers: false,
            symbols: vec![symbols.into()],
            boot_image: None,
            vcpus: Vec::new(),
            force: false,
            files_only: false,
            processes: GuestProcesses::default(),
        }
    }
}

/// What a VM runs.
pub(crate) struct VmImage {
    guest: Guest,
    programs: Vec<GuestProgram>,
    settings: VmSettings,
    /// Address of the guest's per-core state, if it is one of ours.
    cores: Option<u64>,
    /// The kernel, if the guest is a Linux, once it has been looked at; by its place in `programs`.
    linux: Option<(usize, Linux)>,
    /// The same, if it was found in the guest's RAM.
    in_ram: Option<InRam>,
    /// Who opens other files.
    opened: OpenedFiles,
}

impl VmSettings {
    /// What may be the RAM of a VMM's guest, if its kernel is to be found there: not if an ELF file shows what it runs.
    pub(crate) fn memories(&self, pid: u32, opened: &OpenedFiles) -> Vec<Arc<dyn Machine>> {
        let has_image = || self.symbols.iter().any(|file| symbols::is_elf(&file.path, opened));
        if self.files_only || has_image() { Vec::new() } else { memories_of(pid, architecture_of(pid)) }
    }
}

impl VmImage {
    /// Reads and parses the symbol files of a guest.
    pub(crate) fn load(kind: GuestKind, name: &str, settings: VmSettings) -> Result<VmImage, GuestError> {
        VmImage::load_of(kind, name, settings, &OpenedFiles::default())
    }

    /// The same of files some of which are open.
    pub(crate) fn load_of(
        kind: GuestKind,
        name: &str,
        settings: VmSettings,
        opened: &OpenedFiles,
    ) -> Result<VmImage, GuestError> {
        let programs = symbols::load(&settings.symbols, opened)?;
        let architecture = programs.iter().find_map(|program| Some(program.elf.as_ref()?.architecture));
        let guest = Guest {
            id: GUEST,
            kind,
            name: name.to_owned(),
            architecture: architecture.unwrap_or(Architecture::X86_64),
        };
        let cores = programs.iter().find_map(|program| {
            program.landmark(formats::CORES_SYMBOL).map(|address| address.wrapping_add(program.bias.get()))
        });
        Ok(VmImage { guest, programs, settings, cores, linux: None, in_ram: None, opened: opened.clone() })
    }

    /// Searches the guest's RAM, one of these memories, for a Linux kernel, if nothing else is known of the guest. Returns which of the memories
    /// has it, and what could not be done; nothing needs to be [checked](VmImage::check) or [prepared](VmImage::prepare) then.
    ///
    /// # Errors
    /// There is no kernel, and nothing else from which code could get names.
    pub(crate) fn find_in_ram(
        &mut self,
        memories: &[Arc<dyn Machine>],
    ) -> Result<Option<(usize, Vec<String>)>, GuestError> {
        // No more is known than the names of a kernel, which has them itself.
        let may_be_linux = self.programs.iter().all(|program| program.elf.is_none() && program.is_linux());
        if !may_be_linux || self.settings.files_only {
            return Ok(None);
        }
        let Some((memory, in_ram)) = InRam::find(memories) else {
            let is_nameless = self.programs.is_empty() && self.settings.boot_image.is_none();
            return if is_nameless { Err(unknown(memories.is_empty())) } else { Ok(None) };
        };
        let (program, linux, warnings) = in_ram.program()?;
        memories[memory].release();
        self.programs = vec![program];
        self.linux = Some((0, linux));
        self.guest.architecture = in_ram.architecture();
        self.in_ram = Some(in_ram);
        Ok(Some((memory, warnings)))
    }

    /// Compares the images with what the guest has in memory, finds a kernel that has moved, and copies the unwind tables
    /// that a Linux keeps there. [`prepare`](VmImage::prepare) comes after it. `read` copies from an address in the address space
    /// that its first argument selects. `Ok` holds a warning for what could not be done. An error may be one of the moment: a guest that
    /// runs meanwhile may remove the address space.
    pub(crate) fn check(
        &mut self,
        state: &CoreState,
        mut read: impl FnMut(Paging, u64, &mut [u8]) -> Result<usize, GuestError>,
    ) -> Result<Option<String>, GuestError> {
        let checked = self.check_in(state, &mut Selected { paging: state.paging, read: &mut read });
        let is_incomplete = match &checked {
            Ok(warning) => warning.is_some(),
            Err(error) => is_about_symbols(error),
        };
        if !is_incomplete || !self.programs.iter().any(GuestProgram::is_linux) {
            return checked;
        }
        let Some(paging) = linux::paging_of_kernel(state, &mut read)? else { return checked };
        match (self.check_in(state, &mut Selected { paging, read: &mut read }), checked) {
            (Err(_), checked @ Ok(_)) => checked,
            (of_kernel, _) => of_kernel,
        }
    }

    /// The same in one address space.
    fn check_in(&mut self, state: &CoreState, space: &mut impl AddressSpace) -> Result<Option<String>, GuestError> {
        let mut warnings = Vec::new();
        if let Some(kernel) = &self.settings.boot_image {
            warnings.push(format!(
                "code is shown by address alone, because {} {}, with --symbols",
                kernel.display(),
                ImageError::BootImage
            ));
        }
        let mut kernel = None;
        for (index, program) in self.programs.iter().enumerate().filter(|(_, program)| !program.is_right) {
            let checked = if program.is_linux() && kernel.is_none() {
                Linux::find(program, space).map(|mut linux| {
                    let warning = linux.warning.take();
                    kernel = Some((index, linux));
                    warning
                })
            } else {
                self.find_moved(program, state, space)?;
                check_program(program, space)
            };
            match checked {
                Ok(warning) => warnings.extend(warning),
                Err(error) if self.settings.force && is_about_symbols(&error) => {
                    warnings.push(format!("names may be wrong: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        self.linux = kernel;
        Ok((!warnings.is_empty()).then(|| warnings.join("; ")))
    }

    /// Takes note of where a kernel is that has moved. One of ours never does, and a Linux is found in its own way.
    fn find_moved(
        &self,
        program: &GuestProgram,
        state: &CoreState,
        space: &mut impl AddressSpace,
    ) -> Result<(), GuestError> {
        let may_move = self.cores.is_none() && program.address.is_none() && !program.is_linux();
        if let Some(image) = program.elf.as_ref().filter(|_| may_move && state.width == Width::Bits64)
            && let Some(slide) = relocated::slide(image, state, space)?
        {
            program.bias.set(slide);
        }
        Ok(())
    }

    /// Does what [`check`](VmImage::check) has left for when the guest runs again; returns a warning for what could
    /// not be done.
    pub(crate) fn prepare(&mut self) -> Option<String> {
        self.linux.as_mut()?.1.parse()
    }

    /// What the half that stops the VM needs, once [`check`](VmImage::check) has passed.
    pub(crate) fn plan(&self) -> CopyPlan {
        let tasks = self.in_ram.as_ref().and_then(InRam::task_plan);
        let linux = self.linux.as_ref().map(|(_, linux)| LinuxPlan { tasks, ..linux.plan() });
        let code = self.programs.iter().filter_map(|program| Some((program.elf.as_ref()?, program.bias.get())));
        let moved = |(image, bias): (&Arc<Image>, u64)| {
            let place = move |range: Range<u64>| range.start.wrapping_add(bias)..range.end.wrapping_add(bias);
            image.code_ranges().map(place).collect::<Vec<_>>()
        };
        CopyPlan {
            stack_bytes: self.settings.stack_bytes,
            leaves_sleepers: self.settings.leaves_sleepers,
            cores: self.cores,
            programs: self.programs.iter().map(GuestProgram::range).collect(),
            code: code.flat_map(moved).collect(),
            linux,
        }
    }

    /// A Linux whose kernel was found in its RAM, for its samples; once.
    pub(crate) fn take_linux(&mut self) -> Option<Followed> {
        let in_ram = self.in_ram.take()?;
        let outside = Outside::new(self.settings.processes.clone(), self.opened.clone());
        let plan = CopyPlan {
            stack_bytes: self.settings.stack_bytes,
            leaves_sleepers: self.settings.leaves_sleepers,
            ..CopyPlan::default()
        };
        Some(Followed::new(in_ram, self.programs.first()?.range(), plan, outside))
    }

    /// The functions of a Linux, its modules' too, where a map has them.
    pub(crate) fn symbol_map(&self) -> Option<&Arc<SymbolMap>> {
        let (program, _) = self.linux.as_ref()?;
        self.programs.get(*program)?.map.as_ref()
    }

    /// What selects the address space of a CPU of a Linux whose kernel was found in its RAM: of the process whose task it runs, and of the kernel.
    pub(crate) fn paging_of(&self, cpu: usize) -> Option<Paging> {
        Some(self.in_ram.as_ref()?.paging_of(cpu))
    }

    /// Why those are not known, in a sentence.
    pub(crate) fn unknown(&self) -> Option<String> {
        self.in_ram.as_ref()?.unknown()
    }

    /// The processes of a Linux whose kernel was found in its RAM, if that describes its types; once.
    pub(crate) fn take_processes(&mut self) -> Option<Processes> {
        let outside = Outside::new(self.settings.processes.clone(), self.opened.clone());
        self.in_ram.take()?.listed(outside)
    }

    /// What the VM is, for the sentence of an error.
    pub(crate) fn kind(&self) -> GuestKind {
        self.guest.kind
    }

    /// The guest, the tracks of the vCPUs that are sampled, by their numbers, and where what it runs is.
    pub(crate) fn announce(&self, vcpus: impl Iterator<Item = u32>, sink: &mut dyn FnMut(Event)) {
        sink(Event::Guest(self.guest.clone()));
        sink(Event::Space { space: SPACE, guest: GUEST, process: None, copy_of: None });
        for vcpu in vcpus {
            let name = format!("vcpu {vcpu}");
            sink(Event::Track { track: vcpu, guest: GUEST, id: u64::from(vcpu), name });
        }
        for (index, program) in self.programs.iter().enumerate() {
            let linux = self.linux.as_ref().filter(|(kernel, _)| *kernel == index).map(|(_, linux)| linux);
            let slide = linux.map_or(program.bias.get(), |linux| linux.slide);
            for (range, bias, program) in program.programs(slide, linux.and_then(|linux| linux.orc.as_ref())) {
                sink(Event::Place { space: SPACE, range, bias, program });
            }
        }
    }
}

/// An address space of a guest that is read by a function.
struct Selected<'a, R> {
    paging: Paging,
    read: &'a mut R,
}

impl<R: FnMut(Paging, u64, &mut [u8]) -> Result<usize, GuestError>> AddressSpace for Selected<'_, R> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        (self.read)(self.paging, address, into)
    }
}

/// Nothing is known of a guest.
fn unknown(has_no_memory: bool) -> GuestError {
    let why =
        if has_no_memory { "its RAM cannot be read from outside" } else { "no Linux kernel was found in its RAM" };
    GuestError::KernelNotFound(format!(
        "what the VM runs is unknown: {why}; give the guest's ELF file or System.map with --symbols, or record again once it has booted"
    ))
}

/// Whether an error is that symbols and guest do not fit.
pub(crate) fn is_about_symbols(error: &GuestError) -> bool {
    matches!(error, GuestError::WrongImage { .. } | GuestError::Symbols(_) | GuestError::KernelNotFound(_))
}

/// Compares an image with memory. `Ok` holds a warning if that could not be done.
fn check_program(program: &GuestProgram, space: &mut impl AddressSpace) -> Result<Option<String>, GuestError> {
    let wrong = |difference: &str| {
        let place = program.address.map(|address| format!(" at the load address {address:#x}")).unwrap_or_default();
        GuestError::WrongImage { path: program.path.clone(), difference: format!("{difference}{place}") }
    };
    if let Some(image) = &program.elf {
        if let (Some(address), Some(build_id)) = (image.build_id_address, &image.build_id) {
            let mut found = vec![0; build_id.len()];
            if space.read(address.wrapping_add(program.bias.get()), &mut found)? == found.len() {
                return if found == *build_id { Ok(None) } else { Err(wrong("it has another build id")) };
            }
        }
        if let Some((address, code)) = image.code_segments().next() {
            let code = &code[..code.len().min(CODE_BYTES_COMPARED)];
            let mut found = vec![0; code.len()];
            let read = space.read(address.wrapping_add(program.bias.get()), &mut found)?;
            if read == found.len() {
                return if found == code { Ok(None) } else { Err(wrong("the code in its memory differs")) };
            }
        }
    }
    Ok(Some(format!("whether the guest runs {} could not be checked", program.path.display())))
}
