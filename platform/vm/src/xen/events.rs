//! Event channels as interrupts: one vector of the boot core's local APIC announces all of them, and each has a vector of its own in
//! the table of drivers.

use super::hypercall::{self, Number, Refused};
use super::shared;
use crate::interrupts::{Source, Target};
use core::sync::atomic::{AtomicU8, Ordering};
use glass_drivers_xen::Domain;

/// The vector by which Xen announces events.
pub const UPCALL_VECTOR: u8 = 0x42;

/// Event channels that can be used: far more than there are devices.
const PORTS_MAX: usize = 256;
/// The vector that each port was routed to, 0 for none.
static ROUTES: [AtomicU8; PORTS_MAX] = [const { AtomicU8::new(0) }; PORTS_MAX];

/// Operations (`xen/include/public/event_channel.h`, `hvm/hvm_op.h`).
const SEND: u32 = 4;
const ALLOCATE_UNBOUND: u32 = 6;
const UNMASK: u32 = 9;
const SET_UPCALL_VECTOR: u32 = 23;

/// `struct evtchn_alloc_unbound`.
#[repr(C)]
struct AllocateUnbound {
    domain: u16,
    remote: u16,
    port: u32,
}

/// `struct xen_hvm_evtchn_upcall_vector`.
#[repr(C)]
struct UpcallVector {
    vcpu: u32,
    vector: u8,
}

/// Lets events interrupt the boot core.
pub fn initialize() -> Result<(), Refused> {
    let mut argument = UpcallVector { vcpu: 0, vector: UPCALL_VECTOR };
    // SAFETY: the argument is that operation's; the vector is taken in the idle service only, like all others.
    unsafe { hypercall::operate(Number::Hvm, SET_UPCALL_VECTOR, &mut argument) }?;
    // Xen announces nothing while it believes an event from before to be unhandled. All are masked here, so none is lost.
    shared::take_events(drop);
    Ok(())
}

/// Takes all pending events. The vector of one of them; after a wake all drivers are polled anyway, and only the trace names one.
pub fn take() -> Option<u8> {
    let mut first = None;
    shared::take_events(|port| {
        let vector = ROUTES.get(port as usize).map_or(0, |route| route.load(Ordering::Relaxed));
        first = first.or(Some(vector).filter(|vector| *vector != 0));
    });
    first
}

/// Notifies the other end of an event channel.
pub fn send(port: u32) {
    let mut argument = port;
    // SAFETY: the argument is that operation's, which changes no memory of ours. A port that does not exist is refused.
    let _ = unsafe { hypercall::operate(Number::Events, SEND, &mut argument) };
}

/// The hypercalls, as the front ends use them.
#[derive(Debug, Clone, Copy)]
pub struct XenEvents;

impl glass_drivers_xen::Events for XenEvents {
    fn notify(&self, port: u32) {
        send(port);
    }
}

/// Our end of an event channel.
#[derive(Debug)]
pub struct Port(pub u32);

impl Port {
    /// One to which domain `remote` may bind its end. `None` if Xen refuses it, or has too many.
    pub fn new(remote: Domain) -> Option<Port> {
        let mut argument = AllocateUnbound { domain: hypercall::SELF, remote: remote.0, port: 0 };
        // SAFETY: the argument is that operation's.
        unsafe { hypercall::operate(Number::Events, ALLOCATE_UNBOUND, &mut argument) }.ok()?;
        ((argument.port as usize) < PORTS_MAX).then_some(Port(argument.port))
    }
}

impl Source for Port {
    fn count(&self) -> u16 {
        1
    }

    fn route(&mut self, _index: u16, target: Target) {
        let Some(route) = ROUTES.get(self.0 as usize) else { return };
        route.store(target.vector, Ordering::Relaxed);
        let mut argument = self.0;
        // SAFETY: the argument is that operation's. It announces an event that came while the channel was masked.
        let _ = unsafe { hypercall::operate(Number::Events, UNMASK, &mut argument) };
    }

    fn mask(&mut self, _index: u16) {
        shared::mask(self.0);
    }
}
