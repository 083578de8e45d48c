//! A VM of KVM that is stopped as a whole, for a dump.

use std::time::Duration;

use super::vcpu::Hold;
use super::{DETACH_TIMEOUT, KvmVm, Vcpu};
use crate::Guest;
use crate::arch::x86_64::all::AllRegisters;
use crate::backends::access::VmAccess;
use crate::backends::dump::whole::{Held, Stopped, WholeVm};
use crate::error::GuestError;
use crate::memory::{AddressSpace, LiveSpace, Ram};
use crate::sys::monotonic_ns;

/// The longest wait before the threads are inspected again.
const WAIT: Duration = Duration::from_millis(1);

impl Vcpu {
    /// All registers of a vCPU that is stopped; none of a guest that the guest runs, whose memory is not that of the VM.
    fn all_registers(&self) -> Option<AllRegisters> {
        let page = self.page.as_ref().filter(|_| self.is_synced && !self.is_nested())?;
        Some(page.all_registers())
    }
}

impl KvmVm {
    /// Waits until a vCPU that was requested to stop has done so; false if it has not in time, or has ended.
    fn is_held(&mut self, position: usize, deadline_ns: u64) -> Result<bool, GuestError> {
        loop {
            let vcpu = &mut self.vcpus[position];
            match vcpu.thread.has_stopped(&self.signals)? {
                Hold::Yes(call) => {
                    vcpu.is_synced |= call.interrupted;
                    return Ok(true);
                }
                Hold::Ended => return Ok(false),
                Hold::Late if monotonic_ns() >= deadline_ns => return Ok(false),
                Hold::Late => self.signals.wait(WAIT),
            }
        }
    }

    /// The candidate in which a vCPU finds its code, or else the likeliest.
    fn choose_ram(&mut self) -> Result<(), GuestError> {
        let mut found = None;
        for position in 0..self.vcpus.len() {
            let Some(state) = self.state(position)? else { continue };
            let rip = state.registers.ip();
            let has_code =
                |ram: &Ram| LiveSpace::new(ram, state.paging).read(rip, &mut [0]).is_ok_and(|read| read == 1);
            found = found.or(self.candidates.iter().position(has_code));
        }
        self.memory = self.candidates.swap_remove(found.unwrap_or(0));
        self.candidates.clear();
        Ok(())
    }
}

impl WholeVm for KvmVm {
    fn prepare(&mut self) -> Result<(), GuestError> {
        self.choose_ram()?;
        if !self.memory.is_whole() {
            self.warnings.push("where the VM has some of its RAM is not known, so the dump lacks it (KVM shows it to root, and to a user with CAP_BPF and CAP_PERFMON, if the kernel describes its types: CONFIG_DEBUG_INFO_BTF)".to_owned());
        }
        Ok(())
    }

    fn ram(&self) -> Option<&Ram> {
        Some(&self.memory)
    }

    fn warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    fn stop(&mut self) -> Result<Stopped, GuestError> {
        for vcpu in &mut self.vcpus {
            vcpu.thread.hold_at_once(&self.signals)?;
        }
        let deadline_ns = monotonic_ns() + DETACH_TIMEOUT.as_nanos() as u64;
        let mut stopped = Stopped { is_complete: true, was_paused: !self.vcpus.is_empty(), ..Stopped::default() };
        for position in 0..self.vcpus.len() {
            let is_held = self.is_held(position, deadline_ns)?;
            let vcpu = &self.vcpus[position];
            stopped.is_complete &= is_held;
            // Another process has stopped all of the VMM.
            stopped.was_paused &= vcpu.thread.held().is_some_and(|(signal, _)| signal != libc::SIGTRAP);
            stopped.vcpus.push((vcpu.index, vcpu.all_registers().filter(|_| is_held)));
        }
        Ok(stopped)
    }

    fn resume(&mut self) -> Result<(), GuestError> {
        let results = self.vcpus.iter_mut().map(|vcpu| vcpu.thread.release());
        results.fold(Ok(()), Result::and)
    }

    fn registers(&mut self, held: &mut Held) -> Result<(Stopped, Duration), GuestError> {
        let mut stopped = Stopped { is_complete: true, ..Stopped::default() };
        let mut longest_ns = 0;
        for position in 0..self.vcpus.len() {
            let start_ns = monotonic_ns();
            self.vcpus[position].thread.hold_at_once(&self.signals)?;
            let is_held = self.is_held(position, start_ns + DETACH_TIMEOUT.as_nanos() as u64)?;
            let vcpu = &mut self.vcpus[position];
            let all = vcpu.all_registers().filter(|_| is_held);
            all.iter().for_each(|all| held(&self.memory, all));
            vcpu.thread.release()?;
            longest_ns = longest_ns.max(monotonic_ns() - start_ns);
            stopped.is_complete &= is_held;
            stopped.vcpus.push((vcpu.index, all));
        }
        Ok((stopped, Duration::from_nanos(longest_ns)))
    }

    fn pass(&mut self, time: Duration) -> Result<(), GuestError> {
        self.wait(time)
    }

    fn leave(&mut self) -> Result<(), GuestError> {
        self.detach()
    }
}
