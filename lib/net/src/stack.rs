//! The platform's side: frames and time.

use crate::arp::announcement;
use crate::autoconf::{Autoconf, Notice};
use crate::config::{Address, Config, ConfigError, Ipv6};
use crate::handshakes::{Answer, Handshakes, WaitingSegments};
use crate::ingress::send_frame;
use crate::link::{Headed, Link, Outlet, of_packets};
use crate::numbers::{Numbers, interface_for};
use crate::segment::{longest_segment, send_segment};
use crate::sockets::Sockets;
use crate::state::{Counters, Shared, State, first_port, from_smoltcp, to_smoltcp};
use crate::table::Role;
use crate::trace::ADDRESS;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::net::IpAddr;
use core::time::Duration;
use glass_api::Instant;
use glass_lib_executor::sync::Notify;
use glass_lib_tcp::State as TcpState;
use glass_lib_trace::{Group, is_on};
use smoltcp::iface::PollResult;
use smoltcp::phy::{Device, DeviceCapabilities, PacketMeta, RxToken, TxToken};
use smoltcp::time;
use smoltcp::wire::{EthernetAddress, IpAddress};

/// Frames that one poll receives at most, so that tasks can run.
const FRAMES_PER_POLL: usize = 128;
/// Bytes after which it receives no more: the acknowledgement of a part of a window lets the peer send while the tasks read it.
const BYTES_PER_POLL: usize = 256 << 10;
/// Segments that one poll sends at most.
const SEGMENTS_PER_POLL: usize = 1024;
/// How long a platform may sleep while the device has no room, if no interrupt comes.
const BLOCKED_WAIT: Duration = Duration::from_millis(10);
/// A TCP/IP stack on one device. The crate's documentation shows the loop around it.
pub struct Stack<D: Device> {
    device: D,
    mac: EthernetAddress,
    shared: Rc<Shared>,
    /// The device had no room for a frame in the last poll.
    transmit_blocked: bool,
}

impl<D: Device> Stack<D> {
    /// A stack with the device's address `mac`. `secret` is the key of ports and sequence numbers: it must
    /// be hard to guess and different at each start.
    pub fn new(device: D, mac: [u8; 6], config: Config, secret: u128, now: Instant) -> Result<Stack<D>, ConfigError> {
        let mac = EthernetAddress(mac);
        config.check(mac)?;
        let mut numbers = Numbers::new(secret);
        let capabilities = device.capabilities();
        let mtu = capabilities.ip_mtu();
        let interface = interface_for(numbers.next(), capabilities.clone(), now);
        let state = State::new(interface, capabilities, mac, mtu, config, numbers, now);
        let shared = Rc::new(Shared { state: RefCell::new(state), address_changed: Notify::named(&ADDRESS) });
        Ok(Stack { device, mac, shared, transmit_blocked: false })
    }

    /// The service's handle.
    pub fn sockets(&self) -> Sockets {
        Sockets::new(self.shared.clone())
    }

    /// The device, for reading.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, to notify it, or to arm its interrupt.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Sets the time before tasks run: what these do is at this time. Without it, a connection that is opened after a pause counts from the last poll.
    pub fn set_time(&mut self, now: Instant) {
        self.shared.state.borrow_mut().now = now;
    }

    /// Takes another card address, and another IPv4 address or where to get one, as a copy of a stack does that is on one network with it. A fixed IPv6
    /// address would be that of both, so the network's routers give new ones. Listeners stay; connections of addresses that are gone end.
    ///
    /// # Errors
    /// The address is not one that a host can have. Nothing has changed.
    pub fn move_to(&mut self, mac: [u8; 6], address: Address) -> Result<(), ConfigError> {
        let mac = EthernetAddress(mac);
        let mut state = self.shared.state.borrow_mut();
        let ipv6 = if state.config.ipv6 == Ipv6::Off { Ipv6::Off } else { Ipv6::Auto };
        let config = Config { address, ipv6, ..state.config.clone() };
        config.check(mac)?;
        self.mac = mac;
        state.move_to(mac, config, self.device.capabilities());
        drop(state);
        self.shared.address_changed.notify_all();
        Ok(())
    }

    /// Ends all connections without a segment, because their peers are another stack's, of which this one is a copy. `secret` is its own key, as in
    /// [`Stack::new`]. Listeners, addresses, neighbours and routes stay.
    pub fn abandon(&mut self, secret: u128) {
        let mut state = self.shared.state.borrow_mut();
        let state = &mut *state;
        state.numbers = Numbers::new(secret);
        state.port_next = first_port(&mut state.numbers);
        state.handshakes = Handshakes::default();
        state.waiting = WaitingSegments::default();
        for (_, connection) in state.table.iter_mut() {
            connection.tcp.expire();
            connection.wake();
        }
        state.table.touch_all();
    }

    /// Sends what sockets have queued, receives frames and wakes tasks; bounded work.
    /// Returns whether a frame was sent or received: if so, run the tasks and poll again before sleeping.
    ///
    /// Sending comes first: a task's answer to a frame is sent in the next poll, together
    /// with the acknowledgement, and with the same notify.
    pub fn poll(&mut self, now: Instant) -> bool {
        let mut state = self.shared.state.borrow_mut();
        let state = &mut *state;
        state.now = now;
        let time = to_smoltcp(now);
        state.interface.poll_maintenance(time);
        state.link.borrow_mut().neighbours.advance(now);
        state.ring_alarms();

        let mut moved = false;
        if state.wants_to_announce() {
            match (state.interface.ipv4_addr(), self.device.transmit(time)) {
                (Some(address), Some(transmit)) => {
                    send_frame(transmit, &announcement(self.mac, address));
                    state.announce = false;
                    moved = true;
                }
                (Some(_), None) => {}
                (None, _) => state.announce = false,
            }
        }
        let mut is_blocked = false;
        while !is_blocked && state.wants_to_discover() {
            match self.device.transmit(time) {
                Some(transmit) => moved |= state.discover(transmit),
                None => is_blocked = true,
            }
        }
        if let Some(dhcp) = &mut state.dhcp {
            moved |= dhcp.send(now, &mut self.device, &state.link);
        }
        let link = state.link.clone();
        let mut device = Watched { device: &mut self.device, link: &link, now, remote: None, blocked: false };
        moved |= state.interface.poll_egress(time, &mut device, &mut state.control) == PollResult::SocketStateChanged;
        moved |= state.send(time, &mut device);
        moved |= state.send_datagrams(&mut device);
        let is_blocked = device.blocked | is_blocked;
        let (has_sent, is_full) = state.send_waiting(&mut self.device);
        moved |= has_sent;
        self.transmit_blocked = is_blocked | is_full;

        let capabilities = self.device.capabilities();
        while state.can_admit_waiting() {
            let Some(transmit) = self.device.transmit(time) else {
                self.transmit_blocked = true;
                break;
            };
            let Some(waiting) = state.waiting.take(now) else { break };
            state.receive_waiting(&waiting, transmit, &capabilities.checksum);
            moved = true;
        }
        while state.handshakes.is_due(now) {
            let Some(transmit) = self.device.transmit(time) else {
                self.transmit_blocked = true;
                break;
            };
            let (answer, ended) = state.handshakes.next_resend(now);
            state.counters.abandoned_opening += ended;
            let Some(Answer { ends, to, header }) = answer else { break };
            let outlet = Outlet::to(transmit, &link, now, ends.remote.addr, to);
            send_segment(outlet, ends, &header, [&[], &[]], None, &capabilities.checksum);
            moved = true;
        }
        let mut received_bytes = 0;
        for _ in 0..FRAMES_PER_POLL {
            if received_bytes >= BYTES_PER_POLL {
                break;
            }
            let Some((receive, transmit)) = self.device.receive(time) else { break };
            receive.consume(|frame| {
                received_bytes += frame.len();
                state.receive(time, frame, transmit, &capabilities);
            });
            moved = true;
        }
        // Each of them is due, whatever the others return.
        if [state.poll_dhcp(), state.poll_ipv6(), state.has_changed()].contains(&true) {
            self.shared.address_changed.notify_all();
        }
        moved
    }

    /// Whether the next poll may find something to send. Never sleep while this is true.
    pub fn has_work(&self) -> bool {
        let state = self.shared.state.borrow();
        let may_send = state.table.queue_len() > 0
            || state.has_datagrams()
            || state.wants_to_announce()
            || state.wants_to_discover()
            || state.link.borrow().has_frames()
            || state.can_admit_waiting();
        may_send && !self.transmit_blocked
    }

    /// When to poll next if nothing else happens. Call it after a poll that neither sent nor received.
    pub fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        let mut state = self.shared.state.borrow_mut();
        let state = &mut *state;
        let control = state.interface.poll_at(to_smoltcp(now), &state.control).map(from_smoltcp);
        let blocked = self.transmit_blocked.then(|| now + BLOCKED_WAIT);
        let alarm = state.alarms.first_key_value().map(|((at, _), _)| *at);
        let dhcp = state.dhcp.as_mut().and_then(|dhcp| dhcp.next_deadline(now));
        let (neighbours, handshakes) =
            (state.link.borrow().neighbours.next_deadline(), state.handshakes.next_deadline());
        let ipv6 = [state.ipv6.as_ref().and_then(Autoconf::next_deadline), state.next_up()].into_iter().flatten().min();
        let starts = state.starts_until().filter(|_| state.waiting.first(now).is_some());
        let deadlines =
            [control, alarm, state.table.next_deadline(), dhcp, neighbours, handshakes, ipv6, starts, blocked];
        let deadline = deadlines.into_iter().flatten().min()?;
        // Polling has served what could be served.
        Some(if self.transmit_blocked { deadline.max(now + BLOCKED_WAIT) } else { deadline })
    }

    /// Records the open connections in the trace: call it when tracing of the network was switched on.
    pub fn announce(&self) {
        self.shared.state.borrow_mut().table.announce();
    }

    /// The first port that a peer wanted to reach although no listener has it, once, with the ports of the
    /// listeners.
    pub fn take_missed_port(&self) -> Option<(u16, Vec<u16>)> {
        let mut state = self.shared.state.borrow_mut();
        let (port, is_reported) = state.missed.as_mut()?;
        if core::mem::replace(is_reported, true) {
            return None;
        }
        let port = *port;
        Some((port, state.listeners.iter().map(|listener| listener.port).collect()))
    }

    /// What happened to our addresses: the oldest event, of IPv4 and then of IPv6, that was not returned yet.
    pub fn take_notice(&self) -> Option<Notice> {
        let mut state = self.shared.state.borrow_mut();
        if !state.lease_notices.is_empty() {
            return Some(state.lease_notices.remove(0));
        }
        state.ipv6.as_mut()?.take_notice()
    }

    /// Our addresses, the first one for most connections; [`glass_api::Net::up`] waits for one.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.shared.state.borrow().interface.ip_addrs().iter().map(|cidr| cidr.address().into()).collect()
    }

    /// Whether the peer of a closed connection has not yet acknowledged all of it. A platform that ends continues to poll while
    /// this is true, within a limit.
    pub fn is_delivering(&self) -> bool {
        let mut state = self.shared.state.borrow_mut();
        let delivers = [TcpState::FinWait1, TcpState::Closing, TcpState::LastAck];
        state.table.iter_mut().any(|(_, connection)| {
            matches!(connection.role, Role::Lingering(_)) && delivers.contains(&connection.tcp.state())
        })
    }

    /// Connections that exist, including those being closed.
    pub fn connection_count(&self) -> usize {
        self.shared.state.borrow().table.len()
    }

    /// Connections whose handshake is not done.
    pub fn half_open_count(&self) -> usize {
        self.shared.state.borrow().handshakes.len()
    }

    /// What happened since the start.
    pub fn counters(&self) -> Counters {
        self.shared.state.borrow().counters
    }
}

impl State {
    /// Lets every connection that may have something to send do so, one segment each in turn. Returns
    /// whether one did.
    fn send<D: Device>(&mut self, time: time::Instant, device: &mut Watched<'_, D>) -> bool {
        self.table.touch_due(self.now);
        let capabilities = device.device.capabilities();
        let mut moved = false;
        let mut budget = SEGMENTS_PER_POLL.max(self.table.queue_len());
        while budget > 0 && !device.blocked {
            budget -= 1;
            let Some(id) = self.table.pop() else { break };
            let Some(transmit) = device.device.transmit(time) else {
                device.blocked = true;
                self.table.touch(id);
                break;
            };
            let connection = self.table.get(id);
            let ends = connection.ends;
            let Some(segment) = connection.tcp.poll_transmit(self.now, longest_segment(ends, &capabilities)) else {
                self.settle(id);
                continue;
            };
            if is_on(Group::Net) {
                let (_, shift) = connection.tcp.shifts();
                connection.flow.sends(&segment.header, segment.payload_bytes, shift);
            }
            let outlet = Outlet::to(transmit, device.link, self.now, ends.remote.addr, None);
            let (payload, cut) = (connection.tcp.payload(&segment), segment.cut_bytes);
            send_segment(outlet, ends, &segment.header, payload, cut, &capabilities.checksum);
            moved = true;
            self.table.touch(id);
        }
        moved
    }

    /// Sends requests for the addresses of neighbours, and what waited for these. Returns whether it sent something, and whether there
    /// was no room for all.
    fn send_waiting(&mut self, device: &mut impl Device) -> (bool, bool) {
        let mut has_sent = false;
        while self.link.borrow().has_frames() {
            let Some(mut transmit) = device.transmit(to_smoltcp(self.now)) else { return (has_sent, true) };
            let Some((frame, segment_bytes)) = self.link.borrow_mut().next_frame() else { break };
            let mut meta = PacketMeta::default();
            meta.segmentation_offload_size = segment_bytes;
            transmit.set_meta(meta);
            transmit.consume(frame.len(), |bytes| bytes.copy_from_slice(&frame));
            has_sent = true;
        }
        (has_sent, false)
    }
}

/// A device that passes smoltcp's frames through, and detects when there was no room for one.
pub(crate) struct Watched<'d, D> {
    device: &'d mut D,
    link: &'d RefCell<Link>,
    now: Instant,
    /// Where the next packet goes, if that is certain.
    pub(crate) remote: Option<IpAddress>,
    pub(crate) blocked: bool,
}

impl<D: Device> Device for Watched<'_, D> {
    type RxToken<'a>
        = D::RxToken<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Headed<Outlet<'a, D::TxToken<'a>>>
    where
        Self: 'a;

    fn receive(&mut self, _: time::Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        // Only `State::receive` takes frames.
        None
    }

    fn transmit(&mut self, now: time::Instant) -> Option<Self::TxToken<'_>> {
        let token = self.device.transmit(now);
        self.blocked |= token.is_none();
        Some(Headed(Outlet { remote: self.remote, ..Outlet::new(token?, self.link, self.now) }))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        of_packets(self.device.capabilities())
    }
}
