//! Fills a map on a disk with keys, then measures puts, gets and a scan, and checks every entry. Each measurement prints one line of
//! JSON.
//!
//! Arguments: `[--keys NUMBER] [--milliseconds NUMBER]`, by default 100,000 keys and a second for each measurement.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::time::Duration;
use glasshouse::store::{Batch, Map, Options, Store};
use glasshouse::{Error, JoinHandle, Platform};

glasshouse::main!(serve);

/// Bytes of a value; a key has 16.
const VALUE_BYTES: usize = 100;
/// Puts of one batch.
const BATCH: u64 = 1000;
/// Tasks that put at the same time.
const TASKS: u64 = 64;

struct Load<P: Platform> {
    platform: P,
    store: Store<P::Block>,
    map: Map<P::Block>,
    keys: u64,
    duration: Duration,
}

async fn serve(platform: impl Platform) -> Result<(), Error> {
    let (keys, milliseconds) = options(platform.args())?;
    let disk = platform.block(0).ok_or("there is no disk: give one with --disk FILE --disk-size SIZE")?;
    let (store, recovery) = Store::open(disk, &platform, Options::default()).await?;
    platform.print(format_args!("{recovery}"));
    let map = store.map("load")?;
    let load = Load { platform, store, map, keys, duration: Duration::from_millis(milliseconds) };
    load.fill().await?;
    load.put_one_after_the_other().await?;
    load.put_together().await?;
    load.put_in_batches().await?;
    load.get().await?;
    load.scan().await
}

fn options(arguments: &[alloc::string::String]) -> Result<(u64, u64), Error> {
    let (mut keys, mut milliseconds) = (100_000, 1000);
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return Err("an option has no value".into()) };
        match &name[..] {
            "--keys" => keys = value.parse()?,
            "--milliseconds" => milliseconds = value.parse()?,
            _ => return Err("the arguments are: [--keys NUMBER] [--milliseconds NUMBER]".into()),
        }
    }
    if keys == 0 { Err("--keys must be at least 1".into()) } else { Ok((keys, milliseconds)) }
}

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"key.....of-load.";
    key[4..12].copy_from_slice(&number.to_be_bytes());
    key
}

/// The value of a key: it follows from its number, so that each can be checked.
fn value(number: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    for (index, word) in value.chunks_mut(8).enumerate() {
        let bits = mixed(number.wrapping_add(index as u64)).to_le_bytes();
        word.copy_from_slice(&bits[..word.len()]);
    }
    value
}

/// SplitMix64.
fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl<P: Platform> Load<P> {
    /// Counts what `work` does in the time of a measurement, and prints it; `work` returns what it did.
    async fn measure(&self, name: &str, mut work: impl AsyncFnMut(u64) -> Result<u64, Error>) -> Result<(), Error> {
        let start = self.platform.now();
        let (mut count, mut step) = (0, 0);
        while self.platform.now() - start < self.duration {
            count += work(step).await?;
            step += 1;
        }
        self.report(name, count, self.platform.now() - start);
        Ok(())
    }

    fn report(&self, name: &str, count: u64, duration: Duration) {
        let memory = self.platform.memory();
        let us = duration.as_micros().max(1) as u64;
        self.platform.print(format_args!(
            "{{\"measurement\": \"{name}\", \"count\": {count}, \"us\": {us}, \"per_s\": {:.0}, \"peak_memory_bytes\": {}}}",
            count as f64 * 1e6 / us as f64,
            memory.peak_bytes
        ));
    }

    async fn fill(&self) -> Result<(), Error> {
        let start = self.platform.now();
        for first in (0..self.keys).step_by(BATCH as usize) {
            self.put_batch(first..(first + BATCH).min(self.keys)).await?;
        }
        self.report("fill", self.keys, self.platform.now() - start);
        Ok(())
    }

    async fn put_batch(&self, numbers: impl Iterator<Item = u64>) -> Result<(), Error> {
        let mut batch = Batch::new();
        for number in numbers {
            batch.put(&self.map, key(number), value(number));
        }
        self.store.commit(batch).await?;
        Ok(())
    }

    /// Each put is flushed before the next one starts.
    async fn put_one_after_the_other(&self) -> Result<(), Error> {
        self.measure("put", async |step| {
            let number = mixed(step) % self.keys;
            self.map.put(key(number), value(number)).await?;
            Ok(1)
        })
        .await
    }

    /// Tasks put at the same time, each one key after the other.
    async fn put_together(&self) -> Result<(), Error> {
        let start = self.platform.now();
        let count = Rc::new(Cell::new(0));
        let mut tasks: Vec<JoinHandle<bool>> = Vec::new();
        for task in 0..TASKS {
            let (map, keys, count) = (self.map.clone(), self.keys, count.clone());
            let (platform, end) = (self.platform.clone(), start + self.duration);
            tasks.push(self.platform.spawn("put", async move {
                let mut step = task;
                while platform.now() < end {
                    let number = mixed(step) % keys;
                    if map.put(key(number), value(number)).await.is_err() {
                        return false;
                    }
                    count.set(count.get() + 1);
                    step += TASKS;
                }
                true
            })?);
        }
        for task in tasks {
            if !task.await? {
                return Err("a put has failed".into());
            }
        }
        self.report("put_64", count.get(), self.platform.now() - start);
        Ok(())
    }

    async fn put_in_batches(&self) -> Result<(), Error> {
        self.measure("put_batch", async |step| {
            self.put_batch((step * BATCH..(step + 1) * BATCH).map(|number| mixed(number) % self.keys)).await?;
            Ok(BATCH)
        })
        .await
    }

    async fn get(&self) -> Result<(), Error> {
        self.measure("get", async |step| {
            let number = mixed(step) % self.keys;
            match self.map.get(key(number)).await? {
                Some(found) if found == value(number) => Ok(1),
                _ => Err("a value is not the one that was stored".into()),
            }
        })
        .await
    }

    /// All entries, once, in order, each checked.
    async fn scan(&self) -> Result<(), Error> {
        let start = self.platform.now();
        let (mut scan, mut count) = (self.map.scan(), 0);
        while let Some((found, stored)) = scan.next().await? {
            if found != key(count) || stored != value(count) {
                return Err("an entry is not the one that was stored".into());
            }
            count += 1;
        }
        if count != self.keys {
            return Err("entries are missing".into());
        }
        self.report("scan", count, self.platform.now() - start);
        Ok(())
    }
}
