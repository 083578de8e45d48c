//! Names that changed during the recording: generated code replaces other code.

use std::collections::HashMap;

use super::recorded::Place;
use crate::symbols::Location;

/// The most changes that are kept.
const CHANGES_MAX: usize = 4 << 20;

/// The sequence of names at each place.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// From when on, in nanoseconds since the start, in order of time.
    places: HashMap<Place, Vec<(u64, Vec<Location>)>>,
    count: usize,
}

impl Changes {
    /// Adds those of a place; `false` if there are too many.
    pub fn add(&mut self, place: Place, mut changes: Vec<(u64, Vec<Location>)>) -> bool {
        self.count += changes.len();
        if self.count > CHANGES_MAX {
            return false;
        }
        changes.sort_by_key(|(from_ns, _)| *from_ns);
        self.places.insert(place, changes);
        true
    }

    /// The versions of these places at a time, for the places that have changed: equal results
    /// mean equal names.
    pub fn versions(&self, places: impl Iterator<Item = Place>, time_ns: u64) -> Vec<u32> {
        if self.places.is_empty() {
            return Vec::new();
        }
        let changed = places.filter_map(|place| self.places.get(&place));
        changed.map(|changes| version(changes, time_ns)).collect()
    }

    /// The version of a place at a time, 0 of one that has not changed.
    pub fn version(&self, place: Place, time_ns: u64) -> u32 {
        self.places.get(&place).map_or(0, |changes| version(changes, time_ns))
    }

    /// The name at a place in a version.
    pub fn get(&self, place: Place, version: u32) -> Option<&Vec<Location>> {
        let changes = self.places.get(&place)?;
        changes.get((version as usize).checked_sub(1)?).map(|(_, locations)| locations)
    }
}

/// From 1 on. The first one also counts before its time: no other code could run there, so the clocks differ a little.
fn version(changes: &[(u64, Vec<Location>)], time_ns: u64) -> u32 {
    changes.partition_point(|(from_ns, _)| *from_ns <= time_ns).max(1) as u32
}
