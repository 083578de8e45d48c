//! A recording in memory: its profile, and the addresses and files behind the profile's names.

use crate::model::{Frame, Profile};
use crate::trace::raw::RawTrace;

/// The result of [`open`](super::open).
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// Samples, stacks and names.
    pub profile: Profile,
    /// The files that its code was mapped from.
    pub images: Vec<RecordedImage>,
    /// The place of the code of each of the profile's frames: as many as there are frames.
    pub places: Vec<Place>,
    /// The guest's trace; empty if none was recorded.
    pub trace: RawTrace,
    /// Version of the recording's format.
    pub version: u32,
    /// The recorder ended normally: nothing is missing at the end.
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
    /// The source of its names.
    pub names: NameSource,
    /// Distinct addresses of it in stacks.
    pub addresses: u64,
    /// Of these, how many have a name.
    pub named: u64,
    /// Of these, how many have a line.
    pub with_line: u64,
}

/// The source of an image's names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NameSource {
    /// From the recording; or no sample is in the image.
    #[default]
    Recording,
    /// From the current file, which has the recorded build id, or has none as at the recording.
    File,
    /// It has no names, for this reason.
    Missing(String),
}

/// The place of a frame's code.
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
