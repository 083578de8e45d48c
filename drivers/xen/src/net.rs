//! A network card whose back end is in another domain (`xen/include/public/io/netif.h`): frames in both directions, for any TCP/IP stack.
//!
//! Frames are copied into and out of pages that stay granted. A frame may have several pages, lack its checksum and be a joined segment of
//! TCP, in both directions.

use crate::Events;
use crate::bus::{BusError, Device, State};
use crate::error::BackendViolation;
use crate::grants::{Access, Domain, Grant, Grants};
use crate::net_wire::{self as wire, Received};
use crate::page::{Frames, PAGE_BYTES, SharedPages};
use crate::ring::FrontRing;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;
use core::num::{NonZeroU16, NonZeroUsize};
use glass_drivers_device::{
    Driver, NetDevice, NetLimits, NetTransmit, Offload, Segmentation, SetupError, Verdict, Violation, verify,
};

/// Entries of each ring, and pages for each.
const ENTRIES: u16 = 256;
/// The longest frame that the stack may give to be cut, headers included.
const SEGMENT_BYTES_MAX: NonZeroUsize = NonZeroUsize::new(65535).unwrap();
/// Room for such a frame and its Ethernet header, in whole pages.
const FRAME_BYTES_MAX: usize = 65536 + PAGE_BYTES;
/// An Ethernet header.
const FRAME_BYTES_MIN: usize = 14;
const MTU_DEFAULT: usize = 1500;
const MTU_MIN: usize = 1280;

/// What the back end offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetOffers {
    /// A frame may have several parts.
    pub parts: bool,
    /// It completes checksums (those of IPv6 too, as all do that are known).
    pub checksums: bool,
    /// It takes joined segments of TCP over IPv4.
    pub segments_v4: bool,
    /// The same over IPv6.
    pub segments_v6: bool,
    /// Bytes after the Ethernet header.
    pub mtu: usize,
}

/// A page each, lent to the back end.
struct Pages {
    pages: SharedPages,
    grants: Vec<Grant>,
}

impl Pages {
    fn new(frames: &impl Frames, grants: &Grants, domain: Domain, count: usize) -> Result<Pages, BusError> {
        let pages = frames.allocate(count).ok_or(BusError::NoMemory)?;
        let grants = grants.grant_all(&pages, domain, Access::Write).ok_or(BusError::NoMemory)?;
        Ok(Pages { pages, grants })
    }

    fn reference(&self, index: u16) -> u32 {
        self.grants[usize::from(index)].reference()
    }
}

/// A frame of which some parts have arrived.
#[derive(Debug, Clone, Copy, Default)]
struct Partial {
    bytes: usize,
    /// Flags of its first part, and the kind of its segments.
    flags: u16,
    segments: Option<u8>,
    has_begun: bool,
    /// The next entry has further information, and whether another part follows then.
    is_extra: bool,
    is_more: bool,
    /// It is dropped once it is complete.
    is_bad: bool,
}

struct Receiver {
    ring: FrontRing,
    pages: Pages,
    /// The pages in the ring, in its order.
    posted: VecDeque<u16>,
    partial: Partial,
    /// The frame, out of the back end's reach.
    copy: Vec<u8>,
}

struct Transmitter {
    ring: FrontRing,
    pages: Pages,
    free: Vec<u16>,
    is_in_flight: Vec<bool>,
    offers: NetOffers,
    /// Where the stack writes a frame.
    frame: Vec<u8>,
}

/// A network card. Dropping it keeps its pages until the back end does not use them.
pub struct Net<E: Events> {
    receiver: Receiver,
    transmitter: Transmitter,
    port: u32,
    events: E,
    mac: [u8; 6],
    is_closed: Rc<Cell<bool>>,
    violation: Option<Violation>,
}

/// The right to send a frame.
pub struct Transmit<'a> {
    transmitter: &'a mut Transmitter,
}

impl<E: Events> Net<E> {
    /// Agrees with the back end of `device` on rings, whose event channel is `port`. Without `offloads` each frame has one part, and the stack
    /// makes its checksums and segments.
    pub async fn connect(
        device: &Device<E>,
        frames: &impl Frames,
        grants: &Grants,
        (port, events): (u32, E),
        offloads: bool,
    ) -> Result<Net<E>, BusError> {
        device.wait_for(State::InitWait).await?;
        let mac = parse_mac(&device.value("mac").await?).ok_or(BusError::BadValue("mac"))?;
        let mtu = device.value("mtu").await.ok().and_then(|mtu| mtu.trim().parse().ok()).unwrap_or(MTU_DEFAULT);
        let has = async |key| device.back_number(key, 0).await.map(|value| value != 0 && offloads);
        let (parts, checksums) = (has("feature-sg").await?, has("feature-ipv6-csum-offload").await?);
        let offers = NetOffers {
            parts,
            checksums,
            segments_v4: parts && checksums && has("feature-gso-tcpv4").await?,
            segments_v6: parts && checksums && has("feature-gso-tcpv6").await?,
            mtu: mtu.clamp(MTU_MIN, if parts { SEGMENT_BYTES_MAX.get() } else { PAGE_BYTES } - FRAME_BYTES_MIN),
        };
        let net = Net::new(offers, mac, (frames, grants, device.domain), (port, events))?;
        let [receive, send] = [&net.receiver.pages, &net.transmitter.pages].map(|pages| pages.reference(ENTRIES));
        let number = |value: u32| value.to_string();
        let values: [(&str, String); 10] = [
            ("tx-ring-ref", number(send)),
            ("rx-ring-ref", number(receive)),
            ("event-channel", number(port)),
            ("request-rx-copy", number(1)),
            ("feature-rx-notify", number(1)),
            ("feature-sg", number(offloads.into())),
            ("feature-gso-tcpv4", number(offloads.into())),
            ("feature-gso-tcpv6", number(offloads.into())),
            ("feature-ipv6-csum-offload", number(offloads.into())),
            ("feature-no-csum-offload", number((!offloads).into())),
        ];
        device.publish(&values, State::Connected).await?;
        device.wait_for(State::Connected).await?;
        Ok(net)
    }

    /// The rings are behind the pages, and granted with them.
    fn new(
        offers: NetOffers,
        mac: [u8; 6],
        (frames, grants, domain): (&impl Frames, &Grants, Domain),
        (port, events): (u32, E),
    ) -> Result<Net<E>, BusError> {
        let ring_of =
            |pages: &Pages, entry_bytes| FrontRing::new(pages.pages.part(usize::from(ENTRIES), 1), entry_bytes);
        let count = usize::from(ENTRIES) + 1;
        let (received, sent) = (Pages::new(frames, grants, domain, count)?, Pages::new(frames, grants, domain, count)?);
        let mut receiver = Receiver {
            ring: ring_of(&received, wire::RECEIVE_BYTES),
            pages: received,
            posted: VecDeque::with_capacity(ENTRIES.into()),
            partial: Partial::default(),
            copy: vec![0; FRAME_BYTES_MAX],
        };
        (0..ENTRIES).for_each(|page| receiver.post(page));
        receiver.ring.publish();
        let transmitter = Transmitter {
            ring: ring_of(&sent, wire::SEND_BYTES),
            pages: sent,
            free: (0..ENTRIES).rev().collect(),
            is_in_flight: vec![false; ENTRIES.into()],
            offers,
            frame: vec![0; FRAME_BYTES_MAX],
        };
        Ok(Net { receiver, transmitter, port, events, mac, is_closed: Rc::default(), violation: None })
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Set it when the back end has closed the device: the next poll ends its use.
    pub fn closed(&self) -> Rc<Cell<bool>> {
        self.is_closed.clone()
    }

    /// Hands over what was queued, and notifies the back end, once, if it wants to know.
    fn publish(&mut self) {
        let is_wanted = [&mut self.receiver.ring, &mut self.transmitter.ring].map(FrontRing::publish);
        if is_wanted.contains(&true) {
            self.events.notify(self.port);
        }
    }
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.trim().split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    (parts.next().is_none() && mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}

impl Receiver {
    /// Gives a page to the ring; the back end gets it at the next publication.
    fn post(&mut self, page: u16) {
        let request = wire::receive_request(page, self.pages.reference(page));
        assert_eq!(self.ring.put(&request), Ok(()), "an entry for each page");
        self.posted.push_back(page);
    }

    /// Takes entries up to the end of a frame that is good, and returns its length in `copy`. Ends when the back end has no more: what is
    /// posted here meanwhile was not published yet.
    fn next(&mut self) -> Result<Option<usize>, BackendViolation> {
        let mut entry = [0; wire::RECEIVE_BYTES];
        while self.ring.take(&mut entry)? {
            let page = self.posted.pop_front().expect("the ring has no more answers than pages");
            let is_extra = self.partial.is_extra;
            let result = if is_extra {
                self.add_extra(entry);
                Ok(())
            } else {
                self.add_part(page, Received::decode(entry))
            };
            self.post(page);
            result?;
            if self.partial.is_extra || self.partial.is_more {
                continue;
            }
            let frame = core::mem::take(&mut self.partial);
            if self.is_good(&frame) {
                return Ok(Some(frame.bytes));
            }
        }
        Ok(None)
    }

    fn add_extra(&mut self, entry: [u8; wire::RECEIVE_BYTES]) {
        let (is_more, segments) = wire::extra(entry);
        self.partial.is_extra = is_more;
        self.partial.segments = self.partial.segments.or(segments);
    }

    fn add_part(&mut self, page: u16, part: Received) -> Result<(), BackendViolation> {
        if part.id != page {
            return Err(BackendViolation::UnknownAnswer { id: part.id.into() });
        }
        let frame = &mut self.partial;
        if !core::mem::replace(&mut frame.has_begun, true) {
            frame.flags = part.flags;
            frame.is_extra = part.flags & wire::EXTRA != 0;
        }
        frame.is_more = part.flags & wire::MORE != 0;
        let Ok(bytes) = usize::try_from(part.status) else {
            frame.is_bad = true;
            return Ok(());
        };
        let end = usize::from(part.offset) + bytes;
        if end > PAGE_BYTES {
            return Err(BackendViolation::BeyondPage { end: end as u32 });
        }
        match self.copy.get_mut(frame.bytes..frame.bytes + bytes) {
            Some(target) => {
                self.pages.pages.read(usize::from(page) * PAGE_BYTES + usize::from(part.offset), target);
                frame.bytes += bytes;
            }
            None => frame.is_bad = true,
        }
        Ok(())
    }

    fn is_good(&self, frame: &Partial) -> bool {
        let is_vouched = frame.flags & (wire::RECEIVE_PARTIAL | wire::RECEIVE_VALIDATED) != 0;
        let is_known = matches!(frame.segments, None | Some(wire::SEGMENTS_V4 | wire::SEGMENTS_V6));
        let is_whole = !frame.is_bad && is_known && frame.bytes >= FRAME_BYTES_MIN;
        is_whole && (is_vouched || verify(&self.copy[..frame.bytes]) == Verdict::Good)
    }
}

impl Transmitter {
    /// Room for the longest frame.
    fn has_space(&self) -> bool {
        self.free.len() >= wire::SLOTS_MAX && self.ring.free_entries() as usize >= wire::SLOTS_MAX
    }

    /// Takes the pages of frames that were sent.
    fn reclaim(&mut self) -> Result<bool, BackendViolation> {
        let (mut response, mut any) = ([0; wire::SENT_BYTES], false);
        while self.ring.take(&mut response)? {
            any = true;
            let Some(page) = wire::sent(response) else { continue };
            match self.is_in_flight.get_mut(usize::from(page)) {
                Some(is_in_flight) if *is_in_flight => *is_in_flight = false,
                _ => return Err(BackendViolation::UnknownAnswer { id: page.into() }),
            }
            self.free.push(page);
        }
        Ok(any)
    }

    /// Puts the first `bytes` bytes of `frame` into the ring.
    fn put(&mut self, bytes: usize, segment_bytes: Option<NonZeroU16>) {
        let offers = self.offers;
        let Offload { checksum, segmentation } = match offers.checksums {
            true => Offload::prepare(&mut self.frame[..bytes], segment_bytes),
            false => Offload::default(),
        };
        let partial = if checksum.is_some() { wire::SEND_PARTIAL | wire::SEND_VALIDATED } else { 0 };
        let segments = segmentation.map(|Segmentation { payload_bytes, is_ipv6, .. }| {
            wire::segments(payload_bytes, if is_ipv6 { wire::SEGMENTS_V6 } else { wire::SEGMENTS_V4 })
        });
        let first = if segments.is_some() { wire::EXTRA } else { 0 };
        for start in (0..bytes).step_by(PAGE_BYTES) {
            let end = bytes.min(start + PAGE_BYTES);
            let page = self.free.pop().expect("room was looked for first");
            self.pages.pages.write(usize::from(page) * PAGE_BYTES, &self.frame[start..end]);
            self.is_in_flight[usize::from(page)] = true;
            let is_first = start == 0;
            let more = if end < bytes { wire::MORE } else { 0 };
            let flags = partial | more | if is_first { first } else { 0 };
            // The first part's length is the frame's.
            let length = if is_first { bytes } else { end - start };
            let part = wire::send(self.pages.reference(page), flags, page, length as u16);
            assert_eq!(self.ring.put(&part), Ok(()), "room was looked for first");
            if let (true, Some(segments)) = (is_first, segments) {
                assert_eq!(self.ring.put(&segments), Ok(()), "room was looked for first");
            }
        }
    }
}

impl<E: Events> NetDevice for Net<E> {
    type Transmit<'a>
        = Transmit<'a>
    where
        Self: 'a;

    fn limits(&self) -> NetLimits {
        let offers = self.transmitter.offers;
        NetLimits {
            mtu: offers.mtu,
            completes_checksums: offers.checksums,
            verifies_checksums: true,
            segment_v4_bytes_max: offers.segments_v4.then_some(SEGMENT_BYTES_MAX),
            segment_v6_bytes_max: offers.segments_v6.then_some(SEGMENT_BYTES_MAX),
        }
    }

    fn receive(&mut self) -> Option<(&[u8], Transmit<'_>)> {
        if self.violation.is_some() || !self.transmitter.has_space() {
            return None;
        }
        match self.receiver.next() {
            Ok(bytes) => Some((&self.receiver.copy[..bytes?], Transmit { transmitter: &mut self.transmitter })),
            Err(violation) => {
                self.violation = Some(Violation::Protocol(violation.as_str()));
                None
            }
        }
    }

    fn transmit(&mut self) -> Option<Transmit<'_>> {
        let has_space = self.violation.is_none() && self.transmitter.has_space();
        has_space.then_some(Transmit { transmitter: &mut self.transmitter })
    }
}

impl NetTransmit for Transmit<'_> {
    fn send<R>(self, bytes: usize, segment_bytes: Option<NonZeroU16>, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let Transmitter { frame, offers, .. } = self.transmitter;
        let bytes_max = if offers.parts { usize::from(u16::MAX) } else { PAGE_BYTES };
        if bytes > bytes_max {
            return fill(&mut vec![0; bytes]);
        }
        let result = fill(&mut frame[..bytes]);
        self.transmitter.put(bytes, segment_bytes);
        result
    }
}

impl<E: Events> Driver for Net<E> {
    fn poll(&mut self) -> bool {
        if self.is_closed.get() {
            self.violation = self.violation.or(Some(Violation::Protocol("its back end has closed it")));
        }
        if self.violation.is_some() {
            return false;
        }
        match self.transmitter.reclaim() {
            // A frame waits to be read, or one that was not sent may be now.
            Ok(any) => any | self.receiver.ring.has_response(),
            Err(violation) => {
                self.violation = Some(Violation::Protocol(violation.as_str()));
                false
            }
        }
    }

    fn kick(&mut self) -> bool {
        if self.violation.is_none() {
            self.publish();
        }
        false
    }

    fn arm(&mut self) -> bool {
        if self.violation.is_some() {
            return false;
        }
        // Frames that were sent interest only when there is no room for more.
        let has_sent = !self.transmitter.has_space() && self.transmitter.ring.arm();
        self.receiver.ring.arm() | has_sent | self.is_closed.get()
    }

    fn disarm(&mut self) {}

    fn acknowledge(&mut self) {}

    fn violation(&self) -> Option<Violation> {
        self.violation
    }

    /// The back end would have to be agreed with anew, and it may still write the pages.
    fn restart(&mut self) -> Result<(), SetupError> {
        Err(SetupError::BadConfig("a card of Xen is agreed on once, at the start of the domain"))
    }
}

/// A card whose pages a test has in its hands, with the ring behind them: those for receiving and for sending.
#[cfg(any(test, feature = "fake"))]
pub fn without_bus<E: Events>(offers: NetOffers, grants: &Grants, events: E) -> (Net<E>, [SharedPages; 2]) {
    let frames = crate::page::SmallNumbers::default();
    let net = Net::new(offers, [2, 0, 0, 0, 0, 1], (&frames, grants, Domain(0)), (1, events)).unwrap();
    let pages = [&net.receiver.pages, &net.transmitter.pages].map(|pages| pages.pages.clone());
    (net, pages)
}
