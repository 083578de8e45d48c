//! MPI for Rust programs: slices of numbers instead of addresses, counts and types.
//!
//! Calls return when they are done, so that the borrow of a slice is as long as its use.

use crate::datatype::Datatype;
use crate::error::Error;
use crate::group::Communicator;
use crate::operation::{Operation, Predefined};
use crate::plan::Buffer;
use crate::receive::Source;
use crate::request::Status;
use crate::send::Mode;
pub use crate::sys::Element;
use crate::sys::{Base, Memory};
use crate::trace::mpi_call;
use crate::world::World;
use alloc::rc::Rc;
use alloc::vec::Vec;

/// A rank in a communicator.
pub struct Peer<'w> {
    world: &'w mut World,
    communicator: Rc<Communicator>,
}

fn buffer<T: Element>(memory: Memory, base: Base) -> Buffer {
    Buffer { base, count: memory.bytes() / size_of::<T>(), datatype: Rc::new(Datatype::of(T::BASIC)) }
}

fn input<T: Element>(slice: &[T]) -> Buffer {
    let memory = Memory::of_slice(slice);
    buffer::<T>(memory, memory.base())
}

fn output<T: Element>(slice: &mut [T]) -> Buffer {
    let memory = Memory::of_mut_slice(slice);
    buffer::<T>(memory, memory.base())
}

impl World {
    /// This rank among all ranks. Called once: each of two would count its collective calls for itself.
    pub fn typed(&mut self) -> Peer<'_> {
        let communicator = self.communicator_of_all();
        Peer { world: self, communicator }
    }
}

impl Peer<'_> {
    /// This rank, from 0 on.
    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.communicator.size()
    }

    /// Sends numbers to a rank, and returns when the slice may change. Fails if there is no such rank, or once the job is aborted.
    pub fn send<T: Element>(&mut self, to: usize, tag: i32, numbers: &[T]) -> Result<(), Error> {
        let communicator = &self.communicator;
        self.world.traced(const { mpi_call("MPI_Send") }, |world| {
            world.send(communicator, Some(to), tag, Memory::of_slice(numbers), Mode::Standard)
        })
    }

    /// Receives a message into a slice, which may be longer than the message; returns from which rank and how many bytes. A message that is longer than
    /// the slice is an error. No tag is any tag.
    pub fn receive<T: Element>(&mut self, from: Source, tag: Option<i32>, numbers: &mut [T]) -> Result<Status, Error> {
        let communicator = &self.communicator;
        let status = self.world.traced(const { mpi_call("MPI_Recv") }, |world| {
            world.receive(communicator, from, tag, Memory::of_mut_slice(numbers))
        })?;
        status.error.map_or(Ok(status), Err)
    }

    /// Waits until all ranks are here.
    pub fn barrier(&mut self) -> Result<(), Error> {
        let communicator = &self.communicator;
        self.world.traced(const { mpi_call("MPI_Barrier") }, |world| world.barrier(communicator))
    }

    /// Copies the root's numbers to all; slices of one length.
    pub fn broadcast<T: Element>(&mut self, root: usize, numbers: &mut [T]) -> Result<(), Error> {
        self.check(root)?;
        let (communicator, numbers) = (&self.communicator, output(numbers));
        self.world.traced(const { mpi_call("MPI_Bcast") }, |world| world.broadcast(communicator, &numbers, root))
    }

    /// Combines, at each place, the numbers of all ranks into those of all; slices of one length.
    pub fn allreduce<T: Element>(&mut self, operation: Predefined, numbers: &mut [T]) -> Result<(), Error> {
        let (communicator, numbers, operation) =
            (&self.communicator, output(numbers), Operation::Predefined(operation));
        self.world.traced(const { mpi_call("MPI_Allreduce") }, |world| {
            world.allreduce(communicator, None, &numbers, &operation)
        })
    }

    /// The numbers of all ranks, in the order of ranks; slices of one length. `into` is longer by the number of ranks.
    pub fn allgather<T: Element>(&mut self, own: &[T], into: &mut [T]) -> Result<(), Error> {
        if into.len() != own.len() * self.size() {
            return Err(Error::Count);
        }
        let all = output(into);
        let parts: Vec<Buffer> = (0..self.size()).map(|rank| all.part(rank * own.len(), own.len())).collect();
        let (communicator, own) = (&self.communicator, input(own));
        self.world.traced(const { mpi_call("MPI_Allgather") }, |world| {
            let id = world.start_allgather(communicator, Some(&own), &parts)?;
            world.wait_collective(id)
        })
    }

    /// A communicator of the ranks with the same color, in the order of this one, for `body`.
    pub fn split<R>(&mut self, color: u32, body: impl FnOnce(&mut Peer) -> R) -> Result<R, Error> {
        let communicator = &self.communicator;
        let part =
            self.world.traced(const { mpi_call("MPI_Comm_split") }, |world| world.split(communicator, Some(color), 0));
        let part = part?.ok_or(Error::Intern)?;
        Ok(body(&mut Peer { world: self.world, communicator: part }))
    }

    fn check(&self, root: usize) -> Result<(), Error> {
        if root < self.size() { Ok(()) } else { Err(Error::Root) }
    }
}
