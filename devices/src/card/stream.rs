//! A network behind a stream socket, as QEMU's `-netdev stream` has it and passt serves it: each frame has its length in front, four bytes, big endian.

use super::connections::{Connections, HEADERS_BYTES_MAX, Sent};
use super::{CSUM, GUEST_CSUM, HEADER_BYTES, Link};
use crate::device::Host;
use crate::rings::copy_to;
use anyhow::{Context, Result, ensure};
use glass_lib_jail::SystemCalls;
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::io::{Errno, read};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

/// Bytes of a length.
const LENGTH_BYTES: usize = 4;
/// What frames may have: their Ethernet header, and what passt takes at most.
const FRAME_BYTES_MIN: usize = 14;
const FRAME_BYTES_MAX: usize = 65535;
/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;
/// Frames that wait for buffers of the guest while it waits for ours, at most: of more, the oldest are lost.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// A frame without data is not longer: of a lost one passt never sends some again.
const SHORT_BYTES_MAX: usize = 100;
/// Reads of a turn that only make room at the other side.
const READS_MAX: usize = 16;
/// In the flags of a frame's header: its checksums are right (virtio 1.2, section 5.1.6.1). No wire is in between that could change them.
const DATA_VALID: u8 = 2;
/// How much of the other side's messages is repeated.
const MESSAGES_BYTES: usize = 4096;

/// Our end of the socket.
pub struct Stream {
    socket: UnixStream,
    /// The card's address, for frames of a network that has not seen it yet.
    address: [u8; 6],
    header_bytes: usize,
    flags: u8,
    /// What was read; from `first` to `last` it is not yet the guest's.
    received: Vec<u8>,
    first: usize,
    last: usize,
    /// Frames for the guest that were lost because it had no buffers for them.
    lost: u64,
    /// Frames that the socket has not taken, or the rest of the first one. Each is written by itself: passt, as of March 2023, takes a frame that arrives
    /// in two pieces, and no more, which is how Linux passes the longest one on.
    unsent: VecDeque<Unsent>,
    connections: Connections,
    /// What goes with the piece of a frame at which a read of the other side ends: any descriptor does that.
    mark: OwnedFd,
    /// Why there is no network any more.
    ended: Option<String>,
    /// What the other side has reported.
    messages: Option<File>,
}

/// Bytes that the socket has not taken.
struct Unsent {
    bytes: Vec<u8>,
    /// Whether a read of the other side has to end behind them.
    ends_read: bool,
}

impl Stream {
    /// A network behind a socket, for a card with this address. What the other side prints is in `messages`, for the sentence about its end.
    /// `send_bytes`: the room that the other side has for frames to the guest.
    pub fn new(socket: UnixStream, address: [u8; 6], send_bytes: usize, messages: Option<File>) -> Result<Stream> {
        socket.set_nonblocking(true).context("cannot use the network's socket")?;
        Ok(Stream {
            socket,
            address,
            header_bytes: HEADER_BYTES,
            flags: 0,
            received: vec![0; READ_BYTES],
            first: 0,
            last: 0,
            lost: 0,
            unsent: VecDeque::new(),
            connections: Connections::new(send_bytes),
            mark: eventfd(0, EventfdFlags::CLOEXEC).context("there are no descriptors")?,
            ended: None,
            messages,
        })
    }

    /// The next whole frame that was read, without its length: where it is.
    fn frame(&mut self) -> io::Result<Option<std::ops::Range<usize>>> {
        let received = &self.received[self.first..self.last];
        let Some(length) = received.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let bytes = u32::from_be_bytes(*length) as usize;
        if !(FRAME_BYTES_MIN..=READ_BYTES - LENGTH_BYTES).contains(&bytes) {
            return Err(self.end(format!("it sent a frame of {bytes} bytes")));
        }
        let start = self.first + LENGTH_BYTES;
        Ok((start + bytes <= self.last).then(|| start..start + bytes))
    }

    /// Reads more behind what is there, as far as there is room.
    fn fill(&mut self) -> io::Result<()> {
        if self.first > 0 {
            self.received.copy_within(self.first..self.last, 0);
            (self.first, self.last) = (0, self.last - self.first);
        }
        match read(&self.socket, &mut self.received[self.last..]) {
            Ok(0) => Err(self.end("it has closed its socket".to_owned())),
            Ok(count) => {
                self.last += count;
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Err(ErrorKind::WouldBlock.into()),
            Err(error) => Err(self.end(error.to_string())),
        }
    }

    /// Loses the long ones of the whole frames that were read, which are retransmitted soon; or all, if that does not help.
    fn lose(&mut self) -> io::Result<()> {
        if self.lost == 0 {
            eprintln!("the guest receives no frames; those for which there is no room are lost");
        }
        let mut kept = 0;
        while let Some(frame) = self.frame()? {
            let whole = self.first..frame.end;
            self.first = frame.end;
            if frame.len() <= SHORT_BYTES_MAX && kept < self.received.len() / 2 {
                self.received.copy_within(whole.clone(), kept);
                kept += whole.len();
            } else {
                self.lost += 1;
            }
        }
        self.received.copy_within(self.first..self.last, kept);
        (self.first, self.last) = (0, kept + self.last - self.first);
        Ok(())
    }

    /// Makes room for a read: more memory at first, then that of frames which are lost.
    fn free_space(&mut self) -> io::Result<()> {
        if self.last - self.first < self.received.len() {
            return Ok(());
        }
        if self.received.len() < KEPT_BYTES_MAX {
            self.received.resize(KEPT_BYTES_MAX, 0);
            return Ok(());
        }
        self.lose()
    }

    /// Sends what the socket did not take.
    fn flush(&mut self) {
        while let Some(Unsent { bytes, ends_read }) = self.unsent.front_mut() {
            let sent = match ends_read {
                true => send_with(&self.socket, bytes, &self.mark),
                false => rustix::io::write(&self.socket, bytes),
            };
            match sent {
                Ok(count) if count == bytes.len() => _ = self.unsent.pop_front(),
                Ok(count) => _ = bytes.drain(..count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The user has too many descriptors on their way: it is sent as any other.
                Err(Errno::TOOMANYREFS) => *ends_read = false,
                Err(error) => {
                    self.end(error.to_string());
                    return self.unsent.clear();
                }
            }
        }
    }

    /// Sends a frame: `start`, and what the pieces have behind as many bytes as are `skipped`.
    ///
    /// # Safety
    /// The pieces are memory that may be read.
    unsafe fn send(&mut self, start: &mut [u8], pieces: &[libc::iovec], mut skipped: usize) -> io::Result<()> {
        let bytes = start.len() + pieces.iter().map(|piece| piece.iov_len).sum::<usize>() - skipped;
        let mut length = (bytes as u32).to_be_bytes();
        let mut iovecs = Vec::with_capacity(pieces.len() + 2);
        for part in [&mut length[..], start] {
            iovecs.push(libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        }
        for piece in pieces {
            let now = skipped.min(piece.iov_len);
            skipped -= now;
            iovecs.push(libc::iovec { iov_base: piece.iov_base.wrapping_byte_add(now), iov_len: piece.iov_len - now });
        }
        // Frames keep their order, and are whole.
        let sent = match self.unsent.is_empty() && iovecs.len() <= libc::UIO_MAXIOV as usize {
            true => {
                let count = iovecs.len() as libc::c_int;
                // SAFETY: the caller's promise; the length and the start live until the end.
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
            self.unsent.push_back(Unsent { bytes: rest, ends_read: false });
        }
        Ok(())
    }

    /// Sends a frame so that what follows is not read together with it.
    ///
    /// passt, as of March 2023, reads all that there is, and then handles all frames of a connection in one call, or each in a call of its own;
    /// two while a connection is opened, or is closed by the guest, make it count below zero and never end (it is fixed in its commit 043a70b of
    /// September 2023). A read ends behind bytes that a descriptor came with, and passt reads on if those bytes end within a frame.
    fn send_last(&mut self, frame: &[u8]) {
        let mut bytes = [&(frame.len() as u32).to_be_bytes()[..], frame].concat();
        let rest = bytes.split_off(LENGTH_BYTES + 1);
        self.unsent.push_back(Unsent { bytes, ends_read: true });
        self.unsent.push_back(Unsent { bytes: rest, ends_read: false });
        self.flush();
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
    fn allow(system_calls: SystemCalls) -> SystemCalls {
        system_calls.allow(&[libc::SYS_sendmsg])
    }

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
        self.connections.receive(frame);
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
        let mut start = [0; HEADERS_BYTES_MAX];
        let seen = bytes.min(start.len());
        // SAFETY: the caller's promise.
        let start = unsafe { copy_from(pieces, self.header_bytes, &mut start[..seen]) };
        match self.connections.send(start, bytes) {
            Sent::Not => Ok(all),
            // SAFETY: the caller's promise.
            Sent::WithOthers => unsafe { self.send(start, pieces, self.header_bytes + seen) }.map(|()| all),
            Sent::Alone => {
                let mut frame = vec![0; bytes];
                // SAFETY: the caller's promise.
                unsafe { copy_from(pieces, self.header_bytes, &mut frame) };
                frame[..seen].copy_from_slice(start);
                self.send_last(&frame);
                Ok(all)
            }
        }
    }

    fn takes_joined_datagrams(&self) -> bool {
        false
    }

    fn is_blocked(&mut self) -> bool {
        self.flush();
        !self.unsent.is_empty()
    }

    fn relieve(&mut self) {
        for _ in 0..READS_MAX {
            // Why there is no network any more is kept.
            if self.ended.is_some() || self.free_space().and_then(|()| self.fill()).is_err() {
                return;
            }
        }
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

/// Writes bytes with a descriptor.
fn send_with(socket: &UnixStream, bytes: &[u8], descriptor: &OwnedFd) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
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

    /// A frame of TCP from port 80 to 1000, as the guest sends it.
    fn segment(flags: u8) -> Vec<u8> {
        let mut frame = vec![0; 60];
        (frame[12], frame[13], frame[14], frame[23]) = (8, 0, 0x45, 6);
        frame[34..38].copy_from_slice(&[0, 80, 3, 0xe8]);
        (frame[46], frame[47]) = (0x50, flags);
        frame
    }

    /// passt of March 2023 never ends when it reads two frames at once of a connection that the guest has closed, or opens.
    #[test]
    fn frames_of_a_connection_that_closes_are_read_one_by_one() {
        let (mut stream, mut theirs) = pair();
        let (syn, ack, end) = (segment(0x12), segment(0x10), segment(0x11));
        let frames = [&syn, &ack, &ack, &end, &ack, &ack];
        for frame in frames {
            write(&mut stream, frame).unwrap();
        }
        // As passt does it: all that there is, and then what the last frame lacks.
        let mut reads = Vec::new();
        let mut bytes = vec![0; 1 << 16];
        while let Ok(count) = theirs.read(&mut bytes) {
            let (mut at, mut whole) = (0, 0);
            while count > at + LENGTH_BYTES {
                let length = u32::from_be_bytes(*bytes[at..].first_chunk().unwrap()) as usize;
                let lacks = (at + LENGTH_BYTES + length).saturating_sub(count);
                theirs.read_exact(&mut bytes[count..count + lacks]).unwrap();
                assert_eq!(bytes[at + LENGTH_BYTES..][..length], *frames[reads.iter().sum::<usize>() + whole]);
                (at, whole) = (at + LENGTH_BYTES + length, whole + 1);
            }
            reads.push(whole);
        }
        // A SYN; two that acknowledge and the end; and each that follows.
        assert_eq!(reads, [1, 3, 1, 1]);
    }

    /// A network that waits until it can send takes frames again.
    #[test]
    fn a_network_that_waits_for_the_guest_is_relieved() {
        let (mut stream, mut theirs) = pair();
        let mut sent = 0;
        while theirs.write(&with_length(&[sent as u8 | 1; 1000])).is_ok_and(|count| count == 1004) {
            sent += 1;
        }
        stream.relieve();
        assert!(theirs.write(&with_length(&[sent as u8 | 1; 1000])).is_ok());
        for index in 0..=sent {
            assert_eq!(read(&mut stream, 2000).unwrap()[HEADER_BYTES..], [index as u8 | 1; 1000]);
        }
        assert_eq!((read(&mut stream, 2000).unwrap_err().kind(), stream.lost), (ErrorKind::WouldBlock, 0));
    }

    /// A guest that never receives costs no more than the memory that is written here.
    #[test]
    fn what_a_guest_never_receives_is_lost_at_last() {
        let (mut stream, mut theirs) = pair();
        let frame = with_length(&[7; 10_000]);
        let mut bytes = 0;
        while bytes < 3 * KEPT_BYTES_MAX {
            // The end of a frame that is cut is written when there is room.
            let mut at = 0;
            while at < frame.len() {
                match theirs.write(&frame[at..]) {
                    Ok(count) => at += count,
                    Err(_) => stream.relieve(),
                }
            }
            bytes += frame.len();
        }
        assert!(stream.lost > 0 && stream.received.len() == KEPT_BYTES_MAX && stream.check().is_ok());
        assert_eq!(read(&mut stream, 20_000).unwrap().len(), HEADER_BYTES + 10_000);
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
