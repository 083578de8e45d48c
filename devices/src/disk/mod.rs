//! The disk of a VM in a file of the host (virtio 1.2, section 5.2).
//!
//! A request to QEMU's own disk costs the VM an exit, and mostly an interrupt. Here a thread looks for the next request, and for the end of
//! those that are on their way, for a moment before it sleeps, so that a guest that does the same pays for neither. The host's kernel reads
//! and writes the VM's memory directly. Any guest with a driver for virtio-blk can have it.

mod engine;
mod interrupts;
mod record;
mod request;
#[cfg(test)]
mod tests;

use crate::device::{Device, Host, Turn};
use crate::rings::Ring;
use anyhow::{Context, Result, anyhow, ensure};
use engine::Engine;
pub use engine::has_io_uring;
use glass_lib_jail::{Condition, SystemCalls};
use glass_lib_lock::Access;
use record::Recorder;
pub use record::WriteLog;
use request::{Limits, RANGE_SECTORS_MAX, Request, SECTOR_BYTES, Status, Work};
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use virtio_queue::QueueT;
use vm_memory::GuestMemoryMmap;

/// Features (virtio 1.2, section 5.2.3).
const SEG_MAX: u64 = 1 << 2;
const READ_ONLY: u64 = 1 << 5;
const BLK_SIZE: u64 = 1 << 6;
const FLUSH: u64 = 1 << 9;
const TOPOLOGY: u64 = 1 << 10;
const DISCARD: u64 = 1 << 13;
const WRITE_ZEROES: u64 = 1 << 14;

/// Pieces of a request: what a queue of 128 has room for.
const SEGMENTS_MAX: u32 = 126;
/// Sectors of what the host writes at once, as a power of two: those of a page.
const PAGE_SECTORS_LOG2: u8 = 3;
const CONFIG_BYTES: usize = 60;

/// How long the next request is looked for before the thread sleeps, and how long the end of one: longer than a fast disk takes.
const REQUEST_POLL_TIME: Duration = Duration::from_micros(5);
const COMPLETION_POLL_TIME: Duration = Duration::from_micros(200);
/// How long the disk works until QEMU's messages are looked for.
const TURN: Duration = Duration::from_millis(1);

/// Bytes that are written to the page cache before the guest learns of it.
const ROUND_BYTES: u64 = 256 << 10;
/// A write to the page cache that took so long had to wait for the disk: then the next ones are left to the kernel's threads, so that other
/// requests do not wait with them, for some time.
const WRITE_SLOW: Duration = Duration::from_millis(2);
const WRITES_SLOW: Duration = Duration::from_secs(1);

/// How a disk is served.
#[derive(Debug, Clone, Default)]
pub struct DiskOptions {
    /// Past the host's page cache.
    pub is_direct: bool,
    /// The guest cannot change it.
    pub is_read_only: bool,
    /// Where to record what the guest writes.
    pub write_log: Option<WriteLog>,
}

/// The disk.
pub struct Disk {
    engine: Engine,
    recorder: Option<Recorder>,
    limits: Limits,
    config: [u8; CONFIG_BYTES],
    is_direct: bool,
    /// Where requests past the page cache end.
    core: Option<usize>,
    /// Until when writes are left to the kernel's threads.
    slow_until: Option<Instant>,
    /// Pieces of the request that is parsed.
    read: Vec<libc::iovec>,
    written: Vec<libc::iovec>,
    /// What has ended, for the queue.
    used: Vec<(u16, u32)>,
}

// SAFETY: its pointers are addresses of the guest's memory, which every thread of the process has, and which stays mapped as long as the
// requests are on their way (`Disk::finish`); all else can be sent.
unsafe impl Send for Disk {}

impl Disk {
    /// Opens a file or a block device.
    pub fn open(path: &Path, options: &DiskOptions) -> Result<Disk> {
        let DiskOptions { is_direct, is_read_only, ref write_log } = *options;
        let open = |flags: i32| {
            let file = OpenOptions::new().read(true).write(!is_read_only).custom_flags(flags).open(path);
            file.with_context(|| format!("cannot open the disk {}", path.display()))
        };
        let mut cached = open(0)?;
        let access = if is_read_only { Access::Read } else { Access::Write };
        glass_lib_lock::lock(&cached, access).map_err(|refused| anyhow!(refused.sentence(path)))?;
        let disk = if is_direct {
            open(libc::O_DIRECT).context("its file system may have no direct access: leave out --disk-direct then")?
        } else {
            cached.try_clone()?
        };
        let core = if is_direct { interrupts::core_of(&disk) } else { None };
        // The metadata of a block device do not contain its size.
        let bytes = cached.seek(SeekFrom::End(0)).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(
            bytes >= SECTOR_BYTES,
            "disk {} has {bytes} bytes, less than a sector of {SECTOR_BYTES}: use a larger one",
            path.display()
        );
        let limits = Limits { bytes: bytes / SECTOR_BYTES * SECTOR_BYTES, is_read_only };
        let start = |log| Recorder::start(log, &cached, path, limits.bytes);
        let recorder = write_log.as_ref().map(start).transpose()?;
        Ok(Disk {
            engine: Engine::new(disk, cached)?,
            recorder,
            limits,
            config: config(limits),
            is_direct,
            core,
            slow_until: None,
            read: Vec::new(),
            written: Vec::new(),
            used: Vec::new(),
        })
    }

    /// For a process that has the VM's `processors`, too: keeps this thread, and those that it starts later, off the core where requests past
    /// the page cache end, if enough others are left. The disk's own thread moves there.
    pub fn leave_core(&self, processors: u32) {
        if let Some(core) = self.core {
            interrupts::stay_off(core, processors);
        }
    }

    /// Starts what the guest has queued, and gives back what has ended. Whether there was anything.
    fn round(&mut self, memory: &GuestMemoryMmap, ring: &mut Ring) -> Result<bool> {
        let mut round = ring.round(memory);
        let mut is_busy = false;
        let mut bytes = 0;
        while bytes < ROUND_BYTES
            && self.engine.has_space()
            && let Some(head) = ring.next_request(memory, &mut round, &mut self.read, &mut self.written)
        {
            is_busy = true;
            // SAFETY: the pieces are the guest's memory.
            let mut request = unsafe { Request::parse(head, self.limits, &mut self.read, &mut self.written) };
            if let Some(recorder) = &mut self.recorder {
                // SAFETY: the pieces are the guest's memory.
                unsafe { recorder.arrives(&mut request, self.engine.is_write_through()) };
            }
            match request.work {
                // SAFETY: the guest's memory is there.
                Work::Nothing(status) => self.used.push(unsafe { request.end(status) }),
                Work::Write if request.bytes <= ROUND_BYTES && self.writes_at_once() => {
                    bytes += request.bytes;
                    self.write(request);
                }
                // SAFETY: the guest's memory stays until `finish` has waited for all requests.
                _ => unsafe { self.engine.start(request) },
            }
        }
        is_busy |= self.end(memory, ring, false)?;
        Ok(is_busy)
    }

    /// Whether writes to the page cache are made by this thread: the kernel's threads take several times as long for a small one.
    fn writes_at_once(&mut self) -> bool {
        if self.slow_until.is_some_and(|end| Instant::now() >= end) {
            self.slow_until = None;
        }
        !self.is_direct && !self.engine.is_write_through() && self.slow_until.is_none()
    }

    fn write(&mut self, mut request: Request) {
        let start = Instant::now();
        // SAFETY: the pieces are the guest's memory.
        let status = unsafe { self.engine.write(&mut request) };
        let end = Instant::now();
        if end - start > WRITE_SLOW {
            self.slow_until = Some(end + WRITES_SLOW);
        }
        // SAFETY: the guest's memory is there.
        unsafe { give_back(&mut self.used, &mut self.recorder, request, status) };
    }

    /// Gives back what has ended; with `is_waiting` it waits for something. Whether there was anything.
    fn end(&mut self, memory: &GuestMemoryMmap, ring: &mut Ring, is_waiting: bool) -> Result<bool> {
        let Disk { engine, used, recorder, .. } = self;
        // SAFETY: the guest's memory is there.
        engine.turn(is_waiting, |request, status| unsafe { give_back(used, recorder, request, status) })?;
        if used.is_empty() {
            return Ok(false);
        }
        if let Some(recorder) = recorder {
            recorder.complete();
        }
        if ring.complete(memory, used) {
            ring.interrupt();
        }
        used.clear();
        Ok(true)
    }
}

/// Adds a request that has ended to what the guest gets back.
///
/// # Safety
/// The guest's memory is there.
unsafe fn give_back(used: &mut Vec<(u16, u32)>, recorder: &mut Option<Recorder>, request: Request, status: Status) {
    if let Some(recorder) = recorder {
        recorder.ends(&request, status);
    }
    // SAFETY: the caller's promise.
    used.push(unsafe { request.end(status) });
}

impl Device for Disk {
    const NAME: &'static str = "disk";
    const ID: u32 = 2;
    const QUEUES: usize = 1;

    /// Requests, writes to the page cache, and the core of its thread.
    fn allow(system_calls: SystemCalls) -> SystemCalls {
        let itself = Condition { argument: 0, mask: u32::MAX, value: 0 };
        let system_calls = system_calls.allow_where(libc::SYS_sched_setaffinity, &[itself]);
        system_calls.allow(&[libc::SYS_io_uring_enter, libc::SYS_pwritev, libc::SYS_sync_file_range])
    }

    fn begin(&self) {
        if let Some(core) = self.core {
            interrupts::stay_on(core);
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.recorder.as_ref().map_or(0, |_| record::COPIES_BYTES_MAX)
    }

    fn features(&self) -> u64 {
        let of_writer = if self.limits.is_read_only { READ_ONLY } else { FLUSH | DISCARD | WRITE_ZEROES };
        SEG_MAX | BLK_SIZE | TOPOLOGY | of_writer
    }

    fn config(&self) -> Option<&[u8]> {
        Some(&self.config)
    }

    fn agree(&mut self, features: u64) -> Result<()> {
        // A driver that cannot flush relies on each write (section 5.2.5.2).
        self.engine.set_write_through(features & FLUSH == 0);
        Ok(())
    }

    fn work(&mut self, memory: &GuestMemoryMmap, rings: &mut [Ring]) -> Result<Turn> {
        let [ring] = rings else { unreachable!("there is one queue") };
        if !ring.is_running() {
            return Ok(Turn::NeedsGuest);
        }
        // A notification costs the guest an exit, so it makes one only while nothing is looked for.
        let _ = ring.queue.disable_notification(memory);
        let start = Instant::now();
        let mut busy = start;
        loop {
            let is_busy = self.round(memory, ring)?;
            if !ring.is_running() {
                return Ok(Turn::NeedsGuest);
            }
            let now = Instant::now();
            if is_busy {
                busy = now;
            }
            if now - start > TURN {
                return Ok(Turn::Busy);
            }
            if now - busy > if self.engine.ends_soon() { COMPLETION_POLL_TIME } else { REQUEST_POLL_TIME } {
                break;
            }
            std::hint::spin_loop();
        }
        let has_request = ring.queue.enable_notification(memory).unwrap_or(false) && self.engine.has_space();
        Ok(if has_request || self.engine.has_unsubmitted() { Turn::Busy } else { Turn::Done })
    }

    fn finish(&mut self, memory: &GuestMemoryMmap, rings: &mut [Ring]) -> Result<()> {
        let [ring] = rings else { unreachable!("there is one queue") };
        while !self.engine.is_empty() {
            self.end(memory, ring, true)?;
        }
        Ok(())
    }

    fn host(&self) -> Option<Host<'_>> {
        Some(Host { file: self.engine.ends(), error: "the disk's requests are lost" })
    }
}

/// The configuration that the guest reads.
fn config(limits: Limits) -> [u8; CONFIG_BYTES] {
    let mut config = [0; CONFIG_BYTES];
    let mut set = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
    set(0, &(limits.bytes / SECTOR_BYTES).to_le_bytes());
    set(12, &SEGMENTS_MAX.to_le_bytes());
    set(20, &(SECTOR_BYTES as u32).to_le_bytes());
    set(24, &[PAGE_SECTORS_LOG2, 0]);
    set(26, &(1_u16 << PAGE_SECTORS_LOG2).to_le_bytes());
    // Queues.
    set(34, &1_u16.to_le_bytes());
    // What is discarded or set to zero by a request: sectors, ranges, and the alignment of a discard; zeroes may be unmapped.
    set(36, &RANGE_SECTORS_MAX.to_le_bytes());
    set(40, &1_u32.to_le_bytes());
    set(44, &(1_u32 << PAGE_SECTORS_LOG2).to_le_bytes());
    set(48, &RANGE_SECTORS_MAX.to_le_bytes());
    set(52, &1_u32.to_le_bytes());
    set(56, &[1]);
    config
}
