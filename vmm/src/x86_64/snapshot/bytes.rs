//! Numbers and bytes of a snapshot, in little endian and one behind the other.

use anyhow::{Context, Result, ensure};

/// Appends to bytes.
#[derive(Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    pub fn u16(&mut self, number: u16) {
        self.bytes(&number.to_le_bytes());
    }

    pub fn u32(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }

    pub fn u64(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Takes from bytes. All its errors are that these end too soon, or that a number is more than there can be.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count).context("it is cut off")?;
        self.0 = rest;
        Ok(bytes)
    }

    pub fn array<const COUNT: usize>(&mut self) -> Result<[u8; COUNT]> {
        Ok(*self.bytes(COUNT)?.first_chunk().expect("there are so many"))
    }

    pub fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of things, of which there are at most `max`.
    pub fn count(&mut self, max: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        ensure!(count <= max, "it has {count} of something of which there are at most {max}");
        Ok(count)
    }
}
