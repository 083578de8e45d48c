//! A recording in memory: its profile, and the addresses and files behind the profile's names.

use crate::model::{Frame, Profile};
use crate::trace::raw::RawTrace;

/// What [`open`](super::open) reads from a recording.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// Samples, stacks and names.
    pub profile: Profile,
    /// The files that its code was mapped from.
    pub images: Vec<RecordedImage>,
    /// Where the code of each of the profile's frames is: as many as there are frames.
    pub places: Vec<Place>,
    /// What the guest traced itself; empty if nothing of it was recorded.
    pub trace: RawTrace,
    /// Version of the recording's format.
    pub version: u32,
    /// The recorder ended as it should: nothing is missing at the end.
    pub is_complete: bool,
}

/// A file that code was mapped from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedImage {
    /// Path of the file when it was recorded.
    pub path: String,
    /// The GNU build id, empty if it had none.
    pub build_id: Vec<u8>,
    /// First address of its first mapping, and the one after its end.
    pub range: (u64, u64),
    /// Where its names come from.
    pub names: NameSource,
    /// Distinct addresses of it in stacks.
    pub addresses: u64,
    /// Of these, how many have a name.
    pub named: u64,
    /// Of these, how many have a line.
    pub with_line: u64,
}

/// Where the names of an image come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NameSource {
    /// From the recording; or nothing of the image was seen.
    #[default]
    Recording,
    /// From the file as it is now, which has the recorded build id, or none as it had none then.
    File,
    /// There are none, for this reason.
    Missing(String),
}

/// Where a frame's code is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// Index into [`Recording::images`].
    pub image: Option<u32>,
    /// Address for which the image was linked, or as it was without image. In callers the return address minus 1.
    pub address: u64,
}

impl Recording {
    /// A frame and its place.
    pub fn frame(&self, index: u32) -> Option<(&Frame, Place)> {
        let place = self.places.get(index as usize).copied().unwrap_or_default();
        self.profile.frames.get(index as usize).map(|frame| (frame, place))
    }
}
