//! Bytes that follow from a seed, so that a body of any size can be sent and checked without being stored.

use std::io::{self, Read, Write};

/// The content of one item: `length_bytes` bytes that follow from `seed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// The seed of the bytes.
    pub seed: u64,
    /// Their number.
    pub length_bytes: u64,
}

impl Content {
    /// The bytes, as a stream.
    pub fn reader(self) -> Reader {
        Reader { random: fastrand::Rng::with_seed(self.seed), block: Vec::new(), used: 0, left: self.length_bytes }
    }

    /// The bytes, in memory.
    pub fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.reader().read_to_end(&mut bytes).expect("a stream in memory does not fail");
        bytes
    }

    /// A sink that compares what is written to it with the bytes.
    pub fn checker(self) -> Checker {
        Checker { expected: self.reader(), seen: 0, first_difference: None, content: self, scratch: Vec::new() }
    }
}

/// Bytes generated at a time; a multiple of the word, so that they do not depend on how they are read.
const BLOCK_BYTES: usize = 64 * 1024;

/// Reads the bytes of a [`Content`].
#[derive(Debug)]
pub struct Reader {
    random: fastrand::Rng,
    block: Vec<u8>,
    used: usize,
    left: u64,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 || buffer.is_empty() {
            return Ok(0);
        }
        if self.used == self.block.len() {
            self.block.resize(BLOCK_BYTES, 0);
            self.random.fill(&mut self.block);
            self.used = 0;
        }
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let count = buffer.len().min(self.block.len() - self.used).min(left);
        buffer[..count].copy_from_slice(&self.block[self.used..self.used + count]);
        self.used += count;
        self.left -= count as u64;
        Ok(count)
    }
}

/// Compares what is written to it with a [`Content`].
#[derive(Debug)]
pub struct Checker {
    expected: Reader,
    seen: u64,
    first_difference: Option<u64>,
    content: Content,
    scratch: Vec<u8>,
}

impl Write for Checker {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.scratch.resize(data.len(), 0);
        let mut filled = 0;
        while filled < data.len() {
            match self.expected.read(&mut self.scratch[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        if self.first_difference.is_none() && self.scratch[..filled] != data[..filled] {
            let at = data.iter().zip(&self.scratch).position(|(left, right)| left != right).unwrap_or(0);
            self.first_difference = Some(self.seen + at as u64);
        }
        self.seen += data.len() as u64;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Checker {
    /// Whether exactly the content was written; otherwise how it differs.
    pub fn verdict(&self) -> Result<(), String> {
        let expected = self.content.length_bytes;
        match self.first_difference {
            Some(at) => Err(format!("byte {at} of {expected} differs")),
            None if self.seen != expected => Err(format!("{} bytes instead of {expected}", self.seen)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: Content = Content { seed: 7, length_bytes: 200_003 };

    #[test]
    fn content_is_the_same_however_it_is_read() {
        let whole = CONTENT.bytes();
        assert_eq!(whole.len(), 200_003);
        let mut pieces = Vec::new();
        let mut reader = CONTENT.reader();
        let mut piece = [0; 333];
        while let Ok(count @ 1..) = reader.read(&mut piece) {
            pieces.extend_from_slice(&piece[..count]);
        }
        assert!(whole == pieces);
        assert!(whole != Content { seed: 8, ..CONTENT }.bytes());
    }

    #[test]
    fn a_checker_accepts_only_the_content() {
        let verdict = |bytes: &[u8]| {
            let mut checker = CONTENT.checker();
            bytes.chunks(1000).for_each(|chunk| checker.write_all(chunk).unwrap());
            checker.verdict()
        };
        let mut bytes = CONTENT.bytes();
        assert_eq!(verdict(&bytes), Ok(()));
        assert_eq!(verdict(&bytes[1..]), Err("byte 0 of 200003 differs".into()));
        assert_eq!(verdict(&bytes[..200_000]), Err("200000 bytes instead of 200003".into()));
        bytes[150_000] ^= 1;
        assert_eq!(verdict(&bytes), Err("byte 150000 of 200003 differs".into()));
        bytes[150_000] ^= 1;
        bytes.push(0);
        assert_eq!(verdict(&bytes), Err("200004 bytes instead of 200003".into()));
    }
}
