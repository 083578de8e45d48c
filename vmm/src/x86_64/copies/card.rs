//! The network card of a copy behind a TAP device: an address of its own, and the IPv4 address that goes with it.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use glass_formats::Generation;
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryMmap};

use super::fill_random;
use crate::x86_64::snapshot::GENERATION;
use crate::{CopyAddress, TapCopies};

/// The first byte of an address that was not given to a manufacturer (IEEE 802, section 8.2.2: locally administered, of one card).
const LOCAL: u8 = 2;

/// What the copy finds in [`Generation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyCard {
    pub mac: [u8; 6],
    address: u64,
    gateway: u64,
}

impl CopyCard {
    /// That of copy number `index`. With a fixed IP address the card's is made of that, so neighbours know a copy that is started again.
    pub fn of(copies: &TapCopies, index: u16) -> Result<CopyCard> {
        let CopyAddress::From { first, prefix_bits, gateway } = copies.address else {
            let mut mac = [LOCAL; 6];
            fill_random(&mut mac[1..])?;
            return Ok(CopyCard { mac, address: 0, gateway: 0 });
        };
        let address = address_of(first, prefix_bits, index)?;
        let [a, b, c, d] = address.octets();
        Ok(CopyCard {
            mac: [LOCAL, 0, a, b, c, d],
            address: u64::from(address.to_bits()) | u64::from(prefix_bits) << 32,
            gateway: gateway.map_or(0, |gateway| gateway.to_bits().into()),
        })
    }

    pub fn write(&self, memory: &GuestMemoryMmap) -> Result<()> {
        let [a, b, c, d, e, f] = self.mac;
        let card = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        let words =
            [(Generation::CARD, card), (Generation::ADDRESS, self.address), (Generation::GATEWAY, self.gateway)];
        for (at, word) in words {
            memory.write_obj(word.to_le(), GuestAddress(GENERATION + at))?;
        }
        Ok(())
    }
}

/// The address of copy number `index`, which is in the network of the first one.
fn address_of(first: Ipv4Addr, prefix_bits: u8, index: u16) -> Result<Ipv4Addr> {
    let host_mask = u32::MAX.checked_shr(prefix_bits.into()).unwrap_or(0);
    let address = first.to_bits().checked_add(index.into());
    let is_one = |address: u32| host_mask <= 1 || (address & host_mask != 0 && address & host_mask != host_mask);
    let is_possible = |address: &u32| address & !host_mask == first.to_bits() & !host_mask && is_one(*address);
    let none = || {
        format!(
            "the network {first}/{prefix_bits} has no address for copy {index}: begin with a lower one, or take a shorter prefix"
        )
    };
    address.filter(is_possible).map(Ipv4Addr::from_bits).with_context(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copies(first: [u8; 4], prefix_bits: u8) -> TapCopies {
        let address = CopyAddress::From { first: first.into(), prefix_bits, gateway: Some([10, 0, 5, 1].into()) };
        TapCopies { name: "tap{}".to_owned(), address }
    }

    #[test]
    fn each_copy_has_the_next_address_and_a_card_of_it() {
        let card = |index| CopyCard::of(&copies([10, 0, 5, 254], 16), index).unwrap();
        assert_eq!(
            [card(0).mac, card(1).mac, card(2).mac],
            [[2, 0, 10, 0, 5, 254], [2, 0, 10, 0, 5, 255], [2, 0, 10, 0, 6, 0]]
        );
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 16)]).unwrap();
        card(2).write(&memory).unwrap();
        let word = |at: u64| memory.read_obj::<u64>(GuestAddress(GENERATION + at)).unwrap();
        assert_eq!(word(Generation::CARD).to_le_bytes(), [2, 0, 10, 0, 6, 0, 0, 0]);
        assert_eq!(word(Generation::ADDRESS), 16 << 32 | 0x0a00_0600);
        assert_eq!(word(Generation::GATEWAY), 0x0a00_0501);
    }

    #[test]
    fn a_network_without_room_is_refused() {
        let refusal = |first, prefix_bits, index| {
            CopyCard::of(&copies(first, prefix_bits), index).map_err(|error| error.to_string())
        };
        assert!(refusal([10, 0, 5, 253], 24, 1).is_ok());
        assert!(refusal([10, 0, 5, 253], 24, 2).unwrap_err().contains("no address for copy 2"));
        assert!(refusal([10, 0, 5, 0], 24, 0).is_err());
        assert!(refusal([255, 255, 255, 254], 0, 3).is_err());
        // Two in a network of two (RFC 3021), and one alone.
        assert!(refusal([10, 0, 5, 2], 31, 1).is_ok() && refusal([10, 0, 5, 2], 31, 2).is_err());
        assert!(refusal([10, 0, 5, 2], 32, 0).is_ok() && refusal([10, 0, 5, 2], 32, 1).is_err());
    }

    #[test]
    fn cards_with_addresses_of_a_server_are_all_different() {
        let copies = TapCopies { name: "tap{}".to_owned(), address: CopyAddress::Dhcp };
        let [a, b] = [0, 1].map(|index| CopyCard::of(&copies, index).unwrap());
        assert!(a.mac != b.mac && a.mac[0] == LOCAL && b.address == 0, "{a:?} {b:?}");
    }
}
