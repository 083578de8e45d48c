//! Transfers over a device that loses frames, between our TCP and that of Linux.

use crate::network::{connect, start};
use glass_tests::limit::say;
use glass_tests::programs;
use glass_tests::queue::World;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

glass_tests::in_every_world! {
    transfers_end_although_frames_are_lost within 600;
}

const LOST_PER_MILLE: u32 = 50;
const TRANSFERS: usize = 5;
const BYTES: usize = 1 << 20;

/// Receives `BYTES` bytes from the service; returns the longest pause.
fn receive(mut stream: TcpStream) -> Duration {
    stream.write_all(format!("send {BYTES}\n").as_bytes()).unwrap();
    let (mut received, mut longest, mut buffer) = (0, Duration::ZERO, vec![0; 64 << 10]);
    loop {
        let begin = Instant::now();
        let bytes = stream.read(&mut buffer).unwrap();
        longest = longest.max(begin.elapsed());
        if bytes == 0 {
            assert_eq!(received, BYTES);
            return longest;
        }
        received += bytes;
    }
}

/// Sends `BYTES` bytes to the service and waits for its count; returns the longest pause.
fn send(mut stream: TcpStream) -> Duration {
    stream.write_all(b"take\n").unwrap();
    let (mut longest, piece) = (Duration::ZERO, vec![1; 16 << 10]);
    for _ in 0..BYTES / piece.len() {
        let begin = Instant::now();
        stream.write_all(&piece).unwrap();
        longest = longest.max(begin.elapsed());
    }
    stream.shutdown(Shutdown::Write).unwrap();
    let (begin, mut answer) = (Instant::now(), String::new());
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, format!("{BYTES}\n"));
    longest.max(begin.elapsed())
}

fn transfers_end_although_frames_are_lost(world: World) {
    let Some(service) = start(world, "bench-tcp") else { return };
    let device = if world == World::Process { "veth0" } else { "tap0" };
    if let Some(reason) = service.near.lose(device, LOST_PER_MILLE).unwrap() {
        return programs::skip(&reason);
    }
    for (direction, transfer) in [("sent", receive as fn(TcpStream) -> Duration), ("received", send)] {
        let transfer = || {
            let begin = Instant::now();
            Ok((transfer(connect()?), begin.elapsed()))
        };
        for _ in 0..TRANSFERS {
            let (longest, took) = service.near.inside(transfer).unwrap();
            say(&format!("loss {world}: {BYTES} bytes {direction} in {took:.2?}, longest pause {longest:.2?}"));
        }
    }
}
