//! A fair bound on concurrent transfers of clients.
//!
//! Waiting clients get a slot in the order of their arrival. One address holds at most a part of the slots, so that
//! others get one. A client that makes too little progress while others wait loses its slot: [`Slot::watch`] reports it to the holder.

use crate::HttpError;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use embassy_futures::select::{Either, select};
use glass_api::{Clock, Instant, Machine};
use glass_lib_executor::sync::Notify;
use glass_lib_trace::{Gauge, Name};

/// How often a waiting client checks for a slow holder.
const CHECK_PERIOD: Duration = Duration::from_millis(250);

/// How many slots there are, and for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotLimits {
    /// Slots.
    pub count: usize,
    /// Slots of one address at most, so that another one gets a slot at once.
    pub share: usize,
    /// While others wait for its slot, a client must transfer [`SlotLimits::slow_bytes`] in so much time that is spent waiting for it.
    pub slow_time: Duration,
    /// See [`SlotLimits::slow_time`].
    pub slow_bytes: u64,
}

/// A number of slots. Clones share them.
#[derive(Clone)]
pub struct Slots {
    inner: Rc<Inner>,
}

struct Inner {
    name: &'static Name,
    limits: SlotLimits,
    state: RefCell<State>,
    changed: Notify,
    /// How many wait with [`Slots::wait_for`].
    waiting: Option<&'static Gauge>,
}

#[derive(Default)]
struct State {
    holders: Vec<Rc<Holder>>,
    /// Oldest first.
    waiters: VecDeque<Rc<Waiter>>,
}

struct Waiter {
    peer: Machine,
    /// The slot that it was given, until it takes it.
    given: RefCell<Option<Slot>>,
}

struct Holder {
    peer: Machine,
    /// Time that was spent waiting for the client, and the bytes that it transferred in it; both are reset for each window.
    waited: Cell<Duration>,
    bytes: Cell<u64>,
    /// When the open wait for the client started.
    since: Cell<Option<Instant>>,
    /// The result of the last whole window.
    was_slow: Cell<bool>,
    is_lost: Cell<bool>,
    lost: Notify,
}

impl Holder {
    /// Whether the client transferred too little recently, in time that was spent waiting for it.
    fn is_slow(&self, limits: &SlotLimits, now: Instant) -> bool {
        // The open wait is for one chunk at most, so it alone is sufficient, regardless of earlier progress.
        let waiting = self.since.get().map_or(Duration::ZERO, |since| now - since);
        if waiting >= limits.slow_time {
            return true;
        }
        if self.waited.get() + waiting >= limits.slow_time {
            self.bytes.get() < limits.slow_bytes
        } else {
            self.was_slow.get()
        }
    }
}

impl Slots {
    /// `name` is the name of the resource in traces, and `waiting` counts the clients that wait for a slot.
    pub fn new(limits: SlotLimits, name: &'static Name, waiting: Option<&'static Gauge>) -> Slots {
        let changed = Notify::of_resource(name);
        Slots { inner: Rc::new(Inner { name, limits, state: RefCell::default(), changed, waiting }) }
    }

    /// A slot, if one is free now. None is while a client waits that may have it: it was given that one at once.
    pub fn take(&self, peer: Machine) -> Option<Slot> {
        let mut state = self.inner.state.borrow_mut();
        let may_have = self.is_free(&state) && self.has_share(&state, peer);
        may_have.then(|| self.seat(&mut state, peer))
    }

    /// A slot, if one becomes free within `time`.
    pub async fn wait_for(&self, clock: &impl Clock, peer: Machine, time: Duration) -> Option<Slot> {
        if let Some(slot) = self.take(peer) {
            return Some(slot);
        }
        let _waiting = self.inner.waiting.map(Waiting::begin);
        let deadline = clock.now() + time;
        let waiter = Rc::new(Waiter { peer, given: RefCell::new(None) });
        self.inner.state.borrow_mut().waiters.push_back(waiter.clone());
        let _queued = Queued { slots: self, waiter: &waiter };
        loop {
            let changed = self.inner.changed.notified();
            if let Some(slot) = waiter.given.take() {
                return Some(slot);
            }
            let now = clock.now();
            if now >= deadline {
                return None;
            }
            self.dismiss_slowest(peer, now);
            let check_at = deadline.min(now + CHECK_PERIOD);
            select(changed, clock.sleep_until(check_at)).await;
        }
    }

    fn is_free(&self, state: &State) -> bool {
        state.holders.len() < self.inner.limits.count
    }

    /// Whether one more slot may go to `peer`.
    fn has_share(&self, state: &State, peer: Machine) -> bool {
        state.holders.iter().filter(|holder| holder.peer == peer).count() < self.inner.limits.share
    }

    fn seat(&self, state: &mut State, peer: Machine) -> Slot {
        let holder = Rc::new(Holder {
            peer,
            waited: Cell::default(),
            bytes: Cell::default(),
            since: Cell::default(),
            was_slow: Cell::default(),
            is_lost: Cell::default(),
            lost: Notify::of_resource(self.inner.name),
        });
        state.holders.push(holder.clone());
        Slot { slots: self.clone(), holder }
    }

    /// Gives free slots to those that have waited longest, as far as their addresses have a share left. Clients whose
    /// address has none do not delay others.
    fn hand_out(&self) {
        let mut state = self.inner.state.borrow_mut();
        while self.is_free(&state) {
            let next = state
                .waiters
                .iter()
                .find(|waiter| waiter.given.borrow().is_none() && self.has_share(&state, waiter.peer))
                .cloned();
            let Some(waiter) = next else { break };
            let slot = self.seat(&mut state, waiter.peer);
            *waiter.given.borrow_mut() = Some(slot);
        }
        drop(state);
        self.inner.changed.notify_all();
    }

    /// Takes the slot away from the slowest client, among those whose slot would help `peer`.
    fn dismiss_slowest(&self, peer: Machine, now: Instant) {
        let state = self.inner.state.borrow();
        // One has already lost its slot.
        if state.holders.iter().any(|holder| holder.is_lost.get()) {
            return;
        }
        let has_share = self.has_share(&state, peer);
        let slow = state
            .holders
            .iter()
            .filter(|holder| holder.is_slow(&self.inner.limits, now) && (has_share || holder.peer == peer));
        if let Some(slowest) = slow.min_by_key(|holder| holder.bytes.get()) {
            slowest.is_lost.set(true);
            slowest.lost.notify_all();
        }
    }
}

/// An entry in the queue of waiting clients, until this is dropped.
struct Queued<'a> {
    slots: &'a Slots,
    waiter: &'a Rc<Waiter>,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.slots.inner.state.borrow_mut().waiters.retain(|waiter| !Rc::ptr_eq(waiter, self.waiter));
        // A slot that came too late goes to the next.
        drop(self.waiter.given.take());
    }
}

/// Counts a waiting client until this is dropped.
struct Waiting(&'static Gauge);

impl Waiting {
    fn begin(gauge: &'static Gauge) -> Waiting {
        gauge.add(1);
        Waiting(gauge)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

/// A slot; free again when it is dropped.
pub struct Slot {
    slots: Slots,
    holder: Rc<Holder>,
}

impl Slot {
    /// Waits for the client by `transfer`, which returns how many bytes it transferred. Fails with [`HttpError::Stalled`] when the slot
    /// was lost first, because the client was too slow while others waited.
    pub async fn watch(
        &self,
        clock: &impl Clock,
        transfer: impl Future<Output = Result<usize, HttpError>>,
    ) -> Result<usize, HttpError> {
        let SlotLimits { slow_time, slow_bytes, .. } = self.slots.inner.limits;
        let holder = &self.holder;
        let began = clock.now();
        holder.since.set(Some(began));
        let outcome = select(transfer, self.lost()).await;
        holder.since.set(None);
        holder.waited.set(holder.waited.get() + (clock.now() - began));
        let Either::First(outcome) = outcome else {
            return Err(HttpError::Stalled { bytes_min: slow_bytes, window: slow_time });
        };
        holder.bytes.set(holder.bytes.get() + *outcome.as_ref().unwrap_or(&0) as u64);
        if holder.waited.get() >= slow_time {
            holder.was_slow.set(holder.bytes.get() < slow_bytes);
            holder.waited.set(Duration::ZERO);
            holder.bytes.set(0);
        }
        outcome
    }

    async fn lost(&self) {
        loop {
            let lost = self.holder.lost.notified();
            if self.holder.is_lost.get() {
                return;
            }
            lost.await;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.slots.inner.state.borrow_mut();
        state.holders.retain(|holder| !Rc::ptr_eq(holder, &self.holder));
        drop(state);
        self.slots.hand_out();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::future::pending;
    use core::net::{IpAddr, Ipv4Addr};
    use core::pin::pin;
    use core::task::{Context, Poll, Waker};
    use embassy_futures::block_on;

    const SLOW_TIME: Duration = Duration::from_secs(2);
    const SLOW_BYTES: u64 = 128 * 1024;

    fn limits(count: usize, share: usize) -> SlotLimits {
        SlotLimits { count, share, slow_time: SLOW_TIME, slow_bytes: SLOW_BYTES }
    }

    static SLOT: Name = Name::new("slot of a test");

    fn peer(last: u8) -> Machine {
        Machine::Ip(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)))
    }

    /// Time that does not pass.
    struct Still;

    impl Clock for Still {
        fn now(&self) -> Instant {
            Instant(0)
        }

        fn sleep_until(&self, _deadline: Instant) -> impl Future<Output = ()> + 'static {
            pending()
        }
    }

    /// Time that a test turns on.
    struct Turned(Cell<u64>);

    impl Clock for Turned {
        fn now(&self) -> Instant {
            Instant(self.0.get())
        }

        fn sleep_until(&self, _deadline: Instant) -> impl Future<Output = ()> + 'static {
            pending()
        }
    }

    #[test]
    fn slots_go_to_clients_in_the_order_of_their_arrival() {
        let slots = Slots::new(limits(1, 1), &SLOT, None);
        let held = slots.take(peer(1)).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let wait = |last| slots.wait_for(&Still, peer(last), Duration::from_secs(9));
        let (mut first, mut second) = (pin!(wait(2)), pin!(wait(3)));
        assert!(first.as_mut().poll(&mut context).is_pending() && second.as_mut().poll(&mut context).is_pending());
        drop(held);
        // It is the first one's, although that has not run yet.
        assert!(slots.take(peer(1)).is_none() && second.as_mut().poll(&mut context).is_pending());
        let Poll::Ready(Some(slot)) = first.as_mut().poll(&mut context) else { panic!("no slot") };
        drop(slot);
        assert!(matches!(second.as_mut().poll(&mut context), Poll::Ready(Some(_))));
    }

    #[test]
    fn a_client_whose_address_has_its_share_delays_no_other() {
        let slots = Slots::new(limits(3, 1), &SLOT, None);
        let [first, _second] = [1, 2].map(|last| slots.take(peer(last)).unwrap());
        let mut context = Context::from_waker(Waker::noop());
        let wait = |last| slots.wait_for(&Still, peer(last), Duration::from_secs(9));
        let (mut greedy, mut patient) = (pin!(wait(1)), pin!(wait(4)));
        assert!(greedy.as_mut().poll(&mut context).is_pending());
        let third = slots.take(peer(3)).unwrap();
        assert!(patient.as_mut().poll(&mut context).is_pending());
        drop(third);
        assert!(greedy.as_mut().poll(&mut context).is_pending());
        let Poll::Ready(Some(_fourth)) = patient.as_mut().poll(&mut context) else { panic!("no slot") };
        drop(first);
        assert!(matches!(greedy.as_mut().poll(&mut context), Poll::Ready(Some(_))));
    }

    #[test]
    fn a_client_that_gives_up_leaves_its_slot_to_the_next() {
        let mut context = Context::from_waker(Waker::noop());
        for gives_up_first in [true, false] {
            let slots = Slots::new(limits(1, 1), &SLOT, None);
            let held = slots.take(peer(1)).unwrap();
            let wait = |last| alloc::boxed::Box::pin(slots.wait_for(&Still, peer(last), Duration::from_secs(9)));
            let (mut first, mut second) = (wait(2), wait(3));
            assert!(first.as_mut().poll(&mut context).is_pending() && second.as_mut().poll(&mut context).is_pending());
            if gives_up_first {
                drop(first);
                drop(held);
            } else {
                drop(held);
                drop(first);
            }
            let Poll::Ready(Some(slot)) = second.as_mut().poll(&mut context) else { panic!("no slot") };
            drop(slot);
            assert!(slots.take(peer(4)).is_some());
        }
    }

    #[test]
    fn who_was_given_a_slot_gets_no_second_one() {
        let slots = Slots::new(limits(2, 2), &SLOT, None);
        let held = [1, 2].map(|last| slots.take(peer(last)).unwrap());
        let mut context = Context::from_waker(Waker::noop());
        let mut wait = pin!(slots.wait_for(&Still, peer(3), Duration::from_secs(9)));
        assert!(wait.as_mut().poll(&mut context).is_pending());
        drop(held);
        assert!(slots.take(peer(4)).is_some());
        assert!(matches!(wait.as_mut().poll(&mut context), Poll::Ready(Some(_))));
    }

    #[test]
    fn the_slowest_client_loses_its_slot_if_that_helps_the_one_that_waits() {
        let slots = Slots::new(limits(3, 2), &SLOT, None);
        let held = [1, 1, 2].map(|last| slots.take(peer(last)).unwrap());
        let now = Instant(SLOW_TIME.as_nanos() as u64);
        for (slot, bytes) in held.iter().zip([5, 3, 1]) {
            slot.holder.since.set(Some(Instant(0)));
            slot.holder.bytes.set(bytes);
        }
        let lost = || held.each_ref().map(|slot| slot.holder.is_lost.take());
        // The first address has its share: only a slot of its own helps it.
        slots.dismiss_slowest(peer(1), now);
        assert_eq!(lost(), [false, true, false]);
        slots.dismiss_slowest(peer(3), now);
        slots.dismiss_slowest(peer(1), now);
        assert_eq!(lost(), [false, false, true], "one at a time");
        held.iter().for_each(|slot| slot.holder.since.set(Some(now)));
        slots.dismiss_slowest(peer(3), now);
        slots.dismiss_slowest(peer(1), now);
        assert_eq!(lost(), [false; 3], "none is slow");
    }

    #[test]
    fn each_window_is_judged_by_its_own_bytes() {
        let slot = Slots::new(limits(1, 1), &SLOT, None).take(peer(1)).unwrap();
        let clock = Turned(Cell::new(7));
        let is_slow_after = |time: Duration, bytes: u64| {
            let transfer = async {
                clock.0.set(clock.0.get() + time.as_nanos() as u64);
                Ok(bytes as usize)
            };
            assert_eq!(block_on(slot.watch(&clock, transfer)), Ok(bytes as usize));
            slot.holder.is_slow(&limits(1, 1), clock.now())
        };
        let half = SLOW_TIME / 2;
        assert!(!is_slow_after(half, 0), "the window is not over");
        assert!(is_slow_after(half, SLOW_BYTES - 1));
        assert!(is_slow_after(half, SLOW_BYTES / 2), "the last whole window was too slow");
        assert!(!is_slow_after(half, SLOW_BYTES / 2));
        assert!(!is_slow_after(SLOW_TIME, SLOW_BYTES + 1));
        assert!(is_slow_after(SLOW_TIME, 0));
    }

    #[test]
    fn a_client_is_slow_that_transfers_too_little_while_it_is_waited_for() {
        let slot = Slots::new(limits(1, 1), &SLOT, None).take(peer(1)).unwrap();
        let now = Instant(9_000_000_000);
        let nearly = SLOW_TIME - Duration::from_nanos(1);
        let half = SLOW_TIME / 2;
        let zero = Duration::ZERO;
        // Waited before and now, bytes meanwhile, and whether the last whole window was slow.
        for (waited, waits, bytes, was_slow, is_slow) in [
            (zero, SLOW_TIME, u64::MAX, false, true),
            (half, half, SLOW_BYTES - 1, false, true),
            (half, half, SLOW_BYTES, true, false),
            (half, half, SLOW_BYTES + 1, true, false),
            (SLOW_TIME, zero, 0, false, true),
            (zero, nearly, 0, false, false),
            (zero, nearly, SLOW_BYTES, true, true),
        ] {
            let holder = &slot.holder;
            holder.waited.set(waited);
            holder.since.set(Some(Instant(now.0 - waits.as_nanos() as u64)));
            holder.bytes.set(bytes);
            holder.was_slow.set(was_slow);
            assert_eq!(holder.is_slow(&limits(1, 1), now), is_slow, "{waited:?} {waits:?} {bytes} {was_slow}");
        }
    }

    #[test]
    fn clients_are_counted_while_they_wait() {
        static WAITING: Gauge = Gauge::new("waiting in a test");
        let slots = Slots::new(limits(1, 1), &SLOT, Some(&WAITING));
        let _held = slots.take(peer(1)).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        {
            let mut wait = pin!(slots.wait_for(&Still, peer(2), Duration::from_secs(9)));
            assert!(wait.as_mut().poll(&mut context).is_pending());
            assert_eq!(WAITING.value(), 1);
        }
        assert_eq!(WAITING.value(), 0);
    }

    #[test]
    fn one_address_leaves_slots_for_another() {
        let slots = Slots::new(limits(8, 6), &SLOT, None);
        let [first, second] = [1, 2].map(peer);
        let mut held: Vec<Slot> = (0..6).map(|_| slots.take(first).unwrap()).collect();
        assert!(slots.take(first).is_none());
        held.extend((0..2).map(|_| slots.take(second).unwrap()));
        assert!(slots.take(second).is_none());
        held.clear();
        assert!(slots.take(second).is_some());
    }
}
