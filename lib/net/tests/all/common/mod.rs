//! A wire between two stacks, with a clock that the test advances.

pub mod peer;

use core::cell::RefCell;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use core::num::NonZeroUsize;
use core::time::Duration;
use glass_api::Instant;
use glass_lib_executor::{Executor, Unpark};
use glass_lib_net::smoltcp::phy::{self, Checksum, Device, DeviceCapabilities, Medium};
use glass_lib_net::smoltcp::time;
use glass_lib_net::{Address, Config, Ipv6, Stack};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

type Queue = Rc<RefCell<VecDeque<Vec<u8>>>>;

/// One end of a wire.
pub struct End {
    pub incoming: Queue,
    pub outgoing: Queue,
    /// Frames of 64 KiB pass, without checksums.
    pub offloads: bool,
    /// Frames that the device takes before it has to be emptied.
    pub frames_max: usize,
}

pub struct Receive(Vec<u8>);
pub struct Transmit(Queue, phy::PacketMeta);

impl phy::RxToken for Receive {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl phy::TxToken for Transmit {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut frame = vec![0; len];
        let result = write(&mut frame);
        // A frame longer than the MTU is cut into segments that fit it; others are not.
        let ip_bytes = if frame[12..14] == [0x86, 0xdd] { 40 } else { 20 };
        let tcp_bytes = frame.get(14 + ip_bytes + 12).map_or(0, |byte| usize::from(byte >> 4) * 4);
        let headers_bytes = ip_bytes + tcp_bytes;
        let segment_bytes = self.1.segmentation_offload_size.map(|bytes| usize::from(bytes.get()));
        assert!(len <= 1514 || segment_bytes == Some(1500 - headers_bytes), "{len} bytes in {segment_bytes:?}");
        self.0.borrow_mut().push_back(frame);
        result
    }

    fn set_meta(&mut self, meta: phy::PacketMeta) {
        self.1 = meta;
    }
}

impl Device for End {
    type RxToken<'a> = Receive;
    type TxToken<'a> = Transmit;

    fn receive(&mut self, _: time::Instant) -> Option<(Receive, Transmit)> {
        let frame = self.incoming.borrow_mut().pop_front()?;
        Some((Receive(frame), Transmit(self.outgoing.clone(), phy::PacketMeta::default())))
    }

    fn transmit(&mut self, _: time::Instant) -> Option<Transmit> {
        (self.outgoing.borrow().len() < self.frames_max)
            .then(|| Transmit(self.outgoing.clone(), phy::PacketMeta::default()))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        if self.offloads {
            capabilities.checksum.tcp = Checksum::None;
            capabilities.segmentation.tcpv4 = NonZeroUsize::new(65_535);
            capabilities.segmentation.tcpv6 = NonZeroUsize::new(65_535);
        }
        capabilities
    }
}

pub struct Wire {
    pub left: Stack<End>,
    pub right: Stack<End>,
    pub executor: Executor,
    pub now: Instant,
}

struct Nothing;
impl Unpark for Nothing {
    fn unpark(&self) {}
}

pub const RIGHT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

pub fn config(host: u8) -> Config {
    let address = Address::Static { address: [10, 0, 0, host].into(), prefix_bits: 24, gateway: None };
    // Buffers of the sizes that a test gives, and no others.
    Config { spare_bytes: 0, ..Config::for_memory(address, 64 << 20) }
}

/// With the addresses before these.
fn neighbour(mut config: Config) -> Config {
    if let Address::Static { address, .. } = &mut config.address {
        *address = Ipv4Addr::from_bits(address.to_bits() - 1);
    }
    if let Ipv6::Static { address, .. } = &mut config.ipv6 {
        *address = Ipv6Addr::from_bits(address.to_bits() - 1);
    }
    config
}

impl Wire {
    pub fn new() -> Wire {
        Wire::with(config(2))
    }

    pub fn with(right: Config) -> Wire {
        Wire::between(right, false)
    }

    pub fn between(right: Config, offloads: bool) -> Wire {
        let (one, two) = (Queue::default(), Queue::default());
        let left_end = End { incoming: one.clone(), outgoing: two.clone(), offloads, frames_max: 256 };
        let right_end = End { incoming: two, outgoing: one, offloads, frames_max: 256 };
        let left = neighbour(right.clone());
        Wire {
            left: Stack::new(left_end, [2, 0, 0, 0, 0, 1], left, 1, Instant(0)).unwrap(),
            right: Stack::new(right_end, RIGHT_MAC, right, 2, Instant(0)).unwrap(),
            executor: Executor::new(Arc::new(Nothing)),
            now: Instant(0),
        }
    }

    pub fn right_address(&self, port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 2], port))
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.executor.spawn("test", task).unwrap();
    }

    /// Runs until nothing more happens at this time.
    pub fn settle(&mut self) {
        for _ in 0..1_000_000 {
            let fired = self.executor.fire_timers(self.now);
            let polled = self.executor.run_ready();
            let moved = self.left.poll(self.now) | self.right.poll(self.now);
            let more = moved || self.executor.has_ready() || self.left.has_work() || self.right.has_work();
            if fired + polled == 0 && !more {
                return;
            }
        }
        panic!("never becomes idle at {}", self.now);
    }

    fn step(&mut self, until: Instant) {
        self.settle();
        let deadlines =
            [self.left.next_deadline(self.now), self.right.next_deadline(self.now), self.executor.next_deadline()];
        let next = deadlines.into_iter().flatten().min().unwrap_or(until);
        self.now = next.min(until).max(self.now);
    }

    pub fn advance(&mut self, duration: Duration) {
        let until = self.now + duration;
        while self.now < until {
            self.step(until);
        }
        self.settle();
    }
}

/// Runs `task` to its end and returns its result.
pub fn run<T: 'static>(wire: &mut Wire, limit: Duration, task: impl Future<Output = T> + 'static) -> T {
    let result = Rc::new(RefCell::new(None));
    let slot = result.clone();
    wire.spawn(async move {
        let value = task.await;
        *slot.borrow_mut() = Some(value);
    });
    let until = wire.now + limit;
    loop {
        wire.settle();
        if let Some(value) = result.borrow_mut().take() {
            return value;
        }
        assert!(wire.now < until, "no result after {limit:?}");
        wire.step(until);
    }
}
