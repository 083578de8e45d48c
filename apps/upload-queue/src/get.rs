//! Downloads over HTTP, whole or in part, and the wait for an item.

use crate::config::number;
use crate::digest::{self, Hasher};
use crate::error::StoreError;
use crate::format::Entry;
use crate::items::ItemDownload;
use crate::limits::{HALF_CLOSED_WAIT, WAIT_SECS_MAX};
use crate::problem::Problem;
use crate::put::busy;
use crate::range::{self, Wanted};
use crate::routes::{Client, Connection, ETag, Queue, failed_condition, names};
use crate::telemetry::DOWNLOADS_DONE;
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use core::pin::pin;
use core::time::Duration;
use glasshouse::future::{Either, Either3, Either4, select, select3, select4};
use glasshouse::http::{HttpError, Request, Response, Slot, Status};
use glasshouse::tracing::{Instrument, Span, info_span};
use glasshouse::{Instant, Platform};

/// How a wait for an item ended.
pub(crate) enum Waited {
    There,
    /// It took too long, or the client is gone.
    Over,
    /// Too many clients wait.
    Refused,
}

impl<P: Platform> Queue<P> {
    pub(crate) async fn get(
        &self,
        connection: &mut Connection<P>,
        request: &Request,
        client: &Client,
        span: &Span,
    ) -> Result<(), HttpError> {
        // Whatever the result, the client does not mean the item before.
        client.sent.set(None);
        let Ok(wait) = wait_time(request.query()) else {
            return Problem::new(Status::BAD_REQUEST, "wait takes a number of seconds").send(connection).await;
        };
        if is_part_of_any(request) {
            let text = "A part of an item is requested with the tag of the item, by If-Range or If-Match: the oldest one may be another by now";
            return Problem::new(Status::PRECONDITION_REQUIRED, text).send(connection).await;
        }
        let deadline = wait.map(|wait| self.platform.now() + wait);
        if let Err(error) = self.items.refresh().await {
            return self.fail(connection, error).await;
        }
        // Several consumers may wait for one item, and another one may be faster.
        loop {
            let head = self.oldest();
            if request.header("If-Match").is_some() && !head.is_some_and(|head| names(request, &head)) {
                return failed_condition(head).send(connection).await;
            }
            if head.is_some() {
                let Some(slot) = self.take_slot(&self.downloads, client).await else {
                    return busy("Too many downloads").send(connection).await;
                };
                if let Some(mut download) = self.oldest().and_then(|entry| self.items.fetch(entry.id)) {
                    let slot = Rc::new(slot);
                    download.hold(slot.clone());
                    let entry = *download.entry();
                    if request.header("If-Match").is_some() && !names(request, &entry) {
                        // It was removed while we waited for the slot.
                        return failed_condition(Some(entry)).send(connection).await;
                    }
                    span.record("id", entry.id);
                    span.record("bytes", entry.length);
                    let send = self.send(connection, request, download, &slot, &[]);
                    let sent = send.instrument(info_span!("send")).await;
                    let whole = sent.as_ref().is_ok_and(|is_whole| *is_whole);
                    DOWNLOADS_DONE.add(whole.into());
                    client.sent.set(whole.then_some(entry.id));
                    return sent.map(drop);
                }
            } else {
                match self.wait_for(connection, client, deadline).await {
                    Waited::There => {}
                    Waited::Over => return self.no_item(connection).await,
                    Waited::Refused => return busy("Too many clients wait for an item").send(connection).await,
                }
            }
        }
    }

    /// Answers a request for which there was no item in time.
    pub(crate) async fn no_item(&self, connection: &mut Connection<P>) -> Result<(), HttpError> {
        match self.items.refresh().await {
            Ok(()) => connection.respond(Response::new(Status::NO_CONTENT), &[]).await,
            Err(error) => self.fail(connection, error).await,
        }
    }

    /// Waits for an item that no consumer has.
    pub(crate) async fn wait_for(
        &self,
        connection: &mut Connection<P>,
        client: &Client,
        deadline: Option<Instant>,
    ) -> Waited {
        let Some(_slot) = self.waiting.take(client.connected.peer()) else { return Waited::Refused };
        client.connected.keep(true);
        let wait = self.wait_for_item(connection, deadline).instrument(info_span!("wait for an item"));
        if wait.await { Waited::There } else { Waited::Over }
    }

    /// Waits until there is an item; false after the timeout, or if the client has closed. A client that has only closed
    /// its own half may still read the answer, so it keeps waiting, for [`HALF_CLOSED_WAIT`] at most.
    async fn wait_for_item(&self, connection: &mut Connection<P>, deadline: Option<Instant>) -> bool {
        let mut item = pin!(self.item_comes());
        match select4(item.as_mut(), connection.wait_gone(), self.end_of(deadline), self.stop.wait()).await {
            Either4::First(()) => return true,
            Either4::Second(()) => connection.close_after_response(),
            Either4::Third(()) | Either4::Fourth(()) => return false,
        }
        if connection.is_broken() {
            return false;
        }
        let last = self.platform.now() + HALF_CLOSED_WAIT;
        let deadline = Some(deadline.map_or(last, |deadline| deadline.min(last)));
        matches!(select3(item, self.end_of(deadline), self.stop.wait()).await, Either3::First(()))
    }

    async fn end_of(&self, deadline: Option<Instant>) {
        match deadline {
            Some(deadline) => self.platform.sleep_until(deadline).await,
            None => core::future::pending().await,
        }
    }

    async fn item_comes(&self) {
        loop {
            let changes = self.items.changes();
            if self.oldest().is_some() {
                return;
            }
            let lease_ends = self.end_of(self.items.next_end(self.platform.now()));
            select(changes.wait(), lease_ends).await;
        }
    }

    /// Sends the item, or the part that was requested. False unless the client received all of it.
    pub(crate) async fn send(
        &self,
        connection: &mut Connection<P>,
        request: &Request,
        mut download: ItemDownload<P>,
        slot: &Rc<Slot>,
        fields: &[(&str, String)],
    ) -> Result<bool, HttpError> {
        let entry = *download.entry();
        let part = match wanted_part(request, &entry) {
            Ok(part) => part,
            Err(problem) => return problem.send(connection).await.map(|()| false),
        };
        let sent = part.clone().unwrap_or(0..entry.length);
        let mut wanted = wanted_digests(request, &sent, entry.length);
        // Boxed, because few requests want one.
        if !wanted.is_empty()
            && let Err(error) = Box::pin(compute(&mut wanted, &download, slot)).await
        {
            return self.fail(connection, error).await.map(|()| false);
        }
        let response = response(&entry, part.as_ref(), &wanted);
        let mut response = Some(fields.iter().fold(response, |response, (name, value)| response.header(name, value)));
        loop {
            let bytes = match download.next().await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => break,
                Err(error) => return self.break_off(connection, &download, error).await,
            };
            let end = entry.length - download.bytes_left();
            let piece = piece(end - bytes.len() as u64..end, &sent);
            if piece.is_empty() {
                continue;
            }
            // The last byte is sent when the checksum of the whole item is right, also if the part ends before.
            if end >= sent.end
                && let Err(error) = read_rest(&mut download).await
            {
                return self.break_off(connection, &download, error).await;
            }
            // Damage that is found so far is reported by the status.
            if let Some(response) = response.take() {
                connection.start(response, sent.end - sent.start).await?;
            }
            let write = async { connection.write_body(&bytes[piece.clone()]).await.map(|()| piece.len()) };
            let write = slot.watch(&self.platform, write);
            if let Either::First(written) = select(write, download.drive()).await {
                self.traffic.sent(written? as u64);
            }
        }
        if let Some(response) = response {
            connection.start(response, 0).await?;
        }
        Ok(part.is_none())
    }

    /// The item cannot be read to its end: an error, or if its start was sent, a reset, because the client must not mistake the part for
    /// the whole.
    async fn break_off(
        &self,
        connection: &mut Connection<P>,
        download: &ItemDownload<P>,
        error: StoreError,
    ) -> Result<bool, HttpError> {
        if !connection.is_answered() {
            return self.fail(connection, error).await.map(|()| false);
        }
        self.platform.print(format_args!("upload-queue: a download was cut: {error}"));
        Err(HttpError::WrongLength { missing_bytes: download.bytes_left() })
    }
}

/// Where in a chunk with these bytes of an item those are that are sent.
fn piece(chunk: Range<u64>, sent: &Range<u64>) -> Range<usize> {
    let within = |place: u64| (place.clamp(chunk.start, chunk.end) - chunk.start) as usize;
    within(sent.start)..within(sent.end)
}

async fn read_rest<P: Platform>(download: &mut ItemDownload<P>) -> Result<(), StoreError> {
    while download.next().await?.is_some() {}
    Ok(())
}

/// The head of an answer with an item, or with a part of it.
fn response(entry: &Entry, part: Option<&Range<u64>>, digests: &[WantedDigest]) -> Response {
    let status = if part.is_some() { Status::PARTIAL_CONTENT } else { Status::OK };
    let mut response = Response::new(status)
        .header("Content-Type", "application/octet-stream")
        .header("ETag", ETag(entry))
        .header("Accept-Ranges", "bytes");
    if let Some(part) = part {
        let field = format!("bytes {}-{}/{}", part.start, part.end - 1, entry.length);
        response = response.header("Content-Range", field);
    }
    digests.iter().fold(response, |response, wanted| response.header(wanted.name, wanted.hasher.field()))
}

/// Whether a request leaves out the start of an item that it does not name. To send the whole item is no answer: wget 1.21 with
/// `--continue` skips as many bytes of it as it has, and so it joins the start of one item and the end of another.
fn is_part_of_any(request: &Request) -> bool {
    let is_named = request.header("If-Range").is_some() || request.header("If-Match").is_some();
    let range = request.only("Range").map(|field| range::wanted(field.as_bytes(), u64::MAX));
    !is_named && matches!(range, Some(Wanted::Part(part)) if part.start > 0)
}

/// The part of the item that a request is about; `None` for all of it. Only a request that names the item gets a part: the next one may
/// be about another item, and the parts of two would be joined.
fn wanted_part(request: &Request, entry: &Entry) -> Result<Option<Range<u64>>, Problem> {
    let Some(field) = request.only("Range") else { return Ok(None) };
    let tag = format!("{}", ETag(entry));
    let is_named = match request.only("If-Range") {
        Some(named) => named == tag,
        None => request.list("If-Match").any(|named| named == tag.as_bytes()),
    };
    if !is_named {
        return Ok(None);
    }
    match range::wanted(field.as_bytes(), entry.length) {
        Wanted::All => Ok(None),
        Wanted::Part(part) => Ok(Some(part)),
        Wanted::Nothing => {
            let problem = Problem::new(Status::RANGE_NOT_SATISFIABLE, "The item has no such bytes");
            Err(problem.field("Content-Range", format!("bytes */{}", entry.length)))
        }
    }
}

/// A digest that a request wants.
struct WantedDigest {
    /// Of the field.
    name: &'static str,
    /// The bytes of the item that it is of.
    range: Range<u64>,
    hasher: Hasher,
}

/// The digests that a request wants, of the bytes that are sent and of all.
fn wanted_digests(request: &Request, sent: &Range<u64>, length: u64) -> Vec<WantedDigest> {
    let fields =
        [("Content-Digest", "Want-Content-Digest", sent.clone()), ("Repr-Digest", "Want-Repr-Digest", 0..length)];
    let wanted = fields.into_iter().filter_map(|(name, wish, range)| {
        let algorithm = digest::wanted(request, wish)?;
        Some(WantedDigest { name, range, hasher: Hasher::new(algorithm) })
    });
    wanted.collect()
}

/// Reads the item once more, for its digests.
async fn compute<P: Platform>(
    wanted: &mut [WantedDigest],
    download: &ItemDownload<P>,
    slot: &Rc<Slot>,
) -> Result<(), StoreError> {
    let mut reading = download.again()?;
    reading.hold(slot.clone());
    while let Some(bytes) = reading.next().await? {
        let end = reading.entry().length - reading.bytes_left();
        for wanted in wanted.iter_mut() {
            wanted.hasher.update(&bytes[piece(end - bytes.len() as u64..end, &wanted.range)]);
        }
    }
    Ok(())
}

/// The value of `wait` in a query, `None` when it is not there.
pub(crate) fn wait_time(query: Option<&str>) -> Result<Option<Duration>, ()> {
    let mut pairs = query.unwrap_or_default().split('&');
    match pairs.find_map(|pair| pair.strip_prefix("wait=")) {
        None => Ok(None),
        Some(text) => match number(text) {
            Some(secs) => Ok(Some(Duration::from_secs(secs.min(WAIT_SECS_MAX)))),
            None => Err(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_takes_seconds_and_ends_after_a_day() {
        let day = 86_400;
        for (query, secs) in [("wait=0", 0), ("a=b&wait=7&wait=9", 7), ("wait=86399", day - 1), ("wait=86401", day)] {
            assert_eq!(wait_time(Some(query)), Ok(Some(Duration::from_secs(secs))), "{query}");
        }
        assert_eq!((wait_time(None), wait_time(Some("await=1"))), (Ok(None), Ok(None)));
        assert_eq!((wait_time(Some("wait=")), wait_time(Some("wait=soon"))), (Err(()), Err(())));
    }
}
