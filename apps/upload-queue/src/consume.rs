//! Several consumers at once: leases of items, and items by their ids.

use crate::config::number;
use crate::format::Entry;
use crate::get::{Waited, wait_time};
use crate::items::{LeaseError, Listed};
use crate::leases::{Fence, Place, Refused, lease_time};
use crate::limits::{LIST_ITEMS, LIST_ITEMS_MAX, WAIT_SECS_MAX};
use crate::problem::Problem;
use crate::put::busy;
use crate::routes::{Client, Connection, ETag, Queue, failed_condition, names, not_allowed};
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use core::fmt::Write;
use core::time::Duration;
use glasshouse::Platform;
use glasshouse::http::{HttpError, Method, Request, Response, Status};
use glasshouse::tracing::{Instrument, info_span};

/// What a request of a consumer is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Any item.
    Take,
    /// The lease of this item.
    Lease(u64),
    List,
    Item(u64),
}

/// What a request with this path is about; `None` for all others.
pub(crate) fn wanted(path: &str) -> Option<Wanted> {
    let id = |text: &str| number(text).filter(|_| !text.is_empty());
    match path {
        "/leases" => Some(Wanted::Take),
        "/items" => Some(Wanted::List),
        _ => match path.strip_prefix("/leases/") {
            Some(text) => id(text).map(Wanted::Lease),
            None => path.strip_prefix("/items/").and_then(id).map(Wanted::Item),
        },
    }
}

type Short = Result<(Response, String), Problem>;

impl<P: Platform> Queue<P> {
    /// Answers a request of a consumer.
    pub(crate) async fn consume(
        &self,
        connection: &mut Connection<P>,
        request: &Request,
        client: &Client,
        wanted: Wanted,
    ) -> Result<(), HttpError> {
        if let Err(error) = self.items.refresh().await {
            return self.fail(connection, error).await;
        }
        let answered = match (wanted, request.method()) {
            (Wanted::Take, Method::Post) => return self.take(connection, request, client).await,
            (Wanted::Item(id), Method::Get) => return self.peek(connection, request, client, id).await,
            (Wanted::List, Method::Get | Method::Head) => self.list(request),
            (Wanted::Item(id), Method::Post) => self.revive(id).await,
            (Wanted::Item(id), Method::Delete) => self.remove_named(request, id).await,
            (Wanted::Lease(id), Method::Put) => self.extend(request, id).await,
            (Wanted::Lease(id), Method::Post) => self.give_back(request, id).await,
            (Wanted::Lease(id), Method::Delete) => self.acknowledge(request, id).await,
            (Wanted::Take, _) => Err(not_allowed("POST", "Use POST, to take an item")),
            (Wanted::List, _) => Err(not_allowed("GET, HEAD", "Method not supported")),
            (Wanted::Item(_), _) => Err(not_allowed("GET, POST, DELETE", "Method not supported")),
            (Wanted::Lease(_), _) => Err(not_allowed("PUT, POST, DELETE", "Method not supported")),
        };
        match answered {
            Ok((response, text)) => connection.respond(response, text.as_bytes()).await,
            Err(problem) => problem.send(connection).await,
        }
    }

    /// The oldest item that no consumer has.
    pub(crate) fn oldest(&self) -> Option<Entry> {
        self.items.oldest(self.platform.now())
    }

    /// Gives out the oldest item that is ready, or waits for one.
    async fn take(&self, connection: &mut Connection<P>, request: &Request, client: &Client) -> Result<(), HttpError> {
        let (wait, time) = match (preferred_wait(request), requested_time(request)) {
            (Ok(wait), Ok(time)) => (wait, time),
            (Err(problem), _) | (_, Err(problem)) => return problem.send(connection).await,
        };
        let deadline = self.platform.now() + wait;
        loop {
            if self.oldest().is_some() {
                let Some(slot) = self.take_slot(&self.downloads, client).await else {
                    return busy("Too many downloads").send(connection).await;
                };
                // Another consumer may have been faster.
                let Some(entry) = self.oldest() else { continue };
                let (fence, tries) = match self.items.take(entry.id, self.platform.now(), time).await {
                    Ok(Some(lease)) => lease,
                    Ok(None) => continue,
                    Err(error) => return self.fail(connection, error).await,
                };
                let Some(mut download) = self.items.fetch(entry.id) else { continue };
                let fields = [
                    ("Location", format!("/leases/{}", entry.id)),
                    ("Content-Location", format!("/items/{}", entry.id)),
                    ("Lease-Token", format!("{fence}")),
                    ("Lease-Seconds", format!("{}", time.as_secs())),
                    ("Delivery-Count", format!("{tries}")),
                ];
                let slot = Rc::new(slot);
                download.hold(slot.clone());
                let send = Box::pin(self.send(connection, request, download, &slot, &fields));
                return send.instrument(info_span!("lease", bytes = entry.length, id = entry.id)).await.map(drop);
            }
            match self.wait_for(connection, client, Some(deadline)).await {
                Waited::There => {}
                Waited::Over => return self.no_item(connection).await,
                Waited::Refused => return busy("Too many clients wait for an item").send(connection).await,
            }
        }
    }

    /// Sends an item, whether or not a consumer has it.
    async fn peek(
        &self,
        connection: &mut Connection<P>,
        request: &Request,
        client: &Client,
        id: u64,
    ) -> Result<(), HttpError> {
        let Some(slot) = self.take_slot(&self.downloads, client).await else {
            return busy("Too many downloads").send(connection).await;
        };
        let Some(mut download) = self.items.fetch(id) else { return gone().send(connection).await };
        let slot = Rc::new(slot);
        download.hold(slot.clone());
        let send = Box::pin(self.send(connection, request, download, &slot, &[]));
        send.instrument(info_span!("peek", id = id)).await.map(drop)
    }

    /// Removes an item whose lease the request names.
    async fn acknowledge(&self, request: &Request, id: u64) -> Short {
        self.check_condition(request, id)?;
        let acknowledged = self.items.acknowledge(id, &|fence| names_lease(request, fence)).await;
        acknowledged.map_err(|error| self.lease_failed(error))?;
        Ok(ok())
    }

    async fn extend(&self, request: &Request, id: u64) -> Short {
        let time = requested_time(request)?;
        self.check_condition(request, id)?;
        let extended = self.items.extend(id, &|fence| names_lease(request, fence), self.platform.now(), time).await;
        extended.map_err(|error| self.lease_failed(error))?;
        Ok((Response::new(Status::NO_CONTENT).header("Lease-Seconds", time.as_secs()), String::new()))
    }

    async fn give_back(&self, request: &Request, id: u64) -> Short {
        self.check_condition(request, id)?;
        let given = self.items.give_back(id, &|fence| names_lease(request, fence)).await;
        given.map_err(|error| self.lease_failed(error))?;
        Ok((Response::new(Status::NO_CONTENT), String::new()))
    }

    /// Gives an item out again that was given out too often.
    async fn revive(&self, id: u64) -> Short {
        let leased = || Problem::new(Status::CONFLICT, "A consumer has this item: its lease has to end first");
        if let Place::Leased(_) = self.items.get(id, self.platform.now()).ok_or_else(gone)?.place {
            return Err(leased());
        }
        self.items.revive(id).await.map_err(|error| match error {
            LeaseError::Refused(_) => leased(),
            error => self.lease_failed(error),
        })?;
        Ok((Response::new(Status::NO_CONTENT), String::new()))
    }

    /// Removes an item, whether or not a consumer has it.
    async fn remove_named(&self, request: &Request, id: u64) -> Short {
        let entry = self.items.get(id, self.platform.now()).ok_or_else(gone)?.entry;
        if request.header("If-Match").is_none() {
            let text = "A DELETE names the item that it removes by If-Match and its ETag";
            return Err(Problem::new(Status::PRECONDITION_REQUIRED, text).field("ETag", format!("{}", ETag(&entry))));
        }
        if !names(request, &entry) {
            return Err(failed_condition(Some(entry)));
        }
        self.items.remove(id).await.map_err(|error| self.lease_failed(error))?;
        Ok(ok())
    }

    /// Fails unless the request names a lease, and item `id` is there.
    #[inline(never)]
    fn check_condition(&self, request: &Request, id: u64) -> Result<(), Problem> {
        self.items.get(id, self.platform.now()).ok_or_else(gone)?;
        if request.header("If-Match").is_none() {
            let text =
                "A request about a lease names it by If-Match and the Lease-Token of the answer that had the item";
            return Err(Problem::new(Status::PRECONDITION_REQUIRED, text));
        }
        Ok(())
    }

    /// The answer to a request whose lease was not used.
    #[inline(never)]
    pub(crate) fn lease_failed(&self, error: LeaseError) -> Problem {
        let text = match error {
            LeaseError::Gone => return gone(),
            LeaseError::Store(error) => return self.failed(&error),
            LeaseError::Refused(Refused::NoLease) => {
                "No consumer has this item: the queue was restarted, and gives it out again"
            }
            LeaseError::Refused(Refused::OtherLease) => "Another consumer has this item, or had it since",
        };
        Problem::new(Status::PRECONDITION_FAILED, text)
    }

    /// The items after one, as JSON.
    fn list(&self, request: &Request) -> Short {
        let (after, count) = (query(request, "after")?, query(request, "count")?.unwrap_or(LIST_ITEMS));
        let count = count.clamp(1, LIST_ITEMS_MAX) as usize;
        let now = self.platform.now();
        let items = self.items.after(after, count + 1, now);
        let mut text = String::from("{\"items\":[");
        for (number, Listed { entry, place, tries }) in items.iter().take(count).enumerate() {
            let comma = if number > 0 { "," } else { "" };
            let tag = format!("{}", ETag(entry)).replace('"', "\\\"");
            // A `String` never fails to be written to.
            let _ = write!(text, "{comma}\n{{\"id\":{},\"bytes\":{},\"etag\":\"{tag}\",", entry.id, entry.length);
            let _ = write!(text, "\"deliveries\":{tries},");
            let _ = match *place {
                Place::Ready => write!(text, "\"state\":\"ready\"}}"),
                Place::Dead => write!(text, "\"state\":\"dead\"}}"),
                Place::Leased(until) => {
                    write!(text, "\"state\":\"leased\",\"lease_seconds\":{}}}", (until - now).as_secs())
                }
            };
        }
        match items.get(count).and(items.get(count - 1)) {
            Some(last) => _ = write!(text, "\n],\"next\":\"/items?after={}&count={count}\"}}\n", last.entry.id),
            None => text.push_str("\n]}\n"),
        }
        let response = Response::new(Status::OK).header("Content-Type", "application/json");
        Ok((response.header("Cache-Control", "no-store"), text))
    }
}

/// Whether the request names this lease.
#[inline(never)]
fn names_lease(request: &Request, fence: &Fence) -> bool {
    let token = format!("{fence}");
    request.list("If-Match").any(|named| named == token.as_bytes())
}

fn ok() -> (Response, String) {
    (Response::new(Status::OK).header("Content-Type", "text/plain; charset=utf-8"), "OK\n".into())
}

fn gone() -> Problem {
    Problem::new(Status::NOT_FOUND, "There is no such item: it was removed, or never was")
}

/// A number in a query.
fn query(request: &Request, name: &str) -> Result<Option<u64>, Problem> {
    let mut pairs = request.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let Some((_, text)) = pairs.find(|(found, _)| *found == name) else { return Ok(None) };
    let value = number(text).filter(|_| !text.is_empty());
    let text = format!("{name} takes a number");
    value.map(Some).ok_or(Problem::new(Status::BAD_REQUEST, text))
}

/// The time of a lease.
fn requested_time(request: &Request) -> Result<Duration, Problem> {
    Ok(lease_time(query(request, "secs")?))
}

/// How long a consumer waits: the preference `wait` (RFC 7240, section 4.3), or the query; not at all without both.
fn preferred_wait(request: &Request) -> Result<Duration, Problem> {
    let mut preferences = request.list("Prefer").filter_map(|preference| preference.strip_prefix(b"wait="));
    // What is malformed is ignored, as for all preferences.
    let preferred = preferences.next().and_then(|text| number(str::from_utf8(text).ok()?));
    let asked =
        wait_time(request.query()).map_err(|()| Problem::new(Status::BAD_REQUEST, "wait takes a number of seconds"))?;
    let preferred = preferred.map(|secs| Duration::from_secs(secs.min(WAIT_SECS_MAX)));
    Ok(preferred.or(asked).unwrap_or_default())
}
