//! The events of a packet.

use super::packets::{HEADER_BYTES, Packet};

/// Some writers leave more room after the header.
const LONG_HEADER_BYTES: usize = 40;

/// An event of the file; threads have numbers of 64 bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileEvent {
    pub time_ns: u64,
    pub what: What,
}

/// What happened. The first thread is the one that ran, where there are two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    Creates {
        thread: u64,
        child: u64,
        sort: u8,
    },
    Read {
        thread: u64,
        input: u64,
    },
    Fulfills {
        thread: u64,
        promise: u64,
    },
    Fails {
        thread: u64,
        promise: u64,
        reason: String,
    },
    Becomes {
        input: u64,
        main: u64,
    },
    Label {
        thread: u64,
        label: String,
    },
    Increase {
        amount: i64,
        counter: String,
    },
    Switch {
        thread: u64,
    },
    Collect {
        duration_ns: u64,
    },
    /// A condition woke the thread, which runs from now on.
    Signal {
        thread: u64,
        source: u64,
    },
    /// The thread will wait for this.
    TryRead {
        thread: u64,
        input: u64,
    },
    Value {
        value: i64,
        counter: String,
    },
    /// The thread will run when this is available.
    ReadLater {
        thread: u64,
        input: u64,
    },
    /// A condition woke the thread, which runs later.
    SignalLater {
        thread: u64,
        source: u64,
    },
}

/// The rest of a packet.
struct Cursor<'a> {
    rest: &'a [u8],
}

impl Cursor<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.rest.split_first_chunk::<8>()?;
        self.rest = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// Bytes up to a zero, which need not be UTF-8.
    fn text(&mut self) -> Option<String> {
        let length = self.rest.iter().position(|byte| *byte == 0)?;
        let text = String::from_utf8_lossy(&self.rest[..length]).into_owned();
        self.rest = &self.rest[length + 1..];
        Some(text)
    }

    /// `None` if the bytes are not an event.
    fn event(&mut self) -> Option<FileEvent> {
        let time_ns = self.word()?;
        let what = match self.byte()? {
            0 => What::Creates { thread: self.word()?, child: self.word()?, sort: self.byte()? },
            1 => What::Read { thread: self.word()?, input: self.word()? },
            2 => What::Fulfills { thread: self.word()?, promise: self.word()? },
            3 => What::Fails { thread: self.word()?, promise: self.word()?, reason: self.text()? },
            4 => What::Becomes { input: self.word()?, main: self.word()? },
            5 => What::Label { thread: self.word()?, label: self.text()? },
            6 => {
                self.word()?;
                What::Increase { amount: self.word()? as i64, counter: self.text()? }
            }
            7 => What::Switch { thread: self.word()? },
            8 => What::Collect { duration_ns: self.word()? },
            9 => What::Signal { thread: self.word()?, source: self.word()? },
            10 => What::TryRead { thread: self.word()?, input: self.word()? },
            11 => {
                self.word()?;
                What::Value { value: self.word()? as i64, counter: self.text()? }
            }
            12 => What::ReadLater { thread: self.word()?, input: self.word()? },
            13 => What::SignalLater { thread: self.word()?, source: self.word()? },
            _ => return None,
        };
        Some(FileEvent { time_ns, what })
    }
}

/// The events of a packet up to the first invalid one, and a warning about that one.
pub(super) fn decode(bytes: &[u8], packet: &Packet) -> (Vec<FileEvent>, Option<String>) {
    let from = |header: usize| {
        let mut cursor = Cursor { rest: bytes.get(packet.start + header..packet.end).unwrap_or_default() };
        let mut events: Vec<FileEvent> = Vec::new();
        while !cursor.rest.is_empty() {
            let before = cursor.rest.len();
            match cursor.event() {
                Some(event) => events.push(event),
                None => return (events, before),
            }
        }
        (events, 0)
    };
    let (short, short_rest) = from(HEADER_BYTES);
    let (long, long_rest) = if short_rest == 0 { (Vec::new(), usize::MAX) } else { from(LONG_HEADER_BYTES) };
    let (events, rest) = if long_rest == 0 { (long, long_rest) } else { (short, short_rest) };
    let damage = (rest > 0).then(|| {
        format!(
            "packet {}: {} events, then {rest} bytes that are not an event and were left out",
            packet.count,
            events.len()
        )
    });
    (events, damage)
}
