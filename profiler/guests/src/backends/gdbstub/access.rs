//! What is read of a VM before its first sample.

use std::time::Duration;

use super::QemuVm;
use super::stub::Hold;
use crate::Guest;
use crate::arch::x86_64::CoreState;
use crate::backends::access::{View, VmAccess};
use crate::error::GuestError;
use crate::memory::{AddressSpace, LiveSpace};
use crate::sys::monotonic_ns;
use crate::systems::plan::CopyPlan;

/// The most that is read through the gdbstub while the VM is stopped: 2 KiB take some 50 us.
const HELD_BYTES_MAX: usize = 16 << 10;

impl QemuVm {
    /// Holds the VM for `look`, and takes note of the pause. `None` if the VM has ended.
    fn while_held<T>(
        &mut self,
        look: impl FnOnce(&mut QemuVm) -> Result<(Hold, T), GuestError>,
    ) -> Result<Option<T>, GuestError> {
        let start_ns = monotonic_ns();
        let (hold, seen) = look(self)?;
        self.stub.go()?;
        if hold == Hold::Runs {
            self.frozen_ns += monotonic_ns() - start_ns;
        }
        Ok((hold != Hold::Ended).then_some(seen))
    }
}

impl VmAccess for QemuVm {
    fn vcpus(&self) -> Vec<u32> {
        self.wanted.iter().map(|vcpu| *vcpu as u32).collect()
    }

    fn state(&mut self, vcpu: usize) -> Result<Option<CoreState>, GuestError> {
        let Some(index) = self.wanted.get(vcpu).copied() else { return Ok(None) };
        match self.first_state.take() {
            Some(state) if vcpu == 0 => Ok(Some(state)),
            _ => Ok(self.while_held(|vm| vm.hold(&[index]))?.and_then(|cores| cores.first().map(|(state, _)| *state))),
        }
    }

    /// RAM that is mapped is read while the VM runs. The rest is read through the gdbstub, in pieces for which the VM stops.
    fn read(&mut self, view: View, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        let memory = self.memory.as_ref();
        let mut done = match memory {
            Some(memory) => LiveSpace::new(memory, view.paging).read(address, into)?,
            None => 0,
        };
        let Some(index) = self.wanted.get(view.vcpu).copied() else { return Ok(done) };
        if memory.is_some_and(|memory| memory.is_whole()) {
            return Ok(done);
        }
        while done < into.len() {
            let end = into.len().min(done + HELD_BYTES_MAX);
            let (from, piece) = (address.wrapping_add(done as u64), &mut into[done..end]);
            let read = self.while_held(|vm| {
                let thread = &vm.threads[index];
                let (hold, _) = vm.stub.hold(&[format!("Hg{thread}")])?;
                Ok((hold, vm.stub.read_memory(thread, from, piece)?))
            })?;
            done += read.unwrap_or(0);
            if done < end {
                break;
            }
        }
        Ok(done)
    }

    fn set_plan(&mut self, plan: CopyPlan) -> Result<(), GuestError> {
        self.plan = plan;
        Ok(())
    }

    fn wait(&mut self, time: Duration) -> Result<(), GuestError> {
        self.rest(monotonic_ns() + time.as_nanos() as u64).map(drop)
    }

    fn give_up(&mut self) {
        // If this fails, the watchdog does what is left to do.
        let _ = self.detach();
    }
}
