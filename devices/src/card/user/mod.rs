//! The network of an ordinary user's VM: its connections are those of sockets of this host, and ports of this host lead to it. It needs no privileges,
//! no other program, and no device.
//!
//! The guest sees a network of three: itself, a gateway, which is this host's loopback (where services listen that are not for others), and a name
//! server, which is the host's. Everything else is reached by the gateway. Connections of TCP and datagrams of UDP are passed on; nothing reaches the
//! guest that it has not sent for, except by the ports that were given.
//!
//! The other end of each of the guest's connections is [`glass_lib_tcp`] here, so frames have up to 64 KiB, no checksum is computed, and nothing is lost
//! on the way: a side that is slow makes the other one's window small.

mod connections;
mod datagrams;
mod host;
mod packet;
#[cfg(test)]
mod tests;

use super::{CSUM, GUEST_CSUM, GUEST_TSO4, HEADER_BYTES, HOST_TSO4, Link};
use crate::device::Host as Waits;
use crate::rings::copy_to;
use anyhow::Result;
use connections::{Connections, Outgoing};
use datagrams::Datagrams;
use glass_api::Instant;
use glass_lib_jail::{Condition, SystemCalls, older};
use host::{Became, Host, Subject};
use packet::{CHECKSUM_OF_TCP, Checksum, ETHERNET_BYTES, Ends, IP_BYTES, Mac, Packet, Writer};
use std::collections::VecDeque;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd as _, BorrowedFd};

/// The addresses of QEMU's own user network, which are on command lines of images: the VM, the gateway, by which it also reaches the host, and the
/// name server.
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
/// The first three numbers of these.
const PREFIX: [u8; 3] = [10, 0, 2];
/// The card of the gateway and the name server.
const GATEWAY_MAC: Mac = [0x52, 0x55, 10, 0, 2, 2];
const NAMES_PORT: u16 = 53;
/// Where the host has its name servers.
const RESOLVER: &str = "/etc/resolv.conf";
/// The longest packet of IP, and the longest frame with it, without the header of the card.
const PACKET_BYTES_MAX: usize = 65535;
const FRAME_BYTES_MAX: usize = ETHERNET_BYTES + PACKET_BYTES_MAX;
/// Frames for the guest until sockets are polled again.
const FRAMES_BETWEEN: u32 = 16;
/// Answers to ARP that wait for the guest.
const ANSWERS_MAX: usize = 16;
/// In the header of a card (virtio 1.2, section 5.1.6): the checksum lacks the segment; it is right; the frame is cut into segments of TCP over IPv4.
const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_TCPV4: u8 = 1;
/// Descriptors and memory that a user network takes at most, beside those of its process.
const DESCRIPTORS_MAX: u64 = (connections::CONNECTIONS_MAX + datagrams::SOCKETS_MAX + 64) as u64;
const OWN_BYTES_MAX: u64 = connections::BUFFERS_BYTES_MAX + (16 << 20);

/// What a user network is made with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserNetwork {
    /// TCP ports of 127.0.0.1, and the VM's ports to which they lead.
    pub ports: Vec<(u16, u16)>,
}

impl UserNetwork {
    /// Open files that it needs, at most.
    pub const DESCRIPTORS_MAX: u64 = DESCRIPTORS_MAX;
    /// Bytes of memory that it needs, at most.
    pub const MEMORY_BYTES_MAX: u64 = OWN_BYTES_MAX;

    /// Listens at the ports. From here on clients wait until the guest accepts them.
    ///
    /// # Errors
    /// A port is in use, or may not be used by this user.
    pub fn listen(&self) -> Result<Listeners> {
        let listen =
            |(port, guest): &(u16, u16)| Ok(Listener { listener: host::listen(*port)?, port: *guest, is_ready: false });
        self.ports.iter().map(listen).collect::<Result<_>>().map(Listeners)
    }
}

/// Listening sockets of a user network.
pub struct Listeners(Vec<Listener>);

impl Listeners {
    /// Files that are readable when there is a client.
    pub fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|listener| listener.listener.as_fd())
    }
}

impl User {
    /// A user network with these listeners, for a card with this address.
    ///
    /// # Errors
    /// There are no descriptors.
    pub fn open(Listeners(listeners): Listeners, card: [u8; 6]) -> Result<User> {
        let host = Host::new()?;
        for (index, listener) in listeners.iter().enumerate() {
            host.watch(&listener.listener, Subject::Listener(index))?;
        }
        Ok(User {
            host,
            listeners,
            names: fs::read_to_string(RESOLVER).ok().and_then(|text| name_server(&text)),
            guest: GUEST,
            writer: Writer::new(GATEWAY_MAC, card),
            connections: Connections::new(),
            datagrams: Datagrams::new(),
            answers: VecDeque::new(),
            frame: Vec::new(),
            header_bytes: HEADER_BYTES,
            features: 0,
            until_poll: 0,
        })
    }
}

/// The first name server with an IPv4 address in the text of `resolv.conf(5)`.
fn name_server(text: &str) -> Option<Ipv4Addr> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next()?.parse().ok()).flatten()
    })
}

struct Listener {
    listener: TcpListener,
    /// The guest's port.
    port: u16,
    is_ready: bool,
}

/// An open user network: the host's side of a card.
pub struct User {
    host: Host,
    listeners: Vec<Listener>,
    /// The host's name server.
    names: Option<Ipv4Addr>,
    /// The address that the guest has used last.
    guest: Ipv4Addr,
    writer: Writer,
    connections: Connections,
    datagrams: Datagrams,
    /// Frames for the guest that are no packet of a connection.
    answers: VecDeque<Vec<u8>>,
    /// A frame of the guest, in one piece.
    frame: Vec<u8>,
    header_bytes: usize,
    features: u64,
    /// Frames until sockets are polled again.
    until_poll: u32,
}

impl User {
    /// Where on this host the remote end of a guest's connection is; `None` if that is nowhere.
    fn target(&self, remote: SocketAddrV4) -> Option<SocketAddrV4> {
        let (ip, port) = (*remote.ip(), remote.port());
        if ip == GATEWAY {
            return Some(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        }
        if ip == NAME_SERVER {
            return self.names.filter(|_| port == NAMES_PORT).map(|names| SocketAddrV4::new(names, port));
        }
        let is_nowhere = ip.octets()[..3] == PREFIX
            || ip.octets()[0] == 0
            || ip.is_loopback()
            || ip.is_multicast()
            || ip.is_broadcast()
            || port == 0;
        (!is_nowhere).then_some(remote)
    }

    /// Notes the address of the guest.
    fn note_guest(&mut self, address: Ipv4Addr) {
        if address.octets()[..3] == PREFIX && address != GATEWAY && address != NAME_SERVER {
            self.guest = address;
        }
    }

    /// A frame of the guest.
    fn receive(&mut self, now: Instant, frame: &[u8]) {
        match Packet::parse(frame) {
            Some(Packet::Request { sender, target }) => {
                self.note_guest(sender);
                // Also if the gateway of another network is on the guest's command line: who has no neighbours has one.
                if target != sender && target != self.guest && self.answers.len() < ANSWERS_MAX {
                    self.answers.push_back(self.writer.arp_reply(sender, target));
                }
            }
            Some(Packet::Segment(ends, segment)) => {
                self.note_guest(*ends.guest.ip());
                let target = self.target(ends.remote);
                self.connections.receive(now, &self.host, ends, &segment, target);
            }
            Some(Packet::Datagram(ends, data)) => {
                self.note_guest(*ends.guest.ip());
                if let Some(target) = self.target(ends.remote) {
                    self.datagrams.send(now, &self.host, ends, target, data);
                }
            }
            None => {}
        }
    }

    /// Takes note of what became possible.
    fn poll_host(&mut self, now: Instant) {
        for Became { subject, is_readable, is_writable } in self.host.take() {
            match subject {
                Subject::Timer => {}
                Subject::Listener(index) => self.listeners[index].is_ready |= is_readable,
                Subject::Connection(id) => self.connections.became(id, is_readable, is_writable),
                Subject::Datagrams(index) => {
                    if is_readable {
                        self.datagrams.became_readable(index);
                    }
                }
            }
        }
        self.connections.expire(now);
        for index in 0..self.listeners.len() {
            self.accept(now, index);
        }
    }

    fn accept(&mut self, now: Instant, index: usize) {
        while self.listeners[index].is_ready && self.connections.has_capacity() {
            let Listener { listener, port, .. } = &self.listeners[index];
            let guest = SocketAddrV4::new(self.guest, *port);
            let Some((socket, peer)) = host::accept(listener) else {
                self.listeners[index].is_ready = false;
                return;
            };
            // Clients of two ports of the host may have the same one, and those that were closed just now are remembered.
            let mut ends = Ends { guest, remote: SocketAddrV4::new(GATEWAY, peer.port()) };
            while self.connections.contains(&ends) {
                ends.remote.set_port(ends.remote.port().checked_add(1).unwrap_or(1024));
            }
            self.connections.accept(now, &self.host, ends, socket);
        }
    }

    /// Copies the next frame for the guest, with the header of the card, into the pieces; returns its length.
    ///
    /// # Safety
    /// The pieces are memory that may be written and that no reference leads to.
    unsafe fn next_frame(&mut self, now: Instant, pieces: &[libc::iovec]) -> Option<usize> {
        let mut header = [0; HEADER_BYTES];
        let has_sums = self.features & GUEST_CSUM != 0;
        header[0] = if has_sums { DATA_VALID } else { 0 };
        let frame_bytes = if self.features & GUEST_TSO4 != 0 { PACKET_BYTES_MAX - IP_BYTES } else { 0 };
        let whole = if let Some(answer) = self.answers.pop_front() {
            answer
        } else if let Some(Outgoing { ends, header: tcp, payload, cut_bytes }) = self.connections.poll(now, frame_bytes)
        {
            // A guest that does not verify checksums needs none, but the one that it uses to cut a frame.
            let checksum = if has_sums { Checksum::OfAddresses } else { Checksum::Whole };
            let frame = self.writer.segment(&ends, &tcp, payload, checksum);
            if has_sums {
                let gso = cut_bytes.map(|cut_bytes| (frame.len() as u16, cut_bytes));
                write_offloads(&mut header, gso);
            }
            let parts = [&header[..self.header_bytes], &frame, payload[0], payload[1]];
            // SAFETY: the caller's promise.
            return Some(unsafe { copy_to(pieces, &parts) });
        } else {
            let (ends, data) = self.datagrams.poll(now)?;
            self.writer.datagram(&ends, data)
        };
        // SAFETY: the caller's promise.
        Some(unsafe { copy_to(pieces, &[&header[..self.header_bytes], &whole]) })
    }
}

/// What the guest has to do for a segment: the rest of its checksum, and cut it, behind headers of so many bytes, into so many bytes of payload.
fn write_offloads(header: &mut [u8; HEADER_BYTES], gso: Option<(u16, u16)>) {
    header[0] = NEEDS_CSUM;
    if let Some((headers_bytes, cut_bytes)) = gso {
        header[1] = GSO_TCPV4;
        header[2..4].copy_from_slice(&headers_bytes.to_le_bytes());
        header[4..6].copy_from_slice(&cut_bytes.to_le_bytes());
    }
    header[6..8].copy_from_slice(&((ETHERNET_BYTES + IP_BYTES) as u16).to_le_bytes());
    header[8..10].copy_from_slice(&(CHECKSUM_OF_TCP as u16).to_le_bytes());
}

/// Copies what is in the pieces behind their first `skipped` bytes to the end of `to`.
///
/// # Safety
/// The pieces are memory that may be read.
unsafe fn gather(pieces: &[libc::iovec], mut skipped: usize, to: &mut Vec<u8>) {
    for piece in pieces {
        let before = skipped.min(piece.iov_len);
        skipped -= before;
        let count = piece.iov_len - before;
        to.reserve(count);
        let from = piece.iov_base.wrapping_byte_add(before).cast::<u8>();
        // SAFETY: the caller's promise. There is room; a guest that writes at the same time changes what is copied, no more.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr().add(to.len()), count) };
        // SAFETY: these bytes were just written.
        unsafe { to.set_len(to.len() + count) };
    }
}

impl Link for User {
    fn allow(system_calls: SystemCalls) -> SystemCalls {
        // No other socket can be made: not one of this host's other programs, not a raw one.
        let is_ipv4 = Condition { argument: 0, mask: u32::MAX, value: libc::AF_INET as u32 };
        let kind = |kind: libc::c_int| Condition { argument: 1, mask: 0xf, value: kind as u32 };
        system_calls
            .allow_where(libc::SYS_socket, &[is_ipv4, kind(libc::SOCK_STREAM)])
            .allow_where(libc::SYS_socket, &[is_ipv4, kind(libc::SOCK_DGRAM)])
            .allow(&[
                libc::SYS_connect,
                libc::SYS_accept4,
                libc::SYS_getsockopt,
                libc::SYS_setsockopt,
                libc::SYS_shutdown,
                libc::SYS_sendto,
                libc::SYS_recvfrom,
                libc::SYS_epoll_ctl,
                libc::SYS_epoll_pwait,
                libc::SYS_epoll_pwait2,
                libc::SYS_timerfd_settime,
            ])
            .allow(older::EPOLL_WAIT)
    }

    fn features(&self) -> u64 {
        CSUM | GUEST_CSUM | GUEST_TSO4 | HOST_TSO4
    }

    fn mtu(&self) -> Option<u16> {
        None
    }

    fn agree(&mut self, header_bytes: usize, features: u64) -> Result<()> {
        (self.header_bytes, self.features) = (header_bytes, features);
        Ok(())
    }

    unsafe fn read(&mut self, pieces: &[libc::iovec]) -> io::Result<usize> {
        let now = host::now();
        let mut has_polled = false;
        if self.until_poll == 0 {
            self.poll_host(now);
            (self.until_poll, has_polled) = (FRAMES_BETWEEN, true);
        }
        loop {
            // SAFETY: the caller's promise.
            if let Some(bytes) = unsafe { self.next_frame(now, pieces) } {
                self.until_poll -= 1;
                return Ok(bytes);
            }
            if has_polled {
                self.until_poll = 0;
                self.host.wake_at(self.connections.deadline());
                return Err(ErrorKind::WouldBlock.into());
            }
            self.poll_host(now);
            has_polled = true;
        }
    }

    unsafe fn write(&mut self, pieces: &[libc::iovec]) -> io::Result<usize> {
        let all: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        if all > self.header_bytes + FRAME_BYTES_MAX {
            return Err(ErrorKind::InvalidInput.into());
        }
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        // SAFETY: the caller's promise.
        unsafe { gather(pieces, self.header_bytes, &mut frame) };
        self.receive(host::now(), &frame);
        self.frame = frame;
        Ok(all)
    }

    fn takes_joined_datagrams(&self) -> bool {
        false
    }

    fn host(&self) -> Waits<'_> {
        Waits { file: self.host.file(), error: "its sockets cannot be waited for" }
    }
}
