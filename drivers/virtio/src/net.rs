//! A network card (virtio 1.2, section 5.1) as a smoltcp device.
//!
//! A received frame is parsed where the device wrote it, a sent one built where the device reads
//! it. With a TAP device behind it the host computes checksums and cuts and joins TCP segments, so
//! a frame may be 64 KiB long and the cost of a frame is paid a fortieth as often.
//!
//! A device could change a received frame while it is parsed. The parser is safe code, so the worst
//! is a panic; a copy of each frame, which would prevent it, costs more than the rest of the driver.

use crate::Driver;
use crate::dma::Dma;
use crate::error::{Lie, SetupError};
use crate::net_buffers::{BufferId, LARGE_BYTES, Plan, Pool, QUEUE_SIZE, Receiver, SMALL_BYTES, Sent, Transmitter};
use crate::offload::HEADER_BYTES;
use crate::queue::{Queue, QueueOptions};
use crate::session::Session;
use crate::transport::{self, Transport, device, feature};
use core::num::NonZeroUsize;
use glass_trace::{Group, Name};
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::time::Instant;

static FRAMES_QUEUED: Name = Name::new("net: frames queued");
static RECEIVE_BUFFERS: Name = Name::new("net: receive buffers free");

const RECEIVE_QUEUE: u16 = 0;
const TRANSMIT_QUEUE: u16 = 1;
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

/// A network card. Dropping it resets the device.
pub struct Net<T: Transport> {
    session: Session<T>,
    receiver: Receiver,
    transmitter: Transmitter,
    mac: [u8; 6],
    mtu: usize,
    /// What the trace knows of the queues: frames that are being sent, buffers to receive into.
    traced_gauges: Option<(u16, u16)>,
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
            frames: 0,
            name: 0,
        };
        let queue = Queue::new(&mut transport, dma, TRANSMIT_QUEUE, options)?;
        let transmitter = Transmitter {
            sent_of: (0..queue.size())
                .map(|index| Sent { buffer: BufferId { large: false, index }, bytes: 0, number: 0 })
                .collect(),
            queue,
            small: Pool::new(dma, SMALL_BYTES, plan.small_count)?,
            large: match plan.large_count {
                0 => None,
                count => Some(Pool::new(dma, LARGE_BYTES, count)?),
            },
            checksum_offload: has(feature::NET_CSUM),
            frames: 0,
            name: 0,
        };
        let mut net = Net {
            session: Session::new(transport),
            receiver,
            transmitter,
            mac,
            mtu: usize::from(mtu).min(MTU_DEFAULT),
            traced_gauges: None,
        };
        while let Some(index) = net.receiver.pool.free.pop() {
            net.receiver.give(index);
        }
        transport::go(&mut net.session.transport);
        net.kick();
        Ok(net)
    }

    /// Says what the trace calls the card: a number of `glass_trace::intern`.
    pub fn set_trace_name(&mut self, name: u32) {
        self.receiver.name = name;
        self.transmitter.name = name;
    }

    /// The card's address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Why the card is not used any more, if that is so.
    pub fn lie(&self) -> Option<Lie> {
        self.receiver.queue.lie().or(self.transmitter.queue.lie())
    }

    /// Tells the trace how full the queues are, if that has changed.
    fn trace_gauges(&mut self) {
        let now = (self.transmitter.queue.in_flight(), self.receiver.queue.in_flight());
        let before = self.traced_gauges.replace(now);
        if before.is_none_or(|before| before.0 != now.0) {
            glass_trace::gauge(&FRAMES_QUEUED, now.0.into());
        }
        if before.is_none_or(|before| before.1 != now.1) {
            glass_trace::gauge(&RECEIVE_BUFFERS, now.1.into());
        }
    }

    /// Ends the use of the card after a lie: it is reset, so that it lets go of our memory.
    fn check(&mut self) -> bool {
        let Some(lie) = self.lie() else { return true };
        self.receiver.queue.break_with(lie);
        self.transmitter.queue.break_with(lie);
        self.end();
        false
    }

    fn end(&mut self) {
        let Net { session, receiver, transmitter, .. } = self;
        session.end(|| {
            receiver.leak();
            transmitter.leak();
        });
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
        if glass_trace::is_on(Group::Devices) {
            // A trace wants to know when a frame has left, not when its buffer is wanted again.
            self.transmitter.reap();
        }
        self.receiver.queue.has_used() || unblocked
    }

    fn kick(&mut self) {
        let is_told = self.transmitter.queue.kick(&mut self.session.transport);
        let is_told = self.receiver.queue.kick(&mut self.session.transport) | is_told;
        // The first kick is that of a card that has no name yet.
        if is_told && self.transmitter.name != 0 {
            glass_trace::kick(self.transmitter.name);
        }
        if glass_trace::is_on(Group::Counters) {
            self.trace_gauges();
        }
    }

    fn arm(&mut self) -> bool {
        if let Some(lie) = self.session.check_alive() {
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
        self.session.acknowledge_interrupt(self.receiver.queue.has_used() || self.transmitter.queue.has_used());
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
            // The stack asked for more than `capabilities` permits; the frame is lost, as frames are.
            None => fill(&mut alloc::vec![0; len]),
        }
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.meta = meta;
    }
}

impl<T: Transport> Drop for Net<T> {
    fn drop(&mut self) {
        self.end();
    }
}
