//! The connections, each in its own socket set.
//!
//! smoltcp visits every socket of a set for each frame and each deadline. In its own set, a connection
//! costs something only when it has work: a frame finds it by its two ends, calls of the
//! application put it in a queue, and its deadline is in an ordered set.

use crate::congestion::Window;
use crate::long_frames::Cut;
use crate::recovery::Recovery;
use crate::resync::Repeated;
use crate::trace::{Flow, address_number};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use glass_api::Instant;
use glass_lib_trace::Presence;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::{Socket, tcp};
use smoltcp::wire::{IpAddress, IpEndpoint};

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
    pub(crate) aborted: bool,
}

pub(crate) struct Connection {
    /// This connection's socket and no other.
    pub(crate) sockets: SocketSet<'static>,
    handle: SocketHandle,
    ends: Ends,
    /// How much of its buffers is spare memory.
    spare: usize,
    pub(crate) window: Window,
    /// The longest segment that the peer receives.
    pub(crate) segment_bytes: usize,
    pub(crate) role: Role,
    repeated: Repeated,
    pub(crate) recovery: Recovery,
    /// The peer has reset it.
    pub(crate) reset: bool,
    /// Its state for the trace.
    pub(crate) flow: Flow,
    queued: bool,
    /// Its place among those in TIME-WAIT.
    time_wait: Option<u64>,
    deadline: Option<Instant>,
}

impl Connection {
    pub(crate) fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// The peer's address.
    pub(crate) fn remote(&self) -> IpAddress {
        self.ends.remote.addr
    }

    /// Whether it must not receive this frame: see [`Repeated`].
    pub(crate) fn repeats(&mut self, frame: &[u8]) -> bool {
        self.repeated.drops(self.sockets.get(self.handle), frame)
    }

    /// How its frames are cut by a device with this MTU.
    pub(crate) fn cut(&self, mtu: usize) -> Option<Cut> {
        let ip_header_bytes = if matches!(self.ends.local.addr, IpAddress::Ipv4(_)) { 20 } else { 40 };
        Cut::new(mtu, ip_header_bytes, self.segment_bytes)
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
    spare: usize,
    /// Connections with spare memory that are in TIME-WAIT, the oldest first.
    time_wait: BTreeMap<u64, ConnectionId>,
    /// Spare memory that they use.
    time_wait_spare: usize,
    /// How many there were.
    rested: u64,
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Spare memory that the connections use.
    pub(crate) fn spare_bytes(&self) -> usize {
        self.spare
    }

    /// Adds a connection, of whose buffers `spare` bytes are spare memory; no other one may have the same ends.
    pub(crate) fn insert(
        &mut self,
        socket: tcp::Socket<'static>,
        spare: usize,
        window: Window,
        ends: Ends,
        role: Role,
    ) -> ConnectionId {
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        self.made = self.made.wrapping_add(1);
        let flow = Flow::new(self.made);
        self.spare += spare;
        let connection = Connection {
            sockets,
            handle,
            ends,
            spare,
            window,
            segment_bytes: 0,
            role,
            repeated: Repeated::default(),
            recovery: Recovery::default(),
            reset: false,
            flow,
            queued: false,
            time_wait: None,
            deadline: None,
        };
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

    /// Removes a connection and returns its socket.
    pub(crate) fn remove(&mut self, id: ConnectionId) -> Option<tcp::Socket<'static>> {
        let mut connection = self.slots[id].take()?;
        connection.trace(Presence::Ends);
        self.spare -= connection.spare;
        if let Some(place) = connection.time_wait {
            self.time_wait.remove(&place);
            self.time_wait_spare -= connection.spare;
        }
        if self.find(connection.ends) == Some(id) {
            self.by_ends.remove(&connection.ends);
        }
        if let Some(deadline) = connection.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        self.free.push(id);
        match connection.sockets.remove(connection.handle) {
            Socket::Tcp(socket) => Some(socket),
            _ => None,
        }
    }

    /// Notes that a connection is in TIME-WAIT.
    pub(crate) fn rest(&mut self, id: ConnectionId) {
        if let Some(connection) = &mut self.slots[id]
            && connection.time_wait.is_none()
            && connection.spare > 0
        {
            connection.time_wait = Some(self.rested);
            self.time_wait.insert(self.rested, id);
            self.rested += 1;
            self.time_wait_spare += connection.spare;
        }
    }

    /// The connection that has been in TIME-WAIT longest, but not `newest`, if they use more than `spare_max` bytes of spare memory.
    pub(crate) fn longest_in_time_wait(&self, newest: ConnectionId, spare_max: usize) -> Option<ConnectionId> {
        let (_, id) = self.time_wait.first_key_value()?;
        (self.time_wait_spare > spare_max && *id != newest).then_some(*id)
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
    use crate::config::Congestion;
    use alloc::vec;

    fn insert(table: &mut Table, port: u16, spare: usize) -> ConnectionId {
        let buffer = || tcp::SocketBuffer::new(vec![0]);
        let end = |port| IpEndpoint::new(IpAddress::v4(10, 0, 0, 1), port);
        let ends = Ends { local: end(80), remote: end(port) };
        table.insert(tcp::Socket::new(buffer(), buffer()), spare, Window::new(Congestion::Reno), ends, Role::Owned)
    }

    #[test]
    fn spare_memory_is_that_of_the_connections_that_there_are() {
        let mut table = Table::default();
        let ids = [100, 30, 7].map(|spare| insert(&mut table, spare as u16, spare));
        assert_eq!((table.spare_bytes(), table.len()), (137, 3));
        table.remove(ids[1]);
        assert_eq!((table.spare_bytes(), table.len()), (107, 2));
        insert(&mut table, 2, 1);
        assert_eq!((table.spare_bytes(), table.len()), (108, 3));
    }

    #[test]
    fn the_oldest_connection_in_time_wait_that_has_spare_memory_gives_it_back() {
        let mut table = Table::default();
        let ids = [0, 10, 20, 30].map(|spare| insert(&mut table, spare as u16, spare));
        for id in ids {
            table.rest(id);
            table.rest(id);
        }
        let newest = ids[3];
        assert_eq!(
            (table.longest_in_time_wait(newest, 60), table.longest_in_time_wait(newest, 59)),
            (None, Some(ids[1]))
        );
        table.remove(ids[1]);
        assert_eq!(
            (table.longest_in_time_wait(newest, 50), table.longest_in_time_wait(newest, 49)),
            (None, Some(ids[2]))
        );
        table.remove(ids[2]);
        assert_eq!(
            (table.longest_in_time_wait(newest, 0), table.longest_in_time_wait(ids[0], 0)),
            (None, Some(newest))
        );
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
