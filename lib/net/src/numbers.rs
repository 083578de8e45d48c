//! Numbers that no other host may guess: the first sequence number of a connection (RFC 6528), and others.
//!
//! They are made by SipHash-2-4 with the stack's secret key, whose results nothing but the key predicts.

use crate::table::Ends;
use core::hash::Hasher;
#[expect(deprecated, reason = "the general ones have no key of ours, and this one stays as it is")]
use core::hash::SipHasher;
use glass_api::Instant;
use glass_lib_tcp::initial_number;
use smoltcp::iface::{Config, Interface};
use smoltcp::phy::DeviceCapabilities;
use smoltcp::wire::{HardwareAddress, IpAddress};

use crate::link::{Shape, of_packets};
use crate::state::to_smoltcp;

/// The kinds of numbers have nothing in common.
const SEQUENCE: u8 = 0;
const OTHER: u8 = 1;
const SEED: u8 = 2;

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
    pub(crate) fn first_sequence_number(&self, now: Instant, ends: Ends) -> u32 {
        let (bytes, count) = bytes_of(ends);
        initial_number(now, self.hasher(SEQUENCE), &bytes[..count])
    }

    /// Another number of the same ends, always the same: where their timestamps start (RFC 7323, section 7.1).
    pub(crate) fn seed(&self, ends: Ends) -> u64 {
        let (bytes, count) = bytes_of(ends);
        let mut hasher = self.hasher(SEED);
        hasher.write(&bytes[..count]);
        hasher.finish()
    }
}

/// Two addresses and two ports, and how many bytes they are.
fn bytes_of(ends: Ends) -> ([u8; 36], usize) {
    let (mut bytes, mut count) = ([0; 36], 0);
    let mut put = |piece: &[u8]| {
        bytes[count..count + piece.len()].copy_from_slice(piece);
        count += piece.len();
    };
    for end in [ends.local, ends.remote] {
        match end.addr {
            IpAddress::Ipv4(address) => put(&address.octets()),
            IpAddress::Ipv6(address) => put(&address.octets()),
        }
        put(&end.port.to_le_bytes());
    }
    (bytes, count)
}

/// An interface whose generator of numbers starts with this seed. Its results show its state, so that each number that must not be guessed
/// has an interface of its own.
pub(crate) fn interface_for(seed: u64, capabilities: DeviceCapabilities, now: Instant) -> Interface {
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    Interface::new(config, &mut Shape(of_packets(capabilities)), to_smoltcp(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::IpEndpoint;

    const OURS: IpAddress = IpAddress::v4(10, 0, 0, 1);

    fn ends(port: u16) -> Ends {
        Ends { local: IpEndpoint::new(OURS, 80), remote: IpEndpoint::new(IpAddress::v4(10, 0, 0, 2), port) }
    }

    #[test]
    fn numbers_of_one_pair_of_ends_follow_the_clock_and_those_of_others_do_not_follow_from_them() {
        let numbers = Numbers::new(7);
        let at = |micros: u64, port| numbers.first_sequence_number(Instant(micros * 1000), ends(port));
        assert_eq!((at(4000, 1).wrapping_sub(at(0, 1)), at(3, 1).wrapping_sub(at(0, 1))), (1000, 0));
        let differences = [1, 2, 3].map(|port| at(0, port + 1).wrapping_sub(at(0, port)));
        assert!(differences[0] != differences[1] && differences[1] != differences[2], "{differences:?}");
        assert_ne!(Numbers::new(8).first_sequence_number(Instant(0), ends(1)), at(0, 1));
    }

    #[test]
    fn others_differ_each_time_and_with_the_key() {
        let (mut one, mut two) = (Numbers::new(1), Numbers::new(1 << 64));
        let found = [one.next(), one.next(), two.next(), two.next()];
        assert!(found.iter().all(|number| found.iter().filter(|other| *other == number).count() == 1), "{found:?}");
    }
}
