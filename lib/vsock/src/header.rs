//! The header of a packet (virtio 1.2, section 5.10.6).

/// Bytes of a header on the wire.
pub const HEADER_BYTES: usize = 44;

/// What a packet is for. Other numbers are answered with a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Operation {
    /// Open a connection.
    Request = 1,
    /// A connection was accepted.
    Response = 2,
    /// A connection does not exist, or ends at once.
    Reset = 3,
    /// The sender will receive nothing more (flag 1), send nothing more (flag 2), or both.
    Shutdown = 4,
    /// Data.
    Data = 5,
    /// New credit.
    CreditUpdate = 6,
    /// A wish for an update of the credit.
    CreditRequest = 7,
}

/// Flag of [`Operation::Shutdown`]: the sender receives no more.
pub(crate) const SHUTDOWN_RECEIVE: u32 = 1;
/// Flag of [`Operation::Shutdown`]: the sender sends no more.
pub(crate) const SHUTDOWN_SEND: u32 = 2;

/// Flag of [`Operation::Data`] of messages: the message ends with this packet.
pub(crate) const END_OF_MESSAGE: u32 = 1;

impl Operation {
    fn from_number(number: u16) -> Option<Operation> {
        use Operation::*;
        [Request, Response, Reset, Shutdown, Data, CreditUpdate, CreditRequest]
            .into_iter()
            .find(|operation| *operation as u16 == number)
    }
}

/// What a connection carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Type {
    /// A stream of bytes.
    Stream = 1,
    /// Messages.
    Message = 2,
}

/// The two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ends {
    /// Our port.
    pub local_port: u32,
    /// The context identifier of the peer: 2 is the host.
    pub peer_cid: u64,
    /// The peer's port.
    pub peer_port: u32,
}

/// A header. `kind` and `operation` are `None` where the number is none of the specification's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Context identifier of the sender.
    pub source_cid: u64,
    /// Context identifier of the receiver.
    pub destination_cid: u64,
    /// Port of the sender.
    pub source_port: u32,
    /// Port of the receiver.
    pub destination_port: u32,
    /// Bytes of data behind the header.
    pub data_bytes: u32,
    /// What the connection carries.
    pub kind: Option<Type>,
    /// What the packet is for.
    pub operation: Option<Operation>,
    /// Depends on the operation.
    pub flags: u32,
    /// Bytes of the sender's window.
    pub window_bytes: u32,
    /// All bytes that the sender's service has consumed, modulo 2^32.
    pub consumed: u32,
}

impl Header {
    /// Reads a header. Any bytes are one.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Header {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        Header {
            source_cid: u64_at(0),
            destination_cid: u64_at(8),
            source_port: u32_at(16),
            destination_port: u32_at(20),
            data_bytes: u32_at(24),
            kind: match u16_at(28) {
                1 => Some(Type::Stream),
                2 => Some(Type::Message),
                _ => None,
            },
            operation: Operation::from_number(u16_at(30)),
            flags: u32_at(32),
            window_bytes: u32_at(36),
            consumed: u32_at(40),
        }
    }

    /// The header's bytes. A kind or an operation that is `None` is written as 0.
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&self.source_cid.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.destination_cid.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.source_port.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.destination_port.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.data_bytes.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.kind.map_or(0, |kind| kind as u16).to_le_bytes());
        bytes[30..32].copy_from_slice(&self.operation.map_or(0, |operation| operation as u16).to_le_bytes());
        bytes[32..36].copy_from_slice(&self.flags.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.window_bytes.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.consumed.to_le_bytes());
        bytes
    }

    /// The connection's ends, as its receiver names them.
    pub fn ends_of_receiver(&self) -> Ends {
        Ends { local_port: self.destination_port, peer_cid: self.source_cid, peer_port: self.source_port }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_field_has_its_place() {
        let mut bytes = [0; HEADER_BYTES];
        bytes.iter_mut().zip(1..).for_each(|(byte, number)| *byte = number);
        bytes[28..32].copy_from_slice(&[1, 0, 5, 0]);
        let header = Header::parse(&bytes);
        assert_eq!(header.source_cid, 0x0807_0605_0403_0201);
        assert_eq!(header.destination_cid, 0x100f_0e0d_0c0b_0a09);
        assert_eq!((header.source_port, header.destination_port), (0x1413_1211, 0x1817_1615));
        assert_eq!(header.data_bytes, 0x1c1b_1a19);
        assert_eq!((header.kind, header.operation), (Some(Type::Stream), Some(Operation::Data)));
        assert_eq!((header.flags, header.window_bytes, header.consumed), (0x2423_2221, 0x2827_2625, 0x2c2b_2a29));
        assert_eq!(header.bytes(), bytes);
    }

    proptest! {
        #[test]
        fn what_was_read_is_written_again(bytes: [u8; 32]) {
            let mut whole = [0; HEADER_BYTES];
            whole[..28].copy_from_slice(&bytes[..28]);
            whole[32..36].copy_from_slice(&bytes[28..]);
            let header = Header::parse(&whole);
            prop_assert_eq!((header.kind, header.operation), (None, None));
            prop_assert_eq!(header.bytes(), whole);
        }
    }
}
