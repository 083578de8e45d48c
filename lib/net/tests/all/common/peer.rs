//! A hand-made peer, which sends segments that no correct stack would.

use super::{RIGHT_MAC, Wire};
use glass_lib_net::smoltcp::phy::ChecksumCapabilities;
use glass_lib_net::smoltcp::wire::*;

/// Where the hand-made peer is; the stack under test is `Wire::right`.
pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const ADDRESS: Ipv4Address = Ipv4Address::new(10, 0, 0, 9);
const RIGHT: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);

/// A segment, as far as the tests need it.
#[derive(Debug, Clone)]
pub struct Segment {
    pub control: TcpControl,
    pub seq: TcpSeqNumber,
    pub ack: Option<TcpSeqNumber>,
    pub window: u16,
    pub window_scale: Option<u8>,
    /// Length of its data.
    pub bytes: usize,
}

pub struct Peer {
    pub address: Ipv4Address,
    pub port: u16,
    pub remote_port: u16,
    pub seq: TcpSeqNumber,
    pub ack: TcpSeqNumber,
    pub window_scale: u8,
}

impl Peer {
    pub fn new(port: u16, remote_port: u16) -> Peer {
        Peer { address: ADDRESS, port, remote_port, seq: TcpSeqNumber(1000), ack: TcpSeqNumber(0), window_scale: 7 }
    }

    pub fn frame(&self, control: TcpControl, seq: TcpSeqNumber, ack: Option<TcpSeqNumber>, payload: &[u8]) -> Vec<u8> {
        let syn = control == TcpControl::Syn;
        let tcp = TcpRepr {
            src_port: self.port,
            dst_port: self.remote_port,
            control,
            seq_number: seq,
            ack_number: ack,
            window_len: 0xffff,
            window_scale: syn.then_some(self.window_scale),
            max_seg_size: syn.then_some(1460),
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload,
        };
        let ip = IpRepr::new(self.address.into(), RIGHT.into(), IpProtocol::Tcp, tcp.buffer_len(), 64);
        let mut bytes = vec![0; EthernetFrame::<&[u8]>::header_len() + ip.buffer_len()];
        let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
        let (source, destination) = (EthernetAddress(MAC), EthernetAddress(RIGHT_MAC));
        EthernetRepr { src_addr: source, dst_addr: destination, ethertype: EthernetProtocol::Ipv4 }.emit(&mut frame);
        let (head, segment) = frame.payload_mut().split_at_mut(ip.header_len());
        let checksums = ChecksumCapabilities::default();
        ip.emit(head, &checksums);
        let mut packet = TcpPacket::new_unchecked(segment);
        tcp.emit(&mut packet, &self.address.into(), &RIGHT.into(), &checksums);
        bytes
    }

    /// A frame with this data.
    pub fn frame_of_data(&self, data: &[u8]) -> Vec<u8> {
        self.frame(TcpControl::Psh, self.seq, Some(self.ack), data)
    }

    pub fn send(&self, wire: &mut Wire, control: TcpControl, seq: TcpSeqNumber, ack: bool, payload: &[u8]) {
        let frame = self.frame(control, seq, ack.then_some(self.ack), payload);
        wire.right.device_mut().incoming.borrow_mut().push_back(frame);
    }

    /// Lets the stack run and returns the segments that it sent to this peer; answers its ARP.
    pub fn exchange(&self, wire: &mut Wire) -> Vec<Segment> {
        let mut segments = Vec::new();
        for _ in 0..4 {
            self.run_right(wire);
            let sent: Vec<Vec<u8>> = wire.right.device_mut().outgoing.borrow_mut().drain(..).collect();
            for frame in sent {
                match self.read(&frame) {
                    Read::Segment(segment) => segments.push(segment),
                    Read::Arp(reply) => wire.right.device_mut().incoming.borrow_mut().push_back(reply),
                    Read::Other => {}
                }
            }
        }
        segments
    }

    fn run_right(&self, wire: &mut Wire) {
        for _ in 0..100 {
            wire.executor.run_ready();
            wire.right.poll(wire.now);
        }
    }

    fn read(&self, bytes: &[u8]) -> Read {
        let frame = EthernetFrame::new_checked(bytes).unwrap();
        if frame.ethertype() == EthernetProtocol::Arp {
            return self.answer_arp(frame.payload());
        }
        let Ok(packet) = Ipv4Packet::new_checked(frame.payload()) else { return Read::Other };
        let (source, destination) = (packet.src_addr(), packet.dst_addr());
        let Ok(tcp) = TcpPacket::new_checked(packet.payload()) else { return Read::Other };
        let checksums = ChecksumCapabilities::default();
        let repr = TcpRepr::parse(&tcp, &source.into(), &destination.into(), &checksums).unwrap();
        if repr.dst_port != self.port || destination != self.address {
            return Read::Other;
        }
        let (window, window_scale) = (repr.window_len, repr.window_scale);
        Read::Segment(Segment {
            control: repr.control,
            seq: repr.seq_number,
            ack: repr.ack_number,
            window,
            window_scale,
            bytes: repr.payload.len(),
        })
    }

    fn answer_arp(&self, payload: &[u8]) -> Read {
        let repr = ArpRepr::parse(&ArpPacket::new_checked(payload).unwrap()).unwrap();
        let ArpRepr::EthernetIpv4 { operation: ArpOperation::Request, target_protocol_addr, .. } = repr else {
            return Read::Other;
        };
        if target_protocol_addr != self.address {
            return Read::Other;
        }
        let reply = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: EthernetAddress(MAC),
            source_protocol_addr: self.address,
            target_hardware_addr: EthernetAddress(RIGHT_MAC),
            target_protocol_addr: RIGHT,
        };
        let mut bytes = vec![0; EthernetFrame::<&[u8]>::header_len() + reply.buffer_len()];
        let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
        let (source, destination) = (EthernetAddress(MAC), EthernetAddress(RIGHT_MAC));
        EthernetRepr { src_addr: source, dst_addr: destination, ethertype: EthernetProtocol::Arp }.emit(&mut frame);
        reply.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
        Read::Arp(bytes)
    }

    /// Requests a connection and returns the answer, if there is one now.
    pub fn request(&mut self, wire: &mut Wire) -> Option<Segment> {
        self.send(wire, TcpControl::Syn, self.seq, false, &[]);
        self.answer(wire)
    }

    /// The answer to our SYN, if it is sent now.
    pub fn answer(&mut self, wire: &mut Wire) -> Option<Segment> {
        let answer = self.exchange(wire).into_iter().find(|segment| segment.control == TcpControl::Syn)?;
        assert_eq!(answer.ack, Some(self.seq + 1));
        self.ack = answer.seq + 1;
        Some(answer)
    }

    /// Acknowledges the answer.
    pub fn complete(&mut self, wire: &mut Wire) {
        self.seq += 1;
        self.send(wire, TcpControl::None, self.seq, true, &[]);
        self.exchange(wire);
    }

    /// Opens the connection and returns whether the stack let it.
    pub fn open(&mut self, wire: &mut Wire) -> bool {
        let is_answered = self.request(wire).is_some();
        if is_answered {
            self.complete(wire);
        }
        is_answered
    }
}

enum Read {
    Segment(Segment),
    Arp(Vec<u8>),
    Other,
}
