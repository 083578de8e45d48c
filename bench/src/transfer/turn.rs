//! One turn of a contestant: the cells that it measures, size by size.

use super::cells::{COUNTED_CELL, FLUSHES, HANDSHAKES};
use super::clients::{Content, Uploaded, WARM_UP};
use super::servers::{Contestant, Place, Server, start};
use crate::tls::client::handshakes;
use anyhow::{Context, Result, ensure};
use rustls::HandshakeKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Clients at once, each with a connection that is kept.
pub const CLIENTS: [usize; 3] = [1, 8, 64];
/// Sizes of items: name, bytes, and bytes in a short run.
pub const SIZES: [(&str, u64, u64); 3] =
    [("4k", 4 << 10, 4 << 10), ("1m", 1 << 20, 64 << 10), ("1g", 1 << 30, 1 << 20)];
/// Uploads that are begun in one cell, at most, in bytes.
pub const BYTES_MAX: u64 = 1 << 30;

/// The cell whose uploads are ended after so many bytes, because there is no space for all.
pub const BOUNDED_CELL: &str = "put.1gx64";
pub const BOUNDED_BYTES: u64 = 16 << 30;
const BOUNDED_BYTES_SHORT: u64 = 16 << 20;

/// What a turn has measured, by the names that it has in figures after the contestant's: `put.4kx1` and so on in MiB/s, [`FLUSHES`], [`HANDSHAKES`].
pub type Turn = Vec<(String, f64)>;

/// What a turn measures, and for how long.
pub struct Plan<'a> {
    pub contestant: &'a Contestant,
    /// Names as in a [`Turn`].
    pub wanted: Vec<String>,
    pub upload: Duration,
    pub download: Duration,
    pub handshake: Duration,
    /// Whether items are compared that take long.
    pub compares_long: bool,
    pub is_short: bool,
    /// Whether each turn of a queue has a new disk.
    pub has_new_disk: bool,
}

impl Plan<'_> {
    /// Measures; nothing if the server is not installed.
    pub fn measure(&self, place: &Place) -> Result<Turn> {
        let mut turn = Turn::new();
        for (size, bytes, bytes_short) in SIZES {
            let [puts, gets] =
                ["put", "get"].map(|direction| CLIENTS.map(|clients| format!("{direction}.{size}x{clients}")));
            let takes_handshakes = size == SIZES[0].0 && self.wants(HANDSHAKES);
            if !takes_handshakes && !puts.iter().chain(&gets).any(|name| self.wants(name)) {
                continue;
            }
            let Some(server) = start(self.contestant, place)? else { return Ok(turn) };
            let content = Content::new(if self.is_short { bytes_short } else { bytes })?;
            let measured = place.inside(|| {
                let mut turn = Turn::new();
                let kept = self.uploads(&server, &content, &puts, &gets, &mut turn)?;
                self.downloads(&server, &content, &gets, kept, &mut turn)?;
                Ok(turn)
            });
            turn.extend(measured.with_context(|| format!("with items of {size}"))?);
            if takes_handshakes {
                let (config, address) = (place.config(), server.target.address.socket);
                let full = || handshakes(address, || Ok(config.clone()), HandshakeKind::Full, self.handshake);
                turn.push((HANDSHAKES.to_owned(), place.inside(full)?));
            }
        }
        if self.has_new_disk && self.contestant.is_queue() && !turn.is_empty() {
            place.remove_disk(self.contestant)?;
        }
        Ok(turn)
    }

    /// The cells `puts`; returns the path of an item for `gets`.
    fn uploads(
        &self,
        server: &Server,
        content: &Content,
        puts: &[String],
        gets: &[String],
        turn: &mut Turn,
    ) -> Result<Option<String>> {
        let bytes = content.body.length_bytes();
        let next = AtomicU64::new(0);
        let (mut newest, mut kept) = (0, None);
        for (name, clients) in puts.iter().zip(CLIENTS) {
            let is_for_downloads = kept.is_none() && gets.iter().any(|name| self.wants(name));
            if !self.wants(name) && !is_for_downloads {
                continue;
            }
            if name == BOUNDED_CELL {
                turn.push((name.clone(), self.bounded(server, content, clients)?));
                continue;
            }
            let upload = |clients, duration, items_max| {
                let first = next.load(Ordering::Relaxed);
                let done = server.target.uploads(content, clients, duration, items_max, &next)?;
                next.store(first + done.items, Ordering::Relaxed);
                anyhow::Ok(done)
            };
            let items_max = BYTES_MAX.div_ceil(bytes).max(clients as u64);
            // Memory that is used for the first time is slow, most of all a VM's. An item of 1 GiB outlasts that.
            if self.wants(name) && bytes < BYTES_MAX {
                let done = upload(clients, self.upload.mul_f64(WARM_UP), items_max)?;
                let path = self.newest(server, &done, &mut newest)?;
                if self.contestant.is_queue() {
                    server.remove_all()?;
                } else if let Some(path) = path {
                    server.keep_only(&path)?;
                }
            }
            let before = if self.contestant.is_queue() { server.flushes()? } else { 0.0 };
            let done = match self.wants(name) {
                true => upload(clients, self.upload, items_max)?,
                false => upload(1, Duration::ZERO, 1)?,
            };
            if self.wants(name) {
                turn.push((name.clone(), mib(done.items * bytes) / done.time.as_secs_f64()));
                if self.contestant.is_queue() && name == COUNTED_CELL {
                    turn.push((FLUSHES.to_owned(), (server.flushes()? - before) / done.items as f64));
                }
            }
            if let Some(path) = self.newest(server, &done, &mut newest)? {
                self.check(server, &path, content)?;
                server.keep_only(&path)?;
                kept = Some(path);
            }
        }
        Ok(kept)
    }

    /// The bounded cell, in MiB/s.
    fn bounded(&self, server: &Server, content: &Content, clients: usize) -> Result<f64> {
        if self.contestant.is_queue() {
            server.remove_all()?;
        }
        let bytes_max = if self.is_short { BOUNDED_BYTES_SHORT } else { BOUNDED_BYTES };
        let done = server.target.uploads_until(content, clients, bytes_max, server.bodies().as_deref())?;
        if self.contestant.is_queue() {
            self.check(server, "/downloader", content)?;
        }
        Ok(mib(done.bytes) / done.time.as_secs_f64())
    }

    /// The cells `gets`, of the oldest item of a queue, or of the item `kept`.
    fn downloads(
        &self,
        server: &Server,
        content: &Content,
        gets: &[String],
        kept: Option<String>,
        turn: &mut Turn,
    ) -> Result<()> {
        for (name, clients) in gets.iter().zip(CLIENTS).filter(|(name, _)| self.wants(name)) {
            let path = if self.contestant.is_queue() { "/downloader" } else { kept.as_deref().context("no item")? };
            self.check(server, path, content)?;
            let bytes_s = server.target.downloads(path, content, clients, self.download)?;
            turn.push((name.clone(), bytes_s / f64::from(1 << 20)));
        }
        Ok(())
    }

    /// The path of an item that has just been uploaded. The queue has to have all of them.
    fn newest(&self, server: &Server, done: &Uploaded, newest: &mut u64) -> Result<Option<String>> {
        if !self.contestant.is_queue() {
            return Ok(done.path.clone());
        }
        let items = server.items_after(*newest)?;
        ensure!(items.len() as u64 == done.items, "{} uploads became {} items", done.items, items.len());
        *newest = items.last().copied().context("there is no item")?;
        Ok(Some(format!("/items/{newest}")))
    }

    /// Downloads an item and compares it.
    fn check(&self, server: &Server, path: &str, content: &Content) -> Result<()> {
        let takes_long = content.body.length_bytes() >= BYTES_MAX;
        if takes_long && !self.compares_long { Ok(()) } else { server.target.check(path, content) }
    }

    fn wants(&self, name: &str) -> bool {
        self.wanted.iter().any(|wanted| wanted == name)
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
