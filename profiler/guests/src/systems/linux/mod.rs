//! A Linux guest: the distance of its kernel from its map's addresses (KASLR), the unwind tables in its
//! memory, and whether a core waits for work.

mod follow;
mod generated;
mod in_ram;
mod outside;
mod processes;
mod programs;
mod same;

use std::ops::Range;
use std::sync::Arc;

use glass_profiler_core::arch::x86_64::orc::{ADDRESS_BYTES, ENTRIES_MAX, ENTRY_BYTES, OrcTable};
use glass_profiler_core::arch::{Paging, x86_64};

use crate::arch::CoreState;
use crate::arch::x86_64::gates::target_of_gate;
use crate::error::GuestError;
use crate::memory::AddressSpace;
use crate::systems::landmarks::{BANNER, DIVIDE, ORC};
use crate::systems::plan::LinuxPlan;
use crate::systems::symbols::GuestProgram;

pub(crate) use follow::{Followed, Following, Replan};
pub(crate) use in_ram::InRam;
pub use outside::GuestProcesses;
pub(crate) use outside::Outside;
pub(crate) use processes::Processes;

const BANNER_TEXT: &[u8] = b"Linux version ";
/// Where every x86-64 kernel since 4.15 maps its interrupt table, whatever its slide
/// (`Documentation/arch/x86/x86_64/mm.rst`: the CPU entry area).
const INTERRUPT_TABLE: u64 = 0xffff_fe00_0000_0000;
/// What a slide is a multiple of (`CONFIG_PHYSICAL_ALIGN`).
const SLIDE_BYTES: u64 = 2 << 20;
/// Functions in which a core halts, or waits for a write, until an interrupt comes.
const IDLE: [&str; 19] = [
    "default_idle",
    "native_safe_halt",
    "pv_native_safe_halt",
    "native_halt",
    "default_idle_call",
    "acpi_safe_halt",
    "acpi_idle_do_entry",
    "mwait_idle",
    "mwait_idle_with_hints",
    "intel_idle",
    "intel_idle_irq",
    "intel_idle_xstate",
    "intel_idle_hlt",
    "xen_safe_halt",
    "native_play_dead",
    "hlt_play_dead",
    // Of AArch64.
    "cpu_do_idle",
    "arch_cpu_idle",
    "psci_cpu_suspend_enter",
];

/// Functions that change page tables before the task.
const BETWEEN: [&str; 11] = [
    "switch_mm_irqs_off",
    "switch_mm",
    "load_new_mm_cr3",
    "enter_lazy_tlb",
    "__switch_to_asm",
    // Of AArch64.
    "check_and_switch_context",
    "cpu_do_switch_mm",
    "cpu_switch_to",
    // Of AArch64, too: the registers of the process may not be on the stack yet.
    "vectors",
    "el0t_64_sync",
    "el0t_64_irq",
];

/// What is known of the kernel of a guest.
pub(crate) struct Linux {
    /// What is added to the addresses of the map.
    pub(crate) slide: u64,
    /// Where a core waits for work.
    idle: Vec<Range<u64>>,
    /// Where its page tables are already those of the next task.
    between: Vec<Range<u64>>,
    /// The kernel's code and data.
    range: Range<u64>,
    /// Its unwind tables, once they are parsed.
    pub(crate) orc: Option<Arc<OrcTable>>,
    /// The same as they lie in its memory, until then.
    copied: Option<OrcBytes>,
    pub(crate) warning: Option<String>,
}

/// Unwind tables as a kernel has them: where the array of addresses is linked, that array, and that of entries.
struct OrcBytes {
    address: u64,
    addresses: Vec<u8>,
    entries: Vec<u8>,
}

impl Linux {
    /// Reads a kernel in the memory of its VM. That may run meanwhile and remove the process in whose address space it is
    /// read: then the kernel counts as not found. Slow work is left to [`parse`](Linux::parse).
    pub(crate) fn find(program: &GuestProgram, core: &mut impl AddressSpace) -> Result<Linux, GuestError> {
        let (slide, warning) = slide(program, core)?;
        Linux::at(program, slide, warning, core)
    }

    /// The same of a kernel that is where it is known to be; `warning` is what could not be done until now.
    pub(crate) fn at(
        program: &GuestProgram,
        slide: u64,
        mut warning: Option<String>,
        core: &mut impl AddressSpace,
    ) -> Result<Linux, GuestError> {
        let copied = match copy_orc(program, slide, core)? {
            Ok(copied) => Some(copied),
            Err(_) if program.with_frame_pointers.is_some() => None,
            Err(reason) => {
                warning = Some(short_stacks(&reason));
                None
            }
        };
        let banner = program.landmark(BANNER);
        if let Some(banner) = banner.filter(|_| copied.is_some())
            && banner_at(banner.wrapping_add(slide), core)? != Found::Banner
        {
            return Err(GuestError::KernelNotFound(
                "the guest removed the address space in which its kernel was read: record again".to_owned(),
            ));
        }
        let functions = |names| program.map.as_ref().map(|map| map.functions(names)).unwrap_or_default();
        let (idle, between) = (functions(&IDLE), functions(&BETWEEN));
        let place = |range: &Range<u64>| range.start.wrapping_add(slide)..range.end.wrapping_add(slide);
        let (idle, between) = (idle.iter().map(place).collect(), between.iter().map(place).collect());
        Ok(Linux { slide, idle, between, range: place(&program.linked), orc: None, copied, warning })
    }

    /// Parses the unwind tables, of which there are some 370,000 entries. Returns a warning if they cannot be used.
    pub(crate) fn parse(&mut self) -> Option<String> {
        let OrcBytes { address, addresses, entries } = self.copied.take()?;
        match OrcTable::parse(address, &addresses, &entries) {
            Ok(table) => {
                self.orc = Some(Arc::new(table));
                None
            }
            Err(error) => Some(short_stacks(&format!("its unwind tables cannot be used ({error})"))),
        }
    }

    /// What a sample needs of it.
    pub(crate) fn plan(&self) -> LinuxPlan {
        LinuxPlan { range: self.range.clone(), idle: self.idle.clone(), between: self.between.clone(), tasks: None }
    }
}

/// The page tables of the kernel that runs a process, if the core has those that the process has for itself. Where a Linux isolates them
/// (KPTI), a core in user space, or at an entry of the kernel, has page tables with nothing of the kernel but its entries and the
/// interrupt table. The kernel's own are in the page before, and have that table at the same address, so its content shows that the two are
/// a pair: any other page does not lead to it.
pub(crate) fn paging_of_kernel(
    state: &CoreState,
    mut read: impl FnMut(Paging, u64, &mut [u8]) -> Result<usize, GuestError>,
) -> Result<Option<Paging>, GuestError> {
    /// The gates of exceptions, which every kernel sets.
    const GATES_BYTES: usize = 32 * 16;
    let isolated = state.paging.x86_64().and_then(x86_64::paging::Paging::of_isolating_kernel);
    let Some(of_kernel) = isolated.map(Paging::from) else { return Ok(None) };
    let table = state.interrupt_table.unwrap_or(INTERRUPT_TABLE);
    let mut gates = [[0; GATES_BYTES]; 2];
    for (paging, gates) in [state.paging, of_kernel].into_iter().zip(&mut gates) {
        if read(paging, table, gates)? < GATES_BYTES {
            return Ok(None);
        }
    }
    Ok((gates[0] == gates[1] && gates[0] != [0; GATES_BYTES]).then_some(of_kernel))
}

/// What is at an address at which the banner may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Banner,
    Other,
    /// Nothing that could be read.
    Nothing,
    /// The map does not contain the address.
    Unknown,
}

fn banner_at(address: u64, core: &mut impl AddressSpace) -> Result<Found, GuestError> {
    let mut found = [0; BANNER_TEXT.len()];
    Ok(match core.read(address, &mut found)? {
        read if read < found.len() => Found::Nothing,
        _ if found == BANNER_TEXT => Found::Banner,
        _ => Found::Other,
    })
}

/// What is to be added to the addresses of a map, and a warning if that could not be checked.
fn slide(program: &GuestProgram, core: &mut impl AddressSpace) -> Result<(u64, Option<String>), GuestError> {
    let path = program.path.display();
    let banner = program.landmark(BANNER);
    let fits = |slide: u64, core: &mut _| match banner {
        Some(address) => banner_at(address.wrapping_add(slide), core),
        None => Ok(Found::Unknown),
    };
    if program.address.is_some() {
        return match fits(program.bias.get(), core)? {
            Found::Banner => Ok((program.bias.get(), None)),
            Found::Other => Err(GuestError::Symbols(format!(
                "the guest's kernel is not at the load address of {path}: leave the address out to have it found"
            ))),
            Found::Nothing => Err(GuestError::KernelNotFound(format!(
                "the guest's kernel is not at the load address of {path}, or the page tables of its processes do not contain it: leave the address out to have it found"
            ))),
            Found::Unknown => {
                Ok((program.bias.get(), Some(format!("whether the guest runs {path} could not be checked"))))
            }
        };
    }
    if fits(0, core)? == Found::Banner {
        return Ok((0, None));
    }
    let cannot = |why: &str| {
        GuestError::KernelNotFound(format!(
            "the guest's kernel is not at the address of {path}, and {why}: if it has only just been started, record again once it has booted; else take the map of the kernel that runs, or give its address with --load-address"
        ))
    };
    let Some(handler) = DIVIDE.iter().find_map(|name| program.landmark(name)) else {
        return Err(cannot("the map does not name asm_exc_divide_error, by which it is looked for"));
    };
    let mut gate = [0; 16];
    if core.read(INTERRUPT_TABLE, &mut gate)? < gate.len() {
        return Err(cannot("its interrupt table is not where Linux keeps it"));
    }
    let slide = target_of_gate(&gate).wrapping_sub(handler);
    if !slide.is_multiple_of(SLIDE_BYTES) {
        return Err(cannot("its interrupt table belongs to another kernel"));
    }
    match fits(slide, core)? {
        Found::Banner => Ok((slide, None)),
        Found::Other => Err(cannot("its interrupt table belongs to another kernel")),
        // The interrupt table is in the page tables of processes too, and leads to where the kernel is.
        Found::Nothing => Err(GuestError::KernelNotFound(
            "the page tables of the vCPU contain a part of the guest's kernel alone, as those of processes do with page table isolation, and those of the kernel are not beside them: record again".to_owned(),
        )),
        Found::Unknown => {
            Ok((slide, Some(format!("whether the guest runs {path} could not be checked (no linux_banner in it)"))))
        }
    }
}

fn short_stacks(reason: &str) -> String {
    format!("stacks of the guest's kernel will be short: {reason}")
}

/// Copies the unwind tables, or returns why there are none.
fn copy_orc(
    program: &GuestProgram,
    slide: u64,
    core: &mut impl AddressSpace,
) -> Result<Result<OrcBytes, String>, GuestError> {
    let [Some(addresses), Some(addresses_end), Some(entries), Some(entries_end)] =
        ORC.map(|name| program.landmark(name))
    else {
        return Ok(Err(format!(
            "{} does not say where its unwind tables are (__start_orc_unwind)",
            program.path.display()
        )));
    };
    let mut array = |start: u64, end: u64, item_bytes: usize| {
        let bytes = end.checked_sub(start).and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
        if bytes > ENTRIES_MAX * item_bytes {
            return Ok(Err("its unwind tables are absurdly large".to_owned()));
        }
        let mut found = vec![0; bytes];
        let read = core.read(start.wrapping_add(slide), &mut found)?;
        Ok(if read == bytes { Ok(found) } else { Err("its unwind tables cannot be read".to_owned()) })
    };
    Ok(match (array(addresses, addresses_end, ADDRESS_BYTES)?, array(entries, entries_end, ENTRY_BYTES)?) {
        (Ok(bytes), Ok(entries)) => Ok(OrcBytes { address: addresses, addresses: bytes, entries }),
        (Err(reason), _) | (_, Err(reason)) => Err(reason),
    })
}
