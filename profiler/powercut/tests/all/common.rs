//! Logs as the process of a disk writes them, and folders for images.

use glass_formats::write_log::{BLOCK_BYTES, Fingerprint, Header, Kind, Record};
use glass_profiler_powercut::log::Log;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

/// The sector's length.
pub const SECTOR: usize = 512;

/// A log in memory. Each record is a nanosecond after the one before.
pub struct Maker {
    /// The log.
    pub bytes: Vec<u8>,
    requests: u32,
    time_ns: u64,
}

impl Maker {
    /// Of a disk with these contents.
    pub fn new(base: &[u8]) -> Maker {
        let disk_bytes = base.len() as u64;
        let mut fingerprint = Fingerprint::new(disk_bytes);
        for offset in Fingerprint::offsets(disk_bytes) {
            fingerprint.add(&base[offset as usize..offset as usize + BLOCK_BYTES]);
        }
        let header = Header { disk_bytes, start_ns: 1000, fingerprint: fingerprint.value() };
        Maker { bytes: header.to_bytes().to_vec(), requests: 0, time_ns: 1000 }
    }

    /// The time of the last record.
    pub fn now(&self) -> u64 {
        self.time_ns
    }

    fn record(&mut self, kind: Kind, request: u32, offset: u64, bytes: u64) {
        self.time_ns += 1;
        let record = Record { kind, request, time_ns: self.time_ns, offset, bytes };
        self.bytes.extend(record.to_bytes());
    }

    fn arrives(&mut self, kind: Kind, offset: u64, bytes: u64) -> u32 {
        self.requests += 1;
        self.record(kind, self.requests - 1, offset, bytes);
        self.requests - 1
    }

    /// A write that arrives.
    pub fn write(&mut self, sector: u64, data: &[u8], is_durable: bool) -> u32 {
        let request = self.arrives(Kind::Write { is_durable }, sector * SECTOR as u64, data.len() as u64);
        self.bytes.extend(data);
        request
    }

    /// Zeroes that arrive.
    pub fn zero(&mut self, sector: u64, sectors: u64) -> u32 {
        self.arrives(Kind::Zero { is_durable: false }, sector * SECTOR as u64, sectors * SECTOR as u64)
    }

    /// A flush that arrives.
    pub fn flush(&mut self) -> u32 {
        self.arrives(Kind::Flush, 0, 0)
    }

    /// A request that completes.
    pub fn complete(&mut self, request: u32, is_failed: bool) {
        self.record(Kind::Complete { is_failed }, request, 0, 0);
    }

    /// A write of sectors of one byte that completes.
    pub fn written(&mut self, sector: u64, byte: u8, sectors: usize) {
        let request = self.write(sector, &vec![byte; sectors * SECTOR], false);
        self.complete(request, false);
    }

    /// A flush that completes.
    pub fn flushed(&mut self) {
        let request = self.flush();
        self.complete(request, false);
    }

    /// The end.
    pub fn end(&mut self) {
        self.record(Kind::End { is_cut: false }, self.requests, 0, 0);
    }

    /// What a reader has of it.
    pub fn read(&self) -> Log {
        read(&self.bytes).unwrap()
    }
}

/// Reads a log.
pub fn read(bytes: &[u8]) -> anyhow::Result<Log> {
    Log::read(Cursor::new(bytes), bytes.len() as u64)
}

/// A folder with the image from before the log, removed at the end.
pub struct Folder(pub PathBuf);

impl Folder {
    /// With this image.
    pub fn new(name: &str, base: &[u8]) -> Folder {
        let path = std::env::temp_dir().join(format!("glass-powercut-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("base.img"), base).unwrap();
        Folder(path)
    }

    /// The image.
    pub fn base(&self) -> PathBuf {
        self.0.join("base.img")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The sectors of an image, each by its first byte; each is of one byte.
pub fn sectors(image: &Path) -> Vec<u8> {
    let bytes = fs::read(image).unwrap();
    bytes
        .chunks(SECTOR)
        .map(|sector| {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn");
            sector[0]
        })
        .collect()
}
