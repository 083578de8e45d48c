//! Devices: what they were asked for, how long it took, how many requests were under way.

use std::collections::BTreeMap;

use glass_profile::model::Distribution;
use glass_profile::trace::model::{Operation, Request, Trace};

use super::label::{self, duration};
use super::table::Table;
use crate::format::{count, percent};

#[derive(Default)]
struct Total {
    requests: u64,
    bytes: u64,
    failed: u64,
    open: u64,
    depth_max: u32,
    latency: Vec<u64>,
    busy_ns: u64,
    /// Up to here the time counts as busy already.
    busy_until_ns: u64,
}

impl Total {
    fn add(&mut self, request: &Request, trace: &Trace) {
        self.requests += 1;
        self.bytes += u64::from(request.bytes);
        self.failed += u64::from(request.has_failed);
        self.depth_max = self.depth_max.max(request.depth);
        let complete_ns = trace.request_end_ns(request);
        match request.complete_ns {
            Some(_) => self.latency.push(complete_ns - request.submit_ns),
            None => self.open += 1,
        }
        // Requests are in the order of their submission.
        let busy_ns = complete_ns.saturating_sub(self.busy_until_ns.max(request.submit_ns));
        self.busy_ns = self.busy_ns.saturating_add(busy_ns);
        self.busy_until_ns = self.busy_until_ns.max(complete_ns);
    }
}

/// A row for each device and operation.
pub(super) fn text(trace: &Trace) -> String {
    let mut totals: BTreeMap<(u32, u16), Total> = BTreeMap::new();
    for request in &trace.requests {
        totals.entry((request.device, request.operation as u16)).or_default().add(request, trace);
    }
    let all_ns = trace.end_ns - trace.start_ns;
    let mut out = format!("Devices: {}\n", count(trace.devices.len() as u64));
    let mut table = Table::new(&["<device", "requests", "bytes", "median", "p99", "max", "depth", "busy", "<remarks"]);
    for ((device, operation), total) in &mut totals {
        let latency = Distribution::of(&mut total.latency);
        let mut remarks = Vec::new();
        if total.failed > 0 {
            remarks.push(format!("{} failed", count(total.failed)));
        }
        if total.open > 0 {
            remarks.push(format!("{} not complete", count(total.open)));
        }
        table.row(vec![
            label::device(trace, *device, Operation::from_number(*operation)),
            count(total.requests),
            count(total.bytes),
            duration(latency.median_ns),
            duration(latency.p99_ns),
            duration(latency.max_ns),
            count(total.depth_max.into()),
            percent(total.busy_ns, all_ns),
            remarks.join(", "),
        ]);
    }
    out.push_str(&table.lines());
    out
}
