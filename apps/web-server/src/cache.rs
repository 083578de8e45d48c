//! Files in bounded memory. An entry is used only after its file's version was compared with it.

use crate::limits::{CACHE_ENTRY_BYTES, CACHED_FILE_SHARE};
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;
use glasshouse::Metadata;
use glasshouse::trace::{Counter, Gauge};

pub(crate) static HITS: Counter = Counter::new("cache hits");
pub(crate) static MISSES: Counter = Counter::new("cache misses");
pub(crate) static BYTES: Gauge = Gauge::new("cache bytes");

/// The contents of files by their paths. The ones that were used longest ago give way to new ones.
pub(crate) struct Cache {
    bytes_max: usize,
    /// What all contents cost that exist: those of entries, one that is read, and removed ones that are still sent.
    bytes: Rc<Cell<usize>>,
    entries: BTreeMap<Rc<str>, Entry>,
    /// The paths by their last use.
    uses: BTreeMap<u64, Rc<str>>,
    uses_made: u64,
    /// It has a second owner while a file is read.
    reading: Rc<()>,
}

struct Entry {
    version: Metadata,
    content: Rc<Content>,
    last_use: u64,
}

/// The content of a file. It is counted as long as it exists.
pub(crate) struct Content {
    pub(crate) bytes: Vec<u8>,
    cost: usize,
    total: Rc<Cell<usize>>,
}

impl Drop for Content {
    fn drop(&mut self) {
        self.total.set(self.total.get() - self.cost);
        BYTES.set(self.total.get() as i64);
    }
}

/// Memory for a file that is read now.
pub(crate) struct Place {
    content: Content,
    _reading: Rc<()>,
}

impl Place {
    /// Where the file's bytes go. There is room for all of them.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.content.bytes
    }
}

impl Cache {
    /// A cache of `bytes_max` bytes, those that its entries cost beside their contents included. With 0 it keeps nothing.
    pub(crate) fn new(bytes_max: usize) -> Cache {
        Cache {
            bytes_max,
            bytes: Rc::default(),
            entries: BTreeMap::new(),
            uses: BTreeMap::new(),
            uses_made: 0,
            reading: Rc::new(()),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    /// The content of a file, and the version that it is of, which the caller compares with the file's.
    pub(crate) fn get(&mut self, path: &str) -> Option<(Rc<Content>, Metadata)> {
        let entry = self.entries.get_mut(path)?;
        self.uses_made += 1;
        let path = self.uses.remove(&entry.last_use)?;
        entry.last_use = self.uses_made;
        self.uses.insert(entry.last_use, path);
        Some((entry.content.clone(), entry.version))
    }

    /// Makes room for a file of so many bytes. `None` if it is too long, another file is read now, there is no memory, or what would have to
    /// give way is being sent.
    pub(crate) fn reserve(&mut self, path: &str, bytes: u64) -> Option<Place> {
        let bytes_max = self.bytes_max / CACHED_FILE_SHARE;
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= bytes_max)?;
        if Rc::strong_count(&self.reading) > 1 {
            return None;
        }
        let cost = bytes + path.len() + CACHE_ENTRY_BYTES;
        while self.bytes.get() + cost > self.bytes_max {
            let is_unused =
                |path: &&Rc<str>| self.entries.get(*path).is_some_and(|entry| Rc::strong_count(&entry.content) == 1);
            let oldest = self.uses.values().find(is_unused)?.clone();
            self.remove(&oldest);
        }
        let mut content = Vec::new();
        content.try_reserve_exact(bytes).ok()?;
        self.bytes.set(self.bytes.get() + cost);
        let content = Content { bytes: content, cost, total: self.bytes.clone() };
        Some(Place { content, _reading: self.reading.clone() })
    }

    /// Keeps what was read of a file, and returns it.
    pub(crate) fn put(&mut self, path: &str, version: Metadata, place: Place) -> Rc<Content> {
        self.remove(path);
        let content = Rc::new(place.content);
        self.uses_made += 1;
        let path: Rc<str> = path.into();
        self.uses.insert(self.uses_made, path.clone());
        self.entries.insert(path, Entry { version, content: content.clone(), last_use: self.uses_made });
        BYTES.set(self.bytes.get() as i64);
        content
    }

    /// Drops what is no longer the content of a file.
    pub(crate) fn remove(&mut self, path: &str) {
        if let Some(entry) = self.entries.remove(path) {
            self.uses.remove(&entry.last_use);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use core::time::Duration;
    use glasshouse::FileKind;
    use proptest::prelude::*;

    fn version(number: u64) -> Metadata {
        let (modified, changed) = (Duration::from_secs(number), Duration::from_secs(number));
        Metadata { kind: FileKind::File, bytes: 1, modified, changed, number, links: 1 }
    }

    /// Reads a file into it, if there is room.
    fn put(cache: &mut Cache, path: &str, number: u64, bytes: &[u8]) -> Option<Rc<Content>> {
        let mut place = cache.reserve(path, bytes.len() as u64)?;
        place.bytes().extend_from_slice(bytes);
        Some(cache.put(path, version(number), place))
    }

    const COST: usize = 100 + 1 + CACHE_ENTRY_BYTES;

    #[test]
    fn what_was_used_longest_ago_gives_way() {
        let mut cache = Cache::new(3 * COST);
        for path in ["a", "b", "c"] {
            put(&mut cache, path, 1, &[1; 100]);
        }
        assert!(cache.get("a").is_some());
        put(&mut cache, "d", 1, &[1; 100]);
        let kept = ["a", "b", "c", "d"].map(|path| cache.get(path).is_some());
        assert_eq!(kept, [true, false, true, true]);
        assert!(put(&mut cache, "e", 1, &[1; 10_000]).is_none());
        assert!(cache.get("e").is_none() && cache.get("a").is_some(), "what never fits removes nothing");
        let mut off = Cache::new(0);
        assert!(put(&mut off, "a", 1, b"").is_none() && !off.is_on() && off.get("a").is_none());
    }

    #[test]
    fn one_file_is_read_at_a_time() {
        let mut cache = Cache::new(8 * COST);
        let place = cache.reserve("a", 100);
        assert!(place.is_some() && cache.reserve("b", 100).is_none());
        drop(place);
        assert!(cache.reserve("b", 100).is_some());
    }

    #[test]
    fn what_is_sent_or_read_is_counted() {
        let mut cache = Cache::new(2 * COST);
        let sent = put(&mut cache, "a", 1, &[1; 100]);
        let place = cache.reserve("b", 100);
        assert!(place.is_some() && put(&mut cache, "c", 1, &[1; 100]).is_none());
        drop(place);
        put(&mut cache, "b", 1, &[1; 100]);
        // The older one is being sent, so the newer one gives way.
        put(&mut cache, "c", 1, &[1; 100]);
        assert_eq!(["a", "b", "c"].map(|path| cache.get(path).is_some()), [true, false, true]);
        // Removed, but not gone.
        cache.remove("a");
        let other = put(&mut cache, "d", 1, &[1; 100]);
        assert!(other.is_some() && put(&mut cache, "e", 1, &[1; 100]).is_none());
        drop((sent, other));
        assert!(put(&mut cache, "e", 1, &[1; 100]).is_some());
    }

    proptest! {
        #[test]
        fn it_has_what_was_put_last_and_never_too_much(
            steps in prop::collection::vec((0u8..8, 0u8..4, 0usize..400), 0..200),
        ) {
            let mut cache = Cache::new(1500);
            let mut last = BTreeMap::new();
            let mut sent = VecDeque::new();
            for (number, (path, what, bytes)) in steps.into_iter().enumerate() {
                let name = std::format!("file {path}");
                match what {
                    0 => {
                        if put(&mut cache, &name, number as u64, &vec![path; bytes]).is_some() {
                            last.insert(name, (vec![path; bytes], version(number as u64)));
                        }
                    }
                    1 => {
                        cache.remove(&name);
                        last.remove(&name);
                    }
                    2 => _ = sent.pop_front(),
                    _ => {
                        if let Some((content, version)) = cache.get(&name) {
                            prop_assert_eq!(Some(&(content.bytes.clone(), version)), last.get(&name));
                            sent.push_back(content);
                        }
                    }
                }
                let kept = cache.entries.values().map(|entry| &entry.content);
                let all: BTreeMap<_, _> =
                    kept.chain(&sent).map(|content| (Rc::as_ptr(content), content.cost)).collect();
                prop_assert_eq!(cache.bytes.get(), all.values().sum::<usize>());
                prop_assert!(cache.bytes.get() <= 1500 && cache.uses.len() == cache.entries.len());
            }
        }
    }
}
