//! The open connections, and which of them is reset for a new one.
//!
//! At the bound, a connection that does not hold a slot is reset for each new one: the oldest of the address that has the most. So a short
//! request is answered regardless of the number of connections that are idle or whose clients neither send nor read, as long as
//! there are fewer slots than connections.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::cmp::Reverse;
use glass_api::{Machine, NetInfo};
use glass_lib_executor::sync::Notify;
use glass_lib_trace::Name;

/// Connections of a network with a bound that are left for clients whose connection is being opened or closed: an eighth, at most so many.
const SPARE_MAX: usize = 8;

/// Open connections. Clones share them.
#[derive(Clone)]
pub struct Connections {
    inner: Rc<Inner>,
}

struct Inner {
    name: &'static Name,
    count_max: usize,
    /// Oldest first.
    open: RefCell<Vec<Rc<Entry>>>,
    changed: Notify,
    /// No request is begun any more.
    is_finishing: Cell<bool>,
    /// A panic of a handler ends the service.
    ends_by_panic: Cell<bool>,
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
    pub fn new(count_max: usize, name: &'static Name) -> Connections {
        let (open, changed) = (RefCell::default(), Notify::of_resource(name));
        let (is_finishing, ends_by_panic) = (Cell::new(false), Cell::new(false));
        Connections { inner: Rc::new(Inner { name, count_max, open, changed, is_finishing, ends_by_panic }) }
    }

    /// Each connection that is accepted is [`Connection::ended_by_panics`](crate::Connection::ended_by_panics).
    pub fn ended_by_panics(self) -> Connections {
        self.inner.ends_by_panic.set(true);
        self
    }

    /// How many connections a service may have that wants `count_max`, on this network: some are left for those that are opening or closing.
    pub fn bound(count_max: usize, network: &NetInfo) -> usize {
        let spare = SPARE_MAX.min(network.connections_max / 8);
        count_max.min(network.connections_max - spare).max(1)
    }

    pub(super) fn ends_by_panic(&self) -> bool {
        self.inner.ends_by_panic.get()
    }

    /// Adds a connection, once there is room.
    pub(crate) async fn add(&self, peer: Machine) -> Connected {
        loop {
            let changed = self.inner.changed.notified();
            if self.count() < self.inner.count_max {
                break;
            }
            self.end_one();
            // If all hold slots, one of those has to end by itself.
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

    /// Ends the connections without a request in flight, and completes when the others have ended, each after its response.
    pub async fn finish(&self) {
        self.inner.is_finishing.set(true);
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
    pub fn count(&self) -> usize {
        self.inner.open.borrow().len()
    }

    fn end_one(&self) {
        let open = self.inner.open.borrow();
        if open.iter().any(|entry| entry.is_ended.get()) {
            return;
        }
        let mut idle: BTreeMap<Machine, (usize, Reverse<usize>, &Entry)> = BTreeMap::new();
        for (age, entry) in open.iter().enumerate().filter(|(_, entry)| !entry.is_kept.get()) {
            idle.entry(entry.peer).or_insert((0, Reverse(age), entry)).0 += 1;
        }
        if let Some((.., oldest)) = idle.into_values().max_by_key(|(count, age, _)| (*count, *age)) {
            oldest.is_ended.set(true);
            oldest.ended.notify_all();
        }
    }
}

/// A connection in the table, until this is dropped.
pub struct Connected {
    connections: Connections,
    entry: Rc<Entry>,
}

impl Connected {
    /// The peer.
    pub fn peer(&self) -> Machine {
        self.entry.peer
    }

    /// Sets whether its request holds a slot: then the connection is not reset for a new one. The end of the request unsets it.
    pub fn keep(&self, is_kept: bool) {
        self.entry.is_kept.set(is_kept);
        if is_kept && self.entry.is_ended.take() {
            // It was about to be reset: another one is.
            self.connections.inner.changed.notify_all();
        }
    }

    /// A request begins. It ends when the guard is dropped, if [`Connected::end`] has not ended it before.
    pub(crate) fn begin(&self) -> Begun<'_> {
        self.entry.is_busy.set(true);
        Begun(self)
    }

    /// The request has ended. Returns whether it is the last one.
    pub(crate) fn end(&self) -> bool {
        self.keep(false);
        let is_last = self.connections.inner.is_finishing.get();
        // Its response is still to be sent.
        self.entry.is_busy.set(is_last);
        is_last
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

/// A request in flight; a handler that panics ends it by dropping this.
pub(crate) struct Begun<'a>(&'a Connected);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.end();
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
    fn among_addresses_with_as_many_the_oldest_connection_makes_room() {
        let (connections, open) = full(&[2, 9, 1]);
        assert!(poll_once(connections.add(Machine::Vsock(3))).is_pending());
        assert_eq!(ended(&open), [true, false, false]);
    }

    #[test]
    fn a_network_with_a_bound_keeps_some_connections_for_new_clients() {
        let network = |connections_max| NetInfo { address: [127, 0, 0, 1].into(), connections_max };
        let bounds = [1, 28, 64, 128, usize::MAX].map(|max| Connections::bound(100, &network(max)));
        assert_eq!(bounds, [1, 25, 56, 100, 100]);
    }

    #[test]
    fn a_connection_whose_request_gets_a_slot_is_not_reset_and_another_one_is() {
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
        assert_eq!(ended(&open), [false; 3], "all have slots");
    }

    #[test]
    fn at_the_end_connections_without_a_request_are_ended_and_the_others_waited_for() {
        let (connections, mut open) = full(&[1, 2]);
        open[1].entry.is_busy.set(true);
        let mut finish = pin!(connections.finish());
        assert!(poll_once(finish.as_mut()).is_pending());
        assert_eq!(ended(&open), [true, false]);
        open.remove(0);
        assert!(poll_once(finish.as_mut()).is_pending());
        open.clear();
        assert!(poll_once(finish.as_mut()).is_ready());
    }
}
