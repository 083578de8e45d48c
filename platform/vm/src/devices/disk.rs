//! Disks.

use super::{Devices, Settings, Started, VmDisk};
use crate::bus::VmTransport;
use crate::clock;
use alloc::boxed::Box;
use alloc::format;
use glass_drivers_device::{IdentityDma, SetupError};
use glass_drivers_virtio::Blk;

pub fn start(
    transport: VmTransport,
    settings: &Settings,
    devices: &mut Devices,
) -> Result<Option<Started>, SetupError> {
    let disk = VmDisk::with_deadline(Box::new(Blk::new(transport, IdentityDma)?), settings.disk_timeout, clock::now);
    let label = format!("disk {}", devices.disks.len());
    devices.disks.push(disk.clone());
    Ok(Some((label, Box::new(disk))))
}
