//! Xenstore as a driver of the core's loop, and dom0's requests to the domain: `xl shutdown` and `xl reboot`.

use super::XenEvents;
use crate::clock;
use crate::cores::this_core;
use crate::devices::EndRequests;
use crate::serial::print_line;
use alloc::boxed::Box;
use alloc::rc::Rc;
use core::fmt;
use glass_api::Instant;
use glass_drivers_device::{Driver, SetupError, Violation};
use glass_drivers_xen::{Store, StoreError};

/// Where the tools write what they request.
const REQUEST: &str = "control/shutdown";
/// What can be requested, for tools that look before.
const OFFERED: [&str; 2] = ["control/feature-poweroff", "control/feature-reboot"];

/// The connection to xenstore.
pub struct StoreDriver(pub Store<XenEvents>);

impl Driver for StoreDriver {
    fn poll(&mut self) -> bool {
        self.0.poll(clock::now())
    }

    /// Comes after the tasks: sends what they have requested.
    fn kick(&mut self) -> bool {
        self.0.poll(clock::now())
    }

    /// Its daemon always sends events.
    fn arm(&mut self) -> bool {
        self.0.poll(clock::now())
    }

    fn disarm(&mut self) {}

    fn deadline(&mut self) -> Option<Instant> {
        self.0.deadline()
    }

    fn acknowledge(&mut self) {}

    fn violation(&self) -> Option<Violation> {
        self.0.violation().map(|violation| Violation::Protocol(violation.as_str()))
    }

    fn restart(&mut self) -> Result<(), SetupError> {
        Err(SetupError::BadConfig("a domain has one connection to xenstore"))
    }
}

/// Prints a line where the service's lines go.
pub fn print(line: fmt::Arguments) {
    match this_core().print.get() {
        Some(print) => print(line),
        None => print_line(line),
    }
}

/// Starts the task that follows dom0's requests.
pub fn start(store: Store<XenEvents>, end_requests: Rc<EndRequests>) {
    let Some(executor) = this_core().executor.get() else { return };
    let follow = Box::pin(async move {
        if let Err(error) = follow(&store, &end_requests).await {
            print(format_args!("`xl shutdown` does not reach this service any more: {error}"));
        }
    });
    if executor.spawn("xen control", follow).is_err() {
        print(format_args!("`xl shutdown` does not reach this service: there is no room for a task"));
    }
}

async fn follow(store: &Store<XenEvents>, end_requests: &EndRequests) -> Result<(), StoreError> {
    for key in OFFERED {
        // Older tools give no right to write it, and do not look.
        let _ = store.write(key, "1").await;
    }
    let mut watch = store.watch(REQUEST).await?;
    loop {
        watch.changed().await?;
        let request = match store.read(REQUEST).await {
            Err(StoreError::Refused(_)) => continue,
            request => request?,
        };
        if request.is_empty() {
            continue;
        }
        // An empty value is the answer: the request was seen.
        store.write(REQUEST, "").await?;
        match request.as_str() {
            "poweroff" | "halt" => end_requests.power_button.set(true),
            "reboot" => {
                super::reboot_at_the_end();
                end_requests.power_button.set(true);
            }
            other => print(format_args!(
                "dom0 requests `{other}`, which this service cannot do: it can be shut down and rebooted, not saved or moved"
            )),
        }
    }
}
