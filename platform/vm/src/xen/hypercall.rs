//! Hypercalls: requests to Xen, made by the ring-0 stub because Xen refuses those of ring 3.
//!
//! The instruction is that of the processor's maker (`vmcall` of Intel, `vmmcall` of AMD), which is what the page of Xen's own
//! code contains: Xen fills such a page on request, but it would need memory that is executable and not part of the image.

use crate::arch::ports::{call_hypervisor, cpuid};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// This domain, as an argument (`DOMID_SELF`).
pub const SELF: u16 = 0x7ff0;

/// The service of boot.s that makes hypercalls; 0 outside of Xen.
static SERVICE: AtomicU64 = AtomicU64::new(0);
const VMCALL: u64 = 4;
const VMMCALL: u64 = 5;
/// Makers of processors with `vmmcall`: the first four letters of their names.
const WITH_VMMCALL: [&[u8; 4]; 2] = [b"Auth", b"Hygo"];

/// Where hypervisors report themselves in CPUID. With Hyper-V's interface Xen has the second place.
const LEAVES: [u32; 2] = [0x4000_0000, 0x4000_0100];
const XEN: [&[u8; 4]; 3] = [b"XenV", b"MMXe", b"nVMM"];
const HYPER_V: &[u8; 4] = b"Micr";

/// Numbers of the hypercalls that are used (`xen/include/public/xen.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    Memory = 12,
    Scheduling = 29,
    Events = 32,
    Hvm = 34,
}

/// Xen has refused a hypercall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    number: Number,
    operation: u32,
    /// A negative number of an errno.
    result: i64,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Xen refused hypercall {:?} {} with error {}", self.number, self.operation, self.result)
    }
}

/// Determines whether this is a domain of Xen.
pub fn detect() {
    let name = |words: [u32; 3]| words.map(u32::to_le_bytes);
    for leaf in LEAVES {
        let [_, first, second, third] = cpuid(leaf);
        let hypervisor = name([first, second, third]);
        if hypervisor.iter().eq(XEN) {
            let maker = cpuid(0)[1].to_le_bytes();
            let has_vmmcall = WITH_VMMCALL.contains(&&maker);
            SERVICE.store(if has_vmmcall { VMMCALL } else { VMCALL }, Ordering::Relaxed);
        }
        if hypervisor[0] != *HYPER_V {
            return;
        }
    }
}

/// Whether this is a domain of Xen.
pub fn is_domain() -> bool {
    SERVICE.load(Ordering::Relaxed) != 0
}

/// Makes operation `operation` of a hypercall whose other argument is a structure that Xen reads and may write.
///
/// # Safety
/// `argument` must be the structure of this operation, and what the operation does must leave the running code its memory.
pub unsafe fn operate<T>(number: Number, operation: u32, argument: &mut T) -> Result<i64, Refused> {
    assert!(is_domain(), "hypercalls are for domains of Xen");
    let service = SERVICE.load(Ordering::Relaxed);
    // SAFETY: the caller answers for the operation.
    let result =
        unsafe { call_hypervisor(service, number as u64, operation.into(), core::ptr::from_mut(argument).cast()) };
    match result.cast_signed() {
        result if result < 0 => Err(Refused { number, operation, result }),
        result => Ok(result),
    }
}
