//! A disk whose back end is in another domain (`xen/include/public/io/blkif.h`), without tasks: requests go in, completions come out.
//!
//! Each entry of the ring has pages of its own, which stay granted (persistent grants) and through which data is copied. With indirect segments
//! an entry moves hundreds of pages, else eleven. A request longer than an entry's pages is sent in pieces; pieces of different requests take turns.

use crate::Events;
use crate::blk_wire::{self as wire, Operation, Place, Response, SECTOR_BYTES};
use crate::bus::{BusError, Device, State};
use crate::error::BackendViolation;
use crate::grants::{Access, Domain, Grant, Grants};
use crate::page::{Frames, PAGE_BYTES, SharedPages};
use crate::ring::FrontRing;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::cell::Cell;
use glass_api::{BlockError, BlockInfo, Buf, check_change, check_request};
use glass_drivers_device::{BlockDevice, Complete, Request, RequestId, SetupError, SubmitError, Violation};

/// Requests that can be in flight; more than entries, because some have none yet.
const REQUESTS_MAX: u16 = 128;
/// Pages of an entry at most: 1 MiB, beyond which nothing is gained.
const PAGES_MAX: usize = 256;
/// A back end's sectors are no larger than a page.
const SECTOR_BYTES_MAX: u64 = PAGE_BYTES as u64;
/// The bit of `info` for a disk that cannot be written.
const READ_ONLY: u64 = 4;

/// What a front end uses where the back end offers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlkFeatures {
    /// The back end keeps its mappings of granted pages.
    pub persistent: bool,
    /// Requests of more than eleven pages.
    pub indirect: bool,
}

impl Default for BlkFeatures {
    /// All of them.
    fn default() -> BlkFeatures {
        BlkFeatures { persistent: true, indirect: true }
    }
}

/// What the back end offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlkLimits {
    /// Size and limits for the service.
    pub info: BlockInfo,
    /// Segments of an indirect request; 0 without such requests.
    pub indirect_segments: u64,
    /// It has a request to flush.
    pub has_flush: bool,
    /// It has a request that all others wait for, which older ones have instead.
    pub has_barrier: bool,
}

impl BlkLimits {
    /// Reads them from a back end that is connected.
    async fn read<E: Events>(device: &Device<E>) -> Result<BlkLimits, BusError> {
        let sectors = device.back_value("sectors").await?;
        let sectors: u64 = sectors.trim().parse().map_err(|_| BusError::BadValue("sectors"))?;
        let sector_bytes = device.back_number("sector-size", SECTOR_BYTES as u64).await?;
        if !sector_bytes.is_power_of_two() || !(SECTOR_BYTES as u64..=SECTOR_BYTES_MAX).contains(&sector_bytes) {
            return Err(BusError::BadValue("sector-size"));
        }
        let size_bytes = sectors.checked_mul(SECTOR_BYTES as u64).ok_or(BusError::BadValue("sectors"))?;
        Ok(BlkLimits {
            info: BlockInfo {
                sector_bytes: sector_bytes as u32,
                size_bytes: size_bytes & !(sector_bytes - 1),
                read_only: device.back_number("info", 0).await? & READ_ONLY != 0,
            },
            indirect_segments: device.back_number("feature-max-indirect-segments", 0).await?,
            has_flush: device.back_number("feature-flush-cache", 0).await? != 0,
            has_barrier: device.back_number("feature-barrier", 0).await? != 0,
        })
    }

    fn flush(&self) -> Option<Operation> {
        match (self.has_flush, self.has_barrier) {
            (true, _) => Some(Operation::Flush),
            (_, true) => Some(Operation::Barrier),
            _ => None,
        }
    }
}

/// Memory of an entry of the ring.
struct Slot {
    /// The data's pages, and behind them the page of indirect segments.
    pages: SharedPages,
    grants: Vec<Grant>,
    /// The piece in flight.
    piece: Option<Piece>,
}

/// A part of a request.
#[derive(Debug, Clone, Copy)]
struct Piece {
    request: u16,
    position: usize,
    bytes: usize,
}

/// A request that was taken.
struct Taken {
    operation: Operation,
    buf: Option<Buf>,
    /// Byte on the disk of the buffer's first one, and what was sent of it.
    offset: u64,
    sent: usize,
    /// Something is left to send.
    is_unsent: bool,
    pieces_in_flight: u32,
    result: Result<(), BlockError>,
    number: u64,
}

impl Taken {
    fn bytes(&self) -> usize {
        self.buf.as_ref().map_or(0, |buf| buf.len())
    }
}

/// A disk. Dropping it keeps its pages until the back end does not use them.
pub struct Blk<E: Events> {
    ring: FrontRing,
    _ring_grants: Vec<Grant>,
    port: u32,
    events: E,
    limits: BlkLimits,
    slots: Vec<Slot>,
    free_slots: Vec<usize>,
    requests: Vec<Option<Taken>>,
    free: Vec<u16>,
    /// Requests with something to send, in turn.
    unsent: VecDeque<u16>,
    /// Requests that ended without the back end.
    finished: VecDeque<u16>,
    /// The back end has closed the device.
    is_closed: Rc<Cell<bool>>,
    violation: Option<Violation>,
    /// All requests have failed because of it.
    has_failed: bool,
    taken: u64,
    name: u32,
}

/// A ring that a back end may use, before both have agreed.
struct Offered {
    ring: FrontRing,
    grants: Vec<Grant>,
}

/// Pages for entries of `pages` pages each, as many entries as there is memory for, and a page of segments for each.
fn slots(
    frames: &impl Frames,
    grants: &Grants,
    domain: Domain,
    (count, pages): (usize, usize),
) -> Result<Vec<Slot>, BusError> {
    let mut slots = Vec::with_capacity(count);
    for _ in 0..count {
        let Some(pages) = frames.allocate(pages + 1) else { break };
        let Some(grants) = grants.grant_all(&pages, domain, Access::Write) else { break };
        slots.push(Slot { pages, grants, piece: None });
    }
    if slots.is_empty() { Err(BusError::NoMemory) } else { Ok(slots) }
}

impl<E: Events> Blk<E> {
    /// Agrees with the back end of `device` on a ring, whose event channel is `port`. At most `memory_bytes` of memory are used for data, but
    /// at least a page for each entry.
    pub async fn connect(
        device: &Device<E>,
        frames: &impl Frames,
        grants: &Grants,
        (port, events): (u32, E),
        (memory_bytes, features): (usize, BlkFeatures),
    ) -> Result<Blk<E>, BusError> {
        device.wait_for(State::InitWait).await?;
        let page = frames.allocate(1).ok_or(BusError::NoMemory)?;
        let offered = Offered {
            grants: grants.grant_all(&page, device.domain, Access::Write).ok_or(BusError::NoMemory)?,
            ring: FrontRing::new(page, wire::ENTRY_BYTES),
        };
        let values = [
            ("ring-ref", offered.grants[0].reference().to_string()),
            ("event-channel", port.to_string()),
            ("protocol", "x86_64-abi".to_string()),
            ("feature-persistent", u8::from(features.persistent).to_string()),
        ];
        device.publish(&values, State::Initialised).await?;
        device.wait_for(State::Connected).await?;
        let mut limits = BlkLimits::read(device).await?;
        if !features.indirect {
            limits.indirect_segments = 0;
        }
        device.publish(&[], State::Connected).await?;
        Blk::new(offered, limits, (frames, grants, device.domain), (port, events), memory_bytes)
    }

    fn new(
        offered: Offered,
        limits: BlkLimits,
        (frames, grants, domain): (&impl Frames, &Grants, Domain),
        (port, events): (u32, E),
        memory_bytes: usize,
    ) -> Result<Blk<E>, BusError> {
        let entries = offered.ring.entries() as usize;
        let segments = usize::try_from(limits.indirect_segments).unwrap_or(usize::MAX).max(wire::SEGMENTS);
        let pages = memory_bytes / entries / PAGE_BYTES;
        let pages = pages.clamp(1, segments.min(PAGES_MAX).min(wire::INDIRECT_SEGMENTS));
        let slots = slots(frames, grants, domain, (entries, pages))?;
        Ok(Blk {
            ring: offered.ring,
            _ring_grants: offered.grants,
            port,
            events,
            limits,
            free_slots: (0..slots.len()).rev().collect(),
            slots,
            requests: (0..REQUESTS_MAX).map(|_| None).collect(),
            free: (0..REQUESTS_MAX).rev().collect(),
            unsent: VecDeque::with_capacity(REQUESTS_MAX.into()),
            finished: VecDeque::with_capacity(REQUESTS_MAX.into()),
            is_closed: Rc::default(),
            violation: None,
            has_failed: false,
            taken: 0,
            name: 0,
        })
    }

    /// Set it when the back end has closed the device: the next poll fails all requests.
    pub fn closed(&self) -> Rc<Cell<bool>> {
        self.is_closed.clone()
    }

    /// Longest piece, in bytes.
    pub fn piece_bytes_max(&self) -> usize {
        self.slots[0].pages.bytes() - PAGE_BYTES
    }

    fn in_flight(&self) -> u32 {
        (self.requests.len() - self.free.len()) as u32
    }

    /// Checks a request.
    fn check(&self, request: &mut Request) -> Result<(), BlockError> {
        let info = self.limits.info;
        match request {
            Request::Read { offset, buf } => {
                check_request(info, *offset, buf.len())?;
                buf.as_mut().map(|_| ()).ok_or(BlockError::Shared)
            }
            _ if info.read_only => Err(BlockError::ReadOnly),
            Request::Write { offset, buf } => check_request(info, *offset, buf.len()),
            Request::Flush => Ok(()),
            Request::Discard { offset, len } => check_change(info, *offset, *len),
            Request::WriteZeroes { .. } => Err(BlockError::Device(wire::STATUS_UNSUPPORTED.into())),
        }
    }

    /// Puts pieces into the ring, one of each request in turn, until all are sent or no entry is free.
    fn send(&mut self) {
        while let Some(&id) = self.unsent.front() {
            let request = self.requests[usize::from(id)].as_mut().expect("what waits to be sent exists");
            let Some(&slot) = self.free_slots.last() else { return };
            // A slot for each entry at most, so an entry is free with it.
            if self.ring.free_entries() == 0 {
                return;
            }
            self.unsent.pop_front();
            let bytes = (request.bytes() - request.sent).min(self.slots[slot].pages.bytes() - PAGE_BYTES);
            let piece = Piece { request: id, position: request.sent, bytes };
            let place = Place { id: slot as u64, sector: (request.offset + request.sent as u64) / SECTOR_BYTES as u64 };
            request.sent += bytes;
            request.pieces_in_flight += 1;
            request.is_unsent = request.sent < request.bytes();
            if request.is_unsent {
                self.unsent.push_back(id);
            }
            let entry = self.slots[slot].fill(request, place, piece);
            self.free_slots.pop();
            assert_eq!(self.ring.put(&entry), Ok(()), "room was looked for first");
        }
    }

    /// Takes an answer. Returns the request that it ends.
    fn answered(&mut self, response: Response) -> Result<Option<u16>, BackendViolation> {
        let index = usize::try_from(response.id).unwrap_or(usize::MAX);
        let slot = self.slots.get_mut(index);
        let unknown = BackendViolation::UnknownAnswer { id: response.id as u32 };
        let Some((slot, piece)) = slot.and_then(|slot| slot.piece.take().map(|piece| (slot, piece))) else {
            return Err(unknown);
        };
        self.free_slots.push(index);
        let request = self.requests[usize::from(piece.request)].as_mut().expect("a piece in flight keeps its request");
        request.pieces_in_flight -= 1;
        if response.status != wire::STATUS_OK {
            request.result = request.result.and(Err(BlockError::Device(response.status.into())));
            if request.is_unsent {
                request.is_unsent = false;
                self.unsent.retain(|waiting| *waiting != piece.request);
            }
        } else if request.operation == Operation::Read {
            let bytes = request.buf.as_mut().and_then(Buf::as_mut).expect("a read has the only handle to its buffer");
            slot.pages.read(0, &mut bytes[piece.position..piece.position + piece.bytes]);
        }
        Ok((request.pieces_in_flight == 0 && !request.is_unsent).then_some(piece.request))
    }

    fn end(&mut self, id: u16, complete: Complete) {
        if let Some(request) = self.requests[usize::from(id)].take() {
            self.free.push(id);
            let (bytes, has_failed) = (traced_bytes(&request), request.result.is_err());
            glass_lib_trace::complete(self.name, request.number, bytes, self.in_flight(), has_failed);
            complete(RequestId::new(id), request.result, request.buf);
        }
    }

    fn fail_all(&mut self, violation: Violation, complete: Complete) -> usize {
        self.violation = Some(violation);
        if core::mem::replace(&mut self.has_failed, true) {
            return 0;
        }
        self.unsent.clear();
        self.finished.clear();
        let mut count = 0;
        for id in 0..REQUESTS_MAX {
            if let Some(request) = self.requests[usize::from(id)].as_mut() {
                request.result = Err(BlockError::Broken(violation.as_str()));
                self.end(id, complete);
                count += 1;
            }
        }
        count
    }
}

impl Slot {
    /// Copies a piece's data, and makes its request.
    fn fill(&mut self, request: &Taken, place: Place, piece: Piece) -> [u8; wire::ENTRY_BYTES] {
        if let (Operation::Write, Some(buf)) = (request.operation, &request.buf) {
            self.pages.write(0, &buf[piece.position..piece.position + piece.bytes]);
        }
        self.piece = Some(piece);
        let segments = wire::segments(self.grants.iter().map(Grant::reference), piece.bytes);
        let count = segments.len() / wire::SEGMENT_BYTES;
        if count <= wire::SEGMENTS {
            return wire::direct(request.operation, place, &segments);
        }
        let (table, grant) = (self.pages.bytes() - PAGE_BYTES, self.grants.len() - 1);
        self.pages.write(table, &segments);
        wire::indirect(request.operation, place, count, self.grants[grant].reference())
    }
}

fn traced_bytes(request: &Taken) -> u32 {
    u32::try_from(request.bytes()).unwrap_or(u32::MAX)
}

impl<E: Events> BlockDevice for Blk<E> {
    fn info(&self) -> BlockInfo {
        self.limits.info
    }

    fn writes_zeroes(&self) -> bool {
        false
    }

    fn requests_max(&self) -> usize {
        self.requests.len()
    }

    fn has_space(&self) -> bool {
        !self.free.is_empty()
    }

    fn submit(&mut self, mut request: Request) -> Result<RequestId, (SubmitError, Request)> {
        if let Some(violation) = self.violation {
            return Err((SubmitError::Refused(BlockError::Broken(violation.as_str())), request));
        }
        if let Err(error) = self.check(&mut request) {
            return Err((SubmitError::Refused(error), request));
        }
        let Some(id) = self.free.pop() else { return Err((SubmitError::Full, request)) };
        let flush = self.limits.flush();
        let (operation, traced, offset, buf) = match request {
            Request::Read { offset, buf } => (Operation::Read, glass_lib_trace::Operation::Read, offset, Some(buf)),
            Request::Write { offset, buf } => (Operation::Write, glass_lib_trace::Operation::Write, offset, Some(buf)),
            Request::Flush => (flush.unwrap_or(Operation::Flush), glass_lib_trace::Operation::Flush, 0, None),
            // A hint, which is not passed on.
            Request::Discard { offset, .. } => (Operation::Flush, glass_lib_trace::Operation::Other, offset, None),
            Request::WriteZeroes { .. } => unreachable!("it was refused"),
        };
        // A back end without a request to flush has nothing to flush.
        let is_unsent = match traced {
            glass_lib_trace::Operation::Flush => flush.is_some(),
            _ => buf.as_ref().is_some_and(|buf| !buf.is_empty()),
        };
        self.taken += 1;
        let number = self.taken;
        let taken = Taken { operation, buf, offset, sent: 0, is_unsent, pieces_in_flight: 0, result: Ok(()), number };
        glass_lib_trace::submit(self.name, traced, number, traced_bytes(&taken), self.in_flight());
        self.requests[usize::from(id)] = Some(taken);
        if is_unsent { &mut self.unsent } else { &mut self.finished }.push_back(id);
        self.send();
        Ok(RequestId::new(id))
    }

    fn poll_one(&mut self, complete: Complete) -> usize {
        if self.is_closed.get() {
            return self.fail_all(Violation::Protocol("its back end has closed it"), complete);
        }
        let mut response = [0; wire::RESPONSE_BYTES];
        while self.violation.is_none() {
            let ended = match self.ring.take(&mut response) {
                Ok(false) => break,
                Ok(true) => self.answered(Response::decode(&response)),
                Err(violation) => Err(violation),
            };
            match ended {
                Ok(None) => {}
                Ok(Some(id)) => {
                    self.end(id, complete);
                    return 1;
                }
                Err(violation) => return self.fail_all(Violation::Protocol(violation.as_str()), complete),
            }
        }
        self.send();
        match self.finished.pop_front() {
            Some(id) => {
                self.end(id, complete);
                1
            }
            None => {
                // No request has ended, so the core may sleep now, and the back end may have answered all that was published.
                self.kick();
                0
            }
        }
    }

    fn kick(&mut self) {
        if self.violation.is_none() && self.ring.publish() {
            self.events.notify(self.port);
        }
    }

    fn arm(&mut self) -> bool {
        if self.violation.is_some() {
            return !self.has_failed;
        }
        self.is_closed.get() || !self.finished.is_empty() || self.ring.arm()
    }

    fn disarm(&mut self) {}

    fn acknowledge(&mut self) {}

    fn violation(&self) -> Option<Violation> {
        self.violation
    }

    /// The back end would have to be agreed with anew, and it may still write the pages.
    fn restart(&mut self) -> Result<(), SetupError> {
        Err(SetupError::BadConfig("a disk of Xen is agreed on once, at the start of the domain"))
    }

    fn trace_name(&self) -> u32 {
        self.name
    }

    fn set_trace_name(&mut self, name: u32) {
        self.name = name;
    }

    fn traced_number(&self, id: RequestId) -> u64 {
        self.requests[id.index()].as_ref().map_or(0, |request| request.number)
    }
}

#[cfg(test)]
impl<E: Events> Blk<E> {
    /// The page of a grant, as a back end maps it.
    pub fn granted(&self, reference: u32) -> Option<(SharedPages, usize)> {
        self.slots.iter().find_map(|slot| {
            let index = slot.grants.iter().position(|grant| grant.reference() == reference)?;
            Some((slot.pages.clone(), index))
        })
    }
}

/// A disk with its ring in `page`, and so many pages for each entry.
#[cfg(any(test, feature = "fake"))]
pub fn without_bus<E: Events>(
    page: SharedPages,
    grants: &Grants,
    limits: BlkLimits,
    events: E,
    pages: usize,
) -> Blk<E> {
    let offered = Offered { grants: Vec::new(), ring: FrontRing::new(page, wire::ENTRY_BYTES) };
    let memory = pages * PAGE_BYTES * offered.ring.entries() as usize;
    Blk::new(offered, limits, (&crate::page::SmallNumbers::default(), grants, Domain(0)), (1, events), memory).unwrap()
}
