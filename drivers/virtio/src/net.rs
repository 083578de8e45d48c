//! A network card (virtio 1.2, section 5.1) as a smoltcp device.
//!
//! A received frame is parsed where the device wrote it, a sent one built where the device reads
//! it. With a TAP device behind it the host computes checksums and cuts and joins TCP segments, so
//! a frame may be 64 KiB long and the cost of a frame is paid a fortieth as often.
//!
//! A device could change a received frame while it is parsed. The parser is safe code, so the worst
//! is a panic; a copy of each frame, which would prevent it, costs more than the rest of the driver.

use crate::Driver;
use crate::dma::{Dma, DmaMemory};
use crate::error::{Lie, SetupError};
use crate::offload::{self, HEADER_BYTES, Verdict};
use crate::queue::{Queue, QueueCounters, QueueOptions, Segment};
use crate::transport::{self, Transport, device, feature};
use alloc::vec::Vec;
use core::mem;
use core::num::NonZeroUsize;
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::time::Instant;

const RECEIVE_QUEUE: u16 = 0;
const TRANSMIT_QUEUE: u16 = 1;
const QUEUE_SIZE: u16 = 256;

/// Room for an Ethernet frame of 1514 bytes and its header.
const SMALL_BYTES: usize = 2048;
/// Room for a joined segment: 64 KiB, an Ethernet header and ours, to the next page.
const LARGE_BYTES: usize = 65536 + 4096;
/// With fewer large buffers than this, small ones and no offload pass more.
const LARGE_MIN: usize = 8;
const LARGE_MAX: usize = 64;
/// Frames shorter than their Ethernet header are no frames.
const FRAME_BYTES_MIN: usize = 14;

const ETHERNET_BYTES: usize = 14;
const MTU_DEFAULT: usize = 1500;
/// Every IPv6 link must carry this much.
const MTU_MIN: u16 = 1280;
/// Largest frame that the stack may ask the device to cut, headers included.
const SEGMENT_BYTES_MAX: usize = 65535;

/// How much a network card may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetConfig {
    /// Bytes of memory for frames, both ways together. From about 2 MiB on there is room for
    /// segmentation offload; below 64 KiB the minimum of 16 frames each way is taken all the same.
    pub memory_bytes: usize,
    /// Use checksum and segmentation offload where the device has them.
    pub offload: bool,
    /// The address to use when the device has none of its own.
    pub fallback_mac: [u8; 6],
}

impl Default for NetConfig {
    fn default() -> NetConfig {
        NetConfig { memory_bytes: 8 << 20, offload: true, fallback_mac: [0x02, b'g', b'l', b'a', b's', b's'] }
    }
}

/// What a network card has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetCounters {
    /// Frames handed to the stack, and their bytes.
    pub received_frames: u64,
    /// Bytes of these.
    pub received_bytes: u64,
    /// Frames sent.
    pub sent_frames: u64,
    /// Bytes of these.
    pub sent_bytes: u64,
    /// Received frames dropped because their length was impossible.
    pub malformed: u64,
    /// Received frames dropped because their TCP or UDP checksum was wrong.
    pub wrong_checksum: u64,
    /// Received fragments dropped because a checksum over fragments cannot be verified.
    pub fragments: u64,
    /// Times that no frame could be sent because all buffers were under way.
    pub transmit_full: u64,
    /// Frames dropped because they were longer than any buffer.
    pub oversized: u64,
    /// The receive queue's own counters.
    pub receive_queue: QueueCounters,
    /// The transmit queue's own counters.
    pub transmit_queue: QueueCounters,
}

/// Buffers of one size in one piece of memory.
struct Pool {
    memory: DmaMemory,
    stride: usize,
    free: Vec<u16>,
}

impl Pool {
    fn new(dma: &impl Dma, stride: usize, count: usize) -> Result<Pool, SetupError> {
        let memory = DmaMemory::new(dma, stride * count)?;
        Ok(Pool { memory, stride, free: (0..count as u16).rev().collect() })
    }
}

/// Which buffer of which pool.
#[derive(Clone, Copy, PartialEq, Eq)]
struct BufferId {
    large: bool,
    index: u16,
}

struct Receiver {
    queue: Queue,
    pool: Pool,
    /// Which buffer a token stands for.
    buffer_of: Vec<u16>,
    verify: bool,
    counters: NetCounters,
}

struct Transmitter {
    queue: Queue,
    small: Pool,
    /// For frames that the device cuts.
    large: Option<Pool>,
    buffer_of: Vec<BufferId>,
    checksum_offload: bool,
    counters: NetCounters,
}

/// A network card. Dropping it resets the device.
pub struct Net<T: Transport> {
    transport: T,
    receiver: Receiver,
    transmitter: Transmitter,
    mac: [u8; 6],
    mtu: usize,
    features: u64,
    failed: bool,
    interrupted_for_nothing: bool,
}

/// How many buffers of which kind a budget buys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    receive_stride: usize,
    receive_count: usize,
    small_count: usize,
    large_count: usize,
}

impl Plan {
    /// Half of the memory receives, the rest sends; of that a quarter is for short frames.
    fn new(memory_bytes: usize, receive_large: bool, send_large: bool) -> Plan {
        let half = memory_bytes / 2;
        let small = |bytes: usize| (bytes / SMALL_BYTES).clamp(16, usize::from(QUEUE_SIZE));
        let large = |bytes: usize| (bytes / LARGE_BYTES).min(LARGE_MAX);
        let (receive_stride, receive_count) = match large(half) {
            count if receive_large && count >= LARGE_MIN => (LARGE_BYTES, count),
            _ => (SMALL_BYTES, small(half)),
        };
        let (small_count, large_count) = match large(half / 4 * 3) {
            count if send_large && count >= LARGE_MIN => (small(half / 4).min(128), count),
            _ => (small(half), 0),
        };
        Plan { receive_stride, receive_count, small_count, large_count }
    }
}

/// Features worth having with this budget. Segmentation builds on checksums.
fn wanted_features(config: &NetConfig) -> u64 {
    let plan = Plan::new(config.memory_bytes, true, true);
    let mut wanted = feature::EVENT_IDX | feature::NET_MAC | feature::NET_MTU;
    if config.offload {
        wanted |= feature::NET_CSUM | feature::NET_GUEST_CSUM;
        if plan.receive_stride == LARGE_BYTES {
            wanted |= feature::NET_GUEST_TSO4;
        }
        if plan.large_count > 0 {
            wanted |= feature::NET_HOST_TSO4;
        }
    }
    wanted
}

impl<T: Transport> Net<T> {
    /// Starts the network card behind `transport`.
    pub fn new(mut transport: T, dma: &impl Dma, config: NetConfig) -> Result<Net<T>, SetupError> {
        let features = transport::negotiate(&mut transport, device::NET, wanted_features(&config), 0)?;
        let has = |bit| features & bit != 0;
        let mac = if has(feature::NET_MAC) { transport::read_config(&mut transport, 0)? } else { config.fallback_mac };
        if mac[0] & 1 != 0 || mac == [0; 6] {
            return Err(SetupError::BadConfig("its address is that of a group or zero"));
        }
        let mtu = match has(feature::NET_MTU) {
            true => u16::from_le_bytes(transport::read_config(&mut transport, 10)?),
            false => MTU_DEFAULT as u16,
        };
        if mtu < MTU_MIN {
            return Err(SetupError::BadConfig("its MTU is less than 1280"));
        }
        let plan = Plan::new(config.memory_bytes, has(feature::NET_GUEST_TSO4), has(feature::NET_HOST_TSO4));
        let options = QueueOptions { size: QUEUE_SIZE, event_idx: has(feature::EVENT_IDX), table_entries: 0 };
        let queue = Queue::new(&mut transport, dma, RECEIVE_QUEUE, options)?;
        let receiver = Receiver {
            buffer_of: (0..queue.size()).collect(),
            pool: Pool::new(dma, plan.receive_stride, plan.receive_count.min(usize::from(queue.size())))?,
            queue,
            verify: has(feature::NET_GUEST_CSUM),
            counters: NetCounters::default(),
        };
        let queue = Queue::new(&mut transport, dma, TRANSMIT_QUEUE, options)?;
        let transmitter = Transmitter {
            buffer_of: (0..queue.size()).map(|index| BufferId { large: false, index }).collect(),
            queue,
            small: Pool::new(dma, SMALL_BYTES, plan.small_count)?,
            large: match plan.large_count {
                0 => None,
                count => Some(Pool::new(dma, LARGE_BYTES, count)?),
            },
            checksum_offload: has(feature::NET_CSUM),
            counters: NetCounters::default(),
        };
        let mut net = Net {
            transport,
            receiver,
            transmitter,
            mac,
            mtu: usize::from(mtu).min(MTU_DEFAULT),
            features,
            failed: false,
            interrupted_for_nothing: false,
        };
        while let Some(index) = net.receiver.pool.free.pop() {
            net.receiver.give(index);
        }
        transport::go(&mut net.transport);
        net.kick();
        Ok(net)
    }

    /// The card's address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// The features in use, as masks of [`feature`].
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Why the card is not used any more, if that is so.
    pub fn lie(&self) -> Option<Lie> {
        self.receiver.queue.lie().or(self.transmitter.queue.lie())
    }

    /// What the card has done so far.
    pub fn counters(&self) -> NetCounters {
        NetCounters {
            sent_frames: self.transmitter.counters.sent_frames,
            sent_bytes: self.transmitter.counters.sent_bytes,
            transmit_full: self.transmitter.counters.transmit_full,
            oversized: self.transmitter.counters.oversized,
            receive_queue: self.receiver.queue.counters(),
            transmit_queue: self.transmitter.queue.counters(),
            ..self.receiver.counters
        }
    }

    /// Ends the use of the card after a lie: it is reset, so that it lets go of our memory.
    fn check(&mut self) -> bool {
        let Some(lie) = self.lie() else { return true };
        self.receiver.queue.break_with(lie);
        self.transmitter.queue.break_with(lie);
        if !mem::replace(&mut self.failed, true) {
            self.let_go();
        }
        false
    }

    fn let_go(&mut self) {
        if transport::reset(&mut self.transport) {
            return;
        }
        self.receiver.queue.leak();
        self.receiver.pool.memory.leak();
        self.transmitter.queue.leak();
        self.transmitter.small.memory.leak();
        if let Some(large) = &mut self.transmitter.large {
            large.memory.leak();
        }
    }
}

impl Receiver {
    /// Hands a buffer to the device.
    fn give(&mut self, index: u16) {
        let address = self.pool.memory.device_address(usize::from(index) * self.pool.stride);
        let segment = Segment { address, bytes: self.pool.stride as u32, device_writes: true };
        // SAFETY: the pool lives until the device is reset, and the buffer came from its free list or
        // from a completion, so no request names it and no reference to it is left (`Frame`).
        match unsafe { self.queue.add(&[segment]) } {
            Ok(token) => self.buffer_of[token.index()] = index,
            // Only when the queue is broken: there are no more buffers than descriptors.
            Err(_) => self.pool.free.push(index),
        }
    }

    /// The next good frame: its buffer and length without the header. Takes at most one round of
    /// the queue, so that a flood of bad frames cannot keep it for ever.
    fn next(&mut self) -> Option<(u16, usize)> {
        for _ in 0..self.queue.size() {
            let used = self.queue.pop().ok()??;
            let index = self.buffer_of[used.token.index()];
            let bytes = used.bytes_written as usize;
            if bytes < HEADER_BYTES + FRAME_BYTES_MIN {
                self.counters.malformed += 1;
                self.give(index);
                continue;
            }
            let frame_bytes = bytes - HEADER_BYTES;
            if !self.is_good(index, frame_bytes) {
                self.give(index);
                continue;
            }
            self.counters.received_frames += 1;
            self.counters.received_bytes += frame_bytes as u64;
            return Some((index, frame_bytes));
        }
        None
    }

    fn is_good(&mut self, index: u16, frame_bytes: usize) -> bool {
        if !self.verify {
            return true;
        }
        let (header, frame) = self.bytes(index, frame_bytes).split_at(HEADER_BYTES);
        let header = header.first_chunk().expect("it was split off with this length");
        match offload::verify(header, frame) {
            Verdict::Good => return true,
            Verdict::Wrong => self.counters.wrong_checksum += 1,
            Verdict::Fragment => self.counters.fragments += 1,
        }
        false
    }

    /// Header and frame in a buffer that was completed and not given back.
    fn bytes(&self, index: u16, frame_bytes: usize) -> &[u8] {
        let start = usize::from(index) * self.pool.stride;
        // SAFETY: the callers have taken the buffer from a completion and give it back afterwards, so
        // no request names it. `slice` checks that the range is inside the pool.
        unsafe { self.pool.memory.slice(start..start + HEADER_BYTES + frame_bytes) }
    }
}

impl Transmitter {
    /// Takes back what the device has sent.
    fn reap(&mut self) -> bool {
        let mut progress = false;
        while let Ok(Some(used)) = self.queue.pop() {
            let BufferId { large, index } = self.buffer_of[used.token.index()];
            match &mut self.large {
                Some(pool) if large => pool.free.push(index),
                _ => self.small.free.push(index),
            }
            progress = true;
        }
        progress
    }

    /// Whether any frame could be sent now, whatever its length turns out to be.
    fn is_ready(&self) -> bool {
        let pool = self.large.as_ref().unwrap_or(&self.small);
        !pool.free.is_empty() && self.queue.has_room(1)
    }

    fn make_ready(&mut self) -> bool {
        if self.is_ready() {
            return true;
        }
        self.reap();
        let ready = self.is_ready();
        self.counters.transmit_full += u64::from(!ready);
        ready
    }

    /// The smallest buffer that holds a frame of that length.
    fn take(&mut self, frame_bytes: usize) -> Option<BufferId> {
        let bytes = HEADER_BYTES + frame_bytes;
        if bytes <= SMALL_BYTES {
            if self.small.free.is_empty() {
                self.reap();
            }
            if let Some(index) = self.small.free.pop() {
                return Some(BufferId { large: false, index });
            }
        }
        let large = self.large.as_mut()?;
        if bytes > LARGE_BYTES {
            return None;
        }
        large.free.pop().map(|index| BufferId { large: true, index })
    }

    fn pool(&mut self, buffer: BufferId) -> &mut Pool {
        match &mut self.large {
            Some(pool) if buffer.large => pool,
            _ => &mut self.small,
        }
    }

    /// Builds a frame with `fill` in a buffer and hands it to the device.
    fn send<R>(
        &mut self,
        buffer: BufferId,
        frame_bytes: usize,
        meta: PacketMeta,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let checksum_offload = self.checksum_offload;
        let pool = self.pool(buffer);
        let start = usize::from(buffer.index) * pool.stride;
        let range = start..start + HEADER_BYTES + frame_bytes;
        // SAFETY: the buffer came from the free list, so no request names it; `slice_mut` checks that
        // the range is inside the pool, `take` that it is inside the buffer.
        let bytes = unsafe { pool.memory.slice_mut(range) };
        let (header, frame) = bytes.split_first_chunk_mut::<HEADER_BYTES>().expect("a buffer is longer than a header");
        *header = [0; HEADER_BYTES];
        let result = fill(frame);
        if checksum_offload {
            offload::prepare(header, frame, meta.segmentation_offload_size);
        }
        let address = pool.memory.device_address(start);
        let segment = Segment { address, bytes: (HEADER_BYTES + frame_bytes) as u32, device_writes: false };
        // SAFETY: the pools live until the device is reset; the buffer is off its free list until its
        // completion puts it back, and no reference to it is left.
        match unsafe { self.queue.add(&[segment]) } {
            Ok(token) => {
                self.buffer_of[token.index()] = buffer;
                self.counters.sent_frames += 1;
                self.counters.sent_bytes += frame_bytes as u64;
            }
            // `is_ready` saw room, so the queue is broken and the frame lost with it.
            Err(_) => self.pool(buffer).free.push(buffer.index),
        }
        result
    }
}

impl<T: Transport> Driver for Net<T> {
    fn poll(&mut self) -> bool {
        if !self.check() {
            return false;
        }
        // Completed transmissions matter only to somebody who waits for a buffer; without that they
        // are taken when the next frame is sent.
        let unblocked = !self.transmitter.is_ready() && self.transmitter.reap();
        self.receiver.queue.has_used() || unblocked
    }

    fn kick(&mut self) {
        self.transmitter.queue.kick(&mut self.transport);
        self.receiver.queue.kick(&mut self.transport);
    }

    fn arm(&mut self) -> bool {
        if mem::take(&mut self.interrupted_for_nothing)
            && let Err(lie) = transport::check_alive(&mut self.transport)
        {
            self.receiver.queue.break_with(lie);
        }
        if !self.check() {
            return false;
        }
        let waits_for_room = !self.transmitter.is_ready();
        // Half of what is under way, so that the device is not interrupted after each frame.
        let sent = waits_for_room && self.transmitter.queue.arm_after(self.transmitter.queue.in_flight() / 2);
        self.receiver.queue.arm() || sent
    }

    fn disarm(&mut self) {
        self.receiver.queue.disarm();
        self.transmitter.queue.disarm();
    }

    fn acknowledge_interrupt(&mut self) {
        self.transport.acknowledge_interrupt();
        self.interrupted_for_nothing = !self.receiver.queue.has_used() && !self.transmitter.queue.has_used();
    }
}

impl<T: Transport> phy::Device for Net<T> {
    type RxToken<'a>
        = NetRxToken<'a>
    where
        T: 'a;
    type TxToken<'a>
        = NetTxToken<'a>
    where
        T: 'a;

    fn receive(&mut self, _timestamp: Instant) -> Option<(NetRxToken<'_>, NetTxToken<'_>)> {
        // The stack may answer a frame at once, so none is taken without room for an answer.
        if !self.transmitter.make_ready() {
            return None;
        }
        let (buffer, frame_bytes) = self.receiver.next()?;
        let receive = NetRxToken { receiver: &mut self.receiver, buffer, frame_bytes };
        Some((receive, NetTxToken { transmitter: &mut self.transmitter, meta: PacketMeta::default() }))
    }

    fn transmit(&mut self, _timestamp: Instant) -> Option<NetTxToken<'_>> {
        let ready = self.transmitter.make_ready();
        ready.then(|| NetTxToken { transmitter: &mut self.transmitter, meta: PacketMeta::default() })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu + ETHERNET_BYTES;
        // We verify what the stack must not: a frame whose checksum the device left incomplete.
        let checksum = match (self.transmitter.checksum_offload, self.receiver.verify) {
            (true, true) => Checksum::None,
            (true, false) => Checksum::Rx,
            (false, true) => Checksum::Tx,
            (false, false) => Checksum::Both,
        };
        capabilities.checksum.tcp = checksum;
        capabilities.checksum.udp = checksum;
        if self.transmitter.checksum_offload && self.transmitter.large.is_some() {
            capabilities.segmentation.tcpv4 = NonZeroUsize::new(SEGMENT_BYTES_MAX);
        }
        capabilities
    }
}

/// A received frame. Its buffer goes back to the device when the token is gone.
pub struct NetRxToken<'a> {
    receiver: &'a mut Receiver,
    buffer: u16,
    frame_bytes: usize,
}

impl phy::RxToken for NetRxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, parse: F) -> R {
        parse(&self.receiver.bytes(self.buffer, self.frame_bytes)[HEADER_BYTES..])
    }
}

impl Drop for NetRxToken<'_> {
    fn drop(&mut self) {
        self.receiver.give(self.buffer);
    }
}

/// The right to send one frame.
pub struct NetTxToken<'a> {
    transmitter: &'a mut Transmitter,
    meta: PacketMeta,
}

impl phy::TxToken for NetTxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        match self.transmitter.take(len) {
            Some(buffer) => self.transmitter.send(buffer, len, self.meta, fill),
            None => {
                // The stack asked for more than it was told it may; the frame is lost, as frames are.
                self.transmitter.counters.oversized += 1;
                fill(&mut alloc::vec![0; len])
            }
        }
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.meta = meta;
    }
}

impl<T: Transport> Drop for Net<T> {
    fn drop(&mut self) {
        if !self.failed {
            self.let_go();
        }
    }
}
