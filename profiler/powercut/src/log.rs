//! A log of a disk's writes, read and bounded: which write is on stable storage when, and which may be lost when the power is cut.

use anyhow::{Context, Result, bail, ensure};
use glass_formats::write_log::{HEADER_BYTES, Header, Kind, RECORD_BYTES, Record};
use std::collections::HashMap;
use std::io::{BufRead, ErrorKind, Seek, SeekFrom};

/// Records of a log, at most; those of 30 GiB in writes of 4 KiB.
const RECORDS_MAX: usize = 16 << 20;
/// Requests in flight, at most: more than any queue has.
const IN_FLIGHT_MAX: usize = 1 << 16;
/// The epoch of what is never on stable storage.
const NEVER: u32 = u32::MAX;

/// A write, or a range of zeroes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// The number of its request in the log.
    pub request: u32,
    /// When it arrived.
    pub arrived_ns: u64,
    /// When it completed; `None` if it did not.
    pub done_ns: Option<u64>,
    /// Where on the disk, in bytes.
    pub offset: u64,
    /// How long.
    pub bytes: u64,
    /// Where in the log its data are; `None` of zeroes.
    pub data: Option<u64>,
    /// The epoch in which it arrived.
    pub arrived: u32,
    /// The first epoch in which it is on stable storage, whatever is lost.
    durable: u32,
}

impl Write {
    /// Whether it is on stable storage in an epoch.
    pub fn is_durable(&self, epoch: usize) -> bool {
        self.durable as usize <= epoch
    }

    /// Sectors that it has.
    pub fn sectors(&self) -> u64 {
        self.bytes / glass_formats::write_log::SECTOR_BYTES
    }
}

/// The time from one moment at which something becomes durable to the next: in between a power cut may lose the same writes, and more.
#[derive(Debug, Clone)]
pub struct Epoch {
    /// When it ends, and what was durable is more.
    pub end_ns: u64,
    /// The request whose completion ends it; `None` at the end of the log.
    pub end_request: Option<u32>,
    /// Writes that are durable from its start on, and were not before.
    pub durable: Vec<u32>,
    /// The first write that may not be durable in it.
    first: u32,
    /// Writes that had arrived at its end.
    arrived: u32,
}

/// What a log contains.
#[derive(Debug, Clone)]
pub struct Log {
    /// What is in front of it.
    pub header: Header,
    /// Writes in order of arrival.
    pub writes: Vec<Write>,
    /// At least one; in order of time.
    pub epochs: Vec<Epoch>,
    /// How many flushes have completed.
    pub flushes: usize,
    /// The time of the last record.
    pub end_ns: u64,
    /// What a reader should know about it, in sentences.
    pub remarks: Vec<String>,
}

/// The state of a log that is read.
struct Reader {
    log: Log,
    in_flight: HashMap<u32, InFlight>,
    /// Writes in order of completion, and how many of them are durable.
    done: Vec<u32>,
    durable: usize,
}

enum InFlight {
    Write {
        index: u32,
        is_durable: bool,
    },
    /// So many writes had completed when it arrived.
    Flush {
        done: usize,
    },
    Discard,
}

impl Log {
    /// Reads a log of `bytes` bytes.
    ///
    /// # Errors
    /// It cannot be read, or is none. One that ends early is read up to there, with a remark.
    pub fn read(mut file: impl BufRead + Seek, bytes: u64) -> Result<Log> {
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header).context("the log has no header")?;
        let header = Header::from_bytes(&header)?;
        let epoch = Epoch { end_ns: 0, end_request: None, durable: Vec::new(), first: 0, arrived: 0 };
        let log = Log {
            header,
            writes: Vec::new(),
            epochs: vec![epoch],
            flushes: 0,
            end_ns: header.start_ns,
            remarks: Vec::new(),
        };
        let mut reader = Reader { log, in_flight: HashMap::new(), done: Vec::new(), durable: 0 };
        let mut at = HEADER_BYTES as u64;
        let mut count = 0;
        let mut has_end = false;
        while !has_end {
            let mut record = [0; RECORD_BYTES];
            match file.read_exact(&mut record) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error).context("the log cannot be read"),
            }
            at += RECORD_BYTES as u64;
            let Some(record) = Record::from_bytes(&record, header.disk_bytes) else {
                bail!("the log is damaged at byte {}", at - RECORD_BYTES as u64)
            };
            ensure!(count < RECORDS_MAX, "the log has more than {RECORDS_MAX} records: record a shorter time");
            ensure!(record.time_ns >= reader.log.end_ns, "the log is damaged: time runs backwards in record {count}");
            count += 1;
            if let Kind::Write { .. } = record.kind {
                if record.bytes > bytes.saturating_sub(at) {
                    break;
                }
                let skip = i64::try_from(record.bytes).context("a write is too long")?;
                file.seek_relative(skip).context("the log cannot be read")?;
            }
            has_end = reader.add(&record, at).with_context(|| format!("record {count} of the log"))?;
            if let Kind::Write { .. } = record.kind {
                at += record.bytes;
            }
        }
        let mut log = reader.finish();
        if !has_end {
            log.remarks
                .push("the log has no end: the process that served the disk was killed, as it should be".to_owned());
        }
        Ok(log)
    }

    /// Takes no flush as having made anything durable, as if the disk ignored them: a service that relies on them must lose something then.
    pub fn ignore_flushes(&mut self) {
        self.writes.iter_mut().for_each(|write| (write.arrived, write.durable) = (0, NEVER));
        let (end_ns, arrived) = (self.end_ns.saturating_add(1), self.writes.len() as u32);
        self.epochs = vec![Epoch { end_ns, end_request: None, durable: Vec::new(), first: 0, arrived }];
    }

    /// Writes that had arrived in an epoch and may be lost in it, in order of arrival.
    pub fn unflushed(&self, epoch: usize) -> Vec<u32> {
        let Epoch { first, arrived, .. } = self.epochs[epoch];
        (first..arrived).filter(|index| !self.writes[*index as usize].is_durable(epoch)).collect()
    }
}

impl Reader {
    /// Adds a record behind which the log is at `at`; whether it is the end.
    fn add(&mut self, record: &Record, at: u64) -> Result<bool> {
        self.log.end_ns = record.time_ns;
        let epoch = (self.log.epochs.len() - 1) as u32;
        let arrived = match record.kind {
            Kind::Write { is_durable } | Kind::Zero { is_durable } => {
                let index = self.log.writes.len() as u32;
                self.log.writes.push(Write {
                    request: record.request,
                    arrived_ns: record.time_ns,
                    done_ns: None,
                    offset: record.offset,
                    bytes: record.bytes,
                    data: matches!(record.kind, Kind::Write { .. }).then_some(at),
                    arrived: epoch,
                    durable: NEVER,
                });
                InFlight::Write { index, is_durable }
            }
            Kind::Flush => InFlight::Flush { done: self.done.len() },
            Kind::Discard => InFlight::Discard,
            Kind::Complete { is_failed } => {
                let ended =
                    self.in_flight.remove(&record.request).context("a request completes that is not in flight")?;
                self.end(ended, is_failed, record);
                return Ok(false);
            }
            Kind::End { is_cut } => {
                if is_cut {
                    self.log
                        .remarks
                        .push("the log had its greatest length before the VM ended: --record-limit".to_owned());
                }
                return Ok(true);
            }
        };
        ensure!(self.in_flight.len() < IN_FLIGHT_MAX, "too many requests are in flight");
        ensure!(self.in_flight.insert(record.request, arrived).is_none(), "two requests have one number");
        Ok(false)
    }

    fn end(&mut self, ended: InFlight, is_failed: bool, record: &Record) {
        match ended {
            InFlight::Write { index, is_durable } => {
                // One that failed may be there or not, forever.
                if is_failed {
                    return;
                }
                self.log.writes[index as usize].done_ns = Some(record.time_ns);
                if is_durable {
                    self.next_epoch(vec![index], record);
                } else {
                    self.done.push(index);
                }
            }
            InFlight::Flush { done } if !is_failed => {
                self.log.flushes += 1;
                if done > self.durable {
                    let durable = self.done[self.durable..done].to_vec();
                    self.durable = done;
                    self.next_epoch(durable, record);
                }
            }
            InFlight::Flush { .. } | InFlight::Discard => {}
        }
    }

    fn next_epoch(&mut self, mut durable: Vec<u32>, record: &Record) {
        durable.sort_unstable();
        let next = self.log.epochs.len() as u32;
        durable.iter().for_each(|index| self.log.writes[*index as usize].durable = next);
        let arrived = self.log.writes.len() as u32;
        let last = self.log.epochs.last_mut().expect("there is one at the start");
        (last.end_ns, last.end_request, last.arrived) = (record.time_ns, Some(record.request), arrived);
        let mut first = last.first;
        while first < arrived && self.log.writes[first as usize].is_durable(next as usize) {
            first += 1;
        }
        self.log.epochs.push(Epoch { end_ns: 0, end_request: None, durable, first, arrived });
    }

    fn finish(mut self) -> Log {
        let arrived = self.log.writes.len() as u32;
        let last = self.log.epochs.last_mut().expect("there is one at the start");
        (last.end_ns, last.arrived) = (self.log.end_ns.saturating_add(1), arrived);
        self.log
    }
}

/// Where the data of writes are read.
pub trait Data {
    /// Reads from byte `at` of the log.
    ///
    /// # Errors
    /// The log cannot be read there.
    fn read(&self, buffer: &mut [u8], at: u64) -> Result<()>;
}

impl Data for std::fs::File {
    fn read(&self, buffer: &mut [u8], at: u64) -> Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buffer, at).context("the log cannot be read")
    }
}

impl Data for [u8] {
    fn read(&self, buffer: &mut [u8], at: u64) -> Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..)).context("the log is shorter")?;
        let from = from.get(..buffer.len()).context("the log is shorter")?;
        buffer.copy_from_slice(from);
        Ok(())
    }
}

/// Reads the log of a file that is open.
///
/// # Errors
/// Those of [`Log::read`].
pub fn open(mut file: &std::fs::File) -> Result<Log> {
    let bytes = file.seek(SeekFrom::End(0)).context("the log cannot be read")?;
    file.rewind().context("the log cannot be read")?;
    Log::read(std::io::BufReader::with_capacity(1 << 16, file), bytes)
}
