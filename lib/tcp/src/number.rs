//! Sequence numbers (RFC 9293, section 3.4), and how they become positions that never wrap.

use core::hash::Hasher;
use glass_api::Instant;

/// The position of a SYN. Data starts one later. Positions before it exist too, so that differences are never negative.
pub const SYN_POSITION: u64 = 1 << 32;
/// The clock of initial sequence numbers advances once in this time (RFC 9293, section 3.4.1).
const TICK_NANOS: u64 = 4000;

/// The sequence numbers of one direction: 32 bits on the wire, 64 bits in here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbering {
    initial: u32,
}

impl Numbering {
    /// With the sequence number of the SYN.
    pub fn new(initial: u32) -> Numbering {
        Numbering { initial }
    }

    /// The sequence number of a position.
    pub fn to_wire(self, position: u64) -> u32 {
        self.initial.wrapping_add(position as u32)
    }

    /// The position with this sequence number that is nearest to `near`, which is at least [`SYN_POSITION`].
    pub fn nearest(self, number: u32, near: u64) -> u64 {
        let difference = number.wrapping_sub(self.to_wire(near)) as i32;
        near.saturating_add_signed(difference.into())
    }
}

/// The initial sequence number of a connection that opens now (RFC 6528). `keyed` is a hasher with a secret key; `ends` is what
/// distinguishes the connection: addresses and ports. Numbers of the same ends increase.
pub fn initial_number(now: Instant, mut keyed: impl Hasher, ends: &[u8]) -> u32 {
    keyed.write(ends);
    (now.0 / TICK_NANOS).wrapping_add(keyed.finish()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_follow_the_numbers_around_the_end_of_their_space() {
        let numbering = Numbering::new(u32::MAX - 2);
        for position in [SYN_POSITION, SYN_POSITION + 5, SYN_POSITION + (7 << 32) + 9] {
            for near in [position - 1, position, position + 1, position + (1 << 30), position - (1 << 30)] {
                assert_eq!(numbering.nearest(numbering.to_wire(position), near), position);
            }
        }
        assert_eq!(numbering.to_wire(SYN_POSITION), u32::MAX - 2);
        assert_eq!(numbering.to_wire(SYN_POSITION + 3), 0);
    }
}
