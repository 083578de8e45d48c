//! A VM all of whose vCPUs sleep is not stopped for its samples; if they sleep nearly all the time, it is not looked at for each of them.

use glass_profiler_core::model::State;

use super::QemuVm;
use crate::backends::sleeper::idle_sample;
use crate::error::GuestError;
use crate::sys::{monotonic_ns, set_quiet};
use crate::{Attempt, Taken};

impl QemuVm {
    /// The samples of a VM that need not be stopped for them: `Attempt::Pending` if those that follow can be known later. `None` if it has to be.
    pub(super) fn sample_asleep(&mut self) -> Result<Option<Attempt>, GuestError> {
        let Some(connected) = self.connected.as_mut().filter(|_| self.plan.leaves_sleepers && self.are_started) else {
            return Ok(None);
        };
        if !connected.stub.are_idle()? {
            self.sleeper.wake();
            return Ok(None);
        }
        let (now_ns, ran_ns) = (monotonic_ns(), connected.stub.line().ran_ns());
        if ran_ns.is_some_and(|ran_ns| self.sleeper.sleeps(State::Idle, now_ns, ran_ns)) {
            set_quiet(true);
            return Ok(Some(Attempt::Pending));
        }
        let sample = |vcpu: &usize| idle_sample(*vcpu as u32, State::Idle, now_ns);
        Ok(Some(Attempt::of(connected.wanted.iter().map(sample).collect())))
    }

    /// The samples of a VM that was not looked at while it slept, for some time or until the end.
    pub(super) fn look_at_sleep(&mut self, is_end: bool) -> Result<Option<Taken>, GuestError> {
        let now_ns = monotonic_ns();
        let Some(connected) = self.connected.as_mut().filter(|_| self.sleeper.is_due(now_ns, is_end)) else {
            return Ok(None);
        };
        // One that its owner has stopped meanwhile did not sleep for all of that time.
        let was_stopped = connected.stub.note_a_stop()?;
        let ran_ns = connected.stub.line().ran_ns().filter(|_| !was_stopped);
        let tracks = connected.wanted.iter().map(|vcpu| *vcpu as u32);
        Ok(Some(self.sleeper.samples(now_ns, ran_ns, tracks)))
    }
}
