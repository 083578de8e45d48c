//! What a guest finds when it starts: its segments, the structures of PVH (Xen's `arch-x86/hvm/start_info.h`), and ACPI's table of processors.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use kvm_bindings::{kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::layout::Zone;

const START_INFO: u64 = 0x6000;
const MEMORY_MAP: u64 = 0x7000;
const COMMAND_LINE: u64 = 0x8000;
const ROOT_POINTER: u64 = 0xe_0000;
const ROOT_TABLE: u64 = 0xe_1000;
const PROCESSORS: u64 = 0xe_2000;
const LOCAL_APIC: u32 = 0xfee0_0000;
const IO_APIC: u32 = 0xfec0_0000;
/// What the first MiB has for programs.
const LOW_BYTES: u64 = 0x9_f000;
const MIB: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;

/// Bytes that are read as numbers; `None` behind their end.
struct Image(Vec<u8>);

impl Image {
    fn number<const BYTES: usize>(&self, at: usize) -> Result<u64> {
        let bytes = self.bytes(at, BYTES)?;
        Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn bytes(&self, at: usize, count: usize) -> Result<&[u8]> {
        at.checked_add(count).and_then(|end| self.0.get(at..end)).context("the image ends early")
    }
}

/// Loads an ELF file; returns its PVH entry, and where its memory ends.
fn load(image: &Image, memory: &GuestMemoryMmap) -> Result<(u64, u64)> {
    const SEGMENT: u64 = 1;
    const NOTES: u64 = 4;
    const PHYS32_ENTRY: u64 = 18;
    ensure!(image.bytes(0, 5)? == b"\x7fELF\x02", "the image is no ELF file of 64 bits");
    let (mut entry, mut end) = (None, 0);
    for index in 0..image.number::<2>(56)? as usize {
        let header = image.number::<8>(32)? as usize + index * image.number::<2>(54)? as usize;
        let (offset, bytes) = (image.number::<8>(header + 8)? as usize, image.number::<8>(header + 32)? as usize);
        match image.number::<4>(header)? {
            SEGMENT => {
                let address = image.number::<8>(header + 24)?;
                let content = image.bytes(offset, bytes)?;
                memory.write_slice(content, GuestAddress(address)).context("the image is not in RAM")?;
                end = end.max(address.saturating_add(image.number::<8>(header + 40)?));
            }
            NOTES => {
                let mut at = offset;
                while at < offset + bytes {
                    let (name, value) = (image.number::<4>(at)? as usize, image.number::<4>(at + 4)? as usize);
                    let start = at + 12 + name.next_multiple_of(4);
                    if image.number::<4>(at + 8)? == PHYS32_ENTRY {
                        entry = Some(image.number::<4>(start)?);
                    }
                    at = start + value.next_multiple_of(4);
                }
            }
            _ => {}
        }
    }
    Ok((entry.context("the image has no PVH entry")?, end))
}

/// Places the image and what it gets from a VMM; returns its entry.
pub fn place(image: &Path, memory: &GuestMemoryMmap, zones: &[Zone], vcpus: u8) -> Result<u64> {
    let image = Image(fs::read(image).with_context(|| format!("cannot read {}", image.display()))?);
    let (entry, image_end) = load(&image, memory)?;
    let mut ranges = vec![(0, LOW_BYTES)];
    for (index, part) in zones.iter().flat_map(|zone| &zone.parts).enumerate() {
        let (start, mut end) = (part.address.max(MIB), part.address + part.bytes);
        if index == 0 && zones.len() > 1 {
            // The rest of the first zone stays unused: what the guest allocates, its page tables and stacks, is in the others.
            end = end.min(image_end.next_multiple_of(PAGE_BYTES));
        }
        ranges.extend(end.checked_sub(start).map(|bytes| (start, bytes)));
    }
    for ((address, bytes), index) in ranges.iter().zip(0..) {
        for (word, at) in [*address, *bytes, 1].into_iter().zip([0, 8, 16]) {
            memory.write_obj(word, GuestAddress(MEMORY_MAP + 24 * index + at))?;
        }
    }
    memory.write_slice(b"\0", GuestAddress(COMMAND_LINE))?;
    let root = if vcpus > 1 { ROOT_POINTER } else { 0 };
    let words =
        [(0, 0x336e_c578u64 | 1 << 32), (24, COMMAND_LINE), (32, root), (40, MEMORY_MAP), (48, ranges.len() as u64)];
    words.iter().try_for_each(|(at, word)| memory.write_obj(*word, GuestAddress(START_INFO + at)))?;
    if vcpus > 1 {
        describe_processors(memory, vcpus)?;
    }
    Ok(entry)
}

/// RSDP, RSDT and MADT (ACPI 6.5, sections 5.2.5 to 5.2.12), without checksums, which our images do not check.
fn describe_processors(memory: &GuestMemoryMmap, vcpus: u8) -> Result<()> {
    let table = |signature: &[u8; 4], rest: &[u8]| {
        let bytes = (36 + rest.len() as u32).to_le_bytes();
        [&signature[..], &bytes, &[0; 28], rest].concat()
    };
    let mut processors = [LOCAL_APIC.to_le_bytes(), [0; 4]].concat();
    for index in 0..vcpus {
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

/// 32-bit protected mode without paging, as PVH has it.
pub fn enter(vcpu: &VcpuFd, entry: u64) -> Result<()> {
    let mut system = vcpu.get_sregs()?;
    let data =
        kvm_segment { limit: 0xffff_ffff, selector: 16, type_: 3, present: 1, db: 1, s: 1, g: 1, ..Default::default() };
    system.cs = kvm_segment { selector: 8, type_: 11, ..data };
    (system.ds, system.es, system.ss, system.fs, system.gs) = (data, data, data, data, data);
    system.cr0 = 0x11;
    vcpu.set_sregs(&system)?;
    vcpu.set_regs(&kvm_regs { rip: entry, rbx: START_INFO, rflags: 2, ..Default::default() })?;
    Ok(())
}
