//! A VM in QEMU, held for each sample through its gdbstub. Needs no privilege beyond the socket; RAM
//! is read from the memfd that backs it, or, slower, through the socket.
//!
//! Connecting stops the VM, and QEMU does not start it again when the connection ends. So the VM is connected to at the moment of its
//! first sample, whose stop that is ([decision 70](../../../../../docs/decisions/0070-the-first-stop-is-a-sample.md)), and a small
//! process of our own keeps the connection too and detaches if we die at whatever moment.
//!
//! A gdbstub stops all vCPUs at once, also those that are not wanted.
//!
//! A VM that its owner has paused, or has not started, is sampled as it is and stays paused.
//!
//! In a QEMU that was started without gdbstub, one is started through its monitor.

mod access;
mod attach;
mod beside;
mod client;
mod clients;
mod connected;
mod connection;
mod description;
mod emulated;
mod freeze;
mod holding;
mod idle;
#[cfg(test)]
mod model;
mod stub;
mod switch;
mod turn;
mod waits;
mod whole;

use std::path::Path;
use std::time::Duration;

use glass_profiler_core::event::{Event, RawSample};
use glass_profiler_core::guest::GuestKind;
use glass_profiler_core::model::State;
use glass_profiler_core::remarks;

use crate::arch::CoreState;
use crate::backends::access::KnownVm;
use crate::backends::sleeper::Sleeper;
use crate::error::GuestError;
use crate::files::OpenedFiles;
use crate::find::Vm;
use crate::sys::{monotonic_ns, rest_for};
use crate::systems::image::VmImage;
pub use crate::systems::image::VmSettings;
use crate::systems::plan::CopyPlan;
use crate::{Attempt, Guest, Taken};
use attach::Way;
use connected::Connected;
use stub::Hold;

/// A VM that is sampled.
pub struct QemuVm {
    way: Way,
    /// From its first sample on.
    connected: Option<Connected>,
    plan: CopyPlan,
    /// When it was stopped for that.
    started_ns: Option<u64>,
    /// The first sample of each vCPU, until it is announced.
    first: Vec<RawSample>,
    /// The registers in it, until they were used.
    states: Vec<Option<CoreState>>,
    /// All vCPUs that are sampled had been started at the last stop.
    are_started: bool,
    sleeper: Sleeper,
    /// Samples of a VM that did not run.
    paused_samples: u64,
    /// What could not be put back when it was detached from.
    left_behind: Option<String>,
    detached: bool,
    /// The pauses that were for no sample.
    frozen_ns: u64,
    warnings: Vec<String>,
}

impl QemuVm {
    /// Attaches, and takes the first sample. When this returns the VM runs, if its owner has not stopped it.
    ///
    /// Do not wait for a QEMU that is a child of this process until it is detached from: the kernel would report stops of its main thread, which is
    /// traced, to any thread that waits.
    pub fn attach(vm: &Vm, settings: VmSettings) -> Result<KnownVm<QemuVm>, GuestError> {
        let vcpus = settings.vcpus.clone();
        let memories = settings.memories(vm.pid, &OpenedFiles::default());
        let image = VmImage::load(GuestKind::Vm { vmm: vm.pid }, &vm.name, settings)?;
        KnownVm::of(QemuVm::find(vm, &vcpus)?, image, &memories)
    }

    /// Connects if that was not done yet.
    fn connected(&mut self) -> Result<&mut Connected, GuestError> {
        if self.connected.is_none() {
            self.connect()?;
        }
        self.connected.as_mut().ok_or_else(|| client::protocol("is not connected to"))
    }

    /// Completes samples of a stop of this VM from `start_ns` on, which has just ended.
    fn complete(&mut self, samples: &mut [RawSample], start_ns: u64, is_paused: bool) {
        self.paused_samples += u64::from(is_paused);
        self.are_started = true;
        // From before the request to stop until after the request to resume: the guest is stopped for
        // a part of this time, never for more. One that is paused loses nothing, and does not run.
        let frozen_ns = if is_paused { 0 } else { monotonic_ns() - start_ns };
        for sample in samples {
            sample.time_ns = start_ns;
            sample.frozen_ns = frozen_ns;
            if is_paused && sample.state != State::NeverStarted {
                sample.state = State::Paused;
            }
            self.are_started &= sample.state != State::NeverStarted;
        }
    }

    /// Leaves the gdbstub as it was found.
    fn switch_off(&mut self) -> Result<(), GuestError> {
        match self.way.switch.take().map(|switch| switch.off()) {
            // A QEMU that is gone has nothing left that could be on.
            Some(Err(error)) if Path::new(&format!("/proc/{}", self.way.vm.pid)).exists() => Err(error),
            _ => Ok(()),
        }
    }
}

impl Guest for QemuVm {
    fn started_ns(&self) -> Option<u64> {
        self.started_ns
    }

    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        self.warnings.drain(..).for_each(|text| sink(Event::Warning(text)));
        if let (Some(connected), 1..) = (&self.connected, self.frozen_ns) {
            let frozen_ns = std::mem::take(&mut self.frozen_ns);
            sink(Event::Frozen { tracks_ns: connected.wanted.iter().map(|vcpu| (*vcpu as u32, frozen_ns)).collect() });
        }
        self.first.drain(..).for_each(|sample| sink(Event::Sample(sample)));
        Ok(())
    }

    fn sample(&mut self, _all: usize) -> Result<Attempt, GuestError> {
        if let Some(asleep) = self.sample_asleep()? {
            return Ok(asleep);
        }
        let plan = std::mem::take(&mut self.plan);
        let taken = self.connected().and_then(|connected| {
            let wanted = connected.wanted.clone();
            let look = |connected: &mut Connected| {
                let (hold, states) = connected.hold(&wanted)?;
                Ok((hold, connected.samples(&states, &plan)?))
            };
            connected.hold_whole(look)
        });
        self.plan = plan;
        let (start_ns, (hold, mut samples)) = taken?;
        if hold == Hold::Ended {
            self.detach()?;
            return Ok(Attempt::Ended);
        }
        self.connected()?.stub.go()?;
        self.complete(&mut samples, start_ns, hold == Hold::Paused);
        Ok(Attempt::of(samples))
    }

    fn rest(&mut self, until_ns: u64) -> Result<Option<(usize, Taken)>, GuestError> {
        rest_for(Duration::from_nanos(until_ns.saturating_sub(monotonic_ns())));
        self.pass_until(until_ns)?;
        Ok(self.look_at_sleep(until_ns == 0)?.map(|taken| (0, taken)))
    }

    fn remark(&self) -> Option<String> {
        let displaced = self.connected.as_ref().map_or(0, |connected| connected.stub.displaced());
        let displaced = (displaced > 0).then(|| {
            format!("{displaced} samples were taken late, because QEMU was busy with a device: they may show the guest waiting for it")
        });
        let paused = (self.paused_samples > 0).then(|| remarks::paused(self.paused_samples));
        // What happened to the VM first: programs look for the start of a remark.
        let said: Vec<String> = [paused, displaced].into_iter().flatten().collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    fn left_behind(&self) -> Option<String> {
        self.left_behind.clone()
    }

    fn tracks(&self) -> u64 {
        self.connected.as_ref().map_or(0, |connected| connected.wanted.len() as u64)
    }

    fn detach(&mut self) -> Result<(), GuestError> {
        if self.detached {
            return Ok(());
        }
        let Some(connected) = &mut self.connected else {
            self.way.forget();
            self.detached = true;
            return Ok(());
        };
        // If this fails, the watchdog does what is left to do.
        connected.stub.line().let_threads_go();
        connected.stub.detach()?;
        let left = self.switch_off().err();
        self.left_behind = left.map(|error| {
            format!("the gdbstub of QEMU {} stays on, for the next recording to use: {error}", self.way.vm.pid)
        });
        if let Some(connected) = &mut self.connected {
            connected.stub.line().dismiss_watchdog();
        }
        self.detached = true;
        Ok(())
    }
}
