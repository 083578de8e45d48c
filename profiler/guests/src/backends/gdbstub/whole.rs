//! A VM in QEMU that is stopped as a whole, for a dump.

use std::time::Duration;

use super::QemuVm;
use super::client::protocol;
use super::connected::Connected;
use super::stub::Hold;
use crate::Guest;
use crate::backends::access::VmAccess;
use crate::backends::dump::whole::{Held, Stopped, WholeVm};
use crate::error::GuestError;
use crate::memory::Ram;
use crate::sys::monotonic_ns;

/// The registers of all vCPUs of a VM that is held from then on.
fn stop_whole(connected: &mut Connected) -> Result<Stopped, GuestError> {
    let wanted = connected.wanted.clone();
    let (hold, cores) = connected.hold_digits(&wanted)?;
    if hold == Hold::Ended {
        return Err(protocol("ended the connection"));
    }
    let numbered = wanted.iter().zip(&cores);
    let vcpus = numbered.map(|(vcpu, (digits, _))| (*vcpu as u32, connected.layout.all(digits))).collect();
    Ok(Stopped { vcpus, was_paused: hold == Hold::Paused, is_complete: true })
}

impl WholeVm for QemuVm {
    /// Nothing but the registers of a vCPU shows which memory is its RAM, so it is connected to.
    fn prepare(&mut self) -> Result<(), GuestError> {
        let memory = self.connected()?.memory.as_ref();
        if memory.is_some_and(|memory| !memory.is_whole()) {
            self.warnings.push("where QEMU has some of the VM's RAM is not known, so the dump lacks it".to_owned());
        }
        Ok(())
    }

    fn ram(&self) -> Option<&Ram> {
        self.connected.as_ref()?.memory.as_ref()
    }

    fn warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    fn stop(&mut self) -> Result<Stopped, GuestError> {
        Ok(self.connected()?.hold_whole(stop_whole)?.1)
    }

    fn resume(&mut self) -> Result<(), GuestError> {
        self.connected.as_mut().map_or(Ok(()), |connected| connected.stub.go())
    }

    fn registers(&mut self, held: &mut Held) -> Result<(Stopped, Duration), GuestError> {
        let start_ns = monotonic_ns();
        let stopped = self.stop()?;
        if let Some(ram) = self.ram() {
            stopped.vcpus.iter().filter_map(|(_, all)| all.as_ref()).for_each(|all| held(ram, all));
        }
        self.resume()?;
        let stood_ns = if stopped.was_paused { 0 } else { monotonic_ns() - start_ns };
        // It stood for the connection, too.
        let first_ns = self.first.iter().map(|sample| sample.frozen_ns).max().unwrap_or(0);
        Ok((stopped, Duration::from_nanos(stood_ns.max(first_ns))))
    }

    fn pass(&mut self, time: Duration) -> Result<(), GuestError> {
        self.wait(time)
    }

    fn leave(&mut self) -> Result<(), GuestError> {
        self.detach()
    }
}
