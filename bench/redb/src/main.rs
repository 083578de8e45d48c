//! Measures redb as `bench-store` measures our store: `glass-bench-redb FILE KEYS MILLISECONDS` prints a line of JSON for each measurement.
//!
//! A program of its own, so that `cargo xtask bench` builds it optimized: it is itself a development build, in which redb takes ten times as long.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail, ensure};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::path::Path;
use std::time::{Duration, Instant};

/// As `bench-store` has them.
const VALUE_BYTES: usize = 100;
const BATCH: u64 = 1000;
/// redb has no puts that wait together: its callers make a transaction of them, as is done here.
const TOGETHER: u64 = 64;
/// As the store's.
const CACHE_BYTES: usize = 4 << 20;
const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("load");

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, keys, milliseconds] = arguments.as_slice() else { bail!("the arguments are: FILE KEYS MILLISECONDS") };
    measure(Path::new(path), keys.parse()?, Duration::from_millis(milliseconds.parse()?))
}

fn print(measurement: &str, per_s: f64) {
    println!("{{\"measurement\": \"{measurement}\", \"per_s\": {per_s:.1}}}");
}

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"key.....of-load.";
    key[4..12].copy_from_slice(&number.to_be_bytes());
    key
}

fn measure(path: &Path, keys: u64, duration: Duration) -> Result<()> {
    let database = Database::builder().set_cache_size(CACHE_BYTES).create(path)?;
    let mut random = fastrand::Rng::with_seed(1);
    let start = Instant::now();
    for first in (0..keys).step_by(BATCH as usize) {
        put(&database, first..(first + BATCH).min(keys))?;
    }
    print("fill", keys as f64 / start.elapsed().as_secs_f64());
    for (name, count) in [("put", 1), ("put_64", TOGETHER), ("put_batch", BATCH)] {
        let rate = rate(duration, || {
            put(&database, (0..count).map(|_| random.u64(..keys)))?;
            Ok(count)
        })?;
        print(name, rate);
    }
    let get = rate(duration, || {
        let table = database.begin_read()?.open_table(TABLE)?;
        let value = table.get(&key(random.u64(..keys))[..])?.context("a key is missing")?;
        ensure!(value.value().len() == VALUE_BYTES, "a value has another length");
        Ok(1)
    })?;
    print("get", get);
    let start = Instant::now();
    let table = database.begin_read()?.open_table(TABLE)?;
    let mut count = 0;
    for entry in table.iter()? {
        let (found, value) = entry?;
        ensure!(found.value() == key(count) && value.value().len() == VALUE_BYTES, "another entry");
        count += 1;
    }
    ensure!(count == keys, "entries are missing");
    print("scan", keys as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

/// One transaction, which is on stable storage when this returns.
fn put(database: &Database, numbers: impl Iterator<Item = u64>) -> Result<()> {
    let transaction = database.begin_write()?;
    let mut table = transaction.open_table(TABLE)?;
    for number in numbers {
        let mut value = [0x5a; VALUE_BYTES];
        value[..8].copy_from_slice(&number.to_le_bytes());
        table.insert(&key(number)[..], &value[..])?;
    }
    drop(table);
    Ok(transaction.commit()?)
}

/// How many per second `work` does, which returns how many it did.
fn rate(duration: Duration, mut work: impl FnMut() -> Result<u64>) -> Result<f64> {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < duration {
        count += work()?;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}
