//! A console (virtio 1.2, section 5.3), one port of it: text to the host, and input from it.
//!
//! Writing never waits. Text is gathered in a buffer that is sent when it is full or at the next
//! kick; when the host does not read and all buffers are under way, text is dropped and counted. Who
//! would rather wait asks [`Console::has_room`] first, says [`Console::want_room`] and hears of it
//! from [`Console::take_room`].

use crate::Driver;
use crate::console_port::{self, Control};
use crate::dma::{Dma, DmaMemory};
use crate::error::{Lie, SetupError};
use crate::queue::{Queue, QueueCounters, QueueOptions, Segment};
use crate::transport::{self, Transport, device, feature};
use alloc::vec::Vec;
use core::mem;
use glass_trace::{Group, Name, Operation};

static WAITING_BYTES: Name = Name::new("console: bytes that the host has not read");

const QUEUE_SIZE: u16 = 64;

/// How much a console may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsoleConfig {
    /// Buffers for text to the host, 1 to 64.
    pub buffers: u16,
    /// Size of each.
    pub buffer_bytes: usize,
    /// Whether input from the host is wanted.
    pub receive: bool,
    /// Which port, from 0 on.
    pub port: u16,
}

impl Default for ConsoleConfig {
    fn default() -> ConsoleConfig {
        ConsoleConfig { buffers: 16, buffer_bytes: 1024, receive: false, port: 0 }
    }
}

/// What a console has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConsoleCounters {
    /// Bytes taken for the host.
    pub written_bytes: u64,
    /// Bytes dropped because the host did not read.
    pub dropped_bytes: u64,
    /// Bytes of input.
    pub received_bytes: u64,
    /// The transmit queue's own counters.
    pub transmit_queue: QueueCounters,
}

/// A console. Dropping it resets the device; [`Console::drain`] first to lose nothing.
pub struct Console<T: Transport> {
    transport: T,
    transmit: Queue,
    input: Input,
    control: Option<Control>,
    memory: DmaMemory,
    buffers: u16,
    buffer_bytes: usize,
    free: Vec<u16>,
    /// The buffer that is being filled, and how far.
    current: Option<(u16, usize)>,
    buffer_of: Vec<u16>,
    failed: bool,
    interrupted_for_nothing: bool,
    counters: ConsoleCounters,
    /// By token: bytes and number in the trace of what is on its way to the host.
    sent_of: Vec<(u32, u64)>,
    /// Bytes that were taken for the host and that it has not read.
    waiting_bytes: u64,
    /// Somebody wants to hear when there is room.
    wants_room: bool,
    /// There is some, and nobody has been told yet.
    room_came: bool,
    /// Its name in the trace.
    name: u32,
}

/// Input: every descriptor of the queue has a buffer of the same number.
struct Input {
    queue: Queue,
    memory: DmaMemory,
    /// By token.
    buffer_of: Vec<u16>,
    /// The buffer that is being read: its number, what was read of it and its length.
    current: Option<(u16, usize, usize)>,
}

const INPUT_BUFFERS: u16 = 4;
const INPUT_BUFFER_BYTES: usize = 256;

impl<T: Transport> Console<T> {
    /// Starts the console behind `transport`.
    pub fn new(mut transport: T, dma: &impl Dma, config: ConsoleConfig) -> Result<Console<T>, SetupError> {
        let ports = if config.port == 0 { 0 } else { feature::CONSOLE_MULTIPORT };
        let features = transport::negotiate(&mut transport, device::CONSOLE, feature::EVENT_IDX | ports, ports)?;
        let event_idx = features & feature::EVENT_IDX != 0;
        let options = |size| QueueOptions { size, event_idx, table_entries: 0 };
        // The receive queue is set up even if no input is wanted: some devices insist on both.
        let (receive_queue, transmit_queue) = console_port::queues(config.port);
        let input = Input::new(&mut transport, dma, receive_queue, options(INPUT_BUFFERS))?;
        let transmit = Queue::new(&mut transport, dma, transmit_queue, options(QUEUE_SIZE))?;
        let control = match config.port {
            0 => None,
            port => Some(Control::new(&mut transport, dma, port, event_idx)?),
        };
        let descriptors = transmit.size();
        let count = config.buffers.clamp(1, descriptors);
        let buffer_bytes = config.buffer_bytes.clamp(64, 1 << 16);
        let mut console = Console {
            memory: DmaMemory::new(dma, usize::from(count) * buffer_bytes)?,
            buffer_of: (0..transmit.size()).collect(),
            transport,
            transmit,
            input,
            control,
            buffers: count,
            buffer_bytes,
            free: (0..count).rev().collect(),
            current: None,
            failed: false,
            interrupted_for_nothing: false,
            counters: ConsoleCounters::default(),
            sent_of: alloc::vec![(0, 0); usize::from(descriptors)],
            waiting_bytes: 0,
            wants_room: false,
            room_came: false,
            name: 0,
        };
        if config.receive {
            let count = INPUT_BUFFERS.min(console.input.queue.size());
            (0..count).for_each(|index| console.input.give(index));
        }
        transport::go(&mut console.transport);
        if let Some(control) = &mut console.control {
            control.open(&mut console.transport);
        }
        console.kick();
        Ok(console)
    }

    /// Says what the trace calls the console: a number of `glass_trace::intern`.
    pub fn set_trace_name(&mut self, name: u32) {
        self.name = name;
    }

    /// Whether [`Console::write`] takes `bytes` bytes now, or if that is more than there ever is room for, whether
    /// everything is free. True for a console that does not work: it drops what it gets.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        let is_enough = |console: &Console<T>| {
            let current = console.current.map_or(0, |(_, filled)| console.buffer_bytes - filled);
            let free = console.free.len() * console.buffer_bytes + current;
            free >= bytes.min(usize::from(console.buffers) * console.buffer_bytes)
        };
        if !is_enough(self) {
            self.reap();
        }
        is_enough(self) || self.lie().is_some()
    }

    /// Asks to hear when the host has read something: [`Driver::poll`] then tells of progress, [`Driver::arm`] asks
    /// for an interrupt, and [`Console::take_room`] answers once.
    pub fn want_room(&mut self) {
        self.wants_room = true;
    }

    /// Whether the host has read something since [`Console::want_room`], or never will. True once.
    pub fn take_room(&mut self) -> bool {
        mem::take(&mut self.room_came)
    }

    /// Bytes that were taken for the host and that it has not read, as far as we have looked.
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// What the console has done so far.
    pub fn counters(&self) -> ConsoleCounters {
        ConsoleCounters { transmit_queue: self.transmit.counters(), ..self.counters }
    }

    /// Why the console is not used any more, if that is so.
    pub fn lie(&self) -> Option<Lie> {
        self.transmit.lie().or(self.input.queue.lie())
    }

    /// Takes as much of `text` as there is room for and tells how much. The host gets it at the next kick.
    pub fn write(&mut self, text: &[u8]) -> usize {
        let mut rest = text;
        while !rest.is_empty() {
            let Some((index, filled)) = self.current.or_else(|| Some((self.take_buffer()?, 0))) else { break };
            let count = rest.len().min(self.buffer_bytes - filled);
            let start = usize::from(index) * self.buffer_bytes + filled;
            // SAFETY: the buffer is off the free list and not sent yet, so no request names it, and
            // the reference ends with the statement.
            unsafe { self.memory.slice_mut(start..start + count) }.copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            self.current = Some((index, filled + count));
            if filled + count == self.buffer_bytes {
                self.send_current();
            }
        }
        let written = text.len() - rest.len();
        self.counters.written_bytes += written as u64;
        self.counters.dropped_bytes += rest.len() as u64;
        written
    }

    fn take_buffer(&mut self) -> Option<u16> {
        if self.free.is_empty() {
            self.reap();
        }
        self.free.pop()
    }

    fn reap(&mut self) -> bool {
        let mut progress = false;
        while let Ok(Some(used)) = self.transmit.pop() {
            let (bytes, number) = self.sent_of[used.token.index()];
            self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes.into());
            glass_trace::complete(self.name, number, bytes, self.transmit.in_flight().into(), false);
            self.free.push(self.buffer_of[used.token.index()]);
            progress = true;
        }
        if progress {
            self.room_came |= mem::take(&mut self.wants_room);
            glass_trace::gauge(&WAITING_BYTES, self.waiting_bytes as i64);
        }
        progress
    }

    fn send_current(&mut self) {
        let Some((index, filled)) = self.current.take() else { return };
        let address = self.memory.device_address(usize::from(index) * self.buffer_bytes);
        let segment = Segment { address, bytes: filled as u32, device_writes: false };
        // SAFETY: the memory lives until the device is reset; the buffer is neither free nor current
        // any more, so nobody touches it until its completion.
        match unsafe { self.transmit.add(&[segment]) } {
            Ok(token) => {
                self.buffer_of[token.index()] = index;
                let (bytes, number) = (filled as u32, self.transmit.counters().requests);
                self.sent_of[token.index()] = (bytes, number);
                self.waiting_bytes += filled as u64;
                glass_trace::submit(self.name, Operation::Write, number, bytes, self.transmit.in_flight().into());
                glass_trace::gauge(&WAITING_BYTES, self.waiting_bytes as i64);
            }
            // Only when the queue is broken: there are no more buffers than descriptors.
            Err(_) => {
                self.counters.written_bytes -= (filled as u64).min(self.counters.written_bytes);
                self.counters.dropped_bytes += filled as u64;
                self.free.push(index);
            }
        }
    }

    /// Copies input into `bytes` and tells how much; 0 when there is none.
    pub fn read(&mut self, bytes: &mut [u8]) -> usize {
        let count = self.input.read(bytes);
        self.counters.received_bytes += count as u64;
        count
    }

    /// Sends everything and looks up to `looks` times whether the host has taken it. For the last
    /// words of a VM: it spins. Returns whether the host has everything.
    pub fn drain(&mut self, looks: usize) -> bool {
        self.kick();
        for _ in 0..looks {
            self.reap();
            if self.transmit.in_flight() == 0 || self.transmit.lie().is_some() {
                break;
            }
            core::hint::spin_loop();
        }
        self.transmit.in_flight() == 0
    }

    fn check(&mut self) -> bool {
        let Some(lie) = self.lie() else { return true };
        self.transmit.break_with(lie);
        self.input.queue.break_with(lie);
        if !mem::replace(&mut self.failed, true) {
            self.let_go();
        }
        false
    }

    fn let_go(&mut self) {
        if transport::reset(&mut self.transport) {
            return;
        }
        self.transmit.leak();
        self.memory.leak();
        self.input.queue.leak();
        self.input.memory.leak();
        if let Some(control) = &mut self.control {
            control.leak();
        }
    }
}

impl Input {
    fn new(
        transport: &mut impl Transport,
        dma: &impl Dma,
        number: u16,
        options: QueueOptions,
    ) -> Result<Input, SetupError> {
        let queue = Queue::new(transport, dma, number, options)?;
        let memory = DmaMemory::new(dma, usize::from(INPUT_BUFFERS) * INPUT_BUFFER_BYTES)?;
        Ok(Input { buffer_of: (0..queue.size()).collect(), queue, memory, current: None })
    }

    fn give(&mut self, index: u16) {
        let address = self.memory.device_address(usize::from(index) * INPUT_BUFFER_BYTES);
        let segment = Segment { address, bytes: INPUT_BUFFER_BYTES as u32, device_writes: true };
        // SAFETY: the memory lives until the device is reset; the buffer was never given away or came
        // back by a completion and was read, and no reference to it is left.
        if let Ok(token) = unsafe { self.queue.add(&[segment]) } {
            self.buffer_of[token.index()] = index;
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> usize {
        let mut count = 0;
        // One round of the queue at most, so that a flood of empty completions cannot keep us.
        for _ in 0..=INPUT_BUFFERS {
            if count == bytes.len() {
                break;
            }
            let Some((index, start, end)) = self.current.take().or_else(|| self.next()) else { break };
            let piece = (bytes.len() - count).min(end - start);
            let offset = usize::from(index) * INPUT_BUFFER_BYTES + start;
            // SAFETY: the buffer came from a completion and is given back below, so no request names it.
            let source = unsafe { self.memory.slice(offset..offset + piece) };
            bytes[count..count + piece].copy_from_slice(source);
            count += piece;
            if start + piece < end {
                self.current = Some((index, start + piece, end));
            } else {
                self.give(index);
            }
        }
        count
    }

    fn next(&mut self) -> Option<(u16, usize, usize)> {
        let used = self.queue.pop().ok()??;
        Some((self.buffer_of[used.token.index()], 0, used.bytes_written as usize))
    }

    fn has_input(&self) -> bool {
        self.current.is_some() || self.queue.has_used()
    }
}

impl<T: Transport> Driver for Console<T> {
    fn poll(&mut self) -> bool {
        if !self.check() {
            // Who waits for room need not wait any more.
            self.room_came |= mem::take(&mut self.wants_room);
            return self.room_came;
        }
        // Sent buffers are taken back when the next one is needed, unless somebody wants to know.
        let looks = self.wants_room || glass_trace::is_on(Group::Devices) || glass_trace::is_on(Group::Counters);
        if looks {
            self.reap();
        }
        self.input.has_input() || self.room_came
    }

    fn kick(&mut self) {
        self.send_current();
        let is_told = self.transmit.kick(&mut self.transport);
        if self.input.queue.kick(&mut self.transport) | is_told {
            glass_trace::kick(self.name);
        }
    }

    fn arm(&mut self) -> bool {
        if mem::take(&mut self.interrupted_for_nothing)
            && let Err(lie) = transport::check_alive(&mut self.transport)
        {
            self.transmit.break_with(lie);
        }
        if !self.check() {
            return self.wants_room || self.room_came;
        }
        let has_room = self.wants_room && self.transmit.arm();
        self.input.queue.arm() || self.input.current.is_some() || has_room || self.room_came
    }

    fn disarm(&mut self) {
        self.transmit.disarm();
        self.input.queue.disarm();
    }

    fn acknowledge_interrupt(&mut self) {
        self.transport.acknowledge_interrupt();
        self.interrupted_for_nothing = !self.input.queue.has_used() && !self.transmit.has_used();
    }
}

impl<T: Transport> Drop for Console<T> {
    fn drop(&mut self) {
        if !self.failed {
            self.let_go();
        }
    }
}
