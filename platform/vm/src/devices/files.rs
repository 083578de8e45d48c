//! A directory of the host.

use super::{Devices, Settings, Started, VmFiles};
use crate::bus::VmTransport;
use crate::clock;
use alloc::boxed::Box;
use alloc::string::ToString;
use glass_drivers_device::{IdentityDma, SetupError};
use glass_drivers_virtio::Fs;

pub fn start(transport: VmTransport, _: &Settings, devices: &mut Devices) -> Result<Option<Started>, SetupError> {
    if devices.files.is_some() {
        return Ok(None);
    }
    let files = VmFiles::new(Fs::new(transport, IdentityDma)?, clock::now);
    devices.files = Some(files.clone());
    Ok(Some(("files".to_string(), Box::new(files))))
}
