//! Requests as the device has them, and the disk's own description.

use crate::session::Session;
use crate::transport::{Transport, feature};
use glass_api::{BlockError, BlockInfo, Buf};
use glass_drivers_device::{DmaMapping, Request, SetupError};

/// The unit of offsets and of the capacity, whatever the device's block size is.
pub const VIRTIO_SECTOR_BYTES: u64 = 512;
const CONFIG_CAPACITY: u16 = 0;
pub const CONFIG_SIZE_MAX: u16 = 8;
pub const CONFIG_SEG_MAX: u16 = 12;
const CONFIG_BLK_SIZE: u16 = 20;
pub const CONFIG_MAX_DISCARD_SECTORS: u16 = 36;
pub const CONFIG_MAX_WRITE_ZEROES_SECTORS: u16 = 48;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Read = 0,
    Write = 1,
    Flush = 4,
    Discard = 11,
    WriteZeroes = 13,
}

impl Kind {
    /// The trace's word for it.
    pub fn traced(self) -> glass_lib_trace::Operation {
        match self {
            Kind::Read => glass_lib_trace::Operation::Read,
            Kind::Write => glass_lib_trace::Operation::Write,
            Kind::Flush => glass_lib_trace::Operation::Flush,
            Kind::Discard | Kind::WriteZeroes => glass_lib_trace::Operation::Other,
        }
    }
}

/// A request that was taken.
pub struct Operation {
    pub kind: Kind,
    /// The buffer's memory, while the device may use it.
    pub mapping: Option<DmaMapping>,
    /// Next byte to request, on the disk and in the buffer, and how many are left.
    pub offset: u64,
    pub position: usize,
    pub left: usize,
    pub unsent: bool,
    /// The request for the trace: bytes, and a number that no other request of the disk has.
    pub bytes: u32,
    pub number: u64,
    pub pieces_in_flight: u16,
    pub result: Result<(), BlockError>,
    pub buf: Option<Buf>,
}

impl Operation {
    /// The request that it was made of, before a piece was sent.
    pub fn into_request(self) -> Request {
        match (self.kind, self.buf) {
            (Kind::Read, Some(buf)) => Request::Read { offset: self.offset, buf },
            (Kind::Write, Some(buf)) => Request::Write { offset: self.offset, buf },
            (Kind::Discard, _) => Request::Discard { offset: self.offset, len: self.left },
            (Kind::WriteZeroes, _) => Request::WriteZeroes { offset: self.offset, len: self.left },
            _ => Request::Flush,
        }
    }
}

/// The configuration's 32-bit field at `offset`.
pub fn read_u32<T: Transport>(session: &mut Session<T>, offset: u16) -> Result<u32, SetupError> {
    session.read_config(|transport| transport.read_config_u32(offset))
}

/// Size and limits of the disk.
pub fn read_info<T: Transport>(session: &mut Session<T>, features: u64) -> Result<BlockInfo, SetupError> {
    let [low, high] = session.read_config(|transport| {
        [CONFIG_CAPACITY, CONFIG_CAPACITY + 4].map(|offset| u64::from(transport.read_config_u32(offset)))
    })?;
    let sector_bytes = match features & feature::BLK_BLK_SIZE {
        0 => VIRTIO_SECTOR_BYTES as u32,
        _ => read_u32(session, CONFIG_BLK_SIZE)?,
    };
    if !sector_bytes.is_power_of_two() || !(VIRTIO_SECTOR_BYTES as u32..=1 << 16).contains(&sector_bytes) {
        return Err(SetupError::BadConfig("its sector size is no power of two from 512 to 65536"));
    }
    let size_bytes = (low | high << 32).checked_mul(VIRTIO_SECTOR_BYTES);
    let size_bytes = size_bytes.ok_or(SetupError::BadConfig("it has more than 2^64 bytes"))?;
    Ok(BlockInfo {
        sector_bytes,
        // A last sector that is not whole cannot be used.
        size_bytes: size_bytes & !(u64::from(sector_bytes) - 1),
        read_only: features & feature::BLK_RO != 0,
    })
}
