//! The open connections, and which of them is reset for a new one.
//!
//! A connection is *idle* unless its request holds a place. At the bound, an idle one is reset for each new one: the
//! oldest of the address that has the most. So a short request is answered regardless of the number of idle connections.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use glasshouse::Machine;
use glasshouse::sync::Notify;
use glasshouse::trace::Name;

/// Open connections. Clones share them.
#[derive(Clone)]
pub(crate) struct Connections {
    inner: Rc<Inner>,
}

struct Inner {
    name: &'static Name,
    count_max: usize,
    /// Oldest first.
    open: RefCell<Vec<Rc<Entry>>>,
    changed: Notify,
}

struct Entry {
    peer: Machine,
    is_kept: Cell<bool>,
    /// A request is in flight.
    is_busy: Cell<bool>,
    is_ended: Cell<bool>,
    ended: Notify,
}

impl Connections {
    /// `name` is the name of the resource in traces.
    pub(crate) fn new(count_max: usize, name: &'static Name) -> Connections {
        let (open, changed) = (RefCell::default(), Notify::of_resource(name));
        Connections { inner: Rc::new(Inner { name, count_max, open, changed }) }
    }

    /// Adds a connection, once there is room.
    pub(crate) async fn add(&self, peer: Machine) -> Connected {
        loop {
            let changed = self.inner.changed.notified();
            if self.count() < self.inner.count_max {
                break;
            }
            self.end_one();
            // If all hold places, one of those has to end by itself.
            changed.await;
        }
        let ended = Notify::of_resource(self.inner.name);
        let entry = Rc::new(Entry {
            peer,
            is_kept: Cell::new(false),
            is_busy: Cell::new(false),
            is_ended: Cell::new(false),
            ended,
        });
        self.inner.open.borrow_mut().push(entry.clone());
        Connected { connections: self.clone(), entry }
    }

    /// Ends the connections without a request in flight, and completes when the others have ended.
    pub(crate) async fn finish(&self) {
        for entry in self.inner.open.borrow().iter().filter(|entry| !entry.is_busy.get()) {
            entry.is_ended.set(true);
            entry.ended.notify_all();
        }
        loop {
            let changed = self.inner.changed.notified();
            if self.count() == 0 {
                return;
            }
            changed.await;
        }
    }

    /// Open connections.
    pub(crate) fn count(&self) -> usize {
        self.inner.open.borrow().len()
    }

    fn end_one(&self) {
        let open = self.inner.open.borrow();
        if open.iter().any(|entry| entry.is_ended.get()) {
            return;
        }
        let mut resting: BTreeMap<Machine, (usize, &Entry)> = BTreeMap::new();
        for entry in open.iter().filter(|entry| !entry.is_kept.get()) {
            resting.entry(entry.peer).or_insert((0, entry)).0 += 1;
        }
        if let Some((_, oldest)) = resting.into_values().max_by_key(|(count, _)| *count) {
            oldest.is_ended.set(true);
            oldest.ended.notify_all();
        }
    }
}

/// A connection in the table, until this is dropped.
pub(crate) struct Connected {
    connections: Connections,
    entry: Rc<Entry>,
}

impl Connected {
    /// The peer.
    pub(crate) fn peer(&self) -> Machine {
        self.entry.peer
    }

    /// Sets whether its request holds a place: then the connection is not reset for a new one.
    pub(crate) fn keep(&self, is_kept: bool) {
        self.entry.is_kept.set(is_kept);
        if is_kept && self.entry.is_ended.take() {
            // It was about to be reset: another one is.
            self.connections.inner.changed.notify_all();
        }
    }

    /// Sets whether it has a request in flight.
    pub(crate) fn set_busy(&self, is_busy: bool) {
        self.entry.is_busy.set(is_busy);
    }

    /// Completes when the connection has to be reset.
    pub(crate) async fn ended(&self) {
        loop {
            let ended = self.entry.ended.notified();
            if self.entry.is_ended.get() {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.connections.inner.open.borrow_mut().retain(|entry| !Rc::ptr_eq(entry, &self.entry));
        self.connections.inner.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::pin::pin;
    use embassy_futures::{block_on, poll_once};

    static NAME: Name = Name::new("connection of a test");

    /// As many connections as may be open, one of each of these machines.
    fn full(machines: &[u32]) -> (Connections, Vec<Connected>) {
        let connections = Connections::new(machines.len(), &NAME);
        let open = machines.iter().map(|machine| block_on(connections.add(Machine::Vsock(*machine)))).collect();
        (connections, open)
    }

    fn ended(open: &[Connected]) -> Vec<bool> {
        open.iter().map(|connected| poll_once(connected.ended()).is_ready()).collect()
    }

    #[test]
    fn the_oldest_connection_of_the_address_with_the_most_makes_room() {
        let (connections, mut open) = full(&[9, 1, 1, 2]);
        let mut next = pin!(connections.add(Machine::Vsock(3)));
        assert_eq!(ended(&open), [false; 4]);
        assert!(poll_once(next.as_mut()).is_pending());
        assert_eq!(ended(&open), [false, true, false, false]);
        // That one is enough, however many wait.
        assert!(poll_once(connections.add(Machine::Vsock(3))).is_pending());
        assert_eq!(ended(&open), [false, true, false, false]);
        drop(open.remove(1));
        let added = block_on(next);
        assert_eq!((added.peer(), connections.count()), (Machine::Vsock(3), 4));
    }

    #[test]
    fn a_connection_whose_request_gets_a_place_is_not_reset_and_another_one_is() {
        let (connections, open) = full(&[1, 1, 2]);
        open[2].keep(true);
        let mut next = pin!(connections.add(Machine::Vsock(3)));
        assert!(poll_once(next.as_mut()).is_pending());
        assert_eq!(ended(&open), [true, false, false]);
        open[0].keep(true);
        assert!(poll_once(next.as_mut()).is_pending());
        assert_eq!(ended(&open), [false, true, false]);
        open[1].keep(true);
        assert!(poll_once(next.as_mut()).is_pending());
        assert_eq!(ended(&open), [false; 3], "all have places");
    }

    #[test]
    fn at_the_end_connections_without_a_request_are_ended_and_the_others_waited_for() {
        let (connections, mut open) = full(&[1, 2]);
        open[1].set_busy(true);
        let mut finish = pin!(connections.finish());
        assert!(poll_once(finish.as_mut()).is_pending());
        assert_eq!(ended(&open), [true, false]);
        open.remove(0);
        assert!(poll_once(finish.as_mut()).is_pending());
        open.clear();
        assert!(poll_once(finish.as_mut()).is_ready());
    }
}
