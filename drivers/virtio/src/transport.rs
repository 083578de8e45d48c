//! The seam to a device's registers.

use alloc::boxed::Box;
use glass_drivers_device::SetupError;

/// Kinds of devices (virtio 1.2, section 5).
pub mod device {
    /// Network card.
    pub const NET: u32 = 1;
    /// Disk.
    pub const BLK: u32 = 2;
    /// Console.
    pub const CONSOLE: u32 = 3;
    /// Source of entropy.
    pub const RNG: u32 = 4;
    /// Sockets to the host.
    pub const VSOCK: u32 = 19;
    /// A directory of the host.
    pub const FS: u32 = 26;
}

/// Feature bits as masks (virtio 1.2, sections 5 and 6).
pub mod feature {
    /// A descriptor may point to a table of descriptors.
    pub const INDIRECT: u64 = 1 << 28;
    /// Both sides say at which index they want to be notified.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The device is virtio 1.0 or later.
    pub const VERSION_1: u64 = 1 << 32;

    /// Disk: longest segment is in the configuration.
    pub const BLK_SIZE_MAX: u64 = 1 << 1;
    /// Disk: largest number of segments is in the configuration.
    pub const BLK_SEG_MAX: u64 = 1 << 2;
    /// Disk: writes fail.
    pub const BLK_RO: u64 = 1 << 5;
    /// Disk: block size is in the configuration.
    pub const BLK_BLK_SIZE: u64 = 1 << 6;
    /// Disk: there is a volatile cache and a flush command.
    pub const BLK_FLUSH: u64 = 1 << 9;
    /// A disk takes requests to discard.
    pub const BLK_DISCARD: u64 = 1 << 13;
    /// A disk takes requests to write zeroes.
    pub const BLK_WRITE_ZEROES: u64 = 1 << 14;

    /// Console: there are ports beyond the first, and queues to talk about them.
    pub const CONSOLE_MULTIPORT: u64 = 1 << 1;

    /// Network: the device completes checksums of frames that we send.
    pub const NET_CSUM: u64 = 1;
    /// Network: the device may hand us frames with incomplete checksums.
    pub const NET_GUEST_CSUM: u64 = 1 << 1;
    /// Network: the configuration holds the MTU.
    pub const NET_MTU: u64 = 1 << 3;
    /// Network: the configuration holds the address.
    pub const NET_MAC: u64 = 1 << 5;
    /// Network: the device may hand us TCP/IPv4 segments of up to 64 KiB.
    pub const NET_GUEST_TSO4: u64 = 1 << 7;
    /// Network: the same over IPv6.
    pub const NET_GUEST_TSO6: u64 = 1 << 8;
    /// Network: the device splits TCP/IPv4 segments of up to 64 KiB.
    pub const NET_HOST_TSO4: u64 = 1 << 11;
    /// Network: the same over IPv6.
    pub const NET_HOST_TSO6: u64 = 1 << 12;
    /// Network: a received frame may be spread over several buffers.
    pub const NET_MRG_RXBUF: u64 = 1 << 15;
}

/// Bits of the status register (virtio 1.2, section 2.1).
pub mod status {
    /// We have seen the device.
    pub const ACKNOWLEDGE: u8 = 1;
    /// We know how to drive it.
    pub const DRIVER: u8 = 2;
    /// Queues are set up; it may run.
    pub const DRIVER_OK: u8 = 4;
    /// Both agree on the features.
    pub const FEATURES_OK: u8 = 8;
    /// The device has given up.
    pub const NEEDS_RESET: u8 = 64;
    /// We have given up.
    pub const FAILED: u8 = 128;
}

/// Where a queue's three parts are, as the device sees memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueAddresses {
    /// Number of descriptors, a power of two.
    pub size: u16,
    /// Descriptor table.
    pub descriptors: u64,
    /// Available ring, the driver's area.
    pub available: u64,
    /// Used ring, the device's area.
    pub used: u64,
}

/// A device's registers, whatever bus they sit on.
///
/// Under a hypervisor each access is an exit of 0.1 to 70 us, so after start-up drivers call only
/// [`Transport::notify`], [`Transport::acknowledge_interrupt`] and, after an interrupt that nothing
/// explains, [`Transport::read_status`].
pub trait Transport {
    /// Kind of device, see [`device`].
    fn device_id(&self) -> u32;

    /// The status register, see [`status`].
    fn read_status(&mut self) -> u8;

    /// Sets the status register; 0 requests a reset.
    fn write_status(&mut self, status: u8);

    /// The features that the device offers.
    fn read_features(&mut self) -> u64;

    /// Writes which of them will be used.
    fn write_features(&mut self, features: u64);

    /// Largest size of queue number `queue`, 0 if there is none.
    fn read_queue_size_max(&mut self, queue: u16) -> u16;

    /// Sets up and enables queue number `queue`, its interrupt included where each queue has one of its own.
    ///
    /// # Safety
    /// The addresses must name rings of that size in memory that is the device's until it is reset,
    /// and the rings must never name memory that it may not use. That holds after an error too.
    unsafe fn write_queue(&mut self, queue: u16, addresses: &QueueAddresses) -> Result<(), SetupError>;

    /// Notifies the device: queue number `queue` has new buffers.
    fn notify(&mut self, queue: u16);

    /// Takes the device's interrupt line down, where there is one (not with MSI-X). Returns nothing
    /// because reading why it was up would be a second exit.
    fn acknowledge_interrupt(&mut self);

    /// A byte of the device's configuration. A field is read in its own width, and one of 64 bits in halves (virtio 1.2,
    /// sections 4.1.3.1 and 4.2.2.2).
    fn read_config_u8(&mut self, offset: u16) -> u8;

    /// A 16-bit field of the device's configuration.
    fn read_config_u16(&mut self, offset: u16) -> u16;

    /// A 32-bit field of the device's configuration.
    fn read_config_u32(&mut self, offset: u16) -> u32;

    /// Changes whenever the configuration does.
    fn read_config_generation(&mut self) -> u32;
}

impl<T: Transport + ?Sized> Transport for Box<T> {
    fn device_id(&self) -> u32 {
        (**self).device_id()
    }
    fn read_status(&mut self) -> u8 {
        (**self).read_status()
    }
    fn write_status(&mut self, status: u8) {
        (**self).write_status(status);
    }
    fn read_features(&mut self) -> u64 {
        (**self).read_features()
    }
    fn write_features(&mut self, features: u64) {
        (**self).write_features(features);
    }
    fn read_queue_size_max(&mut self, queue: u16) -> u16 {
        (**self).read_queue_size_max(queue)
    }
    unsafe fn write_queue(&mut self, queue: u16, addresses: &QueueAddresses) -> Result<(), SetupError> {
        // SAFETY: the caller makes the same promise.
        unsafe { (**self).write_queue(queue, addresses) }
    }
    fn notify(&mut self, queue: u16) {
        (**self).notify(queue);
    }
    fn acknowledge_interrupt(&mut self) {
        (**self).acknowledge_interrupt();
    }
    fn read_config_u8(&mut self, offset: u16) -> u8 {
        (**self).read_config_u8(offset)
    }
    fn read_config_u16(&mut self, offset: u16) -> u16 {
        (**self).read_config_u16(offset)
    }
    fn read_config_u32(&mut self, offset: u16) -> u32 {
        (**self).read_config_u32(offset)
    }
    fn read_config_generation(&mut self) -> u32 {
        (**self).read_config_generation()
    }
}

#[cfg(test)]
mod tests {
    use super::feature;

    /// Virtio 1.2, sections 5.1.3, 5.2.3, 5.3.3 and 6.
    #[test]
    fn features_are_the_bits_of_the_specification() {
        let bits = |features: u64| (0..64).filter(|bit| features >> bit & 1 != 0).collect::<alloc::vec::Vec<_>>();
        assert_eq!(bits(feature::INDIRECT | feature::EVENT_IDX | feature::VERSION_1), [28, 29, 32]);
        let sizes = feature::BLK_SIZE_MAX | feature::BLK_SEG_MAX | feature::BLK_BLK_SIZE;
        assert_eq!(bits(sizes | feature::BLK_RO | feature::BLK_FLUSH), [1, 2, 5, 6, 9]);
        assert_eq!(bits(feature::BLK_DISCARD | feature::BLK_WRITE_ZEROES), [13, 14]);
        assert_eq!(bits(feature::CONSOLE_MULTIPORT), [1]);
        assert_eq!(
            bits(feature::NET_CSUM | feature::NET_GUEST_CSUM | feature::NET_MTU | feature::NET_MAC),
            [0, 1, 3, 5]
        );
        let received = feature::NET_GUEST_TSO4 | feature::NET_GUEST_TSO6 | feature::NET_MRG_RXBUF;
        assert_eq!(bits(feature::NET_HOST_TSO4 | feature::NET_HOST_TSO6 | received), [7, 8, 11, 12, 15]);
    }
}
