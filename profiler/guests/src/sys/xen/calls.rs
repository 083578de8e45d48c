//! Hypercalls that look at one domain, in a buffer that the kernel keeps in place for Xen.
//!
//! The buffer is shared with the [`Guardian`](super::Guardian), which finds out there whether the domain is paused by us:
//! Xen itself writes the result of a call as soon as it is done. So there is no moment at which the domain is paused and
//! the buffer does not have it.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 64 x 24 | `multicall_entry` of the pause, then of up to 23 calls |
//! | 2048 | 64 | `multicall_entry` of the call that ends the pause |
//! | 4096 | 256 x 25 | `xen_domctl` of each of them, in the same order |
//! | 12288 | 8192 x 8 | contexts of vCPUs |

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::super::{Map, check};
use super::{PAGE_BYTES, request};

const HYPERCALL: libc::Ioctl = request(0, size_of::<Hypercall>() as u64);

/// Numbers of hypercalls (`xen/include/public/xen.h`).
const MULTICALL: u64 = 13;
const VERSION: u64 = 17;
const DOMCTL: u64 = 36;

/// `struct privcmd_hypercall`.
#[repr(C)]
struct Hypercall {
    operation: u64,
    arguments: [u64; 5],
}

const ENTRIES: usize = 0;
const ENTRY_BYTES: usize = 64;
/// `result` in a `multicall_entry`, behind `op`; arguments follow it.
const RESULT: usize = 8;
const RESUME_ENTRY: usize = 2048;
const DOMCTLS: usize = PAGE_BYTES;
const DOMCTL_BYTES: usize = 256;
/// `u` in a `xen_domctl`.
const DOMCTL_UNION: usize = 16;
/// What Xen copies of a `xen_domctl`.
const DOMCTL_USED_BYTES: usize = 144;
const CONTEXTS: usize = 3 * PAGE_BYTES;
const CONTEXT_BYTES: usize = 2 * PAGE_BYTES;
const BUFFER_BYTES: usize = CONTEXTS + Hypercalls::CONTEXTS_MAX * CONTEXT_BYTES;
/// The entry of the pause; that which ends it has a place of its own.
const PAUSE: usize = 0;
const RESUME: usize = 1 + Hypercalls::CALLS_MAX;
/// What no call returns: it has not been made.
const NOT_MADE: u64 = 1;

/// The type of record with the registers of a vCPU (`HVM_SAVE_CODE(CPU)`).
const HVM_CPU: u64 = 2;

/// A call about a domain; contexts are stored in a place of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// `XEN_DOMCTL_getdomaininfo`.
    DomainInfo,
    /// `XEN_DOMCTL_getvcpuinfo`.
    VcpuInfo {
        /// Its number.
        vcpu: u32,
    },
    /// `XEN_DOMCTL_getvcpucontext`: `vcpu_guest_context`.
    Context {
        /// Its number.
        vcpu: u32,
        /// Where, below [`Hypercalls::CONTEXTS_MAX`].
        place: usize,
    },
    /// `XEN_DOMCTL_gethvmcontext_partial`: `hvm_hw_cpu`.
    HvmContext {
        /// Its number.
        vcpu: u32,
        /// Where, below [`Hypercalls::CONTEXTS_MAX`].
        place: usize,
    },
    /// `XEN_DOMCTL_get_address_size`.
    AddressSize,
    /// `XEN_DOMCTL_pausedomain`.
    Pause,
    /// `XEN_DOMCTL_unpausedomain`.
    Unpause,
}

/// The way to hypercalls about one domain.
#[derive(Debug)]
pub(crate) struct Hypercalls {
    device: File,
    buffer: Map,
    domain: u16,
    /// Of the interface of domctls.
    version: u32,
}

impl Hypercalls {
    /// The most calls at once.
    pub(crate) const CALLS_MAX: usize = 23;
    /// The most contexts at once.
    pub(crate) const CONTEXTS_MAX: usize = 8;

    /// Opens the devices of a dom0. Makes no hypercall.
    pub(crate) fn open(privcmd: File, hypercall: &File, domain: u16) -> io::Result<Hypercalls> {
        let buffer = Map::new(hypercall.as_fd(), BUFFER_BYTES, true)?;
        let calls = Hypercalls { device: privcmd, buffer, domain, version: 0 };
        calls.buffer.store(ENTRIES + RESULT, NOT_MADE);
        calls.buffer.store(RESUME_ENTRY + RESULT, NOT_MADE);
        Ok(calls)
    }

    /// The version of domctls that calls name from now on.
    pub(crate) fn set_version(&mut self, version: u32) {
        self.version = version;
    }

    /// Has the calls be about another domain. Not while this one is paused.
    pub(crate) fn set_domain(&mut self, domain: u16) {
        self.domain = domain;
    }

    /// `/dev/xen/privcmd`.
    pub(crate) fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// A hypercall that does nothing: the floor that others are measured against. Returns Xen's version.
    pub(crate) fn xen_version(&self) -> io::Result<u64> {
        // SAFETY: it has no argument that is an address.
        unsafe { hypercall(self.device(), VERSION, [0; 5]) }
    }

    /// Makes calls in one hypercall; their results and answers can be read after it. At most [`CALLS_MAX`](Hypercalls::CALLS_MAX).
    pub(crate) fn make(&mut self, calls: &[Call]) -> io::Result<()> {
        self.prepare(calls);
        self.multicall(ENTRIES + ENTRY_BYTES, calls.len())
    }

    /// The same after a pause of the domain, in the same hypercall. Fails if it is not paused.
    ///
    /// Pauses are counted by Xen, so one that others have paused stays so when ours ends. Where it fails otherwise
    /// [`resume`](Hypercalls::resume) is still due.
    pub(crate) fn pause_and_make(&mut self, calls: &[Call]) -> io::Result<()> {
        self.prepare_pause(calls);
        self.make_prepared(calls.len())
    }

    /// Writes what [`pause_and_make`](Hypercalls::pause_and_make) of these calls hands to Xen, while the domain still runs.
    pub(crate) fn prepare_pause(&mut self, calls: &[Call]) {
        self.prepare(calls);
        // In this order: to a guardian that looks in between there is no pause.
        self.compose(PAUSE, ENTRIES, Call::Pause);
        self.compose(RESUME, RESUME_ENTRY, Call::Unpause);
    }

    /// Makes the pause and the so many calls that [`prepare_pause`](Hypercalls::prepare_pause) has written.
    pub(crate) fn make_prepared(&mut self, count: usize) -> io::Result<()> {
        let made = self.multicall(ENTRIES, 1 + count);
        match self.buffer.load(ENTRIES + RESULT) as i64 {
            0 => Ok(()),
            error @ ..0 => Err(io::Error::from_raw_os_error((-error) as i32)),
            _ => Err(made.err().unwrap_or_else(|| io::Error::other("Xen did not make the call"))),
        }
    }

    /// Whether the domain is paused by us.
    pub(crate) fn is_holding(&self) -> bool {
        is_holding(&self.buffer)
    }

    /// Ends the pause, if there is one.
    pub(crate) fn resume(&mut self) -> io::Result<()> {
        if !self.is_holding() {
            return Ok(());
        }
        self.multicall(RESUME_ENTRY, 1)?;
        match self.buffer.load(RESUME_ENTRY + RESULT) as i64 {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.unsigned_abs() as i32)),
        }
    }

    /// Makes one call by a hypercall of its own.
    pub(crate) fn make_one(&mut self, call: Call) -> io::Result<()> {
        self.prepare(&[call]);
        let address = self.buffer.address() + domctl(1) as u64;
        // SAFETY: the address is that of a `xen_domctl` in the buffer, whose own addresses lie in it too.
        unsafe { hypercall(self.device(), DOMCTL, [address, 0, 0, 0, 0]) }.map(drop)
    }

    /// What the call returned that was the one of this number, from 0 on, in the last [`make`](Hypercalls::make).
    #[inline]
    pub(crate) fn result(&self, index: usize) -> io::Result<()> {
        match self.buffer.load(ENTRIES + (1 + index) * ENTRY_BYTES + RESULT) as i64 {
            0.. => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.unsigned_abs() as i32)),
        }
    }

    /// What such a call answered, from the start of the structure that belongs to it.
    pub(crate) fn answer<const N: usize>(&self, index: usize) -> [u8; N] {
        assert!(DOMCTL_UNION + N <= DOMCTL_USED_BYTES, "an answer of {N} bytes");
        let mut bytes = [0; N];
        self.buffer.read((domctl(1 + index) + DOMCTL_UNION) as u64, &mut bytes);
        bytes
    }

    /// The 8 bytes at an offset, a multiple of 8, of the context in a place.
    pub(crate) fn context_word(&self, place: usize, offset: usize) -> u64 {
        assert!(place < Hypercalls::CONTEXTS_MAX && offset < CONTEXT_BYTES, "{offset} of context {place}");
        self.buffer.load(CONTEXTS + place * CONTEXT_BYTES + offset)
    }

    fn prepare(&mut self, calls: &[Call]) {
        assert!(calls.len() <= Hypercalls::CALLS_MAX, "{} calls", calls.len());
        for (index, call) in calls.iter().enumerate() {
            self.compose(1 + index, ENTRIES + (1 + index) * ENTRY_BYTES, *call);
        }
    }

    /// Writes a `multicall_entry` and its `xen_domctl`. Every address in them lies in the buffer.
    fn compose(&self, index: usize, entry: usize, call: Call) {
        let context = |place: usize| {
            assert!(place < Hypercalls::CONTEXTS_MAX, "context {place}");
            self.buffer.address() + (CONTEXTS + place * CONTEXT_BYTES) as u64
        };
        // The commands' numbers are those of `xen/include/public/domctl.h`.
        let (command, words) = match call {
            Call::Pause => (3, [0; 4]),
            Call::Unpause => (4, [0; 4]),
            Call::DomainInfo => (5, [0; 4]),
            Call::Context { vcpu, place } => (13, [u64::from(vcpu), context(place), 0, 0]),
            Call::VcpuInfo { vcpu } => (14, [u64::from(vcpu), 0, 0, 0]),
            Call::AddressSize => (36, [0; 4]),
            Call::HvmContext { vcpu, place } => {
                (55, [HVM_CPU | u64::from(vcpu) << 32, CONTEXT_BYTES as u64, context(place), 0])
            }
        };
        let at = domctl(index);
        self.buffer.store(at, u64::from(self.version) << 32 | command);
        self.buffer.store(at + 8, u64::from(self.domain));
        for word in (DOMCTL_UNION..DOMCTL_USED_BYTES).step_by(8) {
            self.buffer.store(at + word, words.get((word - DOMCTL_UNION) / 8).copied().unwrap_or(0));
        }
        self.buffer.store(entry, DOMCTL);
        self.buffer.store(entry + RESULT, NOT_MADE);
        self.buffer.store(entry + RESULT + 8, self.buffer.address() + at as u64);
        for argument in 1..6 {
            self.buffer.store(entry + RESULT + 8 + argument * 8, 0);
        }
    }

    fn multicall(&self, entries: usize, count: usize) -> io::Result<()> {
        let address = self.buffer.address() + entries as u64;
        // SAFETY: the address is that of `count` entries in the buffer that `compose` has written.
        unsafe { hypercall(self.device(), MULTICALL, [address, count as u64, 0, 0, 0]) }.map(drop)
    }

    /// What a guardian needs: the device's number, where the entry's results are, and what ends a pause.
    pub(super) fn for_guardian(&self) -> ForGuardian<'_> {
        ForGuardian { device: self.device.as_raw_fd(), buffer: &self.buffer }
    }
}

/// The part of [`Hypercalls`] that a forked process may use.
#[derive(Clone, Copy)]
pub(super) struct ForGuardian<'a> {
    pub(super) device: i32,
    buffer: &'a Map,
}

impl ForGuardian<'_> {
    /// Ends the pause, if there is one. Makes one system call, and allocates nothing.
    pub(super) fn resume(&self) {
        if !is_holding(self.buffer) {
            return;
        }
        let address = self.buffer.address() + RESUME_ENTRY as u64;
        let call = Hypercall { operation: MULTICALL, arguments: [address, 1, 0, 0, 0] };
        // SAFETY: the entry in the buffer was written before the pause; fork has copied the mapping, which is shared.
        unsafe { libc::ioctl(self.device, HYPERCALL, &raw const call) };
    }
}

fn is_holding(buffer: &Map) -> bool {
    // The pause first: it is taken back before the other is.
    buffer.load(ENTRIES + RESULT) == 0 && buffer.load(RESUME_ENTRY + RESULT) == NOT_MADE
}

/// Where the `xen_domctl` of an entry is.
const fn domctl(index: usize) -> usize {
    DOMCTLS + index * DOMCTL_BYTES
}

/// Makes a hypercall.
///
/// # Safety
///
/// Where arguments are addresses, they have to be those of what the hypercall expects there, in a buffer of hypercalls.
unsafe fn hypercall(device: BorrowedFd<'_>, operation: u64, arguments: [u64; 5]) -> io::Result<u64> {
    let call = Hypercall { operation, arguments };
    // SAFETY: the structure is the one that the request wants; its arguments are the caller's duty.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), HYPERCALL, &raw const call) };
    Ok(check(libc::c_long::from(result))? as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    fn memory() -> Hypercalls {
        // SAFETY: a name that ends with a zero; the descriptor is new.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"buffer".as_ptr(), 0)) };
        file.set_len(BUFFER_BYTES as u64).unwrap();
        let mut calls = Hypercalls::open(file.try_clone().unwrap(), &file, 7).unwrap();
        calls.set_version(0x15);
        calls
    }

    fn words(calls: &Hypercalls, at: usize, count: usize) -> Vec<u64> {
        (0..count).map(|index| calls.buffer.load(at + index * 8)).collect()
    }

    #[test]
    fn structures_are_as_xen_has_them() {
        let mut calls = memory();
        calls.prepare(&[Call::DomainInfo, Call::Context { vcpu: 3, place: 1 }, Call::HvmContext { vcpu: 2, place: 7 }]);
        let start = calls.buffer.address();
        assert_eq!(words(&calls, 64, 8), [36, 1, start + 4096 + 256, 0, 0, 0, 0, 0]);
        assert_eq!(words(&calls, 4096 + 256, 4), [0x15 << 32 | 5, 7, 0, 0]);
        assert_eq!(words(&calls, 4096 + 512, 4), [0x15 << 32 | 13, 7, 3, start + 12288 + 8192]);
        let last = words(&calls, 4096 + 768, 5);
        assert_eq!(last, [0x15 << 32 | 55, 7, 2 << 32 | 2, 8192, start + 12288 + 7 * 8192]);
        assert!(domctl(RESUME) + DOMCTL_BYTES <= CONTEXTS && ENTRY_BYTES * RESUME <= RESUME_ENTRY);
    }

    /// What is not a device of Xen refuses, and nothing counts as paused.
    #[test]
    fn a_pause_counts_from_its_result_on_until_that_of_its_end() {
        let mut calls = memory();
        assert!(calls.pause_and_make(&[]).is_err() && !calls.is_holding());
        assert!(calls.make_one(Call::DomainInfo).is_err() && calls.xen_version().is_err());
        assert_eq!(calls.resume().ok(), Some(()), "there is nothing to end");
        calls.buffer.store(RESULT, 0);
        assert!(calls.is_holding() && calls.resume().is_err());
        calls.buffer.store(RESUME_ENTRY + RESULT, 0);
        assert!(!calls.is_holding());
        // The next one: no step between looks like the last pause.
        calls.buffer.store(RESULT, NOT_MADE);
        calls.buffer.store(RESUME_ENTRY + RESULT, NOT_MADE);
        assert!(!calls.is_holding());
        assert!(calls.result(0).is_ok());
        calls.buffer.store(ENTRY_BYTES + RESULT, (-3i64) as u64);
        assert_eq!(calls.result(0).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
