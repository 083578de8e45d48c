//! A disk's contents: stable bytes, and newer ones that a power cut may remove.

use crate::chance::Chance;
use std::collections::BTreeMap;

/// The unit that a disk writes whole or not at all, whatever its sector size.
pub(crate) const ATOM_BYTES: usize = 512;

type Atom = Box<[u8; ATOM_BYTES]>;

/// Bytes with a write cache in front of stable storage.
pub(crate) struct Memory {
    /// The contents for readers.
    current: Vec<u8>,
    /// Atoms that differ between cache and stable storage, by their index.
    unstable: BTreeMap<u64, History>,
    /// Completed writes so far.
    generation: u64,
}

/// The contents of an atom before its newest write. The first entry is the stable one.
struct History {
    older: Vec<(u64, Atom)>,
    newest: u64,
}

/// Which unstable atoms survive a power cut. Real disks do any of these.
#[derive(Debug, Clone, Copy)]
enum Survival {
    Nothing,
    Everything,
    /// The cache was written back in the order of the writes.
    UpTo(u64),
    /// Each atom survives independently.
    Any,
    /// Each write survives independently, in whole: the cache was written back in another order.
    Writes,
}

impl Memory {
    pub(crate) fn new(bytes: Vec<u8>) -> Memory {
        Memory { current: bytes, unstable: BTreeMap::new(), generation: 0 }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.current
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.current
    }

    /// The generation for [`Memory::flush`] that covers all writes completed by now.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Writes the atoms for which `lands` is true; both must be aligned to atoms.
    pub(crate) fn write(&mut self, offset: usize, data: &[u8], mut lands: impl FnMut() -> bool) {
        self.generation += 1;
        for (index, atom) in data.chunks_exact(ATOM_BYTES).enumerate() {
            if lands() {
                self.write_atom(offset + index * ATOM_BYTES, atom);
            }
        }
    }

    fn write_atom(&mut self, offset: usize, data: &[u8]) {
        let place = &mut self.current[offset..offset + ATOM_BYTES];
        let mut before: Atom = Box::new([0; ATOM_BYTES]);
        before.copy_from_slice(place);
        place.copy_from_slice(data);
        let history = self
            .unstable
            .entry((offset / ATOM_BYTES) as u64)
            .or_insert_with(|| History { older: Vec::new(), newest: 0 });
        history.older.push((history.newest, before));
        history.newest = self.generation;
    }

    /// Makes the writes up to `generation` stable.
    pub(crate) fn flush(&mut self, generation: u64) {
        self.unstable.retain(|_, history| {
            if history.newest <= generation {
                return false;
            }
            let stable = history.older.iter().rposition(|(written, _)| *written <= generation).unwrap_or(0);
            history.older.drain(..stable);
            true
        });
    }

    /// Cuts the power: returns random contents of the stable storage.
    pub(crate) fn power_cut(&mut self, chance: &mut Chance) {
        let survival = match chance.below(5) {
            0 => Survival::Nothing,
            1 => Survival::Everything,
            2 => Survival::UpTo(chance.below(self.generation + 1)),
            3 => Survival::Any,
            _ => Survival::Writes,
        };
        // By generation.
        let mut writes: BTreeMap<u64, bool> = BTreeMap::new();
        for (index, history) in core::mem::take(&mut self.unstable) {
            // `older.len()` stands for the newest version, which is in place.
            let version = match survival {
                Survival::Nothing => 0,
                Survival::Everything => history.older.len(),
                Survival::UpTo(last) if history.newest <= last => history.older.len(),
                Survival::UpTo(last) => history.older.iter().rposition(|(written, _)| *written <= last).unwrap_or(0),
                Survival::Any => chance.below(history.older.len() as u64 + 1) as usize,
                Survival::Writes => {
                    let mut survives = |write: u64| *writes.entry(write).or_insert_with(|| chance.per_million(500_000));
                    let older = history.older.iter().map(|(written, _)| *written);
                    let mut newer = older.skip(1).chain([history.newest]).collect::<Vec<_>>().into_iter();
                    newer.rposition(&mut survives).map_or(0, |place| place + 1)
                }
            };
            if let Some((_, atom)) = history.older.get(version) {
                let offset = index as usize * ATOM_BYTES;
                self.current[offset..offset + ATOM_BYTES].copy_from_slice(&atom[..]);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn unstable_count(&self) -> usize {
        self.unstable.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn atom(value: u8) -> [u8; ATOM_BYTES] {
        [value; ATOM_BYTES]
    }

    fn memory() -> Memory {
        Memory::new(vec![0; 8 * ATOM_BYTES])
    }

    #[test]
    fn what_was_flushed_survives_every_cut() {
        for seed in 0..200 {
            let mut memory = memory();
            memory.write(0, &atom(1), || true);
            let generation = memory.generation();
            memory.write(ATOM_BYTES, &atom(2), || true);
            memory.flush(generation);
            memory.power_cut(&mut Chance::new(seed));
            assert_eq!(memory.bytes()[0], 1, "seed {seed}");
            assert!([0, 2].contains(&memory.bytes()[ATOM_BYTES]), "seed {seed}");
            assert_eq!(memory.unstable_count(), 0);
        }
    }

    #[test]
    fn a_flush_keeps_newer_versions_unstable() {
        let mut seen = [false; 4];
        for seed in 0..200 {
            let mut memory = memory();
            memory.write(0, &atom(1), || true);
            let generation = memory.generation();
            memory.write(0, &atom(2), || true);
            memory.write(0, &atom(3), || true);
            memory.flush(generation);
            memory.power_cut(&mut Chance::new(seed));
            seen[usize::from(memory.bytes()[0])] = true;
        }
        // Never the version before the flush, and any of the later ones.
        assert_eq!(seen, [false, true, true, true]);
    }

    #[test]
    fn a_write_without_a_flush_tears() {
        let (mut none, mut all, mut part) = (0, 0, 0);
        for seed in 0..200 {
            let mut memory = memory();
            memory.write(0, &[7; 8 * ATOM_BYTES], || true);
            memory.power_cut(&mut Chance::new(seed));
            let landed = memory.bytes().chunks(ATOM_BYTES).filter(|atom| atom[0] == 7).count();
            assert!(memory.bytes().chunks(ATOM_BYTES).all(|atom| atom.iter().all(|byte| *byte == atom[0])));
            match landed {
                0 => none += 1,
                8 => all += 1,
                _ => part += 1,
            }
        }
        assert!(none > 20 && all > 20 && part > 20, "{none} {all} {part}");
    }

    #[test]
    fn a_later_write_may_survive_without_an_earlier_one() {
        let mut seen = 0;
        for seed in 0..400 {
            let mut memory = memory();
            memory.write(0, &[1; 4 * ATOM_BYTES], || true);
            memory.write(4 * ATOM_BYTES, &[2; 4 * ATOM_BYTES], || true);
            memory.power_cut(&mut Chance::new(seed));
            let is_all = |part: &[u8], value: u8| part.iter().all(|byte| *byte == value);
            let (first, second) = memory.bytes().split_at(4 * ATOM_BYTES);
            seen += usize::from(is_all(first, 0) && is_all(second, 2));
        }
        assert!(seen > 10, "{seen} of 400");
    }

    #[test]
    fn a_cut_in_the_order_of_the_writes_leaves_no_gap() {
        // In every case, the first writes of a survivor that is a prefix were there before.
        let mut prefixes = 0;
        for seed in 0..400 {
            let mut memory = memory();
            for index in 0..8 {
                memory.write(index * ATOM_BYTES, &atom(9), || true);
            }
            memory.power_cut(&mut Chance::new(seed));
            let landed: Vec<bool> = memory.bytes().chunks(ATOM_BYTES).map(|atom| atom[0] == 9).collect();
            let count = landed.iter().filter(|landed| **landed).count();
            prefixes += usize::from((1..8).contains(&count) && landed[..count].iter().all(|landed| *landed));
        }
        assert!(prefixes > 40, "{prefixes}");
    }
}
