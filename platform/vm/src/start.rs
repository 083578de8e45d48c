//! The way from boot.s to the service: one list of steps, each with its reason.

use crate::arch::time::Frequency;
use crate::arch::{controller, load_page_tables};
use crate::command_line::CommandLine;
use crate::cores::{initialize_boot_core, this_core};
use crate::machine::{FIRST_ADDRESS, Machine, Ram, StartInfo, usable};
use crate::memory::{HeapTables, PAGE_TABLES};
use crate::paging::{AddressSpace, OutOfTables, PAGE_BYTES, Protection};
use crate::smp::{self, SecondaryCores};
use crate::trace::{self, step};
use crate::{clock, command_line, functions, generation, heap, random, serial};
use core::fmt;
use core::sync::atomic::Ordering;
use glass_formats::Generation;
use glass_lib_trace::{ConsoleLog, tracing_subscriber};

/// What boot.s maps: everything below this.
const MAPPED_AT_FIRST: Ram = (0, 1 << 32);

unsafe extern "C" {
    static glass_entry_ticks: u64;
    static glass_text_start: u8;
    static glass_text_end: u8;
    static glass_rodata_end: u8;
    static glass_image_end: u8;
    static glass_stack_guard: u8;
    static glass_stack_top: u8;
    static glass_fault_stack_guard: u8;
    static glass_fault_stack_top: u8;
}

unsafe extern "Rust" {
    /// Made by `entry!` in the service's crate.
    fn glass_main(boot: Boot) -> !;
}

/// What the machine turned out to be.
pub struct Boot {
    pub(crate) machine: Machine,
    pub(crate) command_line: CommandLine,
    pub(crate) secondary: SecondaryCores,
}

/// boot.s comes here, on the boot core's stack, with the address of what the VMM has handed over.
#[unsafe(no_mangle)]
extern "C" fn glass_start(start_info: u64) -> ! {
    initialize_boot_core();
    place_stacks();
    // SAFETY: the address is what the VMM passed; memory below the image is never written.
    let info = unsafe { StartInfo::read(start_info) };
    let frequency = Frequency::start();
    // SAFETY: boot.s wrote it once, before Rust ran.
    let entry_ticks = unsafe { glass_entry_ticks };
    let ring = start_tracing(&info, entry_ticks);
    let image_end = address_of(&raw const glass_image_end);
    if info.is_ram_zero() {
        // SAFETY: the VMM or the image's firmware has stated it, and of the memory that becomes heap nothing was written since.
        unsafe { heap::trust_zeroes() };
    }
    let low = heap::without(usable(info.ram(), image_end, MAPPED_AT_FIRST), ring);
    // SAFETY: boot.s has mapped this memory for reading and writing, and so will `build_page_tables`; it starts after everything
    // the image uses itself, and the ring is left out.
    step("boot: heap", || unsafe { heap::add(low) });
    assert!(heap::total_bytes() > 0, "the VMM's memory map has no RAM after the image");
    let command_line = CommandLine::parse(info.command_line());
    // Before the final page tables, which map RAM only: ACPI's tables may be in reserved memory.
    let machine = step("boot: description of the machine", || Machine::read(&info, &command_line.devices));
    let prepare = || smp::prepare(&machine);
    let secondary = if machine.processors.len() > 1 { step("boot: secondary cores", prepare) } else { prepare() };
    let built = step("boot: page tables", || build_page_tables(&machine, &secondary));
    assert!(built.is_ok(), "the VM has too little memory for page tables: give it more");
    let high = usable(&machine.ram, image_end, (MAPPED_AT_FIRST.1, u64::MAX));
    // SAFETY: `build_page_tables` has mapped this memory, of which nothing was used before.
    unsafe { heap::add(high) };
    if secondary.are_none() {
        heap::take_all();
    }
    tracing_subscriber::install(ConsoleLog { level: command_line.log, print: print_message });
    step("boot: clock", || clock::initialize(&frequency, entry_ticks));
    step("boot: interrupt controller", || controller::initialize(&machine, &frequency));
    random::initialize();
    if let Some(address) = command_line.generation.filter(|address| is_below_image(*address)) {
        // SAFETY: memory below the image is mapped, and nothing but the VMM writes there.
        unsafe { generation::initialize(address) };
    }
    tracing::debug!("memory is {}", if info.is_ram_zero() { "new" } else { "of unknown contents" });
    let boot = Boot { machine, command_line, secondary };
    // SAFETY: `entry!` defines it with this signature.
    unsafe { glass_main(boot) }
}

/// Notes where boot.s has put the boot core's stacks.
fn place_stacks() {
    let core = this_core();
    core.stack_bottom.set(address_of(&raw const glass_stack_guard) + PAGE_BYTES);
    core.arch.stack_top.set(address_of(&raw const glass_stack_top));
    core.fault_stack_bottom.set(address_of(&raw const glass_fault_stack_guard) + PAGE_BYTES);
    core.arch.fault_stack_top.set(address_of(&raw const glass_fault_stack_top));
}

/// Prints a message of the macros of `tracing`.
fn print_message(line: fmt::Arguments) {
    let line = format_args!("{} {line}", clock::now());
    match this_core().print.get() {
        Some(print) => print(line),
        None => serial::print_line(line),
    }
}

/// Gives the core its ring before there is anything else, so that the boot is traced too. The memory that it takes.
fn start_tracing(info: &StartInfo, entry_ticks: u64) -> Ram {
    let groups = command_line::trace_groups(info.command_line());
    if let Err(word) = groups {
        serial::print_line(format_args!(
            "`{word}` in the command line's `trace=` is no group of events: take {}",
            trace::Groups
        ));
    }
    let Some(ring) = trace::place(usable(info.ram(), address_of(&raw const glass_image_end), MAPPED_AT_FIRST)) else {
        return (0, 0);
    };
    // SAFETY: boot.s has mapped all RAM below 4 GiB, and so will `build_page_tables`; the heap leaves this part out.
    unsafe { trace::start(ring, entry_ticks, groups.unwrap_or(0)) };
    ring
}

fn address_of(symbol: *const u8) -> u64 {
    symbol as u64
}

/// Whether a [`Generation`] at this address is in memory below the image.
fn is_below_image(address: u64) -> bool {
    let last = address_of(&raw const glass_text_start).saturating_sub(Generation::BYTES);
    address.is_multiple_of(align_of::<Generation>() as u64) && (FIRST_ADDRESS..=last).contains(&address)
}

/// Replaces boot.s's tables by ones in which nothing is writable and executable at once, page 0 and
/// the pages below the stacks are unmapped, and only RAM exists, all of it, and the interrupt controller. Windows of devices come later.
fn build_page_tables(machine: &Machine, secondary: &SecondaryCores) -> Result<(), OutOfTables> {
    let text = address_of(&raw const glass_text_start);
    let constants = address_of(&raw const glass_text_end);
    let data = address_of(&raw const glass_rodata_end);
    let image_end = address_of(&raw const glass_image_end);
    // SAFETY: the only root that is opened later is the one that is stored below.
    let mut space = AddressSpace::new(unsafe { HeapTables::new() })?;
    space.map(text, constants, Protection::ReadExecute)?;
    functions::map(&mut space)?;
    space.map(constants, data, Protection::Read)?;
    space.map(data, image_end, Protection::ReadWrite)?;
    // The command line is somewhere below the image.
    space.map(FIRST_ADDRESS, text, Protection::ReadWrite)?;
    for (start, end) in usable(&machine.ram, image_end, (0, u64::MAX)) {
        space.map(start, end, Protection::ReadWrite)?;
    }
    machine.shared_pages().try_for_each(|page| space.map(page, page + PAGE_BYTES, Protection::ReadWrite))?;
    machine.registers().try_for_each(|(start, end)| space.map(start, end, Protection::Device))?;
    space.unmap(address_of(&raw const glass_stack_guard))?;
    space.unmap(address_of(&raw const glass_fault_stack_guard))?;
    secondary.guards().try_for_each(|guard| space.unmap(guard))?;
    PAGE_TABLES.store(space.root(), Ordering::Relaxed);
    // SAFETY: all that runs or is used lies in the ranges mapped above, at the same addresses.
    unsafe { load_page_tables(space.root()) };
    functions::start();
    Ok(())
}
