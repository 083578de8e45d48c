//! Requests to devices, from submission to completion.

use std::collections::HashMap;

use glass_formats::trace::{Operation, UNREQUESTED_MIN};

use super::At;
use crate::trace::model::{Device, NameId, Request, Trace};

/// The requests in flight.
#[derive(Debug, Default)]
pub(super) struct Devices {
    by_name: HashMap<NameId, u32>,
    /// Indices of requests by device and number.
    under_way: HashMap<(u32, u64), u32>,
}

/// The fields of an event of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestEvent {
    pub(super) device: NameId,
    pub(super) number: u64,
    pub(super) detail: u16,
    /// Bytes (low 32) and requests in flight.
    pub(super) size: u64,
}

impl Devices {
    /// The index of a device.
    pub(super) fn device(&mut self, name: NameId, trace: &mut Trace) -> u32 {
        *self.by_name.entry(name).or_insert_with(|| {
            trace.devices.push(Device { name });
            trace.devices.len() as u32 - 1
        })
    }

    pub(super) fn submit(&mut self, at: At, event: RequestEvent, task: Option<u32>, trace: &mut Trace) {
        let device = self.device(event.device, trace);
        self.under_way.insert((device, event.number), trace.requests.len() as u32);
        trace.requests.push(Request {
            device,
            number: event.number,
            operation: Operation::from_number(event.detail),
            bytes: event.size as u32,
            depth: (event.size >> 32) as u32,
            submit_ns: at.time_ns,
            complete_ns: None,
            has_failed: false,
            task,
        });
    }

    /// The index of the request that is complete.
    pub(super) fn complete(&mut self, at: At, event: RequestEvent, trace: &mut Trace) -> u32 {
        let device = self.device(event.device, trace);
        let has_failed = event.detail != 0;
        match self.under_way.remove(&(device, event.number)) {
            Some(index) => {
                let request = &mut trace.requests[index as usize];
                (request.complete_ns, request.has_failed) = (Some(at.time_ns), has_failed);
                index
            }
            None => {
                let index = trace.requests.len() as u32;
                trace.requests.push(Request {
                    device,
                    number: event.number,
                    operation: if event.number >= UNREQUESTED_MIN { Operation::Receive } else { Operation::Other },
                    bytes: event.size as u32,
                    depth: ((event.size >> 32) as u32).saturating_add(1),
                    submit_ns: at.time_ns,
                    complete_ns: Some(at.time_ns),
                    has_failed,
                    task: None,
                });
                index
            }
        }
    }

    /// Ends the requests in flight at this moment: later events are missing.
    pub(super) fn stop(&mut self) {
        self.under_way.clear();
    }

    /// Puts the devices in the order of their names; returns how many requests are in flight.
    pub(super) fn finish(&mut self, names: &[String], trace: &mut Trace) -> u64 {
        let mut order: Vec<u32> = (0..trace.devices.len() as u32).collect();
        order.sort_by_key(|index| &names[trace.devices[*index as usize].name as usize]);
        let mut places = vec![0; order.len()];
        for (place, index) in order.iter().enumerate() {
            places[*index as usize] = place as u32;
        }
        trace.devices = order.iter().map(|index| trace.devices[*index as usize].clone()).collect();
        for request in &mut trace.requests {
            request.device = places[request.device as usize];
        }
        for kick in &mut trace.kicks {
            kick.device = places[kick.device as usize];
        }
        self.under_way.len() as u64
    }
}
