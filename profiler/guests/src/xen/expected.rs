//! What a sample needs of a guest's memory, copied by Xen in the hypercall that pauses the domain and lets it run on.
//!
//! A domain stands from its pause until the copy is done, and each hypercall is long beside the copy. So the memory is named before the
//! registers are known: of the stack, what earlier samples needed. If that does not hold what this sample needs, it is made again with
//! a pause that lasts until the stack was found.

use std::ops::Range;

use glass_profile::event::RawSample;

use crate::error::GuestError;
use crate::sys::xen::{Call, Hypercalls};
use crate::vm::{CORE_STATE_READ, HeldCore};

/// Where the copy of the stack starts; before it is that of the core's state.
const STACK: usize = CORE_STATE_READ.next_multiple_of(64);
/// The most samples in a row that are made without, after one that was not as expected.
const OTHERWISE_MAX: u32 = 64;

/// The part of a vCPU's stack that its next sample will probably need.
#[derive(Debug, Default)]
pub(super) struct Expected {
    stack: Option<Range<u64>>,
}

impl Expected {
    /// Learns what a sample needed.
    pub(super) fn learn(&mut self, sample: &RawSample) {
        let [segment] = &sample.segments[..] else { return };
        let [(start, bytes)] = &segment.stack[..] else { return };
        let range = *start..start.saturating_add(bytes.len() as u64);
        let joined = match &self.stack {
            Some(known) => known.start.min(range.start)..known.end.max(range.end),
            None => range.clone(),
        };
        let fits = |range: &Range<u64>| range.end - range.start <= (Hypercalls::MEMORY_BYTES - STACK) as u64;
        // One that is elsewhere is another stack.
        self.stack = [joined, range].into_iter().find(fits);
    }

    /// The calls that copy what is expected to a place, with the state of the core if there is one; `None` if nothing is expected.
    pub(super) fn calls(&self, place: usize, core: Option<u64>) -> Option<impl Iterator<Item = Call>> {
        let stack = self.stack.clone()?;
        let copy = move |address, offset, bytes| Call::Memory { address, place, offset, bytes };
        let stack = copy(stack.start, STACK, (stack.end - stack.start) as usize);
        Some(core.map(|address| copy(address, 0, CORE_STATE_READ)).into_iter().chain([stack]))
    }

    /// The core as it was copied to a place.
    pub(super) fn copied<'a>(
        &self,
        calls: &'a Hypercalls,
        place: usize,
        core: Option<u64>,
        is_blocked: bool,
    ) -> Copied<'a> {
        let stack = self.stack.clone().unwrap_or_default();
        Copied { calls, place, stack, core, is_blocked, is_insufficient: false }
    }
}

/// A vCPU of which parts of memory were copied.
pub(super) struct Copied<'a> {
    calls: &'a Hypercalls,
    place: usize,
    stack: Range<u64>,
    core: Option<u64>,
    is_blocked: bool,
    is_insufficient: bool,
}

impl Copied<'_> {
    /// Whether more was read than was copied.
    pub(super) fn was_insufficient(&self) -> bool {
        self.is_insufficient
    }
}

impl HeldCore for Copied<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<usize, GuestError> {
        let core = self.core.map(|start| (start..start.saturating_add(CORE_STATE_READ as u64), 0));
        let parts = [Some((self.stack.clone(), STACK)), core];
        let end = address.saturating_add(into.len() as u64);
        let part = parts.into_iter().flatten().find(|(range, _)| range.start <= address && end <= range.end);
        self.is_insufficient |= part.is_none();
        let Some((range, offset)) = part else { return Ok(0) };
        self.calls.memory(self.place, offset + (address - range.start) as usize, into);
        Ok(into.len())
    }

    fn is_halted(&mut self) -> Result<bool, GuestError> {
        Ok(self.is_blocked)
    }
}

/// Whether to expect anything: not for some samples after one that was not as expected, for ever more of them as that repeats.
#[derive(Debug, Default)]
pub(super) struct Trust {
    otherwise: u32,
    left: u32,
}

impl Trust {
    /// Whether the next sample may be made so.
    pub(super) fn is_given(&mut self) -> bool {
        let is_given = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_given
    }

    pub(super) fn was_right(&mut self) {
        *self = Trust::default();
    }

    pub(super) fn was_wrong(&mut self) {
        self.otherwise = (2 * self.otherwise + 1).min(OTHERWISE_MAX);
        self.left = self.otherwise;
    }

    /// Xen cannot do it.
    pub(super) fn is_over(&mut self) {
        self.left = u32::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profile::event::Segment;

    fn sample(pieces: &[Range<u64>]) -> RawSample {
        let stack = pieces.iter().map(|range| (range.start, vec![0; (range.end - range.start) as usize])).collect();
        RawSample { segments: vec![Segment { stack, ..Segment::default() }], ..RawSample::default() }
    }

    #[test]
    fn what_samples_needed_is_expected_as_long_as_it_fits() {
        let mut expected = Expected::default();
        assert!(expected.calls(0, Some(0x9000)).is_none());
        expected.learn(&sample(&[0x7000..0x7400]));
        expected.learn(&sample(&[0x6f00..0x7300]));
        // Of a vCPU in a service of the stub: its own stack, and its caller's.
        expected.learn(&sample(&[0x100..0x200, 0x6000..0x7400]));
        let calls: Vec<Call> = expected.calls(3, Some(0x9000)).unwrap().collect();
        let core = Call::Memory { address: 0x9000, place: 3, offset: 0, bytes: CORE_STATE_READ };
        assert_eq!(calls, [core, Call::Memory { address: 0x6f00, place: 3, offset: STACK, bytes: 0x500 }]);
        assert_eq!(expected.calls(3, None).unwrap().count(), 1);
        let elsewhere = 0x10_0000..0x10_0400;
        expected.learn(&sample(std::slice::from_ref(&elsewhere)));
        assert_eq!(expected.stack, Some(elsewhere));
        expected.learn(&sample(&[0..Hypercalls::MEMORY_BYTES as u64]));
        assert_eq!(expected.stack, None, "there is no room for the copy");
    }

    #[test]
    fn trust_is_lost_for_longer_as_often_as_it_is_wrong() {
        let mut trust = Trust::default();
        let pause = |trust: &mut Trust| (0..1000).take_while(|_| !trust.is_given()).count();
        assert_eq!(pause(&mut trust), 0);
        let pauses: Vec<usize> = (0..8)
            .map(|_| {
                trust.was_wrong();
                pause(&mut trust)
            })
            .collect();
        assert_eq!(pauses, [1, 3, 7, 15, 31, 63, 64, 64]);
        trust.was_right();
        assert_eq!(pause(&mut trust), 0);
        trust.is_over();
        assert_eq!(pause(&mut trust), 1000);
    }
}
