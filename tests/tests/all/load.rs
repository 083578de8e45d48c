//! Many connections, and a mixed load: no transfer stalls, and afterwards the service uses no more memory than before. Only with
//! `cargo xtask test --long`.

use crate::network::{LIMIT, Service, connect, start_with};
use anyhow::Result;
use glass_tests::folder::Folder;
use glass_tests::limit::say;
use glass_tests::programs;
use glass_tests::queue::World;
use rustix::net::sockopt::set_socket_linger;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

glass_tests::in_every_world! {
    load_leaves_nothing_behind within 7200;
}

/// Connections in all, and at the same time.
const CONNECTIONS: usize = 100_000;
const AT_ONCE: usize = 1000;
/// Threads of the mixed load.
const CLIENTS: u64 = 8;
/// How long the service is left alone before its memory is measured.
const QUIET: Duration = Duration::from_secs(10);
/// Buffers of an ended connection stay for the next, and their sizes depend on how many were open.
const KEPT_BYTES: u64 = 512 << 10;
/// The memory of a process has holes, which its allocator keeps.
const HOLES_BYTES: u64 = 8 << 20;

/// What a client does with its connection.
#[derive(Debug, Clone, Copy)]
enum Use {
    /// Receives everything; the service closes first.
    Receive,
    /// Sends, and closes its half first.
    Send,
    /// Gets back what it sends.
    Echo,
    /// Resets it amid a transfer.
    Reset,
}

const USES: [Use; 4] = [Use::Receive, Use::Send, Use::Echo, Use::Reset];

/// Uses an open connection for about `bytes` bytes, and ends it.
fn exercise(mut stream: TcpStream, how: Use, bytes: usize) -> io::Result<()> {
    let mut received = Vec::new();
    match how {
        Use::Receive => {
            stream.write_all(format!("send {bytes}\n").as_bytes())?;
            stream.read_to_end(&mut received)?;
            assert_eq!(received.len(), bytes);
        }
        Use::Send => {
            stream.write_all(b"take\n")?;
            stream.write_all(&vec![1; bytes])?;
            stream.shutdown(Shutdown::Write)?;
            stream.read_to_end(&mut received)?;
            assert_eq!(received, format!("{bytes}\n").as_bytes());
        }
        Use::Echo => {
            stream.write_all(b"echo\n")?;
            let sent = vec![2; bytes.min(16 << 10)];
            received.resize(sent.len(), 0);
            for _ in 0..bytes / sent.len() {
                stream.write_all(&sent)?;
                stream.read_exact(&mut received)?;
                assert!(received == sent);
            }
        }
        Use::Reset => {
            stream.write_all(format!("send {}\n", 10 * bytes).as_bytes())?;
            received.resize(bytes, 0);
            stream.read_exact(&mut received)?;
            set_socket_linger(&stream, Some(Duration::ZERO))?;
        }
    }
    Ok(())
}

/// The memory that the service uses, in bytes.
fn memory(service: &Service) -> u64 {
    let measure = || -> Result<u64> {
        let mut stream = connect()?;
        stream.write_all(b"memory\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text.trim().parse()?)
    };
    service.near.inside(measure).unwrap()
}

/// Waits until the service uses at most so many bytes of memory; returns the least that it used.
fn memory_falls_to(service: &Service, bytes: u64, limit: Duration) -> u64 {
    let (end, mut least) = (Instant::now() + limit, memory(service));
    while least > bytes && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(500));
        least = least.min(memory(service));
    }
    least
}

/// Opens `count` connections, so many at once, and then uses and ends each.
fn open_and_close(service: &Service, count: usize, at_once: usize) {
    for round in 0..count / at_once {
        let opened: Result<Vec<TcpStream>> = service.near.inside(|| (0..at_once).map(|_| Ok(connect()?)).collect());
        for (number, stream) in opened.unwrap_or_else(|error| panic!("round {round}: {error}")).into_iter().enumerate()
        {
            let how = USES[number % USES.len()];
            exercise(stream, how, 1000).unwrap_or_else(|error| panic!("round {round}, {how:?}: {error}"));
        }
    }
}

/// Transfers by several clients at once until the time is over; returns how many.
fn mixed_load(service: &Service, duration: Duration) -> u64 {
    let (end, transfers) = (Instant::now() + duration, AtomicU64::new(0));
    let client = |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        while Instant::now() < end {
            let (how, bytes) = (USES[random.usize(..4)], 1 + random.usize(..1 << 20));
            let result = service.near.inside(|| Ok(exercise(connect()?, how, bytes)?));
            result.unwrap_or_else(|error| panic!("{how:?} of {bytes} bytes: {error}"));
            transfers.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| (1..=CLIENTS).for_each(|seed| drop(scope.spawn(move || client(seed)))));
    transfers.into_inner()
}

fn load_leaves_nothing_behind(world: World) {
    if !programs::is_long() {
        return programs::skip(
            "it takes more than half an hour: run it by --long, with GLASS_LOAD_SECONDS for a shorter load",
        );
    }
    let seconds = programs::number("GLASS_LOAD_SECONDS", 1800);
    let options: &[&str] = if world == World::Process { &[] } else { &["--memory", "1024"] };
    let Some(mut service) = start_with(world, "bench-tcp", Folder::new("load").unwrap(), options) else { return };
    open_and_close(&service, AT_ONCE, AT_ONCE);
    mixed_load(&service, Duration::from_secs(2));
    let before = memory_falls_to(&service, 0, QUIET);
    let begin = Instant::now();
    open_and_close(&service, CONNECTIONS, AT_ONCE);
    let took = begin.elapsed().as_secs_f64();
    let transfers = mixed_load(&service, Duration::from_secs(seconds));
    let slack = if world == World::Process { HOLES_BYTES } else { KEPT_BYTES };
    let after = memory_falls_to(&service, before + slack, 3 * LIMIT);
    say(&format!(
        "load {world}: {CONNECTIONS} connections, {AT_ONCE} at once, in {took:.1} s; {transfers} transfers in {seconds} s; memory {before}, then {after} bytes"
    ));
    assert!(after <= before + slack, "{before} bytes of memory were used, now {after}");
    assert!(service.process.ended().is_none(), "{}", service.process.output());
}
