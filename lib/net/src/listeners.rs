//! Open ports. A socket is made when a handshake is done, so an idle listener costs no buffers.

use crate::handshakes::Waiting;
use crate::state::State;
use crate::table::{ConnectionId, Ends, Role};
use crate::trace::ACCEPT;
use alloc::collections::VecDeque;
use core::task::{Poll, Waker};
use core::time::Duration;
use glass_api::{Instant, NetError};
use glass_lib_tcp::{HalfOpen, Header, Reply, Segment, State as TcpState};
use glass_lib_trace::BlockKind;
use smoltcp::wire::{EthernetAddress, IpEndpoint};

/// How long after the start a connection waits for the first listener instead of being reset: clients that are early need not try
/// again. Less than what a SYN is kept for (`handshakes.rs`).
const START_TIME: Duration = Duration::from_millis(400);

pub(crate) struct ListenerState {
    /// Names the listener; ports can be reused.
    id: u64,
    pub(crate) port: u16,
    /// Connections that wait to be accepted, in the order in which they opened.
    pending: VecDeque<ConnectionId>,
    waker: Option<Waker>,
}

/// What to do with a SYN.
pub(crate) enum Admission {
    /// No listener; the connection is refused.
    Pass,
    /// Drop it; it may be kept for a moment. The peer will retransmit it.
    Refuse,
    /// Send this header.
    Answer(Header),
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
            let connection = self.table.get(id);
            // `settle_pending` removes those that have ended.
            if connection.tcp.state() != TcpState::Closed {
                listener.pending.remove(index);
                connection.role = Role::Owned;
                self.counters.accepted += 1;
                return Poll::Ready((id, connection.ends.remote));
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
    pub(crate) fn can_admit_waiting(&self) -> bool {
        if self.starts_until().is_some() {
            return false;
        }
        let Some(ends) = self.waiting.first(self.now) else { return false };
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

    /// Starts the handshake of a SYN.
    pub(crate) fn admit(&mut self, ends: Ends, from: Option<EthernetAddress>, segment: &Segment) -> Admission {
        let likely = if self.handshakes.contains(ends) { 0 } else { self.handshakes.likely(self.now) };
        match self.listener_for(ends.local.port, likely) {
            None if self.starts_until().is_some() => return Admission::Refuse,
            None => return Admission::Pass,
            Some(Err(refusal)) => return refusal,
            Some(Ok(_)) => {}
        }
        if self.handshakes.reply(ends, segment) == Some(Reply::Repeats)
            && let Some(header) = self.handshakes.repeat(self.now, ends)
        {
            return Admission::Answer(header);
        }
        let initial = self.numbers.first_sequence_number(self.now, ends);
        let half_open = HalfOpen::new(self.now, &segment.header, initial, self.settings(ends));
        let (header, has_replaced) = self.handshakes.start(self.now, ends, from, half_open);
        self.counters.replaced_opening += u64::from(has_replaced);
        Admission::Answer(header)
    }

    /// Makes the connection of a handshake that is done; `None` if there is no room for it now.
    pub(crate) fn open(&mut self, ends: Ends) -> Option<ConnectionId> {
        let Some(Ok(listener_id)) = self.listener_for(ends.local.port, 0) else { return None };
        let tcp = self.handshakes.remove(ends)?.half_open.open(self.now);
        let id = self.table.insert(tcp, ends, Role::Pending { listener_id });
        if let Some(listener) = self.listeners.iter_mut().find(|listener| listener.id == listener_id) {
            listener.pending.push_back(id);
            listener.waker.take().into_iter().for_each(Waker::wake);
        }
        Some(id)
    }

    /// Keeps a segment for which there is no room for a moment.
    pub(crate) fn keep_waiting(&mut self, ends: Ends, from: Option<EthernetAddress>, header: Header) {
        self.waiting.keep(self.now, Waiting { ends, from, header });
    }

    /// Serves a connection that was not accepted yet; returns whether it is gone.
    pub(crate) fn settle_pending(&mut self, id: ConnectionId, listener_id: u64) -> bool {
        if self.tcp(id).state() != TcpState::Closed {
            return false;
        }
        self.counters.abandoned_opening += 1;
        if let Some(listener) = self.listeners.iter_mut().find(|listener| listener.id == listener_id) {
            listener.pending.retain(|pending| *pending != id);
        }
        self.table.remove(id);
        true
    }
}
