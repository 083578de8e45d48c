//! The console driver against a host that reads, or does not.

use crate::console::{Console, ConsoleConfig};
use crate::fake::{Fake, GuardedDma};
use crate::transport::{device, feature, status};
use alloc::vec;
use alloc::vec::Vec;
use glass_drivers_device::{Driver, Violation};
use std::thread;

fn console(config: ConsoleConfig) -> (Fake, Console<Fake, GuardedDma>) {
    console_with(feature::EVENT_IDX, config)
}

fn console_with(features: u64, config: ConsoleConfig) -> (Fake, Console<Fake, GuardedDma>) {
    let fake = Fake::new(device::CONSOLE, features, &[]);
    (fake.clone(), Console::new(fake, GuardedDma, config).unwrap())
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
    assert_eq!(fake.with(1, |queue| queue.available_index()), 1, "one request for all lines");
    assert_eq!(read(&fake), b"line\n".repeat(10));
    assert!(!console.poll() && !console.arm());
}

#[test]
fn a_host_that_does_not_read_loses_text() {
    let config = ConsoleConfig { buffers: 3, buffer_bytes: 100, receive: false, port: 0 };
    let (fake, mut console) = console(config);
    let text: Vec<u8> = (0..350).map(|index| index as u8).collect();
    // Two parts, neither of which ends where a buffer does.
    assert_eq!((console.write(&text[..150]), console.write(&text[150..])), (150, 150));
    assert_eq!(console.write(b"x"), 0);
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
fn another_port_is_opened_and_has_queues_of_its_own() {
    let new = |features, port| {
        // Columns and rows, then how many ports there may be.
        let fake = Fake::new(device::CONSOLE, features, &[80, 0, 25, 0, 4, 0, 0, 0]);
        let config = ConsoleConfig { port, receive: true, ..ConsoleConfig::default() };
        let console = Console::new(fake.clone(), GuardedDma, config);
        (fake, console)
    };
    let (fake, console) = new(feature::EVENT_IDX | feature::CONSOLE_MULTIPORT, 3);
    let mut console = console.unwrap();
    let mut messages = Vec::new();
    while let Some(chain) = fake.with(3, |queue| queue.take()) {
        messages.push(chain.read());
    }
    let message = |event| vec![3, 0, 0, 0, event, 0, 1, 0];
    assert_eq!(messages, [message(0), message(3), message(6)]);
    console.write(b"text");
    console.kick();
    assert_eq!(fake.notifications(), [3, 8, 9]);
    fake.with(8, |queue| {
        let chain = queue.take().unwrap();
        let written = chain.write(b"input");
        queue.complete(chain.head, written);
    });
    let mut bytes = [0; 8];
    let count = console.read(&mut bytes);
    assert_eq!(&bytes[..count], b"input");
    assert_eq!(fake.with(9, |queue| queue.take()).unwrap().read(), b"text");
    assert!(new(feature::CONSOLE_MULTIPORT, 4).1.is_err(), "there are ports 0 to 3");
    assert!(new(0, 1).1.is_err(), "there is port 0 only");
}

#[test]
fn a_liar_is_not_written_to() {
    let (fake, mut console) = console(ConsoleConfig::default());
    console.write(b"text");
    console.kick();
    fake.with(1, |queue| queue.put(0, 1));
    assert!(!console.drain(usize::MAX), "it is not waited for");
    assert!(!console.poll() && !console.arm());
    assert_eq!(fake.state().status, 0);
    fake.notifications();
    for _ in 0..100 {
        assert_eq!(console.write(&[b'x'; 1024]), 1024, "what it cannot send is dropped");
    }
    console.kick();
    assert_eq!(fake.notifications(), []);
}

#[test]
fn interrupts_come_only_while_it_is_armed() {
    for features in [feature::EVENT_IDX, 0] {
        let (fake, mut console) = console_with(features, ConsoleConfig { receive: true, ..ConsoleConfig::default() });
        let input = |wanted: bool| {
            let is_wanted = fake.with(0, |queue| {
                let chain = queue.take().unwrap();
                let written = chain.write(b"x");
                queue.complete(chain.head, written)
            });
            assert_eq!(is_wanted, wanted, "{features:#x}");
        };
        let mut bytes = [0; 8];
        for _ in 0..3 {
            assert!(!console.arm());
            input(true);
            assert!(console.arm(), "there is input");
            console.disarm();
            assert_eq!(console.read(&mut bytes), 1);
            input(false);
            assert_eq!(console.read(&mut bytes), 1);
        }
        // Of the way out only a writer that waits wants to hear.
        for waits in [true, false] {
            console.write(b"text");
            console.kick();
            if waits {
                console.want_space();
            }
            assert!(!console.arm());
            let is_wanted = fake.with(1, |queue| {
                let chain = queue.take().unwrap();
                queue.complete(chain.head, 0)
            });
            assert_eq!(is_wanted, waits, "{features:#x}");
            assert_eq!(console.poll(), waits);
            assert_eq!(console.take_space_freed(), waits);
            console.disarm();
        }
    }
}

#[test]
fn a_device_that_has_given_up_is_noticed_when_it_interrupts() {
    let (fake, mut console) = console(ConsoleConfig::default());
    assert!(!console.arm());
    fake.state().status |= status::NEEDS_RESET;
    assert!(!console.arm() && console.violation().is_none(), "the status is not read without a reason");
    console.acknowledge();
    assert_eq!(fake.state().acknowledged, 1);
    console.want_space();
    assert!(console.arm(), "who waits for room must not sleep");
    assert_eq!(console.violation(), Some(Violation::NeedsReset));
    assert!(console.poll() && console.arm(), "nor who has not heard yet that there is room");
    assert!(console.take_space_freed() && console.has_space(1 << 20) && !console.arm());
    assert_eq!(fake.state().status, 0);
}

#[test]
fn a_console_takes_the_features_that_it_knows() {
    for (port, known) in [(0, feature::EVENT_IDX), (1, feature::EVENT_IDX | feature::CONSOLE_MULTIPORT)] {
        let fake = Fake::new(device::CONSOLE, u64::MAX, &[80, 0, 25, 0, 4, 0, 0, 0]);
        Console::new(fake.clone(), GuardedDma, ConsoleConfig { port, ..ConsoleConfig::default() }).unwrap();
        assert_eq!(fake.state().accepted, known | feature::VERSION_1);
    }
}

#[test]
fn room_is_counted_in_bytes() {
    let config = ConsoleConfig { buffers: 3, buffer_bytes: 100, receive: false, port: 0 };
    let (fake, mut console) = console(config);
    assert!(console.has_space(300) && console.has_space(301), "there is never room for more");
    console.write(&[b'x'; 30]);
    assert!(console.has_space(270) && !console.has_space(271) && !console.has_space(301));
    console.write(&[b'x'; 100]);
    assert!(console.has_space(170) && !console.has_space(171));
    console.write(&[b'x'; 169]);
    assert!(console.has_space(1) && !console.has_space(2));
    // What the host has read is room again, and what is being filled is not.
    read(&fake);
    assert!(console.has_space(201) && !console.has_space(202));
}

/// A writer that is to be informed twice, before it has looked, is informed.
#[test]
fn room_that_came_is_reported_until_it_is_taken() {
    let (fake, mut console) = console(ConsoleConfig::default());
    for _ in 0..2 {
        console.want_space();
        console.write(b"text");
        console.kick();
        assert_eq!(read(&fake), b"text");
        assert!(console.poll() && console.arm());
    }
    assert!(console.take_space_freed() && !console.take_space_freed());
    assert!(!console.poll() && !console.arm());
}

#[test]
fn a_read_goes_on_in_the_next_buffer() {
    let (fake, mut console) = console(ConsoleConfig { receive: true, ..ConsoleConfig::default() });
    for text in ["abc", "defgh", "ij"] {
        fake.with(0, |queue| {
            let chain = queue.take().unwrap();
            let written = chain.write(text.as_bytes());
            queue.complete(chain.head, written);
        });
    }
    let mut bytes = [0; 5];
    assert_eq!((console.read(&mut bytes), &bytes), (5, b"abcde"));
    assert_eq!((console.read(&mut bytes), &bytes), (5, b"fghij"));
    assert_eq!(console.read(&mut bytes), 0);
}

#[test]
fn input_that_was_read_in_part_is_work() {
    let (fake, mut console) = console(ConsoleConfig { receive: true, ..ConsoleConfig::default() });
    fake.with(0, |queue| {
        let chain = queue.take().unwrap();
        let written = chain.write(b"input");
        queue.complete(chain.head, written);
    });
    assert_eq!(console.read(&mut [0; 2]), 2);
    assert!(console.poll() && console.arm());
    assert_eq!(console.read(&mut [0; 8]), 3);
    assert!(!console.poll() && !console.arm());
}

/// The report of a crash is sent by a core that does nothing else.
#[test]
fn draining_waits_for_a_slow_host() {
    let (fake, mut console) = console(ConsoleConfig::default());
    console.write(b"text");
    let host = thread::spawn(move || {
        while fake.notifications().is_empty() {
            thread::yield_now();
        }
        (0..1000).for_each(|_| thread::yield_now());
        read(&fake)
    });
    assert!(console.drain(usize::MAX));
    assert_eq!(host.join().unwrap(), b"text");
}

#[test]
fn a_console_that_gave_up_is_started_again() {
    for waits in [true, false] {
        let (fake, mut console) = console(ConsoleConfig { receive: true, ..ConsoleConfig::default() });
        console.write(b"lost");
        if waits {
            console.want_space();
        }
        fake.state().status |= status::NEEDS_RESET;
        console.acknowledge();
        console.arm();
        assert_eq!(console.violation(), Some(Violation::NeedsReset));
        console.restart().unwrap();
        assert_eq!((console.violation(), console.poll(), console.take_space_freed()), (None, waits, waits));
        console.write(b"text");
        console.kick();
        assert_eq!(read(&fake), b"text");
        fake.with(0, |queue| {
            let chain = queue.take().expect("it may write input again");
            let written = chain.write(b"input");
            queue.complete(chain.head, written);
        });
        assert_eq!(console.read(&mut [0; 8]), 5);
        // A notice that has come and was not taken yet stays.
        console.want_space();
        console.write(b"text");
        console.kick();
        read(&fake);
        assert!(console.poll());
        console.restart().unwrap();
        assert!(console.take_space_freed() && !console.take_space_freed());
    }
}
