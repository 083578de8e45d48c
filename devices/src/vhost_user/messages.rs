//! What QEMU and the process of a device write to each other (QEMU, docs/interop/vhost-user.rst).

use anyhow::{Context, Result, bail, ensure};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Regions of memory in a table, at most, and so files with a message.
pub(crate) const REGIONS_MAX: usize = 8;
const HEADER_BYTES: usize = 12;
/// The longest payload: all of a configuration.
const PAYLOAD_BYTES_MAX: usize = 12 + 256;
/// The version of the protocol, and that a message is an answer.
const VERSION: u32 = 1;
const ANSWER: u32 = 1 << 2;

/// A message of QEMU.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) request: u32,
    payload: Vec<u8>,
    pub(crate) files: Vec<File>,
}

impl Message {
    #[cfg(feature = "script")]
    pub(crate) fn of(request: u32, payload: &[u8], files: Vec<File>) -> Message {
        Message { request, payload: payload.to_vec(), files }
    }

    /// The word of four bytes at `offset`.
    pub(crate) fn u32(&self, offset: usize) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes(offset)?))
    }

    /// The word of eight bytes at `offset`.
    pub(crate) fn u64(&self, offset: usize) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes(offset)?))
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn bytes<const COUNT: usize>(&self, offset: usize) -> Result<[u8; COUNT]> {
        let bytes = self.payload.get(offset..).and_then(|rest| rest.first_chunk());
        bytes.copied().with_context(|| format!("QEMU's message {} is too short", self.request))
    }
}

/// The connection to QEMU.
#[derive(Debug)]
pub(crate) struct Connection(UnixStream);

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> Connection {
        Connection(stream)
    }

    /// Receives a message; `None` at the end of the connection.
    pub(crate) fn receive(&self) -> Result<Option<Message>> {
        let mut header = [0; HEADER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(REGIONS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(&self.0, &mut [IoSliceMut::new(&mut header)], &mut control, RecvFlags::CMSG_CLOEXEC);
        let count = match received {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(error).context("cannot receive from QEMU"),
        };
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                files.extend(descriptors.map(File::from));
            }
        }
        if count == 0 {
            return Ok(None);
        }
        let mut stream = &self.0;
        stream.read_exact(&mut header[count..]).context("QEMU's message has no end")?;
        let word = |index: usize| u32::from_le_bytes(*header[index * 4..].first_chunk().expect("three words"));
        let bytes = word(2) as usize;
        ensure!(bytes <= PAYLOAD_BYTES_MAX, "QEMU sent a message of {bytes} bytes, more than any has");
        let mut payload = vec![0; bytes];
        stream.read_exact(&mut payload).context("QEMU's message has no end")?;
        Ok(Some(Message { request: word(0), payload, files }))
    }

    /// Answers the message `request`.
    pub(crate) fn answer(&self, request: u32, payload: &[u8]) -> Result<()> {
        let words = [request, VERSION | ANSWER, payload.len() as u32];
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.extend(payload);
        match (&self.0).write_all(&bytes) {
            Ok(()) => Ok(()),
            Err(error) => bail!("cannot answer QEMU: {error}"),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
