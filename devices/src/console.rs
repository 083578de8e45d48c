//! The console of a VM on two files of the host, one for text from the guest and one for input to it (virtio 1.2, section 5.3).

use crate::device::{Device, Host, Turn};
use crate::rings::Ring;
use anyhow::{Context, Result, ensure};
use glass_lib_jail::SystemCalls;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use virtio_queue::QueueT;
use vm_memory::GuestMemoryMmap;

/// Columns and rows, of which none are known, the number of ports, and a register for text in an emergency, which is not there.
const CONFIG: [u8; 12] = [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
/// Buffers until the other direction has its turn.
const TURN: usize = 64;

/// The console.
pub struct Console {
    /// `None` from its end on.
    input: Option<File>,
    output: File,
}

impl Console {
    /// Writes what the guest prints to `output`, and waits until that takes it. The guest reads `input` until its end.
    pub fn new(input: File, output: File) -> Console {
        Console { input: Some(input), output }
    }

    /// Writes what the guest has queued. Whether there is more.
    fn print(&mut self, memory: &GuestMemoryMmap, ring: &mut Ring) -> Result<bool> {
        if !ring.is_running() {
            return Ok(false);
        }
        let mut round = ring.round(memory);
        let (mut pieces, mut used) = (Vec::new(), Vec::new());
        while used.len() < TURN
            && let Some(buffer) = ring.next_buffer(memory, &mut round, false, &mut pieces)
        {
            // SAFETY: the guest's memory has the pieces, and they are only read.
            unsafe { write_all(&self.output, &mut pieces) }.context("cannot print what the guest prints")?;
            pieces.clear();
            used.push((buffer.head, 0));
        }
        if !used.is_empty() && ring.complete(memory, &used) {
            ring.interrupt();
        }
        Ok(ring.is_running() && (round.is_cut() || ring.queue.enable_notification(memory).unwrap_or(false)))
    }

    /// Gives the guest input, if there is some.
    fn read(&mut self, memory: &GuestMemoryMmap, ring: &mut Ring) -> Result<Turn> {
        let Some(input) = self.input.as_ref().filter(|_| ring.is_running()) else { return Ok(Turn::NeedsGuest) };
        let mut round = ring.round(memory);
        if !round.is_cut() {
            let has_more = ring.is_running() && ring.queue.enable_notification(memory).unwrap_or(false);
            return Ok(if has_more { Turn::Busy } else { Turn::NeedsGuest });
        }
        if !is_readable(input)? {
            return Ok(Turn::Done);
        }
        let mut pieces = Vec::new();
        let Some(buffer) = ring.next_buffer(memory, &mut round, true, &mut pieces) else {
            return Ok(Turn::NeedsGuest);
        };
        let bytes = match pieces.is_empty() {
            true => 0,
            // SAFETY: the pieces are the guest's memory, to which there are no references.
            false => unsafe { length(libc::readv(input.as_raw_fd(), pieces.as_ptr(), pieces.len() as libc::c_int)) }
                .context("cannot read the console's input")?,
        };
        if bytes == 0 && buffer.bytes > 0 {
            self.input = None;
            ring.queue.set_next_avail(ring.queue.next_avail().wrapping_sub(1));
            return Ok(Turn::NeedsGuest);
        }
        if ring.complete(memory, &[(buffer.head, bytes as u32)]) {
            ring.interrupt();
        }
        Ok(Turn::Busy)
    }
}

impl Device for Console {
    const NAME: &'static str = "console";
    const ID: u32 = 3;
    /// Input to the guest, and text from it.
    const QUEUES: usize = 2;

    fn allow(system_calls: SystemCalls) -> SystemCalls {
        system_calls
    }

    fn features(&self) -> u64 {
        0
    }

    fn config(&self) -> Option<&[u8]> {
        Some(&CONFIG)
    }

    fn agree(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn work(&mut self, memory: &GuestMemoryMmap, rings: &mut [Ring]) -> Result<Turn> {
        let [receive, transmit] = rings else { unreachable!("there are two queues") };
        let has_more = self.print(memory, transmit)?;
        let read = self.read(memory, receive)?;
        Ok(if has_more { Turn::Busy } else { read })
    }

    fn finish(&mut self, memory: &GuestMemoryMmap, rings: &mut [Ring]) -> Result<()> {
        let [_, transmit] = rings else { unreachable!("there are two queues") };
        // What the guest printed last.
        self.print(memory, transmit).map(|_| ())
    }

    fn host(&self) -> Option<Host<'_>> {
        let host = |file| Host { file, error: "the console's input is lost" };
        self.input.as_ref().map(|input| host(input.as_fd()))
    }
}

/// Whether a read returns at once.
fn is_readable(input: &File) -> Result<bool> {
    let mut polled = [PollFd::new(input, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let count = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&now)));
    Ok(count.context("cannot wait for the console's input")? > 0)
}

/// Writes all of the pieces.
///
/// # Safety
/// They are memory that may be read.
unsafe fn write_all(output: &File, pieces: &mut [libc::iovec]) -> Result<()> {
    let mut left = pieces;
    loop {
        while left.first().is_some_and(|piece| piece.iov_len == 0) {
            left = &mut left[1..];
        }
        if left.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise; a buffer has no more pieces than the kernel takes.
        let written = unsafe { length(libc::writev(output.as_raw_fd(), left.as_ptr(), left.len() as libc::c_int)) };
        let mut written = match written {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            written => written?,
        };
        ensure!(written > 0, "nothing is written any more");
        for piece in left.iter_mut() {
            let now = written.min(piece.iov_len);
            piece.iov_base = piece.iov_base.wrapping_byte_add(now);
            piece.iov_len -= now;
            written -= now;
        }
    }
}

fn length(returned: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_guest::{DATA, Guest, NEXT, WRITE};
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use vm_memory::{Bytes, GuestAddress};

    struct Host {
        console: Console,
        input: Option<UnixStream>,
        output: UnixStream,
    }

    impl Host {
        fn new() -> Host {
            let (input, output) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
            let console = Console::new(OwnedFd::from(input.1).into(), OwnedFd::from(output.1).into());
            output.0.set_nonblocking(true).unwrap();
            Host { console, input: Some(input.0), output: output.0 }
        }

        fn printed(&mut self) -> String {
            let mut bytes = [0; 4096];
            let count = self.output.read(&mut bytes).unwrap_or(0);
            String::from_utf8_lossy(&bytes[..count]).into_owned()
        }
    }

    #[test]
    fn what_the_guest_prints_is_written_in_its_order() {
        for has_events in [false, true] {
            let (mut host, mut guest) = (Host::new(), Guest::new(has_events));
            guest.memory.write_slice(b"hello, ", GuestAddress(DATA)).unwrap();
            guest.memory.write_slice(b"world\n", GuestAddress(DATA + 100)).unwrap();
            guest.descriptor(0, DATA, 7, NEXT, 1);
            guest.descriptor(1, DATA + 100, 6, 0, 0);
            guest.descriptor(2, DATA + 105, 1, 0, 0);
            guest.offer(0);
            guest.offer(2);
            let memory = guest.memory.clone();
            assert!(!host.console.print(&memory, &mut guest.ring).unwrap());
            assert_eq!(host.printed(), "hello, world\n\n");
            assert_eq!(guest.used(), [(0, 0), (2, 0)]);
            assert_eq!(guest.interrupts(), 1);
        }
    }

    /// A buffer for the device to write is none for text, one outside of memory neither.
    #[test]
    fn buffers_that_violate_the_specification_go_back() {
        let (mut host, mut guest) = (Host::new(), Guest::new(false));
        guest.descriptor(0, DATA, 7, WRITE, 0);
        guest.descriptor(1, u64::MAX - 2, 7, 0, 0);
        guest.offer(0);
        guest.offer(1);
        let memory = guest.memory.clone();
        host.console.print(&memory, &mut guest.ring).unwrap();
        assert_eq!((host.printed().as_str(), guest.used()), ("", vec![(0, 0), (1, 0)]));
        assert_eq!(guest.ring.violations(), 2);
    }

    #[test]
    fn input_waits_for_a_buffer_and_ends() {
        let (mut host, mut guest) = (Host::new(), Guest::new(false));
        let memory = guest.memory.clone();
        host.input.as_mut().unwrap().write_all(b"\x03").unwrap();
        assert_eq!(host.console.read(&memory, &mut guest.ring).unwrap(), Turn::NeedsGuest);
        guest.descriptor(0, DATA, 64, WRITE, 0);
        guest.descriptor(1, DATA + 64, 64, WRITE, 0);
        guest.offer(0);
        assert_eq!(host.console.read(&memory, &mut guest.ring).unwrap(), Turn::Busy);
        assert_eq!((guest.used(), guest.bytes(DATA, 2)), (vec![(0, 1)], vec![3, 0]));
        guest.offer(1);
        assert_eq!(host.console.read(&memory, &mut guest.ring).unwrap(), Turn::Done);
        drop(host.input.take());
        assert_eq!(host.console.read(&memory, &mut guest.ring).unwrap(), Turn::NeedsGuest);
        assert!(host.console.host().is_none());
        assert_eq!(guest.used().len(), 1);
    }

    /// The reader of `glass run`'s output is gone.
    #[test]
    fn a_closed_output_is_an_error() {
        let (mut host, mut guest) = (Host::new(), Guest::new(false));
        host.output.shutdown(std::net::Shutdown::Both).unwrap();
        guest.descriptor(0, DATA, 7, 0, 0);
        guest.offer(0);
        let memory = guest.memory.clone();
        assert!(host.console.print(&memory, &mut guest.ring).is_err());
    }
}
