//! A network card as a stack sees it.

use crate::driver::Driver;
use core::num::{NonZeroU16, NonZeroUsize};

/// What a card does for the stack above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetLimits {
    /// Bytes that a frame carries behind its Ethernet header, at most.
    pub mtu: usize,
    /// The stack need not compute TCP and UDP checksums of what it sends.
    pub completes_checksums: bool,
    /// The stack need not check TCP and UDP checksums: wrong frames are dropped here.
    pub verifies_checksums: bool,
    /// Longest frame that the card segments over IPv4, if it does.
    pub segment_v4_bytes_max: Option<NonZeroUsize>,
    /// The same over IPv6.
    pub segment_v6_bytes_max: Option<NonZeroUsize>,
}

/// A network card, whatever its bus: frames of Ethernet in and out. All calls return at once.
pub trait NetDevice: Driver {
    /// The right to send a frame.
    type Transmit<'a>: NetTransmit
    where
        Self: 'a;

    /// What the card does for the stack.
    fn limits(&self) -> NetLimits;

    /// The next frame and the right to answer it at once: none is taken without room for an answer.
    fn receive(&mut self) -> Option<(&[u8], Self::Transmit<'_>)>;

    /// The right to send a frame, if there is room for one.
    fn transmit(&mut self) -> Option<Self::Transmit<'_>>;
}

/// The right to send a frame.
pub trait NetTransmit {
    /// Sends a frame of `bytes` bytes that `fill` writes. The card segments it with `segment_bytes` of payload each, if
    /// that is given and [`NetLimits`] permit it. A frame longer than they permit is lost, as frames are.
    fn send<R>(self, bytes: usize, segment_bytes: Option<NonZeroU16>, fill: impl FnOnce(&mut [u8]) -> R) -> R;
}
