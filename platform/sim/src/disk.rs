//! A simulated disk: with latency, out of order, losing unflushed writes at a power cut, and faulty on request.

use crate::chance::Chance;
use crate::clock::SimClock;
use crate::disk_memory::{ATOM_BYTES, Memory};
use crate::trace::Trace;
use core::cell::RefCell;
use core::ops::Range;
use core::time::Duration;
use glass_api::{Block, BlockError, BlockInfo, Buf, Instant, check_change, check_request};
use glass_lib_executor::Executor;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The error of a request that the disk fails: EIO.
const IO_ERROR: BlockError = BlockError::Device(5);

/// The configuration of a simulated disk.
#[derive(Debug, Clone)]
pub struct DiskConfig {
    /// See [`BlockInfo::sector_bytes`]. For any size, a request tears at units of 512 bytes.
    pub sector_bytes: u32,
    /// Size of the device.
    pub size_bytes: u64,
    /// How long a read takes.
    pub read_latency: Range<Duration>,
    /// How long a write takes. The wider the range, the more requests overtake each other.
    pub write_latency: Range<Duration>,
    /// How long a flush takes.
    pub flush_latency: Range<Duration>,
}

impl Default for DiskConfig {
    /// 16 MiB with sectors of 512 bytes and the latencies of a cheap SSD.
    fn default() -> DiskConfig {
        let micros = |range: Range<u64>| Duration::from_micros(range.start)..Duration::from_micros(range.end);
        DiskConfig {
            sector_bytes: 512,
            size_bytes: 16 << 20,
            read_latency: micros(50..300),
            write_latency: micros(20..500),
            flush_latency: micros(100..2000),
        }
    }
}

/// Requests that fail on purpose. A failed write may have landed in part; a failed flush made
/// nothing stable; a failed read leaves arbitrary bytes in its buffer.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// `Some(n)`: every n-th read fails.
    pub read_every: Option<u64>,
    /// `Some(n)`: every n-th write fails.
    pub write_every: Option<u64>,
    /// `Some(n)`: every n-th flush fails.
    pub flush_every: Option<u64>,
    /// Reads that touch these bytes fail.
    pub read_ranges: Vec<Range<u64>>,
    /// Writes that touch these bytes fail.
    pub write_ranges: Vec<Range<u64>>,
    /// Each request takes so much longer.
    pub slower_by: Duration,
}

/// Counters of a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Started reads.
    pub reads: u64,
    /// Started writes.
    pub writes: u64,
    /// Started flushes.
    pub flushes: u64,
    /// Requests that failed by [`Faults`].
    pub faults: u64,
    /// Writes that were started while another write to the same place was in flight. Their result is
    /// any mixture, so there should be none.
    pub overlapping_writes: u64,
}

/// A simulated disk. Clones are handles to the same one.
///
/// If the disk belongs to a [`crate::Node`], requests take simulated time and can complete out of order. Without a node each
/// request completes immediately. A completed write is in the disk's cache: it survives a power cut only if a
/// later flush completed, or by luck. A power cut leaves each unit of 512 bytes old or new.
#[derive(Clone)]
pub struct SimBlock {
    disk: Rc<RefCell<Disk>>,
}

struct Disk {
    info: BlockInfo,
    config: DiskConfig,
    memory: Memory,
    chance: Chance,
    faults: Faults,
    counters: DiskCounters,
    /// Writes and flushes so far.
    operations: u64,
    cut_at_operation: Option<u64>,
    cut_at: Option<Instant>,
    power: bool,
    requests: u64,
    /// By the time of completion, then by age.
    in_flight: BTreeMap<(Instant, u64), Request>,
    world: Option<World>,
}

/// The parts of the world that a disk uses.
struct World {
    clock: SimClock,
    executor: Executor,
    trace: Trace,
}

enum Request {
    Write { offset: u64, data: Buf, fails: bool },
    Flush { generation: u64, fails: bool },
}

impl SimBlock {
    /// A disk full of zeros.
    pub fn new(seed: u64, config: DiskConfig) -> SimBlock {
        let size = usize::try_from(config.size_bytes).expect("a simulated disk fits into memory");
        SimBlock::with_image(seed, config, vec![0; size])
    }

    /// A disk with these contents, all of them stable. The image decides about the size.
    ///
    /// # Panics
    /// When the sector size is no power of two of at least 512, or the image is no multiple of it.
    pub fn with_image(seed: u64, config: DiskConfig, image: Vec<u8>) -> SimBlock {
        let sector_bytes = config.sector_bytes;
        assert!(sector_bytes.is_power_of_two() && sector_bytes as usize >= ATOM_BYTES, "{sector_bytes}-byte sectors");
        assert!(image.len().is_multiple_of(sector_bytes as usize), "an image of {} bytes", image.len());
        let info = BlockInfo { sector_bytes, size_bytes: image.len() as u64, read_only: false };
        let disk = Disk {
            info,
            config,
            memory: Memory::new(image),
            chance: Chance::new(seed ^ 0x6469_736b),
            faults: Faults::default(),
            counters: DiskCounters::default(),
            operations: 0,
            cut_at_operation: None,
            cut_at: None,
            power: true,
            requests: 0,
            in_flight: BTreeMap::new(),
            world: None,
        };
        SimBlock { disk: Rc::new(RefCell::new(disk)) }
    }

    /// Returns a new disk for another world, with the data that survived the power cut (or all data if there was none). This handle
    /// and its clones lose power.
    pub fn restart(&self, seed: u64) -> SimBlock {
        let mut disk = self.disk.borrow_mut();
        let config = disk.config.clone();
        disk.lose_power(false);
        let image = core::mem::replace(&mut disk.memory, Memory::new(Vec::new())).into_bytes();
        drop(disk);
        SimBlock::with_image(seed, config, image)
    }

    /// The bytes that a reader would see now; after a power cut, those that survived. Empty after [`SimBlock::restart`].
    pub fn image(&self) -> Vec<u8> {
        self.disk.borrow().memory.bytes().to_vec()
    }

    /// Cuts the power now. Any part of the unflushed data survives, and any part of the writes
    /// in flight; every request fails from now on. If the disk is part of a node, the node dies.
    pub fn power_cut(&self) {
        self.disk.borrow_mut().lose_power(true);
    }

    /// Cuts the power while write or flush number `operation` is in flight, counted from 0 as
    /// [`SimBlock::operations`] counts; if it was started already, while the next one is.
    pub fn cut_at_operation(&self, operation: u64) {
        self.disk.borrow_mut().cut_at_operation = Some(operation);
    }

    /// Started writes and flushes.
    pub fn operations(&self) -> u64 {
        self.disk.borrow().operations
    }

    /// Whether the disk has power.
    pub fn has_power(&self) -> bool {
        self.disk.borrow().power
    }

    /// Which requests fail from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.disk.borrow_mut().faults = faults;
    }

    /// The disk's counters.
    pub fn counters(&self) -> DiskCounters {
        self.disk.borrow().counters
    }

    pub(crate) fn attach(&self, clock: SimClock, executor: Executor, trace: Trace) {
        self.disk.borrow_mut().world = Some(World { clock, executor, trace });
    }

    /// Completes the requests that are due.
    pub(crate) fn advance(&self) {
        self.disk.borrow_mut().advance();
    }

    /// The moment of the power cut, if it is set.
    pub(crate) fn cut_deadline(&self) -> Option<Instant> {
        self.disk.borrow().cut_at
    }

    /// Waits for the moment at which a request completes.
    async fn wait(&self, complete_at: Instant) {
        let sleep = {
            let disk = self.disk.borrow();
            disk.world.as_ref().map(|world| world.executor.sleep_until(complete_at))
        };
        if let Some(sleep) = sleep {
            sleep.await;
        }
        self.advance();
    }
}

impl Block for SimBlock {
    fn info(&self) -> BlockInfo {
        self.disk.borrow().info
    }

    async fn read(&self, offset: u64, mut buf: Buf) -> (Result<(), BlockError>, Buf) {
        let begun = self.disk.borrow_mut().begin_read(offset, &mut buf);
        let (complete_at, fails) = match begun {
            Ok(begun) => begun,
            Err(error) => return (Err(error), buf),
        };
        self.wait(complete_at).await;
        let result = self.disk.borrow_mut().finish_read(offset, &mut buf, fails);
        (result, buf)
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), BlockError>, Buf) {
        let begun = self.disk.borrow_mut().begin_write(offset, &buf);
        let (complete_at, fails) = match begun {
            Ok(begun) => begun,
            Err(error) => return (Err(error), buf),
        };
        self.wait(complete_at).await;
        (self.disk.borrow().result(fails), buf)
    }

    async fn discard(&self, offset: u64, len: usize) -> Result<(), BlockError> {
        check_change(self.info(), offset, len)?;
        // What is read afterwards is anything, so that a service which still needs it fails.
        let mut buf = Buf::zeroed(len).map_err(|_| IO_ERROR)?;
        self.disk.borrow_mut().chance.fill(buf.as_mut().expect("a new buffer has one owner"));
        self.write(offset, buf).await.0
    }

    async fn flush(&self) -> Result<(), BlockError> {
        let (complete_at, fails) = self.disk.borrow_mut().begin_flush()?;
        self.wait(complete_at).await;
        self.disk.borrow().result(fails)
    }
}

impl Disk {
    fn now(&self) -> Instant {
        self.world.as_ref().map_or(Instant(0), |world| world.clock.now())
    }

    fn trace(&self, what: &str, offset: u64, len: usize) {
        if let Some(world) = &self.world {
            world.trace.add(world.clock.now(), what, &[offset, len as u64], &[]);
        }
    }

    /// When a request that takes `latency` completes; at once for a disk on its own.
    fn completion(&mut self, latency: &Range<Duration>) -> Instant {
        let latency = self.chance.duration(latency) + self.faults.slower_by;
        match &self.world {
            Some(world) => world.clock.now() + latency,
            None => Instant(0),
        }
    }

    fn result(&self, fails: bool) -> Result<(), BlockError> {
        if fails || !self.power { Err(IO_ERROR) } else { Ok(()) }
    }

    fn begin_read(&mut self, offset: u64, buf: &mut Buf) -> Result<(Instant, bool), BlockError> {
        check_request(self.info, offset, buf.len())?;
        if buf.as_mut().is_none() {
            return Err(BlockError::Shared);
        }
        self.result(false)?;
        self.advance();
        self.counters.reads += 1;
        self.trace("read", offset, buf.len());
        let fails =
            every(self.faults.read_every, self.counters.reads) || touches(&self.faults.read_ranges, offset, buf.len());
        self.counters.faults += u64::from(fails);
        let latency = self.config.read_latency.clone();
        Ok((self.completion(&latency), fails))
    }

    fn finish_read(&mut self, offset: u64, buf: &mut Buf, fails: bool) -> Result<(), BlockError> {
        let result = self.result(fails);
        let bytes = buf.as_mut().ok_or(BlockError::Shared)?;
        if result.is_ok() {
            let start = offset as usize;
            bytes.copy_from_slice(&self.memory.bytes()[start..start + bytes.len()]);
        } else {
            self.chance.fill(bytes);
        }
        result
    }

    fn begin_write(&mut self, offset: u64, buf: &Buf) -> Result<(Instant, bool), BlockError> {
        check_request(self.info, offset, buf.len())?;
        self.result(false)?;
        self.advance();
        self.counters.writes += 1;
        self.trace("write", offset, buf.len());
        let end = offset + buf.len() as u64;
        let overlaps = self.in_flight.values().any(|request| match request {
            Request::Write { offset: other, data, .. } => *other < end && offset < *other + data.len() as u64,
            Request::Flush { .. } => false,
        });
        self.counters.overlapping_writes += u64::from(overlaps);
        let fails = every(self.faults.write_every, self.counters.writes)
            || touches(&self.faults.write_ranges, offset, buf.len());
        let latency = self.config.write_latency.clone();
        self.begin(Request::Write { offset, data: buf.clone(), fails }, &latency, fails)
    }

    fn begin_flush(&mut self) -> Result<(Instant, bool), BlockError> {
        self.result(false)?;
        self.advance();
        self.counters.flushes += 1;
        self.trace("flush", 0, 0);
        let fails = every(self.faults.flush_every, self.counters.flushes);
        let latency = self.config.flush_latency.clone();
        let generation = self.memory.generation();
        self.begin(Request::Flush { generation, fails }, &latency, fails)
    }

    fn begin(
        &mut self,
        request: Request,
        latency: &Range<Duration>,
        fails: bool,
    ) -> Result<(Instant, bool), BlockError> {
        self.counters.faults += u64::from(fails);
        let complete_at = self.completion(latency);
        self.requests += 1;
        self.in_flight.insert((complete_at, self.requests), request);
        if self.cut_at_operation.take_if(|operation| *operation <= self.operations).is_some() {
            let span = complete_at.since(self.now());
            // Later than now, so that nothing else happens at the moment of the cut.
            let cut_at = self.now() + Duration::from_nanos(1) + self.chance.duration(&(Duration::ZERO..span));
            match self.world {
                Some(_) => self.cut_at = Some(cut_at),
                None => self.lose_power(true),
            }
        }
        self.operations += 1;
        Ok((complete_at, fails))
    }

    fn advance(&mut self) {
        let now = self.now();
        let until = self.cut_at.map_or(now, |cut_at| cut_at.min(now));
        while let Some(entry) = self.in_flight.first_entry() {
            // A request that completes at the moment of the cut is lost.
            if entry.key().0 > until || self.cut_at == Some(entry.key().0) {
                break;
            }
            match entry.remove() {
                Request::Write { offset, data, fails } => {
                    let chance = &mut self.chance;
                    self.memory.write(offset as usize, &data, || !fails || chance.per_million(500_000));
                }
                Request::Flush { generation, fails } if !fails => self.memory.flush(generation),
                Request::Flush { .. } => {}
            }
        }
        if self.cut_at.is_some_and(|cut_at| cut_at <= now) {
            self.lose_power(true);
        }
    }

    /// Any part of the requests in flight may be written, and then any part of the cache may survive; without
    /// `forget` all completed writes survive.
    fn lose_power(&mut self, forget: bool) {
        if !self.power {
            return;
        }
        self.power = false;
        self.cut_at = None;
        self.trace("power cut", 0, 0);
        let in_flight = core::mem::take(&mut self.in_flight);
        if !forget {
            return;
        }
        let lands_per_million = [0, 500_000, 1_000_000][self.chance.below(3) as usize];
        for request in in_flight.into_values() {
            if let Request::Write { offset, data, .. } = request {
                let chance = &mut self.chance;
                self.memory.write(offset as usize, &data, || chance.per_million(lands_per_million));
            }
        }
        self.memory.power_cut(&mut self.chance);
    }
}

fn every(period: Option<u64>, count: u64) -> bool {
    period.is_some_and(|period| period != 0 && count.is_multiple_of(period))
}

fn touches(ranges: &[Range<u64>], offset: u64, len: usize) -> bool {
    ranges.iter().any(|range| range.start < offset + len as u64 && offset < range.end)
}
