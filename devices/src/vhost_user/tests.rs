//! Messages of QEMU, of which each is refused or obeyed.

use super::{Backend, Connection};
use crate::card::{Card, Tap};
use crate::test_guest::{AVAILABLE, DESCRIPTORS, MEMORY_BYTES, USED, message};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixDatagram, UnixStream};

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A queue's number, and a number.
fn state(index: u32, number: u32) -> Vec<u8> {
    [index, number].map(u32::to_le_bytes).concat()
}

fn card() -> Backend<Card<Tap>> {
    let (tap, _) = UnixDatagram::pair().unwrap();
    tap.set_nonblocking(true).unwrap();
    Backend::new(Card::new(Tap::from_file(OwnedFd::from(tap).into())))
}

/// Where QEMU has the guest's memory.
const QEMU: u64 = 0x7f00_0000_0000;

#[test]
fn messages_start_and_stop_a_queue() {
    let mut card = card();
    let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
    ftruncate(&memory, MEMORY_BYTES as u64).unwrap();
    let features = card.obey(message(1, &[], None)).unwrap().unwrap();
    assert_eq!(features.len(), 8);
    let table = words(&[1, 0, MEMORY_BYTES as u64, QEMU, 0]);
    let (kick, call) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let kick_end = File::from(OwnedFd::from(kick.1));
    for (request, payload, file) in [
        (3, vec![], None),
        (5, table, Some(&memory)),
        (8, state(1, 32), None),
        (10, state(1, 5), None),
        (9, words(&[1, QEMU + DESCRIPTORS, QEMU + USED, QEMU + AVAILABLE, 0]), None),
        (13, words(&[1]), Some(&File::from(OwnedFd::from(call.1)))),
        (18, state(1, 1), None),
        (12, words(&[1]), Some(&kick_end)),
    ] {
        assert_eq!(card.obey(message(request, &payload, file)).unwrap(), None, "message {request}");
    }
    assert_eq!(card.served.notifications().count(), 1);
    let offer = |next: u16| memory.write_at(&next.to_le_bytes(), AVAILABLE + 2).unwrap();
    let used = || {
        let mut index = [0; 2];
        memory.read_at(&mut index, USED + 2).unwrap();
        u16::from_le_bytes(index)
    };
    offer(6);
    card.served.work().unwrap();
    assert_eq!(used(), 1);
    // Where the queue stopped, and that it did.
    assert_eq!(card.obey(message(11, &state(1, 0), None)).unwrap(), Some(state(1, 6)));
    assert_eq!(card.served.notifications().count(), 0);
    offer(7);
    card.served.work().unwrap();
    assert_eq!(used(), 1);
}

#[test]
fn a_wrong_message_is_refused_in_one_sentence() {
    let mut card = card();
    let empty = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
    let table = words(&[1, 0, 0x1000, QEMU, 0]);
    for (request, payload, file, expected) in [
        (99, vec![], None, "the message 99, which this device does not know"),
        (2, vec![1, 2], None, "too short"),
        (8, state(2, 32), None, "the queue 2, which this device does not have"),
        (8, state(0, 31), None, "a queue of 31 descriptors"),
        (8, state(0, 1 << 20), None, "a queue of 65535 descriptors"),
        (9, words(&[0, QEMU, QEMU, QEMU, 0]), None, "outside of the guest's memory"),
        (12, words(&[0]), None, "has no file"),
        (5, table.clone(), None, "without their files"),
        (5, table, Some(&empty), "a region that its file does not have"),
        (18, state(7, 1), None, "the queue 7"),
    ] {
        let error = card.obey(message(request, &payload, file)).unwrap_err();
        assert!(format!("{error:#}").contains(expected), "message {request}: {error:#}");
    }
}

#[test]
fn a_message_that_is_too_long_or_ends_early_is_refused() {
    for (bytes, expected) in [
        (&[5, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f][..], "more than any has"),
        (&[5, 0, 0, 0, 1, 0], "has no end"),
        (&[5, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 1], "has no end"),
    ] {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).unwrap();
        drop(theirs);
        let error = Connection::new(ours).receive().unwrap_err();
        assert!(format!("{error:#}").contains(expected), "{error:#}");
    }
    let (theirs, ours) = UnixStream::pair().unwrap();
    drop(theirs);
    assert!(Connection::new(ours).receive().unwrap().is_none());
}
