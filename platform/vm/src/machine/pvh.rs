//! What the VMM hands over at a PVH boot (Xen's `arch-x86/hvm/start_info.h`).

use super::Ram;
use core::ffi::{CStr, c_char};

const MAGIC: u32 = 0x336e_c578;
/// Type of a memory map entry that is RAM, as in an E820 map.
const TYPE_RAM: u32 = 1;
/// What a VMM or firmware writes to the reserved word of the start info if all RAM in the memory map is zero, except below the image's end:
/// it was not used since the VM was started ("ZERO"). By PVH the word is 0.
const RAM_IS_ZERO: u32 = 0x4f52_455a;
/// More memory map entries than this are ignored.
const MAP_ENTRIES_MAX: usize = 32;

#[repr(C)]
struct RawInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawMapEntry {
    address: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

/// The parts of the start info that we use, copied out of the VMM's memory.
pub struct StartInfo {
    /// Kernel command line; empty if it is missing or no UTF-8.
    pub command_line: &'static str,
    /// Address of ACPI's root pointer, 0 without ACPI.
    pub rsdp: u64,
    /// All RAM behind the image is zero.
    pub is_ram_zero: bool,
    ram: [Ram; MAP_ENTRIES_MAX],
    ram_count: usize,
}

impl StartInfo {
    /// Reads the start info at `address`.
    ///
    /// # Safety
    /// `address` is what the VMM passed in ebx, the memory it describes is mapped, and nothing
    /// overwrites the command line later.
    pub unsafe fn read(address: u64) -> StartInfo {
        // SAFETY: the caller passes the VMM's pointer to this structure.
        let raw = unsafe { (address as *const RawInfo).read_unaligned() };
        assert_eq!(raw.magic, MAGIC, "the VMM did not boot this image by PVH");
        let command_line = if raw.command_line == 0 {
            ""
        } else {
            // SAFETY: a PVH command line is a C string that no code changes.
            unsafe { CStr::from_ptr(raw.command_line as *const c_char) }.to_str().unwrap_or("")
        };
        let is_ram_zero = raw.reserved == RAM_IS_ZERO;
        let ram = [(0, 0); MAP_ENTRIES_MAX];
        let mut info = StartInfo { command_line, rsdp: raw.rsdp, is_ram_zero, ram, ram_count: 0 };
        let entries = if raw.version >= 1 { raw.memory_map_entries as usize } else { 0 };
        for index in 0..entries.min(MAP_ENTRIES_MAX) {
            // SAFETY: the VMM has promised `entries` of them.
            let entry = unsafe { (raw.memory_map as *const RawMapEntry).add(index).read_unaligned() };
            if entry.kind == TYPE_RAM {
                info.ram[info.ram_count] = (entry.address, entry.address.saturating_add(entry.size));
                info.ram_count += 1;
            }
        }
        info
    }

    /// The ranges of RAM, in the VMM's order.
    pub fn ram(&self) -> &[Ram] {
        &self.ram[..self.ram_count]
    }
}
