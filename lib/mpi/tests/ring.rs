//! The ring between two ranks under every order of memory accesses that the language allows: run with `--cfg loom`.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p glass-mpi --release --test ring`, in a target folder of its own.
#![cfg(loom)]

use glass_mpi::{Body, Consumer, Credit, Producer, Slot};
use loom::thread;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// More than there are slots, so that the sender waits for credit.
const MESSAGES: u32 = 3;

/// The memory of a ring with two slots, freed when both ends are gone.
struct Shared {
    slots: NonNull<[Slot; 2]>,
    credit: NonNull<Credit>,
    bulk: NonNull<u8>,
}

// SAFETY: what it points to is shared by the protocol that is tested.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Shared {
        let slots = NonNull::from(Box::leak(Box::new([Slot::empty(), Slot::empty()])));
        Shared { slots, credit: NonNull::from(Box::leak(Box::new(Credit::none()))), bulk: NonNull::dangling() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: both are from `Box::leak`, and are given back once.
        unsafe {
            drop(Box::from_raw(self.slots.as_ptr()));
            drop(Box::from_raw(self.credit.as_ptr()));
        }
    }
}

#[test]
fn messages_arrive_whole_and_in_order() {
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    loom::model(|| {
        EXECUTIONS.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Shared::new());
        let theirs = shared.clone();
        let sender = thread::spawn(move || {
            // SAFETY: one producer and one consumer, and the memory lives in `theirs`.
            let mut ring = unsafe { Producer::new(theirs.slots.cast(), theirs.credit, theirs.bulk) };
            for number in 0..MESSAGES {
                while !ring.has_slot() {
                    thread::yield_now();
                }
                ring.push(&Body::new(1, number, 0, u64::from(number)));
            }
        });
        // SAFETY: as above.
        let mut ring = unsafe { Consumer::new(shared.slots.cast(), shared.credit, shared.bulk) };
        for number in 0..MESSAGES {
            let body = loop {
                match ring.peek() {
                    Some(body) => break body,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((body.context, body.total()), (number, u64::from(number)));
            ring.advance(None);
        }
        sender.join().unwrap();
    });
    // Fewer would mean that the model does not interleave the two.
    assert!(EXECUTIONS.load(Ordering::Relaxed) > 10, "{} executions", EXECUTIONS.load(Ordering::Relaxed));
}
