//! The ring between two ranks under every order of memory accesses that the language allows: run with `--cfg loom`.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p glass-lib-mpi --release --test ring`, in a target folder of its own.
#![cfg(loom)]

use glass_lib_mpi::{Body, Consumer, Credit, Line, Memory, Producer, Slot};
use loom::thread;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// More than there are slots, or lines, so that the sender waits for credit.
const MESSAGES: u32 = 3;

/// The memory of a ring with two slots and two lines, freed when both ends are gone.
struct Shared {
    slots: NonNull<[Slot; 2]>,
    credit: NonNull<Credit>,
    bulk: NonNull<[Line; 2]>,
}

// SAFETY: what it points to is shared by the protocol that is tested.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Shared {
        let slots = NonNull::from(Box::leak(Box::new([Slot::empty(), Slot::empty()])));
        let bulk = NonNull::from(Box::leak(Box::new([Line::new([0; 64]), Line::new([0; 64])])));
        Shared { slots, credit: NonNull::from(Box::leak(Box::new(Credit::none()))), bulk }
    }

    fn producer(&self) -> Producer {
        // SAFETY: a model makes one, and keeps the memory while it uses it.
        unsafe { Producer::new(self.slots.cast(), self.credit, self.bulk.cast()) }
    }

    fn consumer(&self) -> Consumer {
        // SAFETY: as above.
        unsafe { Consumer::new(self.slots.cast(), self.credit, self.bulk.cast()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: all are from `Box::leak`, and are given back once.
        unsafe {
            drop(Box::from_raw(self.slots.as_ptr()));
            drop(Box::from_raw(self.credit.as_ptr()));
            drop(Box::from_raw(self.bulk.as_ptr()));
        }
    }
}

/// Explores `send` on one thread and `receive` on another.
fn explore(executions: &'static AtomicUsize, send: fn(Producer), receive: fn(Consumer)) {
    loom::model(move || {
        executions.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Shared::new());
        let theirs = shared.clone();
        let sender = thread::spawn(move || send(theirs.producer()));
        receive(shared.consumer());
        sender.join().unwrap();
    });
    // Fewer would mean that the model does not interleave the two.
    let count = executions.load(Ordering::Relaxed);
    assert!(count > 10, "{count} executions");
}

fn next(ring: &Consumer) -> Body {
    loop {
        match ring.peek() {
            Some(body) => return body,
            None => thread::yield_now(),
        }
    }
}

#[test]
fn messages_arrive_whole_and_in_order() {
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    explore(
        &EXECUTIONS,
        |mut ring| {
            for number in 0..MESSAGES {
                while !ring.has_slot() {
                    thread::yield_now();
                }
                ring.push(&Body::new(1, number, 0, u64::from(number)));
            }
        },
        |mut ring| {
            for number in 0..MESSAGES {
                let body = next(&ring);
                assert_eq!((body.context, body.total()), (number, u64::from(number)));
                ring.advance(None);
            }
        },
    );
}

/// Bytes are overwritten only after they were read. The sender looks for room for them before it looks for a slot, which would order the
/// two as well.
#[test]
fn pieces_arrive_whole_and_in_order() {
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    explore(
        &EXECUTIONS,
        |mut ring| {
            for number in 0..MESSAGES {
                let mut bytes = [number as u8; 3];
                // SAFETY: the array outlives the call that reads it.
                let piece = unsafe { Memory::new(bytes.as_mut_ptr(), bytes.len()) };
                let position = loop {
                    match ring.push_bulk(&piece) {
                        Some(position) => break position,
                        None => thread::yield_now(),
                    }
                };
                while !ring.has_slot() {
                    thread::yield_now();
                }
                ring.push(&Body::new(1, position, 0, 3));
            }
        },
        |mut ring| {
            for number in 0..MESSAGES {
                let position = next(&ring).context;
                assert_eq!(ring.bulk(position, 3), [number as u8; 3]);
                ring.advance(Some((position, 3)));
            }
        },
    );
}
