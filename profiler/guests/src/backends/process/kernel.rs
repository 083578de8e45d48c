//! The functions of this machine's kernel, for samples that are taken while it works for a process.

use std::fs;
use std::sync::Arc;

use glass_profiler_core::elf::ImageError;
use glass_profiler_core::image::Image;
use glass_profiler_core::images::KERNEL_NAME;
use glass_profiler_core::map::SymbolMap;
use glass_profiler_core::program::{NamesFrom, Parts, Program};
use object::Endianness;
use object::elf::{ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID};
use object::read::elf::NoteIterator;

/// The lower half of all addresses belongs to processes.
const KERNEL_HALF: u64 = 1 << 63;

const WHAT: &str = "time in the kernel is shown as [kernel]";

/// The kernel's description of itself, unchanged.
#[derive(Debug)]
pub(super) struct Texts {
    map: Vec<u8>,
    notes: Vec<u8>,
}

impl Texts {
    /// Reads them, which takes rights. Fails with one sentence.
    pub(super) fn read() -> Result<Texts, String> {
        let map =
            fs::read("/proc/kallsyms").map_err(|error| format!("{WHAT}: cannot read /proc/kallsyms ({error})"))?;
        Ok(Texts { map, notes: fs::read("/sys/kernel/notes").unwrap_or_default() })
    }
}

/// What can be known of the kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    /// Its functions and those of its modules.
    pub(super) program: Program,
    /// Where they lie.
    pub(super) range: std::ops::Range<u64>,
}

impl Kernel {
    /// Of the kernel's texts. Fails with one sentence on what would permit it.
    pub(super) fn of(texts: &Texts) -> Result<Kernel, String> {
        let Texts { map, notes } = texts;
        Kernel::parse(map, build_id(notes)).map_err(|error| match error {
            ImageError::HiddenMap => format!(
                "{WHAT}: /proc/kallsyms hides the addresses of its functions; run glass as root with kernel.kptr_restrict at 0 or 1, or permit it to all users with `sysctl kernel.kptr_restrict=0 kernel.perf_event_paranoid=1`"
            ),
            error => format!("{WHAT}: /proc/kallsyms {error}"),
        })
    }

    pub(super) fn parse(map: &[u8], build_id: Option<Vec<u8>>) -> Result<Kernel, ImageError> {
        let map = Arc::new(SymbolMap::parse(map, &[])?);
        let parts = map.modules().into_iter().map(|(_, range)| range).filter(|range| range.start >= KERNEL_HALF);
        let range = parts.reduce(|all, part| all.start.min(part.start)..all.end.max(part.end));
        let range = range.ok_or(ImageError::MapWithoutFunctions)?;
        let mut image = Image::of_map(&map, range.clone(), None);
        image.build_id = build_id;
        let (name, image, names) = (KERNEL_NAME.to_owned(), Arc::new(image), vec![NamesFrom::Map(map)]);
        // No user has named it: that it was never seen is no fault.
        let program = Program::new(Parts { name, image, names, is_whole: false, is_kernel: true });
        Ok(Kernel { program, range })
    }
}

/// The build id in the kernel's notes.
fn build_id(notes: &[u8]) -> Option<Vec<u8>> {
    let mut notes = NoteIterator::<FileHeader64<Endianness>>::new(Endianness::Little, 4, notes).ok()?;
    while let Ok(Some(note)) = notes.next() {
        if note.name() == ELF_NOTE_GNU && note.n_type(Endianness::Little) == NT_GNU_BUILD_ID {
            return Some(note.desc().to_vec());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_has_its_modules_and_a_build_id() {
        let map = b"0000000000001000 A fixed\nffffffff81000000 T read\nffffffff81000040 T write\nffffffffc0001000 t xmit\t[dummy]\n";
        let note =
            [&4u32.to_le_bytes()[..], &3u32.to_le_bytes(), &3u32.to_le_bytes(), b"GNU\0", &[7, 8, 9, 0]].concat();
        let kernel = Kernel::parse(map, build_id(&note)).unwrap();
        assert_eq!(kernel.range, 0xffff_ffff_8100_0000..0xffff_ffff_c000_2000);
        assert_eq!(kernel.program.image.build_id, Some(vec![7, 8, 9]));
        assert_eq!(build_id(&note[..15]), None);
        assert_eq!(Kernel::parse(b"0000000000000000 T read\n", None).err(), Some(ImageError::HiddenMap));
        assert_eq!(Kernel::parse(b"0000000000401000 T main\n", None).err(), Some(ImageError::MapWithoutFunctions));
    }
}
