//! Cores: idle times, spinning, interrupts, and the possible cause of the next wake-up.

use glass_formats::trace::WakeSource;

use super::At;
use crate::trace::model::{Cause, Idle, Interval, NameId, Trace};

/// The open intervals of the cores.
#[derive(Debug, Default)]
pub(super) struct Cores {
    states: Vec<CoreState>,
}

#[derive(Debug, Default, Clone, Copy)]
struct CoreState {
    idle: Option<u32>,
    spin: Option<u32>,
    cause: Cause,
}

impl Cores {
    pub(super) fn new(cores: usize) -> Cores {
        Cores { states: vec![CoreState::default(); cores] }
    }

    fn state(&mut self, core: u32) -> &mut CoreState {
        &mut self.states[core as usize]
    }

    /// The cause of a wake-up on this core while no task was polled.
    pub(super) fn cause(&self, core: u32) -> Cause {
        self.states[core as usize].cause
    }

    /// An event that may be the cause of wake-ups.
    pub(super) fn set_cause(&mut self, core: u32, cause: Cause) {
        self.state(core).cause = cause;
    }

    pub(super) fn idle_begin(&mut self, at: At, trace: &mut Trace) {
        self.idle_end(at, WakeSource::Other, 0, trace);
        let state = self.state(at.core);
        // An event before the core halted is not the cause of a wake-up after it.
        state.cause = Cause::Unknown;
        state.idle = Some(trace.idles.len() as u32);
        trace.idles.push(Idle { interval: interval(at), source: WakeSource::Other, device: 0 });
    }

    pub(super) fn idle_end(&mut self, at: At, source: WakeSource, device: NameId, trace: &mut Trace) {
        if let Some(index) = self.state(at.core).idle.take() {
            let idle = &mut trace.idles[index as usize];
            (idle.interval.end_ns, idle.source, idle.device) = (at.time_ns, source, device);
        }
    }

    pub(super) fn spin_begin(&mut self, at: At, trace: &mut Trace) {
        self.spin_end(at, trace);
        self.state(at.core).spin = Some(trace.spins.len() as u32);
        trace.spins.push(interval(at));
    }

    pub(super) fn spin_end(&mut self, at: At, trace: &mut Trace) {
        if let Some(index) = self.state(at.core).spin.take() {
            trace.spins[index as usize].end_ns = at.time_ns;
        }
    }

    /// Ends the open intervals of a core at this moment: later events are missing.
    pub(super) fn cut(&mut self, core: u32, time_ns: u64, trace: &mut Trace) {
        let at = At { time_ns, core };
        self.idle_end(at, WakeSource::Other, 0, trace);
        self.spin_end(at, trace);
        self.state(core).cause = Cause::Unknown;
    }

    /// [`Cores::cut`] of all cores.
    pub(super) fn stop(&mut self, time_ns: u64, trace: &mut Trace) {
        for core in 0..self.states.len() as u32 {
            self.cut(core, time_ns, trace);
        }
    }
}

fn interval(at: At) -> Interval {
    Interval { core: at.core, start_ns: at.time_ns, end_ns: at.time_ns }
}
