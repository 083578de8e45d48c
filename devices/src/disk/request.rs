//! A request as the guest's driver writes it (virtio 1.2, section 5.2.6).

use std::mem;

/// The unit of offsets, whatever the disk's sectors are.
pub(super) const SECTOR_BYTES: u64 = 512;
/// The longest request to discard or to write zeroes.
pub(super) const RANGE_SECTORS_MAX: u32 = 8192;

/// The longest read or write: far more than a driver makes of 126 pieces, and what a VM that is stopped may have to wait for.
pub(super) const REQUEST_BYTES_MAX: u64 = 64 << 20;

/// In front of a request: type, reserved, sector.
const HEADER_BYTES: usize = 16;
/// What a request to discard or to write zeroes has behind it: sector, number of sectors, flags.
const RANGE_BYTES: usize = 16;
/// The longest answer to a question for the disk's name.
const NAME_BYTES: usize = 20;
/// In a range's flags: its blocks may be given back to the host.
const MAY_UNMAP: u32 = 1;

/// Types of a request.
mod kind {
    pub(super) const READ: u32 = 0;
    pub(super) const WRITE: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const GET_ID: u32 = 8;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const WRITE_ZEROES: u32 = 13;
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Done = 0,
    Failed = 1,
    Unsupported = 2,
}

/// What the host has to do for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Read,
    Write,
    Flush,
    /// The blocks may be given back to the host.
    Discard,
    Zero {
        may_unmap: bool,
    },
    /// Nothing: the answer is known.
    Nothing(Status),
}

/// What there is to know about a disk for its requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) bytes: u64,
    pub(super) is_read_only: bool,
}

/// A request.
#[derive(Debug)]
pub(super) struct Request {
    head: u16,
    pub(super) work: Work,
    /// Where on the disk what is left starts.
    pub(super) offset: u64,
    /// How much is left.
    pub(super) bytes: u64,
    /// Memory for what is left, of the guest; of a read or a write.
    pub(super) pieces: Vec<libc::iovec>,
    /// Bytes that were written to the guest's memory.
    written: u32,
    /// Where its status is written; null if the guest has left no room for it.
    status: *mut u8,
    /// In the log of writes.
    pub(super) number: Option<u32>,
    /// Data that are written in place of the guest's memory, if `pieces` points to them.
    copy: Vec<u8>,
}

impl Request {
    /// Parses what a guest has offered as its descriptor `head`, and takes the pieces that it needs.
    ///
    /// # Safety
    /// The pieces are memory of the guest: what the device may read, and what it may write.
    pub(super) unsafe fn parse(
        head: u16,
        limits: Limits,
        read: &mut Vec<libc::iovec>,
        written: &mut Vec<libc::iovec>,
    ) -> Request {
        let status = take_last(written);
        let none = Work::Nothing(Status::Failed);
        let mut request = Request {
            head,
            work: none,
            offset: 0,
            bytes: 0,
            pieces: Vec::new(),
            written: 0,
            status: status.unwrap_or(std::ptr::null_mut()),
            number: None,
            copy: Vec::new(),
        };
        // SAFETY: the caller's promise.
        let header = unsafe { take_front::<HEADER_BYTES>(read) };
        let (Some(header), Some(_)) = (header, status) else { return request };
        let kind = u32::from_le_bytes(*header.first_chunk().expect("16 bytes"));
        let sector = u64::from_le_bytes(*header.last_chunk().expect("16 bytes"));
        let size = |pieces: &[libc::iovec]| pieces.iter().map(|piece| piece.iov_len as u64).sum::<u64>();
        match kind {
            kind::READ => request.take(Work::Read, limits, sector, size(written), written),
            kind::WRITE => request.take(Work::Write, limits, sector, size(read), read),
            kind::FLUSH => request.work = Work::Flush,
            kind::GET_ID => {
                request.written = clear(written, NAME_BYTES) as u32;
                request.work = Work::Nothing(Status::Done);
            }
            kind @ (kind::DISCARD | kind::WRITE_ZEROES) => {
                // SAFETY: the caller's promise.
                let Some(range) = (unsafe { take_front::<RANGE_BYTES>(read) }) else { return request };
                let sector = u64::from_le_bytes(*range.first_chunk().expect("16 bytes"));
                let word = |at: usize| u32::from_le_bytes(*range[at..].first_chunk().expect("16 bytes"));
                let (sectors, flags) = (word(8), word(12));
                let unknown = if kind == kind::DISCARD { flags } else { flags & !MAY_UNMAP };
                if unknown != 0 {
                    request.work = Work::Nothing(Status::Unsupported);
                } else if read.is_empty() && sectors <= RANGE_SECTORS_MAX {
                    let work = match kind {
                        kind::DISCARD => Work::Discard,
                        _ => Work::Zero { may_unmap: flags & MAY_UNMAP != 0 },
                    };
                    request.take(work, limits, sector, u64::from(sectors) * SECTOR_BYTES, &mut Vec::new());
                }
            }
            _ => request.work = Work::Nothing(Status::Unsupported),
        }
        request
    }

    /// A request for 16 sectors without memory.
    #[cfg(test)]
    pub(super) fn of(work: Work) -> Request {
        let status = std::ptr::null_mut();
        let (bytes, pieces) = (16 * SECTOR_BYTES, Vec::new());
        Request { head: 0, work, offset: 4096, bytes, pieces, written: 0, status, number: None, copy: Vec::new() }
    }

    /// Accepts a request for `bytes` that start at `sector`, if the disk has them.
    fn take(&mut self, work: Work, limits: Limits, sector: u64, bytes: u64, pieces: &mut Vec<libc::iovec>) {
        let Some(offset) = sector.checked_mul(SECTOR_BYTES) else { return };
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= limits.bytes);
        let is_whole = bytes.is_multiple_of(SECTOR_BYTES) && bytes <= REQUEST_BYTES_MAX;
        if !is_inside || !is_whole || (limits.is_read_only && work != Work::Read) {
            return;
        }
        (self.work, self.offset, self.bytes) = (work, offset, bytes);
        if bytes == 0 {
            self.work = Work::Nothing(Status::Done);
        }
        self.pieces = mem::take(pieces);
    }

    /// Writes memory of the host instead of the guest's zeroes, from `zeroes`, which lives at least as long as the request.
    pub(super) fn write_zeroes(&mut self, zeroes: &'static [u8]) {
        let mut left = self.bytes as usize;
        while left > 0 {
            let now = left.min(zeroes.len());
            self.pieces.push(libc::iovec { iov_base: zeroes.as_ptr().cast_mut().cast(), iov_len: now });
            left -= now;
        }
        self.work = Work::Write;
    }

    /// Copies the data of a write, which are written from there.
    ///
    /// # Safety
    /// The pieces are memory that can be read.
    pub(super) unsafe fn copy_data(&mut self) {
        self.copy = Vec::with_capacity(self.bytes as usize);
        for piece in &self.pieces {
            let (at, count) = (self.copy.len(), piece.iov_len);
            self.copy.resize(at + count, 0);
            // SAFETY: the caller's promise; the guest may write to it meanwhile, and then these bytes are any.
            unsafe { std::ptr::copy_nonoverlapping(piece.iov_base.cast(), self.copy[at..].as_mut_ptr(), count) };
        }
        self.pieces.clear();
        self.pieces.push(libc::iovec { iov_base: self.copy.as_mut_ptr().cast(), iov_len: self.copy.len() });
    }

    /// The data that were copied.
    pub(super) fn copy(&self) -> &[u8] {
        &self.copy
    }

    /// Notes that the host has read or written `bytes`, at most what is left.
    pub(super) fn advance(&mut self, bytes: u64) {
        self.offset += bytes;
        self.bytes -= bytes;
        if self.work == Work::Read {
            self.written = self.written.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        }
        let mut left = bytes as usize;
        let whole = self.pieces.iter().take_while(|piece| {
            let is_whole = piece.iov_len <= left;
            left -= if is_whole { piece.iov_len } else { 0 };
            is_whole
        });
        let whole = whole.count();
        self.pieces.drain(..whole);
        if let Some(first) = self.pieces.first_mut() {
            first.iov_base = first.iov_base.wrapping_byte_add(left);
            first.iov_len -= left;
        }
    }

    /// Writes the status: the request's descriptor, and how many bytes were written to the guest's memory.
    ///
    /// # Safety
    /// The guest's memory is still there.
    pub(super) unsafe fn end(self, status: Status) -> (u16, u32) {
        if self.status.is_null() {
            return (self.head, 0);
        }
        // SAFETY: it is memory of the guest, to which there are no references.
        unsafe { self.status.write_volatile(status as u8) };
        (self.head, self.written.saturating_add(1))
    }
}

/// Takes the last byte of pieces.
fn take_last(pieces: &mut Vec<libc::iovec>) -> Option<*mut u8> {
    while pieces.last().is_some_and(|piece| piece.iov_len == 0) {
        pieces.pop();
    }
    let last = pieces.last_mut()?;
    last.iov_len -= 1;
    let place = last.iov_base.wrapping_byte_add(last.iov_len).cast();
    if last.iov_len == 0 {
        pieces.pop();
    }
    Some(place)
}

/// Takes the first bytes of pieces.
///
/// # Safety
/// The pieces are memory that can be read.
unsafe fn take_front<const COUNT: usize>(pieces: &mut Vec<libc::iovec>) -> Option<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    let (mut count, mut whole) = (0, 0);
    for piece in pieces.iter_mut() {
        let now = (COUNT - count).min(piece.iov_len);
        // SAFETY: the caller's promise; the guest may write to it meanwhile, and then these bytes are any.
        unsafe { std::ptr::copy_nonoverlapping(piece.iov_base.cast(), bytes[count..].as_mut_ptr(), now) };
        count += now;
        piece.iov_base = piece.iov_base.wrapping_byte_add(now);
        piece.iov_len -= now;
        if piece.iov_len > 0 {
            break;
        }
        whole += 1;
    }
    pieces.drain(..whole);
    if count == COUNT { Some(bytes) } else { None }
}

/// Sets the first bytes of pieces to zero, at most `limit`: how many.
fn clear(pieces: &[libc::iovec], limit: usize) -> usize {
    let mut count = 0;
    for piece in pieces {
        let now = (limit - count).min(piece.iov_len);
        // SAFETY: it is memory of the guest, as long as it states, to which there are no references.
        unsafe { std::ptr::write_bytes(piece.iov_base.cast::<u8>(), 0, now) };
        count += now;
    }
    count
}
