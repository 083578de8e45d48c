//! Scripts of one connection, in the manner of packetdrill. A line is a time since the line before, and what happens then:
//!
//! * `+10ms < P. 1:101 ack 1 win 1000 <ts 5 0>`: this segment is received. Flags are those of S, F, R, P and `.` (ACK) that are set; numbers
//!   are relative to the first ones, and do not count SYN and FIN in `start:end`. Without `win` the window is 60000, before scaling.
//! * `+0 > . 101:101 ack 1 <sacks 5-10>`: this segment is sent then, and none before. SACK blocks have to be the same; windows and other
//!   options only if they are given. `>*` instead of `>`: it may be sent earlier.
//! * `+1s quiet`: nothing is sent until then.
//! * `write 10`, `read 10`, `hold`, `close`, `abort`: what the owner does.
//! * `limit 1 600`: a router reports that it has dropped segment 1, and passes 600 bytes.
//! * `reopens S 9:9`, `refuses S 9:9`: whether this SYN may open the next connection between the same ends.
//! * `state Established`, `end Reset`, `readable 10`: what holds.
//!
//! The script is passive: its first line is the SYN that it receives. `connect` as the first line opens actively. `open` is a handshake
//! whose peer receives segments of 1000 bytes and has SACK; `open ts` with timestamps, `open old` without any option.

use super::settings;
use glass_api::Instant;
use glass_lib_tcp::wire::{Flags, Options, Timestamps};
use glass_lib_tcp::{Connection, HalfOpen, Header, Reply, Segment, Settings};
use std::collections::VecDeque;
use std::time::Duration;

/// First numbers: both wrap soon.
const OWN: u32 = u32::MAX - 500;
const PEER: u32 = u32::MAX - 700;
const START: Instant = Instant(1_000_000_000);

/// The byte at a place of either stream.
fn byte_at(place: u64) -> u8 {
    (place * 7 + place / 256) as u8
}

struct Script {
    now: Instant,
    settings: Settings,
    half_open: Option<HalfOpen>,
    connection: Option<Connection>,
    /// Segments that were sent and not compared: their times, headers, payloads, and into which segments they are cut.
    sent: VecDeque<(Instant, Header, Vec<u8>, Option<u16>)>,
    written: u64,
    read: u64,
    frame_bytes: usize,
}

/// Runs a script with the settings of most tests.
pub fn run(text: &str) {
    run_with(settings(), 0, text);
}

/// Runs a script. A card cuts frames of up to `frame_bytes`, header included; with 0 it cuts none.
pub fn run_with(settings: Settings, frame_bytes: usize, text: &str) {
    let mut script = Script {
        now: START,
        settings: Settings { segment_bytes: 1500, ..settings },
        half_open: None,
        connection: None,
        sent: Default::default(),
        written: 0,
        read: 0,
        frame_bytes,
    };
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        script.line(line);
    }
    if let Some((at, header, payload, _)) = script.sent.front() {
        panic!("at the end of the script: {} was sent at {at}", describe(header, payload.len()));
    }
}

impl Script {
    fn line(&mut self, line: &str) {
        if let Some(expanded) = line.strip_prefix("open") {
            let expanded = expanded.trim();
            let (options, answer) = match expanded {
                "" => ("<mss 1000,sack>", "<mss 1500,sack>"),
                "ts" => ("<mss 1012,sack,ts 100 0>", "<mss 1500,sack,ts 0 100>"),
                "old" => ("<mss 1000>", "<mss 1500>"),
                other => panic!("open {other}"),
            };
            let ts = if expanded.contains("ts") { "<ts 110 0>" } else { "" };
            self.line(&format!("+0 < S 0:0 {options}"));
            self.line(&format!("+0 > S. 0:0 ack 1 {answer}"));
            return self.line(&format!("+10ms < . 1:1 ack 1 {ts}"));
        }
        if line == "connect" {
            self.connection = Some(Connection::connect(self.now, OWN, self.settings));
            return self.collect();
        }
        let (wait, what) = if line.starts_with('+') { line.split_once(' ').expect(line) } else { ("+0", line) };
        let at = self.now + duration(&wait[1..]);
        let (word, rest) = what.trim().split_once(' ').unwrap_or((what.trim(), ""));
        match word {
            ">" | ">*" => return self.expect(at, word == ">*", rest, line),
            _ => self.advance(at, line),
        }
        match word {
            "<" => self.receive(rest, line),
            "quiet" => {}
            "write" => {
                let count: u64 = rest.parse().expect(line);
                let data: Vec<u8> = (self.written..self.written + count).map(byte_at).collect();
                assert_eq!(self.open(line).write(&data) as u64, count, "{line}");
                self.written += count;
            }
            "read" => {
                let count: u64 = rest.parse().expect(line);
                let mut buf = vec![0; count as usize];
                assert_eq!(self.open(line).read(&mut buf), buf.len(), "{line}");
                assert!((self.read..).zip(&buf).all(|(place, byte)| *byte == byte_at(place)), "{line}: wrong bytes");
                self.read += count;
            }
            "hold" => self.open(line).hold_short(true),
            "close" => self.open(line).close(),
            "abort" => self.open(line).abort(),
            "limit" => {
                let (number, bytes) = rest.split_once(' ').expect(line);
                let number = OWN.wrapping_add(number.parse().expect(line));
                let now = self.now;
                self.open(line).limit_segment(now, number, bytes.parse().expect(line));
            }
            "reopens" | "refuses" => {
                let (header, _) = parse(rest, PEER, OWN, line);
                assert_eq!(self.open(line).may_reopen(&header), word == "reopens", "{line}");
            }
            "state" => assert_eq!(format!("{:?}", self.open(line).state()), rest, "{line}"),
            "end" => assert_eq!(format!("{:?}", self.open(line).end()), format!("Some({rest})"), "{line}"),
            "readable" => assert_eq!(self.open(line).readable().to_string(), rest, "{line}"),
            _ => panic!("{line}: an unknown word"),
        }
        self.collect();
    }

    fn open(&mut self, line: &str) -> &mut Connection {
        self.connection.as_mut().unwrap_or_else(|| panic!("{line}: there is no connection"))
    }

    /// Lets the time pass, in which nothing may be sent.
    fn advance(&mut self, until: Instant, line: &str) {
        self.pass(until);
        if let Some((at, header, payload, _)) = self.sent.front() {
            panic!("before `{line}`: {} was sent at {at}", describe(header, payload.len()));
        }
    }

    /// Lets the time pass until something is sent, at most until `until`.
    fn pass(&mut self, until: Instant) {
        while self.sent.is_empty() {
            let now = self.now;
            let half_open = self.half_open.as_ref().map(HalfOpen::resend_at);
            let deadline = self.connection.as_ref().map_or(half_open, |connection| connection.next_deadline(now));
            let Some(deadline) = deadline.filter(|deadline| *deadline <= until) else {
                self.now = self.now.max(until);
                return;
            };
            self.now = self.now.max(deadline);
            if let (Some(half_open), None) = (&mut self.half_open, &self.connection) {
                let header = half_open.answer(self.now);
                self.sent.push_back((self.now, header, Vec::new(), None));
            }
            self.collect();
        }
    }

    fn collect(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        while let Some(transmit) = connection.poll_transmit(self.now, self.frame_bytes) {
            let payload = connection.payload(&transmit).concat();
            self.sent.push_back((self.now, transmit.header, payload, transmit.cut_bytes));
            assert!(self.sent.len() < 1000, "it sends without an end");
        }
    }

    fn receive(&mut self, text: &str, line: &str) {
        let (header, length) = parse(text, PEER, OWN, line);
        let start = u64::from(header.seq.wrapping_sub(PEER.wrapping_add(1)));
        let payload: Vec<u8> = (start..start + length as u64).map(byte_at).collect();
        let mut bytes = vec![0; header.bytes()];
        header.write(1, 2, &mut bytes);
        bytes.extend_from_slice(&payload);
        let segment = Segment::parse(&bytes).expect(line);
        if let Some(connection) = &mut self.connection {
            connection.receive(self.now, &segment);
            return;
        }
        let Some(half_open) = &mut self.half_open else {
            let mut half_open = HalfOpen::new(self.now, &segment.header, OWN, self.settings);
            let answer = half_open.answer(self.now);
            self.half_open = Some(half_open);
            return self.sent.push_back((self.now, answer, Vec::new(), None));
        };
        match half_open.reply(&segment) {
            Reply::Opens => {
                let mut connection = half_open.open(self.now);
                connection.receive(self.now, &segment);
                self.connection = Some(connection);
            }
            Reply::Repeats => {
                let answer = half_open.answer(self.now);
                self.sent.push_back((self.now, answer, Vec::new(), None));
            }
            Reply::Refuse => {
                let answer = segment.refusal().expect(line);
                self.sent.push_back((self.now, answer, Vec::new(), None));
            }
            Reply::Resets => self.half_open = None,
            Reply::Ignore => {}
        }
    }

    fn expect(&mut self, at: Instant, is_early: bool, text: &str, line: &str) {
        self.pass(at);
        let Some((sent_at, sent, payload, cut_bytes)) = self.sent.pop_front() else {
            panic!("`{line}`: nothing was sent")
        };
        let (header, length) = parse(text, OWN, PEER, line);
        let found = describe(&sent, payload.len());
        let is_same = (header.seq, header.flags, header.ack, length) == (sent.seq, sent.flags, sent.ack, payload.len());
        assert!(is_same, "`{line}`: this was sent at {sent_at}: {found}");
        assert!(is_early || sent_at == at, "`{line}` was sent at {sent_at} instead of {at}");
        let (options, wanted) = (sent.options, header.options);
        assert_eq!(options.sacks, wanted.sacks, "`{line}`: {found}");
        assert!(!text.contains("win") || sent.window == header.window, "`{line}`: {found}");
        for name in ["mss", "ws"] {
            let is_right = match name {
                "mss" => options.segment_bytes == wanted.segment_bytes,
                _ => options.shift == wanted.shift,
            };
            assert!(!text.contains(name) || is_right, "`{line}`: {found}");
        }
        let expected = if text.contains("ts ") { wanted.timestamps } else { options.timestamps };
        assert_eq!(options.timestamps, expected, "`{line}`: {found}");
        assert!(!text.contains("sack,") || options.sack_permitted, "`{line}`: {found}");
        if let Some(cut) = text.split_once("cut ") {
            let cut = cut.1.split(' ').next().expect(line).parse().expect(line);
            assert_eq!(cut_bytes, Some(cut), "`{line}`");
        }
        let first = u64::from(header.seq.wrapping_sub(OWN.wrapping_add(1)));
        assert!((first..).zip(&payload).all(|(place, byte)| *byte == byte_at(place)), "`{line}`: wrong bytes");
    }
}

fn duration(text: &str) -> Duration {
    let split = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    let number: f64 = text[..split].parse().unwrap_or_else(|_| panic!("{text} is no time"));
    Duration::from_secs_f64(match &text[split..] {
        "ms" => number / 1e3,
        "us" => number / 1e6,
        "s" | "" => number,
        unit => panic!("{unit} is no unit"),
    })
}

/// A header with numbers relative to these, and the length of its payload.
fn parse(text: &str, seq_from: u32, ack_from: u32, line: &str) -> (Header, usize) {
    let (text, options) = text.split_once('<').unwrap_or((text, ""));
    let mut words = text.split_whitespace();
    let flags = words.next().expect(line).bytes().map(|flag| match flag {
        b'F' => Flags::FIN,
        b'S' => Flags::SYN,
        b'R' => Flags::RST,
        b'P' => Flags::PSH,
        b'.' => Flags::ACK,
        _ => panic!("{line}: an unknown flag"),
    });
    let flags = flags.fold(Flags::default(), |all, flag| all | flag);
    let (start, end) = words.next().and_then(|range| range.split_once(':')).expect(line);
    let (start, end): (i64, i64) = (start.parse().expect(line), end.parse().expect(line));
    let mut header = Header { seq: seq_from.wrapping_add(start as u32), flags, window: 60_000, ..Header::default() };
    while let Some(word) = words.next() {
        let value: i64 = words.next().and_then(|value| value.parse().ok()).expect(line);
        match word {
            "ack" => header.ack = ack_from.wrapping_add(value as u32),
            "win" => header.window = value as u16,
            "cut" => {}
            _ => panic!("{line}: what is {word}?"),
        }
    }
    for option in options.trim_end_matches('>').split(',').filter(|option| !option.is_empty()) {
        let words: Vec<&str> = option.split_whitespace().collect();
        add_option(&mut header.options, &words, seq_from, ack_from, line);
    }
    (header, (end - start) as usize)
}

/// Timestamps of ours are relative to the start.
fn add_option(options: &mut Options, words: &[&str], seq_from: u32, ack_from: u32, line: &str) {
    let clock = (START.0 / 1_000_000) as u32;
    match words {
        ["mss", bytes] => options.segment_bytes = Some(bytes.parse().expect(line)),
        ["ws", shift] => options.shift = Some(shift.parse().expect(line)),
        ["sack"] => options.sack_permitted = true,
        ["ts", value, echo] => {
            let (mut value, mut echo): (u32, u32) = (value.parse().expect(line), echo.parse().expect(line));
            if seq_from == OWN {
                value = value.wrapping_add(clock);
            } else {
                echo = echo.wrapping_add(clock);
            }
            options.timestamps = Some(Timestamps { value, echo });
        }
        ["sacks", blocks @ ..] => {
            for block in blocks {
                let (start, end) = block.split_once('-').expect(line);
                let at = |number: &str| ack_from.wrapping_add(number.parse::<i64>().expect(line) as u32);
                options.sacks.push(at(start), at(end));
            }
        }
        _ => panic!("{line}: an unknown option"),
    }
}

/// A segment of ours in the words of a script.
fn describe(header: &Header, length: usize) -> String {
    let flags = [(Flags::SYN, "S"), (Flags::FIN, "F"), (Flags::RST, "R"), (Flags::PSH, "P"), (Flags::ACK, ".")];
    let flags: String = flags.iter().filter(|(flag, _)| header.flags.has(*flag)).map(|(_, name)| *name).collect();
    let start = i64::from(header.seq.wrapping_sub(OWN) as i32);
    let ack = header.ack.wrapping_sub(PEER) as i32;
    let sacks = header.options.sacks.blocks().iter();
    let sacks: Vec<_> = sacks.map(|(a, b)| (a.wrapping_sub(PEER), b.wrapping_sub(PEER))).collect();
    let options = &header.options;
    format!(
        "{flags} {start}:{} ack {ack} win {} sacks {sacks:?} mss {:?} ws {:?} {:?}",
        start + length as i64,
        header.window,
        options.segment_bytes,
        options.shift,
        options.timestamps
    )
}
