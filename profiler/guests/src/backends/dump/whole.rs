//! A VM that is stopped as a whole, for as long as a copy of it takes.

use std::time::Duration;

use crate::arch::x86_64::all::AllRegisters;
use crate::error::GuestError;
use crate::memory::Ram;

/// The registers of a stopped VM.
#[derive(Debug, Default)]
pub(crate) struct Stopped {
    /// Of each vCPU by its number, unless they are not available.
    pub(crate) vcpus: Vec<(u32, Option<AllRegisters>)>,
    /// Its owner has paused it already.
    pub(crate) was_paused: bool,
    /// Each vCPU has stopped.
    pub(crate) is_complete: bool,
}

/// What is done with the RAM and the registers of a vCPU that stands.
pub(crate) type Held<'a> = dyn FnMut(&Ram, &AllRegisters) + 'a;

/// What a backend does for a dump.
pub(crate) trait WholeVm {
    /// Finds its RAM, while it runs. Called once, first.
    fn prepare(&mut self) -> Result<(), GuestError>;

    /// Its RAM, if that can be read.
    fn ram(&self) -> Option<&Ram>;

    /// What the user should know, one sentence each.
    fn warnings(&mut self) -> Vec<String>;

    /// Stops all vCPUs and reads their registers. They stand until [`WholeVm::resume`], also if this fails.
    fn stop(&mut self) -> Result<Stopped, GuestError>;

    /// Lets them run.
    fn resume(&mut self) -> Result<(), GuestError>;

    /// The registers of each vCPU, each or all of which are stopped for a moment: the longest is returned. `held` is called with them
    /// while the vCPU stands, if there is RAM.
    fn registers(&mut self, held: &mut Held) -> Result<(Stopped, Duration), GuestError>;

    /// Lets some time pass, in which a VM that runs is looked after.
    fn pass(&mut self, time: Duration) -> Result<(), GuestError>;

    /// Detaches.
    fn leave(&mut self) -> Result<(), GuestError>;
}
