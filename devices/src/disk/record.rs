//! A log of what a guest writes to its disk, from which `glass powercut` derives what a power cut may leave (`docs/formats/write-log.md`).
//!
//! The data of a write are copied once, and written to the log and the disk from there: a guest may change its memory meanwhile.

use super::request::{Request, Status, Work};
use anyhow::{Context, Result};
use glass_formats::write_log::{BLOCK_BYTES, Fingerprint, HEADER_BYTES, Header, Kind, RECORD_BYTES, Record};
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Copies of the data that are on their way, at most: those until no other requests are started, and one request more.
pub(super) const COPIES_BYTES_MAX: u64 = 136 << 20;
/// Records that are written together.
const BUFFER_BYTES: usize = 256 << 10;

/// A log to write.
#[derive(Debug, Clone)]
pub struct WriteLog {
    /// The file, which is made, or overwritten.
    pub path: PathBuf,
    /// Its greatest length in bytes: then the log ends, and the disk is served on.
    pub bytes_max: u64,
}

/// Writes the log.
pub(super) struct Recorder {
    /// `None` when the log has ended.
    file: Option<BufWriter<File>>,
    /// Bytes that the log may still take.
    left: u64,
    requests: u32,
    time_ns: u64,
    /// Requests that have ended, of which the guest does not know yet.
    ended: Vec<(u32, Status)>,
}

impl Recorder {
    /// Starts a log of the disk `disk` at `disk_path`.
    pub(super) fn start(log: &WriteLog, disk: &File, disk_path: &Path, disk_bytes: u64) -> Result<Recorder> {
        let mut fingerprint = Fingerprint::new(disk_bytes);
        let mut block = [0; BLOCK_BYTES];
        for offset in Fingerprint::offsets(disk_bytes) {
            disk.read_exact_at(&mut block, offset).with_context(|| format!("cannot read {}", disk_path.display()))?;
            fingerprint.add(&block);
        }
        let cannot = || format!("cannot write the log {}", log.path.display());
        let file = File::create(&log.path).with_context(cannot)?;
        let mut recorder = Recorder {
            file: Some(BufWriter::with_capacity(BUFFER_BYTES, file)),
            left: log.bytes_max.saturating_sub((HEADER_BYTES + RECORD_BYTES) as u64),
            requests: 0,
            time_ns: 0,
            ended: Vec::new(),
        };
        let header = Header { disk_bytes, start_ns: recorder.now(), fingerprint: fingerprint.value() };
        let file = recorder.file.as_mut().context("a log has just been started")?;
        file.write_all(&header.to_bytes()).and_then(|()| file.flush()).with_context(cannot)?;
        Ok(recorder)
    }

    /// Records a request that has arrived. The data of a write are a copy from now on.
    ///
    /// # Safety
    /// The request's pieces are memory.
    pub(super) unsafe fn arrives(&mut self, request: &mut Request, is_durable: bool) {
        let kind = match request.work {
            Work::Write => Kind::Write { is_durable },
            Work::Zero { .. } => Kind::Zero { is_durable },
            Work::Discard => Kind::Discard,
            Work::Flush => Kind::Flush,
            Work::Read | Work::Nothing(_) => return,
        };
        if self.file.is_none() {
            return;
        }
        if request.work == Work::Write {
            // SAFETY: the caller's promise.
            unsafe { request.copy_data() };
        }
        let (offset, bytes) = if kind == Kind::Flush { (0, 0) } else { (request.offset, request.bytes) };
        let record = Record { kind, request: self.requests, time_ns: self.now(), offset, bytes };
        if self.write(&record, request.copy()) {
            request.number = Some(self.requests);
            self.requests += 1;
        }
    }

    /// Takes note of the end of a request.
    pub(super) fn ends(&mut self, request: &Request, status: Status) {
        self.ended.extend(request.number.map(|number| (number, status)));
    }

    /// Records the ends, before the guest learns of them.
    pub(super) fn complete(&mut self) {
        for (request, status) in std::mem::take(&mut self.ended) {
            let kind = Kind::Complete { is_failed: status != Status::Done };
            let record = Record { kind, request, time_ns: self.now(), offset: 0, bytes: 0 };
            self.write(&record, &[]);
        }
        if let Some(file) = &mut self.file
            && let Err(error) = file.flush()
        {
            self.lose(&error);
        }
    }

    /// Writes a record and its data, if the log has room for them.
    fn write(&mut self, record: &Record, data: &[u8]) -> bool {
        let Some(file) = &mut self.file else { return false };
        let Some(left) = self.left.checked_sub((RECORD_BYTES + data.len()) as u64) else {
            eprintln!("the log of the disk's writes has its greatest length: it ends here, and the disk is served on");
            self.end(true);
            return false;
        };
        let written = file.write_all(&record.to_bytes()).and_then(|()| file.write_all(data));
        match written {
            Ok(()) => self.left = left,
            Err(error) => self.lose(&error),
        }
        self.file.is_some()
    }

    fn lose(&mut self, error: &io::Error) {
        eprintln!("the log of the disk's writes cannot be written ({error}): it ends here, and the disk is served on");
        if let Some(file) = self.file.take() {
            // What is in its buffer would be behind what is missing.
            let _ = file.into_parts();
        }
    }

    /// Ends the log; there is room for this record.
    fn end(&mut self, is_cut: bool) {
        let time_ns = self.now();
        let Some(mut file) = self.file.take() else { return };
        let record = Record { kind: Kind::End { is_cut }, request: self.requests, time_ns, offset: 0, bytes: 0 };
        // Without this record the log is one that ends early, which its reader states.
        let _ = file.write_all(&record.to_bytes()).and_then(|()| file.flush());
    }

    /// The host's clock, which may be set back.
    fn now(&mut self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        self.time_ns = self.time_ns.max(now);
        self.time_ns
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end(false);
    }
}
