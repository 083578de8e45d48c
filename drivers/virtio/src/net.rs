//! A network card (virtio 1.2, section 5.1): frames in both directions, for any TCP/IP stack.
//!
//! A frame that is sent is built where the device reads it. A received one is copied once, because the device may still write the
//! buffer, and only the copy is looked at. With a TAP device behind it the host computes checksums and cuts and joins TCP segments, so
//! a frame may be 64 KiB long and the cost of a frame is paid a fortieth as often.

use crate::net_buffers::{
    Agreed, BufferId, LARGE_BYTES, Plan, Pool, QUEUE_SIZE, Receiver, SMALL_BYTES, Sent, Transmitter,
};
use crate::net_header::HEADER_BYTES;
use crate::queue::{Queue, QueueOptions, kick_all};
use crate::session::Session;
use crate::transport::{Transport, device, feature};
use core::num::{NonZeroU16, NonZeroUsize};
use glass_drivers_device::{Dma, Driver, NetDevice, NetLimits, NetTransmit, SetupError, Users, Violation};
use glass_lib_trace::{Group, Name};

static FRAMES_QUEUED: Name = Name::new("net: frames queued");
static RECEIVE_BUFFERS: Name = Name::new("net: receive buffers free");

const RECEIVE_QUEUE: u16 = 0;
const TRANSMIT_QUEUE: u16 = 1;
const CONFIG_MAC: u16 = 0;
const CONFIG_MTU: u16 = 10;
const MTU_DEFAULT: u16 = 1500;
/// A frame has 14 bytes more, and no length has more than 16 bits.
const MTU_MAX: u16 = u16::MAX - 14;
/// Every IPv6 link must carry this much.
const MTU_MIN: u16 = 1280;
/// Largest frame that the stack may give the device to cut, headers included.
const SEGMENT_BYTES_MAX: NonZeroUsize = NonZeroUsize::new(65535).unwrap();
/// Features that work only on top of others (virtio 1.2, section 5.1.3.1).
const BASES: [(u64, u64); 4] = [
    (feature::NET_GUEST_TSO4, feature::NET_GUEST_CSUM),
    (feature::NET_GUEST_TSO6, feature::NET_GUEST_CSUM),
    (feature::NET_HOST_TSO4, feature::NET_CSUM),
    (feature::NET_HOST_TSO6, feature::NET_CSUM),
];

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
pub struct Net<T: Transport, D: Dma> {
    session: Session<T>,
    dma: D,
    config: NetConfig,
    card: Card,
    /// What the trace has of the queues: frames that are being sent, buffers to receive into.
    traced_gauges: Option<(u16, u16)>,
}

/// What belongs to one use of the device.
struct Card {
    receiver: Receiver,
    transmitter: Transmitter,
    mac: [u8; 6],
    mtu: u16,
    features: u64,
}

/// Features worth having with this budget.
fn wanted_features(config: &NetConfig) -> u64 {
    let mut wanted = feature::EVENT_IDX | feature::NET_MAC | feature::NET_MTU;
    if config.offload {
        wanted |= feature::NET_CSUM | feature::NET_GUEST_CSUM;
        if Plan::accepts_guest_tso(config.memory_bytes) {
            wanted |= feature::NET_GUEST_TSO4 | feature::NET_GUEST_TSO6 | feature::NET_MRG_RXBUF;
        }
        if Plan::sends_large(config.memory_bytes) {
            wanted |= feature::NET_HOST_TSO4 | feature::NET_HOST_TSO6;
        }
    }
    wanted
}

/// Resets the device, agrees on features and makes it run.
fn start<T: Transport>(session: &mut Session<T>, dma: &impl Dma, config: &NetConfig) -> Result<Card, SetupError> {
    let features = session.begin(device::NET, wanted_features(config), 0, &BASES)?;
    let has = |bit| features & bit != 0;
    let mac = match has(feature::NET_MAC) {
        true => session.read_config(|transport| {
            core::array::from_fn(|index| transport.read_config_u8(CONFIG_MAC + index as u16))
        })?,
        false => config.fallback_mac,
    };
    if mac[0] & 1 != 0 || mac == [0; 6] {
        return Err(SetupError::BadConfig("its address is that of a group or zero"));
    }
    let mtu = match has(feature::NET_MTU) {
        true => session.read_config(|transport| transport.read_config_u16(CONFIG_MTU))?,
        false => MTU_DEFAULT,
    };
    if mtu < MTU_MIN {
        return Err(SetupError::BadConfig("its MTU is less than 1280"));
    }
    let agreed = Agreed {
        guest_tso_v4: has(feature::NET_GUEST_TSO4),
        guest_tso_v6: has(feature::NET_GUEST_TSO6),
        merged: has(feature::NET_MRG_RXBUF),
        host_tso: has(feature::NET_HOST_TSO4) || has(feature::NET_HOST_TSO6),
    };
    let plan = Plan::new(config.memory_bytes, agreed);
    let options = QueueOptions { size: QUEUE_SIZE, event_idx: has(feature::EVENT_IDX), table_entries: 0 };
    let receiver = receiver(session, dma, &plan, options, agreed, has(feature::NET_GUEST_CSUM))?;
    let transmitter = transmitter(session, dma, &plan, options, has(feature::NET_CSUM))?;
    // Without large buffers both ways there is no room for more than an ordinary frame.
    let carries_more = plan.receive_bytes_max == LARGE_BYTES && plan.large_count > 0;
    let mtu = if carries_more { mtu.min(MTU_MAX) } else { mtu.min(MTU_DEFAULT) };
    let mut card = Card { receiver, transmitter, mac, mtu, features };
    card.receiver.give_first();
    session.go();
    Ok(card)
}

fn receiver<T: Transport>(
    session: &mut Session<T>,
    dma: &impl Dma,
    plan: &Plan,
    options: QueueOptions,
    agreed: Agreed,
    verify: bool,
) -> Result<Receiver, SetupError> {
    let queue = Queue::new(session, dma, RECEIVE_QUEUE, options)?;
    let (stride, count) = (plan.receive_stride, plan.receive_count.min(usize::from(queue.size())));
    Ok(Receiver {
        buffer_of: (0..queue.size()).collect(),
        pool: Pool::new(session, dma, Users::DeviceWrites, stride, count)?,
        copy: alloc::vec![0; plan.receive_bytes_max],
        queue,
        verify,
        agreed,
        frames: 0,
        name: 0,
    })
}

fn transmitter<T: Transport>(
    session: &mut Session<T>,
    dma: &impl Dma,
    plan: &Plan,
    options: QueueOptions,
    checksum_offload: bool,
) -> Result<Transmitter, SetupError> {
    let queue = Queue::new(session, dma, TRANSMIT_QUEUE, options)?;
    let unused = |index| Sent { buffer: BufferId { large: false, index }, bytes: 0, number: 0 };
    Ok(Transmitter {
        sent_of: (0..queue.size()).map(unused).collect(),
        queue,
        small: Pool::new(session, dma, Users::DeviceReads, SMALL_BYTES, plan.small_count)?,
        large: match plan.large_count {
            0 => None,
            count => Some(Pool::new(session, dma, Users::DeviceReads, LARGE_BYTES, count)?),
        },
        checksum_offload,
        frames: 0,
        name: 0,
    })
}

impl<T: Transport, D: Dma> Net<T, D> {
    /// Starts the network card behind `transport`.
    pub fn new(transport: T, dma: D, config: NetConfig) -> Result<Net<T, D>, SetupError> {
        let mut session = Session::new(transport);
        let card = start(&mut session, &dma, &config)?;
        let mut net = Net { session, dma, config, card, traced_gauges: None };
        net.kick();
        Ok(net)
    }

    /// The card's address.
    pub fn mac(&self) -> [u8; 6] {
        self.card.mac
    }

    /// Records in the trace how full the queues are, if that has changed.
    fn trace_gauges(&mut self) {
        let now = (self.card.transmitter.queue.in_flight(), self.card.receiver.queue.in_flight());
        let before = self.traced_gauges.replace(now);
        if before.is_none_or(|before| before.0 != now.0) {
            glass_lib_trace::gauge(&FRAMES_QUEUED, now.0.into());
        }
        if before.is_none_or(|before| before.1 != now.1) {
            glass_lib_trace::gauge(&RECEIVE_BUFFERS, now.1.into());
        }
    }

    /// Ends the use of the card after a violation: it is reset, so that it releases our memory.
    fn check(&mut self) -> bool {
        let Some(violation) = self.violation() else { return true };
        self.card.receiver.queue.break_with(violation);
        self.card.transmitter.queue.break_with(violation);
        self.session.end();
        false
    }
}

impl<T: Transport, D: Dma> Driver for Net<T, D> {
    fn poll(&mut self) -> bool {
        if !self.check() {
            return false;
        }
        let transmitter = &mut self.card.transmitter;
        // Completed transmissions matter only to a sender that waits for a buffer; without that they
        // are taken when the next frame is sent.
        let unblocked = !transmitter.is_ready() && transmitter.reap();
        if glass_lib_trace::is_on(Group::Devices) {
            // A trace wants to know when a frame has left, not when its buffer is wanted again.
            transmitter.reap();
        }
        // A frame that waits for room to answer it is no work yet.
        unblocked || (transmitter.is_ready() && self.card.receiver.queue.has_used())
    }

    fn kick(&mut self) -> bool {
        let queues = [&mut self.card.transmitter.queue, &mut self.card.receiver.queue];
        // The first kick is that of a card that has no name yet.
        if let Some(ticks) = kick_all(queues, &mut self.session.transport)
            && self.card.transmitter.name != 0
        {
            glass_lib_trace::kick(self.card.transmitter.name, ticks);
        }
        if glass_lib_trace::is_on(Group::Counters) {
            self.trace_gauges();
        }
        false
    }

    fn arm(&mut self) -> bool {
        if let Some(violation) = self.session.check_alive() {
            self.card.receiver.queue.break_with(violation);
        }
        if !self.check() {
            return false;
        }
        let Card { receiver, transmitter, .. } = &mut self.card;
        if transmitter.is_ready() {
            return receiver.queue.arm();
        }
        // What has come cannot be taken before there is room for an answer, so only room is worth waking for: half of what is in
        // flight, so that the device does not interrupt after each frame.
        receiver.queue.disarm();
        transmitter.queue.arm_after(transmitter.queue.in_flight() / 2)
    }

    fn disarm(&mut self) {
        self.card.receiver.queue.disarm();
        self.card.transmitter.queue.disarm();
    }

    fn acknowledge(&mut self) {
        let Card { receiver, transmitter, .. } = &self.card;
        self.session.acknowledge(receiver.queue.explains_interrupt() || transmitter.queue.explains_interrupt());
    }

    /// The violation that ended the use of the card; `None` while it is used.
    fn violation(&self) -> Option<Violation> {
        self.card.receiver.queue.violation().or(self.card.transmitter.queue.violation())
    }

    fn restart(&mut self) -> Result<(), SetupError> {
        let name = self.card.transmitter.name;
        let mac = self.card.mac;
        let card = start(&mut self.session, &self.dma, &self.config)?;
        // The stack's neighbours have the address.
        if card.mac != mac {
            self.session.end();
            return Err(SetupError::BadConfig("it has another address than before"));
        }
        // The stack has planned with them.
        if card.features != self.card.features {
            self.session.end();
            return Err(SetupError::BadConfig("it has other features than before"));
        }
        self.card = card;
        self.set_trace_name(name);
        self.kick();
        Ok(())
    }

    fn set_trace_name(&mut self, name: u32) {
        self.card.receiver.name = name;
        self.card.transmitter.name = name;
    }
}

/// The right to send one frame.
pub struct Transmit<'a> {
    transmitter: &'a mut Transmitter,
}

impl<T: Transport, D: Dma> NetDevice for Net<T, D> {
    type Transmit<'a>
        = Transmit<'a>
    where
        Self: 'a;

    fn limits(&self) -> NetLimits {
        let Card { receiver, transmitter, mtu, features, .. } = &self.card;
        let host_tso = |feature| (features & feature != 0 && transmitter.large.is_some()).then_some(SEGMENT_BYTES_MAX);
        NetLimits {
            mtu: usize::from(*mtu),
            completes_checksums: transmitter.checksum_offload,
            // What the stack must not check: a frame whose checksum the device left incomplete.
            verifies_checksums: receiver.verify,
            segment_v4_bytes_max: host_tso(feature::NET_HOST_TSO4),
            segment_v6_bytes_max: host_tso(feature::NET_HOST_TSO6),
        }
    }

    fn receive(&mut self) -> Option<(&[u8], Transmit<'_>)> {
        let Card { receiver, transmitter, .. } = &mut self.card;
        if !transmitter.make_ready() {
            return None;
        }
        let frame_bytes = receiver.next()?;
        Some((&receiver.copy[HEADER_BYTES..HEADER_BYTES + frame_bytes], Transmit { transmitter }))
    }

    fn transmit(&mut self) -> Option<Transmit<'_>> {
        let transmitter = &mut self.card.transmitter;
        transmitter.make_ready().then_some(Transmit { transmitter })
    }
}

impl NetTransmit for Transmit<'_> {
    fn send<R>(self, bytes: usize, segment_bytes: Option<NonZeroU16>, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        match self.transmitter.take(bytes) {
            Some(buffer) => self.transmitter.send(buffer, bytes, segment_bytes, fill),
            None => fill(&mut alloc::vec![0; bytes]),
        }
    }
}
