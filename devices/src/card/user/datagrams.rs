//! The datagrams of a user network: a socket of the host for each pair of ends of the guest's, as long as it is in use.

use super::host::{self, Host, Moved, Subject};
use super::packet::Ends;
use glass_api::Instant;
use rustix::net::SocketType;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Sockets at a time; a further one takes the place of the one that was not used for the longest time.
pub(super) const SOCKETS_MAX: usize = 256;
/// A socket that is not used for so long is closed (RFC 4787, section 4.3, has two minutes at least).
const IDLE_MAX: Duration = Duration::from_secs(120);
/// The longest datagram: what an Ethernet frame has room for, without the headers of IP and UDP.
pub(super) const DATAGRAM_BYTES_MAX: usize = 1472;

struct Flow {
    ends: Ends,
    socket: OwnedFd,
    used_at: Instant,
}

/// All sockets for datagrams.
pub(super) struct Datagrams {
    flows: Vec<Option<Flow>>,
    by_ends: HashMap<Ends, usize>,
    /// Those that have received something.
    ready: VecDeque<usize>,
    buffer: Vec<u8>,
}

impl Datagrams {
    pub fn new() -> Datagrams {
        let buffer = vec![0; DATAGRAM_BYTES_MAX];
        Datagrams { flows: Vec::new(), by_ends: HashMap::new(), ready: VecDeque::new(), buffer }
    }

    /// Sockets in use.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.by_ends.len()
    }

    /// A place for one more socket: a free one, or that of the one that was not used for the longest time.
    fn place(&mut self) -> usize {
        if let Some(free) = self.flows.iter().position(Option::is_none) {
            return free;
        }
        if self.flows.len() < SOCKETS_MAX {
            self.flows.push(None);
            return self.flows.len() - 1;
        }
        let used_at = |flow: &Option<Flow>| flow.as_ref().map(|flow| flow.used_at);
        let oldest = (0..self.flows.len()).min_by_key(|index| used_at(&self.flows[*index])).unwrap_or(0);
        self.remove(oldest);
        oldest
    }

    fn remove(&mut self, index: usize) {
        if let Some(flow) = self.flows[index].take() {
            self.by_ends.remove(&flow.ends);
        }
    }

    /// Closes what is not in use any more.
    pub fn expire(&mut self, now: Instant) {
        for index in 0..self.flows.len() {
            if self.flows[index].as_ref().is_some_and(|flow| now.since(flow.used_at) > IDLE_MAX) {
                self.remove(index);
            }
        }
    }

    /// Sends a datagram of the guest. As on any network it is lost if that fails.
    pub fn send(&mut self, now: Instant, host: &Host, ends: Ends, target: SocketAddrV4, data: &[u8]) {
        let index = match self.by_ends.get(&ends) {
            Some(index) => *index,
            None => {
                self.expire(now);
                let index = self.place();
                let Ok(socket) = host::start_connecting(SocketType::DGRAM, target) else { return };
                if host.watch(&socket, Subject::Datagrams(index)).is_err() {
                    return;
                }
                self.flows[index] = Some(Flow { ends, socket, used_at: now });
                self.by_ends.insert(ends, index);
                index
            }
        };
        if let Some(flow) = &mut self.flows[index] {
            flow.used_at = now;
            let _ = host::send_bytes(&flow.socket, data);
        }
    }

    /// A socket has received something.
    pub fn became_readable(&mut self, index: usize) {
        if !self.ready.contains(&index) {
            self.ready.push_back(index);
        }
    }

    /// The next datagram for the guest. What is too long for a frame is lost.
    pub fn poll(&mut self, now: Instant) -> Option<(Ends, &[u8])> {
        while let Some(index) = self.ready.front().copied() {
            let Some(Some(flow)) = self.flows.get_mut(index) else {
                self.ready.pop_front();
                continue;
            };
            match host::receive_datagram(&flow.socket, &mut self.buffer) {
                Moved::Bytes(count) if count <= DATAGRAM_BYTES_MAX => {
                    flow.used_at = now;
                    return Some((flow.ends, &self.buffer[..count]));
                }
                Moved::Bytes(_) => {}
                // An error is that there is no receiver. The socket can be used again.
                Moved::Blocked | Moved::End | Moved::Failed => _ = self.ready.pop_front(),
            }
        }
        None
    }
}
