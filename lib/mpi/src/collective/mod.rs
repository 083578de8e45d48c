//! Collective operations. Which algorithm is taken for which sizes, and why: decision 14 (docs/decisions/0014-mpi.md).

mod barrier;
mod broadcast;
mod direct;
mod exchange;
mod gather;
mod reduce;
mod scan;

pub use exchange::Parts;

use crate::error::Error;
use crate::request::Status;
use crate::slab::Id;
use crate::world::World;

impl World {
    /// Waits for a collective operation; its error is that of the call.
    pub(crate) fn wait_collective(&mut self, id: Id) -> Result<(), Error> {
        let Status { error, .. } = self.wait(id)?;
        error.map_or(Ok(()), Err)
    }
}
