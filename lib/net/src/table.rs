//! The connections.
//!
//! One costs something only when it has work: a frame finds it by its two ends, calls of the
//! application put it in a queue, and its deadline is in an ordered set.

use crate::config::Spare;
use crate::trace::{Flow, address_number};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::task::Waker;
use glass_api::Instant;
use glass_lib_tcp::{Connection as Tcp, State as TcpState};
use glass_lib_trace::Presence;
use smoltcp::wire::IpEndpoint;

/// Names a connection as long as it exists.
pub(crate) type ConnectionId = usize;

/// The two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ends {
    pub(crate) local: IpEndpoint,
    pub(crate) remote: IpEndpoint,
}

/// The owner of a connection.
pub(crate) enum Role {
    /// A stream.
    Owned,
    /// A listener, until it is accepted.
    Pending {
        /// Which one.
        listener_id: u64,
    },
    /// None any more.
    Lingering(Lingering),
}

/// A connection without a stream.
pub(crate) struct Lingering {
    pub(crate) since: Instant,
    /// When data went out last.
    pub(crate) progress_at: Instant,
    pub(crate) unsent_bytes: usize,
    pub(crate) discarded_bytes: usize,
}

pub(crate) struct Connection {
    pub(crate) tcp: Tcp,
    pub(crate) ends: Ends,
    /// How much of its buffers is spare memory.
    spare: Spare,
    pub(crate) role: Role,
    /// Who waits for received data, or the end; and who for space, and how much of it, or for the connection to open.
    pub(crate) reader: Option<Waker>,
    pub(crate) writer: Option<(Waker, usize)>,
    /// Its state for the trace.
    pub(crate) flow: Flow,
    queued: bool,
    deadline: Option<Instant>,
}

impl Connection {
    /// Wakes who waits for what is there now.
    pub(crate) fn wake(&mut self) {
        let is_over = self.tcp.state() == TcpState::Closed;
        if self.reader.is_some() && (is_over || self.tcp.readable() > 0 || self.tcp.has_peer_closed()) {
            self.reader.take().into_iter().for_each(Waker::wake);
        }
        if let Some((_, wanted)) = self.writer {
            let is_opening = matches!(self.tcp.state(), TcpState::SynSent | TcpState::SynReceived);
            if !is_opening && (!self.tcp.is_writable() || self.tcp.space() >= wanted) {
                self.writer.take().into_iter().for_each(|(waker, _)| waker.wake());
            }
        }
    }

    /// Records in the trace that it opens, closes or was open before.
    fn trace(&self, presence: Presence) {
        let Ends { local, remote } = self.ends;
        glass_lib_trace::connection(self.flow.number, presence, address_number(remote.addr), local.port, remote.port);
    }
}

#[derive(Default)]
pub(crate) struct Table {
    slots: Vec<Option<Connection>>,
    free: Vec<ConnectionId>,
    /// Those whose ends no other connection may use.
    by_ends: BTreeMap<Ends, ConnectionId>,
    /// Connections that may have something to send or to close. May name some that are gone.
    queue: VecDeque<ConnectionId>,
    deadlines: BTreeSet<(Instant, ConnectionId)>,
    /// Connections that there have been.
    made: u32,
    /// Spare memory that the connections use.
    spare: Spare,
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Spare memory that the connections use.
    pub(crate) fn spare(&self) -> Spare {
        self.spare
    }

    /// Adds a connection, whose buffers use no spare memory; no other one may have the same ends.
    pub(crate) fn insert(&mut self, tcp: Tcp, ends: Ends, role: Role) -> ConnectionId {
        self.made = self.made.wrapping_add(1);
        let flow = Flow::new(self.made);
        let spare = Spare::default();
        let connection =
            Connection { tcp, ends, spare, role, reader: None, writer: None, flow, queued: false, deadline: None };
        connection.trace(Presence::Begins);
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[id] = Some(connection);
        let before = self.by_ends.insert(ends, id);
        assert!(before.is_none(), "two connections between {} and {}", ends.local, ends.remote);
        self.touch(id);
        id
    }

    /// Removes a connection.
    pub(crate) fn remove(&mut self, id: ConnectionId) {
        let Some(connection) = self.slots[id].take() else { return };
        connection.trace(Presence::Ends);
        self.spare -= connection.spare;
        if self.find(connection.ends) == Some(id) {
            self.by_ends.remove(&connection.ends);
        }
        if let Some(deadline) = connection.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        self.free.push(id);
    }

    /// Adds spare memory to the buffers of a connection.
    pub(crate) fn add_spare(&mut self, id: ConnectionId, spare: Spare) {
        if let Some(connection) = &mut self.slots[id] {
            connection.spare += spare;
            self.spare += spare;
        }
    }

    /// Notes that a connection has no buffers any more: it is in TIME-WAIT.
    pub(crate) fn return_spare(&mut self, id: ConnectionId) {
        if let Some(connection) = &mut self.slots[id] {
            self.spare -= core::mem::take(&mut connection.spare);
        }
    }

    /// Lets another connection have the ends of this one, which receives nothing any more.
    pub(crate) fn free_ends(&mut self, id: ConnectionId) {
        let ends = self.get(id).ends;
        if self.find(ends) == Some(id) {
            self.by_ends.remove(&ends);
        }
    }

    /// # Panics
    /// When there is no such connection: the owner of an id uses it only while the connection exists.
    pub(crate) fn get(&mut self, id: ConnectionId) -> &mut Connection {
        self.slots[id].as_mut().expect("the connection exists")
    }

    pub(crate) fn find(&self, ends: Ends) -> Option<ConnectionId> {
        self.by_ends.get(&ends).copied()
    }

    /// Records every connection in a trace that has just started.
    pub(crate) fn announce(&mut self) {
        for (_, connection) in self.iter_mut() {
            connection.flow.begin();
            connection.trace(Presence::WasThere);
        }
    }

    /// All of them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (ConnectionId, &mut Connection)> {
        let slots = self.slots.iter_mut().enumerate();
        slots.filter_map(|(id, slot)| slot.as_mut().map(|connection| (id, connection)))
    }

    pub(crate) fn uses_port(&self, port: u16) -> bool {
        self.by_ends.keys().any(|ends| ends.local.port == port)
    }

    /// Queues the connection for the next poll.
    pub(crate) fn touch(&mut self, id: ConnectionId) {
        if let Some(connection) = &mut self.slots[id]
            && !connection.queued
        {
            connection.queued = true;
            self.queue.push_back(id);
        }
    }

    pub(crate) fn touch_all(&mut self) {
        for id in 0..self.slots.len() {
            self.touch(id);
        }
    }

    /// Queues those whose deadline has passed.
    pub(crate) fn touch_due(&mut self, now: Instant) {
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            self.get(id).deadline = None;
            self.touch(id);
        }
    }

    pub(crate) fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// The next connection to serve.
    pub(crate) fn pop(&mut self) -> Option<ConnectionId> {
        while let Some(id) = self.queue.pop_front() {
            // A slot may be empty, or its next connection may not be queued.
            if let Some(connection) = &mut self.slots[id]
                && connection.queued
            {
                connection.queued = false;
                return Some(id);
            }
        }
        None
    }

    pub(crate) fn set_deadline(&mut self, id: ConnectionId, deadline: Option<Instant>) {
        let connection = self.slots[id].as_mut().expect("the connection exists");
        if connection.deadline == deadline {
            return;
        }
        if let Some(before) = connection.deadline {
            self.deadlines.remove(&(before, id));
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, id));
        }
        connection.deadline = deadline;
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use glass_lib_tcp::Settings;
    use glass_lib_tcp::congestion::Kind;
    use smoltcp::wire::IpAddress;

    fn insert(table: &mut Table, port: u16, send: usize) -> ConnectionId {
        let spare = Spare { receive: 2 * send, send };
        let settings = Settings {
            receive_bytes: 1,
            buffer_bytes_max: 0,
            send_bytes: 1,
            segment_bytes: 1460,
            congestion: Kind::NewReno,
            open_timeout: Duration::from_secs(1),
            peer_timeout: Duration::from_secs(1),
            ack_delay: Duration::ZERO,
            seed: 0,
        };
        let end = |port| IpEndpoint::new(IpAddress::v4(10, 0, 0, 1), port);
        let ends = Ends { local: end(80), remote: end(port) };
        let id = table.insert(Tcp::connect(Instant(0), 1, settings), ends, Role::Owned);
        table.add_spare(id, spare);
        id
    }

    /// For receiving and for sending.
    fn spare(table: &Table) -> (usize, usize) {
        (table.spare().receive, table.spare().send)
    }

    #[test]
    fn spare_memory_is_that_of_the_connections_that_there_are() {
        let mut table = Table::default();
        let ids = [100, 30, 7].map(|spare| insert(&mut table, spare as u16, spare));
        assert_eq!((spare(&table), table.len()), ((274, 137), 3));
        table.remove(ids[1]);
        assert_eq!((spare(&table), table.len()), ((214, 107), 2));
        insert(&mut table, 2, 1);
        assert_eq!((spare(&table), table.len()), ((216, 108), 3));
        table.add_spare(ids[0], Spare { receive: 0, send: 5 });
        assert_eq!(spare(&table), (216, 113));
        table.return_spare(ids[0]);
        table.return_spare(ids[0]);
        assert_eq!((spare(&table), table.len()), ((16, 8), 3));
        table.remove(ids[0]);
        assert_eq!((spare(&table), table.len()), ((16, 8), 2));
    }

    #[test]
    fn a_connection_is_served_once_for_all_that_it_has_to_do() {
        let mut table = Table::default();
        let ids = [1, 2].map(|port| insert(&mut table, port, 0));
        table.touch_all();
        assert_eq!((table.pop(), table.pop(), table.pop()), (Some(ids[0]), Some(ids[1]), None));
        let at = |time| Some(Instant(time));
        table.set_deadline(ids[0], at(50));
        table.set_deadline(ids[1], at(40));
        table.set_deadline(ids[0], at(30));
        assert_eq!(table.next_deadline(), at(30));
        table.touch_due(Instant(29));
        assert_eq!(table.pop(), None);
        table.touch_due(Instant(30));
        assert_eq!((table.pop(), table.pop(), table.next_deadline()), (Some(ids[0]), None, at(40)));
        // One that is gone is not served, nor is the next one in its place.
        table.touch(ids[1]);
        table.remove(ids[1]);
        assert_eq!((table.pop(), table.next_deadline()), (None, None));
    }
}
