//! A device as QEMU sets it up by messages, its memory and its queues (QEMU, docs/interop/vhost-user.rst), and the loop of the process that serves it.

mod messages;
#[cfg(test)]
mod tests;

use crate::device::{Device, EVENT_IDX, FEATURES_OF_ALL, Served, Turn};
use crate::jail;
use crate::rings::{QUEUE_SIZE_MAX, Ring};
use anyhow::{Context, Result, bail, ensure};
use glass_lib_jail::SystemCalls;
use messages::REGIONS_MAX;
pub(crate) use messages::{Connection, Message};
use rustix::fs::fstat;
use std::fs::{self, File};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::Ordering;
use virtio_queue::QueueT;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// Of vhost-user, not of the device: queues are enabled by messages.
const PROTOCOL_FEATURES: u64 = 1 << 30;
const FEATURES: u64 = FEATURES_OF_ALL | PROTOCOL_FEATURES;
/// QEMU may read the device's configuration.
const PROTOCOL_CONFIG: u64 = 1 << 9;

/// QEMU's messages.
mod request {
    pub(super) const GET_FEATURES: u32 = 1;
    pub(super) const SET_FEATURES: u32 = 2;
    pub(super) const SET_OWNER: u32 = 3;
    pub(super) const RESET_OWNER: u32 = 4;
    pub(super) const SET_MEM_TABLE: u32 = 5;
    pub(super) const SET_VRING_NUM: u32 = 8;
    pub(super) const SET_VRING_ADDR: u32 = 9;
    pub(super) const SET_VRING_BASE: u32 = 10;
    pub(super) const GET_VRING_BASE: u32 = 11;
    pub(super) const SET_VRING_KICK: u32 = 12;
    pub(super) const SET_VRING_CALL: u32 = 13;
    pub(super) const SET_VRING_ERR: u32 = 14;
    pub(super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(super) const SET_VRING_ENABLE: u32 = 18;
    pub(super) const GET_CONFIG: u32 = 24;
}

/// In the payload of a message with a file: the queue's number, and that there is no file.
const QUEUE_MASK: u64 = 0xff;
const NO_FILE: u64 = 1 << 8;
/// In front of the bytes of a message about the configuration: offset, number of bytes, flags.
const CONFIG_HEADER_BYTES: usize = 12;

/// Memory of the guest that QEMU has at another address.
struct Region {
    qemu: u64,
    guest: u64,
    bytes: u64,
}

/// A device, and what QEMU has set up for it.
pub(crate) struct Backend<D> {
    pub(crate) served: Served<D>,
    regions: Vec<Region>,
}

/// Serves a device until its QEMU ends, which connects to the unix socket `socket`, which is made here. From the connection on it is jailed.
pub(crate) fn serve<D: Device>(device: D, socket: &Path) -> Result<()> {
    let listener = UnixListener::bind(socket).with_context(|| format!("cannot make {}", socket.display()))?;
    let (stream, _) = listener.accept().context("no QEMU connects")?;
    // One VM, one device.
    let _ = fs::remove_file(socket);
    drop(listener);
    device.begin();
    jail::enter(D::NAME, D::allow(SystemCalls::of_every_program()), device.memory_bytes())?;
    let connection = Connection::new(stream);
    let mut backend = Backend::new(device);
    let ended = backend.serve(&connection);
    match backend.served.violations() {
        0 => {}
        count => eprintln!("the guest used its {} against the specification ({count} times)", D::NAME),
    }
    ended
}

impl<D: Device> Backend<D> {
    pub(crate) fn new(device: D) -> Backend<D> {
        Backend { served: Served::new(device), regions: Vec::new() }
    }

    fn serve(&mut self, connection: &Connection) -> Result<()> {
        let mut turn = Turn::NeedsGuest;
        loop {
            // Even while there is something to do, so that the VM can be stopped.
            if self.served.wait(connection, turn)? {
                let Some(message) = connection.receive()? else { return Ok(()) };
                let request = message.request;
                if let Some(answer) = self.obey(message)? {
                    connection.answer(request, &answer)?;
                }
            }
            turn = self.served.work()?;
        }
    }

    /// Does what a message requires: the payload of its answer, if it has one.
    pub(crate) fn obey(&mut self, message: Message) -> Result<Option<Vec<u8>>> {
        let word = |word: u64| Ok(Some(word.to_le_bytes().to_vec()));
        match message.request {
            request::GET_FEATURES => return word(self.served.device.features() | FEATURES),
            request::SET_FEATURES => self.agree(message.u64(0)?)?,
            request::GET_PROTOCOL_FEATURES => {
                return word(self.served.device.config().map_or(0, |_| PROTOCOL_CONFIG));
            }
            request::SET_OWNER | request::RESET_OWNER | request::SET_PROTOCOL_FEATURES => {}
            request::SET_MEM_TABLE => {
                self.served.finish()?;
                self.map(message)?;
            }
            request::SET_VRING_NUM => {
                let size = u16::try_from(message.u32(4)?).unwrap_or(u16::MAX);
                let set = self.ring(message.u32(0)?)?.queue.try_set_size(size);
                ensure!(
                    set.is_ok(),
                    "QEMU wants a queue of {size} descriptors, and there are at most {QUEUE_SIZE_MAX}"
                );
            }
            request::SET_VRING_BASE => {
                let next = message.u32(4)? as u16;
                self.ring(message.u32(0)?)?.queue.set_next_avail(next);
            }
            request::SET_VRING_ADDR => self.set_addresses(&message)?,
            request::GET_VRING_BASE => {
                let index = message.u32(0)?;
                self.served.finish()?;
                let ring = self.ring(index)?;
                ring.stop();
                let state = [index, ring.queue.next_avail().into()];
                return Ok(Some(state.into_iter().flat_map(u32::to_le_bytes).collect()));
            }
            request::SET_VRING_KICK => {
                let ring = self.ring(queue_number(&message)?)?;
                let file = file(message)?;
                // A read must not block when there is nothing to read.
                if let Some(kick) = &file {
                    rustix::io::ioctl_fionbio(kick, true).context("cannot wait for a queue's notifications")?;
                }
                ring.queue.set_ready(file.is_some());
                ring.kick = file;
            }
            request::SET_VRING_CALL => {
                let ring = self.ring(queue_number(&message)?)?;
                ring.call = file(message)?;
            }
            request::SET_VRING_ERR => {
                let ring = self.ring(queue_number(&message)?)?;
                ring.error = file(message)?;
            }
            request::SET_VRING_ENABLE => self.ring(message.u32(0)?)?.is_enabled = message.u32(4)? != 0,
            request::GET_CONFIG => return self.answer_config(&message).map(Some),
            other => bail!("QEMU sent the message {other}, which this device does not know"),
        }
        Ok(None)
    }

    fn agree(&mut self, features: u64) -> Result<()> {
        self.served.device.agree(features)?;
        for ring in &mut self.served.rings {
            ring.queue.set_event_idx(features & EVENT_IDX != 0);
            if features & PROTOCOL_FEATURES == 0 {
                ring.is_enabled = true;
            }
        }
        Ok(())
    }

    /// The bytes of the configuration that QEMU requests; zeroes behind its end.
    fn answer_config(&self, message: &Message) -> Result<Vec<u8>> {
        let (offset, bytes) = (message.u32(0)? as usize, message.u32(4)? as usize);
        let mut answer = message.payload().to_vec();
        ensure!(answer.len() == CONFIG_HEADER_BYTES + bytes, "QEMU requested {bytes} bytes without room for them");
        let config = self.served.device.config().and_then(|config| config.get(offset..)).unwrap_or_default();
        for (index, byte) in answer[CONFIG_HEADER_BYTES..].iter_mut().enumerate() {
            *byte = config.get(index).copied().unwrap_or(0);
        }
        Ok(answer)
    }

    /// Maps the guest's memory.
    fn map(&mut self, mut message: Message) -> Result<()> {
        let count = message.u32(0)? as usize;
        ensure!(count <= REGIONS_MAX && count == message.files.len(), "QEMU sent {count} regions without their files");
        let (mut regions, mut mapped) = (Vec::new(), Vec::new());
        for (index, file) in std::mem::take(&mut message.files).into_iter().enumerate() {
            let word = |word: usize| message.u64(8 + index * 32 + word * 8);
            let (guest, bytes, qemu, offset) = (word(0)?, word(1)?, word(2)?, word(3)?);
            let end = fstat(&file).ok().zip(offset.checked_add(bytes));
            ensure!(
                end.is_some_and(|(file, end)| i128::from(end) <= i128::from(file.st_size)),
                "QEMU sent a region that its file does not have"
            );
            let region = MmapRegion::from_file(FileOffset::new(file, offset), bytes as usize);
            let region = region.context("cannot map the guest's memory")?;
            let region = GuestRegionMmap::new(region, GuestAddress(guest));
            mapped.push(region.context("the guest's memory is outside of any memory")?);
            regions.push(Region { qemu, guest, bytes });
        }
        self.served.memory = GuestMemoryMmap::from_regions(mapped).context("cannot map the guest's memory")?;
        self.regions = regions;
        Ok(())
    }

    fn set_addresses(&mut self, message: &Message) -> Result<()> {
        let guest = |offset: usize| -> Result<GuestAddress> {
            let address = message.u64(offset)?;
            let inside = |region: &&Region| address.checked_sub(region.qemu).is_some_and(|at| at < region.bytes);
            let region =
                self.regions.iter().find(inside).context("QEMU named a queue outside of the guest's memory")?;
            Ok(GuestAddress(address - region.qemu + region.guest))
        };
        let (descriptors, used, available) = (guest(8)?, guest(16)?, guest(24)?);
        let memory = self.served.memory.clone();
        let queue = &mut self.ring(message.u32(0)?)?.queue;
        let set = [
            queue.try_set_desc_table_address(descriptors),
            queue.try_set_used_ring_address(used),
            queue.try_set_avail_ring_address(available),
        ];
        ensure!(set.iter().all(Result::is_ok), "QEMU named a queue that is not aligned");
        let next = queue.used_idx(&memory, Ordering::Relaxed).map_err(|_| ());
        let Ok(next) = next else { bail!("QEMU named a queue outside of the guest's memory") };
        queue.set_next_used(next.0);
        Ok(())
    }

    /// A queue by its number.
    fn ring(&mut self, index: u32) -> Result<&mut Ring> {
        let named = self.served.rings.get_mut(index as usize);
        named.with_context(|| format!("QEMU named the queue {index}, which this device does not have"))
    }
}

/// The queue that a message with a file is about.
fn queue_number(message: &Message) -> Result<u32> {
    Ok((message.u64(0)? & QUEUE_MASK) as u32)
}

/// The file of a message, if it has one.
fn file(mut message: Message) -> Result<Option<File>> {
    let file = message.files.pop();
    ensure!(file.is_some() || message.u64(0)? & NO_FILE != 0, "QEMU's message {} has no file", message.request);
    Ok(file)
}
