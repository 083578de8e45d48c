//! Images of the format qcow2, versions 2 and 3 by the specification of QEMU, to be read only.
//!
//! Nothing of the image's tables is loaded: each read follows them anew, since the VM writes to the image meanwhile. QEMU has changes of the tables in
//! its memory for a while, so an image may lag behind what the guest has written.

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use flate2::{Decompress, FlushDecompress};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::bytes::read;
use crate::elf::ReadAt;

const MAGIC: &[u8] = b"QFI\xfb";
const SECTOR_BYTES: u64 = 512;
/// Cluster sizes, as powers of two.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// Where entries of tables have an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// In an entry of a second table.
const COMPRESSED: u64 = 1 << 62;
const READS_AS_ZERO: u64 = 1;
/// Parts of a cluster with allocations of their own.
const SUBCLUSTERS: u64 = 32;
/// Features that readers have to have.
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION_KIND: u64 = 1 << 3;
const EXTENDED: u64 = 1 << 4;
/// An image is in use, or is damaged; neither changes how it is read.
const STATES: u64 = 0b11;
/// The longest path of a backing file, in bytes.
const BACKING_BYTES_MAX: u32 = 1023;
/// Clusters that are kept decompressed, of at most 2 MiB each.
const KEPT_MAX: usize = 4;
/// The largest window of Zstandard, in bytes: no cluster is larger.
const WINDOW_BYTES_MAX: u64 = 2 << 20;

/// What is read of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    cluster_bits: u32,
    bytes: u64,
    first_table: u64,
    first_entries: u64,
    /// An entry of a second table has eight bytes, or sixteen with subclusters.
    is_extended: bool,
    is_zstandard: bool,
}

/// An image.
pub struct Qcow2 {
    file: Arc<dyn ReadAt>,
    backing: Option<Arc<dyn ReadAt>>,
    header: Header,
    kept: Mutex<Vec<(u64, Vec<u8>)>>,
}

/// What an image's header states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    header: Header,
    /// The path of the file below it, as it was given to the program that made the image.
    pub backing: Option<String>,
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The header of a file; `None` if that is no such image. The error is what is not read.
pub fn find(file: &dyn ReadAt) -> Option<Result<Found, &'static str>> {
    let bytes: [u8; 112] = read(file, 0)?;
    bytes.starts_with(MAGIC).then(|| header(file, &bytes))
}

fn header(file: &dyn ReadAt, bytes: &[u8]) -> Result<Found, &'static str> {
    let damaged = "a damaged image of the format qcow2";
    let (number, long) = (|at| half(bytes, at).ok_or(damaged), |at| word(bytes, at).ok_or(damaged));
    let version = number(4)?;
    if !matches!(version, 2 | 3) {
        return Err("a version of the format qcow2 after 3");
    }
    if number(32)? != 0 {
        return Err("an encrypted image of the format qcow2");
    }
    let features = if version == 3 { long(72)? } else { 0 };
    let kind = if features & COMPRESSION_KIND != 0 { bytes[104] } else { 0 };
    if features & DATA_FILE != 0 {
        return Err("an image of the format qcow2 with its data in another file");
    }
    if features & !(STATES | COMPRESSION_KIND | EXTENDED) != 0 || kind > 1 {
        return Err("an image of the format qcow2 with features of a newer QEMU");
    }
    let cluster_bits = number(20)?;
    if !CLUSTER_BITS.contains(&cluster_bits) {
        return Err(damaged);
    }
    let (at, length) = (long(8)?, number(16)?);
    let backing = match at {
        0 => None,
        _ if length > BACKING_BYTES_MAX => return Err(damaged),
        _ => {
            let mut path = vec![0; length as usize];
            if !file.read_at(at, &mut path) {
                return Err(damaged);
            }
            Some(String::from_utf8_lossy(&path).into_owned())
        }
    };
    let header = Header {
        cluster_bits,
        bytes: long(24)?,
        first_table: long(40)?,
        first_entries: number(36)?.into(),
        is_extended: features & EXTENDED != 0,
        is_zstandard: kind == 1,
    };
    Ok(Found { header, backing })
}

/// Where bytes of the disk are.
enum Place {
    /// At an offset of the file.
    InFile(u64),
    /// In the file below, if there is one, and zero otherwise.
    Below,
    Zero,
    /// In a cluster that is compressed: what describes it.
    Compressed(u64),
}

impl Qcow2 {
    /// The image in a file, with what is below it.
    pub fn new(file: Arc<dyn ReadAt>, found: &Found, backing: Option<Arc<dyn ReadAt>>) -> Qcow2 {
        Qcow2 { file, backing, header: found.header, kept: Mutex::default() }
    }

    fn entry(&self, table: u64, index: u64) -> Option<u64> {
        let bytes: [u8; 8] = read(&*self.file, table.checked_add(index.checked_mul(8)?)?)?;
        Some(u64::from_be_bytes(bytes))
    }

    /// Where an offset of the disk is, and for how many bytes the same holds.
    fn place(&self, offset: u64) -> Option<(Place, u64)> {
        let Header { cluster_bits, first_table, first_entries, is_extended, .. } = self.header;
        let cluster_bytes = 1 << cluster_bits;
        let (cluster, inside) = (offset >> cluster_bits, offset & (cluster_bytes - 1));
        let in_second = cluster_bits - 3 - u32::from(is_extended);
        let (first, second) = (cluster >> in_second, cluster & ((1 << in_second) - 1));
        let rest = cluster_bytes - inside;
        if first >= first_entries {
            return None;
        }
        let table = self.entry(first_table, first)? & OFFSET;
        if table == 0 {
            return Some((Place::Below, rest));
        }
        let entry = self.entry(table, second << u32::from(is_extended))?;
        if entry & COMPRESSED != 0 {
            return Some((Place::Compressed(entry), rest));
        }
        let host = entry & OFFSET;
        if !is_extended {
            let place = match (entry & READS_AS_ZERO, host) {
                (1, _) => Place::Zero,
                (_, 0) => Place::Below,
                (_, host) => Place::InFile(host.checked_add(inside)?),
            };
            return Some((place, rest));
        }
        let bitmap = self.entry(table, (second << 1) + 1)?;
        let part = cluster_bytes / SUBCLUSTERS;
        let (index, rest) = (inside / part, part - inside % part);
        let place = match (bitmap >> index & 1, bitmap >> (32 + index) & 1) {
            (_, 1) => Place::Zero,
            (1, _) => Place::InFile(host.checked_add(inside)?),
            _ => Place::Below,
        };
        Some((place, rest))
    }

    /// Copies a part of a compressed cluster.
    fn decompress(&self, entry: u64, inside: usize, into: &mut [u8]) -> Option<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.iter().any(|(known, _)| *known == entry) {
            let cluster = self.cluster(entry)?;
            if kept.len() == KEPT_MAX {
                kept.remove(0);
            }
            kept.push((entry, cluster));
        }
        let (_, cluster) = kept.iter().find(|(known, _)| *known == entry)?;
        into.copy_from_slice(cluster.get(inside..inside + into.len())?);
        Some(())
    }

    fn cluster(&self, entry: u64) -> Option<Vec<u8>> {
        let Header { cluster_bits, is_zstandard, .. } = self.header;
        let offset_bits = 62 - (cluster_bits - 8);
        let offset = entry & ((1 << offset_bits) - 1);
        let sectors = (entry & (COMPRESSED - 1)) >> offset_bits;
        let bytes = (sectors + 1) * SECTOR_BYTES - offset % SECTOR_BYTES;
        // The last sector of the file need not be all there.
        let bytes = bytes.min(self.file.bytes().checked_sub(offset)?);
        let mut compressed = vec![0; usize::try_from(bytes).ok()?];
        let mut cluster = vec![0; 1 << cluster_bits];
        if !self.file.read_at(offset, &mut compressed) {
            return None;
        }
        let count = match is_zstandard {
            true => zstandard(&compressed, &mut cluster)?,
            false => {
                let mut decoder = Decompress::new(false);
                decoder.decompress(&compressed, &mut cluster, FlushDecompress::Finish).ok()?;
                usize::try_from(decoder.total_out()).ok()?
            }
        };
        (count == cluster.len()).then_some(cluster)
    }

    /// Copies what is below the image; behind its end there are zeros.
    fn below(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        let Some(backing) = &self.backing else {
            into.fill(0);
            return Some(());
        };
        let there = usize::try_from(backing.bytes().saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
        into[there..].fill(0);
        (there == 0 || backing.read_at(offset, &mut into[..there])).then_some(())
    }
}

/// Decompresses a frame into a cluster; returns how much that was. What follows the frame is not looked at, and no more of it is decoded than
/// the cluster and one block.
fn zstandard(mut compressed: &[u8], cluster: &mut [u8]) -> Option<usize> {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(WINDOW_BYTES_MAX);
    decoder.reset(&mut compressed).ok()?;
    decoder.decode_blocks(&mut compressed, BlockDecodingStrategy::UptoBytes(cluster.len())).ok()?;
    if !decoder.is_finished() {
        decoder.decode_blocks(&mut compressed, BlockDecodingStrategy::UptoBlocks(1)).ok()?;
    }
    let count = decoder.read(cluster).ok()?;
    (decoder.is_finished() && decoder.can_collect() == 0).then_some(count)
}

impl ReadAt for Qcow2 {
    fn bytes(&self) -> u64 {
        self.header.bytes
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> bool {
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > self.header.bytes) {
            return false;
        }
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let Some((place, rest)) = self.place(at) else { return false };
            let count = usize::try_from(rest).unwrap_or(usize::MAX).min(into.len() - done);
            let piece = &mut into[done..done + count];
            let inside = (at & ((1 << self.header.cluster_bits) - 1)) as usize;
            let read = match place {
                Place::InFile(host) => self.file.read_at(host, piece).then_some(()),
                Place::Below => self.below(at, piece),
                Place::Zero => {
                    piece.fill(0);
                    Some(())
                }
                Place::Compressed(entry) => self.decompress(entry, inside, piece),
            };
            if read.is_none() {
                return false;
            }
            done += count;
        }
        true
    }
}
