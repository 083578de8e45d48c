//! Sends or counts datagrams (UDP) as fast as it can, for measurements of the network. Each result is a line of JSON on the console.
//!
//! With `--to ADDRESS:PORT` it sends `--count` datagrams of `--bytes` bytes there and ends; the default is the article's: as many bytes as
//! one Ethernet frame carries. Otherwise a client sends its request as a datagram: `send COUNT BYTES` to receive so many, `take` before
//! datagrams that are to be counted, and `report` for their number. A datagram whose first byte is 0 is counted.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::string::String;
use alloc::{format, vec};
use core::net::SocketAddr;
use core::str;
use core::time::Duration;
use glasshouse::trace::Counter;
use glasshouse::{Datagrams, Error, Instant, Net, NetError, Platform};

const USAGE: &str = "the arguments are: [--port NUMBER] [--to ADDRESS:PORT] [--count NUMBER] [--bytes NUMBER]";
const PORT_DEFAULT: u16 = 8091;
const COUNT_DEFAULT: u64 = 100_000;
/// An MTU of 1500 without the headers of IPv4 and UDP. (The article has 1476, which needs two fragments.)
const BYTES_DEFAULT: u64 = 1472;
/// Bounds of a request.
const COUNT_MAX: u64 = 1 << 32;
const BYTES_MAX: u64 = 65_507;
/// Each datagram has its number.
const BYTES_MIN: u64 = 16;
/// Pause after an error, so that a permanent error does not keep the core busy.
const PAUSE: Duration = Duration::from_millis(10);

/// How long an address of the network may take.
const ADDRESS_TIME: Duration = Duration::from_secs(10);

static SENT: Counter = Counter::new("datagrams sent");
static TAKEN: Counter = Counter::new("datagrams taken");

glasshouse::main!(serve);

struct Options {
    port: u16,
    to: Option<SocketAddr>,
    count: u64,
    bytes: u64,
}

async fn serve(platform: impl Platform) -> Result<(), Error> {
    let options = parse(platform.args())?;
    let address = platform.net().up().await?.address;
    let datagrams = platform.net().bind(options.port).await?;
    if let Some(remote) = options.to {
        wait_for_address(&platform, &datagrams, remote).await?;
        let us = send(&platform, &datagrams, remote, options.count, options.bytes).await?;
        report(&platform, "sent", options.count, options.count * options.bytes, us);
        return Ok(());
    }
    platform.print(format_args!("bench-udp listens on {address} port {}", datagrams.port()));
    let mut buffer = vec![0; BYTES_MAX as usize];
    let mut taken = Taken::default();
    loop {
        let Ok((count, remote)) = datagrams.recv_from(&mut buffer).await else {
            platform.sleep(PAUSE).await;
            continue;
        };
        let datagram = &buffer[..count];
        if datagram.first() == Some(&0) {
            taken.add(platform.now(), count);
            continue;
        }
        let answer = match Wish::parse(datagram) {
            Some(Wish::Take) => {
                taken = Taken::default();
                String::from("ready\n")
            }
            Some(Wish::Report) => {
                report(&platform, "taken", taken.count, taken.bytes, taken.us());
                format!("taken {} {}\n", taken.count, taken.us())
            }
            Some(Wish::Send { count, bytes }) => match send(&platform, &datagrams, remote, count, bytes).await {
                Ok(us) => {
                    report(&platform, "sent", count, count * bytes, us);
                    format!("sent {count} {us}\n")
                }
                Err(error) => format!("{error}\n"),
            },
            None => String::from("send `send COUNT BYTES`, `take` or `report`\n"),
        };
        // A client without an answer repeats its request.
        let _ = datagrams.send_to(answer.as_bytes(), remote).await;
    }
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options { port: PORT_DEFAULT, to: None, count: COUNT_DEFAULT, bytes: BYTES_DEFAULT };
    let mut arguments = arguments.iter();
    while let Some(option) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match option.as_str() {
            "--port" => options.port = value.parse().map_err(|_| format!("{value} is not a port"))?,
            "--to" => options.to = Some(value.parse().map_err(|_| format!("{value} is not an address and a port"))?),
            "--count" => options.count = number(value, 1, COUNT_MAX)?,
            "--bytes" => options.bytes = number(value, BYTES_MIN, BYTES_MAX)?,
            _ => return Err(USAGE.into()),
        }
    }
    Ok(options)
}

fn number(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("{text} is not a number from {min} to {max}"))
}

/// A client's request.
enum Wish {
    Send { count: u64, bytes: u64 },
    Take,
    Report,
}

impl Wish {
    fn parse(datagram: &[u8]) -> Option<Wish> {
        let mut words = str::from_utf8(datagram).ok()?.split_whitespace();
        let wish = match words.next()? {
            "send" => {
                let mut next = |min, max| number(words.next()?, min, max).ok();
                Wish::Send { count: next(1, COUNT_MAX)?, bytes: next(BYTES_MIN, BYTES_MAX)? }
            }
            "take" => Wish::Take,
            "report" => Wish::Report,
            _ => return None,
        };
        words.next().is_none().then_some(wish)
    }
}

/// What was counted since the last `take`.
#[derive(Default)]
struct Taken {
    count: u64,
    bytes: u64,
    times: Option<(Instant, Instant)>,
}

impl Taken {
    fn add(&mut self, now: Instant, bytes: usize) {
        self.count += 1;
        self.bytes += bytes as u64;
        self.times = Some((self.times.map_or(now, |(first, _)| first), now));
        TAKEN.add(1);
    }

    /// Microseconds from the first to the last.
    fn us(&self) -> u64 {
        self.times.map_or(0, |(first, last)| (last - first).as_micros() as u64)
    }
}

/// Waits until the platform has an address of the kind that reaches `remote`: an IPv6 router may give it one after the start.
async fn wait_for_address(
    platform: &impl Platform,
    datagrams: &impl Datagrams,
    remote: SocketAddr,
) -> Result<(), NetError> {
    let end = platform.now() + ADDRESS_TIME;
    loop {
        match datagrams.send_to(&[0; BYTES_MIN as usize], remote).await {
            Err(NetError::NoNetwork) if platform.now() < end => platform.sleep(PAUSE).await,
            result => return result,
        }
    }
}

/// Sends `count` numbered datagrams; returns how many microseconds that took until the last was queued.
async fn send(
    platform: &impl Platform,
    datagrams: &impl Datagrams,
    remote: SocketAddr,
    count: u64,
    bytes: u64,
) -> Result<u64, NetError> {
    let mut datagram = vec![0; bytes as usize];
    let start = platform.now();
    for number in 0..count {
        datagram[8..16].copy_from_slice(&number.to_le_bytes());
        datagrams.send_to(&datagram, remote).await?;
        SENT.add(1);
    }
    Ok((platform.now() - start).as_micros() as u64)
}

fn report(platform: &impl Platform, what: &str, count: u64, bytes: u64, us: u64) {
    let seconds = us.max(1) as f64 / 1e6;
    platform.print(format_args!(
        "{{\"direction\": \"{what}\", \"datagrams\": {count}, \"bytes\": {bytes}, \"us\": {us}, \"k_s\": {:.1}, \"mb_s\": {:.1}}}",
        count as f64 / seconds / 1e3,
        bytes as f64 / seconds / 1e6
    ));
}
