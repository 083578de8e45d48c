//! Disks.

use super::{Devices, Settings, Started, VmDisk};
use crate::bus::VmTransport;
use alloc::boxed::Box;
use alloc::format;
use glass_virtio::{Blk, IdentityDma, SetupError};

pub fn start(transport: VmTransport, _: &Settings, devices: &mut Devices) -> Result<Option<Started>, SetupError> {
    let disk = VmDisk::new(Box::new(Blk::new(transport, IdentityDma)?));
    let label = format!("disk {}", devices.disks.len());
    devices.disks.push(disk.clone());
    Ok(Some((label, Box::new(disk))))
}
