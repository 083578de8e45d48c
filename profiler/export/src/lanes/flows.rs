//! Arrows: from the cause of a wake-up to the poll that follows, from a task to its requests, and from the call of MPI that sends a message to
//! the one that receives it.

use glass_profiler_core::trace::model::{Cause, Trace};

/// The position of a point of an arrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Begin,
    Pass,
    End,
}

/// One end of an arrow, or a point that it passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// Number of the arrow, not 0.
    pub arrow: u64,
    pub place: Place,
}

/// The arrow of a wake-up.
pub(super) fn wake_arrow(wake: u32) -> u64 {
    1 + u64::from(wake)
}

/// The arrow from a task to its request.
pub(super) fn request_arrow(request: u32) -> u64 {
    1 << 40 | u64::from(request)
}

/// The ends of messages between ranks, by index of the visit of a span, in order.
pub(super) fn messages(trace: &Trace) -> Vec<(u32, Step)> {
    let mut ends = Vec::with_capacity(trace.mpi_messages.len() * 2);
    for (message, arrow) in trace.mpi_messages.iter().zip(1_u64 << 41..) {
        for (call, place) in [(message.from, Place::Begin), (message.to, Place::End)] {
            ends.extend(trace.mpi_calls.get(call as usize).map(|call| (call.visit, Step { arrow, place })));
        }
    }
    ends.sort_by_key(|(visit, _)| *visit);
    ends
}

/// The wake-ups of each cause, which become arrows.
pub(super) struct Wakes {
    /// Whether a wake-up ended a wait: only these are arrows.
    is_used: Vec<bool>,
    /// Index of a request, segment or interrupt, and of a wake-up that it caused; in order.
    requests: Vec<(u32, u32)>,
    segments: Vec<(u32, u32)>,
    interrupts: Vec<(u32, u32)>,
}

impl Wakes {
    pub fn new(trace: &Trace) -> Wakes {
        let mut is_used = vec![false; trace.wakes.len()];
        for wake in trace.waits.iter().filter_map(|wait| wait.wake) {
            if let Some(used) = is_used.get_mut(wake as usize) {
                *used = true;
            }
        }
        let mut wakes = Wakes { is_used, requests: Vec::new(), segments: Vec::new(), interrupts: Vec::new() };
        for (index, wake) in (0u32..).zip(&trace.wakes).filter(|(index, _)| wakes.is_used[*index as usize]) {
            match wake.cause {
                Cause::Request(request) => wakes.requests.push((request, index)),
                Cause::Segment(segment) => wakes.segments.push((segment, index)),
                Cause::Interrupt(interrupt) => wakes.interrupts.push((interrupt, index)),
                Cause::Task(_) | Cause::Timer | Cause::Unknown => {}
            }
        }
        for list in [&mut wakes.requests, &mut wakes.segments, &mut wakes.interrupts] {
            list.sort_unstable();
        }
        wakes
    }

    pub fn is_used(&self, wake: u32) -> bool {
        self.is_used.get(wake as usize).copied().unwrap_or(false)
    }

    /// Arrows that start at a request.
    pub fn of_request(&self, request: u32, steps: &mut Vec<Step>) {
        arrows_of(&self.requests, request, steps);
    }

    pub fn of_segment(&self, segment: u32, steps: &mut Vec<Step>) {
        arrows_of(&self.segments, segment, steps);
    }

    pub fn of_interrupt(&self, interrupt: u32, steps: &mut Vec<Step>) {
        arrows_of(&self.interrupts, interrupt, steps);
    }
}

fn arrows_of(list: &[(u32, u32)], cause: u32, steps: &mut Vec<Step>) {
    let first = list.partition_point(|(other, _)| *other < cause);
    let own = list[first..].iter().take_while(|(other, _)| *other == cause);
    steps.extend(own.map(|(_, wake)| Step { arrow: wake_arrow(*wake), place: Place::Begin }));
}
