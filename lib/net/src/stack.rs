//! The platform's side: moving frames and time.

use crate::announce::announce;
use crate::config::{Config, ConfigError};
use crate::sockets::Sockets;
use crate::state::{Counters, Shared, State, from_smoltcp, to_smoltcp};
use alloc::rc::Rc;
use core::cell::RefCell;
use core::time::Duration;
use glass_api::Instant;
use glass_executor::sync::Notify;
use smoltcp::iface::{self, Interface, PollResult};
use smoltcp::phy::{Device, DeviceCapabilities, RxToken};
use smoltcp::time;
use smoltcp::wire::{EthernetAddress, HardwareAddress};

/// Frames that one poll takes from the device at most, so that tasks get their turn.
const FRAMES_PER_POLL: usize = 128;
/// Rounds in which one poll lets every socket send a segment.
const SEND_ROUNDS_PER_POLL: usize = 256;
/// How long a platform may sleep while the device has no room, if no interrupt comes.
const BLOCKED_WAIT: Duration = Duration::from_millis(10);
/// How long a deadline waits that polling did not serve.
const LATE_WAIT: Duration = Duration::from_millis(1);

/// A TCP/IP stack on one device. The crate's documentation shows the loop around it.
pub struct Stack<D: Device> {
    device: D,
    mac: EthernetAddress,
    shared: Rc<Shared>,
    transmit_blocked: bool,
}

impl<D: Device> Stack<D> {
    /// A stack with the device's address `mac`. `seed` chooses ports and sequence numbers: it must
    /// be hard to guess and different at each start.
    pub fn new(mut device: D, mac: [u8; 6], config: Config, seed: u64, now: Instant) -> Result<Stack<D>, ConfigError> {
        let mac = EthernetAddress(mac);
        config.check(mac)?;
        let mut settings = iface::Config::new(HardwareAddress::Ethernet(mac));
        settings.random_seed = seed;
        let interface = Interface::new(settings, &mut device, to_smoltcp(now));
        let state = RefCell::new(State::new(interface, config, seed, now));
        let shared = Rc::new(Shared { state, address_changed: Notify::new() });
        Ok(Stack { device, mac, shared, transmit_blocked: false })
    }

    /// The service's handle.
    pub fn sockets(&self) -> Sockets {
        Sockets::new(self.shared.clone())
    }

    /// The device, to kick it, to arm its interrupt or to read its counters.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Sends what sockets have queued, takes frames from the device and wakes tasks; bounded work.
    /// Tells whether a frame moved: if so, run the tasks and poll again before sleeping.
    ///
    /// Sending comes first: what a task answers to a frame goes out in the poll after it, together
    /// with the acknowledgement, and in the same kick.
    pub fn poll(&mut self, now: Instant) -> bool {
        let mut state = self.shared.state.borrow_mut();
        let state = &mut *state;
        state.now = now;
        state.dirty = false;
        let time = to_smoltcp(now);
        state.interface.poll_maintenance(time);

        let mut moved = false;
        if state.announce {
            match (state.interface.ipv4_addr(), self.device.transmit(time)) {
                (Some(address), Some(transmit)) => {
                    announce(transmit, self.mac, address);
                    state.announce = false;
                    moved = true;
                }
                (Some(_), None) => {}
                (None, _) => state.announce = false,
            }
        }
        let mut device = Watched { device: &mut self.device, blocked: false };
        for _ in 0..SEND_ROUNDS_PER_POLL {
            match state.interface.poll_egress(time, &mut device, &mut state.sockets) {
                PollResult::None => break,
                PollResult::SocketStateChanged => moved = true,
            }
            if device.blocked {
                break;
            }
        }
        self.transmit_blocked = device.blocked;
        state.counters.transmit_blocked += u64::from(device.blocked);

        let capabilities = self.device.capabilities();
        for _ in 0..FRAMES_PER_POLL {
            let Some((receive, transmit)) = self.device.receive(time) else { break };
            let meta = receive.meta();
            receive.consume(|frame| state.receive(time, frame, meta, transmit, &capabilities));
            moved = true;
            // Acknowledgements and window updates go out in the next poll.
            state.dirty = true;
        }

        state.reap_pending();
        state.reap_lingering();
        if state.poll_dhcp() {
            self.shared.address_changed.notify_all();
        }
        moved
    }

    /// Whether a socket has changed since the last poll, so that the next one may find something to
    /// send. Never sleep while this is true.
    pub fn has_work(&self) -> bool {
        self.shared.state.borrow().dirty
    }

    /// Whether the device had no room for a frame in the last poll: wait for it to finish some.
    pub fn transmit_blocked(&self) -> bool {
        self.transmit_blocked
    }

    /// When to poll next if nothing else happens. Call it after a poll that moved nothing.
    pub fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        let mut state = self.shared.state.borrow_mut();
        let state = &mut *state;
        let protocol = state.interface.poll_at(to_smoltcp(now), &state.sockets).map(from_smoltcp);
        let protocol = match protocol {
            Some(at) if at <= now && self.transmit_blocked => Some(now + BLOCKED_WAIT),
            Some(at) if at <= now && !state.dirty => {
                state.counters.late_deadlines += 1;
                Some(now + LATE_WAIT)
            }
            protocol => protocol,
        };
        protocol.into_iter().chain(state.lingering_deadline()).min()
    }

    /// Connections that exist, those being opened and closed included.
    pub fn connection_count(&self) -> usize {
        self.shared.state.borrow().connection_count
    }

    /// What happened since the start.
    pub fn counters(&self) -> Counters {
        self.shared.state.borrow().counters
    }
}

/// Passes everything on and notices when there was no room for a frame.
struct Watched<'d, D> {
    device: &'d mut D,
    blocked: bool,
}

impl<D: Device> Device for Watched<'_, D> {
    type RxToken<'a>
        = D::RxToken<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = D::TxToken<'a>
    where
        Self: 'a;

    fn receive(&mut self, now: time::Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        self.device.receive(now)
    }

    fn transmit(&mut self, now: time::Instant) -> Option<Self::TxToken<'_>> {
        let token = self.device.transmit(now);
        self.blocked |= token.is_none();
        token
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.device.capabilities()
    }
}
