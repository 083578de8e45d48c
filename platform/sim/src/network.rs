//! The network: one switch, a link to each node, and their faults.

use crate::chance::Chance;
use crate::trace::Trace;
use core::cell::RefCell;
use core::ops::Range;
use core::time::Duration;
use glass_api::Instant;
use glass_lib_net::smoltcp::phy::{self, Device, DeviceCapabilities, Medium};
use glass_lib_net::smoltcp::time;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Frames that a node's network device holds in each direction.
const DEVICE_FRAMES_MAX: usize = 256;
const ETHERNET_HEADER_BYTES: usize = 14;
const BROADCAST: [u8; 6] = [0xff; 6];

/// Latency and faults of the link between a node and the switch, in each direction. A frame from
/// one node to another passes two links.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// Latency of a frame, drawn from this range. Frames are not reordered by it.
    pub latency: Range<Duration>,
    /// Frames that vanish.
    pub loss_per_million: u32,
    /// Frames that arrive twice.
    pub duplicate_per_million: u32,
    /// Frames that take `reorder_delay` longer and let others overtake them.
    pub reorder_per_million: u32,
    /// Additional latency of these.
    pub reorder_delay: Range<Duration>,
    /// Bandwidth of the link; `None` without a limit.
    pub bytes_per_sec: Option<u64>,
    /// Size of the send queue in bytes if `bytes_per_sec` is set; frames that do not fit are dropped.
    pub queue_bytes: u64,
}

impl Default for LinkConfig {
    /// A link without faults that takes 25 to 75 microseconds.
    fn default() -> LinkConfig {
        LinkConfig {
            latency: Duration::from_micros(25)..Duration::from_micros(75),
            loss_per_million: 0,
            duplicate_per_million: 0,
            reorder_per_million: 0,
            reorder_delay: Duration::from_micros(200)..Duration::from_millis(2),
            bytes_per_sec: None,
            queue_bytes: 256 << 10,
        }
    }
}

impl LinkConfig {
    /// A bad link: 1 % of the frames are lost, 1 % repeated, 2 % overtaken.
    pub fn bad() -> LinkConfig {
        LinkConfig {
            loss_per_million: 10_000,
            duplicate_per_million: 10_000,
            reorder_per_million: 20_000,
            ..LinkConfig::default()
        }
    }

    /// A link that passes nothing.
    pub fn unplugged() -> LinkConfig {
        LinkConfig { loss_per_million: 1_000_000, ..LinkConfig::default() }
    }
}

/// Counters of frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetworkCounters {
    /// Frames that nodes sent.
    pub sent: u64,
    /// Frames that reached a node.
    pub delivered: u64,
    /// Frames that a link lost, including those for which its queue was full.
    pub lost: u64,
    /// Frames that arrived twice.
    pub duplicated: u64,
    /// Frames that others overtook.
    pub reordered: u64,
    /// Frames that a node's full device lost.
    pub overrun: u64,
}

/// One direction of a link.
#[derive(Default)]
struct Lane {
    /// When the last accepted byte is sent.
    busy_until: Instant,
    /// When the last frame in order arrives.
    arrived_until: Instant,
}

impl Lane {
    /// When a frame that enters at `at` arrives; nothing, once or twice.
    fn pass(
        &mut self,
        link: &LinkConfig,
        chance: &mut Chance,
        counters: &mut NetworkCounters,
        at: Instant,
        len: usize,
    ) -> [Option<Instant>; 2] {
        let lost = chance.per_million(link.loss_per_million);
        let duplicated = chance.per_million(link.duplicate_per_million);
        let reordered = chance.per_million(link.reorder_per_million);
        let latency = chance.duration(&link.latency);
        let extra = chance.duration(&link.reorder_delay);
        let mut leaves_at = at;
        if let Some(bytes_per_sec) = link.bytes_per_sec {
            let time_of = |bytes: u64| Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / bytes_per_sec.max(1));
            let waiting = self.busy_until.since(at);
            if waiting > time_of(link.queue_bytes) {
                counters.lost += 1;
                return [None, None];
            }
            leaves_at = at + waiting + time_of(len as u64);
            self.busy_until = leaves_at;
        }
        if lost {
            counters.lost += 1;
            return [None, None];
        }
        let mut arrives_at = (leaves_at + latency).max(self.arrived_until);
        if reordered {
            counters.reordered += 1;
            arrives_at = arrives_at + extra;
        } else {
            self.arrived_until = arrives_at;
        }
        counters.duplicated += u64::from(duplicated);
        [Some(arrives_at), duplicated.then(|| arrives_at + extra)]
    }
}

struct Port {
    mac: [u8; 6],
    link: LinkConfig,
    to_switch: Lane,
    from_switch: Lane,
    frames: Rc<RefCell<Frames>>,
}

/// A node's network device.
#[derive(Default)]
pub(crate) struct Frames {
    incoming: VecDeque<Vec<u8>>,
    outgoing: VecDeque<Vec<u8>>,
}

/// The switch.
pub(crate) struct Network {
    ports: Vec<Port>,
    chance: Chance,
    /// Frames in flight, by their arrival and then their age, with their destination port.
    in_flight: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    frames_made: u64,
    pub(crate) counters: NetworkCounters,
    trace: Trace,
}

impl Network {
    pub(crate) fn new(chance: Chance, trace: Trace) -> Network {
        Network {
            ports: Vec::new(),
            chance,
            in_flight: BTreeMap::new(),
            frames_made: 0,
            counters: NetworkCounters::default(),
            trace,
        }
    }

    /// Plugs a node in and returns its device.
    pub(crate) fn plug(&mut self, mac: [u8; 6], link: LinkConfig) -> SimDevice {
        let frames = Rc::new(RefCell::new(Frames::default()));
        self.ports.push(Port {
            mac,
            link,
            to_switch: Lane::default(),
            from_switch: Lane::default(),
            frames: frames.clone(),
        });
        SimDevice { frames }
    }

    pub(crate) fn set_link(&mut self, port: usize, link: LinkConfig) {
        self.ports[port].link = link;
    }

    pub(crate) fn next_arrival(&self) -> Option<Instant> {
        self.in_flight.keys().next().map(|(at, _)| *at)
    }

    /// Takes the frames that node `from` has sent.
    pub(crate) fn collect(&mut self, from: usize, now: Instant) {
        let frames = self.ports[from].frames.clone();
        let mut frames = frames.borrow_mut();
        while let Some(frame) = frames.outgoing.pop_front() {
            self.counters.sent += 1;
            self.trace.add(now, "frame", &[from as u64, frame.len() as u64], &frame);
            let port = &mut self.ports[from];
            let copies = port.to_switch.pass(&port.link, &mut self.chance, &mut self.counters, now, frame.len());
            for at in copies.into_iter().flatten() {
                self.forward(from, at, &frame);
            }
        }
    }

    fn forward(&mut self, from: usize, at: Instant, frame: &[u8]) {
        let Some(destination) = frame.first_chunk::<6>() else { return };
        for to in 0..self.ports.len() {
            let port = &mut self.ports[to];
            // Bit 0 marks a multicast address, and multicast frames go to all ports.
            let addressed = port.mac == *destination || *destination == BROADCAST || destination[0] & 1 == 1;
            if to == from || !addressed {
                continue;
            }
            let copies = port.from_switch.pass(&port.link, &mut self.chance, &mut self.counters, at, frame.len());
            for at in copies.into_iter().flatten() {
                self.frames_made += 1;
                self.in_flight.insert((at, self.frames_made), (to, frame.to_vec()));
            }
        }
    }

    /// Delivers the frames that have arrived; returns whether there were any.
    pub(crate) fn deliver(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > now {
                break;
            }
            any = true;
            let (to, frame) = entry.remove();
            let mut frames = self.ports[to].frames.borrow_mut();
            if frames.incoming.len() < DEVICE_FRAMES_MAX {
                frames.incoming.push_back(frame);
                self.counters.delivered += 1;
            } else {
                self.counters.overrun += 1;
            }
        }
        any
    }
}

/// A node's end of its link, for its stack.
pub(crate) struct SimDevice {
    frames: Rc<RefCell<Frames>>,
}

pub(crate) struct Receive(Vec<u8>);
pub(crate) struct Transmit(Rc<RefCell<Frames>>);

impl phy::RxToken for Receive {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl phy::TxToken for Transmit {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut frame = vec![0; len];
        let result = write(&mut frame);
        self.0.borrow_mut().outgoing.push_back(frame);
        result
    }
}

impl Device for SimDevice {
    type RxToken<'a> = Receive;
    type TxToken<'a> = Transmit;

    fn receive(&mut self, _: time::Instant) -> Option<(Receive, Transmit)> {
        // The reply's place is not counted: at most one for each frame of the incoming queue.
        let frame = self.frames.borrow_mut().incoming.pop_front()?;
        Some((Receive(frame), Transmit(self.frames.clone())))
    }

    fn transmit(&mut self, _: time::Instant) -> Option<Transmit> {
        (self.frames.borrow().outgoing.len() < DEVICE_FRAMES_MAX).then(|| Transmit(self.frames.clone()))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1500 + ETHERNET_HEADER_BYTES;
        capabilities
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(link: &LinkConfig, frames: u64) -> (Vec<(u64, Instant)>, NetworkCounters) {
        let (mut lane, mut chance, mut counters) = (Lane::default(), Chance::new(5), NetworkCounters::default());
        let mut arrivals = Vec::new();
        for frame in 0..frames {
            let at = Instant(frame * 1000);
            let copies = lane.pass(link, &mut chance, &mut counters, at, 1000);
            arrivals.extend(copies.into_iter().flatten().map(|at| (frame, at)));
        }
        (arrivals, counters)
    }

    #[test]
    fn a_good_link_keeps_the_order_although_latency_varies() {
        let (arrivals, counters) = arrivals(&LinkConfig::default(), 1000);
        assert_eq!(arrivals.len(), 1000);
        assert!(arrivals.is_sorted_by_key(|(_, at)| *at));
        assert_eq!(counters, NetworkCounters::default());
    }

    #[test]
    fn a_bad_link_loses_repeats_and_reorders() {
        let (arrivals, counters) = arrivals(&LinkConfig::bad(), 10_000);
        for (what, count, expected) in [
            ("lost", counters.lost, 100),
            ("repeated", counters.duplicated, 99),
            ("reordered", counters.reordered, 198),
        ] {
            assert!(count > expected / 2 && count < expected * 2, "{count} {what}");
        }
        assert_eq!(arrivals.len() as u64, 10_000 - counters.lost + counters.duplicated);
        assert!(!arrivals.is_sorted_by_key(|(_, at)| *at));
    }

    #[test]
    fn a_narrow_link_is_as_slow_as_it_says_and_drops_what_does_not_fit() {
        // 1000 bytes each microsecond, which is ten times the bandwidth.
        let link = LinkConfig { bytes_per_sec: Some(100_000_000), queue_bytes: 100_000, ..LinkConfig::default() };
        let (arrivals, counters) = arrivals(&link, 1000);
        let passed = arrivals.len() as u64;
        assert!((195..205).contains(&passed), "{passed}");
        assert_eq!(passed + counters.lost, 1000);
        let last = arrivals.last().unwrap().1;
        assert!(last >= Instant(passed * 10_000), "{last}");
    }

    #[test]
    fn nothing_passes_an_unplugged_link() {
        assert!(arrivals(&LinkConfig::unplugged(), 1000).0.is_empty());
    }
}
