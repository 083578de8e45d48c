//! Connections whose handshake is not done: a SYN was received and answered.
//!
//! A flood of SYNs comes from addresses that never answer. So until the peer has acknowledged our SYN, a connection is only its SYN and a
//! number; they are bounded apart from all others, and a new one takes the place of the oldest. The socket and its buffers are made when
//! the acknowledgement is received.
//!
//! A socket of smoltcp cannot be made for a handshake that has started, and it chooses its first sequence number itself, by the
//! generator of its interface. Therefore each handshake has an interface of its own for a moment, whose generator returns our number
//! (`numbers.rs`): once with a socket without buffers, whose answer is sent, and once more, from the same SYN, with the socket that stays.

use crate::link::{ETHERNET_BYTES, of_packets};
use crate::numbers::{interface_for, seed_of};
use crate::segment::{segment_of, segment_start};
use crate::state::to_smoltcp;
use crate::table::Ends;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;
use glass_api::Instant;
use smoltcp::iface::SocketSet;
use smoltcp::phy::{Device, DeviceCapabilities, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time;
use smoltcp::wire::{TcpOption, TcpPacket, TcpSeqNumber};

/// Handshakes that may be in progress.
const COUNT_MAX: usize = 256;
/// A longer frame is not an ordinary SYN.
const FRAME_BYTES_MAX: usize = 128;
/// When the answer is retransmitted: so long after it was sent, and twice as long after the next time.
const RESEND_AFTER: Duration = Duration::from_secs(1);
/// How often it is retransmitted.
const RESENDS_MAX: u8 = 3;
/// A handshake with a peer that exists is done after this time, mostly.
const USUAL_TIME: Duration = Duration::from_millis(100);

/// A handshake in progress.
struct HalfOpen {
    /// In the order of their start.
    number: u64,
    ends: Ends,
    started_at: Instant,
    /// The frame with the SYN.
    syn: Vec<u8>,
    /// Our first sequence number.
    start: TcpSeqNumber,
    /// Sizes of its buffers, and how much of them is spare memory.
    sizes: Sizes,
    resends: u8,
    resend_at: Instant,
}

/// The sizes of a connection's receive and send buffers, and how much of them is spare memory.
pub(crate) type Sizes = (usize, usize, usize);

/// All handshakes in progress.
#[derive(Default)]
pub(crate) struct Handshakes {
    /// In no order. They are few, and most are over soon.
    half_open: Vec<HalfOpen>,
    made: u64,
}

/// What a segment means for a handshake.
pub(crate) enum Reply {
    /// It completes it: make the connection.
    Complete,
    /// It ends it.
    Reset,
    /// It acknowledges nothing that we have sent.
    Wrong,
}

impl Handshakes {
    pub(crate) fn len(&self) -> usize {
        self.half_open.len()
    }

    pub(crate) fn contains(&self, ends: Ends) -> bool {
        self.between(ends).is_some()
    }

    fn between(&self, ends: Ends) -> Option<&HalfOpen> {
        self.half_open.iter().find(|half_open| half_open.ends == ends)
    }

    fn oldest(&self) -> Option<&HalfOpen> {
        self.half_open.iter().min_by_key(|half_open| half_open.number)
    }

    /// How many connections these handshakes are likely to become: all of them while all are young, as in a burst of clients; none if
    /// some are old, as in a flood, which must not take the room of real clients.
    pub(crate) fn likely(&self, now: Instant) -> usize {
        let is_burst = self.oldest().is_some_and(|oldest| now.since(oldest.started_at) < USUAL_TIME);
        if is_burst { self.len() } else { 0 }
    }

    /// Spare memory that the connections will use.
    pub(crate) fn spare_bytes(&self) -> usize {
        self.half_open.iter().map(|half_open| half_open.sizes.2).sum()
    }

    /// Whether an answer is to be retransmitted.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next_deadline().is_some_and(|at| at <= now)
    }

    /// Starts a handshake, or answers its SYN again: the frame to send, and whether another handshake had to end for it. `None` if
    /// `syn` is not a SYN that smoltcp accepts.
    pub(crate) fn start(
        &mut self,
        now: Instant,
        ends: Ends,
        syn: &[u8],
        start: TcpSeqNumber,
        sizes: Sizes,
        capabilities: &DeviceCapabilities,
    ) -> Option<(Vec<u8>, bool)> {
        // The same one again may differ in the header of IP.
        let is_repeated = |old: &&HalfOpen| first_number(&old.syn) == first_number(syn);
        if let Some(old) = self.between(ends).filter(is_repeated) {
            return Some((old.answer(now, capabilities)?, false));
        }
        if syn.len() > FRAME_BYTES_MAX {
            return None;
        }
        let half_open = HalfOpen {
            number: self.made,
            ends,
            started_at: now,
            syn: syn.to_vec(),
            start,
            sizes,
            resends: 0,
            resend_at: now + RESEND_AFTER,
        };
        let answer = half_open.answer(now, capabilities)?;
        self.remove(ends);
        let is_full = self.len() >= COUNT_MAX;
        if is_full && let Some(oldest) = self.oldest() {
            self.remove(oldest.ends);
        }
        self.half_open.push(half_open);
        self.made += 1;
        Some((answer, is_full))
    }

    /// What a segment that is no SYN means for the handshake between these ends, if there is one.
    pub(crate) fn reply(&self, ends: Ends, frame: &[u8]) -> Option<Reply> {
        let half_open = self.between(ends)?;
        let expected = half_open.start + 1;
        let reply = segment_of(frame).map(|packet| {
            // A reset counts only with the number that we expect next (RFC 5961).
            let peer = first_number(&half_open.syn).map(|number| number + 1);
            match (packet.rst(), packet.ack() && packet.ack_number() == expected) {
                (true, _) if Some(packet.seq_number()) == peer => Reply::Reset,
                (false, true) => Reply::Complete,
                _ => Reply::Wrong,
            }
        });
        Some(reply.unwrap_or(Reply::Wrong))
    }

    /// The sizes of the buffers that the connection between these ends needs.
    pub(crate) fn sizes(&self, ends: Ends) -> Option<Sizes> {
        self.between(ends).map(|half_open| half_open.sizes)
    }

    /// Ends a handshake, and gives `socket`, which listens, the state after its SYN was answered. Returns the SYN too.
    pub(crate) fn complete(
        &mut self,
        now: Instant,
        ends: Ends,
        socket: tcp::Socket<'static>,
        capabilities: &DeviceCapabilities,
    ) -> Option<(tcp::Socket<'static>, Vec<u8>)> {
        let half_open = self.remove(ends)?;
        let (socket, answer) = half_open.replay(now, socket, capabilities);
        (first_number(&answer?) == Some(half_open.start)).then_some((socket, half_open.syn))
    }

    /// Ends the handshake between these ends without a connection.
    pub(crate) fn end(&mut self, ends: Ends) {
        self.remove(ends);
    }

    fn remove(&mut self, ends: Ends) -> Option<HalfOpen> {
        let at = self.half_open.iter().position(|half_open| half_open.ends == ends)?;
        Some(self.half_open.swap_remove(at))
    }

    pub(crate) fn remove_port(&mut self, port: u16) {
        self.half_open.retain(|half_open| half_open.ends.local.port != port);
    }

    /// The next answer to retransmit. The second value counts handshakes that have ended because nothing answered.
    pub(crate) fn next_resend(&mut self, now: Instant, capabilities: &DeviceCapabilities) -> (Option<Vec<u8>>, u64) {
        let mut ended = 0;
        while let Some(at) = self.half_open.iter().position(|half_open| half_open.resend_at <= now) {
            let half_open = &mut self.half_open[at];
            if half_open.resends < RESENDS_MAX {
                half_open.resends += 1;
                half_open.resend_at = now + RESEND_AFTER * (1 << half_open.resends);
                let answer = half_open.answer(now, capabilities);
                if answer.is_some() {
                    return (answer, ended);
                }
            }
            self.half_open.swap_remove(at);
            ended += 1;
        }
        (None, ended)
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.half_open.iter().map(|half_open| half_open.resend_at).min()
    }
}

impl HalfOpen {
    /// The frame that answers the SYN.
    fn answer(&self, now: Instant, capabilities: &DeviceCapabilities) -> Option<Vec<u8>> {
        let mut socket = tcp::Socket::new(tcp::SocketBuffer::new(vec![0]), tcp::SocketBuffer::new(vec![0]));
        socket.listen(self.ends.local.port).ok()?;
        let (_, answer) = self.replay(now, socket, capabilities);
        let mut answer = answer?;
        offer_window(&mut answer, self.ends, self.sizes.0, capabilities)?;
        Some(answer)
    }

    /// Lets `socket` receive the SYN and answer it, on an interface of its own.
    fn replay(
        &self,
        now: Instant,
        socket: tcp::Socket<'static>,
        capabilities: &DeviceCapabilities,
    ) -> (tcp::Socket<'static>, Option<Vec<u8>>) {
        let time = to_smoltcp(now);
        let mut interface = interface_for(seed_of(self.start), Some(self.ends.local.addr), capabilities.clone(), now);
        let mut device = OneSyn {
            packet: self.syn.get(ETHERNET_BYTES..),
            answer: None,
            capabilities: of_packets(capabilities.clone()),
        };
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        interface.poll_ingress_single(time, &mut device, &mut sockets);
        interface.poll_egress(time, &mut device, &mut sockets);
        let smoltcp::socket::Socket::Tcp(socket) = sockets.remove(handle) else { unreachable!("it is a TCP socket") };
        (socket, device.answer.map(|packet| self.frame(&packet)))
    }

    /// The Ethernet frame of an answer: back to where the SYN came from.
    fn frame(&self, packet: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(ETHERNET_BYTES + packet.len());
        frame.extend_from_slice(&self.syn[6..12]);
        frame.extend_from_slice(&self.syn[..6]);
        frame.extend_from_slice(&self.syn[12..ETHERNET_BYTES]);
        frame.extend_from_slice(packet);
        frame
    }
}

/// Puts the window of a receive buffer of `bytes` bytes into an answer to a SYN.
fn offer_window(frame: &mut [u8], ends: Ends, bytes: usize, capabilities: &DeviceCapabilities) -> Option<()> {
    let start = segment_start(frame)?;
    let mut packet = TcpPacket::new_checked(&mut frame[start..]).ok()?;
    packet.set_window_len(u16::try_from(bytes).unwrap_or(u16::MAX));
    let shift = (usize::BITS - bytes.leading_zeros()).saturating_sub(u16::BITS) as u8;
    let header_bytes = usize::from(packet.header_len());
    let mut at = start + 20;
    while let Ok((rest, option)) = TcpOption::parse(frame.get(at..start + header_bytes)?) {
        let (next, is_scale) = (start + header_bytes - rest.len(), matches!(option, TcpOption::WindowScale(_)));
        if is_scale {
            frame[next - 1] = shift;
        }
        at = next;
    }
    if capabilities.checksum.tcp.tx() {
        TcpPacket::new_checked(&mut frame[start..]).ok()?.fill_checksum(&ends.local.addr, &ends.remote.addr);
    }
    Some(())
}

fn first_number(answer: &[u8]) -> Option<TcpSeqNumber> {
    segment_of(answer).map(|packet| packet.seq_number())
}

/// A device that receives one packet and keeps the answer.
struct OneSyn<'p> {
    packet: Option<&'p [u8]>,
    answer: Option<Vec<u8>>,
    capabilities: DeviceCapabilities,
}

struct Packet<'p>(&'p [u8]);
struct Answer<'a>(&'a mut Option<Vec<u8>>);

impl RxToken for Packet<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

impl TxToken for Answer<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        write(self.0.insert(vec![0; len]))
    }
}

impl<'p> Device for OneSyn<'p> {
    type RxToken<'a>
        = Packet<'p>
    where
        Self: 'a;
    type TxToken<'a>
        = Answer<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: time::Instant) -> Option<(Packet<'p>, Answer<'_>)> {
        Some((Packet(self.packet.take()?), Answer(&mut self.answer)))
    }

    fn transmit(&mut self, _: time::Instant) -> Option<Answer<'_>> {
        Some(Answer(&mut self.answer))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.capabilities.clone()
    }
}
