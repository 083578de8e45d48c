//! Clients that upload and download items at once, by the protocol of each server, and their rates.

use super::line::{Address, Line, cut_off, request};
use crate::block::Body;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Of what a body repeats, and of what is sent at a time.
const BLOCK_BYTES: u64 = 1 << 20;
/// A longer upload waits for the server's `100 Continue`, as curl does.
const SENT_AT_ONCE_BYTES: u64 = 1 << 20;
/// A head and so much of a body are one write.
const ONE_WRITE_BYTES: u64 = 64 << 10;
/// What clients transfer is counted after this part of the time that is measured.
pub const WARM_UP: f64 = 0.5;
/// How long a client waits that was answered 503.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Requests that are sent at once where the answers are counted as records.
const PIPELINED: usize = 64;
const RAW_BUFFER_BYTES: usize = 256 << 10;

/// How items are uploaded.
#[derive(Debug, Clone)]
pub enum Protocol {
    /// Of the upload queue.
    Queue,
    /// Each item is a file of its own in this folder of ours, which its client flushes if the server does not.
    Files { folder: PathBuf, are_flushed: bool },
    /// tus 1.0: an upload is created, then sent.
    Tus,
}

/// What is uploaded.
pub struct Content {
    pub body: Body,
    /// The first block of it.
    block: Vec<u8>,
}

impl Content {
    pub fn new(bytes: u64) -> Result<Content> {
        let body = Body::new(bytes);
        let mut block = Vec::new();
        body.reader().take(BLOCK_BYTES).read_to_end(&mut block)?;
        Ok(Content { body, block })
    }

    pub fn bytes(&self) -> u64 {
        self.body.length_bytes()
    }
}

/// A server of items as its clients see it.
pub struct Target {
    pub address: Address,
    pub protocol: Protocol,
}

/// What clients have uploaded.
pub struct Uploaded {
    pub items: u64,
    pub time: Duration,
    /// The path of one of the items, if the server's answers have it.
    pub path: Option<String>,
}

impl Target {
    /// Uploads an item as `number`; returns when it is on stable storage, unless the server promises less, with its path.
    fn put(&self, line: &mut Line, number: u64, content: &Content) -> Result<Option<String>> {
        match &self.protocol {
            Protocol::Queue => upload(line, "PUT", "/uploader", "", content, &ALL).map(|_| None),
            Protocol::Files { folder, are_flushed } => {
                let path = format!("/{number}");
                upload(line, "PUT", &path, "", content, &ALL)?;
                if *are_flushed {
                    File::open(folder.join(&path[1..]))
                        .and_then(|file| file.sync_all())
                        .context("the item has no file")?;
                }
                Ok(Some(path))
            }
            Protocol::Tus => {
                let fields =
                    format!("Tus-Resumable: 1.0.0\r\nUpload-Length: {}\r\nContent-Length: 0\r\n", content.bytes());
                let (head, text) = line.ask("POST", "/files/", &fields)?;
                ensure!(head.status == 201, "POST was answered {}: {text}", head.status);
                let path = head.location.context("the upload has no location")?;
                let fields =
                    "Tus-Resumable: 1.0.0\r\nUpload-Offset: 0\r\nContent-Type: application/offset+octet-stream\r\n";
                upload(line, "PATCH", &path, fields, content, &ALL)?;
                Ok(Some(path))
            }
        }
    }

    /// Uploads by so many clients at once, each on a connection that is kept: each of them one item, and further ones until `duration` has passed or `items_max` have been begun.
    /// `next` is the number of the next item.
    pub fn uploads(
        &self,
        content: &Content,
        clients: usize,
        duration: Duration,
        items_max: u64,
        next: &AtomicU64,
    ) -> Result<Uploaded> {
        let mut lines = (0..clients).map(|_| Line::connect(&self.address)).collect::<Result<Vec<_>>>()?;
        let first = next.load(Ordering::Relaxed);
        let (done, last, barrier) = (AtomicU64::new(0), Mutex::new(None), Barrier::new(clients + 1));
        let work = |line: &mut Line| -> Result<()> {
            barrier.wait();
            let begin = Instant::now();
            for own in 0.. {
                if own > 0 && begin.elapsed() >= duration {
                    break;
                }
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number - first >= items_max {
                    break;
                }
                let path = self.put(line, number, content)?;
                done.fetch_add(1, Ordering::Relaxed);
                *last.lock().map_err(|_| anyhow!("a client panicked"))? = path;
            }
            Ok(())
        };
        let time = thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = lines.iter_mut().map(|line| scope.spawn(move || work(line))).collect();
            barrier.wait();
            let begin = Instant::now();
            for thread in threads {
                thread.join().map_err(|_| anyhow!("a client panicked"))??;
            }
            anyhow::Ok(begin.elapsed())
        })?;
        Ok(Uploaded { items: done.into_inner(), time, path: last.into_inner().unwrap_or_default() })
    }

    /// Downloads an item and compares it.
    pub fn check(&self, path: &str, content: &Content) -> Result<()> {
        let mut line = Line::connect(&self.address)?;
        line.send(request("GET", path, "").as_bytes())?;
        let head = line.head()?;
        ensure!(head.status == 200, "GET {path} was answered {}", head.status);
        let mut checker = content.body.checker();
        let mut written = Ok(());
        line.body(head.length_bytes, |bytes| {
            if written.is_ok() {
                written = checker.write_all(bytes);
            }
        })?;
        written?;
        ensure!(checker.is(&content.body), "GET {path} returned other bytes");
        Ok(())
    }

    /// Bytes a second of downloads by so many clients at once, all of the same item, which each requests again and again. What arrives in `duration` is counted: of
    /// TLS and long items as records, without decryption.
    pub fn downloads(&self, path: &str, content: &Content, clients: usize, duration: Duration) -> Result<f64> {
        let lines = (0..clients).map(|_| Line::connect(&self.address)).collect::<Result<Vec<_>>>()?;
        let sockets = lines.iter().map(Line::socket).collect::<std::io::Result<Vec<_>>>()?;
        let (count, is_over, barrier) = (AtomicU64::new(0), AtomicBool::new(false), Barrier::new(clients + 1));
        let counts_records = self.address.tls.is_some() && content.bytes() >= BLOCK_BYTES;
        let work = |mut line: Line| -> Result<()> {
            barrier.wait();
            let ended = match counts_records {
                true => receive_records(&mut line, path, content.bytes(), &count, &is_over),
                false => receive(&mut line, path, content.bytes(), &count, &is_over),
            };
            // The end of the measurement cuts connections off.
            if is_over.load(Ordering::Relaxed) { Ok(()) } else { ended }
        };
        thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = lines.into_iter().map(|line| scope.spawn(move || work(line))).collect();
            barrier.wait();
            thread::sleep(duration.mul_f64(WARM_UP));
            let (begin, before) = (Instant::now(), count.load(Ordering::Relaxed));
            thread::sleep(duration);
            let rate = (count.load(Ordering::Relaxed) - before) as f64 / begin.elapsed().as_secs_f64();
            is_over.store(true, Ordering::Relaxed);
            cut_off(&sockets);
            for thread in threads {
                thread.join().map_err(|_| anyhow!("a client panicked"))??;
            }
            Ok(rate)
        })
    }
}

/// For an upload that is not broken off.
const ALL: fn(u64) -> bool = |_| true;

/// Sends a request with the item as its body until the server takes it. `goes_on` gets the bytes of each block that was sent; false breaks the upload off, and is returned then.
pub fn upload(
    line: &mut Line,
    method: &str,
    path: &str,
    fields: &str,
    content: &Content,
    goes_on: &(dyn Fn(u64) -> bool + Sync),
) -> Result<bool> {
    let bytes = content.bytes();
    let waits = bytes > SENT_AT_ONCE_BYTES;
    let expectation = if waits { "Expect: 100-continue\r\n" } else { "" };
    let mut head = request(method, path, &format!("{fields}Content-Length: {bytes}\r\n{expectation}")).into_bytes();
    if bytes <= ONE_WRITE_BYTES {
        head.extend_from_slice(&content.block);
    }
    loop {
        line.send(&head)?;
        let mut answer = None;
        if waits {
            answer = Some(line.head()?).filter(|head| head.status != 100);
        }
        if answer.is_none() && bytes > ONE_WRITE_BYTES {
            let mut left = bytes;
            while left > 0 {
                let count = left.min(content.block.len() as u64);
                line.send(&content.block[..count as usize])?;
                left -= count;
                if !goes_on(count) {
                    return Ok(false);
                }
            }
        }
        let mut answer = match answer {
            Some(answer) => answer,
            None => line.head()?,
        };
        while answer.status == 100 {
            answer = line.head()?;
        }
        let text = line.text(&answer)?;
        match answer.status {
            200..300 => return Ok(true),
            503 => {
                if !goes_on(0) {
                    return Ok(false);
                }
                thread::sleep(RETRY_AFTER);
                line.reconnect()?;
            }
            status => bail!("{method} was answered {status}: {text}"),
        }
    }
}

/// Requests an item again and again, and counts the bytes of its body.
fn receive(line: &mut Line, path: &str, bytes: u64, count: &AtomicU64, is_over: &AtomicBool) -> Result<()> {
    let request = request("GET", path, "");
    while !is_over.load(Ordering::Relaxed) {
        line.send(request.as_bytes())?;
        let head = line.head()?;
        ensure!(head.status == 200 && head.length_bytes == bytes, "GET was answered {head:?}");
        line.body(bytes, |bytes| _ = count.fetch_add(bytes.len() as u64, Ordering::Relaxed))?;
    }
    Ok(())
}

/// The same by requests that do not wait for one another's answers, which are counted as they are on the network.
fn receive_records(line: &mut Line, path: &str, bytes: u64, count: &AtomicU64, is_over: &AtomicBool) -> Result<()> {
    let requests = request("GET", path, "").repeat(PIPELINED);
    let (mut requested, mut received) = (0, 0);
    let mut buffer = vec![0; RAW_BUFFER_BYTES];
    while !is_over.load(Ordering::Relaxed) {
        if requested - received < bytes as i64 * PIPELINED as i64 / 2 {
            line.send(requests.as_bytes())?;
            requested += bytes as i64 * PIPELINED as i64;
        }
        let arrived = line.read_raw(&mut buffer)?;
        count.fetch_add(arrived as u64, Ordering::Relaxed);
        received += arrived as i64;
    }
    Ok(())
}
