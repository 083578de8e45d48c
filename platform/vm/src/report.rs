//! The crash report: one form for a panic, an exception, a stack overflow and the end of memory.
//!
//! It goes to the serial port, allocates nothing and takes no lock. Addresses are printed as
//! `#N 0x...`, which `glass run` resolves to functions and lines.

use crate::arch::fault::{self, Cause};
use crate::arch::{controller, frame_pointer, halt, power};
use crate::cores::{self, Core, this_core};
use crate::serial::print_line;
use crate::{clock, heap, last_events};
use core::hint::spin_loop;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use glass_formats::{CORES_MAX, Exit};

/// Lines of a call chain printed at most, and of one of another core.
const FRAMES_MAX: usize = 32;
const OTHER_FRAMES_MAX: usize = 8;
/// Words of the stack printed at most.
const STACK_WORDS_MAX: u64 = 16;
/// How long the report waits for the other cores to stop.
const STOP_WAIT: Duration = Duration::from_millis(200);

unsafe extern "C" {
    static glass_text_start: u8;
    static glass_text_end: u8;
}

/// The core that reports, plus one; 0 while there is no report. A report that fails itself must not start another.
static REPORTER: AtomicUsize = AtomicUsize::new(0);

/// Ends the VM.
pub fn exit(how: Exit) -> ! {
    power::end(how)
}

/// Called by the panic handler of `entry!`.
pub fn panicked(info: &PanicInfo) -> ! {
    let frame_pointer = frame_pointer();
    begin(Exit::Panic);
    flush();
    match info.location() {
        Some(location) => print_line(format_args!("PANIC at {location}: {}", info.message())),
        None => print_line(format_args!("PANIC: {}", info.message())),
    }
    print_context();
    print_line(format_args!("call chain:"));
    print_callers(this_core(), frame_pointer, 0, FRAMES_MAX);
    print_last_events();
    print_others();
    exit(Exit::Panic)
}

/// boot.s jumps here after an exception, on a separate stack.
#[unsafe(no_mangle)]
extern "C" fn glass_exception() -> ! {
    let core = this_core();
    let fault = core.arch.fault.get();
    let reporter = REPORTER.load(Ordering::Acquire);
    if fault.is_stop() && reporter != 0 && reporter != core.index() + 1 {
        stay_stopped();
    }
    begin(Exit::Exception);
    print_line(format_args!("EXCEPTION {}", Cause { fault, stack: fault::stack(core) }));
    print_context();
    fault::print_program(core);
    fault.print();
    print_stack(core, fault.stack_pointer());
    print_line(format_args!("call chain:"));
    print_line(format_args!("  #0 {:#018x}", fault.program_counter()));
    print_callers(core, fault.frame_pointer(), 1, FRAMES_MAX);
    print_last_events();
    print_others();
    // Last: what the exception has destroyed may be used here.
    flush();
    exit(Exit::Exception)
}

/// Makes this core the one that reports. Ends the VM if it does already: then the report itself has failed. Of two cores that crash at once one reports,
/// and the other is what it was doing.
fn begin(how: Exit) {
    let own = this_core().index() + 1;
    match REPORTER.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => (),
        Err(reporter) if reporter == own => {
            print_line(format_args!("(the report failed too)"));
            exit(how);
        }
        Err(_) => stay_stopped(),
    }
}

/// Gives the host the last lines of the service.
fn flush() {
    if let Some(flush) = this_core().flush.get() {
        flush();
    }
}

/// Another core reports a crash: shows it what ran here, and halts for good.
fn stay_stopped() -> ! {
    let core = this_core();
    core.stopped_task.set(task_of_this_core());
    // Release: pairs with the Acquire in `cores::stopped`.
    core.public.is_stopped.store(true, Ordering::Release);
    loop {
        halt();
    }
}

fn task_of_this_core() -> &'static str {
    let task = this_core().executor.get().and_then(|executor| executor.current_task());
    task.unwrap_or("none")
}

/// Stops the other cores and prints what each did.
fn print_others() {
    let own = this_core().index();
    let others = || (0..CORES_MAX).map_while(|index| Some((index, cores::public(index)?.0)));
    let others = || others().filter(|(index, public)| *index != own && public.is_up());
    for (_, public) in others() {
        controller::interrupt_unmaskably(public.processor.load(Ordering::Relaxed));
    }
    let end = clock::now() + STOP_WAIT;
    for (index, _) in others() {
        let core = loop {
            let stopped = cores::stopped(index);
            if stopped.is_some() || clock::now() >= end {
                break stopped;
            }
            spin_loop();
        };
        let Some(core) = core else {
            print_line(format_args!("core {index} does not stop"));
            continue;
        };
        let fault = core.arch.fault.get();
        print_line(format_args!("core {index}, task {}:", core.stopped_task.get()));
        print_line(format_args!("  #0 {:#018x}", fault.program_counter()));
        print_callers(core, fault.frame_pointer(), 1, OTHER_FRAMES_MAX);
    }
}

fn print_context() {
    print_line(format_args!(
        "core {}, task {}, {} after start, heap of {} KiB",
        this_core().index(),
        task_of_this_core(),
        clock::now(),
        heap::total_bytes() / 1024
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

/// Whether the 16 bytes at `address` are on one of the core's stacks.
fn is_on_a_stack(core: &Core, address: u64) -> bool {
    let stack = (core.stack_bottom.get(), core.arch.stack_top.get());
    let fault_stack = (core.fault_stack_bottom.get(), core.arch.fault_stack_top.get());
    address.is_multiple_of(8)
        && [stack, fault_stack].iter().any(|(low, high)| *low <= address && address.saturating_add(16) <= *high)
}

fn print_stack(core: &Core, pointer: u64) {
    for word in 0..STACK_WORDS_MAX / 2 {
        let address = (pointer & !7) + word * 16;
        if is_on_a_stack(core, address) {
            // SAFETY: `is_on_a_stack` has checked that these 16 bytes are mapped.
            let words = unsafe { (address as *const [u64; 2]).read() };
            print_line(format_args!("stack {address:#x}: {:016x} {:016x}", words[0], words[1]));
        }
    }
}

/// Prints the callers by the chain of frame pointers from `frame` on; a run of one address is one line.
fn print_callers(core: &Core, mut frame: u64, first: usize, frames_max: usize) {
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
    while is_on_a_stack(core, frame) && number < frames_max {
        // SAFETY: `is_on_a_stack` has checked that these 16 bytes are mapped.
        let [caller, return_address] = unsafe { (frame as *const [u64; 2]).read() };
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
        if caller <= frame {
            break;
        }
        frame = caller;
    }
    print_repeats(repeats);
}
