//! Vsock between machines: packets keep their order and none is lost, as the specification promises; their latency varies.

use crate::chance::Chance;
use crate::trace::Trace;
use core::ops::Range;
use core::time::Duration;
use glass_api::{Buf, Instant};
use glass_lib_vsock::{Packet, Sockets};
use std::collections::BTreeMap;

const LATENCY: Range<Duration> = Duration::from_micros(5)..Duration::from_micros(50);
/// The context identifier of the first machine; those of the others follow.
const FIRST_CID: usize = 3;

/// The context identifier of machine number `index`.
pub(crate) fn cid(index: usize) -> u32 {
    (FIRST_CID + index) as u32
}

/// What carries the packets.
pub(crate) struct Carrier {
    chance: Chance,
    /// By arrival and then age, with the number of the receiver.
    in_flight: BTreeMap<(Instant, u64), (usize, Packet)>,
    packets_made: u64,
    /// When the last packet of a sender to a receiver arrives.
    last: BTreeMap<(usize, usize), Instant>,
    trace: Trace,
}

impl Carrier {
    pub(crate) fn new(chance: Chance, trace: Trace) -> Carrier {
        Carrier { chance, in_flight: BTreeMap::new(), packets_made: 0, last: BTreeMap::new(), trace }
    }

    pub(crate) fn next_arrival(&self) -> Option<Instant> {
        self.in_flight.keys().next().map(|(at, _)| *at)
    }

    /// Takes what machine number `from` has to send. Packets to no machine are lost.
    pub(crate) fn collect(&mut self, from: usize, sockets: &Sockets, now: Instant) {
        sockets.poll();
        while let Some(packet) = sockets.next_packet() {
            let data = packet.data.as_deref().unwrap_or(&[]);
            self.trace.add(now, "vsock", &[from as u64, packet.header.destination_cid, data.len() as u64], data);
            let Some(to) =
                usize::try_from(packet.header.destination_cid).ok().and_then(|cid| cid.checked_sub(FIRST_CID))
            else {
                continue;
            };
            let last = self.last.entry((from, to)).or_default();
            *last = (now + self.chance.duration(&LATENCY)).max(*last);
            self.packets_made += 1;
            self.in_flight.insert((*last, self.packets_made), (to, packet));
        }
    }

    /// The next packet that has arrived, and the number of its receiver.
    pub(crate) fn deliver(&mut self, now: Instant) -> Option<(usize, Packet)> {
        let entry = self.in_flight.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(entry.remove())
    }
}

/// Hands a packet over, in a buffer as a device would have filled it.
pub(crate) fn receive(sockets: &Sockets, packet: Packet) {
    let data = packet.data.as_deref().unwrap_or(&[]);
    let buffer = Buf::copy_of(data).expect("a test has memory");
    let bytes = data.len();
    sockets.receive(packet.header, buffer, bytes);
}
