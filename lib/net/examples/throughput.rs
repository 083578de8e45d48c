//! Measures the cost of the stack: two stacks in one thread, connected by queues in memory.
//!
//! `cargo run --release -p glass-lib-net --example throughput`

#[path = "../tests/all/common/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod common;

use common::{Wire, config, run};
use core::time::Duration;
use glass_api::{Listener, Net, Stream};
use glass_lib_net::Config;
use std::time::Instant;

const PORT: u16 = 80;
const BYTES: usize = 500_000_000;
const ROUND_TRIPS: u32 = 10_000;
const RUNS: usize = 5;
const LIMIT: Duration = Duration::from_secs(1000);

fn main() {
    println!("{:28} {:>10} {:>8} {:>8}", "both ends in one thread", "median", "low", "high");
    for window_kib in [64, 256, 1024] {
        for offloads in [false, true] {
            let name = format!("{window_kib} KiB, {}", if offloads { "offloads" } else { "1514-byte frames" });
            report(&name, "MB/s", || BYTES as f64 / 1e6 / bulk(window_kib << 10, offloads));
        }
    }
    for idle in [0, 100, 1000] {
        let name = format!("round trip, {idle} idle");
        report(&name, "ns", || round_trips(idle) * 1e9 / f64::from(ROUND_TRIPS));
    }
    report("connect, 1 byte, close", "ns", || connections() * 1e9 / 2000.0);
}

fn report(name: &str, unit: &str, mut measure: impl FnMut() -> f64) {
    let mut figures: Vec<f64> = (0..RUNS).map(|_| measure()).collect();
    figures.sort_by(f64::total_cmp);
    println!("{name:28} {:10.0} {:8.0} {:8.0} {unit}", figures[RUNS / 2], figures[0], figures[RUNS - 1]);
}

fn echo_server(wire: &mut Wire) {
    let right = wire.right.sockets();
    wire.spawn(async move {
        let mut listener = right.listen(PORT).await.unwrap();
        let mut buf = vec![0; 65_536];
        loop {
            let mut stream = listener.accept().await.unwrap();
            while let Ok(count @ 1..) = stream.read(&mut buf).await {
                stream.write_all(&buf[..count]).await.unwrap();
            }
            let _ = stream.close().await;
        }
    });
    wire.settle();
}

fn bulk(window_bytes: usize, offloads: bool) -> f64 {
    let sizes = Config { receive_bytes: window_bytes, send_bytes: window_bytes, ..config(2) };
    let mut wire = Wire::between(sizes, offloads);
    let right = wire.right.sockets();
    wire.spawn(async move {
        let mut stream = right.listen(PORT).await.unwrap().accept().await.unwrap();
        let data = vec![1; 65_536];
        let mut left = BYTES;
        while left > 0 {
            left -= stream.write(&data[..data.len().min(left)]).await.unwrap();
        }
        stream.close().await.unwrap();
    });
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    let begun = Instant::now();
    run(&mut wire, LIMIT, async move {
        let mut stream = left.connect(remote).await.unwrap();
        let mut buf = vec![0; 65_536];
        while stream.read(&mut buf).await.unwrap() > 0 {}
    });
    begun.elapsed().as_secs_f64()
}

/// A round trip of 64 bytes, beside idle connections.
fn round_trips(idle: usize) -> f64 {
    let sizes = Config { receive_bytes: 16_384, send_bytes: 16_384, connections_max: 2000, ..config(2) };
    let mut wire = Wire::with(sizes);
    let right = wire.right.sockets();
    wire.spawn(async move {
        let mut listener = right.listen(PORT).await.unwrap();
        let mut streams = Vec::new();
        for _ in 0..idle {
            streams.push(listener.accept().await.unwrap());
        }
        let mut stream = listener.accept().await.unwrap();
        let mut buf = [0; 64];
        while let Ok(count @ 1..) = stream.read(&mut buf).await {
            stream.write_all(&buf[..count]).await.unwrap();
        }
    });
    wire.settle();
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    let streams = run(&mut wire, LIMIT, async move {
        let mut streams = Vec::new();
        for _ in 0..=idle {
            streams.push(left.connect(remote).await.unwrap());
        }
        streams
    });
    let begun = Instant::now();
    run(&mut wire, LIMIT, async move {
        let mut streams = streams;
        let mut buf = [0; 64];
        for _ in 0..ROUND_TRIPS {
            let stream = &mut streams[idle];
            stream.write_all(&buf).await.unwrap();
            stream.read(&mut buf).await.unwrap();
        }
    });
    begun.elapsed().as_secs_f64()
}

fn connections() -> f64 {
    let mut wire = Wire::new();
    echo_server(&mut wire);
    let (left, remote) = (wire.left.sockets(), wire.right_address(PORT));
    let begun = Instant::now();
    for _ in 0..2000 {
        let left = left.clone();
        run(&mut wire, LIMIT, async move {
            let mut stream = left.connect(remote).await.unwrap();
            stream.write_all(b"x").await.unwrap();
            stream.read(&mut [0; 1]).await.unwrap();
            stream.close().await.unwrap();
            assert_eq!(stream.read(&mut [0; 1]).await, Ok(0));
        });
        // Let TIME-WAIT pass, so that there are enough sockets.
        wire.advance(Duration::from_secs(11));
    }
    begun.elapsed().as_secs_f64()
}
