//! Guests whose cores write to their queues while the device reads them, whatever the specification has. The device keeps answering QEMU,
//! and keeps to its memory.
//!
//! `GLASS_HOSTILE_SECONDS=60` attacks for longer than a test; `--nocapture` shows the figures.

use crate::model::{self, FLUSH, Guest, MEMORY_BYTES, Model, NEXT, SIZE, TABLE, WRITE, place};
use glass_tests::folder::Folder;
use glass_tests::netns::{Namespace, obstacle};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use vm_memory::{Bytes, GuestAddress};

/// What the process may have of its own.
const MEMORY_KIB_MAX: u64 = 64 << 10;
/// How long an answer may take: what a busy host needs, and far less than a device that is held.
const ANSWER_MAX: Duration = Duration::from_secs(5);
const TABLES: u64 = 0x40_0000;
const DATA: u64 = 0x100_0000;

/// What a guest does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attack {
    /// It offers what needs no work of the host, as fast as it is given back.
    Ahead,
    /// The same, as fast as the disk takes it: it sees that by the bytes that the disk clears for its name.
    Follow,
    /// The same, with as many pieces as a table has room for.
    Pieces,
    /// Any bytes anywhere in its queues.
    Chaos,
    /// An index that is ahead of its queue.
    Jump,
}

fn seconds() -> f64 {
    std::env::var("GLASS_HOSTILE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0.5)
}

/// Pieces of a chain of [`Attack::Follow`].
const PIECES: u32 = 400;
/// Chains of [`Attack::Follow`], and the byte of a name that each has cleared.
const NAMES: u16 = 64;
fn name(index: u16) -> u64 {
    DATA + 0x1000 + u64::from(index % NAMES) * 64
}

/// Writes chains into all descriptors of a queue, and all of them into its ring.
fn prepare(guest: &Guest, queue: u64, attack: Attack, is_disk: bool) {
    let place = place(queue);
    let table = TABLES + queue * 0x20_0000;
    // Of requests for the name of a disk.
    guest.write(8_u32, DATA);
    if attack == Attack::Follow {
        for index in 0..NAMES {
            let table = TABLES + u64::from(index) * 0x4000;
            guest.descriptor(place.descriptors, index.into(), table, PIECES * 16, TABLE, 0);
            // Pieces without bytes in between, for which the disk needs some time.
            for piece in 0..PIECES {
                let (address, bytes, flags) = match piece {
                    0 => (DATA, 16, NEXT),
                    1 => (name(index), 20, NEXT | WRITE),
                    _ if piece + 1 == PIECES => (DATA + 64, 1, WRITE),
                    _ => (DATA, 0, NEXT | WRITE),
                };
                guest.descriptor(table, piece.into(), address, bytes, flags, piece as u16 + 1);
            }
            guest.write(1_u8, name(index));
        }
        for index in 0..u64::from(SIZE) {
            guest.write(index as u16 % NAMES, place.available + 4 + index * 2);
        }
        return;
    }
    for index in 0..u64::from(SIZE) / 2 {
        let at = place.descriptors;
        match attack {
            Attack::Pieces => guest.descriptor(at, index * 2, table, 65535 * 16, TABLE, 0),
            _ if is_disk => {
                guest.descriptor(at, index * 2, DATA, 16, NEXT, (index * 2 + 1) as u16);
                guest.descriptor(at, index * 2 + 1, DATA + 64, 1, WRITE, 0);
            }
            // Nothing in it: it is no buffer, and no frame.
            _ => guest.descriptor(at, index * 2, DATA, 0, if queue == 0 { WRITE } else { 0 }, 0),
        }
    }
    for index in 0..u64::from(SIZE) {
        guest.write((index * 2 % u64::from(SIZE)) as u16, place.available + 4 + index * 2);
    }
    if attack == Attack::Pieces {
        // Half of them one byte, half of them none.
        for index in 0..65535_u64 {
            let flags = if queue == 0 && !is_disk { WRITE | NEXT } else { NEXT };
            guest.descriptor(table, index, DATA + index * 16, (index % 2) as u32, flags, (index + 1) as u16);
        }
    }
}

/// A core of the guest, until `is_over`.
fn core(guest: &Guest, queues: u32, attack: Attack, seed: u64, kicks: &[OwnedFd], is_over: &AtomicBool) {
    let mut random = seed;
    let mut next = || {
        // xorshift64
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut taken = 0_u16;
    while !is_over.load(Ordering::Relaxed) {
        for queue in 0..queues {
            let place = place(queue.into());
            match attack {
                Attack::Ahead | Attack::Pieces => {
                    let used: u16 = guest.0.load(GuestAddress(place.used + 2), Ordering::Acquire).unwrap();
                    let ahead = used.wrapping_add(SIZE);
                    guest.0.store(ahead, GuestAddress(place.available + 2), Ordering::Release).unwrap();
                }
                Attack::Follow => {
                    guest
                        .0
                        .store(taken.wrapping_add(NAMES), GuestAddress(place.available + 2), Ordering::Release)
                        .unwrap();
                    while guest.read::<u8>(name(taken)) == 0 {
                        guest.write(1_u8, name(taken));
                        taken = taken.wrapping_add(1);
                        guest
                            .0
                            .store(taken.wrapping_add(NAMES), GuestAddress(place.available + 2), Ordering::Release)
                            .unwrap();
                    }
                }
                Attack::Jump => {
                    let used: u16 = guest.0.load(GuestAddress(place.used + 2), Ordering::Acquire).unwrap();
                    let ahead = used.wrapping_add(SIZE + 1);
                    guest.0.store(ahead, GuestAddress(place.available + 2), Ordering::Release).unwrap();
                }
                Attack::Chaos => {
                    let bytes = next();
                    let at = place.descriptors + next() % 0xc000;
                    match bytes % 4 {
                        0 => guest.write(next() as u16, at),
                        1 => guest.write(next() % (MEMORY_BYTES as u64 + 0x1000), at & !15),
                        2 => guest
                            .write(u128::from(next() % 15) | u128::from(next() % 70_000) << 64, DATA + next() % 0x1000),
                        _ => {
                            let index: u16 = guest.read(place.used + 2);
                            guest.write(index.wrapping_add((next() % 300) as u16), place.available + 2);
                        }
                    }
                    let small = next() % u64::from(SIZE);
                    guest.descriptor(
                        place.descriptors,
                        small,
                        DATA + next() % 0x1000,
                        (next() % 5000) as u32,
                        (next() % 8) as u16,
                        (next() % 256) as u16,
                    );
                }
            }
            let _ = rustix::io::write(&kicks[queue as usize], &1_u64.to_ne_bytes());
        }
    }
}

/// What the model of QEMU has seen.
#[derive(Debug, Default)]
struct Figures {
    answers: Vec<Duration>,
    memory_kib_max: u64,
    broken: u64,
    given_back: u64,
}

/// Stops and starts the queues, as QEMU does, and measures.
fn watch(model: &Model, until: Instant) -> Figures {
    let mut figures = Figures::default();
    while Instant::now() < until {
        for queue in 0..model.queues {
            let used = |model: &Model| model.guest.read::<u16>(place(queue.into()).used + 2);
            let before = used(model);
            let start = Instant::now();
            model.features();
            figures.answers.push(start.elapsed());
            thread::sleep(Duration::from_millis(2));
            let start = Instant::now();
            let next = model.stop(queue);
            figures.answers.push(start.elapsed());
            figures.given_back += u64::from(used(model).wrapping_sub(before));
            figures.broken += model.broken(queue as usize);
            model.run(queue, next);
        }
        let own: u64 = model.status("RssAnon").trim_end_matches(" kB").parse().unwrap();
        figures.memory_kib_max = figures.memory_kib_max.max(own);
    }
    figures.answers.sort();
    figures
}

fn attack(model: Model, attack: Attack, is_disk: bool) {
    for queue in 0..model.queues {
        prepare(&model.guest, queue.into(), attack, is_disk);
    }
    let is_over = AtomicBool::new(false);
    let queues = model.queues;
    let kicks: Vec<OwnedFd> = (0..queues as usize).map(|queue| model.kick(queue)).collect();
    let mut figures = thread::scope(|scope| {
        let cores = if attack == Attack::Chaos { 2 } else { 1 };
        for seed in 1..=cores {
            let (guest, kicks, is_over) = (&model.guest, &kicks, &is_over);
            scope.spawn(move || core(guest, queues, attack, seed << 32 | 0x9e37_79b9, kicks, is_over));
        }
        let figures = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            watch(&model, Instant::now() + Duration::from_secs_f64(seconds()))
        }));
        is_over.store(true, Ordering::Relaxed);
        figures.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let name = if is_disk { "disk" } else { "card" };
    let (count, longest) = (figures.answers.len(), figures.answers[figures.answers.len() - 1]);
    println!(
        "{name} {attack:?}: {count} answers, median {:?}, longest {longest:?}; {} KiB; {} given back; broken {} times",
        figures.answers[count / 2],
        figures.memory_kib_max,
        figures.given_back,
        figures.broken
    );
    figures.answers.clear();
    assert!(longest < ANSWER_MAX, "{longest:?}");
    assert!(figures.memory_kib_max < MEMORY_KIB_MAX, "{figures:?}");
    match attack {
        Attack::Ahead | Attack::Follow | Attack::Pieces => assert!(figures.given_back > 0, "{figures:?}"),
        Attack::Chaos | Attack::Jump => assert!(figures.broken > 0, "{figures:?}"),
    }
    let (code, printed) = model.end();
    assert_eq!(code, Some(0), "{printed}");
    // A guest can write as much as it likes, but not into the device's log.
    assert!(printed.lines().count() <= 10, "{printed}");
    assert_eq!(printed.contains("the guest broke queue 0"), figures.broken > 0, "{printed}");
}

fn of_disk(kind: Attack) {
    if !model::has_disk() {
        return;
    }
    let folder = Folder::new(&format!("hostile-disk-{kind:?}")).unwrap();
    let path = model::disk(&folder);
    attack(Model::start(&folder, None, &["disk", &path], 1, FLUSH), kind, true);
}

fn of_card(kind: Attack) {
    if let Some(reason) = obstacle() {
        println!("skipped: {reason}");
        return;
    }
    let folder = Folder::new(&format!("hostile-card-{kind:?}")).unwrap();
    let namespace = Namespace::new().unwrap();
    namespace.tap("tap0", Ipv4Addr::new(10, 77, 0, 1)).unwrap();
    const MERGED_BUFFERS: u64 = 1 << 15;
    attack(Model::start(&folder, Some(namespace.command("env")), &["tap", "tap0"], 2, MERGED_BUFFERS), kind, false);
}

#[test]
fn a_guest_that_stays_ahead_does_not_hold_a_disk() {
    of_disk(Attack::Ahead);
}

#[test]
fn a_guest_that_stays_ahead_does_not_hold_a_card() {
    of_card(Attack::Ahead);
}

#[test]
fn a_guest_that_follows_a_disk_does_not_hold_it() {
    of_disk(Attack::Follow);
}

#[test]
fn requests_of_many_pieces_do_not_hold_a_disk() {
    of_disk(Attack::Pieces);
}

#[test]
fn buffers_of_many_pieces_do_not_hold_a_card() {
    of_card(Attack::Pieces);
}

#[test]
fn cores_that_write_anything_do_not_hold_a_disk() {
    of_disk(Attack::Chaos);
}

#[test]
fn cores_that_write_anything_do_not_hold_a_card() {
    of_card(Attack::Chaos);
}

#[test]
fn a_broken_queue_of_a_disk_rests() {
    of_disk(Attack::Jump);
}

#[test]
fn broken_queues_of_a_card_rest() {
    of_card(Attack::Jump);
}
