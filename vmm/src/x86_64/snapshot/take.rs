//! The VMM's side of `glass snapshot`: between two instructions of a guest that is halted it writes the VM into a file that it is given.
//!
//! There is no thread for it. A client connects to a socket, sends a file, and then signals, which makes the processor's thread return from KVM.

use std::fs::File;
use std::io::{self, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use glass_formats::Generation;
use kvm_bindings::CpuId;
use kvm_ioctls::VcpuFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, accept_with, recvmsg};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};
use vmm_sys_util::signal::register_signal_handler;

use super::disk::next_data;
use super::processor::is_halted;
use super::{GENERATION, PAGE_BYTES, ProcessorState, RAM_OFFSET, STATE_OFFSET, VmState};
use crate::x86_64::processor::Shared;

/// The signal that makes the first processor look for a request.
pub const SIGNAL: rustix::process::Signal = rustix::process::Signal::USR1;
/// The answer to a request that was followed; another one is why it was not.
pub const DONE: &str = "done";
/// The request to the client to copy the disk, which nothing writes to until it has answered with a byte.
pub const DISK: &str = "disk\n";
/// How long the VM stands for that at most.
const DISK_PATIENCE: Duration = Duration::from_secs(60);
/// RAM that is copied at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Where requests for a snapshot arrive.
pub struct Requests {
    listener: UnixListener,
    open: Option<UnixStream>,
    /// Why the VM cannot be copied at all.
    refusal: Option<String>,
    has_disk: bool,
    /// Of its processor.
    features: CpuId,
}

extern "C" fn ignore(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

impl Requests {
    /// Listens at a new socket with this path. `refusal` is why the VM cannot be copied, if it cannot, and `features` are its
    /// processor's.
    pub fn listen(path: &Path, refusal: Option<String>, has_disk: bool, features: CpuId) -> Result<Requests> {
        // Before there is something to connect to: without a handler the signal would end the VM.
        register_signal_handler(SIGNAL.as_raw(), ignore).context("cannot handle signals")?;
        let cannot = || format!("cannot listen at {}", path.display());
        let listener = UnixListener::bind(path).with_context(cannot)?;
        listener.set_nonblocking(true).with_context(cannot)?;
        Ok(Requests { listener, open: None, refusal, has_disk, features })
    }

    /// Follows a request, if there is one and the guest can be copied now. `processor` is the VM's first.
    ///
    /// # Errors
    /// The VM cannot continue.
    pub fn follow(&mut self, processor: &VcpuFd, shared: &Shared) -> Result<()> {
        if self.open.is_none() {
            let accepted = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
            self.open = accepted.ok().map(UnixStream::from);
        }
        let Some(stream) = &self.open else { return Ok(()) };
        if self.refusal.is_none() && !can_copy(processor, shared.slots.memory()) {
            // Its client has gone.
            if is_closed(stream) {
                self.open = None;
            }
            return Ok(());
        }
        let file = match receive(stream) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            received => received.ok().flatten(),
        };
        let Some((file, mut stream)) = file.zip(self.open.take()) else {
            self.open = None;
            return Ok(());
        };
        let taken = match &self.refusal {
            None => take(&file, self.has_disk.then_some(&stream), (processor, &self.features), shared)?,
            Some(why) => Err(anyhow!("the VM cannot be copied: {why}")),
        };
        let answer = taken.map_or_else(|error| format!("{error:#}"), |()| DONE.to_owned());
        // The client may have gone.
        let _ = stream.write_all(answer.as_bytes());
        Ok(())
    }
}

/// Whether the guest is halted where it takes note of a new generation first.
fn can_copy(processor: &VcpuFd, memory: &GuestMemoryMmap) -> bool {
    let ticks = memory.read_obj::<u64>(GuestAddress(GENERATION + Generation::HALTED_TICKS));
    ticks.is_ok_and(|ticks| ticks != 0) && is_halted(processor)
}

fn is_closed(stream: &UnixStream) -> bool {
    matches!(rustix::net::recv(stream, &mut [0; 1], RecvFlags::PEEK), Ok((0, _)) | Err(Errno::CONNRESET))
}

/// The file of a request; `None` if the client has gone, or has sent something else.
fn receive(stream: &UnixStream) -> io::Result<Option<File>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(stream, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next().map(File::from),
        _ => None,
    });
    Ok(files.next())
}

/// Writes the VM, which then continues, behind the copy of its disk if `stream` is given. The inner error is the client's.
fn take(
    file: &File,
    stream: Option<&UnixStream>,
    (processor, features): (&VcpuFd, &CpuId),
    shared: &Shared,
) -> Result<Result<()>> {
    let mut bus = shared.bus();
    let devices = bus.pause()?;
    let memory = shared.slots.memory();
    let write = || {
        let memory_bytes = memory.iter().map(GuestMemoryRegion::len).sum();
        let processor = ProcessorState::read(shared.slots.vm(), processor, features);
        let processor = processor.context("cannot read the processor's state")?;
        let state = VmState { memory_bytes, processor, devices: devices.clone() };
        file.write_all_at(&state.encode()?, STATE_OFFSET).context("cannot write")?;
        write_memory(file, memory).context("cannot write")?;
        stream.map_or(Ok(()), wait_for_disk)
    };
    let written = write();
    bus.resume(&devices)?;
    Ok(written)
}

/// Has the client copy the disk.
fn wait_for_disk(mut stream: &UnixStream) -> Result<()> {
    stream.write_all(DISK.as_bytes())?;
    let end = Instant::now() + DISK_PATIENCE;
    loop {
        match rustix::net::recv(stream, &mut [0; 1], RecvFlags::empty()) {
            Ok((1, _)) => return Ok(()),
            Ok(_) => bail!("the disk was not copied"),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error).context("the disk was not copied"),
        }
        let left = end.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "the disk was not copied within {} s", DISK_PATIENCE.as_secs());
        let timeout = Timespec::try_from(left)?;
        match poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the disk"),
        }
    }
}

/// Writes the pages of RAM that are not zero.
fn write_memory(file: &File, memory: &GuestMemoryMmap) -> Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut offset = RAM_OFFSET;
    for region in memory.iter() {
        let ram = region.file_offset().context("RAM has no file")?.file();
        let mut at = 0;
        // Pages that were never touched are not made by being read.
        while let Some((start, end)) = next_data(ram, at)? {
            at = start;
            while at < end {
                let bytes = ((end - at) as usize).min(CHUNK_BYTES);
                memory.read_slice(&mut chunk[..bytes], GuestAddress(region.start_addr().0 + at))?;
                write_pages(file, &chunk[..bytes], offset + at)?;
                at += bytes as u64;
            }
        }
        offset += region.len();
    }
    Ok(())
}

/// Writes runs of pages that are not zero.
fn write_pages(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let page_bytes = PAGE_BYTES as usize;
    let is_zero = |page: &[u8]| page.iter().all(|byte| *byte == 0);
    let mut start = 0;
    while start < bytes.len() {
        let page = &bytes[start..bytes.len().min(start + page_bytes)];
        if is_zero(page) {
            start += page_bytes;
            continue;
        }
        let pages = bytes[start..].chunks(page_bytes).take_while(|page| !is_zero(page)).count();
        let end = bytes.len().min(start + pages * page_bytes);
        file.write_all_at(&bytes[start..end], offset + start as u64)?;
        start = end;
    }
    Ok(())
}
