//! The api on a bare machine: boot, memory, interrupts, devices, one executor a core. What depends on the processor is in `arch`: x86-64 and AArch64.
//!
//! A service's crate calls [`entry!`] (through `glasshouse::main!`); boot.s enters at the entry point and ends at `start.rs`, which hands the machine
//! to the loop in `run.rs`.
//! Interrupts are never on; a core takes them only while it is halted (docs/decisions/0002).
#![no_std]
// Under test only the pure parts are used, and what only x86-64's machines need is also in shared files.
#![cfg_attr(any(test, target_arch = "aarch64"), allow(dead_code))]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(target_arch = "aarch64")]
#[path = "arch/aarch64/mod.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "arch/x86_64/mod.rs"]
mod arch;
mod bus;
mod clock;
mod command_line;
mod core_heap;
mod cores;
mod devices;
mod drivers;
#[cfg(test)]
mod drivers_tests;
mod generation;
mod generator;
mod heap;
mod interrupts;
mod last_events;
mod machine;
mod memory;
mod paging;
mod pool;
#[cfg(target_arch = "x86_64")]
mod program;
mod random;
mod serial;
mod trace;
mod wall;
#[cfg(target_arch = "x86_64")]
mod xen;

// What refers to symbols that exist only in an image.
#[cfg(not(test))]
mod functions;
#[cfg(not(test))]
mod platform;
#[cfg(not(test))]
mod report;
#[cfg(not(test))]
mod run;
#[cfg(not(test))]
mod smp;
#[cfg(not(test))]
mod start;

#[cfg(not(test))]
pub use devices::{VmDisk, VmFiles};
#[cfg(not(test))]
pub use platform::{VmCore, VmPlatform};
#[cfg(all(target_arch = "x86_64", not(test)))]
pub use program::run as run_program;

/// What [`entry!`] refers to; not for services.
#[doc(hidden)]
#[cfg(not(test))]
pub mod private {
    pub use crate::heap::Heap;
    pub use crate::report::{exit, panicked};
    pub use crate::run::run;
    pub use crate::start::Boot;
    pub use glass_formats::Exit;
}

/// Makes a program of `async fn serve(platform: impl Platform) -> Result<(), impl Display>`: the
/// allocator, the panic handler and the entry point of an image.
///
/// They are made in the service's crate, not here, so that this crate still compiles for host tests.
#[macro_export]
macro_rules! entry {
    ($serve:path) => {
        const _: () = {
            #[global_allocator]
            static HEAP: $crate::private::Heap = $crate::private::Heap;

            #[panic_handler]
            fn panic(info: &::core::panic::PanicInfo) -> ! {
                $crate::private::panicked(info)
            }

            // The precompiled core library was built to unwind and names these two; a panic aborts.
            #[unsafe(no_mangle)]
            extern "C" fn rust_eh_personality() {}
            #[unsafe(no_mangle)]
            extern "C" fn _Unwind_Resume() -> ! {
                $crate::private::exit($crate::private::Exit::Panic)
            }

            #[unsafe(no_mangle)]
            fn glass_main(boot: $crate::private::Boot) -> ! {
                $crate::private::run(boot, |platform| $serve(platform))
            }
        };
    };
}
