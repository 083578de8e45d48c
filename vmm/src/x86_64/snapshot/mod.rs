//! A snapshot: a VM of one processor as a file, from which copies of it run (`docs/formats/snapshot.md`).

mod bytes;
pub mod disk;
#[cfg(any(test, feature = "script"))]
pub mod example;
pub mod pages;
mod processor;
pub mod request;
pub mod take;

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use bytes::{Reader, Writer};
use glass_devices::{Place, Position};
pub use processor::ProcessorState;

use crate::x86_64::bus::{DEVICES_MAX, Paused};
use crate::x86_64::registers::{Queue, State};

/// Where a VM finds what its VMM writes when it makes a copy: free memory below the image, which the image never touches itself.
pub const GENERATION: u64 = 0x5000;

const MAGIC: [u8; 8] = *b"GLASSNAP";
const VERSION: u32 = 2;
/// Where the VM's state is in the file, and its RAM.
const STATE_OFFSET: u64 = 4096;
pub const RAM_OFFSET: u64 = 64 << 10;
/// The longest build id that is compared, and the longest path of an image.
const BUILD_ID_BYTES_MAX: usize = 64;
const PATH_BYTES_MAX: usize = 3 << 10;
/// A VM has at least so much RAM, and at most (2 TiB).
const MEMORY_BYTES_MIN: u64 = 1 << 20;
const MEMORY_BYTES_MAX: u64 = 2 << 40;
const PAGE_BYTES: u64 = 4096;
/// Queues of a device, at most.
const QUEUES_MAX: usize = 64;

/// Which image a VM runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Where the image was.
    pub image: PathBuf,
    /// Its build id.
    pub build_id: Vec<u8>,
    /// Bytes of its disk, 0 without one.
    pub disk_bytes: u64,
}

impl Origin {
    /// The first page of a file with it.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let path = self.image.as_os_str().as_bytes();
        ensure!(path.len() <= PATH_BYTES_MAX, "the image's path is too long: {} bytes", path.len());
        ensure!(self.build_id.len() <= BUILD_ID_BYTES_MAX, "the image's build id is too long");
        let mut writer = Writer::default();
        writer.bytes(&MAGIC);
        writer.u32(VERSION);
        for piece in [&self.build_id, path] {
            writer.u32(piece.len() as u32);
            writer.bytes(piece);
        }
        writer.u64(self.disk_bytes);
        Ok(writer.into_bytes())
    }

    fn decode(bytes: &[u8]) -> Result<Origin> {
        let mut reader = Reader(bytes);
        ensure!(reader.array().is_ok_and(|magic| magic == MAGIC), "it is no snapshot, or was not written to its end");
        let version = reader.u32()?;
        ensure!(version == VERSION, "it has version {version} of the format, and this glass reads version {VERSION}");
        let count = reader.count(BUILD_ID_BYTES_MAX)?;
        let build_id = reader.bytes(count)?.to_vec();
        let count = reader.count(PATH_BYTES_MAX)?;
        let image = PathBuf::from(OsString::from_vec(reader.bytes(count)?.to_vec()));
        Ok(Origin { image, build_id, disk_bytes: reader.u64()? })
    }
}

/// What a VM is, beside its RAM.
pub struct VmState {
    pub memory_bytes: u64,
    pub processor: ProcessorState,
    pub devices: Vec<Paused>,
}

impl VmState {
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut writer = Writer::default();
        writer.u64(self.memory_bytes);
        writer.u32(self.devices.len() as u32);
        for Paused { id, state, positions } in &self.devices {
            writer.u32(*id);
            for word in [
                state.status,
                state.device_features_select,
                state.driver_features_select,
                state.queue_select,
                state.queues.len() as u32,
            ] {
                writer.u32(word);
            }
            writer.u64(state.driver_features);
            for (Queue { place, is_ready }, position) in state.queues.iter().zip(positions) {
                for word in [place.size, u16::from(*is_ready), position.next_available, position.next_used] {
                    writer.u16(word);
                }
                [place.descriptors, place.available, place.used].into_iter().for_each(|word| writer.u64(word));
            }
        }
        self.processor.encode(&mut writer);
        let bytes = writer.into_bytes();
        ensure!(bytes.len() as u64 <= RAM_OFFSET - STATE_OFFSET, "the VM's state is too long");
        Ok(bytes)
    }

    fn decode(bytes: &[u8]) -> Result<VmState> {
        let mut reader = Reader(bytes);
        let memory_bytes = reader.u64()?;
        let is_possible = (MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX).contains(&memory_bytes);
        ensure!(is_possible && memory_bytes.is_multiple_of(PAGE_BYTES), "no VM has {memory_bytes} bytes of RAM");
        let mut devices = Vec::new();
        for _ in 0..reader.count(DEVICES_MAX)? {
            devices.push(decode_device(&mut reader)?);
        }
        Ok(VmState { memory_bytes, devices, processor: ProcessorState::decode(&mut reader)? })
    }
}

/// What is in front of the RAM.
pub fn decode(bytes: &[u8]) -> Result<(Origin, VmState)> {
    let (origin, state) = bytes.split_at_checked(STATE_OFFSET as usize).context("it is cut off")?;
    Ok((Origin::decode(origin)?, VmState::decode(state)?))
}

fn decode_device(reader: &mut Reader) -> Result<Paused> {
    let id = reader.u32()?;
    let (status, device_features_select) = (reader.u32()?, reader.u32()?);
    let (driver_features_select, queue_select) = (reader.u32()?, reader.u32()?);
    let count = reader.count(QUEUES_MAX)?;
    let driver_features = reader.u64()?;
    let (mut queues, mut positions) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let (size, is_ready) = (reader.u16()?, reader.u16()? != 0);
        positions.push(Position { next_available: reader.u16()?, next_used: reader.u16()? });
        let (descriptors, available, used) = (reader.u64()?, reader.u64()?, reader.u64()?);
        queues.push(Queue { place: Place { size, descriptors, available, used }, is_ready });
    }
    let state = State { status, device_features_select, driver_features_select, driver_features, queue_select, queues };
    Ok(Paused { id, state, positions })
}

/// A snapshot, opened.
pub struct Snapshot {
    pub file: File,
    pub origin: Origin,
    pub state: VmState,
}

impl Snapshot {
    /// Opens the file at `path` and checks all of it but its RAM, which may be any bytes.
    ///
    /// # Errors
    /// It cannot be read, belongs to another user or can be changed by one, or is no snapshot.
    pub fn open(path: &Path) -> Result<Snapshot> {
        let unusable = || format!("cannot use the snapshot {}", path.display());
        let file = open_own(path).with_context(unusable)?;
        Snapshot::read(file).with_context(unusable)
    }

    pub fn read(file: File) -> Result<Snapshot> {
        let file_bytes = file.metadata()?.len();
        ensure!(file_bytes >= RAM_OFFSET, "it is no snapshot, or is cut off");
        let mut bytes = vec![0; RAM_OFFSET as usize];
        file.read_exact_at(&mut bytes, 0)?;
        let (origin, state) = decode(&bytes)?;
        let expected = RAM_OFFSET + state.memory_bytes;
        ensure!(file_bytes == expected, "it has {file_bytes} bytes and needs {expected}: it is cut off or damaged");
        Ok(Snapshot { file, origin, state })
    }
}

/// Opens a part of a snapshot to be read.
fn open_own(path: &Path) -> Result<File> {
    // One that is a pipe would be waited for.
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    check_owner(&file)?;
    Ok(file)
}

/// A snapshot is a program, and has the secrets of a service: only its user and root may have written it.
fn check_owner(file: &File) -> Result<()> {
    let metadata = file.metadata()?;
    ensure!(metadata.is_file(), "it is no file");
    let own = rustix::process::geteuid().as_raw();
    let owner = metadata.uid();
    if owner != own && owner != 0 {
        bail!("it belongs to user {owner}, who could run any code by it: copy it, if you trust that user");
    }
    ensure!(metadata.mode() & 0o022 == 0, "others may write to it: take that right away with chmod 600");
    Ok(())
}

#[cfg(test)]
mod tests;
