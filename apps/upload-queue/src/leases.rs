//! Leases: which consumer has which item, and until when. In memory: a restart ends all of them, and items are given out again.
//!
//! Each lease has a *fencing token*, which no other one has: the random number of this start, and a counter. An acknowledgement names the token.
//! Once another consumer has the item, the older token is refused, however late its acknowledgement comes.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::time::Duration;
use glasshouse::Instant;
use glasshouse::sync::{Notified, Notify};

/// The leases of a queue.
pub(crate) struct Leases {
    /// Of this start.
    random: u64,
    tries_max: Cell<u32>,
    state: RefCell<State>,
    /// An item was returned.
    changed: Notify,
}

#[derive(Default)]
struct State {
    given: u64,
    /// By the id of the item; of each that was given out and is still in the queue.
    leases: BTreeMap<u64, Lease>,
}

#[derive(Clone, Copy)]
struct Lease {
    number: u64,
    /// `None` once it was returned.
    until: Option<Instant>,
    tries: u32,
}

/// Names a lease: a strong entity tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fence {
    random: u64,
    number: u64,
}

impl Fence {
    /// Of lease `number` of an item in an engine, which has `random`.
    #[cfg_attr(any(glass_vm, not(target_arch = "x86_64")), expect(dead_code, reason = "there is no engine"))]
    pub(crate) fn of(random: u64, number: u64) -> Fence {
        Fence { random, number }
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "\"{:016x}-{:x}\"", self.random, self.number)
    }
}

/// Where an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The next consumer gets it.
    Ready,
    /// A consumer has it until then.
    Leased(Instant),
    /// It was given out as often as it may be, and no consumer acknowledged it.
    Dead,
}

/// Why a lease cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The item was never given out since the start, or is gone.
    NoLease,
    /// Another consumer has had the item since.
    OtherLease,
}

impl Leases {
    /// From now on.
    pub(crate) fn set_tries(&self, tries_max: u32) {
        self.tries_max.set(tries_max);
        self.changed.notify_all();
    }

    /// Items are given out `tries_max` times at most; 0 is without end.
    pub(crate) fn new(random: u64, tries_max: u32) -> Leases {
        Leases { random, tries_max: Cell::new(tries_max), state: RefCell::default(), changed: Notify::new() }
    }

    /// Where item `id` is at this time.
    pub(crate) fn place(&self, id: u64, now: Instant) -> Place {
        let state = self.state.borrow();
        match state.leases.get(&id) {
            Some(Lease { until: Some(until), .. }) if *until > now => Place::Leased(*until),
            Some(Lease { tries, .. }) if self.tries_max.get() > 0 && *tries >= self.tries_max.get() => Place::Dead,
            _ => Place::Ready,
        }
    }

    /// How often an item was given out.
    pub(crate) fn tries(&self, id: u64) -> u32 {
        self.state.borrow().leases.get(&id).map_or(0, |lease| lease.tries)
    }

    /// Gives out item `id`, which is ready.
    pub(crate) fn give(&self, id: u64, until: Instant) -> (Fence, u32) {
        let mut state = self.state.borrow_mut();
        state.given += 1;
        let number = state.given;
        let tries = state.leases.get(&id).map_or(0, |lease| lease.tries) + 1;
        state.leases.insert(id, Lease { number, until: Some(until), tries });
        (Fence { random: self.random, number }, tries)
    }

    /// Whether the lease of item `id` is one of those that `is_named` accepts. One whose time is over is, as long as no other consumer has
    /// got the item.
    pub(crate) fn check(&self, id: u64, is_named: impl Fn(&Fence) -> bool) -> Result<(), Refused> {
        let state = self.state.borrow();
        let lease = state.leases.get(&id).ok_or(Refused::NoLease)?;
        if is_named(&Fence { random: self.random, number: lease.number }) { Ok(()) } else { Err(Refused::OtherLease) }
    }

    /// The lease of item `id` ends then.
    pub(crate) fn extend(&self, id: u64, until: Instant) {
        if let Some(lease) = self.state.borrow_mut().leases.get_mut(&id) {
            lease.until = Some(until);
        }
    }

    /// Item `id` is ready again at once. What was tried counts, unless it `is_revived`.
    pub(crate) fn put_back(&self, id: u64, is_revived: bool) {
        if let Some(lease) = self.state.borrow_mut().leases.get_mut(&id) {
            lease.until = None;
            if is_revived {
                lease.tries = 0;
            }
        }
        self.changed.notify_all();
    }

    /// Item `id` is gone.
    pub(crate) fn forget(&self, id: u64) {
        self.state.borrow_mut().leases.remove(&id);
    }

    /// Forgets all items but those that are in the queue.
    pub(crate) fn retain(&self, is_there: impl Fn(u64) -> bool) {
        self.state.borrow_mut().leases.retain(|id, _| is_there(*id));
    }

    /// The items that were given out and may be in the queue.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.state.borrow().leases.keys().copied().collect()
    }

    /// How many leases there were since the start.
    pub(crate) fn given(&self) -> u64 {
        self.state.borrow().given
    }

    /// When the next lease ends after `now`.
    pub(crate) fn next_end(&self, now: Instant) -> Option<Instant> {
        self.state.borrow().leases.values().filter_map(|lease| lease.until).filter(|until| *until > now).min()
    }

    /// Completes when an item was returned.
    pub(crate) fn changed(&self) -> Notified {
        self.changed.notified()
    }
}

/// The time of a lease that a request wants, within bounds.
pub(crate) fn lease_time(secs: Option<u64>) -> Duration {
    use crate::limits::{LEASE_SECS, LEASE_SECS_MAX};
    Duration::from_secs(secs.unwrap_or(LEASE_SECS).clamp(1, LEASE_SECS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Instant {
        Instant(secs * 1_000_000_000)
    }

    #[test]
    fn an_item_has_one_consumer_at_a_time_and_an_older_token_is_refused() {
        let leases = Leases::new(7, 3);
        assert_eq!((leases.place(5, at(0)), leases.check(5, |_| true)), (Place::Ready, Err(Refused::NoLease)));
        let (first, _) = leases.give(5, at(10));
        assert_eq!(leases.place(5, at(9)), Place::Leased(at(10)));
        assert_eq!(
            (leases.place(5, at(10)), leases.next_end(at(9)), leases.next_end(at(10))),
            (Place::Ready, Some(at(10)), None)
        );
        // No other consumer has it, so the first consumer may still acknowledge.
        assert_eq!(leases.check(5, |fence| *fence == first), Ok(()));
        let (second, tries) = leases.give(5, at(20));
        assert_eq!((tries, leases.check(5, |fence| *fence == first)), (2, Err(Refused::OtherLease)));
        assert_eq!(leases.check(5, |fence| *fence == second), Ok(()));
        leases.extend(5, at(30));
        assert_eq!(leases.place(5, at(29)), Place::Leased(at(30)));
        leases.put_back(5, false);
        assert_eq!(leases.place(5, at(29)), Place::Ready);
        leases.give(5, at(40));
        assert_eq!((leases.place(5, at(39)), leases.place(5, at(40))), (Place::Leased(at(40)), Place::Dead));
        leases.put_back(5, true);
        assert_eq!((leases.place(5, at(40)), leases.tries(5)), (Place::Ready, 0));
        leases.retain(|_| false);
        assert_eq!(leases.check(5, |_| true), Err(Refused::NoLease));
        assert_ne!(Leases::new(8, 3).give(5, at(1)).0, first);
    }
}
