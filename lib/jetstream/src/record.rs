//! The state of an item, as a message of the stream of items: JSON.

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version of records that this program writes and reads.
const VERSION: u32 = 1;

/// The random name of an item in the engine: the last part of its subject.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key(u128);

impl Key {
    pub(crate) fn new() -> Key {
        Key(u128::from(random()) << 64 | u128::from(random()))
    }

    /// Of 32 digits.
    pub(crate) fn parse(text: &str) -> Option<Key> {
        let is_key = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_key.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(Key)
    }

    /// For fencing tokens: they differ between items also where numbers do not.
    pub(crate) fn high(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A random number.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        // Interrupted by a signal at the most: the kernel's generator is ready when services start.
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty()).unwrap_or(0);
    }
    u64::from_le_bytes(bytes)
}

/// What an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// The next consumer gets it.
    Ready,
    /// A consumer has it.
    Leased,
    /// It was acknowledged, or removed otherwise.
    Removed,
    /// It never was an item: its upload was interrupted.
    Abandoned,
}

/// The state of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) v: u32,
    pub(crate) state: State,
    /// The sequence of its first record; that one has none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) id: u64,
    /// Bytes.
    #[serde(default)]
    pub(crate) length: u64,
    /// XXH3 of its bytes.
    #[serde(default, with = "hex")]
    pub(crate) checksum: u64,
    /// Messages with its data.
    #[serde(default)]
    pub(crate) chunks: u64,
    /// How many leases of it there were: the number of the newest one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) lease: u64,
    /// How often it was given out since it was last revived.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) tries: u64,
    /// For how long its consumer has it, from the time of this message.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) secs: u64,
    /// Random, and of this record alone: after an answer that was lost it shows whose change was made.
    #[serde(with = "hex")]
    pub(crate) nonce: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// 16 digits: many readers of JSON keep 53 bits of a number only.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{number:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = <std::borrow::Cow<str>>::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}

impl Record {
    /// The first one of an item.
    pub(crate) fn new(length: u64, checksum: u64, chunks: u64) -> Record {
        let (lease, tries, secs) = (0, 0, 0);
        Record { v: VERSION, state: State::Ready, id: 0, length, checksum, chunks, lease, tries, secs, nonce: random() }
    }

    /// One for an upload that is given up.
    pub(crate) fn abandoned() -> Record {
        Record { state: State::Abandoned, ..Record::new(0, 0, 0) }
    }

    /// The next one of an item.
    pub(crate) fn with(self, state: State) -> Record {
        Record { state, secs: 0, nonce: random(), ..self }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record has numbers and texts only")
    }

    /// `None` unless it is a record of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Record> {
        serde_json::from_slice(bytes).ok().filter(|record: &Record| record.v == VERSION)
    }

    /// Whether it is an item of the queue.
    pub(crate) fn is_item(&self) -> bool {
        matches!(self.state, State::Ready | State::Leased)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = Record { id: 7, lease: 2, tries: 1, secs: 60, ..Record::new(5, u64::MAX, 1).with(State::Leased) };
        assert_eq!(Record::decode(&record.encode()), Some(record));
        let text = String::from_utf8(Record { nonce: 1, ..Record::new(5, 255, 1) }.encode()).unwrap();
        let expected =
            r#"{"v":1,"state":"ready","length":5,"checksum":"00000000000000ff","chunks":1,"nonce":"0000000000000001"}"#;
        assert_eq!(text, expected);
        for bad in ["", "{}", &text.replace("\"v\":1", "\"v\":2"), &text.replace("ready", "lost"), "hello"] {
            assert_eq!(Record::decode(bad.as_bytes()), None, "{bad}");
        }
        let key = Key::new();
        assert_eq!(
            (Key::parse(&key.to_string()), Key::parse("1"), Key::parse(&"G".repeat(32))),
            (Some(key), None, None)
        );
    }
}
