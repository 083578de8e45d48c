//! Where the events of calls and messages go: the ring that the place of the rank provides (docs/formats/trace.md). While the group is off
//! an event is a load and a branch.

use crate::sys;
use core::sync::atomic::{AtomicU32, Ordering};
pub use glass_formats::trace::mpi_call;
use glass_formats::trace::{Event, Group, Kind, Ring};

/// Where a rank's events go.
#[derive(Debug, Clone, Copy)]
pub struct Trace {
    groups: &'static AtomicU32,
    ring: Option<Ring<'static>>,
}

static NO_GROUPS: AtomicU32 = AtomicU32::new(0);

impl Trace {
    /// A rank that cannot be traced.
    pub const NONE: Trace = Trace { groups: &NO_GROUPS, ring: None };

    /// Events go to `ring`, which only this rank's core or thread writes, while [`Group::Mpi`] is on in `groups`.
    pub fn new(groups: &'static AtomicU32, ring: Ring<'static>) -> Trace {
        Trace { groups, ring: Some(ring) }
    }

    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.groups.load(Ordering::Relaxed) & Group::Mpi as u32 != 0
    }

    /// A message leaves in the slot at `position` of the ring to `peer`.
    #[inline(always)]
    pub(crate) fn sent(&self, peer: usize, position: u32, bytes: usize, is_offered: bool) {
        if self.is_on() {
            self.write(Kind::MpiSent, is_offered.into(), peer as u32, position.into(), bytes as u64);
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn write(&self, kind: Kind, detail: u16, a: u32, b: u64, c: u64) {
        if let Some(ring) = &self.ring {
            ring.push(Event { ticks: sys::ticks(), kind: kind as u16, detail, a, b, c }.to_words());
        }
    }
}

/// The other rank of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Other {
    /// A rank of the job.
    Rank(usize),
    /// Any rank of the communicator.
    Any,
    /// No rank: nothing is sent or received.
    None,
}
