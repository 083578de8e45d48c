//! The console driver against a host that reads, or does not.

use crate::Driver;
use crate::console::{Console, ConsoleConfig};
use crate::fake::{Fake, GuardedDma};
use crate::transport::{device, feature};
use alloc::vec;
use alloc::vec::Vec;

fn console(config: ConsoleConfig) -> (Fake, Console<Fake>) {
    let fake = Fake::new(device::CONSOLE, feature::EVENT_IDX, &[]);
    (fake.clone(), Console::new(fake, &GuardedDma, config).unwrap())
}

/// The host reads everything that was sent.
fn read(fake: &Fake) -> Vec<u8> {
    let mut text = Vec::new();
    while let Some(chain) = fake.with(1, |queue| queue.take()) {
        text.extend(chain.read());
        fake.with(1, |queue| queue.complete(chain.head, 0));
    }
    text
}

#[test]
fn text_is_gathered_until_the_kick() {
    let (fake, mut console) = console(ConsoleConfig::default());
    for _ in 0..10 {
        assert_eq!(console.write(b"line\n"), 5);
    }
    assert_eq!(read(&fake), []);
    console.kick();
    console.kick();
    assert_eq!(fake.notifications(), [1]);
    assert_eq!(read(&fake), b"line\n".repeat(10));
    assert_eq!(console.counters().transmit_queue.requests, 1);
    assert!(!console.poll() && !console.arm());
}

#[test]
fn a_host_that_does_not_read_loses_text_and_it_is_counted() {
    let config = ConsoleConfig { buffers: 3, buffer_bytes: 100, receive: false };
    let (fake, mut console) = console(config);
    let text: Vec<u8> = (0..350).map(|index| index as u8).collect();
    assert_eq!(console.write(&text), 300);
    assert_eq!(console.write(b"x"), 0);
    assert_eq!((console.counters().written_bytes, console.counters().dropped_bytes), (300, 51));
    assert_eq!(read(&fake), text[..300]);
    assert_eq!(console.write(b"again"), 5);
    assert!(!console.drain(10), "the host has not read it yet");
    assert_eq!(read(&fake), b"again");
    assert!(console.drain(10));
}

#[test]
fn input_arrives_in_pieces_of_any_size() {
    let (fake, mut console) = console(ConsoleConfig { receive: true, ..ConsoleConfig::default() });
    let mut bytes = [0; 7];
    assert_eq!(console.read(&mut bytes), 0);
    let mut expected = Vec::new();
    for round in 0..20u8 {
        fake.with(0, |queue| {
            let chain = queue.take().unwrap();
            let written = chain.write(&vec![round; usize::from(round)]);
            queue.complete(chain.head, written);
        });
        expected.extend(vec![round; usize::from(round)]);
        assert!(console.arm() && console.poll());
        while !expected.is_empty() {
            let count = console.read(&mut bytes);
            assert!(count > 0 && bytes[..count] == expected[..count]);
            expected.drain(..count);
        }
        assert_eq!(console.read(&mut bytes), 0);
        assert!(!console.poll());
    }
    let (fake, mut silent) = self::console(ConsoleConfig::default());
    assert!(fake.with(0, |queue| queue.take()).is_none());
    assert_eq!(silent.read(&mut bytes), 0);
}

#[test]
fn a_liar_is_not_written_to() {
    let (fake, mut console) = console(ConsoleConfig::default());
    console.write(b"text");
    console.kick();
    fake.with(1, |queue| queue.put(0, 1));
    assert!(!console.drain(10));
    assert!(!console.poll() && !console.arm());
    assert_eq!(fake.state().status, 0);
    console.write(b"more");
    console.kick();
    assert_eq!(console.counters().dropped_bytes, 4);
}
