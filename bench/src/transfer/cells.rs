//! `queue cells`: uploads and downloads of 4 KiB, 1 MiB and 1 GiB by 1, 8 and 64 clients, with and without TLS, of the queue as a process and as a VM, beside nginx,
//! whose clients flush each file or not, and tusd; how many flushes an upload takes; and handshakes.

use super::servers::{Contestant, Kind, MEMORY_MIB, Place, contestants};
use super::turn::{BOUNDED_BYTES, BOUNDED_CELL, BYTES_MAX, CLIENTS, Plan, SIZES, Turn};
use crate::figure::Figure;
use crate::outcome::{Outcome, in_turn};
use crate::run::Run;
use crate::statistics::Summary;
use anyhow::{Context, Result};
use glass_tests::netns;
use glass_tests::queue::World;
use std::cell::Cell;
use std::time::Duration;

/// Turns of each contestant; of cells that only `--long` measures.
const ROUNDS: usize = 5;
const ROUNDS_LONG_CELLS: usize = 3;
/// After this time no client begins a further upload; a download is cut off.
const DURATION: Duration = Duration::from_millis(800);
const DURATION_LONG: Duration = Duration::from_secs(2);
const DURATION_SHORT: Duration = Duration::from_millis(20);
const DISK: &str = "4G";
const DISK_LONG: &str = "10G";
const DISK_SHORT: &str = "256M";

pub const FLUSHES: &str = "flushes_per_put";
pub const HANDSHAKES: &str = "tls_handshakes_s";
/// The cell whose flushes are counted.
pub const COUNTED_CELL: &str = "put.4kx64";

/// Behind a pair of Ethernet devices, and for a VM a TAP device.
pub(super) fn cells(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if let Some(reason) = netns::obstacle() {
        outcome.skip(reason);
        return Ok(());
    }
    let contestants = contestants(outcome);
    let place = Place::new(if run.is_long() { DISK_LONG } else { run.size(DISK, DISK_SHORT) })?;
    let turns: Vec<Cell<usize>> = contestants.iter().map(|_| Cell::new(0)).collect();
    let measure = |index: usize| {
        let contestant = &contestants[index];
        let round = turns[index].replace(turns[index].get() + 1);
        plan(contestant, run, round)
            .measure(&place)
            .with_context(|| format!("{} {}", contestant.name(), contestant.line()))
    };
    in_turn(outcome, contestants.len(), ROUNDS, run, measure, |outcome, turns| add(outcome, &contestants, turns))?;
    note(outcome);
    Ok(())
}

/// What a contestant measures in this round.
fn plan<'a>(contestant: &'a Contestant, run: &Run, round: usize) -> Plan<'a> {
    let is_long = |name: &str| name.starts_with("put.1g") && !name.ends_with("x1");
    let wants = |name: &String| {
        // A short run shows that it works, with few starts.
        let is_left_out = run.is_short() && (name.contains("1m") || name.ends_with("x8"));
        has(contestant, name)
            && !is_left_out
            && (!is_long(name) || run.is_short() || run.is_long() && round < ROUNDS_LONG_CELLS)
            && run.only().is_none_or(|only| figure(contestant, name).contains(only))
    };
    let duration = if run.is_long() { DURATION_LONG } else { DURATION };
    Plan {
        contestant,
        wanted: names().into_iter().filter(wants).collect(),
        upload: run.size(DURATION, DURATION_SHORT),
        download: run.size(duration, DURATION_SHORT),
        handshake: run.size(DURATION_LONG, DURATION_SHORT),
        compares_long: round == 0,
        is_short: run.is_short(),
        has_new_disk: run.is_long(),
    }
}

/// What can be measured, in the order of the figures.
fn names() -> Vec<String> {
    let cells = ["put", "get"].into_iter().flat_map(|direction| {
        SIZES.iter().flat_map(move |(size, ..)| CLIENTS.map(|clients| format!("{direction}.{size}x{clients}")))
    });
    cells.chain([FLUSHES, HANDSHAKES].map(str::to_owned)).collect()
}

/// Whether a contestant has this figure.
fn has(contestant: &Contestant, name: &str) -> bool {
    let is_measured = match contestant.kind {
        Kind::Queue(_) | Kind::Nginx { are_flushed: false } => true,
        Kind::Nginx { are_flushed: true } => name.starts_with("put"),
        Kind::Tusd(_) => name != BOUNDED_CELL,
        Kind::Nats(_) => name.starts_with("put.4k"),
    };
    is_measured && (name != HANDSHAKES || contestant.is_tls)
}

/// The name of a figure.
fn figure(contestant: &Contestant, name: &str) -> String {
    match (name, &contestant.kind) {
        (FLUSHES, Kind::Queue(World::Process)) if !contestant.is_tls => format!("queue.{FLUSHES}"),
        (FLUSHES, _) if !contestant.is_tls => format!("queue.{}.{FLUSHES}", contestant.name()),
        (FLUSHES, _) => format!("queue.{}.tls.{FLUSHES}", contestant.name()),
        (HANDSHAKES, _) => format!("queue.{}.{HANDSHAKES}", contestant.name()),
        _ => format!("queue.{}.{}.{name}_mib_s", contestant.name(), contestant.line()),
    }
}

/// The peers of a queue's figure: nginx as durable as the queue, and without that where the queue has to be as fast.
fn peers(name: &str) -> &'static [&'static str] {
    match name {
        FLUSHES => &[],
        _ if name.starts_with("put.1g") => &["nginx_synced", "nginx"],
        _ if name.starts_with("put") => &["nginx_synced"],
        _ => &["nginx"],
    }
}

fn add(outcome: &mut Outcome, contestants: &[Contestant], turns: &[Vec<Turn>]) {
    let samples = |index: usize, name: &str| -> Vec<f64> {
        let of = |turn: &Turn| turn.iter().find(|(found, _)| found == name).map(|(_, value)| *value);
        turns[index].iter().filter_map(of).collect()
    };
    for (index, contestant) in contestants.iter().enumerate() {
        for name in &names() {
            let unit = match name.as_str() {
                FLUSHES => "flushes",
                HANDSHAKES => "1/s",
                _ => "MiB/s",
            };
            let Some(figure) = Figure::of(&figure(contestant, name), unit, &samples(index, name)) else { continue };
            let median = |peer: &str| {
                let of_peer = |other: &Contestant| other.name() == peer && other.is_tls == contestant.is_tls;
                let place = contestants.iter().position(of_peer)?;
                Some(Summary::of(&samples(place, name))?.median)
            };
            let has_peers = !matches!(contestant.kind, Kind::Nginx { .. } | Kind::Tusd(_));
            let found: Vec<_> =
                peers(name).iter().filter(|_| has_peers).filter_map(|peer| Some((*peer, median(peer)?))).collect();
            if found.is_empty() {
                outcome.add(Some(figure));
                continue;
            }
            for (peer, median) in found {
                outcome.add(Some(figure.clone().against(peer, median)));
            }
        }
    }
}

fn note(outcome: &mut Outcome) {
    outcome.note(format!(
        "cells: items of 4 KiB, 1 MiB and 1 GiB, 1, 8 and 64 clients with kept connections. put: each client uploads one item, and further ones for {} ms, {} MiB together at most, into an empty queue, after half as long with items that are removed (but for 1 GiB); all items are \
         there afterwards, and one is compared. get: all clients download one item again and again; what arrives in {} ms is counted (after half as many that are not), of TLS and items from 1 MiB on as records, after one response was compared",
        DURATION.as_millis(), BYTES_MAX >> 20, DURATION.as_millis()
    ));
    outcome.note(format!(
        "each server is in a namespace of its own behind veth, the VM of {MEMORY_MIB} MiB behind TAP, by our own VMM. All clients have one address, of which the queue takes 6 large transfers at a time"
    ));
    outcome.note("nginx flushes nothing; nginx_synced: each client flushes its file after the answer. tusd flushes nothing: POST, then PATCH of tus 1.0. nats: a process over NATS JetStream with sync_interval: always");
    outcome.note("flushes_per_put: of 64 clients with 4 KiB; tls_handshakes_s: full ones, of 4 clients");
    outcome.note(format!(
        "put.1gx8 and {BOUNDED_CELL} are measured with --long only, {ROUNDS_LONG_CELLS} times. {BOUNDED_CELL} ends after {} GiB: of the queue those of whole items that were acknowledged, and the oldest are removed meanwhile; of nginx \
         all that was sent, and of nginx_synced until it is on stable storage. Which favours nginx: unfinished uploads of the queue do not count. With --long a queue has a new disk in each turn, else the one of the turn before",
        BOUNDED_BYTES >> 30
    ));
}
