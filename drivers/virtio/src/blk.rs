//! A disk (virtio 1.2, section 5.2), without tasks: requests go in, completions come out of `poll`.
//!
//! A request longer than the device takes at once is sent in pieces; pieces of different requests
//! take turns, so a long one cannot keep a short one waiting for its end.

use crate::queue::{AddError, Queue, QueueOptions, Segment};
use crate::request::{
    CONFIG_MAX_DISCARD_SECTORS, CONFIG_MAX_WRITE_ZEROES_SECTORS, CONFIG_SEG_MAX, CONFIG_SIZE_MAX, Kind, Operation,
    VIRTIO_SECTOR_BYTES, read_info, read_u32,
};
use crate::session::Session;
use crate::transport::{Transport, device, feature};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use glass_api::{BlockError, BlockInfo, Buf, check_change, check_request};
use glass_drivers_device::{
    BlockDevice, Complete, Dma, DmaMapping, DmaMemory, Request, RequestId, SetupError, SubmitError, Users, Violation,
};

/// Requests in flight, and descriptors. Deep enough for any disk: 16 requests of 64 KiB pass
/// 2 GB/s (QEMU 7.2, 2026-11-21).
const REQUESTS_MAX: u16 = 128;
/// Longest piece. Larger ones gain nothing: 1 MiB four times over reaches the speed of the disk.
const PIECE_BYTES_MAX: u32 = 1 << 20;
/// Data segments in a piece, for devices that limit a segment's length.
const SEGMENTS_MAX: usize = 4;

/// In each descriptor's own area: type, reserved, sector; for a discard and for zeroes the range, which is sector, number of
/// sectors, flags; then the status byte.
const AREA_BYTES: usize = 64;
const HEADER_BYTES: u32 = 16;
const RANGE_OFFSET: usize = 16;
const RANGE_BYTES: u32 = 16;
const STATUS_OFFSET: usize = 32;
const STATUS_OK: u8 = 0;
const STATUS_NOT_WRITTEN: u64 = 0xff;

/// The device has no such request: VIRTIO_BLK_S_UNSUPP.
const UNSUPPORTED: SubmitError = SubmitError::Refused(BlockError::Device(2));
/// The buffer cannot be lent to the device: ENOMEM.
const NOT_MAPPED: SubmitError = SubmitError::Refused(BlockError::Device(12));

/// A disk. Dropping it resets the device and drops the buffers of what was in flight.
pub struct Blk<T: Transport, D: Dma> {
    session: Session<T>,
    dma: D,
    queue: Queue,
    /// Headers and status bytes, one area a descriptor.
    areas: DmaMemory,
    limits: Limits,
    /// Which operation a token belongs to.
    operation_of: Vec<u16>,
    operations: Vec<Option<Operation>>,
    free: Vec<u16>,
    /// Operations with pieces to send, in turn.
    unsent: VecDeque<u16>,
    /// Operations that ended without the device.
    finished: VecDeque<u16>,
    /// Requests taken so far.
    requests: u64,
    /// Its name in the trace.
    name: u32,
}

/// What the device takes.
#[derive(Clone, Copy)]
struct Limits {
    info: BlockInfo,
    has_flush: bool,
    segment_bytes_max: u32,
    segments_max: usize,
    /// The longest ranges to discard and to set to zero; 0 without such requests.
    discard_bytes_max: usize,
    zeroes_bytes_max: usize,
}

/// Resets the device, agrees on features and makes it run: its queue, the areas of its requests, and its limits.
fn start<T: Transport>(session: &mut Session<T>, dma: &impl Dma) -> Result<(Queue, DmaMemory, Limits), SetupError> {
    let wanted = feature::INDIRECT
        | feature::EVENT_IDX
        | feature::BLK_SIZE_MAX
        | feature::BLK_SEG_MAX
        | feature::BLK_RO
        | feature::BLK_BLK_SIZE
        | feature::BLK_FLUSH
        | feature::BLK_DISCARD
        | feature::BLK_WRITE_ZEROES;
    let features = session.begin(device::BLK, wanted, 0, &[])?;
    let has = |bit| features & bit != 0;
    let info = read_info(session, features)?;
    let size_max = if has(feature::BLK_SIZE_MAX) { read_u32(session, CONFIG_SIZE_MAX)? } else { u32::MAX };
    let seg_max = if has(feature::BLK_SEG_MAX) { read_u32(session, CONFIG_SEG_MAX)? } else { 1 };
    // A piece is a whole number of sectors, and so is each of its segments.
    let segment_bytes_max = size_max.min(PIECE_BYTES_MAX) & !(info.sector_bytes - 1);
    if segment_bytes_max == 0 || seg_max == 0 {
        return Err(SetupError::BadConfig("its requests have no room for a sector"));
    }
    let segments_max = SEGMENTS_MAX.min(seg_max as usize).min((PIECE_BYTES_MAX / segment_bytes_max) as usize);
    let options = QueueOptions {
        size: REQUESTS_MAX,
        event_idx: has(feature::EVENT_IDX),
        table_entries: if has(feature::INDIRECT) { SEGMENTS_MAX as u16 + 2 } else { 0 },
    };
    let queue = Queue::new(session, dma, 0, options)?;
    let size = queue.size();
    // No chain is longer than its queue, not even one in a table (virtio 1.2, section 2.7.5.3.1).
    let segments_max = segments_max.min(usize::from(size) - 2);
    if segments_max == 0 {
        return Err(SetupError::QueueTooShort { queue: 0, wanted: 4, allowed: size });
    }
    // The device writes a status byte into each.
    let areas = session.allocate(dma, usize::from(size) * AREA_BYTES, Users::DeviceWrites)?;
    let mut range_bytes_max = |bit, offset| {
        let sectors = if has(bit) { read_u32(session, offset)? } else { 0 };
        Ok((u64::from(sectors) * VIRTIO_SECTOR_BYTES) as usize & !(info.sector_bytes as usize - 1))
    };
    let discard_bytes_max = range_bytes_max(feature::BLK_DISCARD, CONFIG_MAX_DISCARD_SECTORS)?;
    let zeroes_bytes_max = range_bytes_max(feature::BLK_WRITE_ZEROES, CONFIG_MAX_WRITE_ZEROES_SECTORS)?;
    session.go();
    let has_flush = has(feature::BLK_FLUSH);
    let limits = Limits { info, has_flush, segment_bytes_max, segments_max, discard_bytes_max, zeroes_bytes_max };
    Ok((queue, areas, limits))
}

impl Limits {
    /// The bytes of the next piece, if it is a range and not data.
    fn range_bytes(&self, operation: &Operation) -> Option<usize> {
        let bytes_max = match operation.kind {
            Kind::Discard => self.discard_bytes_max,
            Kind::WriteZeroes => self.zeroes_bytes_max,
            Kind::Read | Kind::Write | Kind::Flush => return None,
        };
        Some(operation.left.min(bytes_max))
    }
}

impl<T: Transport, D: Dma> Blk<T, D> {
    /// Starts the disk behind `transport`.
    pub fn new(transport: T, dma: D) -> Result<Blk<T, D>, SetupError> {
        let mut session = Session::new(transport);
        let (queue, areas, limits) = start(&mut session, &dma)?;
        let size = queue.size();
        Ok(Blk {
            session,
            dma,
            queue,
            areas,
            limits,
            operation_of: (0..size).collect(),
            operations: (0..size).map(|_| None).collect(),
            free: (0..size).rev().collect(),
            unsent: VecDeque::with_capacity(usize::from(size)),
            finished: VecDeque::with_capacity(usize::from(size)),
            requests: 0,
            name: 0,
        })
    }

    /// Requests in flight.
    fn in_flight(&self) -> u32 {
        (self.operations.len() - self.free.len()) as u32
    }

    /// Checks a request and finds out where its memory is.
    fn operation(&self, request: Request) -> Result<Operation, (SubmitError, Request)> {
        let info = self.limits.info;
        let error = match &request {
            Request::Read { offset, buf } => check_request(info, *offset, buf.len()).err(),
            _ if info.read_only => Some(BlockError::ReadOnly),
            Request::Write { offset, buf } => check_request(info, *offset, buf.len()).err(),
            Request::Flush => None,
            Request::Discard { offset, len } | Request::WriteZeroes { offset, len } => {
                check_change(info, *offset, *len).err()
            }
        };
        if let Some(error) = error {
            return Err((SubmitError::Refused(error), request));
        }
        let number = self.requests + 1;
        let new = |kind, offset, left, mapping, buf: Option<Buf>| {
            let unsent = match kind {
                Kind::Flush => self.limits.has_flush,
                Kind::Discard => left > 0 && self.limits.discard_bytes_max > 0,
                Kind::Read | Kind::Write | Kind::WriteZeroes => left > 0,
            };
            let (bytes, result) = (u32::try_from(left).unwrap_or(u32::MAX), Ok(()));
            Operation {
                kind,
                mapping,
                offset,
                position: 0,
                left,
                unsent,
                bytes,
                number,
                pieces_in_flight: 0,
                result,
                buf,
            }
        };
        match request {
            Request::Read { offset, mut buf } => {
                let Some(bytes) = buf.as_mut() else {
                    return Err((SubmitError::Refused(BlockError::Shared), Request::Read { offset, buf }));
                };
                let (pointer, length) = (bytes.as_mut_ptr(), bytes.len());
                // SAFETY: the buffer has no other owner, and stays in the operation, untouched, as long as its mapping lasts.
                match unsafe { DmaMapping::new(&self.dma, pointer, length, Users::DeviceWrites) } {
                    Some(mapping) => Ok(new(Kind::Read, offset, length, Some(mapping), Some(buf))),
                    None => Err((NOT_MAPPED, Request::Read { offset, buf })),
                }
            }
            Request::Write { offset, buf } => {
                let (pointer, length) = (buf.as_ptr().cast_mut(), buf.len());
                // SAFETY: the buffer stays in the operation as long as its mapping lasts; a buffer with several owners is never written.
                match unsafe { DmaMapping::new(&self.dma, pointer, length, Users::DeviceReads) } {
                    Some(mapping) => Ok(new(Kind::Write, offset, length, Some(mapping), Some(buf))),
                    None => Err((NOT_MAPPED, Request::Write { offset, buf })),
                }
            }
            Request::Flush => Ok(new(Kind::Flush, 0, 0, None, None)),
            Request::Discard { offset, len } => Ok(new(Kind::Discard, offset, len, None, None)),
            Request::WriteZeroes { offset, len } if self.writes_zeroes() => {
                Ok(new(Kind::WriteZeroes, offset, len, None, None))
            }
            Request::WriteZeroes { .. } => Err((UNSUPPORTED, request)),
        }
    }

    /// Sends pieces, one of each operation in turn, until all are sent or the queue is full.
    fn send(&mut self) {
        while let Some(id) = self.unsent.pop_front() {
            let operation = self.operations[usize::from(id)].as_mut().expect("what waits to be sent exists");
            // What has failed meanwhile is not continued; its last piece to complete ends it.
            if operation.result.is_err() {
                operation.unsent = false;
                continue;
            }
            let mut segments = [Segment { address: 0, bytes: 0, device_writes: false }; SEGMENTS_MAX + 2];
            let token = self.queue.next_token();
            let area = token.index() * AREA_BYTES;
            let range_bytes = self.limits.range_bytes(operation);
            let header_bytes = HEADER_BYTES + range_bytes.map_or(0, |_| RANGE_BYTES);
            segments[0] =
                Segment { address: self.areas.device_address(area), bytes: header_bytes, device_writes: false };
            let start = operation.mapping.as_ref().map_or(0, |mapping| mapping.address);
            let (mut count, mut piece_bytes) = (1, range_bytes.unwrap_or(0));
            while range_bytes.is_none() && piece_bytes < operation.left && count <= self.limits.segments_max {
                let bytes = (operation.left - piece_bytes).min(self.limits.segment_bytes_max as usize);
                let address = start + (operation.position + piece_bytes) as u64;
                segments[count] = Segment { address, bytes: bytes as u32, device_writes: operation.kind == Kind::Read };
                count += 1;
                piece_bytes += bytes;
            }
            let status = self.areas.device_address(area + STATUS_OFFSET);
            segments[count] = Segment { address: status, bytes: 1, device_writes: true };
            let segments = &segments[..=count];
            if !self.queue.has_space(segments.len()) {
                self.unsent.push_front(id);
                return;
            }
            self.areas.store_u64(area, operation.kind as u64);
            self.areas.store_u64(area + 8, operation.offset / VIRTIO_SECTOR_BYTES);
            self.areas.store_u64(area + RANGE_OFFSET, operation.offset / VIRTIO_SECTOR_BYTES);
            // Without flags: zeroes keep their space.
            self.areas.store_u64(area + RANGE_OFFSET + 8, piece_bytes as u64 / VIRTIO_SECTOR_BYTES);
            self.areas.store_u64(area + STATUS_OFFSET, STATUS_NOT_WRITTEN);
            // SAFETY: the session keeps the areas until the device is reset, and this one belongs to a free
            // descriptor. The data is inside the operation's `Buf` (`left` starts as its length), which is lent to the device and
            // stays in `operations`, untouched, until every piece completed or the device was reset; a
            // read has checked that its buffer has one owner, a write only reads. Failing to reset leaks both.
            match unsafe { self.queue.add(segments) } {
                Ok(added) => assert_eq!(added, token, "the queue hands out the token that it announced"),
                Err(AddError::Full | AddError::Broken(_)) => {
                    self.unsent.push_front(id);
                    return;
                }
            }
            self.operation_of[token.index()] = id;
            operation.offset += piece_bytes as u64;
            operation.position += piece_bytes;
            operation.left -= piece_bytes;
            operation.pieces_in_flight += 1;
            operation.unsent = operation.left > 0;
            if operation.unsent {
                self.unsent.push_back(id);
            }
        }
    }

    /// Takes completions and hands each finished request to `complete` with its buffer (none for a
    /// flush), then sends what had waited for room. Returns how many requests finished.
    pub fn poll(&mut self, complete: &mut impl FnMut(RequestId, Result<(), BlockError>, Option<Buf>)) -> usize {
        let mut count = 0;
        loop {
            match self.poll_one(complete) {
                0 => return count,
                finished => count += finished,
            }
        }
    }

    /// Returns whether that was the operation's last piece.
    fn end_piece(
        &mut self,
        id: u16,
        status: u8,
        complete: &mut impl FnMut(RequestId, Result<(), BlockError>, Option<Buf>),
    ) -> bool {
        let operation = self.operations[usize::from(id)].as_mut().expect("a piece in flight keeps its operation");
        operation.pieces_in_flight -= 1;
        if status != STATUS_OK && operation.result.is_ok() {
            operation.result = Err(BlockError::Device(i32::from(status)));
            if operation.unsent {
                operation.unsent = false;
                self.unsent.retain(|&waiting| waiting != id);
            }
        }
        let last = operation.pieces_in_flight == 0 && !operation.unsent;
        if last {
            self.end(id, complete);
        }
        last
    }

    fn end(&mut self, id: u16, complete: &mut impl FnMut(RequestId, Result<(), BlockError>, Option<Buf>)) {
        if let Some(mut operation) = self.operations[usize::from(id)].take() {
            self.free.push(id);
            if let Some(mapping) = operation.mapping.take() {
                // SAFETY: `operation` made the mapping of the buffer that is still in there, and every piece of the request has
                // completed, or the device was reset.
                unsafe { mapping.end(&self.dma) };
            }
            let has_failed = operation.result.is_err();
            glass_lib_trace::complete(self.name, operation.number, operation.bytes, self.in_flight(), has_failed);
            complete(RequestId::new(id), operation.result, operation.buf);
        }
    }

    /// Resets the device, so that it releases our memory, and fails everything in flight.
    fn fail_all(
        &mut self,
        violation: Violation,
        complete: &mut impl FnMut(RequestId, Result<(), BlockError>, Option<Buf>),
    ) -> usize {
        if self.session.has_ended() {
            return 0;
        }
        self.end_use();
        self.unsent.clear();
        self.finished.clear();
        let mut count = 0;
        for id in 0..self.operations.len() as u16 {
            if let Some(operation) = self.operations[usize::from(id)].as_mut() {
                operation.result = Err(BlockError::Broken(violation.as_str()));
                self.end(id, complete);
                count += 1;
            }
        }
        count
    }

    /// Makes the device forget our memory. Where it does not obey, the memory is never used again.
    fn end_use(&mut self) {
        if self.session.end() {
            return;
        }
        for operation in self.operations.iter_mut().flatten() {
            // The mapping never ends, and the buffer has one owner forever: the bytes are not freed, and cannot be written by us.
            operation.mapping = None;
            mem::forget(operation.buf.clone());
        }
    }

    /// The request that an operation was made of that was not sent.
    fn take_back(&self, mut operation: Operation) -> Request {
        if let Some(mapping) = operation.mapping.take() {
            // SAFETY: the mapping is of the buffer that is still in there, and no request names it.
            unsafe { mapping.end(&self.dma) };
        }
        operation.into_request()
    }
}

impl<T: Transport, D: Dma> BlockDevice for Blk<T, D> {
    fn info(&self) -> BlockInfo {
        self.limits.info
    }

    fn writes_zeroes(&self) -> bool {
        self.limits.zeroes_bytes_max > 0
    }

    fn requests_max(&self) -> usize {
        self.operations.len()
    }

    fn has_space(&self) -> bool {
        !self.free.is_empty()
    }

    fn submit(&mut self, request: Request) -> Result<RequestId, (SubmitError, Request)> {
        if let Some(violation) = self.queue.violation() {
            return Err((SubmitError::Refused(BlockError::Broken(violation.as_str())), request));
        }
        let operation = self.operation(request)?;
        let Some(id) = self.free.pop() else {
            return Err((SubmitError::Full, self.take_back(operation)));
        };
        self.requests += 1;
        let queue = if operation.unsent { &mut self.unsent } else { &mut self.finished };
        queue.push_back(id);
        glass_lib_trace::submit(
            self.name,
            operation.kind.traced(),
            operation.number,
            operation.bytes,
            self.in_flight(),
        );
        self.operations[usize::from(id)] = Some(operation);
        self.send();
        Ok(RequestId::new(id))
    }

    fn poll_one(&mut self, mut complete: Complete) -> usize {
        let complete = &mut complete;
        loop {
            match self.queue.pop() {
                Ok(Some(used)) => {
                    let id = self.operation_of[used.token.index()];
                    let status = self.areas.load_u32(used.token.index() * AREA_BYTES + STATUS_OFFSET) as u8;
                    if self.end_piece(id, status, complete) {
                        return 1;
                    }
                }
                Ok(None) => break,
                Err(violation) => return self.fail_all(violation, complete),
            }
        }
        self.send();
        match self.finished.pop_front() {
            Some(id) => {
                self.end(id, complete);
                1
            }
            None => 0,
        }
    }

    fn kick(&mut self) {
        if let Some(ticks) = self.queue.kick(&mut self.session.transport) {
            glass_lib_trace::kick(self.name, ticks);
        }
    }

    fn arm(&mut self) -> bool {
        if let Some(violation) = self.session.check_alive() {
            self.queue.break_with(violation);
        }
        if self.queue.violation().is_some() {
            return !self.session.has_ended();
        }
        !self.finished.is_empty() || self.queue.arm()
    }

    fn disarm(&mut self) {
        self.queue.disarm();
    }

    fn acknowledge(&mut self) {
        self.session.acknowledge(self.queue.explains_interrupt());
    }

    fn violation(&self) -> Option<Violation> {
        self.queue.violation()
    }

    fn restart(&mut self) -> Result<(), SetupError> {
        assert!(self.session.has_ended() && self.free.len() == self.operations.len());
        let (queue, areas, limits) = start(&mut self.session, &self.dma)?;
        // What the tables were made for.
        if queue.size() != self.queue.size() || limits.info != self.limits.info {
            self.session.end();
            return Err(SetupError::BadConfig("it is another disk than before"));
        }
        (self.queue, self.areas, self.limits) = (queue, areas, limits);
        Ok(())
    }

    fn trace_name(&self) -> u32 {
        self.name
    }

    fn set_trace_name(&mut self, name: u32) {
        self.name = name;
    }

    fn traced_number(&self, id: RequestId) -> u64 {
        self.operations[id.index()].as_ref().map_or(0, |operation| operation.number)
    }
}

impl<T: Transport, D: Dma> Drop for Blk<T, D> {
    fn drop(&mut self) {
        self.end_use();
        for mut operation in self.operations.drain(..).flatten() {
            if let Some(mapping) = operation.mapping.take() {
                // SAFETY: the device was reset (`end_use` takes the mappings of one that did not obey), and the buffer is dropped
                // after this.
                unsafe { mapping.end(&self.dma) };
            }
        }
    }
}
