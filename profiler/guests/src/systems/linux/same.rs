//! Files that give names of a guest's program only while they are what the guest runs: another build may be in a file at any time, in the same
//! place, with the same number, length and even build id.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use glass_profiler_core::elf::{ReadAt, build_id_of};

const PAGE_BYTES: u64 = 4096;
/// The most pages of a file that are compared before it is used: 16 MiB. Of a larger one they are all over it. Those that are read are all compared.
const COMPARED_MAX: u64 = 4096;
/// How often pages are compared again, since that by which the file was known is not in the guest's memory any more.
const COMPARED_AGAIN_MAX: u32 = 8;

/// A page of a file that the guest has in memory, too, if the file is what the guest has there: its length, its build id if there is one, and all pages that
/// are compared, of which there has to be one.
fn common_page(file: &dyn ReadAt, cached: &dyn ReadAt, build_id: Option<&[u8]>) -> Option<u64> {
    if file.bytes() != cached.bytes() || build_id.is_some() && build_id_of(file).as_deref() != build_id {
        return None;
    }
    let pages = file.bytes().div_ceil(PAGE_BYTES);
    let (mut common, step) = (None, pages.div_ceil(COMPARED_MAX).max(1));
    for index in (0..pages).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
        match is_same_page(file, cached, index) {
            Some(true) => common = Some(index),
            Some(false) => return None,
            None => {}
        }
    }
    common
}

/// Whether a page is what the guest has in memory of it; `None` if it has not.
fn is_same_page(file: &dyn ReadAt, cached: &dyn ReadAt, index: u64) -> Option<bool> {
    let at = index * PAGE_BYTES;
    let mut bytes = [[0; PAGE_BYTES as usize]; 2];
    let count = PAGE_BYTES.min(file.bytes().checked_sub(at)?) as usize;
    let [ours, guests] = bytes.each_mut().map(|bytes| &mut bytes[..count]);
    cached.read_at(at, guests).then(|| file.read_at(at, ours) && ours == guests)
}

/// A file on a disk, as long as it is what the guest has in memory. Each page is compared after it was read; one that the guest has not in memory is
/// right if the file is still there, unchanged, and another page of it is. It is read page by page.
pub(super) struct OnDisk<D, C, I> {
    disk: D,
    cached: C,
    is_current: I,
    /// A page that the guest has in memory, and how often that was searched for.
    common: Mutex<(u64, u32)>,
    /// It is another file by now.
    is_lost: AtomicBool,
}

impl<D: ReadAt, C: ReadAt, I: Fn() -> bool> OnDisk<D, C, I> {
    /// The file on the disk if it is what the guest has in memory (`cached`), where it is the same as long as `is_current`.
    pub(super) fn new(disk: D, cached: C, is_current: I, build_id: Option<&[u8]>) -> Option<OnDisk<D, C, I>> {
        let common = common_page(&disk, &cached, build_id)?;
        let (common, is_lost) = (Mutex::new((common, 0)), AtomicBool::new(false));
        is_current().then_some(OnDisk { disk, cached, is_current, common, is_lost })
    }

    /// Whether it became another file.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Whether the guest still has a page of it in memory. A file without pages may be one that was removed, whose place on the disk is another one's.
    fn is_there(&self) -> bool {
        let mut common = self.common.lock().unwrap_or_else(PoisonError::into_inner);
        if is_same_page(&self.disk, &self.cached, common.0) == Some(true) {
            return true;
        }
        common.1 += 1;
        let other = if common.1 > COMPARED_AGAIN_MAX { None } else { common_page(&self.disk, &self.cached, None) };
        common.0 = other.unwrap_or(common.0);
        other.is_some()
    }
}

impl<D: ReadAt, C: ReadAt, I: Fn() -> bool + Send + Sync> ReadAt for OnDisk<D, C, I> {
    fn bytes(&self) -> u64 {
        self.disk.bytes()
    }

    fn has_holes(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        if self.is_lost() || !self.disk.read_at(offset, into) {
            return false;
        }
        let mut guests = vec![0; into.len()];
        let is_same = if self.cached.read_at(offset, &mut guests) { *into == *guests } else { self.is_there() };
        let is_right = is_same && (self.is_current)();
        self.is_lost.fetch_or(!is_right, Ordering::Relaxed);
        is_right
    }
}

/// A file of which the guest has pages in memory, as long as it is the same.
pub(super) struct InMemory<C, I> {
    pub(super) cached: C,
    pub(super) is_current: I,
}

impl<C: ReadAt, I: Fn() -> bool + Send + Sync> ReadAt for InMemory<C, I> {
    fn bytes(&self) -> u64 {
        self.cached.bytes()
    }

    fn has_holes(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        self.cached.read_at(offset, into) && (self.is_current)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    /// A file of which some pages are missing.
    #[derive(Clone)]
    struct Partial(Vec<u8>, Vec<u64>);

    impl ReadAt for Partial {
        fn bytes(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
            !self.1.contains(&(offset / PAGE_BYTES)) && self.0.read_at(offset, into)
        }
    }

    fn example() -> Vec<u8> {
        (0..5 * PAGE_BYTES + 100).map(|index| (index / 7) as u8).collect()
    }

    #[test]
    fn a_file_is_what_the_guest_has_in_memory_or_is_not_used() {
        let file = example();
        let partial = |missing: &[u64]| Partial(file.clone(), missing.to_vec());
        let is_same =
            |file: &dyn ReadAt, cached: &dyn ReadAt, id: Option<&[u8]>| common_page(file, cached, id).is_some();
        assert!(is_same(&file, &partial(&[]), None));
        assert!(is_same(&file, &partial(&[0, 2, 5]), None));
        // Nothing to compare it with.
        assert!(!is_same(&file, &partial(&[0, 1, 2, 3, 4, 5]), None));
        // The guest has written to a page, or has more of it on the disk than it can read there.
        let mut changed = file.clone();
        changed[5 * PAGE_BYTES as usize + 99] ^= 1;
        assert!(!is_same(&changed, &partial(&[0, 2]), None));
        assert!(is_same(&changed, &partial(&[5]), None));
        assert!(!is_same(&partial(&[1]), &file, None));
        assert!(!is_same(&file, &partial(&[]), Some(b"a build")));
        changed.push(0);
        assert!(!is_same(&changed, &partial(&[5]), None));
    }

    /// A file whose pages the guest has in memory change.
    #[derive(Clone, Default)]
    struct Cached(Arc<Mutex<Option<Partial>>>);

    impl Cached {
        fn set(&self, missing: &[u64]) {
            *self.0.lock().unwrap() = Some(Partial(example(), missing.to_vec()));
        }
    }

    impl ReadAt for Cached {
        fn bytes(&self) -> u64 {
            example().len() as u64
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
            self.0.lock().unwrap().as_ref().is_some_and(|file| file.read_at(offset, into))
        }
    }

    fn reads(file: &dyn ReadAt, index: u64) -> bool {
        let mut page = vec![0; PAGE_BYTES.min(file.bytes() - index * PAGE_BYTES) as usize];
        file.read_at(index * PAGE_BYTES, &mut page)
    }

    #[test]
    fn pages_of_another_build_are_not_read() {
        let (cached, version) = (Cached::default(), Arc::new(AtomicU64::new(0)));
        let is_current = || {
            let version = Arc::clone(&version);
            move || version.load(Ordering::Relaxed) == 0
        };
        // Page 3 differs, and is not in memory when the file is found.
        let mut disk = example();
        disk[3 * PAGE_BYTES as usize] ^= 1;
        let open = |missing: &[u64]| {
            cached.set(missing);
            OnDisk::new(disk.clone(), cached.clone(), is_current(), None)
        };
        assert!(open(&[]).is_none());
        let file = open(&[3]).unwrap();
        assert!(reads(&file, 0) && reads(&file, 3) && reads(&file, 5) && !file.is_lost());
        cached.set(&[]);
        assert!(!reads(&file, 3) && file.is_lost() && !reads(&file, 0));
        // All that is in memory goes, but one page; then that, too: the file may have been removed.
        let file = open(&[3]).unwrap();
        cached.set(&[0, 1, 3, 4, 5]);
        assert!(reads(&file, 1) && reads(&file, 4));
        cached.set(&[0, 1, 2, 3, 4, 5]);
        assert!(!reads(&file, 1) && file.is_lost());
        // Something has written to it.
        let (file, memory) = (open(&[3]).unwrap(), InMemory { cached: cached.clone(), is_current: is_current() });
        assert!(reads(&file, 0) && reads(&memory, 0) && !reads(&memory, 3));
        version.store(1, Ordering::Relaxed);
        assert!(!reads(&file, 0) && file.is_lost() && !reads(&memory, 0));
        assert!(open(&[3]).is_none());
    }
}
