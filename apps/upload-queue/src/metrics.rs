//! The figures of the queue in the text format of Prometheus (exposition format 0.0.4).

use crate::items::Counts;
use crate::routes::Queue;
use crate::telemetry::{DOWNLOADS_DONE, DOWNLOADS_WAITING, FLUSHES, UPLOADS_DONE, UPLOADS_WAITING};
use alloc::string::String;
use core::cell::Cell;
use core::fmt::Write;
use glasshouse::Platform;

/// Bytes of items that arrived and were sent since the start, without heads, TLS and repetitions of TCP.
#[derive(Default)]
pub(crate) struct Traffic {
    pub(crate) received_bytes: Cell<u64>,
    pub(crate) sent_bytes: Cell<u64>,
}

impl Traffic {
    pub(crate) fn received(&self, bytes: u64) {
        self.received_bytes.set(self.received_bytes.get().saturating_add(bytes));
    }

    pub(crate) fn sent(&self, bytes: u64) {
        self.sent_bytes.set(self.sent_bytes.get().saturating_add(bytes));
    }
}

impl<P: Platform> Queue<P> {
    /// The answer to `GET /metrics`.
    pub(crate) fn metrics(&self) -> String {
        let now = self.platform.now();
        let Counts { items, leased, dead } = self.items.counts(now);
        let open = self.items.resumables().iter().filter(|upload| upload.item().is_none()).count();
        let count = |count: usize| count as u64;
        let since_start = |value: i64| u64::try_from(value).unwrap_or_default();
        let mut text = String::new();
        let mut add = |name: &str, kind: &str, help: &str, value: u64| {
            // A `String` never fails to be written to.
            let _ = writeln!(
                text,
                "# HELP glass_queue_{name} {help}\n# TYPE glass_queue_{name} {kind}\nglass_queue_{name} {value}"
            );
        };
        let is_ready = self.ready().is_ok();
        add("ready", "gauge", "1 if the disk or the engine does what the queue needs, else 0.", is_ready.into());
        add("items", "gauge", "Items in the queue.", items);
        add("items_leased", "gauge", "Items that a consumer has.", leased);
        add("items_dead", "gauge", "Items that were given out as often as they may be.", dead);
        add("uploads_open", "gauge", "Uploads that can be resumed and are not complete.", count(open));
        add("uploads_waiting", "gauge", "Uploads that wait for a slot.", since_start(UPLOADS_WAITING.value()));
        add("downloads_waiting", "gauge", "Downloads that wait for a slot.", since_start(DOWNLOADS_WAITING.value()));
        if let Some(disk) = self.items.disk() {
            let usage = disk.store.usage();
            add("items_max", "gauge", "Items that the index has room for.", count(usage.items_max));
            add("bytes_free", "gauge", "Bytes of the disk that are free, in blocks of 4096.", usage.free_bytes);
            add("bytes_max", "gauge", "Bytes of the disk for data.", usage.data_bytes);
            add("commits_total", "counter", "Index writes since the queue was made.", usage.commits);
            add("flushes_total", "counter", "Flushes of the disk.", since_start(FLUSHES.value()));
            let damaged = count(disk.store.damaged().len());
            add("items_damaged", "gauge", "Items in the queue that were found damaged.", damaged);
            let found = disk.store.damage_found();
            add(
                "damage_found_total",
                "counter",
                "Items that were found damaged, by the scrub or by a download.",
                found,
            );
            if let Some(scrub) = &disk.scrub {
                add("scrub_bytes_total", "counter", "Bytes that the scrub has read.", scrub.checked_bytes.get());
                add(
                    "scrub_passes_total",
                    "counter",
                    "Complete passes of the scrub over all items.",
                    scrub.passes.get(),
                );
                let age = (now - scrub.ended.get()).as_secs();
                add("scrub_age_seconds", "gauge", "Seconds since the last complete pass, or since the start.", age);
            }
        }
        add("uploads_total", "counter", "Uploads that became items.", since_start(UPLOADS_DONE.value()));
        add("downloads_total", "counter", "Downloads that were sent whole.", since_start(DOWNLOADS_DONE.value()));
        add("leases_total", "counter", "Items given out by leases.", self.items.given());
        let dropped = self.log.as_ref().map_or(0, |log| log.dropped_total.get());
        add("log_dropped_total", "counter", "Lines of the access log that were dropped.", dropped);
        add("received_bytes_total", "counter", "Bytes of items received.", self.traffic.received_bytes.get());
        add("sent_bytes_total", "counter", "Bytes of items sent.", self.traffic.sent_bytes.get());
        text
    }
}
