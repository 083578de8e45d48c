//! What a connection has received and its service has not read yet.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use glass_api::Buf;

/// A packet that fills less than one part in so many of its buffer is copied out of it: then a connection's window holds at most
/// so many times its bytes in buffers.
const SMALL_PART: usize = 4;
/// Small packets are joined up to this size.
const COALESCED_BYTES: usize = 4096;

/// Bytes in order, some in the buffers that they were received in.
#[derive(Default)]
pub(crate) struct Received {
    pieces: VecDeque<Piece>,
    bytes: usize,
}

enum Piece {
    /// A device's buffer with more than a little in it.
    Buffer(Buf),
    /// Small packets, one after the other, and how much of them was read.
    Copied(Vec<u8>, usize),
}

impl Received {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds the first `bytes` bytes of `buffer`; returns the buffer if they were copied out of it, so that it can be used again.
    /// Without memory for a copy nothing is added. A packet without bytes adds no piece: an empty one would read as the peer's end.
    pub(crate) fn push(&mut self, buffer: Buf, bytes: usize) -> Result<Option<Buf>, OutOfMemory> {
        if bytes == 0 {
            return Ok(Some(buffer));
        }
        if bytes * SMALL_PART >= buffer.len() {
            self.bytes += bytes;
            self.pieces.push_back(Piece::Buffer(buffer.slice(0..bytes)));
            return Ok(None);
        }
        if !matches!(self.pieces.back(), Some(Piece::Copied(coalesced, _)) if coalesced.len() + bytes <= COALESCED_BYTES)
        {
            self.pieces.push_back(Piece::Copied(Vec::new(), 0));
        }
        if let Some(Piece::Copied(coalesced, _)) = self.pieces.back_mut() {
            coalesced.try_reserve(bytes).map_err(|_| OutOfMemory)?;
            coalesced.extend_from_slice(&buffer[..bytes]);
            self.bytes += bytes;
        }
        Ok(Some(buffer))
    }

    /// Copies as much as there is and `into` holds; returns how much.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let Some(piece) = self.pieces.front_mut() else { break };
            let rest = match piece {
                Piece::Buffer(buf) => &buf[..],
                Piece::Copied(coalesced, read) => &coalesced[*read..],
            };
            let count = rest.len().min(into.len() - done);
            into[done..done + count].copy_from_slice(&rest[..count]);
            done += count;
            let is_empty = rest.len() == count;
            match piece {
                _ if is_empty => drop(self.pieces.pop_front()),
                Piece::Buffer(buf) => *buf = buf.slice(count..buf.len()),
                Piece::Copied(_, read) => *read += count,
            }
        }
        self.bytes -= done;
        done
    }

    /// The next `bytes` bytes, without a copy where they are one piece that was not small. There must be so many.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<Buf, glass_api::OutOfMemory> {
        if let Some(Piece::Buffer(buf)) = self.pieces.front()
            && buf.len() == bytes
        {
            let buf = buf.clone();
            self.pieces.pop_front();
            self.bytes -= bytes;
            return Ok(buf);
        }
        let mut buf = Buf::zeroed(bytes)?;
        let count = self.read(buf.as_mut().expect("a new buffer has one owner"));
        assert_eq!(count, bytes, "the caller has counted what there is");
        Ok(buf)
    }

    /// The next piece, without a copy unless it was small.
    pub(crate) fn read_buf(&mut self) -> Option<Result<Buf, glass_api::OutOfMemory>> {
        let piece = self.pieces.pop_front()?;
        let buf = match &piece {
            Piece::Buffer(buf) => Ok(buf.clone()),
            Piece::Copied(coalesced, read) => Buf::copy_of(&coalesced[*read..]),
        };
        match &buf {
            Ok(buf) => self.bytes -= buf.len(),
            Err(_) => self.pieces.push_front(piece),
        }
        Some(buf)
    }
}

/// There is no memory for a small packet.
#[derive(Debug)]
pub(crate) struct OutOfMemory;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn single_bytes_share_memory_and_large_packets_keep_theirs() {
        let mut received = Received::default();
        let mut buffer = Buf::zeroed(4096).unwrap();
        for byte in 0..100 {
            buffer.as_mut().unwrap()[0] = byte;
            buffer = received.push(buffer, 1).unwrap().expect("it can be used again");
        }
        assert_eq!((received.pieces.len(), received.bytes()), (1, 100));
        assert!(received.push(buffer, 1024).unwrap().is_none());
        let small = received.read_buf().unwrap().unwrap();
        assert_eq!(&small[..], (0..100).collect::<Vec<u8>>());
        assert_eq!(received.read_buf().unwrap().unwrap().len(), 1024);
        assert!(received.read_buf().is_none() && received.bytes() == 0);
    }

    proptest! {
        #[test]
        fn bytes_are_read_in_order(
            steps in prop::collection::vec((any::<bool>(), 0usize..3000), 1..60),
        ) {
            let (mut received, mut written, mut read) = (Received::default(), 0u32, 0u32);
            for (is_write, count) in steps {
                if is_write {
                    let bytes: Vec<u8> = (0..count as u32).map(|at| ((written + at) % 251) as u8).collect();
                    written += count as u32;
                    let mut buffer = Buf::zeroed(4096).unwrap();
                    buffer.as_mut().unwrap()[..count].copy_from_slice(&bytes);
                    received.push(buffer, count).unwrap();
                } else {
                    let mut into = vec![0; count];
                    let done = received.read(&mut into);
                    prop_assert_eq!(done, count.min((written - read) as usize));
                    prop_assert!(into[..done].iter().zip(read..).all(|(byte, at)| *byte == (at % 251) as u8));
                    read += done as u32;
                }
                prop_assert_eq!(received.bytes(), (written - read) as usize);
            }
        }
    }
}
