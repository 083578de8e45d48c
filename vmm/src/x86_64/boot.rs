//! What an image finds in memory when it starts: its segments, the structures of PVH (Xen's `arch-x86/hvm/start_info.h`), and ACPI's table of processors.

use std::io::{Seek as _, SeekFrom};

use anyhow::{Context, Result, ensure};
use vm_memory::{Address, Bytes as _, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::image::{CUT_OFF, Image, Segment};
use crate::x86_64::sys;

/// Memory below the image, which is the VMM's until the entry and stays as it is.
pub const START_INFO: u64 = 0x6000;
const MEMORY_MAP: u64 = 0x7000;
const COMMAND_LINE: u64 = 0x3_0000;
const COMMAND_LINE_BYTES_MAX: usize = 0x6_0000;
const ROOT_POINTER: u64 = 0xe_0000;
const ROOT_TABLE: u64 = 0xe_1000;
const PROCESSORS: u64 = 0xe_2000;
/// RAM from 0 on that is reported.
const LOW_BYTES: u64 = 0x9_f000;
const MIB: u64 = 1 << 20;

/// The first word of the start info, and its version.
const MAGIC: u64 = 0x336e_c578 | 1 << 32;
/// In the reserved word of the start info: all RAM behind the image is zero ("ZERO"; platform/vm/src/machine/pvh.rs).
const RAM_IS_ZERO: u64 = 0x4f52_455a;
const TYPE_RAM: u64 = 1;

/// Architectural addresses.
const LOCAL_APIC: u32 = 0xfee0_0000;
const IO_APIC: u32 = 0xfec0_0000;

/// Reads the image's segments into memory; returns its PVH entry.
fn load(image: &mut Image, memory: &GuestMemoryMmap) -> Result<u64> {
    for Segment { offset, address, bytes } in &image.segments {
        let short = || format!("the image needs memory at {address:#x}: give the VM more");
        let address = GuestAddress(*address);
        let last = address.checked_add(*bytes).with_context(short)?;
        ensure!(*bytes == 0 || memory.check_range(address, (last.0 - address.0) as usize), short());
        // A page that is there before it is read into costs half as much.
        sys::populate(memory, address, *bytes);
        image.file.seek(SeekFrom::Start(*offset)).context(CUT_OFF)?;
        memory.read_exact_volatile_from(address, &mut image.file, *bytes as usize).context(CUT_OFF)?;
    }
    image.entry.context("the image has no PVH entry: give one made by `glass build`")
}

/// Places an image, and what it gets from a VMM, in memory that is zero; returns its entry.
pub fn place(image: &mut Image, memory: &GuestMemoryMmap, command_line: &str, cores: u8) -> Result<u64> {
    let entry = load(image, memory)?;
    ensure!(
        command_line.len() < COMMAND_LINE_BYTES_MAX,
        "the arguments have {} bytes, and there is room for {COMMAND_LINE_BYTES_MAX}",
        command_line.len()
    );
    memory.write_slice(command_line.as_bytes(), GuestAddress(COMMAND_LINE))?;
    let mut ranges = vec![(0, LOW_BYTES)];
    for region in memory.iter() {
        let (start, end) = (region.start_addr().raw_value().max(MIB), region.last_addr().raw_value() + 1);
        ranges.extend(end.checked_sub(start).map(|bytes| (start, bytes)));
    }
    for ((address, bytes), index) in ranges.iter().zip(0..) {
        for (word, at) in [*address, *bytes, TYPE_RAM].into_iter().zip([0, 8, 16]) {
            memory.write_obj(word, GuestAddress(MEMORY_MAP + 24 * index + at))?;
        }
    }
    let root = if cores > 1 { ROOT_POINTER } else { 0 };
    let count = ranges.len() as u64 | RAM_IS_ZERO << 32;
    let words = [(0, MAGIC), (24, COMMAND_LINE), (32, root), (40, MEMORY_MAP), (48, count)];
    words.iter().try_for_each(|(at, word)| memory.write_obj(*word, GuestAddress(START_INFO + at)))?;
    if cores > 1 {
        describe_processors(memory, cores)?;
    }
    Ok(entry)
}

/// RSDP, RSDT and MADT (ACPI 6.5, sections 5.2.5 to 5.2.12), without checksums, which our images do not check.
fn describe_processors(memory: &GuestMemoryMmap, cores: u8) -> Result<()> {
    let table = |signature: &[u8; 4], rest: &[u8]| {
        let bytes = (36 + rest.len() as u32).to_le_bytes();
        [&signature[..], &bytes, &[0; 28], rest].concat()
    };
    let mut processors = [LOCAL_APIC.to_le_bytes(), [0; 4]].concat();
    for index in 0..cores {
        processors.extend([0, 8, index, index, 1, 0, 0, 0]);
    }
    processors.extend([1, 12, 0, 0]);
    processors.extend(IO_APIC.to_le_bytes());
    processors.extend([0; 4]);
    let root = [&b"RSD PTR \0GLASS \0"[..], &(ROOT_TABLE as u32).to_le_bytes()].concat();
    memory.write_slice(&root, GuestAddress(ROOT_POINTER))?;
    memory.write_slice(&table(b"RSDT", &(PROCESSORS as u32).to_le_bytes()), GuestAddress(ROOT_TABLE))?;
    memory.write_slice(&table(b"APIC", &processors), GuestAddress(PROCESSORS))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    /// Places an image with these bytes.
    fn place_bytes(bytes: &[u8], memory: &GuestMemoryMmap, command_line: &str, cores: u8) -> Result<u64> {
        let file = File::from(memfd_create("image", MemfdFlags::CLOEXEC).unwrap());
        file.write_all_at(bytes, 0).unwrap();
        place(&mut Image::read(file)?, memory, command_line, cores)
    }

    /// An ELF file with one segment at 2 MiB and a note with the entry.
    fn image() -> Vec<u8> {
        let mut image = vec![0; 64 + 2 * 56];
        image[..5].copy_from_slice(b"\x7fELF\x02");
        let mut set = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        set(32, &64_u64.to_le_bytes());
        set(54, &[56, 0, 2, 0]);
        for (at, kind, offset, address, bytes) in [(64, 1_u32, 176_u64, 2 * MIB, 4_u64), (120, 4, 180, 0, 20)] {
            set(at, &kind.to_le_bytes());
            set(at + 8, &offset.to_le_bytes());
            set(at + 24, &address.to_le_bytes());
            set(at + 32, &bytes.to_le_bytes());
        }
        image.extend(b"code");
        image.extend([4, 0, 0, 0, 4, 0, 0, 0, 18, 0, 0, 0]);
        image.extend(b"Xen\0\x10\0\x20\0");
        image
    }

    fn memory() -> GuestMemoryMmap {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 4 << 20), (GuestAddress(1 << 32), 1 << 20)]).unwrap()
    }

    fn word(memory: &GuestMemoryMmap, at: u64) -> u64 {
        memory.read_obj(GuestAddress(at)).unwrap()
    }

    #[test]
    fn an_image_gets_what_a_vmm_has_to_give() {
        let memory = memory();
        let entry = place_bytes(&image(), &memory, "ip=dhcp -- a", 3).unwrap();
        assert_eq!(entry, 0x20_0010);
        assert_eq!(memory.read_obj::<[u8; 4]>(GuestAddress(2 * MIB)).unwrap(), *b"code");
        assert_eq!(word(&memory, START_INFO + 48), 3 | RAM_IS_ZERO << 32);
        let ranges =
            [0, 1, 2].map(|index| (word(&memory, MEMORY_MAP + 24 * index), word(&memory, MEMORY_MAP + 24 * index + 8)));
        assert_eq!(ranges, [(0, LOW_BYTES), (MIB, 3 * MIB), (1 << 32, MIB)]);
        assert_eq!(memory.read_obj::<[u8; 13]>(GuestAddress(COMMAND_LINE)).unwrap(), *b"ip=dhcp -- a\0");
        // Three local APICs and one of I/O.
        assert_eq!(word(&memory, PROCESSORS) >> 32, 36 + 8 + 3 * 8 + 12);
    }

    /// Whatever is cut off or changed, nothing panics.
    #[test]
    fn damaged_images_are_refused() {
        let (whole, memory) = (image(), memory());
        for bytes in 0..whole.len() {
            assert!(place_bytes(&whole[..bytes], &memory, "", 1).is_err(), "{bytes}");
        }
        for at in 0..whole.len() {
            for value in [0, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = value;
                let _ = place_bytes(&changed, &memory, "", 1);
            }
        }
        let mut outside = whole;
        outside[64 + 24..64 + 32].copy_from_slice(&u64::MAX.to_le_bytes());
        let error = place_bytes(&outside, &memory, "", 1).unwrap_err();
        assert!(format!("{error:#}").contains("give the VM more"), "{error:#}");
    }
}
