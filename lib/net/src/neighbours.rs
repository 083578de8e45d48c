//! The hardware addresses of neighbours: a table, without I/O.
//!
//! The states are those of neighbour unreachability detection (RFC 4861, section 7.3), for ARP too: an address is resolved by up to three
//! requests; one that was not confirmed for a while is still used, and confirmed by requests to it alone, then to all; one that nothing
//! confirms is forgotten. What confirms an address is an answer, or a peer that acknowledges what was sent there.
//!
//! A neighbour that requests our address is remembered, because it is about to send us something (RFC 826). Nothing else that arrives
//! without a request adds an entry.
//!
//! Everything is bounded. A flood of requests to us only replaces entries that are not in use, a flood of addresses to resolve only
//! delays other addresses that are being resolved, and each address is requested once a second at most, whatever the others do.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::num::NonZeroU16;
use core::time::Duration;
use glass_api::Instant;
use smoltcp::wire::EthernetAddress;

/// Neighbours that are remembered; Linux has the same limit (`gc_thresh3`).
const NEIGHBOURS_MAX: usize = 1024;
/// Of these, how many may be in the process of being resolved.
const RESOLVING_MAX: usize = 256;
/// For this time, one that is being resolved does not end for another one.
const ANSWER_TIME: Duration = Duration::from_millis(100);
/// Frames that wait for one address to be resolved, and bytes of all frames that wait; RFC 1122, section 2.3.2.2, has one frame.
const HELD_MAX: usize = 8;
const HELD_BYTES_MAX: usize = 256 << 10;
/// RFC 4861, section 10: `REACHABLE_TIME`, `DELAY_FIRST_PROBE_TIME`, `RETRANS_TIMER`, `MAX_UNICAST_SOLICIT`, `MAX_MULTICAST_SOLICIT`.
const REACHABLE_TIME: Duration = Duration::from_secs(30);
const DELAY_TIME: Duration = Duration::from_secs(5);
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
const UNICAST_REQUESTS: u8 = 3;
const REQUESTS_MAX: u8 = 3;
/// One that was used within this time is not forgotten for another one that wants our attention.
const IN_USE_TIME: Duration = Duration::from_secs(60);

/// A frame that waits for a neighbour's address: a complete one, except for the receiver's address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) frame: Vec<u8>,
    pub(crate) segment_bytes: Option<NonZeroU16>,
}

/// A request to send: for the hardware address of `address`, to all or to the host that had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) address: IpAddr,
    pub(crate) to: Option<EthernetAddress>,
}

struct Neighbour {
    address: IpAddr,
    state: State,
    /// When it was added, and used last.
    since: Instant,
    used_at: Option<Instant>,
    held: Vec<Held>,
}

#[derive(Clone, Copy)]
enum State {
    /// So many requests were sent; when the next one is due, or the end.
    Resolving { requests: u8, next_at: Instant },
    /// It is confirmed until then. Once it is used later, requests are sent: so many were.
    Known { mac: EthernetAddress, confirmed_until: Instant, requests: u8, next_at: Option<Instant> },
}

/// The table.
#[derive(Default)]
pub(crate) struct Neighbours {
    /// By address.
    entries: Vec<Neighbour>,
    /// The place of the one that was looked up last.
    last: usize,
    resolving: usize,
    held_bytes: usize,
    /// Not after the first time at which a request is due.
    next_at: Option<Instant>,
    requests: VecDeque<Request>,
    /// Frames whose receiver's address was found.
    released: VecDeque<(EthernetAddress, Held)>,
}

impl Neighbours {
    /// The hardware address of a neighbour to which something is to be sent. Without one, it is being resolved from now on.
    pub(crate) fn lookup(&mut self, now: Instant, address: IpAddr) -> Option<EthernetAddress> {
        let Some(at) = self.place(address) else {
            self.resolve(now, address);
            return None;
        };
        self.last = at;
        let entry = &mut self.entries[at];
        entry.used_at = Some(now);
        let State::Known { mac, confirmed_until, next_at, .. } = &mut entry.state else { return None };
        let mac = *mac;
        if *confirmed_until <= now && next_at.is_none() {
            *next_at = Some(now + DELAY_TIME);
            self.schedule(now + DELAY_TIME);
        }
        Some(mac)
    }

    /// Whether the address is there, resolved or not.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.place(address).is_some()
    }

    /// Keeps a frame for a neighbour that is being resolved; the oldest one makes room for it.
    pub(crate) fn hold(&mut self, address: IpAddr, held: Held) {
        let Some(at) = self.place(address) else { return };
        let entry = &mut self.entries[at];
        if !matches!(entry.state, State::Resolving { .. }) || self.held_bytes + held.frame.len() > HELD_BYTES_MAX {
            return;
        }
        if entry.held.len() == HELD_MAX {
            self.held_bytes -= entry.held.remove(0).frame.len();
        }
        self.held_bytes += held.frame.len();
        entry.held.push(held);
    }

    /// A neighbour has requested our address, and given its own: remember it.
    pub(crate) fn learn(&mut self, now: Instant, address: IpAddr, mac: EthernetAddress) {
        match self.place(address) {
            Some(at) => self.set(now, at, mac, false),
            None => self.add(now, address, mac, now),
        }
    }

    /// A neighbour has reported its address without a request of ours: it counts if we have one of it.
    pub(crate) fn update(&mut self, now: Instant, address: IpAddr, mac: EthernetAddress) {
        if let Some(at) = self.place(address) {
            self.set(now, at, mac, false);
        }
    }

    /// A neighbour has answered our request.
    pub(crate) fn answer(&mut self, now: Instant, address: IpAddr, mac: EthernetAddress) {
        if let Some(at) = self.place(address) {
            self.set(now, at, mac, true);
        }
    }

    /// Whether the address is there, with another hardware address than `mac`.
    pub(crate) fn differs(&self, address: IpAddr, mac: EthernetAddress) -> bool {
        let state = self.place(address).map(|at| self.entries[at].state);
        matches!(state, Some(State::Known { mac: known, .. }) if known != mac)
    }

    /// A peer behind this neighbour has acknowledged what we have sent, in a frame from `mac`. Another hardware address than the one that
    /// we have is no proof, but a reason to request it.
    pub(crate) fn confirm(&mut self, now: Instant, address: IpAddr, mac: EthernetAddress) {
        let Some(at) = self.place(address) else { return self.add(now, address, mac, now + REACHABLE_TIME) };
        match &mut self.entries[at].state {
            State::Known { mac: known, confirmed_until, requests, next_at } if *known == mac => {
                (*confirmed_until, *requests, *next_at) = (now + REACHABLE_TIME, 0, None);
            }
            // Not more than once in this time, if frames from it take another way.
            State::Known { confirmed_until, next_at, .. } if next_at.is_none() => {
                let at =
                    now.max(Instant(confirmed_until.0.saturating_sub(REACHABLE_TIME.as_nanos() as u64)) + DELAY_TIME);
                *next_at = Some(at);
                self.schedule(at);
            }
            State::Known { .. } => {}
            State::Resolving { .. } => self.set(now, at, mac, true),
        }
    }

    /// Forgets all of them, because our addresses have changed.
    pub(crate) fn clear(&mut self) {
        *self = Neighbours::default();
    }

    /// Makes the requests that are due.
    pub(crate) fn advance(&mut self, now: Instant) {
        if self.next_at.is_none_or(|at| now < at) {
            return;
        }
        self.next_at = None;
        for at in (0..self.entries.len()).rev() {
            self.request(now, at);
        }
    }

    /// When [`Neighbours::advance`] may have something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.next_at
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.requests.is_empty() || !self.released.is_empty()
    }

    pub(crate) fn next_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// A frame that waited, and its receiver.
    pub(crate) fn next_released(&mut self) -> Option<(EthernetAddress, Held)> {
        self.released.pop_front()
    }

    fn place(&self, address: IpAddr) -> Option<usize> {
        if self.entries.get(self.last).is_some_and(|entry| entry.address == address) {
            return Some(self.last);
        }
        self.entries.binary_search_by_key(&address, |entry| entry.address).ok()
    }

    fn insert(&mut self, entry: Neighbour) {
        if let Err(at) = self.entries.binary_search_by_key(&entry.address, |entry| entry.address) {
            self.entries.insert(at, entry);
        }
    }

    fn remove(&mut self, at: usize) {
        let entry = self.entries.remove(at);
        self.resolving -= usize::from(matches!(entry.state, State::Resolving { .. }));
        self.held_bytes -= entry.held.iter().map(|held| held.frame.len()).sum::<usize>();
    }

    fn schedule(&mut self, at: Instant) {
        self.next_at = Some(self.next_at.map_or(at, |next| next.min(at)));
    }

    /// Adds a neighbour that reported itself, if there is room.
    fn add(&mut self, now: Instant, address: IpAddr, mac: EthernetAddress, confirmed_until: Instant) {
        let is_idle = |entry: &Neighbour| entry.used_at.is_none_or(|at| at + IN_USE_TIME <= now);
        if self.evict(is_idle) {
            let state = State::Known { mac, confirmed_until, requests: 0, next_at: None };
            self.insert(Neighbour { address, state, since: now, used_at: None, held: Vec::new() });
        }
    }

    /// Starts to resolve an address, if there is room.
    fn resolve(&mut self, now: Instant, address: IpAddr) {
        if self.resolving == RESOLVING_MAX {
            let resolving = self.entries.iter().enumerate();
            let resolving = resolving.filter(|(_, entry)| matches!(entry.state, State::Resolving { .. }));
            let oldest = resolving.min_by_key(|(_, entry)| entry.since).map(|(at, entry)| (at, entry.since));
            match oldest {
                Some((at, since)) if since + ANSWER_TIME <= now => self.remove(at),
                _ => return,
            }
        }
        if !self.evict(|_| true) {
            return;
        }
        let next_at = now + REQUEST_INTERVAL;
        let state = State::Resolving { requests: 1, next_at };
        self.resolving += 1;
        self.insert(Neighbour { address, state, since: now, used_at: Some(now), held: Vec::new() });
        self.requests.push_back(Request { address, to: None });
        self.schedule(next_at);
    }

    /// Makes room for one more, in place of the one that was not used for longest among those that `may_end`.
    fn evict(&mut self, may_end: impl Fn(&Neighbour) -> bool) -> bool {
        if self.entries.len() < NEIGHBOURS_MAX {
            return true;
        }
        let known = self.entries.iter().enumerate();
        let known = known.filter(|(_, entry)| matches!(entry.state, State::Known { .. }) && may_end(entry));
        let idlest = known.min_by_key(|(_, entry)| (entry.used_at, entry.since)).map(|(at, _)| at);
        idlest.map(|at| self.remove(at)).is_some()
    }

    /// A neighbour's hardware address is this one now. It is confirmed if it answered, and as long as it stays the same.
    fn set(&mut self, now: Instant, at: usize, mac: EthernetAddress, is_answer: bool) {
        let entry = &mut self.entries[at];
        let confirmed_until = match entry.state {
            _ if is_answer => now + REACHABLE_TIME,
            State::Known { mac: known, .. } if known == mac => return,
            _ => now,
        };
        self.resolving -= usize::from(matches!(entry.state, State::Resolving { .. }));
        entry.state = State::Known { mac, confirmed_until, requests: 0, next_at: None };
        for held in entry.held.drain(..) {
            self.held_bytes -= held.frame.len();
            self.released.push_back((mac, held));
        }
    }

    /// Sends the request for one address if it is due, or forgets it after the last one.
    fn request(&mut self, now: Instant, at: usize) {
        let entry = &mut self.entries[at];
        let (requests, next_at, requests_max, to) = match &mut entry.state {
            State::Resolving { requests, next_at } => (requests, next_at, REQUESTS_MAX, None),
            State::Known { mac, requests, next_at: Some(next_at), .. } => {
                let to = Some(*mac).filter(|_| *requests < UNICAST_REQUESTS);
                (requests, next_at, UNICAST_REQUESTS + REQUESTS_MAX, to)
            }
            State::Known { .. } => return,
        };
        if now < *next_at {
            let at = *next_at;
            return self.schedule(at);
        }
        if *requests == requests_max {
            return self.remove(at);
        }
        *requests += 1;
        *next_at = now + REQUEST_INTERVAL;
        self.requests.push_back(Request { address: entry.address, to });
        self.schedule(now + REQUEST_INTERVAL);
    }
}

#[cfg(test)]
#[path = "neighbours_tests.rs"]
mod tests;
