//! Packs: pieces of many tracks that are compressed together and decoded when one of them is looked at.
//!
//! Compression is most of the work of making a page, so other threads do it while tracks are made.

use std::io::Write as _;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use base64::Engine as _;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde::Serialize;
use serde::ser::SerializeSeq as _;

/// Bytes of a pack before it is closed; its last piece may go beyond.
const PACK_BYTES: usize = 192 << 10;
/// Packs that may wait for compression.
const QUEUE_MAX: usize = 8;
const WORKERS: usize = 2;
/// 1 to 9: beyond 5, time doubles for some 3 % of size (trace of the queue, 10 million events).
const LEVEL: u32 = 5;

/// When a piece is looked at; each class has packs of its own, so that what opens a page is few packs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// At first.
    Overview,
    /// When one zooms in.
    Detail,
}

/// Where a piece is: pack, offset, entries, first and last moment. The page gets it as an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub pack: u32,
    pub offset: u32,
    pub count: u32,
    pub start_ns: u64,
    pub end_ns: u64,
}

impl Serialize for Piece {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_seq(Some(5))?;
        for number in [u64::from(self.pack), u64::from(self.offset), u64::from(self.count), self.start_ns, self.end_ns]
        {
            fields.serialize_element(&number)?;
        }
        fields.end()
    }
}

#[derive(Default)]
struct Open {
    number: Option<u32>,
    bytes: Vec<u8>,
}

/// Takes pieces, gives packs.
pub struct Packer {
    open: [Open; 2],
    /// Class of each pack, by number.
    classes: Vec<Class>,
    sender: SyncSender<(u32, Vec<u8>)>,
    results: Receiver<(u32, String)>,
    workers: Vec<JoinHandle<()>>,
}

/// All packs, as base64 of raw deflate.
pub struct Packs {
    /// Class and text by number.
    pub texts: Vec<(Class, String)>,
}

impl Packer {
    pub fn new() -> Packer {
        let (sender, work) = sync_channel::<(u32, Vec<u8>)>(QUEUE_MAX);
        let (done, results) = channel();
        let work = Arc::new(Mutex::new(work));
        let workers = (0..WORKERS)
            .map(|_| {
                let (work, done) = (Arc::clone(&work), done.clone());
                std::thread::spawn(move || {
                    loop {
                        let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
                        let Ok((number, bytes)) = next else { break };
                        if done.send((number, compress(&bytes))).is_err() {
                            break;
                        }
                    }
                })
            })
            .collect();
        Packer { open: Default::default(), classes: Vec::new(), sender, results, workers }
    }

    /// Adds a piece that `write` appends.
    pub fn add(
        &mut self,
        class: Class,
        count: usize,
        (start_ns, end_ns): (u64, u64),
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Piece {
        let open = &mut self.open[class as usize];
        let pack = *open.number.get_or_insert_with(|| {
            self.classes.push(class);
            self.classes.len() as u32 - 1
        });
        let offset = open.bytes.len() as u32;
        write(&mut open.bytes);
        if open.bytes.len() >= PACK_BYTES {
            self.close(class);
        }
        Piece { pack, offset, count: count as u32, start_ns, end_ns }
    }

    fn close(&mut self, class: Class) {
        let open = std::mem::take(&mut self.open[class as usize]);
        if let Some(number) = open.number {
            self.sender.send((number, open.bytes)).expect("workers take packs until the sender is gone");
        }
    }

    pub fn finish(mut self) -> Packs {
        self.close(Class::Overview);
        self.close(Class::Detail);
        let Packer { classes, sender, results, workers, .. } = self;
        drop(sender);
        for worker in workers {
            worker.join().expect("compression does not fail");
        }
        let mut texts: Vec<(Class, String)> = classes.into_iter().map(|class| (class, String::new())).collect();
        for (number, text) in results.try_iter() {
            texts[number as usize].1 = text;
        }
        Packs { texts }
    }
}

fn compress(bytes: &[u8]) -> String {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(LEVEL));
    encoder.write_all(bytes).expect("memory takes what is written");
    let compressed = encoder.finish().expect("memory takes what is written");
    base64::engine::general_purpose::STANDARD.encode(compressed)
}

/// Seven bits a byte, low ones first.
pub fn varint(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

/// Small numbers of either sign become small ones without.
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn pieces_lie_where_they_are_said_to_be() {
        let mut packer = Packer::new();
        let mut pieces = Vec::new();
        for number in 0..100_u64 {
            let class = if number % 3 == 0 { Class::Overview } else { Class::Detail };
            // Numbers that do not compress, so that there are several packs.
            let write = |bytes: &mut Vec<u8>| {
                for step in 0..2_000_u64 {
                    varint(bytes, (number + 1).wrapping_mul(step).wrapping_mul(0x9e37_79b9_7f4a_7c15) | number);
                }
            };
            let mut alone = Vec::new();
            write(&mut alone);
            pieces.push((packer.add(class, 2_000, (number, number), write), class, alone));
        }
        let packs = packer.finish();
        assert!(packs.texts.len() > 6, "{}", packs.texts.len());
        for (piece, class, alone) in pieces {
            let (of, text) = &packs.texts[piece.pack as usize];
            assert_eq!(*of, class);
            let compressed = base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
            let mut bytes = Vec::new();
            flate2::read::DeflateDecoder::new(&compressed[..]).read_to_end(&mut bytes).expect("deflate");
            assert_eq!(bytes[piece.offset as usize..][..alone.len()], alone);
        }
    }

    #[test]
    fn signs_fold() {
        assert_eq!([0, -1, 1, i64::MIN].map(zigzag), [0, 1, 2, u64::MAX]);
    }
}
