//! The recordings of the last hours, in a folder of bounded size: `segments/NAME/START-DURATION-PID-SAMPLES-BUSY.pftrace`, times in milliseconds.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes of a VM's name that its folder has.
const NAME_BYTES_MAX: usize = 64;

/// A recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The VM's folder.
    pub vm: String,
    /// When it started, in milliseconds since 1970.
    pub start_ms: u64,
    /// How long it is.
    pub duration_ms: u64,
    /// The VM's process.
    pub pid: u32,
    /// Samples in it, and those of them in which code ran.
    pub samples: u64,
    pub busy: u64,
    /// Its size.
    pub bytes: u64,
}

impl Segment {
    /// Its file's name.
    pub fn file_name(&self) -> String {
        let Segment { start_ms, duration_ms, pid, samples, busy, .. } = self;
        format!("{start_ms}-{duration_ms}-{pid}-{samples}-{busy}.pftrace")
    }

    fn parse(vm: &str, name: &str, bytes: u64) -> Option<Segment> {
        let numbers: Vec<u64> =
            name.strip_suffix(".pftrace")?.split('-').map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let [start_ms, duration_ms, pid, samples, busy] = numbers[..] else { return None };
        let pid = u32::try_from(pid).ok()?;
        Some(Segment { vm: vm.to_owned(), start_ms, duration_ms, pid, samples, busy, bytes })
    }
}

/// A name that a folder, a label and an address can have: letters, digits, `.`, `_` and `-`.
pub fn safe_name(name: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let safe: String = name.chars().map(|c| if is_safe(c) { c } else { '_' }).take(NAME_BYTES_MAX).collect();
    // Neither a hidden file nor a parent.
    let safe = safe.trim_start_matches('.').to_owned();
    if safe.is_empty() { "vm".to_owned() } else { safe }
}

/// The folder.
#[derive(Debug)]
pub struct Segments {
    folder: PathBuf,
    /// By start, VM and process; the oldest are first.
    all: BTreeMap<(u64, String, u32), Segment>,
    bytes: u64,
}

impl Segments {
    /// Opens or makes it, and finds what an earlier agent has left.
    pub fn open(folder: &Path) -> io::Result<Segments> {
        let folder = folder.join("segments");
        fs::create_dir_all(&folder)?;
        let mut segments = Segments { folder: folder.clone(), all: BTreeMap::new(), bytes: 0 };
        for vm in fs::read_dir(&folder)?.flatten() {
            let Ok(name) = vm.file_name().into_string() else { continue };
            for file in fs::read_dir(vm.path()).into_iter().flatten().flatten() {
                let bytes = file.metadata().map_or(0, |metadata| metadata.len());
                if let Some(segment) = file.file_name().to_str().and_then(|file| Segment::parse(&name, file, bytes)) {
                    segments.note(segment);
                }
            }
        }
        Ok(segments)
    }

    fn note(&mut self, segment: Segment) {
        self.bytes += segment.bytes;
        let key = (segment.start_ms, segment.vm.clone(), segment.pid);
        if let Some(old) = self.all.insert(key, segment) {
            self.bytes -= old.bytes;
        }
    }

    /// Takes a finished recording, which is in the same file system, and removes the oldest ones until at most `bytes_max` bytes are kept.
    /// Returns how many these were.
    pub fn add(&mut self, file: &Path, mut segment: Segment, bytes_max: u64) -> io::Result<u64> {
        segment.bytes = fs::metadata(file)?.len();
        fs::create_dir_all(self.folder.join(&segment.vm))?;
        fs::rename(file, self.path(&segment))?;
        self.note(segment);
        let mut removed = 0;
        // The newest stays, however large it is.
        while self.bytes > bytes_max && self.all.len() > 1 {
            let Some((_, oldest)) = self.all.pop_first() else { break };
            self.bytes -= oldest.bytes;
            removed += 1;
            // It may have been removed by hand.
            let _ = fs::remove_file(self.path(&oldest));
            let _ = fs::remove_dir(self.folder.join(&oldest.vm));
        }
        Ok(removed)
    }

    /// Where a recording is.
    pub fn path(&self, segment: &Segment) -> PathBuf {
        self.folder.join(&segment.vm).join(segment.file_name())
    }

    /// All, the oldest first.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = &Segment> {
        self.all.values()
    }

    /// That of a VM with this name of a file.
    pub fn find(&self, vm: &str, file: &str) -> Option<&Segment> {
        let segment = Segment::parse(vm, file, 0)?;
        self.all.get(&(segment.start_ms, segment.vm, segment.pid)).filter(|known| known.file_name() == file)
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(vm: &str, start_ms: u64) -> Segment {
        Segment { vm: vm.to_owned(), start_ms, duration_ms: 60_000, pid: 7, samples: 9, busy: 4, bytes: 0 }
    }

    #[test]
    fn the_oldest_are_removed_and_all_are_found_again() {
        let folder = std::env::temp_dir().join(format!("glass-agent-segments-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let mut segments = Segments::open(&folder).unwrap();
        let add = |segments: &mut Segments, vm: &str, start_ms| {
            let file = folder.join("new");
            fs::write(&file, [0; 100]).unwrap();
            segments.add(&file, segment(vm, start_ms), 250).unwrap()
        };
        assert_eq!([add(&mut segments, "a", 1), add(&mut segments, "b", 2), add(&mut segments, "b", 3)], [0, 0, 1]);
        let starts: Vec<u64> = segments.all().map(|segment| segment.start_ms).collect();
        assert_eq!((starts, segments.bytes()), (vec![2, 3], 200));
        let again = Segments::open(&folder).unwrap();
        assert_eq!((again.all().count(), again.bytes()), (2, 200));
        let found = again.find("b", &segment("b", 3).file_name()).unwrap();
        assert!(again.path(found).is_file());
        for (vm, file) in
            [("a", "3-60000-7-9-4.pftrace"), ("b", "../b/3-60000-7-9-4.pftrace"), ("b", "3-1-7-9-4.pftrace")]
        {
            assert_eq!(again.find(vm, file), None, "{vm} {file}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn names_are_safe() {
        for (name, safe) in
            [("web-1", "web-1"), ("../../etc", "_.._etc"), ("", "vm"), ("...", "vm"), ("a b/ü", "a_b__")]
        {
            assert_eq!(safe_name(name), safe, "{name}");
        }
        assert_eq!(safe_name(&"x".repeat(200)).len(), NAME_BYTES_MAX);
    }
}
