//! The events of calls and messages, into the ring that the place of the rank provides (docs/formats/trace.md). While the group is off
//! an event is a load and a branch.

use crate::group::Communicator;
use crate::sys;
use crate::world::World;
use core::sync::atomic::{AtomicU32, Ordering};
pub use glass_formats::trace::mpi_call;
use glass_formats::trace::{Event, Group, Kind, MPI_ANY, MpiRole, Ring};

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
    fn is_on(&self) -> bool {
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
    fn write(&self, kind: Kind, detail: u16, a: u32, b: u64, c: u64) {
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

impl World {
    /// Records that the program calls `call`, a number of [`mpi_call`]; whether it did. Then [`World::call_returns`] follows.
    #[inline(always)]
    pub fn call_starts(&self, call: u16) -> bool {
        let is_on = self.trace.is_on();
        if is_on {
            self.trace.write(Kind::MpiCall, call, self.rank as u32, 0, 0);
        }
        is_on
    }

    /// Records that the call returns.
    pub fn call_returns(&self, call: u16) {
        self.trace.write(Kind::MpiReturn, call, self.rank as u32, 0, 0);
    }

    /// Does a call of the typed interface between both events.
    pub(crate) fn traced<R>(&mut self, call: u16, work: impl FnOnce(&mut World) -> R) -> R {
        let is_on = self.call_starts(call);
        let result = work(self);
        if is_on {
            self.call_returns(call);
        }
        result
    }

    #[inline(always)]
    pub(crate) fn about_message(
        &self,
        role: MpiRole,
        communicator: &Communicator,
        other: Other,
        tag: Option<i32>,
        bytes: usize,
    ) {
        if self.trace.is_on() {
            let rank = match other {
                Other::Rank(rank) => rank as u32 + 1,
                Other::Any => MPI_ANY,
                Other::None => 0,
            };
            // No tag of a message is negative.
            let tag = tag.unwrap_or(-1) as u32;
            let b = u64::from(communicator.number()) << 32 | u64::from(tag);
            self.trace.write(Kind::MpiAbout, role as u16, rank, b, bytes as u64);
        }
    }

    /// A collective operation, of which the communicator had `number` before.
    #[inline(always)]
    pub(crate) fn about_collective(
        &self,
        role: MpiRole,
        communicator: &Communicator,
        root: Option<usize>,
        number: u32,
        bytes: usize,
    ) {
        if self.trace.is_on() {
            let member = |rank| communicator.group().member(rank).unwrap_or(0);
            let root = root.map_or(0, |root| member(root) as u32 + 1);
            let lowest = communicator.group().members().iter().min().copied().unwrap_or(0);
            let b = u64::from(communicator.number()) << 32 | u64::from(number);
            let c = bytes as u64 & ((1 << 40) - 1) | u64::from(lowest) << 40 | (communicator.size() as u64) << 48;
            self.trace.write(Kind::MpiAbout, role as u16, root, b, c);
        }
    }

    /// The message of that slot of the ring from `source` is where it belongs.
    #[inline(always)]
    pub(crate) fn received(&self, (source, position): (u32, u32), bytes: u64) {
        if self.trace.is_on() {
            self.trace.write(Kind::MpiReceived, 0, source, position.into(), bytes);
        }
    }
}
