//! How long 2 MB take over networks of different kinds, with and without congestion control.
//!
//! `cargo run --release -p glass-platform-sim --example congestion`

#[path = "../tests/all/common/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod common;

use common::{PORT, listen, read_to_end};
use core::time::Duration;
use glass_api::{Net, Platform, Stream};
use glass_lib_net::{Address, Config, Congestion};
use glass_platform_sim::{LinkConfig, NodeConfig, World};

const BYTES: usize = 2_000_000;
const SEEDS: u64 = 9;
const LIMIT: Duration = Duration::from_secs(1000);

fn main() {
    let good = LinkConfig::default;
    let far = Duration::from_micros(5000)..Duration::from_micros(5100);
    let mb_per_sec = |mb: u64| Some(mb * 1_000_000);
    let links = [
        ("good", good()),
        ("bad", LinkConfig::bad()),
        ("0.1 % lost", LinkConfig { loss_per_million: 1000, ..good() }),
        ("2 % overtaken", LinkConfig { reorder_per_million: 20_000, ..good() }),
        ("1 % repeated", LinkConfig { duplicate_per_million: 10_000, ..good() }),
        ("10 MB/s, queue 60 kB", LinkConfig { bytes_per_sec: mb_per_sec(10), queue_bytes: 60_000, ..good() }),
        ("100 MB/s, queue 256 kB", LinkConfig { bytes_per_sec: mb_per_sec(100), queue_bytes: 256_000, ..good() }),
        (
            "10 MB/s, queue 200 kB, 20 ms",
            LinkConfig { latency: far, bytes_per_sec: mb_per_sec(10), queue_bytes: 200_000, ..good() },
        ),
    ];
    println!("{:30} {:6} {:>8} {:>8} {:>8}", "each cable", "", "median s", "low", "high");
    for (name, link) in links {
        for congestion in [Congestion::None, Congestion::Reno] {
            let mut seconds: Vec<f64> = (0..SEEDS).map(|seed| transfer(seed, &link, congestion)).collect();
            seconds.sort_by(f64::total_cmp);
            let (low, median, high) = (seconds[0], seconds[seconds.len() / 2], seconds[seconds.len() - 1]);
            println!("{name:30} {:6} {median:8.3} {low:8.3} {high:8.3}", format!("{congestion:?}"));
        }
    }
}

/// Simulated seconds, or infinity when the limit was not enough.
fn transfer(seed: u64, link: &LinkConfig, congestion: Congestion) -> f64 {
    let mut world = World::new(seed);
    let network = Config { congestion, ..Config::for_memory(Address::Dhcp, 128 << 20) };
    let config = NodeConfig { link: link.clone(), network, ..NodeConfig::default() };
    let server = world.node("server", config.clone());
    let client = world.node("client", config);
    listen(&server, |mut stream| async move {
        if read_to_end(&mut stream, 65_536).await.is_ok() {
            let _ = stream.close().await;
        }
    });
    let (net, remote) = (client.net(), server.endpoint(PORT));
    let sent = world.complete(&client, LIMIT, async move {
        let mut stream = net.connect(remote).await?;
        stream.write_all(&vec![1; BYTES]).await?;
        stream.close().await?;
        stream.read(&mut [0; 1]).await
    });
    match sent {
        Ok(Ok(_)) => world.now().0 as f64 / 1e9,
        _ => f64::INFINITY,
    }
}
