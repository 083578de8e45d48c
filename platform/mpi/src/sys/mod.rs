//! System calls, and the symbol by which the C interface finds its host.

#[cfg(glass_static)]
mod alone;
#[cfg(target_arch = "aarch64")]
#[path = "arch/aarch64.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "arch/x86_64.rs"]
mod arch;
mod calls;
mod memory;
mod trace;

pub(crate) use calls::{cores, exit, machine, now_ns, print_error, process, sleep, variable, yield_now};
pub(crate) use memory::{Peers, segment};
pub(crate) use trace::trace;

#[unsafe(no_mangle)]
fn glass_mpi_host() -> &'static dyn glass_lib_mpi_abi::Host {
    &crate::host::ProcessHost
}
