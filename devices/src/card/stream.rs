//! A network behind a stream socket, as QEMU's `-netdev stream` has it and passt serves it: each frame has its length in front, four bytes, big endian.

use super::{CSUM, GUEST_CSUM, HEADER_BYTES, Link};
use crate::device::Host;
use crate::rings::copy_to;
use anyhow::{Context, Result, ensure};
use rustix::event::PollFlags;
use rustix::io::{Errno, read};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

/// Bytes of a length.
const LENGTH_BYTES: usize = 4;
/// What frames may have: their Ethernet header, and what passt takes at most.
const FRAME_BYTES_MIN: usize = 14;
const FRAME_BYTES_MAX: usize = 65535;
/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;
/// In the flags of a frame's header: its checksums are right (virtio 1.2, section 5.1.6.1). No wire is in between that could change them.
const DATA_VALID: u8 = 2;
/// A frame that opens a connection is not longer.
const SYN_FRAME_BYTES_MAX: usize = 160;
/// Room for frames with which windows may be large: some of 1 MiB.
const SEND_BYTES_MIN: usize = 4 << 20;
/// How much of the other side's messages is repeated.
const MESSAGES_BYTES: usize = 4096;

/// Our end of the socket.
pub struct Stream {
    socket: UnixStream,
    /// The card's address, for frames of a network that has not seen it yet.
    address: [u8; 6],
    /// Whether windows have to be small: the other side has little room for frames.
    is_narrow: bool,
    header_bytes: usize,
    flags: u8,
    /// What was read and is not yet the guest's.
    received: Vec<u8>,
    first: usize,
    /// Frames that the socket has not taken, or the rest of the first one. Each is written by itself: passt, as of March 2023, takes a frame that arrives
    /// in two pieces, and no more, which is how Linux passes the longest one on.
    unsent: VecDeque<Vec<u8>>,
    /// Why there is no network any more.
    ended: Option<String>,
    /// What the other side has reported.
    messages: Option<File>,
}

impl Stream {
    /// A network behind a socket, for a card with this address. What the other side prints is in `messages`, for the sentence about its end.
    /// `send_bytes`: the room that the other side has for frames to the guest.
    pub fn new(socket: UnixStream, address: [u8; 6], send_bytes: usize, messages: Option<File>) -> Result<Stream> {
        socket.set_nonblocking(true).context("cannot use the network's socket")?;
        Ok(Stream {
            socket,
            address,
            is_narrow: send_bytes < SEND_BYTES_MIN,
            header_bytes: HEADER_BYTES,
            flags: 0,
            received: Vec::with_capacity(READ_BYTES),
            first: 0,
            unsent: VecDeque::new(),
            ended: None,
            messages,
        })
    }

    /// The next whole frame that was read, without its length: where it is.
    fn frame(&mut self) -> io::Result<Option<std::ops::Range<usize>>> {
        let Some(length) = self.received[self.first..].first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let bytes = u32::from_be_bytes(*length) as usize;
        if !(FRAME_BYTES_MIN..=READ_BYTES - LENGTH_BYTES).contains(&bytes) {
            return Err(self.end(format!("it sent a frame of {bytes} bytes")));
        }
        let start = self.first + LENGTH_BYTES;
        Ok((start + bytes <= self.received.len()).then(|| start..start + bytes))
    }

    /// Reads more. Only when no whole frame is left, so there is room.
    fn fill(&mut self) -> io::Result<()> {
        self.received.drain(..self.first);
        self.first = 0;
        let before = self.received.len();
        self.received.resize(READ_BYTES, 0);
        let count = read(&self.socket, &mut self.received[before..]);
        self.received.truncate(before + count.unwrap_or(0));
        match count {
            Ok(0) => Err(self.end("it has closed its socket".to_owned())),
            Ok(_) => Ok(()),
            Err(Errno::AGAIN | Errno::INTR) => Err(ErrorKind::WouldBlock.into()),
            Err(error) => Err(self.end(error.to_string())),
        }
    }

    /// Sends what the socket did not take.
    fn flush(&mut self) {
        while let Some(frame) = self.unsent.front_mut() {
            match rustix::io::write(&self.socket, frame) {
                Ok(count) if count == frame.len() => _ = self.unsent.pop_front(),
                Ok(count) => _ = frame.drain(..count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    self.end(error.to_string());
                    return self.unsent.clear();
                }
            }
        }
    }

    /// Sends a frame, which starts behind `skipped` bytes of the pieces.
    ///
    /// # Safety
    /// The pieces are memory that may be read.
    unsafe fn send(&mut self, pieces: &[libc::iovec], skipped: usize) -> io::Result<()> {
        let bytes = pieces.iter().map(|piece| piece.iov_len).sum::<usize>() - skipped;
        let mut length = (bytes as u32).to_be_bytes();
        let mut iovecs = Vec::with_capacity(pieces.len() + 1);
        iovecs.push(libc::iovec { iov_base: length.as_mut_ptr().cast(), iov_len: LENGTH_BYTES });
        let mut skipped = skipped;
        for piece in pieces {
            let now = skipped.min(piece.iov_len);
            skipped -= now;
            iovecs.push(libc::iovec { iov_base: piece.iov_base.wrapping_byte_add(now), iov_len: piece.iov_len - now });
        }
        // Frames keep their order, and are whole.
        let sent = match self.unsent.is_empty() && iovecs.len() <= libc::UIO_MAXIOV as usize {
            true => {
                let count = iovecs.len() as libc::c_int;
                // SAFETY: the caller's promise; the length lives until the end.
                let sent = unsafe { libc::writev(self.socket.as_raw_fd(), iovecs.as_ptr(), count) };
                match usize::try_from(sent).map_err(|_| io::Error::last_os_error()) {
                    Ok(sent) => sent,
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
                    Err(error) => return Err(self.end(error.to_string())),
                }
            }
            false => 0,
        };
        if sent < LENGTH_BYTES + bytes {
            let mut rest = vec![0; LENGTH_BYTES + bytes - sent];
            // SAFETY: the caller's promise; a guest that writes at the same time changes what is sent, no more.
            unsafe { copy_from(&iovecs, sent, &mut rest) };
            self.unsent.push_back(rest);
        }
        Ok(())
    }

    fn end(&mut self, why: String) -> io::Error {
        self.ended.get_or_insert(why);
        ErrorKind::UnexpectedEof.into()
    }

    /// The last line that the other side has printed.
    fn last_message(&self) -> Option<String> {
        let mut bytes = vec![0; MESSAGES_BYTES];
        let count = self.messages.as_ref()?.read_at(&mut bytes, 0).ok()?;
        let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
        text.lines().rfind(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
    }
}

impl Link for Stream {
    fn features(&self) -> u64 {
        // Ordinary frames, each of which the socket takes as one piece: with longer ones in several pieces connections stalled more
        // often through the passt of March 2023. Nothing checks their checksums.
        CSUM | GUEST_CSUM
    }

    fn mtu(&self) -> Option<u16> {
        None
    }

    fn agree(&mut self, header_bytes: usize, features: u64) -> Result<()> {
        self.header_bytes = header_bytes;
        self.flags = if features & GUEST_CSUM != 0 { DATA_VALID } else { 0 };
        Ok(())
    }

    unsafe fn read(&mut self, pieces: &[libc::iovec]) -> io::Result<usize> {
        let frame = loop {
            match self.frame()? {
                Some(frame) => break frame,
                None => self.fill()?,
            }
        };
        self.first = frame.end;
        let frame = &mut self.received[frame];
        if frame.starts_with(&[0; 6]) {
            frame[..6].copy_from_slice(&self.address);
        }
        let mut header = [0; HEADER_BYTES];
        header[0] = self.flags;
        let bytes = self.header_bytes + frame.len();
        let bytes_max: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let whole = [&header[..self.header_bytes], frame].concat();
        // SAFETY: the caller's promise.
        unsafe { copy_to(pieces, &whole) };
        Ok(bytes.min(bytes_max))
    }

    unsafe fn write(&mut self, pieces: &[libc::iovec]) -> io::Result<usize> {
        let all: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let bytes = all.saturating_sub(self.header_bytes);
        if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&bytes) || self.ended.is_some() {
            return Err(ErrorKind::InvalidInput.into());
        }
        let mut start = [0; SYN_FRAME_BYTES_MAX];
        if self.is_narrow && bytes <= SYN_FRAME_BYTES_MAX {
            // SAFETY: the caller's promise.
            let frame = unsafe { copy_from(pieces, self.header_bytes, &mut start[..bytes]) };
            if with_smaller_window(frame) {
                let piece = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
                // SAFETY: it is our copy, which lives until the end.
                return unsafe { self.send(&[piece], 0) }.map(|()| all);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.send(pieces, self.header_bytes) }.map(|()| all)
    }

    fn takes_joined_datagrams(&self) -> bool {
        false
    }

    fn is_blocked(&mut self) -> bool {
        self.flush();
        !self.unsent.is_empty()
    }

    fn check(&self) -> Result<()> {
        let Some(why) = &self.ended else { return Ok(()) };
        let message = self.last_message().map(|message| format!(": {message}")).unwrap_or_default();
        ensure!(self.ended.is_none(), "its network has ended ({why}){message}");
        Ok(())
    }

    fn host(&self) -> Host<'_> {
        let out = if self.unsent.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        Host { file: self.socket.as_fd(), events: PollFlags::IN | out, error: "its network has ended" }
    }
}

/// Copies what is in the pieces behind their first `skipped` bytes.
///
/// # Safety
/// The pieces are memory that may be read, and have as many bytes.
unsafe fn copy_from<'a>(pieces: &[libc::iovec], mut skipped: usize, to: &'a mut [u8]) -> &'a mut [u8] {
    let mut left = &mut *to;
    for piece in pieces {
        let before = skipped.min(piece.iov_len);
        skipped -= before;
        let now = left.len().min(piece.iov_len - before);
        let start = piece.iov_base.wrapping_byte_add(before).cast::<u8>();
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(start, left.as_mut_ptr(), now) };
        left = &mut left[now..];
    }
    to
}

/// If a frame opens a connection of TCP, makes the factor of its window an eighth (RFC 7323, section 2.2); whether it did so. The other side
/// then has an eighth of what the guest's stack has room for on its way, for which its socket has room: passt, as of March 2023, loses what has none.
fn with_smaller_window(frame: &mut [u8]) -> bool {
    const SYN: u8 = 2;
    const NONE: u8 = 1;
    const WINDOW_SCALE: [u8; 2] = [3, 3];
    const NARROWER_LOG2: u8 = 3;
    let start = match frame.get(12..15) {
        Some([8, 0, version]) if frame.get(23) == Some(&6) => 14 + usize::from(version & 15) * 4,
        Some([0x86, 0xdd, _]) if frame.get(20) == Some(&6) => 14 + 40,
        _ => return false,
    };
    let Some([offset, flags]) = frame.get(start + 12..start + 14) else { return false };
    let end = start + usize::from(offset >> 4) * 4;
    if flags & SYN == 0 {
        return false;
    }
    let mut at = start + 20;
    while at < end {
        let Some(option) = frame.get_mut(at..end) else { return false };
        match *option {
            [0, ..] => return false,
            [NONE, ..] => at += 1,
            [kind, bytes, ..] if [kind, bytes] == WINDOW_SCALE && option.len() >= 3 => {
                option[2] = option[2].saturating_sub(NARROWER_LOG2);
                return true;
            }
            [_, bytes, ..] if bytes >= 2 => at += usize::from(bytes),
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    const ADDRESS: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn pair() -> (Stream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Stream::new(ours, ADDRESS, 0, None).unwrap(), theirs)
    }

    fn read(stream: &mut Stream, bytes_max: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; bytes_max];
        let (first, second) = bytes.split_at_mut(bytes_max / 2);
        let pieces =
            [first, second].map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        // SAFETY: both are parts of `bytes`, which is not used meanwhile.
        let count = unsafe { stream.read(&pieces) }?;
        bytes.truncate(count);
        Ok(bytes)
    }

    fn write(stream: &mut Stream, frame: &[u8]) -> io::Result<usize> {
        let mut bytes = [&[0; HEADER_BYTES], frame].concat();
        let (first, second) = bytes.split_at_mut(7);
        let pieces =
            [first, second].map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        // SAFETY: both are parts of `bytes`, which lives until the end.
        unsafe { stream.write(&pieces) }
    }

    fn with_length(frame: &[u8]) -> Vec<u8> {
        [&(frame.len() as u32).to_be_bytes()[..], frame].concat()
    }

    #[test]
    fn frames_arrive_whole_however_they_are_cut() {
        let (mut stream, mut theirs) = pair();
        stream.agree(HEADER_BYTES, GUEST_CSUM).unwrap();
        let frames = [vec![1; 60], vec![7; 3000], [vec![0; 6], vec![5; 40]].concat()];
        let sent: Vec<u8> = frames.iter().flat_map(|frame| with_length(frame)).collect();
        let mut got = Vec::new();
        for piece in sent.chunks(11) {
            theirs.write_all(piece).unwrap();
            while let Ok(frame) = read(&mut stream, 4000) {
                assert_eq!(frame[..HEADER_BYTES], [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                got.push(frame[HEADER_BYTES..].to_vec());
            }
        }
        assert_eq!(got[..2], frames[..2]);
        // It was for a card whose address was not known.
        assert_eq!(got[2], [&ADDRESS[..], &[5; 40]].concat());
        assert!(stream.check().is_ok());
    }

    #[test]
    fn a_frame_without_room_is_cut() {
        let (mut stream, mut theirs) = pair();
        theirs.write_all(&with_length(&[1; 100])).unwrap();
        assert_eq!(read(&mut stream, 50).unwrap().len(), 50);
        assert_eq!(read(&mut stream, 50).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn frames_wait_while_the_socket_is_full_and_keep_their_order() {
        let (mut stream, mut theirs) = pair();
        let frames: Vec<Vec<u8>> = (0..64_u8).map(|index| vec![index; 30_000]).collect();
        for frame in &frames {
            assert_eq!(write(&mut stream, frame).unwrap(), HEADER_BYTES + frame.len());
        }
        assert!(stream.is_blocked() && stream.host().events.contains(PollFlags::OUT));
        let expected: Vec<u8> = frames.iter().flat_map(|frame| with_length(frame)).collect();
        let (mut got, mut bytes) = (Vec::new(), vec![0; 100_000]);
        while got.len() < expected.len() {
            got.extend_from_slice(match theirs.read(&mut bytes) {
                Ok(count) => &bytes[..count],
                Err(_) => &[],
            });
            stream.is_blocked();
        }
        assert!(got == expected && !stream.is_blocked() && stream.host().events == PollFlags::IN);
    }

    #[test]
    fn what_is_no_frame_is_not_sent() {
        let (mut stream, mut theirs) = pair();
        for bytes in [0, FRAME_BYTES_MIN - 1, FRAME_BYTES_MAX + 1] {
            assert!(write(&mut stream, &vec![1; bytes]).is_err(), "{bytes}");
        }
        assert!(theirs.read(&mut [0; 1]).is_err() && stream.check().is_ok());
    }

    #[test]
    fn a_narrow_network_has_small_windows() {
        let (mut stream, mut theirs) = pair();
        // Ethernet, IPv4 and TCP: SYN with the options maximum segment size, window scale, and one that has no end.
        let mut frame = vec![0xee; 66];
        (frame[12], frame[13], frame[14], frame[23]) = (8, 0, 0x45, 6);
        (frame[46], frame[47]) = (0x80, 2);
        frame[54..66].copy_from_slice(&[2, 4, 5, 0xb4, 1, 3, 3, 7, 4, 2, 1, 0]);
        let mut sent = |stream: &mut Stream, frame: &[u8]| {
            write(stream, frame).unwrap();
            let mut bytes = vec![0; LENGTH_BYTES + frame.len()];
            theirs.read_exact(&mut bytes).unwrap();
            bytes.split_off(LENGTH_BYTES)
        };
        let narrow = sent(&mut stream, &frame);
        assert_eq!(narrow[54..66], [2, 4, 5, 0xb4, 1, 3, 3, 4, 4, 2, 1, 0]);
        assert_eq!(narrow[..54], frame[..54]);
        // Any bytes are a frame; none makes it panic, and without SYN all stays as it is.
        frame[47] = 0x10;
        assert_eq!(sent(&mut stream, &frame), frame);
        for at in 12..66 {
            for value in [0, 1, 2, 3, 0x45, 0xf0, 0xff] {
                let mut other = frame.clone();
                (other[47], other[at]) = (2, value);
                for bytes in FRAME_BYTES_MIN..=other.len() {
                    with_smaller_window(&mut other[..bytes].to_vec());
                }
            }
        }
        let mut v6 = vec![0; 14 + 40 + 24];
        (v6[12], v6[13], v6[14], v6[20]) = (0x86, 0xdd, 0x60, 6);
        (v6[66], v6[67]) = (0x60, 0x12);
        v6[74..78].copy_from_slice(&[3, 3, 7, 0]);
        assert_eq!(sent(&mut stream, &v6)[74..78], [3, 3, 4, 0]);
        stream.is_narrow = false;
        assert_eq!(sent(&mut stream, &v6)[74..78], [3, 3, 7, 0]);
    }

    #[test]
    fn a_network_that_ends_or_lies_is_reported() {
        let (mut stream, theirs) = pair();
        drop(theirs);
        assert!(read(&mut stream, 100).is_err());
        let error = stream.check().unwrap_err().to_string();
        assert!(error.contains("its network has ended (it has closed its socket)"), "{error}");
        for length in [0, 13, u32::MAX] {
            let (mut stream, mut theirs) = pair();
            theirs.write_all(&length.to_be_bytes()).unwrap();
            assert!(read(&mut stream, 100).is_err());
            let error = stream.check().unwrap_err().to_string();
            assert!(error.contains(&format!("a frame of {length} bytes")), "{error}");
        }
        let (mut stream, theirs) = pair();
        drop(theirs);
        assert!(write(&mut stream, &[1; 60]).is_err() && stream.check().is_err());
    }
}
