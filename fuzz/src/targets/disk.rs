//! A file system on a disk that others wrote: the input is a list of changes of a valid one, of which a service then uses every part.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fastrand::Rng;
use glass_api::{
    Block, BlockError, BlockInfo, Buf, Clock, File, FileError, FileKind, Files, Instant, Open, WallSource, WallTime,
    check_request,
};
use glass_lib_fat::Fat;

use super::Target;
use crate::mutate;

/// Bytes of a disk, for each of FAT12, FAT16 and FAT32.
const DISKS: [usize; 3] = [1 << 20, 8 << 20, 40 << 20];
const SECTOR_BYTES: usize = 512;
/// A change: four bytes of the offset, and the new byte.
const CHANGE_BYTES: usize = 5;
/// More than what a service can cause by these operations on a disk of 40 MiB with sectors of 512 bytes.
const REQUESTS_MAX: u64 = 300_000;
const ENTRIES_MAX: usize = 100;

/// A FAT file system.
pub struct FileSystem;

/// Its disk: what it was, and the sectors that have changed.
#[derive(Clone)]
struct Disk(Rc<Sectors>);

struct Sectors {
    base: &'static [u8],
    changed: RefCell<BTreeMap<usize, [u8; SECTOR_BYTES]>>,
    requests: Cell<u64>,
}

impl Disk {
    fn new(base: &'static [u8]) -> Disk {
        Disk(Rc::new(Sectors { base, changed: RefCell::default(), requests: Cell::new(0) }))
    }

    fn sector(&self, number: usize) -> [u8; SECTOR_BYTES] {
        let changed = self.0.changed.borrow().get(&number).copied();
        changed.unwrap_or_else(|| *self.0.base[number * SECTOR_BYTES..].first_chunk().expect("it is on the disk"))
    }

    /// Starts a request, and returns its sectors.
    fn sectors(&self, offset: u64, bytes: usize) -> Result<impl Iterator<Item = usize> + use<>, BlockError> {
        self.0.requests.set(self.0.requests.get() + 1);
        assert!(self.0.requests.get() < REQUESTS_MAX, "too many requests to the disk");
        check_request(self.info(), offset, bytes)?;
        let first = offset as usize / SECTOR_BYTES;
        Ok(first..first + bytes / SECTOR_BYTES)
    }

    /// All of it.
    fn image(&self) -> Vec<u8> {
        (0..self.0.base.len() / SECTOR_BYTES).flat_map(|number| self.sector(number)).collect()
    }
}

impl Block for Disk {
    fn info(&self) -> BlockInfo {
        BlockInfo { sector_bytes: SECTOR_BYTES as u32, size_bytes: self.0.base.len() as u64, read_only: false }
    }

    async fn read(&self, offset: u64, mut buf: Buf) -> (Result<(), BlockError>, Buf) {
        let sectors = match self.sectors(offset, buf.len()) {
            Ok(sectors) => sectors,
            Err(error) => return (Err(error), buf),
        };
        let Some(into) = buf.as_mut() else { return (Err(BlockError::Shared), buf) };
        for (number, into) in sectors.zip(into.chunks_mut(SECTOR_BYTES)) {
            into.copy_from_slice(&self.sector(number));
        }
        (Ok(()), buf)
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf) {
        let sectors = match self.sectors(offset, buf.len()) {
            Ok(sectors) => sectors,
            Err(error) => return (Err(error), buf),
        };
        for (number, from) in sectors.zip(buf.chunks(SECTOR_BYTES)) {
            let bytes = from.try_into().expect("requests have whole sectors");
            self.0.changed.borrow_mut().insert(number, bytes);
        }
        (Ok(()), buf)
    }

    async fn flush(&self) -> Result<(), BlockError> {
        Ok(())
    }
}

/// A clock that stands.
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Instant {
        Instant(0)
    }

    fn sleep_until(&self, _: Instant) -> impl Future<Output = ()> + 'static {
        std::future::pending()
    }

    fn wall(&self) -> Option<WallTime> {
        Some(WallTime { since_epoch: Duration::from_secs(1_700_000_000), source: WallSource::Simulated })
    }
}

/// The result of a future that never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("an operation waits although the disk is done"),
    }
}

async fn put(fat: &Fat<Disk>, path: &str, bytes: usize) -> Result<(), FileError> {
    let file = fat.open(path, Open::Create).await?;
    file.truncate(10).await?;
    let content: Vec<u8> = (0..bytes).map(|at| at as u8 | 1).collect();
    file.write(0, Buf::copy_of(&content).map_err(|_| FileError::OutOfMemory)?).await.0?;
    file.sync().await
}

/// A valid disk, and the places of its bytes that are not zero, of which the tables come first.
fn valid(kind: usize) -> &'static (Vec<u8>, Vec<u32>) {
    static VALID: [OnceLock<(Vec<u8>, Vec<u32>)>; 3] = [const { OnceLock::new() }; 3];
    VALID[kind].get_or_init(|| {
        let disk = Disk::new(Vec::leak(vec![0; DISKS[kind]]));
        now(async {
            let fat = Fat::format(disk.clone(), Stopped).await.expect("the disk is large enough");
            fat.create_dir("directory").await?;
            fat.create_dir("directory/below").await?;
            for number in 0..6 {
                put(&fat, &format!("directory/file with the number {number}"), 3000 * number).await?;
            }
            put(&fat, "file", 70_000).await?;
            fat.sync().await
        })
        .expect("the disk is valid");
        let image = disk.image();
        let used = (0..image.len() as u32).filter(|at| image[*at as usize] != 0).collect();
        (image, used)
    })
}

/// Reads everything that can be reached, up to a bound.
async fn visit(fat: &Fat<Disk>) {
    let mut open = vec![String::new()];
    let mut seen = 0;
    while let Some(path) = open.pop() {
        for entry in fat.read_dir(&path).await.unwrap_or_default() {
            seen += 1;
            if seen > ENTRIES_MAX {
                return;
            }
            assert!(!entry.name.is_empty() && !entry.name.contains(['/', '\0']), "{:?} is no name", entry.name);
            let below = if path.is_empty() { entry.name } else { format!("{path}/{}", entry.name) };
            let _ = fat.metadata(&below).await;
            if entry.kind == FileKind::Directory && below.len() < 200 {
                open.push(below);
            } else if let Ok(file) = fat.open(&below, Open::Read).await {
                for (offset, bytes) in [(0, 10_000), (5, 512), (3072, 4096), (u64::MAX - 5, 100)] {
                    let Ok(buf) = Buf::zeroed(bytes) else { return };
                    let (count, buf) = file.read(offset, buf).await;
                    assert!(buf.len() == bytes && count.is_ok_and(|count| count <= bytes) | count.is_err());
                }
            }
        }
    }
}

impl Target for FileSystem {
    fn name(&self) -> &'static str {
        "file-system"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        (0..3).map(|kind| vec![kind]).collect()
    }

    /// Changes single bytes that mean something.
    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        if rng.u8(..4) == 0 {
            mutate::plain(bytes, corpus, rng);
        }
        let kind = bytes.first().map_or(0, |kind| usize::from(kind % 3));
        let used = &valid(kind).1;
        for _ in 0..rng.usize(1..8) {
            let first = used.len().min(if rng.bool() { 100 } else { 4000 });
            let at = *mutate::pick(rng, &used[..first]) + if rng.u8(..8) == 0 { rng.u32(..64) } else { 0 };
            bytes.extend(at.to_le_bytes());
            bytes.push(if rng.bool() { rng.u8(..) } else { *mutate::pick(rng, &[0, 1, 0xe5, 0xf8, 0xff, 0x10, 0x0f]) });
        }
    }

    fn run(&self, input: &[u8]) {
        let Some((kind, changes)) = input.split_first() else { return };
        let disk = Disk::new(&valid(usize::from(kind % 3)).0);
        for change in changes.chunks_exact(CHANGE_BYTES) {
            let at = u32::from_le_bytes([change[0], change[1], change[2], change[3]]) as usize % disk.0.base.len();
            let mut sector = disk.sector(at / SECTOR_BYTES);
            sector[at % SECTOR_BYTES] = change[4];
            disk.0.changed.borrow_mut().insert(at / SECTOR_BYTES, sector);
        }
        now(async {
            let Ok(fat) = Fat::mount(disk.clone(), Stopped).await else { return };
            visit(&fat).await;
            let _ = put(&fat, "directory/a new file with a long name", 20_000).await;
            let _ = fat.rename("file", "directory/below/moved").await;
            let _ = fat.remove_file("directory/file with the number 3").await;
            let _ = fat.remove_dir("directory/below").await;
            let _ = fat.create_dir("another").await;
            let _ = fat.sync().await;
            visit(&fat).await;
        });
    }

    fn cost(&self) -> u64 {
        8
    }

    fn bytes_max(&self) -> usize {
        1 + 64 * CHANGE_BYTES
    }
}
