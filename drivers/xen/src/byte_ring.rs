//! One direction of a ring of bytes, as xenstore and the console have two of.
//!
//! Our own index is kept here and never read back; that of the other side is checked against it.

use crate::error::BackendViolation;
use crate::page::SharedPages;
use core::sync::atomic::{Ordering, fence};

/// Where a ring lies in its page.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// First byte of the data.
    pub data: usize,
    /// Its length, a power of two.
    pub bytes: u32,
    /// The index of the reader, and that of the writer.
    pub consumed: usize,
    pub produced: usize,
}

/// A ring, of which we are the writer or the reader.
#[derive(Debug)]
pub struct ByteRing {
    page: SharedPages,
    layout: Layout,
    /// Our own index, a count that wraps.
    own: u32,
}

impl ByteRing {
    /// A ring that we write, continued where it is.
    pub fn writer(page: SharedPages, layout: Layout) -> ByteRing {
        let own = u32::from_le(page.word_u32(layout.produced).load(Ordering::Acquire));
        ByteRing { page, layout, own }
    }

    /// A ring that we read, continued where it is.
    pub fn reader(page: SharedPages, layout: Layout) -> ByteRing {
        let own = u32::from_le(page.word_u32(layout.consumed).load(Ordering::Acquire));
        ByteRing { page, layout, own }
    }

    /// Bytes in the ring when `produced - consumed` is `bytes`.
    fn check(&self, bytes: u32) -> Result<u32, BackendViolation> {
        match bytes <= self.layout.bytes {
            true => Ok(bytes),
            false => Err(BackendViolation::RingOverfull { bytes, size: self.layout.bytes }),
        }
    }

    fn load(&self, offset: usize) -> u32 {
        u32::from_le(self.page.word_u32(offset).load(Ordering::Acquire))
    }

    /// Where the next byte of ours is, and how many of `count` follow it without a turn.
    fn place(&self, count: usize) -> (usize, usize) {
        let at = (self.own & (self.layout.bytes - 1)) as usize;
        (self.layout.data + at, count.min(self.layout.bytes as usize - at))
    }

    /// Writes as many of `bytes` as there is room for. Returns their number.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, BackendViolation> {
        // The reader may have read what its index reports before we overwrite it.
        fence(Ordering::SeqCst);
        let filled = self.check(self.own.wrapping_sub(self.load(self.layout.consumed)))?;
        let count = bytes.len().min((self.layout.bytes - filled) as usize);
        let (place, first) = self.place(count);
        self.page.write(place, &bytes[..first]);
        self.page.write(self.layout.data, &bytes[first..count]);
        self.own = self.own.wrapping_add(count as u32);
        self.page.word_u32(self.layout.produced).store(self.own.to_le(), Ordering::Release);
        fence(Ordering::SeqCst);
        Ok(count)
    }

    /// Reads as many bytes as there are and `target` has room for. Returns their number.
    pub fn read(&mut self, target: &mut [u8]) -> Result<usize, BackendViolation> {
        let filled = self.check(self.load(self.layout.produced).wrapping_sub(self.own))?;
        let count = target.len().min(filled as usize);
        let (place, first) = self.place(count);
        self.page.read(place, &mut target[..first]);
        self.page.read(self.layout.data, &mut target[first..count]);
        self.own = self.own.wrapping_add(count as u32);
        self.page.word_u32(self.layout.consumed).store(self.own.to_le(), Ordering::Release);
        fence(Ordering::SeqCst);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Frames, IdentityFrames};
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const LAYOUT: Layout = Layout { data: 1024, bytes: 64, consumed: 0, produced: 4 };

    proptest! {
        #[test]
        fn bytes_arrive_in_order(start in any::<u32>(), steps in proptest::collection::vec((any::<bool>(), 0_usize..100), 1..60)) {
            let page = IdentityFrames.allocate(1).unwrap();
            [0, 4].iter().for_each(|&offset| page.word_u32(offset).store(start, Ordering::Relaxed));
            let (mut writer, mut reader) = (ByteRing::writer(page.clone(), LAYOUT), ByteRing::reader(page, LAYOUT));
            let (mut sent, mut received) = (0_usize, 0_usize);
            for (writes, count) in steps {
                if writes {
                    let bytes: Vec<u8> = (sent..sent + count).map(|at| at as u8).collect();
                    let written = writer.write(&bytes).unwrap();
                    prop_assert_eq!(written, count.min(64 - (sent - received)));
                    sent += written;
                } else {
                    let mut bytes = vec![0; count];
                    let read = reader.read(&mut bytes).unwrap();
                    prop_assert_eq!(read, count.min(sent - received));
                    prop_assert!(bytes[..read].iter().enumerate().all(|(at, &byte)| byte == (received + at) as u8));
                    received += read;
                }
            }
        }

        #[test]
        fn any_index_of_the_other_side_is_bounded(index in any::<u32>()) {
            let page = IdentityFrames.allocate(1).unwrap();
            let (mut writer, mut reader) = (ByteRing::writer(page.clone(), LAYOUT), ByteRing::reader(page.clone(), LAYOUT));
            page.word_u32(4).store(index, Ordering::Relaxed);
            prop_assert_eq!(reader.read(&mut [0; 128]).ok(), (index <= 64).then_some(index as usize));
            page.word_u32(0).store(index, Ordering::Relaxed);
            let filled = 0_u32.wrapping_sub(index);
            prop_assert_eq!(writer.write(&[0; 128]).ok(), (filled <= 64).then_some(64_usize.saturating_sub(filled as usize)));
        }
    }
}
