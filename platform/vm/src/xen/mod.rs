//! A domain of Xen as one more machine: its hypercalls, what Xen shares with it, and its end.

pub mod bus;
pub mod console;
mod control;
pub mod events;
mod grants;
mod hypercall;
mod shared;

use crate::arch::machine::{Channel, Domain};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use hypercall::{Number, Refused, operate};

pub use events::XenEvents;
pub use hypercall::is_domain;

/// Parameters of a domain (`xen/include/public/hvm/params.h`).
mod parameter {
    pub const STORE_FRAME: u32 = 1;
    pub const STORE_PORT: u32 = 2;
    pub const CONSOLE_FRAME: u32 = 17;
    pub const CONSOLE_PORT: u32 = 18;
}
const GET_PARAMETER: u32 = 1;
/// Operations of scheduling (`xen/include/public/sched.h`).
const YIELD: u32 = 0;
const SHUTDOWN: u32 = 2;
const PAGE_BYTES: u64 = 4096;

/// Why a domain ends, as `xl` reports it and as its configuration reacts to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    PowerOff = 0,
    Reboot = 1,
    Crash = 3,
}

/// Dom0 has requested a reboot, not a power-off.
static REBOOTS: AtomicBool = AtomicBool::new(false);

/// `struct xen_hvm_param`.
#[repr(C)]
struct Parameter {
    domain: u16,
    pad: u16,
    index: u32,
    value: u64,
}

fn parameter(index: u32) -> Result<u64, Refused> {
    let mut argument = Parameter { domain: hypercall::SELF, pad: 0, index, value: 0 };
    // SAFETY: the argument is that operation's.
    unsafe { operate(Number::Hvm, GET_PARAMETER, &mut argument) }?;
    Ok(argument.value)
}

/// The page and the port of a daemon in dom0.
fn channel(frame: u32, port: u32) -> Result<Channel, Refused> {
    Ok(Channel { page: parameter(frame)? * PAGE_BYTES, port: parameter(port)? as u32 })
}

/// Describes the domain, if this is one, and makes its console work. All memory below 4 GiB is mapped now.
pub fn initialize() -> Option<Domain> {
    hypercall::detect();
    if !is_domain() {
        return None;
    }
    let describe = || {
        let console = channel(parameter::CONSOLE_FRAME, parameter::CONSOLE_PORT)?;
        // SAFETY: Xen has put the page there, and start.rs maps the pages of the description.
        unsafe { console::initialize(console.page, console.port) };
        shared::initialize()?;
        events::initialize()?;
        Ok(Domain { console, store: channel(parameter::STORE_FRAME, parameter::STORE_PORT)? })
    };
    match describe() {
        Ok(domain) => Some(domain),
        // Without any of them there is nothing to continue with.
        Err(refused @ Refused { .. }) => panic!("{refused}"),
    }
}

/// Lets other domains run on this processor.
pub fn yield_to_others() {
    // SAFETY: this operation has no argument.
    let _ = unsafe { operate(Number::Scheduling, YIELD, &mut 0_u64) };
}

/// The next graceful end is a reboot.
pub fn reboot_at_the_end() {
    REBOOTS.store(true, Ordering::Relaxed);
}

/// Ends the domain once its console was read.
pub fn shut_down(reason: Reason) -> ! {
    console::flush();
    let reboots = reason == Reason::PowerOff && REBOOTS.load(Ordering::Relaxed);
    let mut argument = if reboots { Reason::Reboot } else { reason } as u32;
    loop {
        // SAFETY: the argument is that operation's, which does not return.
        let _ = unsafe { operate(Number::Scheduling, SHUTDOWN, &mut argument) };
    }
}

/// The words of the boot core's time, as KVM has them too (`struct vcpu_time_info`).
pub fn time_words() -> [u32; 8] {
    core::array::from_fn(|index| shared::word(shared::TIME + 4 * index).load(Ordering::Acquire))
}

/// The time of day at system time 0, and the version of these words.
pub fn wall_at_zero() -> (u32, Duration) {
    let [version, low, nanos, high] =
        core::array::from_fn(|index| shared::word(shared::WALL + 4 * index).load(Ordering::Acquire));
    let secs = u64::from(high) << 32 | u64::from(low);
    (version, Duration::from_secs(secs).saturating_add(Duration::from_nanos(nanos.into())))
}
