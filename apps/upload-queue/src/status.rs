//! The status page: what is in the queue, what is being uploaded, space and rates. It has no external resources, and shows itself again every
//! two seconds.

use crate::items::{Counts, Disk};
use crate::problem::Problem;
use crate::routes::{Connection, Queue};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use core::cell::{Cell, RefCell};
use core::fmt::Write;
use glasshouse::http::{HttpError, Method, Response, Status};
use glasshouse::{Instant, Platform};
use sha2::{Digest, Sha256};

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:52rem;padding:0 1rem;color:#1a1a1a;background:#fff}\
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.25rem 1rem .25rem 0;font-variant-numeric:tabular-nums}progress{width:100%;accent-color:#1d5fa8}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1.5rem}dd{margin:0;font-variant-numeric:tabular-nums}.problem{color:#a01818}\
@media(prefers-color-scheme:dark){body{color:#e8e8e8;background:#161616}progress{accent-color:#7ab4f5}.problem{color:#ff9a8f}}";

const SCRIPT: &str = "setInterval(async()=>{try{const answer=await fetch(location.href,{cache:'no-store'});if(answer.ok)\
document.querySelector('main').replaceWith(new DOMParser().parseFromString(await answer.text(),'text/html').querySelector('main'))}catch{}},2000)";

/// Damaged items that the page names.
const DAMAGED_MAX: usize = 10;

/// The uploads that requests are sending now. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Transfers(Rc<RefCell<Vec<Rc<Transfer>>>>);

/// An upload that is being received.
struct Transfer {
    /// Of its token.
    uploader: Option<Rc<str>>,
    length: Option<u64>,
    bytes: Cell<u64>,
}

/// A transfer in progress, until this is dropped.
pub(crate) struct Running {
    transfers: Transfers,
    transfer: Rc<Transfer>,
}

impl Transfers {
    /// An upload begins, or continues after `bytes`.
    pub(crate) fn begin(&self, uploader: Option<Rc<str>>, length: Option<u64>, bytes: u64) -> Running {
        let transfer = Rc::new(Transfer { uploader, length, bytes: Cell::new(bytes) });
        self.0.borrow_mut().push(transfer.clone());
        Running { transfers: self.clone(), transfer }
    }
}

impl Running {
    pub(crate) fn add(&self, bytes: u64) {
        self.transfer.bytes.set(self.transfer.bytes.get() + bytes);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.transfers.0.borrow_mut().retain(|other| !Rc::ptr_eq(other, &self.transfer));
    }
}

/// What was shown last, for rates.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shown {
    at: Instant,
    received_bytes: u64,
    sent_bytes: u64,
    /// Bytes a second before that.
    rates: (u64, u64),
}

impl<P: Platform> Queue<P> {
    /// Answers `GET /status`.
    pub(crate) async fn status(&self, connection: &mut Connection<P>, method: Method) -> Result<(), HttpError> {
        if !matches!(method, Method::Get | Method::Head) {
            let problem = Problem::new(Status::METHOD_NOT_ALLOWED, "Method not supported").field("Allow", "GET, HEAD");
            return problem.send(connection).await;
        }
        let script = BASE64_STANDARD.encode(Sha256::digest(SCRIPT));
        let policy = format!(
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script}'; connect-src 'self'; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        let response = Response::new(Status::OK)
            .header("Content-Type", "text/html; charset=utf-8")
            .header("Content-Security-Policy", policy)
            .header("Referrer-Policy", "no-referrer")
            .header("Cache-Control", "no-store");
        let page = self.page();
        connection.respond(response, page.as_bytes()).await
    }

    fn page(&self) -> String {
        let now = self.platform.now();
        let Counts { items, leased, dead } = self.items.counts(now);
        let (received, sent) = self.rates(now);
        let mut html = format!(
            "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
             <title>Upload queue</title><style>{STYLE}</style><main><h1>Upload queue</h1>"
        );
        // A `String` never fails to be written to. Nothing here is text of clients: names of tokens have letters, digits and . _ - @ only.
        let _ = match self.ready() {
            Ok(()) if self.items.disk_usage().is_none() => write!(html, "<p>The engine works.</p>"),
            Ok(()) => write!(html, "<p>The disk works.</p>"),
            Err(problem) => write!(html, "<p class=problem>Not ready: {}</p>", problem.detail.replace('<', "&lt;")),
        };
        let usage = self.items.disk_usage();
        let _ = write!(html, "<h2>Items</h2><dl><dt>in the queue<dd>{items}");
        if let Some(usage) = &usage {
            let _ = write!(html, " of {}", usage.items_max);
        }
        let _ = write!(
            html,
            "<dt>with a consumer<dd>{leased}<dt>set aside<dd>{dead}<dt>received<dd>{}/s<dt>sent<dd>{}/s",
            Bytes(received),
            Bytes(sent),
        );
        if let Some(disk) = self.items.disk() {
            checked(&mut html, disk);
        }
        html.push_str("</dl><h2>Space</h2>");
        let _ = match &usage {
            Some(usage) => {
                let (used, all) = (usage.data_bytes - usage.free_bytes, usage.data_bytes);
                let (used_text, all_text) = (Bytes(used), Bytes(all));
                write!(
                    html,
                    "<progress aria-label='space that is used' max={all} value={used}></progress><p>{used_text} of {all_text} used</p>"
                )
            }
            None => {
                let used = self.items.after(None, usize::MAX, now).into_iter().map(|item| item.entry.length);
                let used = used.fold(0, u64::saturating_add);
                write!(html, "<p>{} in the engine</p>", Bytes(used))
            }
        };
        html.push_str("<h2>Uploads in progress</h2>");
        self.uploads_in_progress(&mut html);
        let _ =
            writeln!(html, "<p>/metrics has these figures for Prometheus.</p></main><script>{SCRIPT}</script></html>");
        html
    }

    fn uploads_in_progress(&self, html: &mut String) {
        let uploads = self.items.resumables();
        let interrupted: Vec<_> =
            uploads.iter().filter(|upload| upload.item().is_none() && !upload.is_busy()).collect();
        let running = self.transfers.0.borrow();
        if running.is_empty() && interrupted.is_empty() {
            return html.push_str("<p>There are none.</p>");
        }
        html.push_str("<table><tr><th>from<th>state<th>progress<th>bytes");
        for transfer in running.iter() {
            let uploader = transfer.uploader.as_deref().unwrap_or("any client");
            row(html, uploader, "is received", transfer.bytes.get(), transfer.length);
        }
        for upload in interrupted {
            row(html, "any client", "can be resumed", upload.offset(), upload.length());
        }
        html.push_str("</table>");
    }

    /// Bytes a second that were received and sent since the page was shown last.
    fn rates(&self, now: Instant) -> (u64, u64) {
        let (received_bytes, sent_bytes) = (self.traffic.received_bytes.get(), self.traffic.sent_bytes.get());
        let before = self.shown.get();
        let millis = (now - before.at).as_millis() as u64;
        // Several may look at it.
        if millis < 1000 {
            return before.rates;
        }
        let rate = |now: u64, before: u64| (now - before).saturating_mul(1000) / millis;
        let rates = (rate(received_bytes, before.received_bytes), rate(sent_bytes, before.sent_bytes));
        self.shown.set(Shown { at: now, received_bytes, sent_bytes, rates });
        rates
    }
}

/// What the scrub has read, and which items were found damaged.
fn checked<P: Platform>(html: &mut String, disk: &Disk<P>) {
    if let Some(scrub) = &disk.scrub {
        let (bytes, passes) = (Bytes(scrub.checked_bytes.get()), scrub.passes.get());
        let _ = write!(html, "<dt>checked<dd>{bytes} since the start, complete passes: {passes}");
    }
    let damaged = disk.store.damaged();
    if damaged.is_empty() {
        return;
    }
    html.push_str("<dt class=problem>damaged<dd class=problem>");
    for (number, id) in damaged.iter().take(DAMAGED_MAX).enumerate() {
        let _ = write!(html, "{}{id}", if number > 0 { ", " } else { "item " });
    }
    if damaged.len() > DAMAGED_MAX {
        let _ = write!(html, " and {} more", damaged.len() - DAMAGED_MAX);
    }
}

fn row(html: &mut String, uploader: &str, state: &str, bytes: u64, length: Option<u64>) {
    let _ = write!(html, "<tr><td>{uploader}<td>{state}<td>");
    let _ = match length {
        Some(length) => write!(
            html,
            "<progress aria-label='upload of {uploader}' max={} value={bytes}></progress><td>{} of {}",
            length.max(1),
            Bytes(bytes),
            Bytes(length)
        ),
        None => write!(html, "length unknown<td>{}", Bytes(bytes)),
    };
}

/// Bytes with a unit, and a tenth.
struct Bytes(u64);

impl core::fmt::Display for Bytes {
    fn fmt(&self, f: &mut core::fmt::Formatter) -> core::fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB"];
        let step = (0..units.len() - 1).find(|step| self.0 >> (10 * step) < 1024).unwrap_or(units.len() - 1);
        if step == 0 {
            return write!(f, "{} B", self.0);
        }
        let tenths = (u128::from(self.0) * 10) >> (10 * step);
        write!(f, "{}.{} {}", tenths / 10, tenths % 10, units[step])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_a_unit() {
        let shown = |bytes| format!("{}", Bytes(bytes));
        assert_eq!([0, 1023, 1024, 1536, 10 << 20].map(shown), ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "10.0 MiB"]);
        assert_eq!([(1 << 40) - 1, 1 << 40, u64::MAX].map(shown), ["1023.9 GiB", "1.0 TiB", "16777215.9 TiB"]);
    }

    #[test]
    fn a_transfer_is_listed_until_it_ends() {
        let transfers = Transfers::default();
        let (first, second) = (transfers.begin(None, Some(9), 0), transfers.begin(None, None, 5));
        second.add(2);
        drop(first);
        assert_eq!(transfers.0.borrow().iter().map(|transfer| transfer.bytes.get()).collect::<Vec<_>>(), [7]);
        drop(second);
        assert!(transfers.0.borrow().is_empty());
    }
}
