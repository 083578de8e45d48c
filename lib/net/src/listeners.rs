//! Open ports. A socket is made when a handshake is done, so an idle listener costs no buffers.

use crate::congestion::Window;
use crate::state::State;
use crate::table::{ConnectionId, Ends, Role};
use crate::trace::ACCEPT;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::task::{Poll, Waker};
use core::time::Duration;
use glass_api::{Instant, NetError};
use glass_lib_trace::BlockKind;
use smoltcp::phy::DeviceCapabilities;
use smoltcp::socket::tcp;
use smoltcp::wire::IpEndpoint;

/// How long after the start a connection waits for the first listener instead of being reset: clients that are early need not try
/// again. Less than what a SYN is kept for (`refused.rs`).
const START_TIME: Duration = Duration::from_millis(400);

pub(crate) struct ListenerState {
    /// Names the listener; ports can be reused.
    id: u64,
    pub(crate) port: u16,
    /// Connections that are half open or wait to be accepted, in the order of their SYNs.
    pending: VecDeque<ConnectionId>,
    waker: Option<Waker>,
}

/// What to do with a frame that opens a connection.
pub(crate) enum Admission {
    /// No listener; smoltcp refuses the connection.
    Pass,
    /// Drop the frame, which may be kept for a moment; the peer will retransmit it.
    Refuse,
    /// It is no SYN that is accepted: drop it.
    Ignore,
    /// Send this frame.
    Answer(Vec<u8>),
}

impl State {
    /// Opens a port and returns the listener's id and the port.
    pub(crate) fn listen(&mut self, port: u16) -> Result<(u64, u16), NetError> {
        let port = match port {
            0 => self.free_port().ok_or(NetError::TooMany)?,
            port if self.listeners.iter().any(|listener| listener.port == port) => {
                return Err(NetError::PortInUse(port.into()));
            }
            port => port,
        };
        self.listeners_made += 1;
        let id = self.listeners_made;
        self.listeners.push(ListenerState { id, port, pending: VecDeque::new(), waker: None });
        Ok((id, port))
    }

    /// Closes the port and resets what was not accepted.
    pub(crate) fn close_listener(&mut self, id: u64) {
        if let Some(index) = self.listeners.iter().position(|listener| listener.id == id) {
            let listener = self.listeners.remove(index);
            self.handshakes.remove_port(listener.port);
            for connection in listener.pending {
                self.release(connection, false);
            }
        }
    }

    /// The next connection that is open.
    pub(crate) fn poll_accept(&mut self, listener_id: u64, waker: &Waker) -> Poll<(ConnectionId, IpEndpoint)> {
        let Some(listener) = self.listeners.iter_mut().find(|listener| listener.id == listener_id) else {
            return Poll::Pending;
        };
        for (index, &id) in listener.pending.iter().enumerate() {
            let socket = self.table.get(id).socket();
            match (socket.state(), socket.remote_endpoint()) {
                // `settle_pending` removes these.
                (tcp::State::Listen | tcp::State::Closed, _) | (_, None) => {}
                (tcp::State::SynReceived, _) => socket.register_recv_waker(waker),
                (_, Some(remote)) => {
                    listener.pending.remove(index);
                    self.table.get(id).role = Role::Owned;
                    self.established(id);
                    self.counters.accepted += 1;
                    return Poll::Ready((id, remote));
                }
            }
        }
        listener.waker = Some(waker.clone());
        glass_lib_trace::block(BlockKind::Accept, &ACCEPT, listener.port.into());
        Poll::Pending
    }

    /// Until when a service that has never listened may be about to; `None` once it has listened or that time has passed.
    pub(crate) fn starts_until(&self) -> Option<Instant> {
        let until = self.created + START_TIME;
        (self.listeners_made == 0 && self.now < until).then_some(until)
    }

    /// Whether [`State::admit`] would not refuse a SYN that waits.
    pub(crate) fn can_admit_refused(&self) -> bool {
        if self.starts_until().is_some() {
            return false;
        }
        let Some(ends) = self.refused.first(self.now) else { return false };
        let listener = self.listeners.iter().find(|listener| listener.port == ends.local.port);
        let likely = if self.handshakes.contains(ends) { 0 } else { self.handshakes.likely(self.now) };
        let has_space = self.table.len() + likely < self.config.connections_max;
        has_space && listener.is_none_or(|listener| listener.pending.len() < self.config.backlog_max)
    }

    /// Whether a listener has room for one more connection besides `likely` ones, and its id. Counts one that has not.
    fn listener_for(&mut self, port: u16, likely: usize) -> Option<Result<u64, Admission>> {
        let listener = self.listeners.iter().find(|listener| listener.port == port)?;
        let listener_id = listener.id;
        if listener.pending.len() >= self.config.backlog_max {
            self.counters.refused_backlog += 1;
            return Some(Err(Admission::Refuse));
        }
        if !self.make_space(likely) {
            self.counters.refused_limit += 1;
            return Some(Err(Admission::Refuse));
        }
        Some(Ok(listener_id))
    }

    /// Checks a SYN before smoltcp does, and starts its handshake.
    pub(crate) fn admit(&mut self, ends: Ends, syn: &[u8], capabilities: &DeviceCapabilities) -> Admission {
        let is_repeated = self.handshakes.contains(ends);
        match self.listener_for(ends.local.port, if is_repeated { 0 } else { self.handshakes.likely(self.now) }) {
            None if self.starts_until().is_some() => return Admission::Refuse,
            None => return Admission::Pass,
            Some(Err(refusal)) => return refusal,
            Some(Ok(_)) => {}
        }
        let (start, sizes) = (self.numbers.first_sequence_number(self.now, ends), self.sizes());
        match self.handshakes.start(self.now, ends, syn, start, sizes, capabilities) {
            None => Admission::Ignore,
            Some((answer, has_replaced)) => {
                self.counters.replaced_opening += u64::from(has_replaced);
                Admission::Answer(answer)
            }
        }
    }

    /// Makes the connection of a handshake that is done; `None` if there is no room for it now.
    pub(crate) fn open(&mut self, ends: Ends, capabilities: &DeviceCapabilities) -> Option<(ConnectionId, Vec<u8>)> {
        let Some(Ok(listener_id)) = self.listener_for(ends.local.port, 0) else { return None };
        let sizes = self.handshakes.sizes(ends)?;
        let mut socket = self.make_socket(sizes).ok()?;
        socket.listen(ends.local.port).ok()?;
        let (socket, syn) = self.handshakes.complete(self.now, ends, socket, capabilities)?;
        let window = Window::new(self.config.congestion);
        let id = self.table.insert(socket, sizes.2, window, ends, Role::Pending { listener_id });
        self.admitted(id);
        Some((id, syn))
    }

    /// Lets the listener wait for a new connection.
    fn admitted(&mut self, id: ConnectionId) {
        let Role::Pending { listener_id } = self.table.get(id).role else { return };
        if let Some(listener) = self.listeners.iter_mut().find(|listener| listener.id == listener_id) {
            listener.pending.push_back(id);
            if let Some(waker) = &listener.waker {
                self.table.get(id).socket().register_recv_waker(waker);
            }
        }
    }

    /// Serves a connection that was not accepted yet; returns whether it is gone.
    pub(crate) fn settle_pending(&mut self, id: ConnectionId, listener_id: u64) -> bool {
        match self.socket(id).state() {
            tcp::State::SynReceived => return false,
            // After a reset while half open, smoltcp listens again.
            tcp::State::Listen | tcp::State::Closed => {}
            _ => {
                let timeout = crate::state::to_smoltcp_duration(self.config.peer_timeout);
                self.socket(id).set_timeout(Some(timeout));
                return false;
            }
        }
        self.counters.abandoned_opening += 1;
        if let Some(listener) = self.listeners.iter_mut().find(|listener| listener.id == listener_id) {
            listener.pending.retain(|pending| *pending != id);
        }
        // Its reset may have no destination: a flood comes from addresses without a host.
        self.release(id, false);
        true
    }
}
