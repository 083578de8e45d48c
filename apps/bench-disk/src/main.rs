//! Reads and writes a disk from its start to its end, with requests of one size and a fixed number in flight, to measure
//! the disk. Each measurement prints one line of JSON.
//!
//! Without options it repeats the measurements of the article on the block driver of MirageOS: 1 to 256 sectors of 4 KiB, 1 to 10 requests in
//! flight, first reads, then writes.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]

extern crate alloc;

mod options;

use alloc::format;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use glasshouse::sync::Notify;
use glasshouse::trace::{Counter, Name};
use glasshouse::{Block, BlockError, Buf, Error, Instant, OutOfMemory, Platform};
use options::{Direction, Options};

static REQUESTS: Counter = Counter::new("requests completed");
static ALL_REQUESTS: Name = Name::new("the last request");

glasshouse::main!(serve);

async fn serve(platform: impl Platform) -> Result<(), Error> {
    let options = Options::parse(platform.args())?;
    let disk = platform.block(0).ok_or("there is no disk: give one with --disk FILE --disk-size SIZE")?;
    let info = disk.info();
    for &direction in &options.directions {
        if direction == Direction::Write && info.read_only {
            return Err("the disk is read-only: choose --direction read".into());
        }
        for &request_bytes in &options.request_bytes {
            for &in_flight in &options.in_flight {
                let cell = Measurement { direction, request_bytes, in_flight };
                cell.check(info.sector_bytes, info.size_bytes)?;
                let done = cell.run(&platform, &disk, &options).await?;
                platform.print(format_args!(
                    "{{\"direction\": \"{direction}\", \"request_bytes\": {request_bytes}, \"in_flight\": {in_flight}, \"requests\": {}, \"us\": {}, \"flush_us\": {}, \"mb_s\": {:.2}}}",
                    done.requests,
                    done.us,
                    done.flush_us,
                    (done.requests * request_bytes as u64) as f64 / done.us.max(1) as f64,
                ));
            }
        }
    }
    Ok(())
}

/// The parameters of one measurement.
struct Measurement {
    direction: Direction,
    /// Bytes of each request.
    request_bytes: usize,
    /// Requests in flight.
    in_flight: usize,
}

/// The result of a measurement.
struct Done {
    requests: u64,
    us: u64,
    /// Duration of the flush after writes, which is not part of the other duration.
    flush_us: u64,
}

/// Shared state of the tasks of one measurement.
struct Shared {
    /// Requests that were started since the start of the disk.
    next: Cell<u64>,
    /// The last error, which ends all of them.
    failed: RefCell<Option<BlockError>>,
    running: Cell<usize>,
    ended: Notify,
}

impl Measurement {
    fn check(&self, sector_bytes: u32, size_bytes: u64) -> Result<(), Error> {
        let bytes = self.request_bytes;
        if !bytes.is_multiple_of(sector_bytes as usize) {
            return Err(format!("requests of {bytes} bytes are not whole sectors of {sector_bytes} bytes").into());
        }
        if bytes as u64 > size_bytes {
            return Err(format!("a request of {bytes} bytes is larger than the disk, which has {size_bytes}").into());
        }
        Ok(())
    }

    /// Reads or writes the disk until the deadline; at the disk's end it starts again.
    async fn run<P: Platform>(&self, platform: &P, disk: &P::Block, options: &Options) -> Result<Done, Error> {
        let shared = Rc::new(Shared {
            next: Cell::new(0),
            failed: RefCell::new(None),
            running: Cell::new(self.in_flight),
            ended: Notify::named(&ALL_REQUESTS),
        });
        let bufs = (0..self.in_flight).map(|number| filled(self.request_bytes, number as u64));
        let bufs: Vec<Buf> = bufs.collect::<Result<_, _>>()?;
        let start = platform.now();
        let end = start + options.duration;
        for buf in bufs {
            let task = requests(platform.clone(), disk.clone(), self.direction, shared.clone(), end, buf);
            if let Err(error) = platform.spawn("requests", task) {
                // The tasks that already run end at the deadline.
                *shared.failed.borrow_mut() = Some(BlockError::Broken("too many requests in flight"));
                return Err(error.into());
            }
        }
        loop {
            let ended = shared.ended.notified();
            if shared.running.get() == 0 {
                break;
            }
            ended.await;
        }
        if let Some(error) = shared.failed.borrow_mut().take() {
            return Err(error.into());
        }
        let completed = platform.now();
        if self.direction == Direction::Write {
            disk.flush().await?;
        }
        let us = |from, to: Instant| (to - from).as_micros() as u64;
        Ok(Done { requests: shared.next.get(), us: us(start, completed), flush_us: us(completed, platform.now()) })
    }
}

/// A buffer whose bytes differ everywhere, so that no disk can store them as one.
fn filled(bytes: usize, seed: u64) -> Result<Buf, OutOfMemory> {
    let mut buf = Buf::zeroed(bytes)?;
    // An additive sequence with the golden ratio as its step: neighbours differ in most bits.
    let words = (seed << 32..).map(|index| index.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
    let chunks = buf.as_mut().into_iter().flat_map(|bytes| bytes.chunks_exact_mut(8));
    chunks.zip(words).for_each(|(chunk, word)| chunk.copy_from_slice(&word.to_le_bytes()));
    Ok(buf)
}

/// One request after the other, each for the next part of the disk that no other task has taken.
async fn requests<P: Platform>(
    platform: P,
    disk: P::Block,
    direction: Direction,
    shared: Rc<Shared>,
    end: Instant,
    mut buf: Buf,
) {
    let bytes = buf.len() as u64;
    let places = disk.info().size_bytes / bytes;
    while platform.now() < end && shared.failed.borrow().is_none() {
        let offset = shared.next.get() % places * bytes;
        shared.next.set(shared.next.get() + 1);
        let (result, back) = match direction {
            Direction::Read => disk.read(offset, buf).await,
            Direction::Write => disk.write(offset, buf).await,
        };
        buf = back;
        REQUESTS.add(1);
        if let Err(error) = result {
            *shared.failed.borrow_mut() = Some(error);
        }
    }
    shared.running.set(shared.running.get() - 1);
    shared.ended.notify_all();
}
