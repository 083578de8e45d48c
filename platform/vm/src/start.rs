//! The way from boot.s to the service: one list of steps, each with its reason.

use crate::acpi::{self, IO_APICS_MAX, IoApic};
use crate::command_line::CommandLine;
use crate::cores::{initialize_boot_core, this_core};
use crate::paging::{Builder, OutOfTables, Protection, Table};
use crate::ports::load_page_tables;
use crate::pvh::{Ram, StartInfo};
use crate::trace::{self, step};
use crate::{apic, clock, command_line, functions, heap, serial};
use alloc::vec::Vec;
use core::cell::UnsafeCell;

/// Root, a directory pointer table, four directories for 4 GiB, and small pages for the low 2 MiB,
/// an image of up to 8 MiB and odd ends of RAM. Three more where the code is mapped a second time.
const TABLES: usize = if cfg!(glass_functions) { 23 } else { 20 };

#[repr(C, align(4096))]
struct Tables(UnsafeCell<[Table; TABLES]>);
// SAFETY: only `build_page_tables` touches it, once, on the boot core.
unsafe impl Sync for Tables {}
static TABLES_MEMORY: Tables = Tables(UnsafeCell::new([Table::EMPTY; TABLES]));

unsafe extern "C" {
    static glass_entry_tsc: u64;
    static glass_text_start: u8;
    static glass_text_end: u8;
    static glass_rodata_end: u8;
    static glass_image_end: u8;
    static glass_stack_guard: u8;
    static glass_fault_stack_guard: u8;
}

unsafe extern "Rust" {
    /// Made by `entry!` in the service's crate.
    fn glass_main(boot: Boot) -> !;
}

/// What the machine turned out to be.
pub struct Boot {
    pub(crate) command_line: CommandLine,
    pub(crate) io_apics: Vec<IoApic>,
    pub(crate) has_acpi: bool,
}

/// boot.s comes here, in ring 3, on the boot core's stack, with the address of the PVH start info.
#[unsafe(no_mangle)]
extern "C" fn glass_start(start_info: u64) -> ! {
    initialize_boot_core();
    serial::initialize();
    // SAFETY: the address is what the VMM passed; memory below the image is never written.
    let info = unsafe { StartInfo::read(start_info) };
    // SAFETY: boot.s wrote it once, before Rust ran.
    let entry_ticks = unsafe { glass_entry_tsc };
    let ring = start_tracing(&info, entry_ticks);
    // Before the final page tables, which map RAM only: ACPI's tables may be in reserved memory.
    let (io_apics, io_apic_count) = step("boot: ACPI tables", || acpi::io_apics(info.rsdp, read_physical));
    let io_apics = &io_apics[..io_apic_count];
    let tables = step("boot: page tables", || build_page_tables(&info, io_apics));
    tables.expect("the page tables cover 4 GiB and an image of 8 MiB");
    let free = heap::without(heap::usable(info.ram(), address_of(&raw const glass_image_end)), ring);
    // SAFETY: `build_page_tables` has mapped this memory for reading and writing, it starts after everything the
    // image uses itself, and the ring is left out.
    step("boot: heap", || unsafe { heap::initialize(free) });
    assert!(this_core().heap_bytes.get() > 0, "the VMM's memory map has no RAM after the image");
    glass_trace::tracing_subscriber::install();
    step("boot: clock", || clock::initialize(entry_ticks));
    step("boot: local APIC", apic::initialize);
    let boot = Boot {
        command_line: CommandLine::parse(info.command_line),
        io_apics: if io_apics.is_empty() { alloc::vec![apic::IO_APIC] } else { io_apics.to_vec() },
        has_acpi: info.rsdp != 0,
    };
    // SAFETY: `entry!` defines it with this signature.
    unsafe { glass_main(boot) }
}

/// Gives the core its ring before there is anything else, so that the boot is traced too. The memory that it takes.
fn start_tracing(info: &StartInfo, entry_ticks: u64) -> Ram {
    let groups = command_line::trace_groups(info.command_line);
    if let Err(word) = groups {
        serial::print_line(format_args!(
            "`{word}` in the command line's `trace=` is no group of events: take {}",
            trace::Groups
        ));
    }
    let Some(ring) = trace::place(heap::usable(info.ram(), address_of(&raw const glass_image_end))) else {
        return (0, 0);
    };
    // SAFETY: boot.s has mapped all RAM below 4 GiB, and so will `build_page_tables`; the heap leaves this part out.
    unsafe { trace::start(ring, entry_ticks, groups.unwrap_or(0)) };
    ring
}

fn address_of(symbol: *const u8) -> u64 {
    symbol as u64
}

/// A byte of physical memory, while boot.s's tables map the first 4 GiB.
fn read_physical(address: u64) -> Option<u8> {
    // SAFETY: every address below 4 GiB is mapped now, and reading one byte has no effect on RAM;
    // ACPI's pointers are the VMM's own, so they do not lead to device registers.
    (0x1000..1 << 32).contains(&address).then(|| unsafe { (address as *const u8).read_volatile() })
}

/// Replaces boot.s's tables by ones in which nothing is writable and executable at once, page 0 and
/// the pages below the stacks are unmapped, and only RAM and the devices' windows exist.
fn build_page_tables(info: &StartInfo, io_apics: &[IoApic]) -> Result<(), OutOfTables> {
    let text = address_of(&raw const glass_text_start);
    let constants = address_of(&raw const glass_text_end);
    let data = address_of(&raw const glass_rodata_end);
    let image_end = address_of(&raw const glass_image_end);
    // SAFETY: called once, and nothing else names the static.
    let tables = unsafe { &mut *TABLES_MEMORY.0.get() };
    let root = tables.as_ptr() as u64;
    let mut builder = Builder::new(tables, root);
    builder.map(text, constants, Protection::ReadExecute)?;
    functions::map(&mut builder)?;
    builder.map(constants, data, Protection::Read)?;
    builder.map(data, image_end, Protection::ReadWrite)?;
    // The command line lies somewhere below the image.
    builder.map(0x1000, text, Protection::ReadWrite)?;
    for (start, end) in heap::usable(info.ram(), image_end) {
        builder.map(start, end, Protection::ReadWrite)?;
    }
    // virtio-mmio windows, I/O APICs and the local APIC of QEMU, Firecracker and Cloud Hypervisor.
    builder.map(0xfea0_0000, 0xfef0_0000, Protection::Device)?;
    builder.map(0xd000_0000, 0xd020_0000, Protection::Device)?;
    for apic in io_apics.iter().take(IO_APICS_MAX) {
        builder.map(apic.address, apic.address + 32, Protection::Device)?;
    }
    builder.unmap(address_of(&raw const glass_stack_guard))?;
    builder.unmap(address_of(&raw const glass_fault_stack_guard))?;
    // SAFETY: all that runs or is used lies in the ranges mapped above, at the same addresses.
    unsafe { load_page_tables(root) };
    functions::start();
    Ok(())
}
