//! A VM in QEMU that is stopped as a whole, for a dump.

use std::time::Duration;

use super::client::protocol;
use super::stub::Hold;
use super::{QemuVm, REPEATS_MAX};
use crate::Guest;
use crate::backends::access::VmAccess;
use crate::backends::dump::whole::{Held, Stopped, WholeVm};
use crate::error::GuestError;
use crate::memory::Ram;
use crate::sys::monotonic_ns;

impl QemuVm {
    /// The registers of all vCPUs of a VM that is held from then on.
    fn stop_whole(&mut self) -> Result<Stopped, GuestError> {
        let wanted = self.wanted.clone();
        let (hold, cores) = self.hold_digits(&wanted)?;
        if hold == Hold::Ended {
            return Err(protocol("ended the connection"));
        }
        let numbered = wanted.iter().zip(&cores);
        let vcpus = numbered.map(|(vcpu, (digits, _))| (*vcpu as u32, self.layout.all(digits))).collect();
        Ok(Stopped { vcpus, was_paused: hold == Hold::Paused, is_complete: true })
    }
}

impl WholeVm for QemuVm {
    fn prepare(&mut self) -> Result<(), GuestError> {
        if self.memory.as_ref().is_some_and(|memory| !memory.is_whole()) {
            self.warnings.push("where QEMU has some of the VM's RAM is not known, so the dump lacks it".to_owned());
        }
        Ok(())
    }

    fn ram(&self) -> Option<&Ram> {
        self.memory.as_ref()
    }

    fn warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    fn stop(&mut self) -> Result<Stopped, GuestError> {
        let mut stopped = self.stop_whole()?;
        for _ in 0..REPEATS_MAX {
            if !self.stub.is_torn() {
                break;
            }
            self.stub.go()?;
            stopped = self.stop_whole()?;
        }
        Ok(stopped)
    }

    fn resume(&mut self) -> Result<(), GuestError> {
        self.stub.go()
    }

    fn registers(&mut self, held: &mut Held) -> Result<(Stopped, Duration), GuestError> {
        let start_ns = monotonic_ns();
        let stopped = self.stop()?;
        if let Some(ram) = &self.memory {
            stopped.vcpus.iter().filter_map(|(_, all)| all.as_ref()).for_each(|all| held(ram, all));
        }
        self.stub.go()?;
        let stood_ns = if stopped.was_paused { 0 } else { monotonic_ns() - start_ns };
        Ok((stopped, Duration::from_nanos(stood_ns)))
    }

    fn pass(&mut self, time: Duration) -> Result<(), GuestError> {
        self.wait(time)
    }

    fn leave(&mut self) -> Result<(), GuestError> {
        self.detach()
    }
}
