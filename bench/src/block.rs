//! Bodies that cost little to make and to check, so that a benchmark measures the server.

use std::io::{self, Read, Write};

/// Length of the block that repeats.
const BLOCK_BYTES: usize = 1 << 20;

/// A body of `length_bytes` bytes, one random block repeated.
#[derive(Debug, Clone)]
pub struct Body {
    block: Vec<u8>,
    length_bytes: u64,
}

impl Body {
    /// A body of this length.
    pub fn new(length_bytes: u64) -> Body {
        let mut block = vec![0; BLOCK_BYTES];
        fastrand::Rng::with_seed(length_bytes).fill(&mut block);
        Body { block, length_bytes }
    }

    /// Its length.
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// The bytes, as a stream.
    pub fn reader(&self) -> impl Read + '_ {
        Repeated { block: &self.block, at: 0 }.take(self.length_bytes)
    }

    /// A sink that compares.
    pub fn checker(&self) -> Checker<'_> {
        Checker { block: &self.block, seen: 0, equal: true }
    }
}

struct Repeated<'a> {
    block: &'a [u8],
    at: usize,
}

impl Read for Repeated<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = &self.block[self.at..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.at = (self.at + count) % self.block.len();
        Ok(count)
    }
}

/// Compares what is written to it with a [`Body`].
#[derive(Debug)]
pub struct Checker<'a> {
    block: &'a [u8],
    seen: u64,
    equal: bool,
}

impl Checker<'_> {
    /// Whether exactly `body` was written.
    pub fn is(&self, body: &Body) -> bool {
        self.equal && self.seen == body.length_bytes
    }
}

impl Write for Checker<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let at = (self.seen % BLOCK_BYTES as u64) as usize;
        let count = data.len().min(self.block.len() - at);
        self.equal &= data[..count] == self.block[at..at + count];
        self.seen += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_checked_over_the_end_of_its_block() {
        let body = Body::new(2_500_001);
        let mut bytes = Vec::new();
        body.reader().read_to_end(&mut bytes).unwrap();
        let is_body = |bytes: &[u8]| {
            let mut checker = body.checker();
            bytes.chunks(70_001).for_each(|chunk| checker.write_all(chunk).unwrap());
            checker.is(&body)
        };
        assert!(is_body(&bytes));
        assert!(!is_body(&bytes[1..]));
        bytes[2_400_000] ^= 1;
        assert!(!is_body(&bytes));
    }
}
