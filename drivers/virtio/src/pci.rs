//! Devices on a PCI bus (virtio 1.2, section 4.1): where a device has its registers, and the registers.
//!
//! Configuration space, address spaces and interrupts are the platform's. It hands over three windows of registers, and the number of
//! MSI-X messages that it has routed: message 0 is for changes of the configuration, each queue that is set up takes the next one.

use crate::error::TransportError;
use crate::transport::{QueueAddresses, Transport};
use alloc::vec::Vec;
use glass_drivers_device::{Registers, SetupError, after_write};

/// The vendor that virtio devices have.
pub const PCI_VENDOR: u16 = 0x1af4;
/// Number of the PCI device for virtio's device 0; those of virtio 1.0 are counted from here (section 4.1.2).
const FIRST_DEVICE: u16 = 0x1040;
const LAST_DEVICE: u16 = 0x107f;
/// Devices that understand drivers from before virtio 1.0 too have these numbers, and their kind elsewhere.
const TRANSITIONAL: core::ops::RangeInclusive<u16> = 0x1000..=0x103f;
/// Identifier of a vendor's own capability.
const VENDOR_CAPABILITY: u8 = 9;
/// An entry of a list of capabilities is followed at most so often: the list may be a ring.
const CAPABILITIES_MAX: usize = 48;
const CAPABILITIES: u16 = 0x34;
/// Length of the configuration space that has capabilities.
const CONFIG_BYTES: u16 = 256;

/// A function's configuration space. Offsets are below 256 and aligned to the access.
pub trait PciConfig {
    /// Reads 32 bits.
    fn read(&mut self, offset: u16) -> u32;
    /// Writes 32 bits.
    fn write(&mut self, offset: u16, value: u32);
}

/// The kind of virtio device (see [`crate::device`]) that a function with these numbers is; `None` if it is none.
pub fn pci_device_kind(vendor: u16, device: u16, subsystem: u16) -> Option<u32> {
    match device {
        _ if vendor != PCI_VENDOR => None,
        FIRST_DEVICE..=LAST_DEVICE => Some(u32::from(device - FIRST_DEVICE)),
        _ if TRANSITIONAL.contains(&device) => Some(subsystem.into()),
        _ => None,
    }
}

/// The offsets of the capabilities with this identifier, in the list's order.
pub fn pci_capabilities(config: &mut impl PciConfig, identifier: u8) -> Vec<u16> {
    let mut found = Vec::new();
    let mut offset = config.read(CAPABILITIES) as u8 & !3;
    for _ in 0..CAPABILITIES_MAX {
        // What lies below is the header, which holds no capability.
        if offset < 0x40 {
            break;
        }
        let [id, next, ..] = config.read(offset.into()).to_le_bytes();
        if id == identifier {
            found.push(offset.into());
        }
        offset = next & !3;
    }
    found
}

/// A part of the memory behind one of a function's base address registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PciRegion {
    /// Which base address register, 0 to 5.
    pub bar: u8,
    /// First byte.
    pub offset: u32,
    /// Length in bytes.
    pub bytes: u32,
}

/// Where a virtio device has its registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PciLayout {
    /// Status, features, queues.
    pub common: PciRegion,
    /// Where queues are notified.
    pub notify: PciRegion,
    /// Distance of two places in it.
    pub notify_multiplier: u32,
    /// The device's own configuration; empty if it has none.
    pub device: PciRegion,
}

const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const DEVICE: u8 = 4;

impl PciLayout {
    /// Reads the layout from the capabilities of a function. Of several of one type the first counts.
    pub fn read(config: &mut impl PciConfig) -> Result<PciLayout, TransportError> {
        let (mut common, mut notify, mut device) = (None, None, None);
        for at in pci_capabilities(config, VENDOR_CAPABILITY) {
            let kind = config.read(at).to_le_bytes()[3];
            let place = match kind {
                COMMON if common.is_none() => &mut common,
                NOTIFY if notify.is_none() => &mut notify,
                DEVICE if device.is_none() => &mut device,
                _ => continue,
            };
            // The notify capability has a word more (section 4.1.4.4).
            let length = if kind == NOTIFY { 20 } else { 16 };
            if at + length > CONFIG_BYTES {
                continue;
            }
            let bar = config.read(at + 4) as u8;
            // Others are reserved (section 4.1.4).
            if bar <= 5 {
                let region = PciRegion { bar, offset: config.read(at + 8), bytes: config.read(at + 12) };
                *place = Some((at, region));
            }
        }
        let usable = |found: Option<(u16, PciRegion)>, kind, bytes_min| match found {
            Some((at, region)) if region.bytes >= bytes_min && region.offset.is_multiple_of(4) => Ok((at, region)),
            _ => Err(TransportError::NoCapability { kind }),
        };
        let (_, common) = usable(common, COMMON, register::BYTES as u32)?;
        let (at, notify) = usable(notify, NOTIFY, 2)?;
        let empty = PciRegion { bar: 0, offset: 0, bytes: 0 };
        let device = device.map_or(Ok(empty), |found| usable(Some(found), DEVICE, 0).map(|(_, region)| region))?;
        Ok(PciLayout { common, notify, notify_multiplier: config.read(at + 16), device })
    }
}

/// The common registers (section 4.1.4.3).
mod register {
    pub const DEVICE_FEATURE_SELECT: usize = 0x00;
    pub const DEVICE_FEATURE: usize = 0x04;
    pub const DRIVER_FEATURE_SELECT: usize = 0x08;
    pub const DRIVER_FEATURE: usize = 0x0c;
    pub const CONFIG_VECTOR: usize = 0x10;
    pub const DEVICE_STATUS: usize = 0x14;
    pub const CONFIG_GENERATION: usize = 0x15;
    pub const QUEUE_SELECT: usize = 0x16;
    pub const QUEUE_SIZE: usize = 0x18;
    pub const QUEUE_VECTOR: usize = 0x1a;
    pub const QUEUE_ENABLE: usize = 0x1c;
    pub const QUEUE_NOTIFY_OFFSET: usize = 0x1e;
    pub const QUEUE_DESCRIPTORS: usize = 0x20;
    pub const QUEUE_AVAILABLE: usize = 0x28;
    pub const QUEUE_USED: usize = 0x30;
    pub const BYTES: usize = 0x38;
}

/// What the device answers when it has no room for an interrupt.
const NO_VECTOR: u16 = 0xffff;

/// A queue's place in the window of notifications.
#[derive(Debug, Clone, Copy)]
struct Notified {
    queue: u16,
    offset: usize,
}

/// A virtio 1.x device behind a PCI function.
#[derive(Debug)]
pub struct PciTransport<R> {
    device_id: u32,
    common: R,
    notify: R,
    device: R,
    notify_multiplier: u32,
    /// Messages that the platform has routed, at least 1.
    messages: u16,
    /// Queues that were set up since the last reset.
    queues: Vec<Notified>,
}

impl<R: Registers> PciTransport<R> {
    /// The device of kind `device_id` with these three windows, as `layout` describes them, and so many MSI-X messages.
    ///
    /// # Panics
    /// If `messages` is 0, or the window of common registers shorter than [`PciLayout::read`] lets pass.
    pub fn new(device_id: u32, layout: &PciLayout, windows: [R; 3], messages: u16) -> PciTransport<R> {
        let [common, notify, device] = windows;
        assert!(messages > 0 && common.bytes() >= register::BYTES);
        let notify_multiplier = layout.notify_multiplier;
        PciTransport { device_id, common, notify, device, notify_multiplier, messages, queues: Vec::new() }
    }

    fn write_u64(&mut self, offset: usize, value: u64) {
        self.common.write_u32(offset, value as u32);
        self.common.write_u32(offset + 4, (value >> 32) as u32);
    }

    /// Gives an interrupt to what `register` stands for. A device without room for it reports none.
    fn write_vector(&mut self, register: usize, message: u16) -> bool {
        self.common.write_u16(register, message);
        self.common.read_u16(register) != NO_VECTOR
    }

    /// Where queue `queue`, which is selected, is notified.
    fn notify_offset(&mut self) -> Option<usize> {
        let index = self.common.read_u16(register::QUEUE_NOTIFY_OFFSET);
        let offset = u64::from(index) * u64::from(self.notify_multiplier);
        let offset = usize::try_from(offset).ok()?;
        (offset.is_multiple_of(2) && offset.checked_add(2)? <= self.notify.bytes()).then_some(offset)
    }

    /// Whether a field of the configuration exists. Reads of others give zeroes.
    fn has_config(&self, offset: u16, bytes: usize) -> bool {
        usize::from(offset) + bytes <= self.device.bytes()
    }
}

impl<R: Registers> Transport for PciTransport<R> {
    fn device_id(&self) -> u32 {
        self.device_id
    }

    fn read_status(&mut self) -> u8 {
        self.common.read_u8(register::DEVICE_STATUS)
    }

    fn write_status(&mut self, status: u8) {
        if status == 0 {
            // The device forgets its queues and their interrupts.
            self.queues.clear();
        }
        self.common.write_u8(register::DEVICE_STATUS, status);
    }

    fn read_features(&mut self) -> u64 {
        (0..2).fold(0, |features, half| {
            self.common.write_u32(register::DEVICE_FEATURE_SELECT, half);
            features | u64::from(self.common.read_u32(register::DEVICE_FEATURE)) << (32 * half)
        })
    }

    fn write_features(&mut self, features: u64) {
        for half in 0..2 {
            self.common.write_u32(register::DRIVER_FEATURE_SELECT, half);
            self.common.write_u32(register::DRIVER_FEATURE, (features >> (32 * half)) as u32);
        }
    }

    fn read_queue_size_max(&mut self, queue: u16) -> u16 {
        self.common.write_u16(register::QUEUE_SELECT, queue);
        self.common.read_u16(register::QUEUE_SIZE)
    }

    unsafe fn write_queue(&mut self, queue: u16, addresses: &QueueAddresses) -> Result<(), SetupError> {
        if self.queues.is_empty() && !self.write_vector(register::CONFIG_VECTOR, 0) {
            return Err(SetupError::InterruptRefused { queue });
        }
        self.common.write_u16(register::QUEUE_SELECT, queue);
        self.common.write_u16(register::QUEUE_SIZE, addresses.size);
        // With fewer messages than queues the last ones share.
        let message = (self.queues.len() as u16 + 1).min(self.messages - 1);
        if !self.write_vector(register::QUEUE_VECTOR, message) {
            return Err(SetupError::InterruptRefused { queue });
        }
        let offset = self.notify_offset();
        let offset = offset.ok_or(SetupError::BadConfig("a queue is notified outside of its registers"))?;
        self.write_u64(register::QUEUE_DESCRIPTORS, addresses.descriptors);
        self.write_u64(register::QUEUE_AVAILABLE, addresses.available);
        self.write_u64(register::QUEUE_USED, addresses.used);
        self.common.write_u16(register::QUEUE_ENABLE, 1);
        self.queues.push(Notified { queue, offset });
        Ok(())
    }

    fn notify(&mut self, queue: u16) {
        if let Some(place) = self.queues.iter().find(|place| place.queue == queue) {
            self.notify.write_u16(place.offset, queue);
            after_write();
        }
    }

    /// A message needs no acknowledgement.
    fn acknowledge_interrupt(&mut self) {}

    fn read_config_u8(&mut self, offset: u16) -> u8 {
        if self.has_config(offset, 1) { self.device.read_u8(offset.into()) } else { 0 }
    }

    fn read_config_u16(&mut self, offset: u16) -> u16 {
        if self.has_config(offset, 2) { self.device.read_u16(offset.into()) } else { 0 }
    }

    fn read_config_u32(&mut self, offset: u16) -> u32 {
        if self.has_config(offset, 4) { self.device.read_u32(offset.into()) } else { 0 }
    }

    fn read_config_generation(&mut self) -> u32 {
        self.common.read_u8(register::CONFIG_GENERATION).into()
    }
}
