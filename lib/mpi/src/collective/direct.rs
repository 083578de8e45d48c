//! Short collective operations without a plan: their messages leave at once and are awaited one by one.

use super::gather::shorter;
use crate::error::Error;
use crate::group::Communicator;
use crate::operation::Fold;
use crate::plan::Buffer;
use crate::request::Status;
use crate::request::{Kind, Request};
use crate::send::{EAGER_BYTES_MAX, Mode};
use crate::sys::{Memory, Staging};
use crate::world::{Filter, World};
use alloc::rc::Rc;
use glass_formats::trace::MpiRole;

/// A rank's part in one collective call.
struct Call<'a> {
    communicator: &'a Communicator,
    context: u32,
    tag: i32,
}

impl World {
    fn direct_send(&mut self, call: &Call, to: usize, memory: Memory) -> Result<(), Error> {
        let peer = call.communicator.group().member(to).ok_or(Error::Intern)?;
        if self.try_send_short(peer, call.context, call.tag, memory) {
            return Ok(());
        }
        let (context, tag) = (call.context, call.tag);
        let id = self.start_send_in(call.communicator, context, peer, tag, memory, Mode::Standard, None);
        self.wait(id).map(drop)
    }

    /// Receives exactly `memory`, or combines it with what is there.
    fn direct_receive(&mut self, call: &Call, from: usize, memory: Memory, fold: Option<Fold>) -> Result<(), Error> {
        let peer = call.communicator.group().member(from).ok_or(Error::Intern)?;
        let filter = Filter { context: call.context, source: Some(peer), tag: Some(call.tag) };
        let short = self.try_receive_short(&filter, memory.bytes(), |bytes| match fold {
            Some(fold) => fold(bytes, memory.part(0, bytes.len()).as_mut_slice()),
            None => {
                memory.write(0, bytes);
            }
        });
        if short.is_some() {
            return Ok(());
        }
        let mut request = Request::new(Kind::Receive, memory, Rc::clone(call.communicator.group()));
        request.fold = fold;
        let id = self.requests.insert(request);
        self.post(id.index, filter);
        let Status { error, .. } = self.wait(id)?;
        error.map_or(Ok(()), Err)
    }

    /// Broadcast along a binomial tree.
    pub(super) fn direct_broadcast(
        &mut self,
        communicator: &Communicator,
        memory: Memory,
        root: usize,
    ) -> Result<(), Error> {
        let (context, tag) = communicator.next_collective();
        self.about_collective(MpiRole::Collective, communicator, Some(root), tag as u32, memory.bytes());
        self.direct_broadcast_in(&Call { communicator, context, tag }, memory, root)
    }

    fn direct_broadcast_in(&mut self, call: &Call, memory: Memory, root: usize) -> Result<(), Error> {
        let (size, rank) = (call.communicator.size(), call.communicator.rank());
        let place = (rank + size - root) % size;
        let mut distance = 1;
        while distance < size && place & distance == 0 {
            distance *= 2;
        }
        if place != 0 {
            self.direct_receive(call, (rank + size - distance) % size, memory, None)?;
        }
        while distance > 1 {
            distance /= 2;
            if place + distance < size {
                self.direct_send(call, (rank + distance) % size, memory)?;
            }
        }
        Ok(())
    }

    /// Reduction along a binomial tree, of an operation that commutes. `into` is the result at the root, elsewhere nothing.
    pub(super) fn direct_reduce(
        &mut self,
        communicator: &Communicator,
        from: Memory,
        into: Option<Memory>,
        fold: Fold,
        root: usize,
    ) -> Result<(), Error> {
        let (context, tag) = communicator.next_collective();
        self.about_collective(MpiRole::Collective, communicator, Some(root), tag as u32, from.bytes());
        self.direct_reduce_in(&Call { communicator, context, tag }, from, into, fold, root)
    }

    fn direct_reduce_in(
        &mut self,
        call: &Call,
        from: Memory,
        into: Option<Memory>,
        fold: Fold,
        root: usize,
    ) -> Result<(), Error> {
        let (size, rank) = (call.communicator.size(), call.communicator.rank());
        let place = (rank + size - root) % size;
        if place & 1 == 1 {
            return self.direct_send(call, (rank + size - 1) % size, from);
        }
        let staging = into.is_none().then(|| Staging::new(from.bytes()));
        let result = into.or(staging.as_ref().map(Staging::memory)).ok_or(Error::Intern)?;
        copy(from, result);
        let mut distance = 1;
        while distance < size {
            if place & distance != 0 {
                return self.direct_send(call, (rank + size - distance) % size, result);
            }
            if place + distance < size {
                self.direct_receive(call, (rank + distance) % size, result, Some(fold))?;
            }
            distance *= 2;
        }
        Ok(())
    }

    /// Sends `from(i)` to rank `i` and receives its part of `into`, the part of rank 0, which those of the other ranks follow. False if the
    /// parts are long or have gaps: then nothing was sent.
    fn direct_exchange(
        &mut self,
        communicator: &Communicator,
        from: impl Fn(usize) -> Option<Memory>,
        into: &Buffer,
    ) -> Result<bool, Error> {
        let (size, rank) = (communicator.size(), communicator.rank());
        let place = |of: usize| into.part(of * into.count, into.count).region();
        let (Some(own), Some(own_place)) = (from(rank), place(rank)) else { return Ok(false) };
        if own.bytes().max(own_place.bytes()) > EAGER_BYTES_MAX {
            return Ok(false);
        }
        let (context, tag) = communicator.next_collective();
        self.about_collective(MpiRole::Collective, communicator, None, tag as u32, own_place.bytes());
        let call = Call { communicator, context, tag };
        let own = shorter(own, own_place)?;
        for distance in 1..size {
            let to = (rank + distance) % size;
            self.direct_send(&call, to, from(to).ok_or(Error::Intern)?)?;
        }
        copy(own, own_place);
        for distance in 1..size {
            let other = (rank + size - distance) % size;
            self.direct_receive(&call, other, place(other).ok_or(Error::Intern)?, None)?;
        }
        Ok(true)
    }

    /// An alltoall of equal parts, if they are short and without gaps; false if they are not. `from` and `into` are the parts of rank 0,
    /// which those of the other ranks follow.
    pub fn short_alltoall(&mut self, communicator: &Communicator, from: &Buffer, into: &Buffer) -> Result<bool, Error> {
        self.direct_exchange(communicator, |rank| from.part(rank * from.count, from.count).region(), into)
    }

    /// An allgather of equal parts, if they are short and without gaps; false if they are not. `into` is the part of rank 0, which those
    /// of the other ranks follow.
    pub fn short_allgather(&mut self, communicator: &Communicator, own: &Buffer, into: &Buffer) -> Result<bool, Error> {
        self.direct_exchange(communicator, |_| own.region(), into)
    }

    /// Reduction to all ranks: each exchanges with the one 2^k away; of a number of ranks that is no power of two, to one and back.
    pub(super) fn direct_allreduce(
        &mut self,
        communicator: &Communicator,
        from: Memory,
        into: Memory,
        fold: Fold,
    ) -> Result<(), Error> {
        let (context, tag) = communicator.next_collective();
        self.about_collective(MpiRole::Collective, communicator, None, tag as u32, from.bytes());
        let call = Call { communicator, context, tag };
        let (size, rank) = (communicator.size(), communicator.rank());
        if !size.is_power_of_two() {
            self.direct_reduce_in(&call, from, Some(into), fold, 0)?;
            return self.direct_broadcast_in(&call, into, 0);
        }
        let mut sent = from;
        let mut distance = 1;
        while distance < size {
            self.direct_send(&call, rank ^ distance, sent)?;
            if distance == 1 {
                copy(from, into);
                sent = into;
            }
            self.direct_receive(&call, rank ^ distance, into, Some(fold))?;
            distance *= 2;
        }
        if size == 1 {
            copy(from, into);
        }
        Ok(())
    }
}

fn copy(from: Memory, to: Memory) {
    if from.address() != to.address() {
        to.copy_from(&from);
    }
}
