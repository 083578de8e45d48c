//! Sockets between a VM and its host (virtio 1.2, section 5.10): packets in both directions, for any state of connections above.
//!
//! A packet's header is copied once out of memory that the device may write, or into memory that it only reads. Its data is in a
//! [`Buf`] that is lent to the device for one packet, as a disk's requests lend theirs: it is not copied here.

use crate::queue::{AddError, Queue, QueueOptions, Segment, Token, kick_all};
use crate::session::Session;
use crate::transport::{Transport, device, feature};
use alloc::vec::Vec;
use core::mem;
use glass_api::Buf;
use glass_drivers_device::{Dma, DmaMapping, DmaMemory, Driver, SetupError, Users, Violation};
use glass_lib_trace::{Operation, UNREQUESTED_MIN};

/// Bytes of a packet's header.
pub const VSOCK_HEADER_BYTES: usize = 44;

const RECEIVE_QUEUE: u16 = 0;
const TRANSMIT_QUEUE: u16 = 1;
const EVENT_QUEUE: u16 = 2;
const QUEUE_SIZE: u16 = 128;
const EVENT_QUEUE_SIZE: u16 = 4;
const CONFIG_CID: u16 = 0;
/// The device carries messages, not only streams (virtio 1.2, section 5.10.3).
const FEATURE_SEQPACKET: u64 = 1 << 1;
/// Each descriptor has a header of its own, which does not cross a cache line.
const HEADER_STRIDE: usize = 64;
/// An event: its number, and four bytes for nothing.
const EVENT_BYTES: usize = 8;
/// The event that the machine was moved, and all connections are gone.
const TRANSPORT_RESET: u32 = 0;

/// How much a socket device may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VsockConfig {
    /// Packets that can be received before the first is read.
    pub receive_buffers: u16,
    /// The longest data of a received packet.
    pub receive_bytes: usize,
}

impl Default for VsockConfig {
    /// 256 KiB: as much as one connection may have in flight by Linux's defaults.
    fn default() -> VsockConfig {
        VsockConfig { receive_buffers: 64, receive_bytes: 4096 }
    }
}

/// A received packet.
#[derive(Debug)]
pub struct VsockPacket {
    /// Its header, as the device wrote it.
    pub header: [u8; VSOCK_HEADER_BYTES],
    /// The buffer with its data. Give it, or another one of its length, back by [`Vsock::give`].
    pub buffer: Buf,
    /// Bytes of data in the buffer.
    pub bytes: usize,
}

/// A buffer that a device has, and the mapping by which it has it.
struct MappedBuffer {
    buf: Buf,
    mapping: DmaMapping,
}

impl MappedBuffer {
    /// The device is done with the buffer.
    ///
    /// # Safety
    /// No request that names it may be in flight, and `dma` must be that of the mapping.
    unsafe fn end(self, dma: &impl Dma) -> Buf {
        // SAFETY: the caller vouches for it; the buffer is still here.
        unsafe { self.mapping.end(dma) };
        self.buf
    }
}

/// A packet that is being sent.
struct Sent {
    data: Option<MappedBuffer>,
    bytes: u32,
    /// Its number in the trace.
    number: u64,
}

/// A socket device. Dropping it resets the device.
pub struct Vsock<T: Transport, D: Dma> {
    session: Session<T>,
    dma: D,
    config: VsockConfig,
    card: Card,
    /// Buffers to receive into that the device does not have.
    spare: Vec<Buf>,
    /// Buffers for which there was no memory.
    missing: usize,
    /// A packet that could not be lent to the device: the next one to send.
    kept: Option<Kept>,
    name: u32,
}

/// A packet: its header and its data.
type Kept = ([u8; VSOCK_HEADER_BYTES], Option<Buf>);

/// What belongs to one use of the device.
struct Card {
    cid: u64,
    has_messages: bool,
    receive: Queue,
    transmit: Queue,
    events: Queue,
    headers_in: DmaMemory,
    headers_out: DmaMemory,
    event_words: DmaMemory,
    /// By token.
    posted: Vec<Option<MappedBuffer>>,
    /// By token.
    sent: Vec<Option<Sent>>,
    /// Packets that were received and sent, for the trace.
    received_count: u64,
    sent_count: u64,
}

/// Resets the device, agrees on features and makes it run.
fn start<T: Transport>(session: &mut Session<T>, dma: &impl Dma) -> Result<Card, SetupError> {
    let features = session.begin(device::VSOCK, feature::EVENT_IDX | FEATURE_SEQPACKET, 0, &[])?;
    let cid = read_cid(session)?;
    let event_idx = features & feature::EVENT_IDX != 0;
    let options = QueueOptions { size: QUEUE_SIZE, event_idx, table_entries: 0 };
    let receive = Queue::new(session, dma, RECEIVE_QUEUE, options)?;
    let transmit = Queue::new(session, dma, TRANSMIT_QUEUE, options)?;
    let events = Queue::new(session, dma, EVENT_QUEUE, QueueOptions { size: EVENT_QUEUE_SIZE, ..options })?;
    let headers = |queue: &Queue| usize::from(queue.size()) * HEADER_STRIDE;
    let headers_in = session.allocate(dma, headers(&receive), Users::DeviceWrites)?;
    let headers_out = session.allocate(dma, headers(&transmit), Users::DeviceReads)?;
    let event_words = session.allocate(dma, usize::from(events.size()) * EVENT_BYTES, Users::DeviceWrites)?;
    let mut card = Card {
        cid,
        has_messages: features & FEATURE_SEQPACKET != 0,
        posted: (0..receive.size()).map(|_| None).collect(),
        sent: (0..transmit.size()).map(|_| None).collect(),
        receive,
        transmit,
        events,
        headers_in,
        headers_out,
        event_words,
        received_count: 0,
        sent_count: 0,
    };
    (0..card.events.size()).for_each(|_| card.post_event());
    session.go();
    Ok(card)
}

/// Our context identifier. 0 to 2 and all ones are not for machines (virtio 1.2, section 5.10.4).
fn read_cid<T: Transport>(session: &mut Session<T>) -> Result<u64, SetupError> {
    let cid = session.read_config(|transport| {
        u64::from(transport.read_config_u32(CONFIG_CID)) | u64::from(transport.read_config_u32(CONFIG_CID + 4)) << 32
    })?;
    match cid {
        3..0xffff_ffff => Ok(cid),
        _ => Err(SetupError::BadConfig("its context identifier is none that a machine may have")),
    }
}

impl Card {
    fn post_event(&mut self) {
        let token = self.events.next_token();
        let address = self.event_words.device_address(token.index() * EVENT_BYTES);
        // SAFETY: the session keeps the memory until the device is reset, and the descriptor's part of it is in no other request.
        let _ = unsafe { self.events.add(&[Segment { address, bytes: EVENT_BYTES as u32, device_writes: true }]) };
    }

    fn violation(&self) -> Option<Violation> {
        self.receive.violation().or(self.transmit.violation()).or(self.events.violation())
    }
}

impl<T: Transport, D: Dma> Vsock<T, D> {
    /// Starts the socket device behind `transport`.
    pub fn new(transport: T, dma: D, config: VsockConfig) -> Result<Vsock<T, D>, SetupError> {
        let mut session = Session::new(transport);
        let card = start(&mut session, &dma)?;
        let mut vsock = Vsock { session, dma, config, card, spare: Vec::new(), missing: 0, kept: None, name: 0 };
        vsock.make_buffers()?;
        vsock.kick();
        Ok(vsock)
    }

    /// Posts as many buffers as the device may have: those that are spare, then new ones.
    fn make_buffers(&mut self) -> Result<(), SetupError> {
        let bytes = self.config.receive_bytes;
        self.missing = 0;
        for _ in 0..self.config.receive_buffers {
            // A packet takes two descriptors.
            if !self.card.receive.has_space(2) {
                break;
            }
            let buf = match self.spare.pop() {
                Some(buf) => buf,
                None => Buf::zeroed(bytes).map_err(|_| SetupError::OutOfMemory { bytes })?,
            };
            self.post(buf);
        }
        Ok(())
    }

    /// Whether the device carries messages, not only streams.
    pub fn has_messages(&self) -> bool {
        self.card.has_messages
    }

    /// Our context identifier.
    pub fn cid(&self) -> u64 {
        self.card.cid
    }

    /// Lends a buffer to the device. Whether that was possible; if not, the buffer waits.
    fn post(&mut self, mut buf: Buf) -> bool {
        let card = &mut self.card;
        let Some(bytes) = buf.as_mut().filter(|_| card.receive.has_space(2)) else {
            self.spare.push(buf);
            return false;
        };
        let (pointer, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the buffer has no other owner, and stays in `posted`, untouched, as long as its mapping lasts.
        let Some(mapping) = (unsafe { DmaMapping::new(&self.dma, pointer, length, Users::DeviceWrites) }) else {
            self.spare.push(buf);
            return false;
        };
        let token = card.receive.next_token();
        let header = card.headers_in.device_address(token.index() * HEADER_STRIDE);
        let segments = [
            Segment { address: header, bytes: VSOCK_HEADER_BYTES as u32, device_writes: true },
            Segment { address: mapping.address, bytes: length as u32, device_writes: true },
        ];
        let mapped = MappedBuffer { buf, mapping };
        // SAFETY: the session keeps the headers until the device is reset, and the descriptor's own is in no other request; the buffer
        // is lent and kept in `posted`. Failing to reset leaks both.
        match unsafe { card.receive.add(&segments) } {
            Ok(added) => {
                assert_eq!(added, token, "the queue hands out the token that it announced");
                card.posted[token.index()] = Some(mapped);
                true
            }
            Err(AddError::Full | AddError::Broken(_)) => {
                // SAFETY: no request names the buffer.
                self.spare.push(unsafe { mapped.end(&self.dma) });
                false
            }
        }
    }

    /// The next received packet. Its header is as the device wrote it; its data is no longer than the device wrote.
    pub fn receive(&mut self) -> Option<VsockPacket> {
        // One round of the queue at most, so that a flood of packets that are none cannot keep us.
        for _ in 0..self.card.receive.size() {
            let card = &mut self.card;
            let used = card.receive.pop().ok()??;
            let mapped = card.posted[used.token.index()].take()?;
            // SAFETY: the request that named the buffer has completed.
            let buffer = unsafe { mapped.end(&self.dma) };
            let Some(bytes) = (used.bytes_written as usize).checked_sub(VSOCK_HEADER_BYTES) else {
                self.give(buffer);
                continue;
            };
            let mut header = [0; VSOCK_HEADER_BYTES];
            card.headers_in.copy_to(used.token.index() * HEADER_STRIDE, &mut header);
            card.received_count += 1;
            let number = card.received_count | UNREQUESTED_MIN;
            glass_lib_trace::complete(self.name, number, bytes as u32, card.receive.in_flight().into(), false);
            return Some(VsockPacket { header, buffer, bytes });
        }
        None
    }

    /// Gives a buffer to receive into. One that has another owner too, or another length, is replaced.
    pub fn give(&mut self, mut buffer: Buf) {
        if buffer.len() == self.config.receive_bytes && buffer.as_mut().is_some() {
            self.post(buffer);
        } else {
            self.give_new();
        }
    }

    /// Replaces a buffer that was taken for good. Without memory there is a buffer fewer until the next [`Driver::kick`] that finds some.
    pub fn give_new(&mut self) {
        match Buf::zeroed(self.config.receive_bytes) {
            Ok(buffer) => _ = self.post(buffer),
            Err(_) => self.missing += 1,
        }
    }

    /// Whether a packet can be sent. Not while one waits that the device could not be lent.
    pub fn has_space(&mut self) -> bool {
        if let Some((header, data)) = self.kept.take() {
            self.send_now(&header, data);
        }
        self.kept.is_none() && self.has_descriptors()
    }

    fn has_descriptors(&mut self) -> bool {
        if !self.card.transmit.has_space(2) {
            self.reap();
        }
        self.card.transmit.has_space(2)
    }

    /// Sends a packet, whose data may not be written until it was sent. Whether it was taken: not without
    /// [`Vsock::has_space`], and not by a device that is broken. One that cannot be lent to the device now is kept, and sent when
    /// there is room for it, at the latest in the next [`Driver::kick`] that finds some.
    pub fn send(&mut self, header: &[u8; VSOCK_HEADER_BYTES], data: Option<Buf>) -> bool {
        self.has_space() && self.send_now(header, data)
    }

    fn send_now(&mut self, header: &[u8; VSOCK_HEADER_BYTES], data: Option<Buf>) -> bool {
        if !self.has_descriptors() {
            self.kept = Some((*header, data)).filter(|_| self.card.violation().is_none());
            return self.kept.is_some();
        }
        let card = &mut self.card;
        let token = card.transmit.next_token();
        let place = token.index() * HEADER_STRIDE;
        // SAFETY: the descriptor is free, so no request names its header.
        unsafe { card.headers_out.slice_mut(place..place + VSOCK_HEADER_BYTES) }.copy_from_slice(header);
        let address = card.headers_out.device_address(place);
        let head = Segment { address, bytes: VSOCK_HEADER_BYTES as u32, device_writes: false };
        let bytes = data.as_ref().map_or(0, |data| data.len() as u32);
        let mut mapped = None;
        if let Some(buf) = data.filter(|buf| !buf.is_empty()) {
            // SAFETY: the buffer stays in `sent` as long as its mapping lasts; a buffer with several owners is not written, and the caller
            // vouches for one that has a single one.
            let mapping = unsafe { DmaMapping::new(&self.dma, buf.as_ptr().cast_mut(), buf.len(), Users::DeviceReads) };
            let Some(mapping) = mapping else {
                self.kept = Some((*header, Some(buf)));
                return true;
            };
            mapped = Some(MappedBuffer { buf, mapping });
        }
        let body =
            mapped.as_ref().map(|mapped| Segment { address: mapped.mapping.address, bytes, device_writes: false });
        let segments = [head, body.unwrap_or(head)];
        let segments = if body.is_some() { &segments[..] } else { &segments[..1] };
        // SAFETY: the session keeps the headers until the device is reset, and the descriptor's own is in no other request; the data is
        // lent and kept in `sent`. Failing to reset leaks both.
        match unsafe { card.transmit.add(segments) } {
            Ok(added) => {
                assert_eq!(added, token, "the queue hands out the token that it announced");
                card.sent_count += 1;
                let number = card.sent_count;
                card.sent[token.index()] = Some(Sent { data: mapped, bytes, number });
                let in_flight = card.transmit.in_flight().into();
                glass_lib_trace::submit(self.name, Operation::Transmit, number, bytes, in_flight);
                true
            }
            Err(AddError::Full | AddError::Broken(_)) => {
                // SAFETY: no request names the buffer.
                drop(mapped.map(|mapped| unsafe { mapped.end(&self.dma) }));
                false
            }
        }
    }

    /// Takes back what the device has sent. Whether there was any.
    fn reap(&mut self) -> bool {
        let mut progress = false;
        while let Ok(Some(used)) = self.card.transmit.pop() {
            self.end_sent(used.token);
            progress = true;
        }
        progress
    }

    fn end_sent(&mut self, token: Token) {
        let Some(Sent { data, bytes, number }) = self.card.sent[token.index()].take() else { return };
        // SAFETY: the request that named the data has completed.
        drop(data.map(|mapped| unsafe { mapped.end(&self.dma) }));
        glass_lib_trace::complete(self.name, number, bytes, self.card.transmit.in_flight().into(), false);
    }

    /// Whether the device has reported since the last call that all connections are gone, because the machine was moved. Its context
    /// identifier may be another one then.
    pub fn take_reset(&mut self) -> bool {
        let mut is_reset = false;
        while let Ok(Some(used)) = self.card.events.pop() {
            is_reset |= self.card.event_words.load_u32(used.token.index() * EVENT_BYTES) == TRANSPORT_RESET;
            self.card.post_event();
        }
        if is_reset {
            self.kept = None;
        }
        if is_reset && let Ok(cid) = read_cid(&mut self.session) {
            self.card.cid = cid;
        }
        is_reset
    }

    /// Ends the use of a device that violated its specification: it is reset, so that it releases our memory.
    fn check(&mut self) -> bool {
        let Some(violation) = self.card.violation() else { return true };
        for queue in [&mut self.card.receive, &mut self.card.transmit, &mut self.card.events] {
            queue.break_with(violation);
        }
        self.end_use();
        false
    }

    /// Makes the device forget our memory. Where it does not obey, the memory is never used again.
    fn end_use(&mut self) {
        if self.session.has_ended() {
            return;
        }
        self.kept = None;
        let has_obeyed = self.session.end();
        let posted = self.card.posted.iter_mut().filter_map(Option::take);
        let sent = self.card.sent.iter_mut().filter_map(|sent| sent.take()?.data);
        for mapped in posted.chain(sent) {
            if has_obeyed {
                // SAFETY: the device was reset, so no request is in flight.
                drop(unsafe { mapped.end(&self.dma) });
            } else {
                mem::forget(mapped);
            }
        }
    }
}

impl<T: Transport, D: Dma> Driver for Vsock<T, D> {
    fn poll(&mut self) -> bool {
        if !self.check() {
            return false;
        }
        let has_sent = (!self.card.transmit.has_space(2) || glass_lib_trace::is_on(glass_lib_trace::Group::Devices))
            && self.reap();
        has_sent || self.card.receive.has_used() || self.card.events.has_used()
    }

    fn kick(&mut self) -> bool {
        for _ in 0..mem::take(&mut self.missing) {
            self.give_new();
        }
        if self.kept.is_some() {
            self.has_space();
        }
        let Card { receive, transmit, events, .. } = &mut self.card;
        // The first kick is that of a device that has no name yet.
        if let Some(ticks) = kick_all([transmit, receive, events], &mut self.session.transport)
            && self.name != 0
        {
            glass_lib_trace::kick(self.name, ticks);
        }
        false
    }

    fn arm(&mut self) -> bool {
        if let Some(violation) = self.session.check_alive() {
            self.card.receive.break_with(violation);
        }
        if !self.check() {
            return false;
        }
        let card = &mut self.card;
        let has_space = card.transmit.has_space(2);
        let has_sent = !has_space && card.transmit.arm_after(card.transmit.in_flight() / 2);
        let has_received = card.receive.arm();
        card.events.arm() || has_received || has_sent
    }

    fn disarm(&mut self) {
        for queue in [&mut self.card.receive, &mut self.card.transmit, &mut self.card.events] {
            queue.disarm();
        }
    }

    fn acknowledge(&mut self) {
        let Card { receive, transmit, events, .. } = &self.card;
        self.session.acknowledge([receive, transmit, events].into_iter().any(Queue::explains_interrupt));
    }

    fn violation(&self) -> Option<Violation> {
        self.card.violation()
    }

    fn restart(&mut self) -> Result<(), SetupError> {
        self.end_use();
        self.card = start(&mut self.session, &self.dma)?;
        self.make_buffers()?;
        self.kick();
        Ok(())
    }

    fn set_trace_name(&mut self, name: u32) {
        self.name = name;
    }
}

impl<T: Transport, D: Dma> Drop for Vsock<T, D> {
    fn drop(&mut self) {
        self.end_use();
    }
}
