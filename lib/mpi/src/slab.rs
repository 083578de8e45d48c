//! Things by number: numbers are used again, with a generation by which an old one is recognised.

use alloc::vec::Vec;

/// A number that a [`Slab`] gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id {
    /// The place; used again after a removal.
    pub index: u32,
    /// How often the place was used before.
    pub generation: u32,
}

/// Things by number.
#[derive(Debug)]
pub struct Slab<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Keeps `value` and returns its number.
    pub fn insert(&mut self, value: T) -> Id {
        match self.free.pop() {
            Some(index) => {
                let place = &mut self.places[index as usize];
                place.1 = Some(value);
                Id { index, generation: place.0 }
            }
            None => {
                self.places.push((0, Some(value)));
                Id { index: self.places.len() as u32 - 1, generation: 0 }
            }
        }
    }

    /// What has this number, if it was not removed.
    pub fn get(&self, id: Id) -> Option<&T> {
        let (generation, value) = self.places.get(id.index as usize)?;
        value.as_ref().filter(|_| *generation == id.generation)
    }

    /// As [`Slab::get`], for a change.
    pub fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        let (generation, value) = self.places.get_mut(id.index as usize)?;
        value.as_mut().filter(|_| *generation == id.generation)
    }

    /// What is at a place now.
    pub fn at(&self, index: u32) -> Option<&T> {
        self.places.get(index as usize)?.1.as_ref()
    }

    /// As [`Slab::at`], for a change.
    pub fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.places.get_mut(index as usize)?.1.as_mut()
    }

    /// The number of what is at a place now.
    pub fn id_at(&self, index: u32) -> Option<Id> {
        let (generation, value) = self.places.get(index as usize)?;
        value.as_ref().map(|_| Id { index, generation: *generation })
    }

    /// Removes what has this number.
    pub fn remove(&mut self, id: Id) -> Option<T> {
        self.get(id)?;
        self.remove_at(id.index)
    }

    /// Removes what is at a place.
    pub fn remove_at(&mut self, index: u32) -> Option<T> {
        let place = self.places.get_mut(index as usize)?;
        let value = place.1.take()?;
        place.0 = place.0.wrapping_add(1);
        self.free.push(index);
        Some(value)
    }

    /// All that are there.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|(_, value)| value.as_ref())
    }
}
