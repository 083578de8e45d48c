//! A check that is ready: a client that uploads items by HTTP and writes down what was answered 2xx, and one that looks for them.

use crate::items::{self, Acknowledged, content, number_of};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use ureq::Agent;
use ureq::http::{Method, Request, Response, StatusCode};

/// How long a request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
/// A pause between attempts to reach a server.
const PAUSE: Duration = Duration::from_millis(20);
/// What one attempt may take while the server may be starting.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(2);
/// The longest item that is read.
const ITEM_BYTES_MAX: u64 = 1 << 30;

/// How items are uploaded.
#[derive(Debug, Clone)]
pub struct Upload {
    /// `{n}` stands for the item's number in it and in headers, `{bytes}` for its length.
    pub url: String,
    /// The method.
    pub method: String,
    /// Headers, as `NAME: VALUE`.
    pub headers: Vec<String>,
    /// The longest item.
    pub bytes_max: u64,
    /// Items, at most.
    pub items: u64,
    /// How long, at most.
    pub duration: Duration,
    /// Uploads at the same time.
    pub clients: usize,
}

/// How many uploads were answered 2xx, and how many otherwise or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Uploaded {
    /// 2xx.
    pub acknowledged: u64,
    /// Others.
    pub refused: u64,
}

/// Nanoseconds since 1970.
fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

fn agent(limit: Duration) -> Agent {
    let config = Agent::config_builder().http_status_as_error(false).max_redirects(0).timeout_global(Some(limit));
    config.build().into()
}

fn filled(template: &str, number: u64, bytes: usize) -> String {
    template.replace("{n}", &number.to_string()).replace("{bytes}", &bytes.to_string())
}

fn send(agent: &Agent, method: &str, url: &str, headers: &[String], body: Vec<u8>) -> Result<Response<ureq::Body>> {
    let method = Method::from_bytes(method.as_bytes()).with_context(|| format!("{method} is no method of HTTP"))?;
    let mut request = Request::builder().method(method).uri(url);
    for header in headers {
        let (name, value) =
            header.split_once(':').with_context(|| format!("`{header}` is no header: write NAME: VALUE"))?;
        request = request.header(name.trim(), value.trim());
    }
    let request = request.body(body).with_context(|| format!("{url} is no address"))?;
    agent.run(request).with_context(|| format!("{url} does not answer"))
}

/// Uploads items, and appends to the file `acknowledgements` what was answered 2xx.
///
/// # Errors
/// The file cannot be written, or the server cannot be reached at the start.
pub fn put(upload: &Upload, acknowledgements: &Path) -> Result<Uploaded> {
    let cannot = || format!("cannot write {}", acknowledgements.display());
    let file = File::options().create(true).append(true).open(acknowledgements).with_context(cannot)?;
    let (file, next, refused, acknowledged) =
        (Mutex::new(file), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let end = Instant::now() + upload.duration;
    let client = || -> Result<()> {
        let agent = agent(REQUEST_LIMIT);
        while Instant::now() < end {
            // Relaxed: a number that is unique, here and below.
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= upload.items {
                break;
            }
            let body = content(number, upload.bytes_max);
            let headers: Vec<String> = upload.headers.iter().map(|header| filled(header, number, body.len())).collect();
            let url = filled(&upload.url, number, body.len());
            let sent_ns = now_ns();
            let answer = send(&agent, &upload.method, &url, &headers, body);
            let answered_ns = now_ns();
            match answer {
                Ok(answer) if answer.status().is_success() => {
                    let url = location(&url, &answer);
                    let status = answer.status().as_u16();
                    let line = Acknowledged { number, bytes_max: upload.bytes_max, sent_ns, answered_ns, status, url };
                    let mut file = file.lock().expect("no client panics");
                    file.write_all(format!("{line}\n").as_bytes()).with_context(cannot)?;
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                }
                _ => {
                    refused.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(PAUSE);
                }
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..upload.clients).map(|_| scope.spawn(client)).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("no client panics"))
    })?;
    Ok(Uploaded { acknowledged: acknowledged.into_inner(), refused: refused.into_inner() })
}

/// Where the server has put an item.
fn location(url: &str, answer: &Response<ureq::Body>) -> String {
    let location = answer.headers().get("location").and_then(|value| value.to_str().ok());
    match location {
        Some(path) if path.starts_with('/') => on_server(url, path),
        Some(location) if location.starts_with("http") => location.to_owned(),
        _ => url.to_owned(),
    }
}

/// The scheme and the server of an address.
fn server(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    &url[..url[start..].find('/').map_or(url.len(), |at| start + at)]
}

fn on_server(url: &str, path: &str) -> String {
    format!("{}{path}", server(url))
}

/// How items are looked for.
#[derive(Debug, Clone)]
pub struct Download {
    /// The server: items are where they were, with this scheme, host and port if it is given. With `takes` where the oldest item is.
    pub url: Option<String>,
    /// Headers, as `NAME: VALUE`.
    pub headers: Vec<String>,
    /// The address is that of a queue: GET answers with the oldest item and an ETag, DELETE with this in If-Match removes it, and 204 means
    /// that there is none.
    pub takes: bool,
    /// How long the server may take until it answers.
    pub patience: Duration,
}

/// The acknowledgements that came before a cut, of which the items are lost: with what is there instead.
///
/// # Errors
/// The file is no such file, or the server does not answer.
pub fn got(download: &Download, text: &str, cut_ns: u64) -> Result<(usize, Vec<(Acknowledged, String)>)> {
    let mut expected = items::parse(text)?;
    expected.retain(|item| item.answered_ns <= cut_ns);
    let checked = expected.len();
    let lost = if download.takes { take(download, expected)? } else { find_each(download, expected)? };
    Ok((checked, lost))
}

fn find_each(download: &Download, expected: Vec<Acknowledged>) -> Result<Vec<(Acknowledged, String)>> {
    let at = |item: &Acknowledged| match &download.url {
        Some(url) => on_server(url, item.url.strip_prefix(server(&item.url)).unwrap_or("/")),
        None => item.url.clone(),
    };
    let Some(first) = expected.first() else { return Ok(Vec::new()) };
    wait(download, &at(first))?;
    let agent = agent(REQUEST_LIMIT);
    let mut lost = Vec::new();
    for item in expected {
        let (status, _, body) = get(&agent, download, &at(&item))?;
        let wrong = if !status.is_success() {
            Some(format!("GET is answered {}", status.as_u16()))
        } else {
            wrong(&body, &content(item.number, item.bytes_max))
        };
        lost.extend(wrong.map(|wrong| (item, wrong)));
    }
    Ok(lost)
}

fn take(download: &Download, expected: Vec<Acknowledged>) -> Result<Vec<(Acknowledged, String)>> {
    let url = download.url.as_deref().context("the address of a queue is missing")?;
    wait(download, url)?;
    let agent = agent(REQUEST_LIMIT);
    let mut found = BTreeSet::new();
    let bytes_max = expected.first().map_or(0, |item| item.bytes_max);
    loop {
        let (status, tag, body) = get(&agent, download, url)?;
        match status {
            StatusCode::NO_CONTENT | StatusCode::NOT_FOUND => break,
            status if !status.is_success() => bail!("GET {url} is answered {status}"),
            _ => {}
        }
        let number = number_of(&body).context("the queue has an item that was never uploaded")?;
        if bytes_max > 0 {
            let wrong = wrong(&body, &content(number, bytes_max));
            ensure!(wrong.is_none(), "item {number} is in the queue, and {}", wrong.unwrap_or_default());
        }
        ensure!(found.insert(number), "item {number} is in the queue twice");
        let mut headers = download.headers.clone();
        headers.extend(tag.map(|tag| format!("If-Match: {tag}")));
        let deleted = send(&agent, "DELETE", url, &headers, Vec::new())?.status();
        ensure!(deleted.is_success(), "DELETE {url} is answered {deleted}");
    }
    let is_lost = |item: &Acknowledged| !found.contains(&item.number);
    Ok(expected.into_iter().filter(is_lost).map(|item| (item, "it is not in the queue".to_owned())).collect())
}

fn wrong(found: &[u8], expected: &[u8]) -> Option<String> {
    if found == expected {
        return None;
    }
    let same = found.iter().zip(expected).take_while(|(one, other)| one == other).count();
    Some(format!("has {} of {} bytes, the first {same} of them right", found.len(), expected.len()))
}

fn get(agent: &Agent, download: &Download, url: &str) -> Result<(StatusCode, Option<String>, Vec<u8>)> {
    let mut answer = send(agent, "GET", url, &download.headers, Vec::new())?;
    let tag = answer.headers().get("etag").and_then(|tag| tag.to_str().ok()).map(str::to_owned);
    let body = answer.body_mut().with_config().limit(ITEM_BYTES_MAX).read_to_vec();
    Ok((answer.status(), tag, body.with_context(|| format!("{url} does not answer to the end"))?))
}

/// Waits until a server answers.
fn wait(download: &Download, url: &str) -> Result<()> {
    let end = Instant::now() + download.patience;
    // A VM may accept a connection before its service can, and never answer it: the first attempts are short.
    let mut limit = Duration::from_millis(50);
    loop {
        match send(&agent(limit), "GET", url, &download.headers, Vec::new()) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > end => return Err(error),
            Err(_) => thread::sleep(PAUSE),
        }
        limit = (limit * 2).min(ATTEMPT_LIMIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_found_on_another_server() {
        assert_eq!(server("http://a:80/x/y"), "http://a:80");
        assert_eq!(server("http://a:80"), "http://a:80");
        assert_eq!(on_server("http://b/z", "/x"), "http://b/x");
    }

    #[test]
    fn what_is_wrong_is_counted() {
        assert_eq!(wrong(b"abc", b"abc"), None);
        assert_eq!(wrong(b"abx", b"abcd").as_deref(), Some("has 3 of 4 bytes, the first 2 of them right"));
    }
}
