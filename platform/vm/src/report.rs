//! The crash report: one form for a panic, an exception, a stack overflow and the end of memory.
//!
//! It goes to the serial port, allocates nothing and takes no lock. Addresses are printed as
//! `#N 0x...`, which `glass run` resolves to functions and lines.

use crate::cores::this_core;
use crate::ports::{halt, write_port8, write_port32};
use crate::serial::print_line;
use crate::{clock, last_events};
use core::arch::asm;
use core::fmt;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};
use glass_formats::Exit;

const DEBUG_EXIT_PORT: u16 = 0xf4;
/// Lines of a call chain printed at most.
const FRAMES_MAX: usize = 32;
/// Words of the stack printed at most.
const STACK_WORDS_MAX: u64 = 16;

/// The registers that boot.s saves at an exception, in its order.
#[repr(C)]
struct Fault {
    /// rax rbx rcx rdx rsi rdi rbp r8..r15
    registers: [u64; 15],
    vector: u64,
    error_code: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    cr2: u64,
}

const REGISTER_NAMES: [&str; 15] =
    ["rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];
const RBP: usize = 6;

unsafe extern "C" {
    static glass_fault: Fault;
    static glass_stack_guard: u8;
    static glass_stack_top: u8;
    static glass_fault_stack_guard: u8;
    static glass_fault_stack_top: u8;
    static glass_text_start: u8;
    static glass_text_end: u8;
}

/// Reports that were started. A report that fails itself must not start another.
static REPORTS: AtomicU32 = AtomicU32::new(0);

/// Ends the VM.
pub fn exit(how: Exit) -> ! {
    write_port32(DEBUG_EXIT_PORT, how as u32);
    // No such device: request a reset from the keyboard controller, which ends QEMU with -no-reboot.
    write_port8(0x64, 0xfe);
    loop {
        halt();
    }
}

/// Called by the panic handler of `entry!`.
pub fn panicked(info: &PanicInfo) -> ! {
    let rbp: u64;
    // SAFETY: copies a register.
    unsafe { asm!("mov {}, rbp", out(reg) rbp, options(nomem, nostack, preserves_flags)) };
    begin(Exit::Panic);
    flush();
    match info.location() {
        Some(location) => print_line(format_args!("PANIC at {location}: {}", info.message())),
        None => print_line(format_args!("PANIC: {}", info.message())),
    }
    print_context();
    print_line(format_args!("call chain:"));
    print_callers(rbp, 0);
    print_last_events();
    exit(Exit::Panic)
}

/// boot.s jumps here after an exception, on a separate stack.
#[unsafe(no_mangle)]
extern "C" fn glass_exception() -> ! {
    begin(Exit::Exception);
    // SAFETY: boot.s filled it before the jump, and no code writes it meanwhile.
    let fault = unsafe { &glass_fault };
    print_line(format_args!("EXCEPTION {}", Cause(fault)));
    print_context();
    print_registers(fault);
    print_stack(fault.rsp);
    print_line(format_args!("call chain:"));
    print_line(format_args!("  #0 {:#018x}", fault.rip));
    print_callers(fault.registers[RBP], 1);
    print_last_events();
    // Last: what the exception has destroyed may be used here.
    flush();
    exit(Exit::Exception)
}

/// Ends immediately if a report was started already: then the report itself has failed.
fn begin(how: Exit) {
    if REPORTS.fetch_add(1, Ordering::Relaxed) > 0 {
        print_line(format_args!("(the report failed too)"));
        exit(how);
    }
}

/// Gives the host the last lines of the service.
fn flush() {
    if let Some(flush) = this_core().flush.get() {
        flush();
    }
}

struct Cause<'a>(&'a Fault);

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let fault = self.0;
        let name = match fault.vector {
            0 => "division error",
            2 => "non-maskable interrupt",
            3 => "breakpoint",
            6 => "invalid instruction",
            8 => "double fault",
            12 => "stack segment fault",
            13 => "general protection fault",
            14 => return self.page_fault(f),
            16 | 19 => "floating-point error",
            17 => "misaligned access",
            18 => "machine check",
            _ => "unexpected exception",
        };
        write!(f, "{name} (vector {}, error code {:#x})", fault.vector, fault.error_code)
    }
}

impl Cause<'_> {
    fn page_fault(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let fault = self.0;
        let guard = &raw const glass_stack_guard as u64;
        if (guard..guard + 4096).contains(&fault.cr2) {
            return write!(f, "stack overflow: the stack of {} KiB is used up", (stack().1 - stack().0) / 1024);
        }
        let what = match (fault.error_code & 0x10 != 0, fault.error_code & 2 != 0) {
            (true, _) => "execution of",
            (false, true) => "write to",
            (false, false) => "read of",
        };
        let state = if fault.error_code & 1 != 0 { "protected" } else { "unmapped" };
        write!(f, "page fault: {what} {state} address {:#x}", fault.cr2)
    }
}

fn print_context() {
    let core = this_core();
    let task = core.executor.get().and_then(|executor| executor.current_task());
    print_line(format_args!(
        "core {}, task {}, {} after start, heap of {} KiB",
        core.index(),
        task.unwrap_or("none"),
        clock::now(),
        core.heap_bytes.get() / 1024
    ));
}

/// The core's last events, if they were traced.
fn print_last_events() {
    let mut is_first = true;
    last_events::for_each(|line| {
        if core::mem::replace(&mut is_first, false) {
            print_line(format_args!("last events of the trace:"));
        }
        print_line(line);
    });
}

fn print_registers(fault: &Fault) {
    print_line(format_args!(
        "rip {:016x}  rsp {:016x}  rflags {:x}  cs {:x}",
        fault.rip, fault.rsp, fault.rflags, fault.cs
    ));
    let row = |from: usize| {
        print_line(format_args!(
            "{} {:016x}  {} {:016x}  {} {:016x}",
            REGISTER_NAMES[from],
            fault.registers[from],
            REGISTER_NAMES[from + 1],
            fault.registers[from + 1],
            REGISTER_NAMES[from + 2],
            fault.registers[from + 2]
        ));
    };
    (0..15).step_by(3).for_each(row);
}

/// The service's stack: its lowest usable byte and its end.
fn stack() -> (u64, u64) {
    (&raw const glass_stack_guard as u64 + 4096, &raw const glass_stack_top as u64)
}

/// Whether the 16 bytes at `address` are on one of our stacks.
fn is_on_a_stack(address: u64) -> bool {
    let fault_stack = (&raw const glass_fault_stack_guard as u64 + 4096, &raw const glass_fault_stack_top as u64);
    address.is_multiple_of(8)
        && [stack(), fault_stack].iter().any(|(low, high)| *low <= address && address + 16 <= *high)
}

fn print_stack(rsp: u64) {
    for word in 0..STACK_WORDS_MAX / 2 {
        let address = (rsp & !7) + word * 16;
        if is_on_a_stack(address) {
            // SAFETY: `is_on_a_stack` says that these 16 bytes are mapped.
            let words = unsafe { (address as *const [u64; 2]).read() };
            print_line(format_args!("stack {address:#x}: {:016x} {:016x}", words[0], words[1]));
        }
    }
}

/// Prints the callers by the chain of frame pointers from `rbp` on; a run of one address is one line.
fn print_callers(mut rbp: u64, first: usize) {
    let text = &raw const glass_text_start as u64..&raw const glass_text_end as u64;
    let mut number = first;
    let mut previous = 0;
    let mut repeats = 0u64;
    let print_repeats = |repeats| {
        if repeats > 0 {
            print_line(format_args!("      (the same {repeats} times more)"));
        }
    };
    // The addresses of the chain only increase, so it ends at the stack's end.
    while is_on_a_stack(rbp) && number < FRAMES_MAX {
        // SAFETY: `is_on_a_stack` says that these 16 bytes are mapped.
        let [caller_rbp, return_address] = unsafe { (rbp as *const [u64; 2]).read() };
        if !text.contains(&return_address) {
            break;
        }
        if return_address == previous {
            repeats += 1;
        } else {
            print_repeats(repeats);
            repeats = 0;
            previous = return_address;
            // Frame 0 is an address within the code itself. The code after a call that never returns may belong to another function.
            let address = if number == 0 { return_address - 1 } else { return_address };
            print_line(format_args!("  #{number} {address:#018x}"));
            number += 1;
        }
        if caller_rbp <= rbp {
            break;
        }
        rbp = caller_rbp;
    }
    print_repeats(repeats);
}
