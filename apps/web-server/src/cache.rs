//! Small files in bounded memory. An entry is used only after its file's version was compared with it.

use crate::limits::CACHE_ENTRY_BYTES;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use glasshouse::Metadata;
use glasshouse::trace::{Counter, Gauge};

pub(crate) static HITS: Counter = Counter::new("cache hits");
pub(crate) static MISSES: Counter = Counter::new("cache misses");
static BYTES: Gauge = Gauge::new("cache bytes");

/// The contents of files by their paths. The ones that were used longest ago give way to new ones.
pub(crate) struct Cache {
    bytes_max: usize,
    bytes: usize,
    entries: BTreeMap<Rc<str>, Entry>,
    /// The paths by their last use.
    uses: BTreeMap<u64, Rc<str>>,
    uses_made: u64,
}

struct Entry {
    version: Metadata,
    content: Rc<Vec<u8>>,
    last_use: u64,
}

impl Cache {
    /// A cache of `bytes_max` bytes, those that its entries cost beside their contents included. With 0 it keeps nothing.
    pub(crate) fn new(bytes_max: usize) -> Cache {
        Cache { bytes_max, bytes: 0, entries: BTreeMap::new(), uses: BTreeMap::new(), uses_made: 0 }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    /// The content of a file, and the version that it is of, which the caller compares with the file's.
    pub(crate) fn get(&mut self, path: &str) -> Option<(Rc<Vec<u8>>, Metadata)> {
        let entry = self.entries.get_mut(path)?;
        self.uses_made += 1;
        let path = self.uses.remove(&entry.last_use)?;
        entry.last_use = self.uses_made;
        self.uses.insert(entry.last_use, path);
        Some((entry.content.clone(), entry.version))
    }

    /// Keeps the content of a file, if it fits and there is memory.
    pub(crate) fn put(&mut self, path: &str, version: Metadata, content: &[u8]) {
        self.remove(path);
        let cost = cost(path, content.len());
        let mut copy = Vec::new();
        if cost > self.bytes_max || copy.try_reserve_exact(content.len()).is_err() {
            return;
        }
        copy.extend_from_slice(content);
        while self.bytes + cost > self.bytes_max {
            let Some((_, oldest)) = self.uses.first_key_value() else { break };
            self.remove(&oldest.clone());
        }
        self.uses_made += 1;
        let path: Rc<str> = path.into();
        self.uses.insert(self.uses_made, path.clone());
        self.entries.insert(path, Entry { version, content: Rc::new(copy), last_use: self.uses_made });
        self.bytes += cost;
        BYTES.set(self.bytes as i64);
    }

    /// Drops what is no longer the content of a file.
    pub(crate) fn remove(&mut self, path: &str) {
        if let Some((path, entry)) = self.entries.remove_entry(path) {
            self.uses.remove(&entry.last_use);
            self.bytes -= cost(&path, entry.content.len());
            BYTES.set(self.bytes as i64);
        }
    }
}

fn cost(path: &str, bytes: usize) -> usize {
    bytes + path.len() + CACHE_ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use glasshouse::FileKind;
    use proptest::prelude::*;

    fn version(number: u64) -> Metadata {
        let (modified, changed) = (Duration::from_secs(number), Duration::from_secs(number));
        Metadata { kind: FileKind::File, bytes: 1, modified, changed, number }
    }

    #[test]
    fn what_was_used_longest_ago_gives_way() {
        let mut cache = Cache::new(3 * cost("a", 100));
        for path in ["a", "b", "c"] {
            cache.put(path, version(1), &[1; 100]);
        }
        assert!(cache.get("a").is_some());
        cache.put("d", version(1), &[1; 100]);
        let kept = ["a", "b", "c", "d"].map(|path| cache.get(path).is_some());
        assert_eq!(kept, [true, false, true, true]);
        cache.put("e", version(1), &[1; 10_000]);
        assert!(cache.get("e").is_none() && cache.get("a").is_some(), "what never fits removes nothing");
        let mut off = Cache::new(0);
        off.put("a", version(1), b"");
        assert!(!off.is_on() && off.get("a").is_none());
    }

    proptest! {
        #[test]
        fn it_has_what_was_put_last_and_never_too_much(
            steps in prop::collection::vec((0u8..8, 0u8..3, 0usize..400), 0..200),
        ) {
            let mut cache = Cache::new(1500);
            let mut last = BTreeMap::new();
            for (number, (path, what, bytes)) in steps.into_iter().enumerate() {
                let name = std::format!("file {path}");
                match what {
                    0 => {
                        cache.put(&name, version(number as u64), &vec![path; bytes]);
                        last.insert(name, (vec![path; bytes], version(number as u64)));
                    }
                    1 => {
                        cache.remove(&name);
                        last.remove(&name);
                    }
                    _ => {
                        if let Some((content, version)) = cache.get(&name) {
                            prop_assert_eq!(Some(&((*content).clone(), version)), last.get(&name));
                        }
                    }
                }
                let costs = cache.entries.iter().map(|(path, entry)| cost(path, entry.content.len()));
                prop_assert_eq!(cache.bytes, costs.sum::<usize>());
                prop_assert!(cache.bytes <= 1500 && cache.uses.len() == cache.entries.len());
            }
        }
    }
}
