//! The Internet checksum (RFC 1071), a cache line at a time.

/// A sum of 16-bit words in the machine's byte order. Its carries are folded at the end.
#[derive(Clone, Copy, Default)]
pub struct Sum(u64);

impl Sum {
    /// Adds `bytes`, which must start at an even offset of the summed data; an odd length is
    /// padded with a zero, so only the last piece may have one.
    pub fn with(self, bytes: &[u8]) -> Sum {
        let mut sum = self.0;
        // 32-bit words into 64 bits: no carry is lost below 16 GiB, and the loop vectorises.
        let (words, rest) = bytes.as_chunks::<4>();
        for word in words {
            sum += u64::from(u32::from_ne_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 4];
            last[..rest.len()].copy_from_slice(rest);
            sum += u64::from(u32::from_ne_bytes(last));
        }
        Sum(sum)
    }

    /// Adds one word of the protocol.
    pub fn with_word(self, word: u16) -> Sum {
        Sum(self.0 + u64::from(word.to_be()))
    }

    /// The sum itself, not inverted, as a number.
    pub fn fold(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        (sum as u16).to_be()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// RFC 1071, section 4.1, a word at a time.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }

    #[test]
    fn the_rfc_example() {
        assert_eq!(Sum::default().with(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).fold(), 0xddf2);
        assert_eq!(Sum::default().with_word(0xffff).with_word(2).fold(), 2);
        assert_eq!(Sum::default().with(&[0xff; 65536]).fold(), 0xffff);
    }

    proptest! {
        #[test]
        fn agrees_with_the_plain_sum(bytes: Vec<u8>, split in 0usize..100) {
            let split = (split * 2).min(bytes.len() & !1);
            let sum = Sum::default().with(&bytes[..split]).with(&bytes[split..]).fold();
            // Zero and 0xffff are the same number in one's complement.
            prop_assert_eq!(sum % 0xffff, plain(&bytes) % 0xffff);
        }
    }
}
