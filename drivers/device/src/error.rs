//! What can be wrong with a device: it cannot be started, or violates its protocol.

use core::fmt;

/// Why a device could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetupError {
    /// The device is of another kind.
    WrongDevice {
        /// The kind that the driver is for.
        wanted: u32,
        /// The kind that the device reports.
        found: u32,
    },
    /// The device does not offer features without which the driver cannot work.
    MissingFeatures(u64),
    /// The device did not accept a subset of what it had offered.
    FeaturesRefused(u64),
    /// The device did not reset.
    ResetIgnored,
    /// The device has no such queue, or only a shorter one.
    QueueTooShort {
        /// Number of the queue.
        queue: u16,
        /// Descriptors wanted.
        wanted: u16,
        /// Descriptors that the device allows.
        allowed: u16,
    },
    /// The device's configuration is impossible.
    BadConfig(&'static str),
    /// The device has no room for the interrupt of a queue.
    InterruptRefused {
        /// Number of the queue.
        queue: u16,
    },
    /// No memory for rings or buffers.
    OutOfMemory {
        /// Bytes requested.
        bytes: usize,
    },
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            SetupError::WrongDevice { wanted, found } => {
                write!(f, "the device is of kind {found}, the driver is for kind {wanted}")
            }
            SetupError::MissingFeatures(bits) => write!(f, "the device lacks the features {bits:#x}"),
            SetupError::FeaturesRefused(bits) => write!(f, "the device refused the features {bits:#x} that it offered"),
            SetupError::ResetIgnored => write!(f, "the device does not reset"),
            SetupError::QueueTooShort { queue, wanted, allowed } => {
                write!(f, "queue {queue} allows {allowed} descriptors, {wanted} are needed")
            }
            SetupError::BadConfig(why) => write!(f, "the device's configuration is impossible: {why}"),
            SetupError::InterruptRefused { queue } => write!(f, "the device refused an interrupt for queue {queue}"),
            SetupError::OutOfMemory { bytes } => {
                write!(f, "no memory for {bytes} bytes of rings and buffers: give the service more memory")
            }
        }
    }
}

impl core::error::Error for SetupError {}

/// What no correct device does. It ends the use of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A completion for a descriptor that the queue does not have.
    IdOutOfRange {
        /// The descriptor.
        id: u32,
    },
    /// A completion for a request that is not in flight.
    NotInFlight {
        /// The descriptor.
        id: u16,
    },
    /// The device reports that it wrote more than there was room for.
    LengthTooLong {
        /// Bytes that it reports.
        bytes: u32,
        /// Bytes that it was allowed to write.
        writable: u32,
    },
    /// More completions than requests.
    TooManyCompletions {
        /// New completions.
        count: u16,
        /// Requests in flight.
        in_flight: u16,
    },
    /// A received frame in so many buffers, which is none or more than the device has completed.
    BufferCount {
        /// Buffers that the device reports.
        buffers: u16,
    },
    /// The device set DEVICE_NEEDS_RESET: it has given up by itself.
    NeedsReset,
    /// An answer above the queue, such as one of FUSE, that is not valid.
    BadAnswer,
    /// It has not answered a request for too long.
    NoAnswer,
    /// A violation of a protocol that is not virtio's, in words.
    Protocol(&'static str),
}

impl Violation {
    /// The violation in words, without its numbers.
    pub fn as_str(self) -> &'static str {
        match self {
            Violation::IdOutOfRange { .. } => "it completed a descriptor that does not exist",
            Violation::NotInFlight { .. } => "it completed a request that was not in flight",
            Violation::LengthTooLong { .. } => "it wrote more than there was room for",
            Violation::TooManyCompletions { .. } => "it completed more requests than were in flight",
            Violation::BufferCount { .. } => "it spread a frame over buffers that it did not complete",
            Violation::NeedsReset => "it requested a reset",
            Violation::BadAnswer => "its answer is not valid",
            Violation::NoAnswer => "it does not answer",
            Violation::Protocol(words) => words,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.as_str())?;
        match self {
            Violation::IdOutOfRange { id } => write!(f, " (descriptor {id})"),
            Violation::NotInFlight { id } => write!(f, " (descriptor {id})"),
            Violation::LengthTooLong { bytes, writable } => write!(f, " ({bytes} bytes into {writable})"),
            Violation::TooManyCompletions { count, in_flight } => write!(f, " ({count} of {in_flight})"),
            Violation::BufferCount { buffers } => write!(f, " ({buffers} buffers)"),
            Violation::NeedsReset | Violation::BadAnswer | Violation::NoAnswer | Violation::Protocol(_) => Ok(()),
        }
    }
}

impl core::error::Error for Violation {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn each_error_has_its_numbers_in_its_words() {
        for (error, words) in [
            (SetupError::WrongDevice { wanted: 2, found: 1 }, "the device is of kind 1, the driver is for kind 2"),
            (SetupError::MissingFeatures(1 << 32), "the device lacks the features 0x100000000"),
            (SetupError::FeaturesRefused(18), "the device refused the features 0x12 that it offered"),
            (SetupError::ResetIgnored, "the device does not reset"),
            (
                SetupError::QueueTooShort { queue: 1, wanted: 4, allowed: 2 },
                "queue 1 allows 2 descriptors, 4 are needed",
            ),
            (SetupError::BadConfig("why"), "the device's configuration is impossible: why"),
            (SetupError::InterruptRefused { queue: 7 }, "the device refused an interrupt for queue 7"),
        ] {
            assert_eq!(error.to_string(), words);
        }
        assert!(SetupError::OutOfMemory { bytes: 512 }.to_string().starts_with("no memory for 512 bytes"));
        for (violation, numbers) in [
            (Violation::IdOutOfRange { id: 9 }, " (descriptor 9)"),
            (Violation::NotInFlight { id: 9 }, " (descriptor 9)"),
            (Violation::LengthTooLong { bytes: 9, writable: 8 }, " (9 bytes into 8)"),
            (Violation::TooManyCompletions { count: 3, in_flight: 2 }, " (3 of 2)"),
            (Violation::BufferCount { buffers: 0 }, " (0 buffers)"),
            (Violation::NoAnswer, ""),
            (Violation::Protocol("it speaks otherwise"), ""),
        ] {
            assert_eq!(violation.to_string().strip_prefix(violation.as_str()), Some(numbers));
        }
    }
}
