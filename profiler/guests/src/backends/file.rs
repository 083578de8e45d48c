//! A guest in a file: its RAM and the registers of its vCPUs at one moment, as QEMU's monitor command
//! `dump-guest-memory` and `virsh dump --memory-only` write them.
//!
//! The file is an ELF core. Its `LOAD` segments are pieces of RAM by their physical address; notes of
//! the owner `QEMU`, one for each vCPU, hold its registers; of AArch64 those of the owner `CORE` do.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use glass_profiler_core::arch::paging::Translator;
use glass_profiler_core::arch::x86_64::mode::CR0_PROTECTION;
use glass_profiler_core::event::Event;
use glass_profiler_core::guest::GuestKind;
use glass_profiler_core::memory::Physical;
use object::elf::{EM_AARCH64, EM_X86_64, ET_CORE, FileHeader64, Machine as ElfMachine, NT_PRSTATUS, PT_LOAD, PT_NOTE};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};

use crate::arch::CoreState;
use crate::arch::aarch64::note::parse_status;
use crate::arch::x86_64::note::parse_state;
use crate::error::GuestError;
use crate::files::OpenedFiles;
use crate::files::disks::disks_of;
use crate::find::vcpus::{VCPUS_MAX, choose_vcpus};
use crate::memory::{AddressSpace, Machine};
use crate::sys::monotonic_ns;
use crate::systems::image::{VmImage, VmSettings};
use crate::systems::linux::Followed;
use crate::systems::linux_guest::{Access, LinuxGuest};
use crate::systems::plan::{CopyPlan, HeldCore};
use crate::{Counts, Flow, Source};

/// The most segments of a file: a dump with paging has one for each piece of address space.
const SEGMENTS_MAX: u32 = 1 << 20;
/// The largest segment of notes that is read, in bytes; a vCPU needs some 800.
const NOTE_BYTES_MAX: u64 = 16 << 20;
/// The instructions that put a core to sleep, in memory: `hlt` of x86-64, `wfi` of AArch64.
const HLT: &[u8] = &[0xf4];
const WFI: &[u8] = &0xd503_207f_u32.to_le_bytes();

/// A piece of RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) address: u64,
    /// How much of it is in the file.
    pub(super) bytes: u64,
    /// Where in the file.
    offset: u64,
}

/// The RAM in a file.
#[derive(Debug)]
struct FileRam {
    file: File,
    pieces: Vec<Piece>,
}

impl Machine for FileRam {
    fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for piece in &self.pieces {
            let end = piece.address.saturating_add(piece.bytes);
            let start = ranges.last().map_or(0, |last| last.end).max(piece.address);
            if start < end {
                ranges.push(start..end);
            }
        }
        ranges
    }
}

impl Physical for FileRam {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let place = self.pieces.iter().find_map(|piece| {
            let inside = address.checked_sub(piece.address)?;
            let end = inside.checked_add(into.len() as u64)?;
            if end > piece.bytes { None } else { piece.offset.checked_add(inside) }
        });
        place.is_some_and(|place| self.file.read_exact_at(into, place).is_ok())
    }
}

struct Core<'a> {
    ram: &'a FileRam,
    translator: Translator,
    state: CoreState,
}

impl AddressSpace for Core<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        Ok(self.translator.read(self.ram, address, into))
    }
}

impl HeldCore for Core<'_> {
    /// The file does not contain it. A core that sleeps is after its `hlt`; one that was never started is still in
    /// real mode.
    fn is_halted(&mut self) -> Result<bool, GuestError> {
        let sleep = if self.state.registers.x86_64().is_some() { HLT } else { WFI };
        let mut before = vec![0; sleep.len()];
        let at = self.state.registers.ip().wrapping_sub(sleep.len() as u64);
        let is_read = self.translator.read(self.ram, at, &mut before) == before.len();
        Ok((is_read && before == sleep) || !has_started(&self.state))
    }

    fn read_physical(&mut self, address: u64, into: &mut [u8]) -> bool {
        self.ram.read(address, into)
    }
}

/// A guest in a file.
pub struct DumpedVm {
    ram: Arc<FileRam>,
    cores: Vec<(usize, CoreState)>,
    image: VmImage,
    linux: Option<Followed>,
    plan: CopyPlan,
    warnings: Vec<String>,
    delivered: bool,
}

/// What a file holds.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) pieces: Vec<Piece>,
    pub(super) cores: Vec<CoreState>,
    pub(super) warning: Option<String>,
}

/// Finds RAM and registers in a file of `file_bytes` bytes. The error is what follows the file's name.
pub(super) fn parse(file: &ReadCache<File>, file_bytes: u64, start: &[u8]) -> Result<Parts, String> {
    if start.starts_with(b"makedumpfile") || start.starts_with(b"KDUMP   ") {
        return Err("is a compressed dump: make one without -z, -l and -s (virsh: --format elf)".to_owned());
    }
    let is_none = "is no ELF core of a VM: make one with `dump-guest-memory FILE` in QEMU's monitor, or `virsh dump --memory-only`";
    let broken = |_| "is damaged: the headers of its ELF core cannot be read".to_owned();
    let header = FileHeader64::<Endianness>::parse(file).map_err(|_| is_none.to_owned())?;
    let endian = header.endian().map_err(|_| is_none.to_owned())?;
    if header.e_type(endian) != ET_CORE {
        return Err(is_none.to_owned());
    }
    let machine = header.e_machine(endian);
    if !matches!(machine, EM_X86_64 | EM_AARCH64) || endian != Endianness::Little {
        return Err("is the core of another machine than x86-64 and AArch64".to_owned());
    }
    if header.phnum(endian, file).map_err(broken)? > SEGMENTS_MAX {
        return Err(format!("is damaged: it has more than {SEGMENTS_MAX} segments"));
    }
    let (mut pieces, mut cores) = (Vec::new(), Vec::new());
    let (mut cut_bytes, mut unnamed_bytes) = (0u64, 0u64);
    for segment in header.program_headers(endian, file).map_err(broken)? {
        let (offset, bytes) = segment.file_range(endian);
        if segment.p_type(endian) == PT_NOTE && cores.is_empty() {
            if bytes > NOTE_BYTES_MAX {
                return Err(format!("is damaged: its notes have {bytes} bytes"));
            }
            cores = registers_of(segment, machine, endian, file).map_err(broken)?;
        } else if segment.p_type(endian) == PT_LOAD {
            let there = file_bytes.saturating_sub(offset).min(bytes);
            cut_bytes = cut_bytes.saturating_add(bytes - there);
            unnamed_bytes = unnamed_bytes.saturating_add(segment.p_memsz(endian).saturating_sub(bytes));
            let piece = Piece { address: segment.p_paddr(endian), bytes: there, offset };
            // With paging, the same RAM is there once for each address that it has.
            if there > 0 && pieces.last() != Some(&piece) {
                pieces.push(piece);
            }
        }
    }
    if cores.is_empty() {
        return Err("holds no registers of vCPUs: is it the core of a process?".to_owned());
    }
    pieces.sort_unstable_by_key(|piece| (piece.address, piece.offset, piece.bytes));
    pieces.dedup();
    let warning = if cut_bytes > 0 {
        Some(format!("the dump is cut off: {} KiB of RAM are missing", cut_bytes >> 10))
    } else if unnamed_bytes > 0 {
        // QEMU ends such a segment where a block of RAM ends.
        Some("the dump names memory that it does not hold: make it without paging (-p)".to_owned())
    } else {
        None
    };
    Ok(Parts { pieces, cores, warning })
}

fn registers_of(
    segment: &object::elf::ProgramHeader64<Endianness>,
    machine: ElfMachine,
    endian: Endianness,
    file: &ReadCache<File>,
) -> object::read::Result<Vec<CoreState>> {
    let mut cores = Vec::new();
    let Some(mut notes) = segment.notes(endian, file)? else { return Ok(cores) };
    while let Some(note) = notes.next()? {
        let state = match (machine, note.name()) {
            (EM_X86_64, b"QEMU") => parse_state(note.desc()),
            (EM_AARCH64, b"CORE") if note.n_type(endian) == NT_PRSTATUS => parse_status(note.desc()),
            _ => None,
        };
        cores.extend(state.filter(|_| cores.len() < VCPUS_MAX));
    }
    Ok(cores)
}

fn open(path: &Path) -> Result<File, GuestError> {
    File::open(path).map_err(|error| GuestError::File { path: path.to_owned(), error })
}

/// What an open file holds.
fn parts(file: &File, path: &Path) -> Result<Parts, GuestError> {
    let failed = |error| GuestError::File { path: path.to_owned(), error };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("not a file")));
    }
    let mut start = [0; 16];
    let read = file.read_at(&mut start, 0).map_err(failed)?;
    let cache = ReadCache::new(file.try_clone().map_err(failed)?);
    parse(&cache, metadata.len(), &start[..read]).map_err(|what| GuestError::Dump { path: path.to_owned(), what })
}

fn name_of(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

impl LinuxGuest {
    /// The guest in a file.
    ///
    /// # Errors
    /// The file is no dump of a VM, or the RAM in it has no Linux kernel that describes its structures.
    pub fn of_dump(path: &Path, access: Access) -> Result<LinuxGuest, GuestError> {
        let file = open(path)?;
        let opened = access.opened.clone().with_disks(disks_of(None, &access.processes.disks)?);
        let access = Access { opened, ..access };
        let gap = access.enter.and_then(|enter| enter());
        let Parts { pieces, warning, .. } = parts(&file, path)?;
        let warnings: Vec<String> = gap.into_iter().chain(warning).collect();
        let warning = (!warnings.is_empty()).then(|| warnings.join("; "));
        let memory: Arc<dyn Machine> = Arc::new(FileRam { file, pieces });
        LinuxGuest::of_memories((GuestKind::File, &name_of(path)), &[memory], access, warning)
    }
}

impl DumpedVm {
    /// Opens a file and reads its registers; RAM is read when it is needed.
    pub fn open(path: &Path, settings: VmSettings) -> Result<DumpedVm, GuestError> {
        DumpedVm::open_and_enter(path, settings, None).map(|(dump, _)| dump)
    }

    /// The same for a process that enters a jail when the dump and the symbol files, which are returned, are open and nothing of them is
    /// parsed. `enter` returns a warning if a part of the jail is not possible here.
    pub fn open_and_enter(
        path: &Path,
        settings: VmSettings,
        enter: Option<fn() -> Option<String>>,
    ) -> Result<(DumpedVm, OpenedFiles), GuestError> {
        let file = open(path)?;
        let opened = OpenedFiles::open(settings.symbols.iter().map(|file| file.path.as_path()));
        let opened = opened.with_disks(disks_of(None, &settings.processes.disks)?);
        let opened = opened.with_debug_folders(&settings.processes.debug_folders);
        let gap = enter.and_then(|enter| enter());
        let parts = parts(&file, path)?;
        let wanted = choose_vcpus(&settings.vcpus, parts.cores.len())?;
        let mut cores: Vec<_> = wanted.into_iter().map(|index| (index, parts.cores[index])).collect();
        let name = name_of(path);
        let mut image = VmImage::load_of(GuestKind::File, &name, settings, &opened)?;
        let ram = Arc::new(FileRam { file, pieces: parts.pieces });
        let mut warnings: Vec<String> = gap.into_iter().chain(parts.warning).collect();
        // A core that was never started has no address space in which the image could be.
        let started = cores.iter().map(|(_, state)| *state).find(has_started);
        if let Some((_, warning)) = image.find_in_ram(&[Arc::clone(&ram) as Arc<dyn Machine>])? {
            warnings.extend(warning);
            // Those of AArch64 are in no note.
            for (index, state) in cores.iter_mut().filter(|(_, state)| state.paging.aarch64().is_some()) {
                state.paging = image.paging_of(*index).unwrap_or(state.paging);
            }
        } else if let Some(state) = started {
            let read = |paging, address, into: &mut [u8]| Ok(Translator::new(paging).read(&*ram, address, into));
            warnings.extend(image.check(&state, read)?);
            warnings.extend(image.prepare());
        }
        let (plan, linux) = (image.plan(), image.take_linux());
        Ok((DumpedVm { ram, cores, image, linux, plan, warnings, delivered: false }, opened))
    }
}

/// Whether a core has left real mode, in which it starts.
fn has_started(state: &CoreState) -> bool {
    state.paging.x86_64().map_or(!state.is_at_reset, |paging| paging.cr0 & CR0_PROTECTION != 0)
}

fn core(ram: &FileRam, state: CoreState) -> Core<'_> {
    Core { ram, translator: Translator::new(state.paging), state }
}

impl Source for DumpedVm {
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.warnings.drain(..).for_each(|text| sink(Event::Warning(text)));
        self.image.announce(self.cores.iter().map(|(vcpu, _)| *vcpu as u32), sink);
        Ok(())
    }

    /// The one sample of each vCPU that there is.
    fn collect(&mut self, _wait: Duration, sink: &mut dyn FnMut(Event)) -> Result<Flow, GuestError> {
        if !std::mem::replace(&mut self.delivered, true) {
            let time_ns = monotonic_ns();
            for (index, state) in &self.cores {
                let mut sample = self.plan.sample(*index, *state, &mut core(&self.ram, *state), self.plan.room())?;
                sample.time_ns = time_ns;
                match &mut self.linux {
                    Some(linux) => linux.sample(sample, sink),
                    None => sink(Event::Sample(sample)),
                }
            }
        }
        Ok(Flow::Ended)
    }

    fn counts(&self) -> Counts {
        Counts { delivered: self.cores.len() as u64, ..Counts::default() }
    }

    fn detach(&mut self, _sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        Ok(())
    }
}
