//! Many requests of a client at once, and one line about how they have ended.

use crate::client_options;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use glasshouse::http::client::{Client, Limits, Options};
use glasshouse::sync::Latch;
use glasshouse::{Error, Net, Platform};

/// From the start of a request to the end of its response.
const TOTAL: Duration = Duration::from_secs(20);
/// Bytes of a response at most.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Memory is compared from this part of the requests on: by then each connection has had a large response.
const WARM_PART: usize = 2;

struct Load<P: Platform> {
    client: Client<P>,
    platform: P,
    base: String,
    paths: Vec<String>,
    requests: usize,
    begun: Cell<usize>,
    ended: Cell<usize>,
    bytes: Cell<u64>,
    longest: Cell<Duration>,
    /// The status, or the error, and how often.
    outcomes: RefCell<BTreeMap<String, usize>>,
    warm_bytes: Cell<u64>,
    whole: Latch,
}

/// Sends `requests` requests to `base` with each of `paths` in turn (separated by commas), over at most `connections` connections.
pub(crate) async fn run(
    platform: &impl Platform,
    base: &str,
    paths: &str,
    [requests, connections]: [usize; 2],
) -> Result<(), Error> {
    let limits = Limits { total: TOTAL, connections_max: connections, idle_max: connections, ..Limits::default() };
    let options = Options { limits, ..client_options(platform).await? };
    platform.net().up().await?;
    let load = Rc::new(Load {
        client: Client::new(platform, options),
        platform: platform.clone(),
        base: base.into(),
        paths: paths.split(',').map(String::from).collect(),
        requests,
        begun: Cell::new(0),
        ended: Cell::new(0),
        bytes: Cell::new(0),
        longest: Cell::default(),
        outcomes: RefCell::default(),
        warm_bytes: Cell::new(0),
        whole: Latch::new(),
    });
    for _ in 0..connections {
        let load = load.clone();
        platform.spawn("requests", async move { load.send().await })?;
    }
    load.whole.wait().await;
    load.report();
    platform.writable(usize::MAX).await;
    Ok(())
}

impl<P: Platform> Load<P> {
    /// One request after the other, until enough are begun.
    async fn send(&self) {
        while self.begun.get() < self.requests {
            let path = &self.paths[self.begun.get() % self.paths.len()];
            self.begun.set(self.begun.get() + 1);
            let start = self.platform.now();
            let outcome = match self.get(path).await {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            };
            self.longest.set(self.longest.get().max(self.platform.now() - start));
            *self.outcomes.borrow_mut().entry(format!("{path} {outcome}")).or_default() += 1;
            self.ended.set(self.ended.get() + 1);
            if self.ended.get() == self.requests / WARM_PART {
                self.warm_bytes.set(self.platform.memory().used_bytes);
            }
        }
        if self.ended.get() == self.requests {
            self.whole.open();
        }
    }

    async fn get(&self, path: &str) -> Result<u16, glasshouse::http::client::Error> {
        let mut response = self.client.get(&format!("{}{path}", self.base)).await?;
        let body = response.read_all(BODY_BYTES_MAX).await?;
        self.bytes.set(self.bytes.get() + body.len() as u64);
        Ok(response.status().0)
    }

    fn report(&self) {
        let outcomes: Vec<String> =
            self.outcomes.borrow().iter().map(|(outcome, count)| format!("\"{outcome}\": {count}")).collect();
        self.platform.print(format_args!(
            "{{\"ended\": {}, \"outcomes\": {{{}}}, \"body_bytes\": {}, \"longest_ms\": {}, \"kept\": {}, \
             \"warm_bytes\": {}, \"used_bytes\": {}}}",
            self.ended.get(),
            outcomes.join(", "),
            self.bytes.get(),
            self.longest.get().as_millis(),
            self.client.idle_count(),
            self.warm_bytes.get(),
            self.platform.memory().used_bytes,
        ));
    }
}
