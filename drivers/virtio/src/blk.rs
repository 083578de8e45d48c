//! A disk (virtio 1.2, section 5.2), without tasks: requests go in, completions come out of `poll`.
//!
//! A request longer than the device takes at once is sent in pieces; pieces of different requests
//! take turns, so a long one cannot keep a short one waiting for its end.

use crate::dma::{Dma, DmaMemory};
use crate::error::{Lie, SetupError};
use crate::queue::{AddError, Queue, QueueOptions, Segment};
use crate::request::{CONFIG_SEG_MAX, CONFIG_SIZE_MAX, VIRTIO_SECTOR_BYTES, read_info, read_u32};
use crate::request::{Kind, Operation, Request, RequestId, SubmitError};
use crate::session::Session;
use crate::transport::{self, Transport, device, feature};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use glass_api::{BlockError, BlockInfo, Buf, check_request};

/// Requests under way, and descriptors. Deep enough for any disk: 16 requests of 64 KiB pass
/// 2 GB/s (QEMU 7.2, 2026-11-21).
const REQUESTS_MAX: u16 = 128;
/// Longest piece. Larger ones gain nothing: 1 MiB four times over reaches the speed of the disk.
const PIECE_BYTES_MAX: u32 = 1 << 20;
/// Data segments in a piece, for devices that limit a segment's length.
const SEGMENTS_MAX: usize = 4;

/// In each descriptor's own area: type, reserved, sector; then the status byte.
const AREA_BYTES: usize = 32;
const HEADER_BYTES: u32 = 16;
const STATUS_OFFSET: usize = 16;
const STATUS_OK: u8 = 0;
const STATUS_NOT_WRITTEN: u64 = 0xff;

/// A disk. Dropping it resets the device and drops the buffers of what was under way.
pub struct Blk<T: Transport, D: Dma> {
    session: Session<T>,
    dma: D,
    queue: Queue,
    info: BlockInfo,
    has_flush: bool,
    segment_bytes_max: u32,
    segments_max: usize,
    /// Headers and status bytes, one area a descriptor.
    areas: DmaMemory,
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

impl<T: Transport, D: Dma> Blk<T, D> {
    /// Starts the disk behind `transport`.
    pub fn new(mut transport: T, dma: D) -> Result<Blk<T, D>, SetupError> {
        let wanted = feature::INDIRECT
            | feature::EVENT_IDX
            | feature::BLK_SIZE_MAX
            | feature::BLK_SEG_MAX
            | feature::BLK_RO
            | feature::BLK_BLK_SIZE
            | feature::BLK_FLUSH;
        let features = transport::negotiate(&mut transport, device::BLK, wanted, 0)?;
        let has = |bit| features & bit != 0;
        let info = read_info(&mut transport, features)?;
        let size_max = if has(feature::BLK_SIZE_MAX) { read_u32(&mut transport, CONFIG_SIZE_MAX)? } else { u32::MAX };
        let seg_max = if has(feature::BLK_SEG_MAX) { read_u32(&mut transport, CONFIG_SEG_MAX)? } else { 1 };
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
        let queue = Queue::new(&mut transport, &dma, 0, options)?;
        let size = queue.size();
        let segments_max = if has(feature::INDIRECT) { segments_max } else { segments_max.min(usize::from(size) - 2) };
        if segments_max == 0 {
            return Err(SetupError::QueueTooShort { queue: 0, wanted: 4, allowed: size });
        }
        let areas = DmaMemory::new(&dma, usize::from(size) * AREA_BYTES)?;
        transport::go(&mut transport);
        Ok(Blk {
            session: Session::new(transport),
            dma,
            queue,
            info,
            has_flush: has(feature::BLK_FLUSH),
            segment_bytes_max,
            segments_max,
            areas,
            operation_of: (0..size).collect(),
            operations: (0..size).map(|_| None).collect(),
            free: (0..size).rev().collect(),
            unsent: VecDeque::with_capacity(usize::from(size)),
            finished: VecDeque::with_capacity(usize::from(size)),
            requests: 0,
            name: 0,
        })
    }

    /// Says what the trace calls the disk: a number of `glass_trace::intern`.
    pub fn set_trace_name(&mut self, name: u32) {
        self.name = name;
    }

    /// What the trace calls the disk.
    pub fn trace_name(&self) -> u32 {
        self.name
    }

    /// Requests under way.
    fn under_way(&self) -> u32 {
        (self.operations.len() - self.free.len()) as u32
    }

    /// The number in the trace of a request under way.
    pub(crate) fn traced_number(&self, id: RequestId) -> u64 {
        self.operations[id.index()].as_ref().map_or(0, |operation| operation.number)
    }

    /// Size and limits.
    pub fn info(&self) -> BlockInfo {
        self.info
    }

    /// Requests that can be under way.
    pub fn requests_max(&self) -> usize {
        self.operations.len()
    }

    /// Whether a request can be taken now.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Why the disk is not used any more, if that is so.
    pub fn lie(&self) -> Option<Lie> {
        self.queue.lie()
    }

    /// Takes a request; the device sees it at once and is told at the next kick. On error the
    /// request comes back.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, (SubmitError, Request)> {
        if let Some(lie) = self.queue.lie() {
            return Err((SubmitError::Refused(BlockError::Broken(lie.as_str())), request));
        }
        let operation = match self.operation(request) {
            Ok(operation) => operation,
            Err((error, request)) => return Err((SubmitError::Refused(error), request)),
        };
        let Some(id) = self.free.pop() else {
            return Err((SubmitError::Full, operation.into_request()));
        };
        self.requests += 1;
        let queue = if operation.unsent { &mut self.unsent } else { &mut self.finished };
        queue.push_back(id);
        glass_trace::submit(self.name, operation.kind.traced(), operation.number, operation.bytes, self.under_way());
        self.operations[usize::from(id)] = Some(operation);
        self.send();
        Ok(RequestId(id))
    }

    /// Checks a request and finds out where its memory is.
    fn operation(&self, request: Request) -> Result<Operation, (BlockError, Request)> {
        let new = |kind, offset, address, buf: Option<Buf>| {
            let left = buf.as_ref().map_or(0, |buf| buf.len());
            let unsent = if kind == Kind::Flush { self.has_flush } else { left > 0 };
            let bytes = u32::try_from(left).unwrap_or(u32::MAX);
            let number = self.requests + 1;
            Operation { kind, offset, address, left, unsent, bytes, number, pieces_in_flight: 0, result: Ok(()), buf }
        };
        let error = match &request {
            Request::Read { offset, buf } => check_request(self.info, *offset, buf.len()).err(),
            _ if self.info.read_only => Some(BlockError::ReadOnly),
            Request::Write { offset, buf } => check_request(self.info, *offset, buf.len()).err(),
            Request::Flush => None,
        };
        if let Some(error) = error {
            return Err((error, request));
        }
        match request {
            Request::Read { offset, mut buf } => {
                let Some(bytes) = buf.as_mut() else {
                    return Err((BlockError::Shared, Request::Read { offset, buf }));
                };
                let address = self.dma.device_address(bytes.as_mut_ptr(), bytes.len());
                Ok(new(Kind::Read, offset, address, Some(buf)))
            }
            Request::Write { offset, buf } => {
                let address = self.dma.device_address(buf.as_ptr(), buf.len());
                Ok(new(Kind::Write, offset, address, Some(buf)))
            }
            Request::Flush => Ok(new(Kind::Flush, 0, 0, None)),
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
            segments[0] =
                Segment { address: self.areas.device_address(area), bytes: HEADER_BYTES, device_writes: false };
            let (mut count, mut piece_bytes) = (1, 0);
            while piece_bytes < operation.left && count <= self.segments_max {
                let bytes = (operation.left - piece_bytes).min(self.segment_bytes_max as usize);
                let address = operation.address + piece_bytes as u64;
                segments[count] = Segment { address, bytes: bytes as u32, device_writes: operation.kind == Kind::Read };
                count += 1;
                piece_bytes += bytes;
            }
            let status = self.areas.device_address(area + STATUS_OFFSET);
            segments[count] = Segment { address: status, bytes: 1, device_writes: true };
            if !self.queue.has_room(count + 1) {
                self.unsent.push_front(id);
                return;
            }
            self.areas.store_u64(area, operation.kind as u64);
            self.areas.store_u64(area + 8, operation.offset / VIRTIO_SECTOR_BYTES);
            self.areas.store_u64(area + STATUS_OFFSET, STATUS_NOT_WRITTEN);
            // SAFETY: the areas live until the device is reset (`drop`), and this one belongs to a free
            // descriptor. The data is inside the operation's `Buf` (`left` starts as its length), which
            // stays in `operations`, untouched, until every piece completed or the device was reset; a
            // read has seen that nobody shares it, a write only reads. Failing to reset leaks both.
            match unsafe { self.queue.add(&segments[..=count]) } {
                Ok(added) => assert_eq!(added, token, "the queue hands out the token that it announced"),
                Err(AddError::Full | AddError::Broken(_)) => {
                    self.unsent.push_front(id);
                    return;
                }
            }
            self.operation_of[token.index()] = id;
            operation.offset += piece_bytes as u64;
            operation.address += piece_bytes as u64;
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

    /// As [`Blk::poll`], but for one request only, so that whoever waits for it can be woken before the next one
    /// completes; all requests at once when the device has lied. 0 when there is none.
    pub(crate) fn poll_one(
        &mut self,
        complete: &mut impl FnMut(RequestId, Result<(), BlockError>, Option<Buf>),
    ) -> usize {
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
                Err(lie) => return self.fail_all(lie, complete),
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

    /// Returns whether that was the operation's last piece.
    fn end_piece(
        &mut self,
        id: u16,
        status: u8,
        complete: &mut impl FnMut(RequestId, Result<(), BlockError>, Option<Buf>),
    ) -> bool {
        let operation = self.operations[usize::from(id)].as_mut().expect("a piece under way keeps its operation");
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
        if let Some(operation) = self.operations[usize::from(id)].take() {
            self.free.push(id);
            let has_failed = operation.result.is_err();
            glass_trace::complete(self.name, operation.number, operation.bytes, self.under_way(), has_failed);
            complete(RequestId(id), operation.result, operation.buf);
        }
    }

    /// Resets the device, so that it lets go of our memory, and fails everything under way.
    fn fail_all(
        &mut self,
        lie: Lie,
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
                operation.result = Err(BlockError::Broken(lie.as_str()));
                self.end(id, complete);
                count += 1;
            }
        }
        count
    }

    /// Makes the device forget our memory. Where it does not obey, the memory is never used again.
    fn end_use(&mut self) {
        let Blk { session, queue, areas, operations, .. } = self;
        session.end(|| {
            queue.leak();
            areas.leak();
            for buf in operations.iter().flatten().filter_map(|operation| operation.buf.as_ref()) {
                // One owner for ever: the bytes are not freed, and cannot be written by us.
                mem::forget(buf.clone());
            }
        });
    }

    /// As [`Driver::kick`](crate::Driver::kick).
    pub fn kick(&mut self) {
        if self.queue.kick(&mut self.session.transport) {
            glass_trace::kick(self.name);
        }
    }

    /// As [`Driver::arm`](crate::Driver::arm).
    pub fn arm(&mut self) -> bool {
        if let Some(lie) = self.session.check_alive() {
            self.queue.break_with(lie);
        }
        if self.queue.lie().is_some() {
            return !self.session.has_ended();
        }
        !self.finished.is_empty() || self.queue.arm()
    }

    /// As [`Driver::disarm`](crate::Driver::disarm).
    pub fn disarm(&mut self) {
        self.queue.disarm();
    }

    /// As [`Driver::acknowledge_interrupt`](crate::Driver::acknowledge_interrupt).
    pub fn acknowledge_interrupt(&mut self) {
        self.session.acknowledge_interrupt(self.queue.has_used());
    }
}

impl<T: Transport, D: Dma> Drop for Blk<T, D> {
    fn drop(&mut self) {
        self.end_use();
    }
}
