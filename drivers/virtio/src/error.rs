//! Why a place in memory is not a device.

use core::fmt;

/// Why a place in memory is not a device that this crate can drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportError {
    /// The registers do not start with "virt".
    NotVirtio {
        /// What stands there.
        magic: u32,
    },
    /// A device from before virtio 1.0.
    Legacy,
    /// A register layout that did not exist when this was written.
    UnknownVersion(u32),
    /// The slot is empty.
    NoDevice,
    /// The PCI device has no capability of this type (virtio 1.2, section 4.1.4), or one that makes no sense.
    NoCapability {
        /// 1 for the common registers, 2 for notifications, 4 for the configuration.
        kind: u8,
    },
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            TransportError::NotVirtio { magic } => write!(f, "no virtio registers here (found {magic:#010x})"),
            TransportError::Legacy => {
                write!(f, "the device is legacy virtio; start QEMU with -global virtio-mmio.force-legacy=false")
            }
            TransportError::UnknownVersion(version) => write!(f, "unknown virtio-mmio version {version}"),
            TransportError::NoDevice => write!(f, "the slot holds no device"),
            TransportError::NoCapability { kind } => {
                write!(f, "the device has no usable capability of type {kind}; start QEMU with disable-legacy=on")
            }
        }
    }
}

impl core::error::Error for TransportError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn each_error_has_its_numbers_in_its_words() {
        for (error, words) in [
            (TransportError::NotVirtio { magic: 0xab }, "no virtio registers here (found 0x000000ab)"),
            (TransportError::UnknownVersion(3), "unknown virtio-mmio version 3"),
            (TransportError::NoDevice, "the slot holds no device"),
        ] {
            assert_eq!(error.to_string(), words);
        }
        let no_capability = TransportError::NoCapability { kind: 2 }.to_string();
        assert!(no_capability.contains("type 2") && no_capability.contains("disable-legacy=on"));
    }
}
