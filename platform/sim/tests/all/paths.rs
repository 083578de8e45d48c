//! A table of how fast one connection sends over 20 Mbit/s: loss, round trip, queue and reordering, by congestion control.
//!
//! `GLASS_GOLDEN=write cargo test -p glass-platform-sim paths` writes `tests/golden/paths.txt` anew. `tests/golden/paths-smoltcp.txt` is the same of smoltcp's
//! TCP, which was ours until 2026-11-27 (commit 41c149ef).

use crate::common::{PORT, listen};
use core::cell::Cell;
use core::time::Duration;
use glass_api::{Clock, Net, Platform, Stream};
use glass_lib_net::{Address, Config, Congestion};
use glass_platform_sim::{LinkConfig, NodeConfig, World};
use std::fmt::Write;
use std::rc::Rc;

const BYTES_PER_SEC: u64 = 2_500_000;
/// Simulated time of a transfer, after its handshake.
const TIME: Duration = Duration::from_secs(5);
const SEED: u64 = 41;
const PIECE_BYTES: usize = 64 << 10;
/// Of a hundred thousand.
const LOSSES: [(&str, u32); 4] = [("0 %", 0), ("0.1 %", 1000), ("1 %", 10_000), ("3 %", 30_000)];
const ROUND_TRIPS_MS: [u64; 3] = [1, 40, 80];
const QUEUES_BYTES: [u64; 3] = [50_000, 100_000, 400_000];
/// A hundredth of the frames is so late that three others overtake it.
const REORDERED_PER_MILLION: [u32; 2] = [0, 10_000];
const LATE: Duration = Duration::from_micros(2200);

/// Megabytes a second that arrive.
fn mb_s(congestion: Congestion, link: &LinkConfig) -> f64 {
    let mut world = World::new(SEED);
    let network = Config { congestion, ..Config::for_memory(Address::Dhcp, 128 << 20) };
    let config = NodeConfig { network, ..NodeConfig::default() };
    let server = world.node("server", config.clone());
    let client = world.node("client", NodeConfig { link: link.clone(), ..config });
    let received = Rc::new(Cell::new(0));
    listen(&server, {
        let received = received.clone();
        move |mut stream| {
            let received = received.clone();
            async move {
                let mut buffer = vec![0; PIECE_BYTES];
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    received.set(received.get() + count);
                }
            }
        }
    });
    let (net, clock, remote) = (client.net(), client.clone(), server.endpoint(PORT));
    let sent = world.complete(&client, 10 * TIME, async move {
        let mut stream = net.connect(remote).await.expect("it is answered in time");
        let end = clock.now() + TIME;
        let piece = vec![7; PIECE_BYTES];
        let send = async { while stream.write_all(&piece).await.is_ok() {} };
        let _ = clock.timeout(end.since(clock.now()), send).await;
    });
    sent.expect("the time is over");
    received.get() as f64 / TIME.as_secs_f64() / 1e6
}

/// A line for each condition, a column for each congestion control.
fn table(controls: &[Congestion]) -> String {
    let mut text = String::from("loss    ms  queue kB  late   MB/s:");
    controls.iter().for_each(|control| _ = write!(text, " {:>6}", format!("{control:?}")));
    text.push('\n');
    for (name, loss_per_million) in LOSSES {
        for ms in ROUND_TRIPS_MS {
            for queue_bytes in QUEUES_BYTES {
                for reorder_per_million in REORDERED_PER_MILLION {
                    let delay = Duration::from_micros(500 * ms);
                    let link = LinkConfig {
                        latency: delay..delay + Duration::from_micros(10),
                        loss_per_million,
                        reorder_per_million,
                        reorder_delay: LATE..LATE + Duration::from_micros(10),
                        bytes_per_sec: Some(BYTES_PER_SEC),
                        queue_bytes,
                        ..LinkConfig::default()
                    };
                    let late = if reorder_per_million == 0 { "0 %" } else { "1 %" };
                    let _ = write!(text, "{name:6} {ms:>3} {:>9} {late:>5}        ", queue_bytes / 1000);
                    for control in controls {
                        let _ = write!(text, " {:>6.3}", mb_s(*control, &link));
                    }
                    text.push('\n');
                }
            }
        }
    }
    text
}

/// The last numbers of each line.
fn numbers(table: &str, count: usize) -> Vec<Vec<f64>> {
    let of_line = |line: &str| {
        let mut words: Vec<&str> = line.split_whitespace().rev().take(count).collect();
        words.reverse();
        words.into_iter().map(|word| word.parse().expect("it is a number")).collect()
    };
    table.lines().skip(1).map(of_line).collect()
}

#[test]
fn the_table_is_as_it_was_and_no_worse_than_that_of_smoltcp() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/paths.txt");
    let table = table(&[Congestion::Cubic, Congestion::Bbr]);
    if std::env::var("GLASS_GOLDEN").is_ok_and(|value| value == "write") {
        std::fs::write(path, &table).expect("the folder is there");
    }
    let before = include_str!("../golden/paths-smoltcp.txt");
    for (index, (new, old)) in numbers(&table, 2).iter().zip(numbers(before, 1)).enumerate() {
        let line = table.lines().nth(index + 1).unwrap_or_default();
        // Two runs of the same losses differ in what they lose.
        assert!(new.iter().all(|mb_s| *mb_s >= 0.9 * old[0]), "{line}, smoltcp {}", old[0]);
    }
    assert!(table == std::fs::read_to_string(path).unwrap_or_default(), "it has changed:\n{table}");
}
