//! The innermost functions of a recording's samples.

use glass_profiler_core::guest::Mode;
use glass_profiler_core::model::{Frame, Sample};
use glass_profiler_core::recording::Recording;

/// The mode in which a sample's vCPU was, and the innermost function that is not inlined.
pub(super) fn innermost<'a>(recording: &'a Recording, sample: &Sample) -> Option<(Mode, &'a Frame)> {
    let profile = &recording.profile;
    let stack = profile.stacks.get(sample.stack as usize)?;
    let segments = sample.segments.and_then(|segments| profile.segments.get(segments as usize));
    let mode = segments.and_then(|segments| segments.first()).map_or(sample.mode, |segment| segment.mode);
    let mut frames = stack.frames.iter().rev().filter_map(|frame| recording.frame(*frame));
    frames.find(|(frame, _)| !frame.inlined).map(|(frame, _)| (mode, frame))
}

/// The samples in which a vCPU executed something.
pub(super) fn active(recording: &Recording) -> impl Iterator<Item = &Sample> {
    recording.profile.samples.iter().filter(|sample| sample.state.is_active())
}
