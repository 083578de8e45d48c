//! The access log: a line of JSON for each request, to the console or into a file.
//!
//! Requests never wait for it: lines wait in memory for a task that writes them, and are dropped and counted above a bound.

use crate::access::Holder;
use crate::json::push_string;
use crate::limits::{LOG_AGENT_CHARACTERS, LOG_METHOD_CHARACTERS, LOG_PAUSE, LOG_WAITING_BYTES};
use crate::operator::OperatorFiles;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use core::cell::{Cell, RefCell};
use core::fmt::Write;
use core::time::Duration;
use glasshouse::http::{Exchange, Request};
use glasshouse::sync::Notify;
use glasshouse::{Address, Buf, Clock, File, FileError, Files, Open, Platform, WallTime};

/// What `--access-log` names the console by.
pub(crate) const CONSOLE: &str = "-";
/// A name in a path that is longer may be a token.
const NAME_CHARACTERS: usize = 21;

/// What a request and its answer were.
pub(crate) struct Line<'a> {
    pub(crate) time: Option<WallTime>,
    pub(crate) client: Address,
    pub(crate) holder: &'a Holder,
    pub(crate) request: &'a Request,
    pub(crate) exchange: Exchange,
    pub(crate) duration: Duration,
}

impl Line<'_> {
    fn text(&self) -> String {
        let mut out = String::from("{");
        push_time(&mut out, self.time);
        // A `String` never fails to be written to.
        let _ = write!(out, ",\"client\":\"{}\"", self.client);
        match self.holder {
            Holder::Of(grant) => {
                let _ = write!(out, ",\"role\":\"{}\",\"name\":", grant.role);
                push_string(&mut out, &grant.name);
            }
            _ => out.push_str(",\"role\":null,\"name\":null"),
        }
        out.push_str(",\"method\":");
        push_bounded(&mut out, self.request.method_name(), LOG_METHOD_CHARACTERS);
        out.push_str(",\"path\":");
        push_string(&mut out, &shown_path(self.request.path()));
        match self.exchange.status {
            Some(status) => {
                let _ = write!(out, ",\"status\":{}", status.0);
            }
            None => out.push_str(",\"status\":null"),
        }
        let Exchange { received_bytes, sent_bytes, .. } = self.exchange;
        let micros = self.duration.as_micros();
        let _ = write!(
            out,
            ",\"received\":{received_bytes},\"sent\":{sent_bytes},\"ms\":{}.{:03},\"agent\":",
            micros / 1000,
            micros % 1000
        );
        match self.request.header("User-Agent") {
            Some(agent) => push_bounded(&mut out, &String::from_utf8_lossy(agent), LOG_AGENT_CHARACTERS),
            None => out.push_str("null"),
        }
        out.push_str("}\n");
        out
    }
}

fn push_time(out: &mut String, time: Option<WallTime>) {
    let _ = match time {
        Some(time) => write!(out, "\"time\":\"{time}\""),
        None => write!(out, "\"time\":null"),
    };
}

fn push_bounded(out: &mut String, text: &str, characters_max: usize) {
    let end = text.char_indices().nth(characters_max).map_or(text.len(), |(end, _)| end);
    push_string(out, &text[..end]);
}

/// A path without what gives a right: names of uploads, and tokens, also where the mark before one was forgotten. `-` stands for them.
fn shown_path(path: &str) -> String {
    let mut names = path.strip_prefix('/').unwrap_or(path).split('/');
    let first = names.next().unwrap_or_default();
    let is_token = first.chars().count() > NAME_CHARACTERS || first.contains(['!', '%']);
    let mut shown = format!("/{}", if is_token { "-" } else { first });
    let Some(second) = names.next() else { return shown };
    let is_number = second.len() <= 20 && second.bytes().all(|byte| byte.is_ascii_digit());
    shown += "/";
    shown += if matches!(first, "leases" | "items") && is_number { second } else { "-" };
    if names.next().is_some() {
        shown += "/-";
    }
    shown
}

/// A line that is recorded when it is dropped, so that a request whose connection is reset has one, too.
pub(crate) struct Pending<'a, P: Platform> {
    log: &'a AccessLog,
    platform: &'a P,
    client: Address,
    holder: &'a Holder,
    request: &'a Request,
    start: glasshouse::Instant,
    pub(crate) exchange: Exchange,
}

impl<P: Platform> Drop for Pending<'_, P> {
    fn drop(&mut self) {
        let Pending { client, holder, request, exchange, .. } = *self;
        let duration = self.platform.now() - self.start;
        self.log.push(Line { time: self.platform.wall(), client, holder, request, exchange, duration }.text());
    }
}

/// What is written at once.
#[derive(Default)]
struct Batch {
    text: String,
    /// Lines of requests in it.
    lines: u64,
    /// Lines that were dropped before, which the last line of the text has.
    dropped: u64,
}

/// Lines that wait to be written.
#[derive(Default)]
pub(crate) struct AccessLog {
    waiting: RefCell<Batch>,
    /// All that were ever dropped.
    pub(crate) dropped_total: Cell<u64>,
    is_writing: Cell<bool>,
    changed: Notify,
}

impl AccessLog {
    /// A line for a request that starts now.
    pub(crate) fn begin<'a, P: Platform>(
        &'a self,
        platform: &'a P,
        client: Address,
        holder: &'a Holder,
        request: &'a Request,
    ) -> Pending<'a, P> {
        let (start, exchange) = (platform.now(), Exchange::default());
        Pending { log: self, platform, client, holder, request, start, exchange }
    }

    fn push(&self, line: String) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.text.len() + line.len() <= LOG_WAITING_BYTES {
            waiting.text.push_str(&line);
            waiting.lines += 1;
        } else {
            waiting.dropped += 1;
            self.dropped_total.set(self.dropped_total.get() + 1);
        }
        self.changed.notify_all();
    }

    /// Drops what could not be written.
    fn give_up(&self, batch: &Batch) {
        self.waiting.borrow_mut().dropped += batch.lines + batch.dropped;
        self.dropped_total.set(self.dropped_total.get() + batch.lines);
    }

    /// The lines that wait, at least one.
    async fn take(&self, clock: &impl Clock) -> Batch {
        loop {
            let changed = self.changed.notified();
            let mut batch = core::mem::take(&mut *self.waiting.borrow_mut());
            if batch.dropped > 0 {
                batch.text.push('{');
                push_time(&mut batch.text, clock.wall());
                let _ = writeln!(batch.text, ",\"dropped\":{}}}", batch.dropped);
            }
            if !batch.text.is_empty() {
                self.is_writing.set(true);
                return batch;
            }
            changed.await;
        }
    }

    /// Writes lines to the console, without end.
    pub(crate) async fn write_to_console<P: Platform>(self: Rc<AccessLog>, platform: P) {
        loop {
            for line in self.take(&platform).await.text.lines() {
                platform.writable(line.len() + 1).await;
                platform.print(format_args!("{line}"));
            }
            self.written(&platform).await;
        }
    }

    /// Writes lines into a file, without end. What cannot be written is dropped, and the reason printed once.
    pub(crate) async fn write_to_file<P: Platform>(
        self: Rc<AccessLog>,
        platform: P,
        mut file: LogFile<OperatorFiles<P>>,
    ) {
        let mut last_error = None;
        loop {
            let batch = self.take(&platform).await;
            let error = file.append(batch.text.as_bytes()).await.err();
            if let Some(error) = error {
                self.give_up(&batch);
                if last_error != Some(error) {
                    platform
                        .print(format_args!("upload-queue: the access log cannot be written: {}: {error}", file.path));
                }
            }
            last_error = error;
            self.written(&platform).await;
        }
    }

    /// Ends a round. The pause bounds what is written in a second, and lets lines gather.
    async fn written(&self, clock: &impl Clock) {
        self.is_writing.set(false);
        self.changed.notify_all();
        clock.sleep(LOG_PAUSE).await;
    }

    /// Completes when all lines are written.
    pub(crate) async fn finish(&self) {
        loop {
            let changed = self.changed.notified();
            if self.waiting.borrow().text.is_empty() && !self.is_writing.get() {
                return;
            }
            changed.await;
        }
    }
}

/// A file to which lines are added. One that gets another name, or is removed, is made again.
pub(crate) struct LogFile<F: Files> {
    files: F,
    path: String,
    open: Option<(F::File, u64)>,
}

impl<F: Files> LogFile<F> {
    /// Opens or makes it; the error is a sentence.
    pub(crate) async fn open(files: F, path: &str) -> Result<LogFile<F>, String> {
        let mut file = LogFile { files, path: path.to_owned(), open: None };
        file.append(b"").await.map_err(|error| format!("{path}: {error}")).map(|()| file)
    }

    async fn append(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        let named = self.files.metadata(&self.path).await.ok();
        if self.open.as_ref().is_none_or(|(_, number)| named.is_none_or(|named| named.number != *number)) {
            let file = self.files.open(&self.path, Open::Create).await?;
            let number = file.metadata().await?.number;
            self.open = Some((file, number));
        }
        let Some((file, _)) = &self.open else { return Ok(()) };
        if bytes.is_empty() {
            return Ok(());
        }
        // The end as it is now: a program that rotates logs may have cut the file.
        let end = file.metadata().await?.bytes;
        let mut buf = Buf::zeroed(bytes.len()).map_err(|_| FileError::OutOfMemory)?;
        buf.as_mut().ok_or(FileError::Shared)?.copy_from_slice(bytes);
        file.write(end, buf).await.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_shows_no_right() {
        let token = "0123456789abcdef0123456789abcdef";
        for (path, shown) in [
            ("/", "/"),
            ("/uploader", "/uploader"),
            ("/leases/7", "/leases/7"),
            ("/items/123456789012345678901", "/items/-"),
            ("/leases/7/x", "/leases/7/-"),
            ("*", "/*"),
            (&format!("/uploads/{token}"), "/uploads/-"),
            (&format!("/uploads/{token}/!{token}"), "/uploads/-/-"),
            (&format!("/uploader/!{token}"), "/uploader/-"),
            (&format!("/uploader/{token}"), "/uploader/-"),
            (&format!("/{token}"), "/-"),
            (&format!("/!{}", &token[..9]), "/-"),
            (&format!("/uploader!{}", &token[..9]), "/-"),
            (&format!("/uploader%2f{}", &token[..9]), "/-"),
        ] {
            assert_eq!(shown_path(path), shown, "{path}");
        }
    }

    #[test]
    fn text_of_clients_is_bounded() {
        let mut out = String::new();
        push_bounded(&mut out, &"é".repeat(LOG_AGENT_CHARACTERS + 1), LOG_AGENT_CHARACTERS);
        assert_eq!(out, format!("\"{}\"", "é".repeat(LOG_AGENT_CHARACTERS)));
    }

    #[test]
    fn lines_above_the_bound_are_counted() {
        let log = AccessLog::default();
        let line = "x".repeat(LOG_WAITING_BYTES / 2);
        for _ in 0..5 {
            log.push(line.clone());
        }
        let waiting = log.waiting.take();
        assert_eq!(
            (waiting.text.len(), waiting.lines, waiting.dropped, log.dropped_total.get()),
            (LOG_WAITING_BYTES, 2, 3, 3)
        );
        log.give_up(&waiting);
        assert_eq!((log.waiting.borrow().dropped, log.dropped_total.get()), (5, 5));
    }
}
