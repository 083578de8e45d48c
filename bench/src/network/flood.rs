//! `network flood`: how clients connect while others, who do not exist, begin handshakes and never end them.

use super::{LIMIT, PORT, is_impossible, vm};
use crate::figure::Figure;
use crate::outcome::Outcome;
use crate::run::Run;
use crate::statistics::percentile_of;
use anyhow::{Context, Result, ensure};
use glass_tests::folder::Folder;
use glass_tests::netns::Namespace;
use glass_tests::queue::World;
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Clients that connect, and the time from one to the next.
const CLIENTS: u32 = 100;
const CLIENTS_SHORT: u32 = 5;
const CLIENT_EVERY: Duration = Duration::from_millis(200);
/// The time from one SYN to the next: 200 a second.
const SYN_EVERY: Duration = Duration::from_millis(5);
/// A client that waits for longer is not counted as connected: a SYN that was dropped is retransmitted after a second.
const CONNECTED_WITHIN: Duration = Duration::from_secs(10);

/// Each VM without a flood, and then with one.
pub(super) fn flood(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if is_impossible(outcome) {
        return Ok(());
    }
    let count = run.size(CLIENTS, CLIENTS_SHORT);
    let folder = Folder::new("bench-network")?;
    let near = Namespace::new()?;
    let worlds = outcome.available([World::Kvm, World::Tcg]);
    let steps = 2 * worlds.len();
    for (number, world) in (1..).zip(worlds) {
        let vm = vm(world, number, "bench-tcp", &world.to_string(), "", &near, &folder)?;
        let SocketAddr::V4(address) = vm.address else { continue };
        // Until it listens.
        near.inside(|| super::connect(address.into(), "echo\n").map(drop))?;
        let quiet = near.inside(|| clients(address, count))?;
        run.done(2 * usize::from(number) - 1, steps);
        let is_over = AtomicBool::new(false);
        let (flooded, sent) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| near.inside(|| send_syns(address, &is_over)));
            let times = near.inside(|| clients(address, count));
            is_over.store(true, Ordering::Relaxed);
            let sent = sender.join().expect("sending does not panic");
            Ok::<_, anyhow::Error>((times?, sent?))
        })?;
        run.done(2 * usize::from(number), steps);
        let name = |what: &str| format!("network.{world}.{what}");
        let [quiet_p99, flooded_p99] = [&quiet, &flooded].map(|times| percentile_of(times, 0.99).unwrap_or(0.0));
        outcome.add(Figure::of(&name("connect_us"), "us", &quiet));
        outcome.add(Figure::of(&name("connect_flooded_us"), "us", &flooded));
        outcome.add(Figure::of(&name("connect_p99_us"), "us", &[quiet_p99]));
        let flooded_figure = Figure::of(&name("connect_flooded_p99_us"), "us", &[flooded_p99]);
        outcome.add(flooded_figure.map(|figure| figure.against("without a flood", quiet_p99)));
        outcome.note(format!("{world}: {sent} SYNs of others; of {count} clients {} connected", flooded.len()));
        ensure!(quiet.len() == count as usize, "of {count} clients {} connected without a flood", quiet.len());
        run.figures(outcome);
    }
    outcome.note(format!(
        "connect: the handshake and a round trip of one byte of {CLIENTS} clients, one every {} ms; flooded: with 200 SYNs a second from addresses without a host",
        CLIENT_EVERY.as_millis()
    ));
    Ok(())
}

/// How long a handshake and a round trip of one byte take the clients that connect, in microseconds.
fn clients(address: SocketAddrV4, count: u32) -> Result<Vec<f64>> {
    let begin = Instant::now();
    let mut times = Vec::new();
    for number in 0..count {
        std::thread::sleep((begin + CLIENT_EVERY * number).saturating_duration_since(Instant::now()));
        let start = Instant::now();
        let Ok(mut stream) = TcpStream::connect_timeout(&address.into(), CONNECTED_WITHIN) else { continue };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(b"echo\nx")?;
        stream.read_exact(&mut [0])?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

/// Sends SYNs from addresses without a host until `is_over`; returns how many.
fn send_syns(address: SocketAddrV4, is_over: &AtomicBool) -> Result<u32> {
    let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW)).context("cannot send raw packets")?;
    let begin = Instant::now();
    let mut sent = 0;
    while !is_over.load(Ordering::Relaxed) {
        std::thread::sleep((begin + SYN_EVERY * sent).saturating_duration_since(Instant::now()));
        sendto(&raw, &syn(sent, *address.ip()), SendFlags::empty(), &SocketAddrV4::new(*address.ip(), 0))?;
        sent += 1;
    }
    Ok(sent)
}

/// An IPv4 packet with a SYN to [`PORT`] (RFC 791 section 3.1, RFC 9293 section 3.1). The kernel adds the checksum of the IPv4 header.
fn syn(number: u32, to: Ipv4Addr) -> [u8; 40] {
    // Of a network for documentation (RFC 5737): no host answers.
    let from = Ipv4Addr::new(198, 51, 100, (number % 250) as u8 + 1);
    let mut packet = [0; 40];
    packet[..12].copy_from_slice(&[0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    packet[12..16].copy_from_slice(&from.octets());
    packet[16..20].copy_from_slice(&to.octets());
    packet[20..22].copy_from_slice(&(1024 + (number % 60_000) as u16).to_be_bytes());
    packet[22..24].copy_from_slice(&PORT.to_be_bytes());
    packet[24..28].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_be_bytes());
    // Five words of header, SYN, a window of 64,240 bytes.
    packet[32..36].copy_from_slice(&[0x50, 0x02, 0xfa, 0xf0]);
    let (words, _) = packet[12..].as_chunks::<2>();
    // The addresses and the segment, and of the pseudo header the protocol and the length.
    let sum = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum::<u32>() + 6 + 20;
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    packet[36..38].copy_from_slice(&checksum.to_be_bytes());
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_syn_has_the_checksum_that_its_receiver_computes() {
        for number in [0, 1, 0x1234_5678] {
            let packet = syn(number, Ipv4Addr::new(10, 77, 1, 2));
            let (words, _) = packet[12..].as_chunks::<2>();
            let mut sum = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum::<u32>() + 6 + 20;
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            assert_eq!(sum, 0xffff, "{number}");
        }
    }
}
