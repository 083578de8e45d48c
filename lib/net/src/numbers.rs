//! Numbers that no other host may guess: the first sequence number of a connection (RFC 6528), and others.
//!
//! They are made by SipHash-2-4 with the stack's secret key, whose results nothing but the key predicts. smoltcp has a generator (PCG) whose
//! results show its state: an attacker who opens two connections would have it all. So whatever smoltcp needs a number for is done on an
//! interface with a seed of its own, of which one result is used.

use crate::table::Ends;
use core::hash::Hasher;
#[expect(deprecated, reason = "the general ones have no key of ours, and this one stays as it is")]
use core::hash::SipHasher;
use core::net::IpAddr;
use glass_api::Instant;
use smoltcp::iface::{Config, Interface};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, TcpSeqNumber};

use crate::long_frames::Shape;
use crate::state::to_smoltcp;
use smoltcp::phy::DeviceCapabilities;

/// The clock of sequence numbers advances once in this time (RFC 9293, section 3.4.1).
const TICK_NANOS: u64 = 4000;
/// The two kinds of numbers have nothing in common.
const SEQUENCE: u8 = 0;
const OTHER: u8 = 1;

/// The source of these numbers.
pub(crate) struct Numbers {
    keys: (u64, u64),
    made: u64,
}

impl Numbers {
    /// With a secret key.
    pub(crate) fn new(key: u128) -> Numbers {
        Numbers { keys: ((key >> 64) as u64, key as u64), made: 0 }
    }

    #[expect(deprecated, reason = "see above")]
    fn hasher(&self, kind: u8) -> SipHasher {
        let mut hasher = SipHasher::new_with_keys(self.keys.0, self.keys.1);
        hasher.write(&[kind]);
        hasher
    }

    /// A new number.
    pub(crate) fn next(&mut self) -> u64 {
        self.made += 1;
        let mut hasher = self.hasher(OTHER);
        hasher.write(&self.made.to_le_bytes());
        hasher.finish()
    }

    /// The first sequence number of a connection that opens now: those between the same ends increase.
    pub(crate) fn first_sequence_number(&self, now: Instant, ends: Ends) -> TcpSeqNumber {
        let mut hasher = self.hasher(SEQUENCE);
        for end in [ends.local, ends.remote] {
            match IpAddr::from(end.addr) {
                IpAddr::V4(address) => hasher.write(&address.octets()),
                IpAddr::V6(address) => hasher.write(&address.octets()),
            }
            hasher.write(&end.port.to_le_bytes());
        }
        let clock = now.0 / TICK_NANOS;
        TcpSeqNumber(clock.wrapping_add(hasher.finish()) as i32)
    }
}

/// The seed with which a new interface's generator gives this number to a socket. That generator multiplies its state by an odd number,
/// adds another one, and returns 32 bits of the new state, from a place that its top three bits choose: with 0 there, from bit 29 on. The
/// interface has taken 16 bits that are not 0 before, so the state is the second one.
pub(crate) fn seed_of(number: TcpSeqNumber) -> u64 {
    let states = (0..1 << 29).map(|low| (u64::from(number.0 as u32) << 29) | low);
    let first = states.map(generator_before).find(|state| {
        let bits = state >> (29 - (state >> 61));
        (bits ^ (bits >> 16)) as u16 != 0
    });
    generator_before(first.unwrap_or_default())
}

/// The state of smoltcp's generator before this one.
const fn generator_before(state: u64) -> u64 {
    const FACTOR: u64 = 0xbb2e_fcec_3c39_611d;
    const SUMMAND: u64 = 0x7590_ef39;
    // Its inverse, by Newton's method: each step doubles the number of right bits, of which there are three at the start.
    let mut inverse = FACTOR;
    let mut bits = 3;
    while bits < u64::BITS {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(FACTOR.wrapping_mul(inverse)));
        bits *= 2;
    }
    state.wrapping_sub(SUMMAND).wrapping_mul(inverse)
}

/// An interface for one number: with this seed and, for a connection, this address of ours.
pub(crate) fn interface_for(
    seed: u64,
    local: Option<IpAddress>,
    capabilities: DeviceCapabilities,
    now: Instant,
) -> Interface {
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let mut interface = Interface::new(config, &mut Shape(crate::link::of_packets(capabilities)), to_smoltcp(now));
    interface.update_ip_addrs(|addresses| {
        // There is room, and nothing there.
        addresses.extend(local.map(|local| {
            let bits = if matches!(local, IpAddress::Ipv4(_)) { 32 } else { 128 };
            IpCidr::new(local, bits)
        }));
    });
    interface
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use smoltcp::iface::SocketSet;
    use smoltcp::phy::{Device, Loopback, Medium, RxToken};
    use smoltcp::socket::tcp;
    use smoltcp::time;
    use smoltcp::wire::{IpEndpoint, TcpPacket};

    const OURS: IpAddress = IpAddress::v4(10, 0, 0, 1);

    fn ends(port: u16) -> Ends {
        Ends { local: IpEndpoint::new(OURS, 80), remote: IpEndpoint::new(IpAddress::v4(10, 0, 0, 2), port) }
    }

    #[test]
    fn numbers_of_one_pair_of_ends_follow_the_clock_and_those_of_others_do_not_follow_from_them() {
        let numbers = Numbers::new(7);
        let at = |micros: u64, port| numbers.first_sequence_number(Instant(micros * 1000), ends(port));
        assert_eq!((at(4000, 1) - at(0, 1), at(3, 1) - at(0, 1)), (1000, 0));
        let differences = [1, 2, 3].map(|port| at(0, port + 1).0.wrapping_sub(at(0, port).0));
        assert!(differences[0] != differences[1] && differences[1] != differences[2], "{differences:?}");
        assert_ne!(Numbers::new(8).first_sequence_number(Instant(0), ends(1)), at(0, 1));
    }

    #[test]
    fn the_seed_of_a_number_gives_it_to_the_socket() {
        // More than 65,536, so that the interface's number would be 0 with one of them.
        for number in (0..200_000).map(|number: i32| number.wrapping_mul(0x3779_97f1)) {
            let number = TcpSeqNumber(number);
            let mut capabilities = DeviceCapabilities::default();
            capabilities.max_transmission_unit = 1514;
            let mut interface = interface_for(seed_of(number), Some(OURS), capabilities, Instant(0));
            let buffer = || tcp::SocketBuffer::new(vec![0]);
            let mut socket = tcp::Socket::new(buffer(), buffer());
            socket.connect(interface.context(), ends(1).remote, ends(1).local).unwrap();
            assert_eq!(first_number(&mut interface, socket), number);
        }
    }

    /// The sequence number of the first segment that a socket sends.
    fn first_number(interface: &mut Interface, socket: tcp::Socket<'static>) -> TcpSeqNumber {
        let mut sockets = SocketSet::new(vec![]);
        sockets.add(socket);
        let mut device = Loopback::new(Medium::Ip);
        interface.poll_egress(time::Instant::ZERO, &mut device, &mut sockets);
        let (packet, _) = device.receive(time::Instant::ZERO).unwrap();
        packet.consume(|packet| TcpPacket::new_checked(&packet[20..]).unwrap().seq_number())
    }

    #[test]
    fn others_differ_each_time_and_with_the_key() {
        let (mut one, mut two) = (Numbers::new(1), Numbers::new(1 << 64));
        let found = [one.next(), one.next(), two.next(), two.next()];
        assert!(found.iter().all(|number| found.iter().filter(|other| *other == number).count() == 1), "{found:?}");
    }
}
