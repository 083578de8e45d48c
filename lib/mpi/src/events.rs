//! The events of a rank's calls and messages (docs/formats/trace.md).

use crate::group::Communicator;
use crate::trace::Other;
use crate::world::World;
use glass_formats::trace::{Kind, MPI_ANY, MpiRole};

impl World {
    /// Records that the program calls `call`, a number of [`mpi_call`](crate::trace::mpi_call); whether it did. Then [`World::call_returns`] follows.
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
