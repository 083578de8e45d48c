//! When samples were collected: the nodes of a tree, counted in slices of time.
//!
//! The page adds up the slices, tracks and states that its reader selects. Every sample by itself is there besides if they
//! are not too many, for selections that are not whole slices. The size is bounded, whatever the number of samples: slices become longer
//! until there are few enough entries.

use glass_profiler_core::model::Profile;

use glass_profiler_core::tree::Leaves;

/// Slices of one recording. A pixel each, on a screen that is not very wide.
pub const SLICES_MAX: u64 = 2_000;

/// Entries of all slices together: two bytes each in most pages.
pub const ENTRIES_MAX: usize = 600_000;

/// Samples that a slice should have room for on each track: shorter ones would be as often empty as not.
const SLICE_SAMPLES_MIN: u64 = 2;

/// Samples by slice, track and node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeline {
    /// How long one slice lasts: 1, 2 or 5 times a power of ten, at least 1.
    pub slice_ns: u64,
    /// How many slices there are, with or without samples; at least 1.
    pub slices: usize,
    /// From the recording's start to its end, or to the last sample if that is later.
    pub duration_ns: u64,
    /// Samples that were requested per second and track; 0 if that is not known.
    pub rate_hz: u32,
    /// In order of slice, track and node; each once.
    pub entries: Vec<Entry>,
    /// Every sample by itself, in order of time; empty if there are more than [`ENTRIES_MAX`], or if they have no times.
    pub samples: Vec<Exact>,
}

/// A sample with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exact {
    /// Since the start of the recording.
    pub time_ns: u64,
    /// Index into [`glass_profiler_core::tree::Tree::tracks`].
    pub track: u32,
    /// Index into [`glass_profiler_core::tree::Tree::nodes`].
    pub node: u32,
}

/// Samples of one node on one track in one slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Which slice of time, from 0 on.
    pub slice: u32,
    /// Index into [`glass_profiler_core::tree::Tree::tracks`].
    pub track: u32,
    /// Index into [`glass_profiler_core::tree::Tree::nodes`].
    pub node: u32,
    /// How many.
    pub samples: u32,
}

impl Timeline {
    /// Counts the samples of a profile in slices of a length that suits the rate and the duration.
    pub(crate) fn build(profile: &Profile, leaves: &Leaves) -> Timeline {
        Timeline::build_within(profile, leaves, SLICES_MAX, ENTRIES_MAX)
    }

    fn build_within(profile: &Profile, leaves: &Leaves, slices_max: u64, entries_max: usize) -> Timeline {
        let last = profile.samples.iter().map(|sample| sample.time_ns).max().unwrap_or(0);
        let duration_ns = profile.origin.duration_ns.max(last);
        let rate_hz = profile.origin.rate_hz;
        let shortest = match rate_hz {
            0 => 1,
            rate => SLICE_SAMPLES_MIN * 1_000_000_000 / u64::from(rate),
        };
        let mut slice_ns = round_up((duration_ns / slices_max).max(shortest).max(1));
        // A sample may lie exactly at the end.
        while duration_ns / slice_ns >= slices_max {
            slice_ns = longer(slice_ns);
        }
        let samples = match profile.samples.len() <= entries_max && duration_ns > 0 {
            true => exact(profile, leaves),
            false => Vec::new(),
        };
        loop {
            let entries = count(profile, leaves, slice_ns);
            let slices = (duration_ns / slice_ns) as usize + 1;
            if entries.len() <= entries_max || slices == 1 {
                return Timeline { slice_ns, slices, duration_ns, rate_hz, entries, samples };
            }
            slice_ns = longer(slice_ns);
        }
    }
}

fn exact(profile: &Profile, leaves: &Leaves) -> Vec<Exact> {
    let unknown_track = profile.tracks.len();
    let mut samples: Vec<Exact> = profile
        .samples
        .iter()
        .map(|sample| Exact {
            time_ns: sample.time_ns,
            track: (sample.track as usize).min(unknown_track) as u32,
            node: leaves.node(sample) as u32,
        })
        .collect();
    samples.sort_unstable();
    samples
}

fn count(profile: &Profile, leaves: &Leaves, slice_ns: u64) -> Vec<Entry> {
    let unknown_track = profile.tracks.len();
    let mut entries: Vec<Entry> = profile
        .samples
        .iter()
        .map(|sample| Entry {
            slice: (sample.time_ns / slice_ns) as u32,
            track: (sample.track as usize).min(unknown_track) as u32,
            node: leaves.node(sample) as u32,
            samples: 1,
        })
        .collect();
    entries.sort_unstable();
    entries.dedup_by(|next, sum| {
        let same = (next.slice, next.track, next.node) == (sum.slice, sum.track, sum.node);
        if same {
            sum.samples = sum.samples.saturating_add(next.samples);
        }
        same
    });
    entries
}

/// The next of 1, 2, 5, 10, 20, 50, ... that is not shorter.
fn round_up(ns: u64) -> u64 {
    let mut power = 1_u64;
    loop {
        for factor in [1, 2, 5] {
            match power.checked_mul(factor) {
                Some(rounded) if rounded < ns => {}
                Some(rounded) => return rounded,
                None => return u64::MAX,
            }
        }
        match power.checked_mul(10) {
            Some(next) => power = next,
            None => return u64::MAX,
        }
    }
}

fn longer(slice_ns: u64) -> u64 {
    round_up(slice_ns.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::model::{Sample, Stack, State, Track};
    use glass_profiler_core::tree::Tree;

    /// One sample a millisecond for `count` milliseconds, on two tracks in turn.
    fn profile(count: u64, rate_hz: u32) -> Profile {
        let mut profile = Profile {
            tracks: (0..2).map(|id| Track { name: String::new(), id, ..Track::default() }).collect(),
            stacks: vec![Stack::default()],
            ..Profile::default()
        };
        profile.origin.rate_hz = rate_hz;
        profile.origin.duration_ns = count * 1_000_000;
        profile.samples = (0..count)
            .map(|index| Sample {
                time_ns: index * 1_000_000,
                track: index as u32 % 2,
                stack: 0,
                state: if index < 3 { State::Idle } else { State::Running },
                ..Sample::default()
            })
            .collect();
        profile
    }

    fn timeline(profile: &Profile, slices_max: u64, entries_max: usize) -> Timeline {
        let (_, leaves) = Tree::build_by_line(profile);
        Timeline::build_within(profile, &leaves, slices_max, entries_max)
    }

    #[test]
    fn slices_are_round_and_never_too_many() {
        let profile = profile(10_000, 500);
        for (slices_max, slice_ns, slices) in
            [(2_000, 10_000_000, 1_001), (500, 50_000_000, 201), (100, 200_000_000, 51), (1, 20_000_000_000, 1)]
        {
            let timeline = timeline(&profile, slices_max, usize::MAX);
            assert_eq!((timeline.slice_ns, timeline.slices), (slice_ns, slices), "{slices_max}");
            assert_eq!(timeline.entries.iter().map(|entry| u64::from(entry.samples)).sum::<u64>(), 10_000);
        }
    }

    #[test]
    fn entries_say_when_where_and_what() {
        let timeline = timeline(&profile(10, 500), 2_000, usize::MAX);
        assert_eq!(timeline.slice_ns, 5_000_000);
        let entries: Vec<_> = timeline.entries.iter().map(|e| (e.slice, e.track, e.node, e.samples)).collect();
        // Nodes: the root, "no frames" below it with the running samples, and idle.
        assert_eq!(entries, [(0, 0, 1, 1), (0, 0, 2, 2), (0, 1, 1, 1), (0, 1, 2, 1), (1, 0, 1, 2), (1, 1, 1, 3)]);
    }

    #[test]
    fn entries_are_bounded_and_nothing_is_lost() {
        let timeline = timeline(&profile(10_000, 0), 2_000, 50);
        assert!(timeline.entries.len() <= 50, "{}", timeline.entries.len());
        assert_eq!(timeline.entries.iter().map(|entry| u64::from(entry.samples)).sum::<u64>(), 10_000);
    }

    #[test]
    fn no_time_is_too_late() {
        let mut profile = profile(3, 1_000);
        profile.samples[1].time_ns = u64::MAX;
        profile.samples[2].track = u32::MAX;
        let timeline = timeline(&profile, 2_000, 10);
        assert!(timeline.slices <= 2_000);
        assert_eq!(timeline.entries.len(), 3);
        assert_eq!(super::round_up(u64::MAX), u64::MAX);
    }
}
