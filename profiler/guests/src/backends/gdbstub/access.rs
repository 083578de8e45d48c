//! What is read of a VM before its second sample.

use std::time::Duration;

use super::QemuVm;
use super::connected::Connected;
use super::stub::Hold;
use crate::Guest;
use crate::arch::CoreState;
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
        look: impl FnOnce(&mut Connected) -> Result<(Hold, T), GuestError>,
    ) -> Result<Option<T>, GuestError> {
        let connected = self.connected()?;
        let start_ns = monotonic_ns();
        let (hold, seen) = look(connected)?;
        connected.stub.go()?;
        if hold == Hold::Runs {
            self.frozen_ns += monotonic_ns() - start_ns;
        }
        Ok((hold != Hold::Ended).then_some(seen))
    }

    /// Lets time pass, and passes on the signals of the vCPUs' threads.
    pub(super) fn pass_until(&mut self, until_ns: u64) -> Result<(), GuestError> {
        match &mut self.connected {
            Some(connected) => connected.stub.line().rest(until_ns),
            None => {
                std::thread::sleep(Duration::from_nanos(until_ns.saturating_sub(monotonic_ns())));
                Ok(())
            }
        }
    }
}

impl VmAccess for QemuVm {
    /// None before the first sample.
    fn vcpus(&self) -> Vec<u32> {
        let wanted = self.connected.iter().flat_map(|connected| &connected.wanted);
        wanted.map(|vcpu| *vcpu as u32).collect()
    }

    fn begin(&mut self) -> Result<Option<u64>, GuestError> {
        self.connected()?;
        Ok(self.started_ns)
    }

    fn state(&mut self, vcpu: usize) -> Result<Option<CoreState>, GuestError> {
        let Some(index) = self.connected()?.wanted.get(vcpu).copied() else { return Ok(None) };
        match self.states.get_mut(vcpu).and_then(Option::take) {
            Some(state) => Ok(Some(state)),
            None => {
                let cores = self.while_held(|connected| connected.hold(&[index]))?;
                Ok(cores.and_then(|cores| cores.first().map(|(state, _)| *state)))
            }
        }
    }

    /// RAM that is mapped is read while the VM runs. The rest is read through the gdbstub, in pieces for which the VM stops.
    fn read(&mut self, view: View, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        let connected = self.connected()?;
        let memory = connected.memory.as_ref();
        let mut done = match memory {
            Some(memory) => LiveSpace::new(memory, view.paging).read(address, into)?,
            None => 0,
        };
        let Some(index) = connected.wanted.get(view.vcpu).copied() else { return Ok(done) };
        if memory.is_some_and(|memory| memory.is_whole()) {
            return Ok(done);
        }
        while done < into.len() {
            let end = into.len().min(done + HELD_BYTES_MAX);
            let (from, piece) = (address.wrapping_add(done as u64), &mut into[done..end]);
            let read = self.while_held(|connected| {
                let thread = &connected.threads[index];
                let (hold, _) = connected.stub.hold(&[format!("Hg{thread}")])?;
                Ok((hold, connected.stub.read_memory(thread, from, piece)?))
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
        self.pass_until(monotonic_ns() + time.as_nanos() as u64)
    }

    fn give_up(&mut self) {
        // If this fails, the watchdog does what is left to do.
        let _ = self.detach();
    }
}
