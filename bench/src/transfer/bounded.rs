//! Uploads that are too many to be kept: they are ended after so many bytes.

use super::clients::{Content, Protocol, Target, upload};
use super::line::{Line, cut_off};
use anyhow::{Context, Result, anyhow, ensure};
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Items that stay in a queue, so that one can be compared.
const ITEMS_KEPT: u64 = 2;

/// What clients have uploaded until the end, and in which time.
pub struct Bounded {
    pub bytes: u64,
    pub time: Duration,
}

impl Target {
    /// One upload by each of so many clients at once. Of a queue only whole items count: the measurement ends when `bytes_max` have been acknowledged, and the oldest
    /// items are removed meanwhile. Of other servers all bytes count: it ends when the clients have sent `bytes_max`, and if they flush, when all files are on stable storage, also those in `bodies`,
    /// where uploads in progress are.
    pub fn uploads_until(
        &self,
        content: &Content,
        clients: usize,
        bytes_max: u64,
        bodies: Option<&Path>,
    ) -> Result<Bounded> {
        let mut lines = (0..clients).map(|_| Line::connect(&self.address)).collect::<Result<Vec<_>>>()?;
        let sockets = lines.iter().map(Line::socket).collect::<std::io::Result<Vec<_>>>()?;
        let is_queue = matches!(self.protocol, Protocol::Queue);
        let (sent, stored) = (AtomicU64::new(0), AtomicU64::new(0));
        let (is_over, end, barrier) = (AtomicBool::new(false), OnceLock::new(), Barrier::new(clients + 1));
        let goes_on = |bytes| {
            let sent = sent.fetch_add(bytes, Ordering::Relaxed) + bytes;
            !is_over.load(Ordering::Relaxed) && (is_queue || sent < bytes_max)
        };
        let work = |number: usize, line: &mut Line| -> Result<()> {
            barrier.wait();
            let path = if is_queue { "/uploader".to_owned() } else { format!("/bounded-{number}") };
            if !upload(line, "PUT", &path, "", content, &goes_on)? || !is_queue {
                return Ok(());
            }
            let whole = (stored.fetch_add(1, Ordering::Relaxed) + 1) * content.bytes();
            if whole >= bytes_max {
                // Others may be at this point, too: the first one counts.
                end.get_or_init(|| (Instant::now(), whole));
                is_over.store(true, Ordering::Relaxed);
                cut_off(&sockets);
            } else if whole > ITEMS_KEPT * content.bytes() {
                let (head, text) = line.ask("DELETE", "/downloader", "If-Match: *\r\n")?;
                ensure!(head.status == 200, "DELETE was answered {}: {text}", head.status);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let work = &work;
            let is_over = &is_over;
            let threads: Vec<_> = (0..)
                .zip(&mut lines)
                .map(|(number, line)| {
                    scope.spawn(move || {
                        let worked = work(number, line);
                        // The end cuts connections off.
                        if is_over.load(Ordering::Relaxed) { Ok(()) } else { worked }
                    })
                })
                .collect();
            barrier.wait();
            let begin = Instant::now();
            for thread in threads {
                thread.join().map_err(|_| anyhow!("a client panicked"))??;
            }
            if is_queue {
                let (end, bytes) = *end.get().context("too few uploads were stored")?;
                return Ok(Bounded { bytes, time: end - begin });
            }
            if let Protocol::Files { folder, are_flushed: true } = &self.protocol {
                let bodies = bodies.context("the server has no folder for uploads in progress")?;
                for file in std::fs::read_dir(bodies)?.chain(std::fs::read_dir(folder)?) {
                    match File::open(file?.path()) {
                        Ok(file) => file.sync_all()?,
                        // The server has removed what a connection that was cut off has left.
                        Err(error) if error.kind() == ErrorKind::NotFound => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            Ok(Bounded { bytes: sent.load(Ordering::Relaxed), time: begin.elapsed() })
        })
    }
}
