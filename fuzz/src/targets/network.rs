//! Malicious neighbours of a TCP/IP stack: the input is a series of Ethernet frames of IPv4 and IPv6, each with the time that passes
//! before it.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use std::time::Duration;

use fastrand::Rng;
use glass_api::{Datagrams, Instant, Listener, Net, Stream};
use glass_lib_net::smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, RxToken, TxToken};
use glass_lib_net::smoltcp::wire::*;
use glass_lib_net::smoltcp::{phy, time};
use glass_lib_net::{Address, Config, Ipv6, Sockets, Stack};

use super::Target;
use crate::mutate;

/// Length of the frame, and of the time before it.
const HEAD_BYTES: usize = 3;
const FRAME_BYTES_MAX: usize = 4096;
const FRAMES_MAX: usize = 300;
const PORT: u16 = 80;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OURS: [u8; 4] = [10, 0, 0, 2];
const PEER: [u8; 4] = [10, 0, 0, 1];
const OURS_IPV6: &str = "fe80::ff:fe00:2";
const PEER_IPV6: &str = "fe80::ff:fe00:1";
/// More than a stack of this size ever has to send to what it receives in one frame, and to itself as time passes.
const ANSWERS_MAX: usize = 64;
const CONNECTIONS_MAX: usize = 8;

/// A stack with a listener and a port for datagrams.
pub struct Neighbours;

#[derive(Default)]
struct Wire {
    incoming: VecDeque<Vec<u8>>,
    sent: usize,
}

struct Received(Vec<u8>);
struct Sender<'w>(&'w mut Wire);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl TxToken for Sender<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        assert!(len <= 1514, "a frame of {len} bytes");
        self.0.sent += 1;
        write(&mut vec![0; len])
    }
}

impl Device for Wire {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sender<'a>;

    fn receive(&mut self, _: time::Instant) -> Option<(Received, Sender<'_>)> {
        Some((Received(self.incoming.pop_front()?), Sender(self)))
    }

    fn transmit(&mut self, _: time::Instant) -> Option<Sender<'_>> {
        Some(Sender(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = phy::Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        // Most changed frames would end at their checksum.
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities.checksum.udp = Checksum::Tx;
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities
    }
}

/// Accepts connections and answers each once.
async fn serve(sockets: Sockets) {
    let mut listener = sockets.listen(PORT).await.expect("a free port");
    loop {
        let Ok(mut stream) = listener.accept().await else { continue };
        let mut buf = [0; 64];
        if let Ok(count) = stream.read(&mut buf).await {
            let _ = stream.write(&buf[..count]).await;
            let _ = stream.close().await;
        }
    }
}

async fn echo(sockets: Sockets) {
    let port = sockets.bind(7).await.expect("a free port");
    let mut buf = [0; 2000];
    while let Ok((count, remote)) = port.recv_from(&mut buf).await {
        let _ = port.send_to(&buf[..count], remote).await;
    }
}

/// Frames and the eighths of a second before each.
fn frames(mut input: &[u8]) -> impl Iterator<Item = (Duration, Vec<u8>)> {
    let frames = std::iter::from_fn(move || {
        let ([low, high, eighths], rest) = input.split_first_chunk::<HEAD_BYTES>()?;
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(FRAME_BYTES_MAX).min(rest.len());
        let (frame, rest) = rest.split_at(length);
        input = rest;
        Some((Duration::from_millis(125) * u32::from(*eighths), frame.to_vec()))
    });
    frames.take(FRAMES_MAX)
}

fn with_head(frames: &[Vec<u8>]) -> Vec<u8> {
    let one = |frame: &Vec<u8>| [&(frame.len() as u16).to_le_bytes()[..], &[0], frame].concat();
    frames.iter().flat_map(one).collect()
}

/// Gives a message of ICMPv6 its checksum again: it is verified whatever the card does.
fn repair(frame: &mut [u8]) {
    let Some(packet) = frame.get_mut(14..) else { return };
    let Ok(mut packet) = Ipv6Packet::new_checked(packet) else { return };
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    if packet.next_header() == IpProtocol::Icmpv6
        && let Ok(mut message) = Icmpv6Packet::new_checked(packet.payload_mut())
    {
        message.fill_checksum(&source, &destination);
    }
}

fn ip_frame(ip: &IpRepr, fill: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let ethertype = if ip.version() == IpVersion::Ipv4 { EthernetProtocol::Ipv4 } else { EthernetProtocol::Ipv6 };
    let ethernet = EthernetRepr { src_addr: EthernetAddress(PEER_MAC), dst_addr: EthernetAddress(MAC), ethertype };
    let mut bytes = vec![0; ethernet.buffer_len() + ip.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    ethernet.emit(&mut frame);
    let (head, payload) = frame.payload_mut().split_at_mut(ip.header_len());
    ip.emit(head, &ChecksumCapabilities::default());
    fill(payload);
    bytes
}

fn segment(ends: (IpAddress, IpAddress), control: TcpControl, seq: i32, ack: Option<i32>, payload: &[u8]) -> Vec<u8> {
    let tcp = TcpRepr {
        src_port: 4000,
        dst_port: PORT,
        control,
        seq_number: TcpSeqNumber(seq),
        ack_number: ack.map(TcpSeqNumber),
        window_len: 9000,
        window_scale: Some(7),
        max_seg_size: Some(1440),
        sack_permitted: true,
        sack_ranges: [None; 3],
        timestamp: None,
        payload,
    };
    let ip = IpRepr::new(ends.0, ends.1, IpProtocol::Tcp, tcp.buffer_len(), 64);
    ip_frame(&ip, |bytes| {
        tcp.emit(&mut TcpPacket::new_unchecked(bytes), &ends.0, &ends.1, &ChecksumCapabilities::default());
    })
}

fn datagram(ends: (IpAddress, IpAddress)) -> Vec<u8> {
    let udp = UdpRepr { src_port: 4000, dst_port: 7 };
    let ip = IpRepr::new(ends.0, ends.1, IpProtocol::Udp, udp.header_len() + 5, 64);
    ip_frame(&ip, |bytes| {
        let mut packet = UdpPacket::new_unchecked(bytes);
        let write = |payload: &mut [u8]| payload.copy_from_slice(b"hello");
        udp.emit(&mut packet, &ends.0, &ends.1, 5, write, &ChecksumCapabilities::default());
    })
}

fn message(source: &str, destination: &str, kind: u8, body: &[u8]) -> Vec<u8> {
    let (source, destination) = (source.parse().expect("an address"), destination.parse().expect("an address"));
    let ip = Ipv6Repr {
        src_addr: source,
        dst_addr: destination,
        next_header: IpProtocol::Icmpv6,
        payload_len: 4 + body.len(),
        hop_limit: 255,
    };
    let mut frame = ip_frame(&IpRepr::Ipv6(ip), |bytes| {
        bytes[0] = kind;
        bytes[4..].copy_from_slice(body);
    });
    repair(&mut frame);
    frame
}

fn router_advert(prefix: u8) -> Vec<u8> {
    let mut body = vec![64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    // A prefix, and a name server.
    body.extend([3, 4, 64, 0xc0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8, 0, 0, 0, prefix]);
    body.extend([0; 8]);
    body.extend([25, 3, 0, 0, 0, 0, 1, 0, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, prefix]);
    message(PEER_IPV6, "ff02::1", 134, &body)
}

fn neighbour(kind: u8, source: &str, destination: &str, target: &str) -> Vec<u8> {
    let mut body = vec![0x60, 0, 0, 0];
    body.extend(target.parse::<std::net::Ipv6Addr>().expect("an address").octets());
    body.extend([kind - 134, 1]);
    body.extend(PEER_MAC);
    message(source, destination, kind, &body)
}

impl Target for Neighbours {
    fn name(&self) -> &'static str {
        "network"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let address = |text: &str| IpAddress::Ipv6(text.parse().expect("an address"));
        let ipv4 = (IpAddress::Ipv4(PEER.into()), IpAddress::Ipv4(OURS.into()));
        let ipv6 = (address(PEER_IPV6), address(OURS_IPV6));
        let arp = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr: EthernetAddress(PEER_MAC),
            source_protocol_addr: PEER.into(),
            target_hardware_addr: EthernetAddress(MAC),
            target_protocol_addr: OURS.into(),
        };
        let ethernet = EthernetRepr {
            src_addr: EthernetAddress(PEER_MAC),
            dst_addr: EthernetAddress(MAC),
            ethertype: EthernetProtocol::Arp,
        };
        let mut request = vec![0; ethernet.buffer_len() + arp.buffer_len()];
        let mut frame = EthernetFrame::new_unchecked(&mut request[..]);
        ethernet.emit(&mut frame);
        arp.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
        let connection = |ends| {
            [
                segment(ends, TcpControl::Syn, 1, None, &[]),
                segment(ends, TcpControl::None, 2, Some(1), b"data"),
                segment(ends, TcpControl::Fin, 6, Some(1), &[]),
                segment(ends, TcpControl::Rst, 7, None, &[]),
            ]
        };
        let discovery = [
            neighbour(135, PEER_IPV6, "ff02::1:ff00:2", OURS_IPV6),
            neighbour(135, "::", "ff02::1:ff00:2", OURS_IPV6),
            neighbour(136, PEER_IPV6, OURS_IPV6, PEER_IPV6),
            neighbour(136, PEER_IPV6, "ff02::1", OURS_IPV6),
            message(PEER_IPV6, OURS_IPV6, 128, b"\0\x01\0\x02echo"),
            // A query of multicast groups, without the header that carries it.
            message(PEER_IPV6, "ff02::1", 130, &[0; 24]),
        ];
        vec![
            with_head(&[&[request][..], &connection(ipv4), &[datagram(ipv4)]].concat()),
            with_head(&[&[discovery[0].clone()][..], &connection(ipv6), &[datagram(ipv6)]].concat()),
            with_head(&discovery),
            with_head(&(0..6).map(router_advert).collect::<Vec<_>>()),
        ]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        mutate::plain(bytes, corpus, rng);
    }

    fn run(&self, input: &[u8]) {
        let address = Address::Static { address: OURS.into(), prefix_bits: 24, gateway: Some(PEER.into()) };
        let config = Config {
            ipv6: Ipv6::Auto,
            connections_max: CONNECTIONS_MAX,
            receive_bytes: 4096,
            send_bytes: 4096,
            spare_bytes: 0,
            datagram_bytes: 4096,
            ..Config::for_memory(address, 8 << 20)
        };
        let mut now = Instant(0);
        let mut stack = Stack::new(Wire::default(), MAC, config, 1, now).expect("valid addresses");
        let (mut server, mut echo) = (pin!(serve(stack.sockets())), pin!(echo(stack.sockets())));
        let tasks: [Pin<&mut dyn Future<Output = ()>>; 2] = [server.as_mut(), echo.as_mut()];
        let mut tasks = tasks;
        for (wait, mut frame) in frames(input) {
            now = now + wait;
            repair(&mut frame);
            stack.device_mut().incoming.push_back(frame);
            stack.device_mut().sent = 0;
            for _ in 0..4 {
                for task in &mut tasks {
                    let _ = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                }
                stack.poll(now);
            }
            let sent = stack.device_mut().sent;
            assert!(sent <= ANSWERS_MAX, "{sent} frames after one");
            assert!(stack.connection_count() <= CONNECTIONS_MAX && stack.half_open_count() <= 256);
            assert!(stack.addresses().len() <= 6);
        }
        // It sleeps while nothing happens.
        let deadline = stack.next_deadline(now);
        assert!(deadline.is_none_or(|at| at > now) || stack.has_work(), "a deadline in the past: {deadline:?}");
    }
}
