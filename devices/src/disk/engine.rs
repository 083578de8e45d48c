//! Requests on their way through the host's kernel (io_uring).

use super::request::{Request, Status, Work};
use anyhow::{Context, Result};
use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue, types};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Requests on their way at the same time, at most: no more than QEMU's queue has.
const REQUESTS_MAX: u32 = 256;
/// Bytes of the requests on their way until no others are started, at most: a VM that is stopped has to wait for them.
const BYTES_MAX: u64 = 64 << 20;
/// Bytes in the page cache that are worth a call to begin to write them.
const WRITE_BACK_BYTES: u64 = 512 << 10;
/// A guest that has written so much since its last flush does not wait for one soon: its writes are left to the kernel, which writes a page once that was written
/// several times.
const WRITE_BACK_BYTES_MAX: u64 = 16 << 20;
/// What is written where the file system has no zeroes of its own.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Whether this process may use io_uring, of Linux 5.11 or newer.
pub fn has_io_uring() -> bool {
    IoUring::new(REQUESTS_MAX).is_ok_and(|uring| uring.params().is_feature_ext_arg())
}

/// A ring for what disks need, and for nothing else: its requests are no system calls, so the jail does not see them.
fn restricted() -> io::Result<IoUring> {
    let uring = IoUring::builder().setup_r_disabled().build(REQUESTS_MAX)?;
    let codes = [
        opcode::Read::CODE,
        opcode::Readv::CODE,
        opcode::Write::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
        opcode::Nop::CODE,
    ];
    uring.submitter().register_restrictions(&mut codes.map(Restriction::sqe_op))?;
    uring.submitter().register_enable_rings()?;
    Ok(uring)
}

/// The requests that have been started and have not ended.
pub(super) struct Engine {
    uring: IoUring,
    /// The file, and the same through the page cache, for memory that its own path does not take. Registered with the ring, they would be
    /// open, and locked, for some time after the end of this process.
    disk: File,
    cached: File,
    /// What writes have beside their data: `RWF_DSYNC` if they have to be on stable storage before they end.
    write_flags: i32,
    places: Vec<Option<Place>>,
    free: Vec<usize>,
    /// Bytes of the requests on their way, and how many of those are flushes.
    bytes: u64,
    flushes: usize,
    /// Bytes in the page cache that may not be on their way to the disk, and how many of them may be begun until the next flush.
    unwritten: u64,
    write_back_left: u64,
}

struct Place {
    request: Request,
    /// How much it was at the start.
    bytes: u64,
    /// Whether it was one at the start: what the disk cannot do becomes other work.
    is_flush: bool,
    is_cached: bool,
}

impl Engine {
    /// `cached` is the same file as `disk`.
    pub(super) fn new(disk: File, cached: File) -> Result<Engine> {
        let uring = restricted().context("this host has no io_uring")?;
        let places = (0..REQUESTS_MAX).map(|_| None).collect();
        let free = (0..REQUESTS_MAX as usize).rev().collect();
        Ok(Engine {
            uring,
            disk,
            cached,
            write_flags: 0,
            places,
            free,
            bytes: 0,
            flushes: 0,
            unwritten: 0,
            write_back_left: 0,
        })
    }

    /// Sets whether writes end on stable storage.
    pub(super) fn set_write_through(&mut self, is_set: bool) {
        self.write_flags = if is_set { libc::RWF_DSYNC } else { 0 };
    }

    pub(super) fn is_write_through(&self) -> bool {
        self.write_flags != 0
    }

    /// What is readable when a request has ended.
    pub(super) fn ends(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has it open for as long as it is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }

    pub(super) fn has_space(&self) -> bool {
        !self.free.is_empty() && self.bytes < BYTES_MAX
    }

    /// Whether a request is on its way that a fast disk ends at once: all but flushes.
    pub(super) fn ends_soon(&self) -> bool {
        self.free.len() + self.flushes < self.places.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    /// Whether the kernel has not taken all that was started.
    pub(super) fn has_unsubmitted(&mut self) -> bool {
        !self.uring.submission().is_empty()
    }

    /// Starts a request, for which there is room.
    ///
    /// # Safety
    /// Its pieces are memory that the kernel may use until the request has ended.
    pub(super) unsafe fn start(&mut self, request: Request) {
        let index = self.free.pop().expect("there is room");
        let bytes = request.bytes;
        self.bytes += bytes;
        let is_flush = matches!(request.work, Work::Flush);
        if is_flush {
            self.flushes += 1;
            (self.unwritten, self.write_back_left) = (0, WRITE_BACK_BYTES_MAX);
        }
        self.places[index] = Some(Place { request, bytes, is_flush, is_cached: false });
        // SAFETY: the caller's promise.
        unsafe { self.push(index) };
    }

    /// Writes a request's data to the page cache before it returns.
    ///
    /// # Safety
    /// Its pieces are memory.
    pub(super) unsafe fn write(&mut self, request: &mut Request) -> Status {
        let disk = self.cached.as_raw_fd();
        self.unwritten += request.bytes;
        loop {
            let Request { pieces, offset, .. } = &*request;
            let count = pieces.len() as libc::c_int;
            // SAFETY: the caller's promise; the kernel checks the count.
            let written = unsafe { libc::pwritev(disk, pieces.as_ptr(), count, *offset as libc::off_t) };
            match u64::try_from(written) {
                Ok(0) => return Status::Failed,
                Ok(written) => request.advance(written.min(request.bytes)),
                Err(_) if io::Error::last_os_error().kind() == ErrorKind::Interrupted => {}
                Err(_) => return Status::Failed,
            }
            if request.bytes == 0 {
                self.begin_write_back();
                return Status::Done;
            }
        }
    }

    /// Has the kernel begin to write the page cache to the disk, when that is worth a call and the disk has no flush to do: the next flush waits for less.
    fn begin_write_back(&mut self) {
        if self.unwritten < WRITE_BACK_BYTES || self.unwritten > self.write_back_left || self.flushes > 0 {
            return;
        }
        self.write_back_left -= mem::take(&mut self.unwritten);
        // SAFETY: it uses no memory of ours. What cannot be written is reported by the flush.
        unsafe { libc::sync_file_range(self.cached.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    }

    /// Queues what is left of a request.
    ///
    /// # Safety
    /// That of [`Engine::start`].
    unsafe fn push(&mut self, index: usize) {
        let place = self.places[index].as_ref().expect("the request is on its way");
        let file = if place.is_cached { &self.cached } else { &self.disk };
        let entry = entry(&place.request, types::Fd(file.as_raw_fd()), self.write_flags).user_data(index as u64);
        // SAFETY: the entry points to the request's pieces, which stay where they are until it has ended, and to the memory that they
        // name, for which there is the caller's promise.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        pushed.expect("there are as many entries as requests");
    }

    /// Submits what has been started, and gives each request that has ended to `end`; with `is_waiting` it waits for one.
    pub(super) fn turn(&mut self, is_waiting: bool, mut end: impl FnMut(Request, Status)) -> Result<()> {
        if self.has_unsubmitted() || is_waiting {
            match self.uring.submit_and_wait(usize::from(is_waiting)) {
                Ok(_) => {}
                // Ends have to be taken first.
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(error).context("cannot submit requests"),
            }
        }
        loop {
            let Some(entry) = self.uring.completion().next() else { return Ok(()) };
            let index = entry.user_data() as usize;
            let place = self.places[index].as_mut().expect("the request is on its way");
            match place.advance(entry.result(), self.write_flags != 0) {
                Some(status) => {
                    self.free.push(index);
                    let place = self.places[index].take().expect("the request was on its way");
                    self.bytes -= place.bytes;
                    self.flushes -= usize::from(place.is_flush);
                    end(place.request, status);
                }
                // SAFETY: it is a part of what was started.
                None => unsafe { self.push(index) },
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The kernel may use what the requests on their way point to until it has closed the ring, which it does later than this process.
        if !self.is_empty() {
            mem::forget(mem::take(&mut self.places));
        }
    }
}

impl Place {
    /// Notes what the kernel has returned; with `is_write_through` changes have to be on stable storage before they end. How the request
    /// ended, `None` if something is left.
    fn advance(&mut self, result: i32, is_write_through: bool) -> Option<Status> {
        let Place { request, is_cached, .. } = self;
        match (u64::try_from(result), request.work) {
            (Ok(count @ 1..), Work::Read | Work::Write) => {
                request.advance(count.min(request.bytes));
                if request.bytes > 0 { None } else { Some(Status::Done) }
            }
            // The file ends here: another process has made it shorter.
            (Ok(0), Work::Read | Work::Write) => Some(Status::Failed),
            // Writes have a flag for that.
            (Ok(_), Work::Discard | Work::Zero { .. }) if is_write_through => {
                request.work = Work::Flush;
                None
            }
            (Ok(_), _) => Some(Status::Done),
            (Err(_), work) => match (-result, work) {
                (libc::EINTR | libc::EAGAIN, _) => None,
                // The guest's memory is not aligned as the disk requires.
                (libc::EINVAL, Work::Read | Work::Write) if !*is_cached => {
                    *is_cached = true;
                    None
                }
                // A discard is a hint. A disk of the host has sectors of its own, which may be longer than the guest's: EINVAL.
                (libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL, Work::Discard) => Some(Status::Done),
                (libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL, Work::Zero { .. }) => {
                    request.write_zeroes(&ZEROES);
                    None
                }
                _ => Some(Status::Failed),
            },
        }
    }
}

fn is_temporary(error: &io::Error) -> bool {
    error.kind() == ErrorKind::Interrupted || matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY))
}

/// What the kernel has to do for the rest of a request.
fn entry(request: &Request, file: types::Fd, write_flags: i32) -> squeue::Entry {
    let Request { pieces, offset, bytes, .. } = request;
    let (first, count) = (pieces.as_ptr(), pieces.len() as u32);
    match (request.work, &pieces[..]) {
        (Work::Read, [piece]) => {
            opcode::Read::new(file, piece.iov_base.cast(), piece.iov_len as u32).offset(*offset).build()
        }
        (Work::Write, [piece]) => {
            let write = opcode::Write::new(file, piece.iov_base.cast(), piece.iov_len as u32);
            write.offset(*offset).rw_flags(write_flags).build()
        }
        (Work::Read, _) => opcode::Readv::new(file, first, count).offset(*offset).build(),
        (Work::Write, _) => opcode::Writev::new(file, first, count).offset(*offset).rw_flags(write_flags).build(),
        (Work::Flush, _) => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
        (Work::Discard | Work::Zero { .. }, _) => {
            let how = match request.work {
                Work::Zero { may_unmap: false } => libc::FALLOC_FL_ZERO_RANGE,
                _ => libc::FALLOC_FL_PUNCH_HOLE,
            };
            opcode::Fallocate::new(file, *bytes).offset(*offset).mode(how | libc::FALLOC_FL_KEEP_SIZE).build()
        }
        (Work::Nothing(_), _) => opcode::Nop::new().build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(work: Work) -> Place {
        Place { request: Request::of(work), bytes: 0, is_flush: false, is_cached: false }
    }

    /// EINVAL: a disk of the host has longer sectors than the guest's. The others: it has no such operation.
    #[test]
    fn a_disk_that_cannot_discard_is_written() {
        let zero = Work::Zero { may_unmap: true };
        for error in [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS] {
            let mut zeroes = place(zero);
            assert_eq!(zeroes.advance(-error, false), None);
            assert_eq!((zeroes.request.work, zeroes.request.bytes), (Work::Write, 8192));
            assert_eq!(zeroes.request.pieces.iter().map(|piece| piece.iov_len).sum::<usize>(), 8192);
            assert_eq!(place(Work::Discard).advance(-error, false), Some(Status::Done));
        }
        assert_eq!(place(zero).advance(-libc::EIO, false), Some(Status::Failed));
    }

    #[test]
    fn without_flushes_changes_end_on_stable_storage() {
        for work in [Work::Zero { may_unmap: false }, Work::Discard] {
            assert_eq!(place(work).advance(0, false), Some(Status::Done));
            let mut synced = place(work);
            assert_eq!(synced.advance(0, true), None);
            assert_eq!(synced.request.work, Work::Flush);
            assert_eq!(synced.advance(0, true), Some(Status::Done));
        }
    }

    #[test]
    fn a_long_write_is_written_back_while_there_is_no_flush() {
        if !has_io_uring() {
            return println!("skipped: this host has no io_uring");
        }
        let path = std::env::temp_dir().join(format!("glass-engine-{}", std::process::id()));
        let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut engine = Engine::new(file.try_clone().unwrap(), file).unwrap();
        let data = vec![7; WRITE_BACK_BYTES as usize / 2];
        let mut write = |flushes, left| {
            let piece = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
            let bytes = data.len() as u64;
            let mut request = Request::of(Work::Write);
            (request.bytes, request.pieces) = (bytes, vec![piece]);
            (engine.flushes, engine.write_back_left) = (flushes, left);
            // SAFETY: the piece is `data`, which is only read.
            assert_eq!(unsafe { engine.write(&mut request) }, Status::Done);
            engine.unwritten
        };
        let half = WRITE_BACK_BYTES / 2;
        assert_eq!([write(0, 0), write(0, 0)], [half, 2 * half], "the guest has flushed nothing yet");
        let left = WRITE_BACK_BYTES_MAX;
        assert_eq!([write(0, left), write(0, left), write(0, left)], [0, half, 0]);
        assert_eq!([write(1, left), write(1, left), write(1, left), write(0, left)], [half, 2 * half, 3 * half, 0]);
        engine.flushes = 0;
    }

    /// Its requests are no system calls, so no filter sees them.
    #[test]
    fn the_ring_takes_only_requests_of_disks() {
        let Ok(mut uring) = restricted() else { return println!("skipped: this host has no io_uring") };
        for (entry, expected) in
            [(opcode::Nop::new().build(), 0), (opcode::Close::new(types::Fd(1000)).build(), -libc::EACCES)]
        {
            // SAFETY: neither has memory.
            unsafe { uring.submission().push(&entry) }.unwrap();
            uring.submit_and_wait(1).unwrap();
            assert_eq!(uring.completion().next().map(|end| end.result()), Some(expected));
        }
    }
}
