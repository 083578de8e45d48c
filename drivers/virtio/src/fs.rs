//! A directory of the host (virtio 1.2, section 5.11), without tasks: messages of FUSE go in, their answers come out.
//!
//! A message and the fixed part of its answer are copied; data that is read or written is in a [`Buf`] that is lent to the device for
//! one request.

use crate::fuse::{ANSWER_BYTES, FIXED_BYTES_MAX, Message, Opcode, check_answer};
use crate::queue::{Queue, QueueOptions, Segment, Token, kick_all};
use crate::session::Session;
use crate::transport::{Transport, device, feature};
use alloc::vec::Vec;
use core::mem;
use core::ops::Range;
use glass_api::{Buf, FileError, Instant};
use glass_drivers_device::{Dma, DmaMapping, DmaMemory, SetupError, Users, Violation};
use glass_lib_trace::Operation;

/// FORGET, which needs no answer, has a queue of its own.
const FORGET_QUEUE: u16 = 0;
const REQUEST_QUEUE: u16 = 1;
/// Requests in flight: each has four descriptors at most.
const QUEUE_SIZE: u16 = 128;
const CHAIN_MAX: usize = 4;
/// Each descriptor has an area of its own for a message: the longest, RENAME with two names, has 560 bytes.
const MESSAGE_STRIDE: usize = 576;
const FORGET_STRIDE: usize = 64;
/// And one for the fixed part of an answer.
const ANSWER_STRIDE: usize = 192;
const _: () = assert!(ANSWER_BYTES + FIXED_BYTES_MAX <= ANSWER_STRIDE);

/// Data of a request: a part of a buffer.
#[derive(Debug)]
pub enum Data {
    /// No data.
    None,
    /// What the device reads.
    Send(Buf, Range<usize>),
    /// What the device fills; the sole owner of its memory.
    Fill(Buf, Range<usize>),
}

impl Data {
    /// The buffer.
    pub fn into_buf(self) -> Option<Buf> {
        match self {
            Data::None => None,
            Data::Send(buf, _) | Data::Fill(buf, _) => Some(buf),
        }
    }
}

/// What became of a request.
#[derive(Debug)]
pub struct Completion {
    /// The number that [`Fs::submit`] returned.
    pub number: u64,
    pub opcode: Opcode,
    pub result: Result<(), FileError>,
    /// The fixed part of the answer; zeros where the device wrote less.
    pub fixed: [u8; FIXED_BYTES_MAX],
    /// The buffer of the data.
    pub buf: Option<Buf>,
    /// Bytes that the device has filled.
    pub filled_bytes: usize,
}

/// A request was not taken.
#[derive(Debug)]
pub enum Refused {
    /// Submit it again after a completion.
    Full(Message, Data),
    /// It cannot succeed.
    Error(FileError, Data),
}

/// A request that the device has.
struct InFlight {
    number: u64,
    opcode: Opcode,
    answer_bytes: usize,
    data: Data,
    mapping: Option<DmaMapping>,
    since: Instant,
}

/// A file system device. Dropping it resets the device.
pub struct Fs<T: Transport, D: Dma> {
    session: Session<T>,
    dma: D,
    card: Card,
    /// Requests taken so far.
    requests: u64,
    name: u32,
}

/// What belongs to one use of the device.
struct Card {
    queue: Queue,
    forgets: Queue,
    messages: DmaMemory,
    forget_messages: DmaMemory,
    answers: DmaMemory,
    /// By token.
    in_flight: Vec<Option<InFlight>>,
}

/// Resets the device, agrees on features and makes it run.
fn start<T: Transport>(session: &mut Session<T>, dma: &impl Dma) -> Result<Card, SetupError> {
    let features = session.begin(device::FS, feature::EVENT_IDX | feature::INDIRECT, 0, &[])?;
    let has = |bit| features & bit != 0;
    let options = QueueOptions {
        size: QUEUE_SIZE,
        event_idx: has(feature::EVENT_IDX),
        table_entries: if has(feature::INDIRECT) { CHAIN_MAX as u16 } else { 0 },
    };
    let forgets = Queue::new(session, dma, FORGET_QUEUE, QueueOptions { table_entries: 0, ..options })?;
    let queue = Queue::new(session, dma, REQUEST_QUEUE, options)?;
    if usize::from(queue.size()) < CHAIN_MAX {
        return Err(SetupError::QueueTooShort {
            queue: REQUEST_QUEUE,
            wanted: CHAIN_MAX as u16,
            allowed: queue.size(),
        });
    }
    let count = usize::from(queue.size());
    let messages = session.allocate(dma, count * MESSAGE_STRIDE, Users::DeviceReads)?;
    let forget_messages = session.allocate(dma, usize::from(forgets.size()) * FORGET_STRIDE, Users::DeviceReads)?;
    let answers = session.allocate(dma, count * ANSWER_STRIDE, Users::DeviceWrites)?;
    session.go();
    let in_flight = (0..count).map(|_| None).collect();
    Ok(Card { queue, forgets, messages, forget_messages, answers, in_flight })
}

impl<T: Transport, D: Dma> Fs<T, D> {
    /// Starts the device behind `transport`. The first message must be INIT.
    pub fn new(transport: T, dma: D) -> Result<Fs<T, D>, SetupError> {
        let mut session = Session::new(transport);
        let card = start(&mut session, &dma)?;
        Ok(Fs { session, dma, card, requests: 0, name: 0 })
    }

    /// Takes a request; the device can see it at once and is notified at the next kick. Returns its number.
    pub fn submit(&mut self, mut message: Message, mut data: Data, now: Instant) -> Result<u64, Refused> {
        let card = &mut self.card;
        if let Some(violation) = card.queue.violation() {
            return Err(Refused::Error(FileError::Broken(violation.as_str()), data));
        }
        if message.bytes.len() > MESSAGE_STRIDE {
            return Err(Refused::Error(FileError::BadPath, data));
        }
        if !card.queue.has_space(CHAIN_MAX) {
            return Err(Refused::Full(message, data));
        }
        let is_fill = matches!(data, Data::Fill(..));
        let part = match &mut data {
            Data::None => None,
            Data::Send(buf, range) => buf.get(range.clone()).map(|part| (part.as_ptr().cast_mut(), part.len())),
            Data::Fill(buf, range) => {
                let range = range.clone();
                let Some(bytes) = buf.as_mut() else { return Err(Refused::Error(FileError::Shared, data)) };
                bytes.get_mut(range).map(|part| (part.as_mut_ptr(), part.len()))
            }
        };
        let mut mapping = None;
        if let Some((pointer, bytes)) = part.filter(|(_, bytes)| *bytes > 0) {
            let users = if is_fill { Users::DeviceWrites } else { Users::DeviceReads };
            // SAFETY: the buffer stays in `in_flight` as long as its mapping lasts, untouched; one that is filled has no other owner, and
            // one with several owners is never written.
            mapping = unsafe { DmaMapping::new(&self.dma, pointer, bytes, users) };
            if mapping.is_none() {
                return Err(Refused::Error(FileError::OutOfMemory, data));
            }
        }
        let mapped_bytes = if mapping.is_some() { part.map_or(0, |(_, bytes)| bytes) } else { 0 };
        self.requests += 1;
        let number = self.requests;
        let token = card.queue.next_token();
        let place = token.index() * MESSAGE_STRIDE;
        let bytes = message.finish(number, if is_fill { 0 } else { mapped_bytes });
        // SAFETY: the descriptor is free, so no request names its area.
        unsafe { card.messages.slice_mut(place..place + bytes.len()) }.copy_from_slice(bytes);
        let segment = |address, bytes: usize, device_writes| Segment { address, bytes: bytes as u32, device_writes };
        let head = segment(card.messages.device_address(place), bytes.len(), false);
        let answer_bytes = ANSWER_BYTES + message.answer_bytes;
        let answer = segment(card.answers.device_address(token.index() * ANSWER_STRIDE), answer_bytes, true);
        let body = mapping.as_ref().map(|mapping| segment(mapping.address, mapped_bytes, is_fill));
        let segments = match body {
            None => Vec::from([head, answer]),
            Some(body) if is_fill => Vec::from([head, answer, body]),
            Some(body) => Vec::from([head, body, answer]),
        };
        // SAFETY: the session keeps the areas until the device is reset, and the descriptor's own are in no other request; the data is
        // lent and kept in `in_flight`. Failing to reset leaks both.
        match unsafe { card.queue.add(&segments) } {
            Ok(added) => {
                assert_eq!(added, token, "the queue hands out the token that it announced");
                let opcode = message.opcode;
                let answer_bytes = message.answer_bytes;
                card.in_flight[token.index()] =
                    Some(InFlight { number, opcode, answer_bytes, data, mapping, since: now });
                let in_flight = card.queue.in_flight().into();
                glass_lib_trace::submit(self.name, traced(opcode), number, mapped_bytes as u32, in_flight);
                Ok(number)
            }
            Err(_) => {
                if let Some(mapping) = mapping {
                    // SAFETY: no request names the buffer, which is in `data`.
                    unsafe { mapping.end(&self.dma) };
                }
                Err(Refused::Full(message, data))
            }
        }
    }

    /// Sends FORGET. Whether it was taken: not by a full queue.
    pub fn forget(&mut self, node: u64, lookups: u64) -> bool {
        let card = &mut self.card;
        while let Ok(Some(_)) = card.forgets.pop() {}
        if !card.forgets.has_space(1) {
            return false;
        }
        self.requests += 1;
        let mut message = Message::forget(node, lookups);
        let bytes = message.finish(self.requests, 0);
        let place = card.forgets.next_token().index() * FORGET_STRIDE;
        // SAFETY: the descriptor is free, so no request names its area.
        unsafe { card.forget_messages.slice_mut(place..place + bytes.len()) }.copy_from_slice(bytes);
        let address = card.forget_messages.device_address(place);
        // SAFETY: the session keeps the area until the device is reset, and it is in no other request.
        unsafe { card.forgets.add(&[Segment { address, bytes: bytes.len() as u32, device_writes: false }]) }.is_ok()
    }

    /// The next completion. After a violation of the specification all requests fail.
    pub fn poll_one(&mut self) -> Option<Completion> {
        if let Some(violation) = self.card.forgets.violation() {
            self.card.queue.break_with(violation);
        }
        let used = match self.card.queue.pop() {
            Ok(used) => used?,
            Err(violation) => return self.fail_one(violation),
        };
        let mut request = self.card.in_flight[used.token.index()].take()?;
        if let Some(mapping) = request.mapping.take() {
            // SAFETY: the request has completed, and the buffer is still in it.
            unsafe { mapping.end(&self.dma) };
        }
        Some(self.complete(request, used.token, used.bytes_written as usize))
    }

    fn complete(&mut self, request: InFlight, token: Token, written_bytes: usize) -> Completion {
        let mut answer = [0; ANSWER_STRIDE];
        self.card.answers.copy_to(token.index() * ANSWER_STRIDE, &mut answer);
        let (header, fixed_part) = answer.split_at(ANSWER_BYTES);
        let result = match check_answer(header, request.number, written_bytes) {
            Ok(Ok(())) if written_bytes < ANSWER_BYTES + request.answer_bytes => {
                Err(self.broken_by(Violation::BadAnswer))
            }
            Ok(result) => result,
            Err(_) => Err(self.broken_by(Violation::BadAnswer)),
        };
        let mut fixed = [0; FIXED_BYTES_MAX];
        if result.is_ok() {
            fixed[..request.answer_bytes].copy_from_slice(&fixed_part[..request.answer_bytes]);
        }
        let filled_bytes = if result.is_ok() { written_bytes - ANSWER_BYTES - request.answer_bytes } else { 0 };
        let in_flight = self.card.queue.in_flight().into();
        glass_lib_trace::complete(self.name, request.number, filled_bytes as u32, in_flight, result.is_err());
        let InFlight { number, opcode, data, .. } = request;
        Completion { number, opcode, result, fixed, buf: data.into_buf(), filled_bytes }
    }

    fn broken_by(&mut self, violation: Violation) -> FileError {
        FileError::Broken(self.card.queue.break_with(violation).as_str())
    }

    /// Resets the device, so that it releases our memory, and returns one of the requests that fail by that.
    fn fail_one(&mut self, violation: Violation) -> Option<Completion> {
        self.end_use();
        let request = self.card.in_flight.iter_mut().find_map(Option::take)?;
        glass_lib_trace::complete(self.name, request.number, 0, 0, true);
        let InFlight { number, opcode, data, .. } = request;
        let result = Err(FileError::Broken(violation.as_str()));
        Some(Completion { number, opcode, result, fixed: [0; FIXED_BYTES_MAX], buf: data.into_buf(), filled_bytes: 0 })
    }

    /// Makes the device forget our memory. Where it does not obey, the memory is never used again.
    fn end_use(&mut self) {
        if self.session.has_ended() {
            return;
        }
        let has_obeyed = self.session.end();
        for request in self.card.in_flight.iter_mut().flatten() {
            let Some(mapping) = request.mapping.take() else { continue };
            if has_obeyed {
                // SAFETY: the device was reset, and the buffer is still in the request.
                unsafe { mapping.end(&self.dma) };
            } else if let Data::Send(buf, _) | Data::Fill(buf, _) = &request.data {
                // The buffer has one owner forever: the bytes are not freed, and cannot be written by us.
                mem::forget(buf.clone());
            }
        }
    }

    /// Ends the use of a device that has given an answer which this driver does not accept.
    pub fn break_with(&mut self, violation: Violation) {
        self.card.queue.break_with(violation);
    }

    /// Breaks a device that has had a request since before `oldest`.
    pub fn expect_answers(&mut self, oldest: Instant) {
        if self.oldest().is_some_and(|since| since < oldest) {
            self.card.queue.break_with(Violation::NoAnswer);
        }
    }

    /// When the request was submitted that is in flight for the longest time.
    pub fn oldest(&self) -> Option<Instant> {
        self.card.in_flight.iter().flatten().map(|request| request.since).min()
    }

    /// Starts a device that is broken once more. Its requests must have been taken out by [`Fs::poll_one`].
    pub fn restart(&mut self) -> Result<(), SetupError> {
        self.end_use();
        self.card = start(&mut self.session, &self.dma)?;
        Ok(())
    }

    /// As [`Driver::kick`](glass_drivers_device::Driver::kick).
    pub fn kick(&mut self) {
        let Card { queue, forgets, .. } = &mut self.card;
        // The first kick is that of a device that has no name yet.
        if let Some(ticks) = kick_all([queue, forgets], &mut self.session.transport)
            && self.name != 0
        {
            glass_lib_trace::kick(self.name, ticks);
        }
    }

    /// As [`Driver::arm`](glass_drivers_device::Driver::arm).
    pub fn arm(&mut self) -> bool {
        if let Some(violation) = self.session.check_alive() {
            self.card.queue.break_with(violation);
        }
        if self.violation().is_some() {
            return !self.session.has_ended();
        }
        self.card.queue.arm()
    }

    /// As [`Driver::disarm`](glass_drivers_device::Driver::disarm).
    pub fn disarm(&mut self) {
        self.card.queue.disarm();
    }

    /// As [`Driver::acknowledge`](glass_drivers_device::Driver::acknowledge).
    pub fn acknowledge(&mut self) {
        // What was forgotten lies there until the next FORGET, and no interrupt was requested for it.
        self.session.acknowledge(self.card.queue.explains_interrupt());
    }

    /// The violation that ended the use of the device; `None` while it is used.
    pub fn violation(&self) -> Option<Violation> {
        self.card.queue.violation().or(self.card.forgets.violation())
    }

    /// Sets the name in the trace of the device.
    pub fn set_trace_name(&mut self, name: u32) {
        self.name = name;
    }

    /// What the trace calls the device.
    pub fn trace_name(&self) -> u32 {
        self.name
    }
}

/// The trace's word for it.
fn traced(opcode: Opcode) -> Operation {
    match opcode {
        Opcode::Read | Opcode::ReadDirectory => Operation::Read,
        Opcode::Write => Operation::Write,
        Opcode::Sync => Operation::Flush,
        _ => Operation::Other,
    }
}

impl<T: Transport, D: Dma> Drop for Fs<T, D> {
    fn drop(&mut self) {
        self.end_use();
    }
}
