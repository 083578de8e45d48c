//! Two ends over a network that loses, delays, reorders and duplicates: every byte arrives once and in order, there is no pause, and no
//! memory is left. `cargo xtask test --long` simulates a million connections; `GLASS_TCP_CONNECTIONS` sets their number, `GLASS_TCP_SEED` the first one.

use crate::common::{Net, Path, settings};
use glass_api::Instant;
use glass_lib_tcp::congestion::Kind;
use glass_lib_tcp::{End, Settings, State};
use std::time::Duration;

/// Connections of an ordinary run, and of `--long`.
const CONNECTIONS: u64 = 3000;
const CONNECTIONS_LONG: u64 = 1_000_000;
/// Silent peers are gone after so long.
const PEER_TIMEOUT: Duration = Duration::from_secs(3600);
/// Between two segments there is never more than the longest timeout (RFC 6298, section 2.4), and the wait of the model.
const SILENCE_MAX: Duration = Duration::from_millis(60_100);
/// Nothing moves for so long only if two dozen segments in a row are lost.
const STALL_MAX: Duration = Duration::from_secs(1800);
/// A packet of 1200 bytes passes each path; without the header of IPv6.
const BASE_SEGMENT_BYTES: u16 = 1160;

/// The byte at a place of a stream.
fn byte_at(index: usize, stream: usize) -> u8 {
    ((index * 31 + index / 251 * 7) as u8).wrapping_add(stream as u8 * 97)
}

/// What one end does.
struct Plan {
    total: usize,
    written: usize,
    read: usize,
    closed: bool,
    /// It reads so much at once, and then only with this probability of a hundred.
    read_most: usize,
    eagerness: u32,
}

impl Plan {
    fn random(random: &mut fastrand::Rng) -> Plan {
        let total = match random.u32(..4) {
            0 => 0,
            1 => random.usize(..10),
            2 => random.usize(..5000),
            _ => random.usize(..60_000),
        };
        let read_most = if random.bool() { usize::MAX } else { random.usize(1..3000) };
        Plan { total, written: 0, read: 0, closed: false, read_most, eagerness: random.u32(10..=100) }
    }
}

fn random_settings(random: &mut fastrand::Rng) -> Settings {
    let size = |random: &mut fastrand::Rng| match random.u32(..4) {
        0 => 1,
        1 => random.usize(1..100),
        2 => random.usize(1000..20_000),
        _ => 1 << random.u32(14..18),
    };
    Settings {
        receive_bytes: size(random),
        send_bytes: size(random),
        segment_bytes: if random.bool() { 1460 } else { random.u16(100..2000) },
        congestion: if random.u32(..8) == 0 { Kind::None } else { Kind::NewReno },
        seed: random.u64(..),
        peer_timeout: PEER_TIMEOUT,
        open_timeout: PEER_TIMEOUT,
        ..settings()
    }
}

/// Simulates one connection. Panics with `seed` if it breaks its promises.
fn simulate(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let path = Path {
        delay: Duration::from_micros(random.u64(..50_000)),
        jitter: Duration::from_micros(if random.bool() { 0 } else { random.u64(..20_000) }),
        loss: if random.u32(..3) == 0 { 0 } else { random.u32(..250) },
        duplication: if random.bool() { 0 } else { random.u32(..200) },
    };
    let own = [0, 1].map(|_| random_settings(&mut random));
    let mut plans = [0, 1].map(|_| Plan::random(&mut random));
    // One byte at a time takes long.
    let small = own.iter().any(|settings| settings.receive_bytes < 100 || settings.send_bytes < 100);
    if small {
        plans.iter_mut().for_each(|plan| plan.total = plan.total.min(100));
    }
    let aborts = random.u32(..10) == 0;
    let mut net = Net::new(random.u64(..), path, own);
    net.frame_bytes = *random.choice(&[0, 3000, 65_000]).expect("there are some");
    // One path in four drops long packets of one direction, and reports that or not.
    if random.u32(..4) == 0 {
        let longest = random.u16(BASE_SEGMENT_BYTES..2000);
        net.longest = longest.into();
        net.reports = random.bool().then_some(longest - glass_lib_tcp::wire::HEADER_BYTES as u16);
    }
    net.send(0);
    let start = net.now;
    let mut progress_at = start;
    loop {
        let mut moved = false;
        for index in 0..2 {
            moved |= act(&mut net, &mut plans, index, &mut random, seed);
        }
        if aborts && random.u32(..200) == 0 {
            let index = random.usize(..2);
            net.connection(index).map(glass_lib_tcp::Connection::abort);
        }
        net.send(0);
        net.send(1);
        if moved {
            progress_at = net.now;
        }
        let states = [0, 1].map(|index| net.connection(index).map(|connection| connection.state()));
        let is_over = states.iter().all(|state| matches!(state, Some(State::Closed)));
        let was_never_open = states[0] == Some(State::Closed) && states[1].is_none();
        if is_over || was_never_open {
            break;
        }
        let in_time_wait = states.iter().any(|state| matches!(state, Some(State::TimeWait | State::Closed)));
        let silence = net.now.since(net.sent_at);
        assert!(in_time_wait || silence < SILENCE_MAX, "seed {seed}: silence: {states:?}, {path:?}, {own:?}");
        let limit = if in_time_wait { 2 * PEER_TIMEOUT } else { STALL_MAX };
        assert!(
            net.now.since(progress_at) < limit,
            "seed {seed}: nothing moved for {limit:?}: {states:?}, {:?}, {path:?}, {own:?}",
            plans.map(|plan| (plan.total, plan.written, plan.read))
        );
        let wait = Duration::from_millis(random.u64(1..100));
        net.step(net.now + wait);
    }
    for index in 0..2 {
        let Some(connection) = net.connection(index) else { continue };
        let end = connection.end();
        // The last acknowledgement may be lost so often that its end is not known to the peer, which is reset then.
        let is_clean = matches!(end, Some(End::Finished | End::Aborted | End::Reset)) || aborts || path.loss > 0;
        assert!(is_clean, "seed {seed}: it ended by {end:?}");
        // What has arrived can be read after the end, too.
        plans[index].read += connection.skip(usize::MAX);
        assert_eq!(connection.allocated(), 0, "seed {seed}: memory of end {index}");
        if !aborts {
            let (total, read) = (plans[1 - index].total, plans[index].read);
            assert_eq!(read, total, "seed {seed}: what end {index} has read; {end:?}");
        }
    }
}

/// An end writes, reads and closes. Returns whether a byte moved.
fn act(net: &mut Net, plans: &mut [Plan; 2], index: usize, random: &mut fastrand::Rng, seed: u64) -> bool {
    let Some(connection) = net.connection(index) else { return false };
    let plan = &mut plans[index];
    let mut moved = false;
    while plan.written < plan.total && connection.space() > 0 {
        let count = random.usize(1..=4000).min(plan.total - plan.written);
        let data: Vec<u8> = (plan.written..plan.written + count).map(|place| byte_at(place, index)).collect();
        let written = connection.write(&data);
        plan.written += written;
        moved |= written > 0;
        connection.hold_short(random.bool());
    }
    if plan.written == plan.total && !plan.closed && connection.is_writable() {
        connection.close();
        plan.closed = true;
        moved = true;
    }
    if random.u32(..100) < plan.eagerness {
        let mut buf = vec![0; plan.read_most.min(10_000)];
        let count = connection.read(&mut buf);
        for (offset, byte) in buf[..count].iter().enumerate() {
            let place = plan.read + offset;
            assert_eq!(*byte, byte_at(place, 1 - index), "seed {seed}: byte {place} of end {index}");
        }
        plan.read += count;
        moved |= count > 0;
        let total = plans[1 - index].total;
        assert!(plans[index].read <= total, "seed {seed}: end {index} has read more than was sent");
    }
    moved
}

#[test]
fn every_byte_arrives_once_and_in_order() {
    let wanted = std::env::var("GLASS_TCP_CONNECTIONS").ok();
    let usual = if std::env::var_os("GLASS_TESTS_LONG").is_some() { CONNECTIONS_LONG } else { CONNECTIONS };
    let count = wanted.map_or(usual, |count| count.parse().expect("GLASS_TCP_CONNECTIONS is a number"));
    let first =
        std::env::var("GLASS_TCP_SEED").ok().map_or(0, |seed| seed.parse().expect("GLASS_TCP_SEED is a number"));
    for seed in first..first + count {
        simulate(seed);
    }
}

#[test]
fn a_connection_without_loss_is_not_slower_than_its_window() {
    let path = Path { delay: Duration::from_millis(10), jitter: Duration::ZERO, loss: 0, duplication: 0 };
    let large = Settings { receive_bytes: 1 << 20, send_bytes: 1 << 20, ..settings() };
    let mut net = Net::new(1, path, [large; 2]);
    net.frame_bytes = 65_000;
    net.send(0);
    let (mut written, mut read, total) = (0, 0, 20_000_000);
    let start = net.now;
    while read < total {
        if let Some(connection) = net.connection(0) {
            while written < total {
                let count = connection.write(&[0; 4096][..4096.min(total - written)]);
                if count == 0 {
                    break;
                }
                written += count;
            }
        }
        if let Some(connection) = net.connection(1) {
            read += connection.skip(usize::MAX);
        }
        net.send(0);
        net.send(1);
        assert!(net.step(Instant(u64::MAX)), "nothing is due");
    }
    let took = net.now.since(start);
    // 1 MiB each 20 ms, after ten round trips of slow start.
    assert!(took < Duration::from_millis(800), "{took:?}");
}

/// A path whose packets have at most 1300 bytes: 3 MB take a second at most, also if nothing is reported.
#[test]
fn rfc8899_a_short_path_is_found() {
    let path = Path { delay: Duration::from_micros(500), jitter: Duration::ZERO, loss: 0, duplication: 0 };
    for reports in [None, Some(1260)] {
        let mut net = Net::new(1, path, [settings(); 2]);
        (net.longest, net.reports) = (1280, reports);
        net.send(0);
        let (mut written, mut read, total) = (0, 0, 3_000_000);
        let start = net.now;
        while read < total {
            if let Some(connection) = net.connection(0) {
                written += connection.write(&[0; 65_536][..65_536.min(total - written)]);
            }
            read += net.connection(1).map_or(0, |connection| connection.skip(usize::MAX));
            net.send(0);
            net.send(1);
            assert!(net.step(Instant(u64::MAX)), "nothing is due");
        }
        let took = net.now.since(start);
        assert!(took < Duration::from_secs(1), "{took:?} with {reports:?}");
    }
}
